// SPDX-License-Identifier: Apache-2.0
// Arithmetic. Integers are 64 bits wide; what does not fit is an error, where Python would go on.
#include "model/template/builtins.h"
#include "model/template/ctx.h"
#include "model/template/str.h"
#include <math.h>

static enum err overflow(struct tpl_ctx *c) {
    return tpl_fail(c, "an integer is over 64 bits");
}

static const char *op_text(char op) {
    switch (op) {
    case 'f':
        return "//";
    case '^':
        return "** or pow()";
    case '*':
        return "*";
    case '/':
        return "/";
    case '%':
        return "%";
    case '-':
        return "-";
    default:
        return "+";
    }
}

static enum err unsupported(struct tpl_ctx *c, char op, const struct tpl_val *a,
                            const struct tpl_val *b) {
    if (op == '+' && a->kind == TPL_STR)
        return tpl_fail(c, "can only concatenate str (not \"%s\") to str", tpl_type_name(b));
    if (op == '+' && a->kind == TPL_LIST)
        return tpl_fail(c, "can only concatenate list (not \"%s\") to list", tpl_type_name(b));
    return tpl_fail(c, "unsupported operand type(s) for %s: '%s' and '%s'", op_text(op),
                    tpl_type_name(a), tpl_type_name(b));
}

static enum err int_power(struct tpl_ctx *c, int64_t base, int64_t exponent, struct tpl_val *out) {
    int64_t result = 1;
    if (exponent < 0) {
        if (base == 0)
            return tpl_fail(c, "0.0 cannot be raised to a negative power");
        *out = tpl_float(pow((double)base, (double)exponent));
        return ERR_OK;
    }
    if (base >= -1 && base <= 1) {
        *out = tpl_int(exponent == 0 ? 1 : base == -1 && exponent % 2 == 0 ? 1 : base);
        return ERR_OK;
    }
    for (; exponent > 0; exponent--) { // 63 rounds at most before it overflows
        if (__builtin_mul_overflow(result, base, &result))
            return overflow(c);
    }
    *out = tpl_int(result);
    return ERR_OK;
}

static enum err int_divide(struct tpl_ctx *c, char op, int64_t a, int64_t b, struct tpl_val *out) {
    if (b == 0)
        return tpl_fail(c, op == '/' ? "division by zero" : "integer division or modulo by zero");
    if (op == '/') {
        *out = tpl_float((double)a / (double)b);
        return ERR_OK;
    }
    if (a == INT64_MIN && b == -1) {
        *out = tpl_int(0);
        return op == '%' ? ERR_OK : overflow(c);
    }
    int64_t quotient = a / b, rest = a % b;
    if (rest && (rest < 0) != (b < 0)) { // Python rounds down
        quotient--;
        rest += b;
    }
    *out = tpl_int(op == 'f' ? quotient : rest);
    return ERR_OK;
}

static enum err int_binary(struct tpl_ctx *c, char op, int64_t a, int64_t b, struct tpl_val *out) {
    int64_t r = 0;
    bool over = false;
    switch (op) {
    case '+':
        over = __builtin_add_overflow(a, b, &r);
        break;
    case '-':
        over = __builtin_sub_overflow(a, b, &r);
        break;
    case '*':
        over = __builtin_mul_overflow(a, b, &r);
        break;
    case '^':
        return int_power(c, a, b, out);
    default:
        return int_divide(c, op, a, b, out);
    }
    *out = tpl_int(r);
    return over ? overflow(c) : ERR_OK;
}

static bool is_zero(double f) {
    return !(f < 0) && !(f > 0) && !isnan(f);
}

static enum err float_divide(struct tpl_ctx *c, char op, double a, double b, struct tpl_val *out) {
    if (is_zero(b))
        return tpl_fail(c, op == '/'   ? "float division by zero"
                           : op == 'f' ? "float floor division by zero"
                                       : "float modulo");
    if (op == '/') {
        *out = tpl_float(a / b);
        return ERR_OK;
    }
    double rest = fmod(a, b), quotient = (a - rest) / b;
    if (!is_zero(rest)) {
        if ((b < 0) != (rest < 0)) {
            rest += b;
            quotient -= 1;
        }
    } else {
        rest = copysign(0.0, b);
    }
    double whole = floor(quotient);
    if (quotient - whole > 0.5)
        whole += 1;
    if (is_zero(quotient))
        whole = copysign(0.0, a / b);
    *out = tpl_float(op == 'f' ? whole : rest);
    return ERR_OK;
}

static enum err float_binary(struct tpl_ctx *c, char op, double a, double b, struct tpl_val *out) {
    double r;
    switch (op) {
    case '+':
        *out = tpl_float(a + b);
        return ERR_OK;
    case '-':
        *out = tpl_float(a - b);
        return ERR_OK;
    case '*':
        *out = tpl_float(a * b);
        return ERR_OK;
    case '^':
        if (is_zero(a) && b < 0)
            return tpl_fail(c, "0.0 cannot be raised to a negative power");
        if (a < 0 && isfinite(a) && isfinite(b) && floor(b) < b)
            return tpl_fail(c, "complex numbers are not supported");
        r = pow(a, b);
        if (isinf(r) && isfinite(a) && isfinite(b))
            return tpl_fail(c, "(34, 'Numerical result out of range')");
        *out = tpl_float(r);
        return ERR_OK;
    default:
        return float_divide(c, op, a, b, out);
    }
}

static enum err number_binary(struct tpl_ctx *c, char op, const struct tpl_val *a,
                              const struct tpl_val *b, struct tpl_val *out) {
    int64_t x, y;
    if (tpl_as_int(a, &x) && tpl_as_int(b, &y))
        return int_binary(c, op, x, y, out);
    return float_binary(c, op, tpl_as_double(a), tpl_as_double(b), out);
}

static enum err escaped(struct tpl_ctx *c, const struct tpl_str *s, const struct tpl_str **out) {
    struct tpl_sb b;
    struct tpl_val v;
    tpl_sb_init(&b, c);
    enum err e = tpl_sb_escaped(&b, s);
    if (!e)
        e = tpl_sb_finish(&b, &v);
    if (!e)
        *out = v.u.s;
    return e;
}

static enum err add_strings(struct tpl_ctx *c, const struct tpl_str *a, const struct tpl_str *b,
                            struct tpl_val *out) {
    enum err e = ERR_OK;
    if (a->markup != b->markup)
        e = escaped(c, a->markup ? b : a, a->markup ? &b : &a);
    return e ? e : tpl_str_concat(c, a, b, out);
}

static enum err repeat(struct tpl_ctx *c, const struct tpl_val *seq, int64_t times,
                       struct tpl_val *out) {
    size_t n = times > 0 ? (size_t)times : 0;
    if (seq->kind == TPL_STR) {
        struct tpl_sb b;
        tpl_sb_init(&b, c);
        enum err e = tpl_sb_fill(&b, seq->u.s, n);
        if (!e)
            e = tpl_sb_finish(&b, out);
        return !e && seq->u.s->markup ? tpl_str_markup(c, out->u.s, true, out) : e;
    }
    const struct tpl_list *from = seq->u.l;
    struct tpl_list *l;
    size_t total;
    if (__builtin_mul_overflow(from->n, n, &total) || total > SIZE_MAX / 64)
        return tpl_fail_limit(c, "much memory");
    enum err e = tpl_step(c, total * sizeof *l->v);
    if (!e)
        e = tpl_list_new(c, total, &l);
    if (e)
        return e;
    for (size_t i = 0; i < total; i++)
        l->v[i] = from->v[i % from->n];
    *out = seq->kind == TPL_LIST ? tpl_list(l) : tpl_tuple(l);
    return ERR_OK;
}

static bool is_sequence(const struct tpl_val *v) {
    return v->kind == TPL_STR || v->kind == TPL_LIST || v->kind == TPL_TUPLE;
}

enum err tpl_binary(struct tpl_ctx *c, char op, const struct tpl_val *a, const struct tpl_val *b,
                    struct tpl_val *out) {
    int64_t times;
    const struct tpl_list *l;
    if (op == '%' && a->kind == TPL_STR)
        return tpl_percent(c, a->u.s, b, out);
    if (a->kind == TPL_UNDEF || b->kind == TPL_UNDEF)
        return tpl_fail_undef(c, a->kind == TPL_UNDEF ? a : b);
    if (tpl_is_number(a) && tpl_is_number(b))
        return number_binary(c, op, a, b, out);
    if (op == '+' && a->kind == TPL_STR && b->kind == TPL_STR)
        return add_strings(c, a->u.s, b->u.s, out);
    if (op == '+' && a->kind == b->kind && is_sequence(a)) {
        enum err e = tpl_list_concat(c, a->u.l, b->u.l, &l);
        if (!e)
            *out = a->kind == TPL_LIST ? tpl_list(l) : tpl_tuple(l);
        return e;
    }
    if (op == '*' && is_sequence(a) && tpl_as_int(b, &times))
        return repeat(c, a, times, out);
    if (op == '*' && is_sequence(b) && tpl_as_int(a, &times))
        return repeat(c, b, times, out);
    return unsupported(c, op, a, b);
}

enum err tpl_unary(struct tpl_ctx *c, char op, const struct tpl_val *a, struct tpl_val *out) {
    int64_t i;
    if (a->kind == TPL_UNDEF)
        return tpl_fail_undef(c, a);
    if (tpl_as_int(a, &i)) {
        if (op == '-' && i == INT64_MIN)
            return overflow(c);
        *out = tpl_int(op == '-' ? -i : i);
        return ERR_OK;
    }
    if (a->kind == TPL_FLOAT) {
        *out = tpl_float(op == '-' ? -a->u.f : a->u.f);
        return ERR_OK;
    }
    return tpl_fail(c, "bad operand type for unary %c: '%s'", op, tpl_type_name(a));
}

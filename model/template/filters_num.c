// SPDX-License-Identifier: Apache-2.0
// Filters on numbers.
#include "model/template/builtins.h"
#include "model/template/ctx.h"
#include "model/template/str.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static const struct tpl_val *or_default(const struct tpl_call *call, size_t i,
                                        const struct tpl_val *missing) {
    return call->arg[i].kind == TPL_ABSENT ? missing : &call->arg[i];
}

static enum err int_of_text(struct tpl_ctx *c, const struct tpl_call *call, int64_t *v, bool *ok) {
    const struct tpl_str *s = call->self.u.s;
    int64_t base;
    double f;
    enum err e = tpl_arg_int(c, call, 1, 10, &base);
    if (!e)
        e = tpl_parse_int(c, s, base, v, ok);
    if (e || *ok)
        return e;
    e = tpl_parse_float(c, s, &f, ok); // "42.23" is 42
    return e || !*ok ? e : tpl_float_to_int(c, f, v, ok);
}

static enum err do_int(struct tpl_ctx *c, const struct tpl_call *call, struct tpl_val *out) {
    const struct tpl_val zero = tpl_int(0), *v = &call->self;
    int64_t i = 0;
    bool ok = true;
    enum err e = ERR_OK;
    if (v->kind == TPL_UNDEF)
        return tpl_fail_undef(c, v);
    if (v->kind == TPL_STR) {
        e = int_of_text(c, call, &i, &ok);
    } else if (v->kind == TPL_FLOAT) {
        if (isinf(v->u.f))
            return tpl_fail(c, "cannot convert float infinity to integer");
        e = tpl_float_to_int(c, v->u.f, &i, &ok);
    } else {
        ok = tpl_as_int(v, &i);
    }
    *out = ok ? tpl_int(i) : *or_default(call, 0, &zero);
    return e;
}

static enum err do_float(struct tpl_ctx *c, const struct tpl_call *call, struct tpl_val *out) {
    const struct tpl_val zero = tpl_float(0), *v = &call->self;
    double f = 0;
    bool ok = false;
    enum err e = ERR_OK;
    if (v->kind == TPL_UNDEF)
        return tpl_fail_undef(c, v);
    if (v->kind == TPL_STR) {
        e = tpl_parse_float(c, v->u.s, &f, &ok);
    } else if (tpl_is_number(v)) {
        f = tpl_as_double(v);
        ok = true;
    }
    *out = ok ? tpl_float(f) : *or_default(call, 0, &zero);
    return e;
}

static enum err do_abs(struct tpl_ctx *c, const struct tpl_call *call, struct tpl_val *out) {
    const struct tpl_val *v = &call->self;
    int64_t i;
    if (v->kind == TPL_FLOAT) {
        *out = tpl_float(fabs(v->u.f));
        return ERR_OK;
    }
    if (tpl_as_int(v, &i))
        return tpl_unary(c, i < 0 ? '-' : '+', v, out);
    if (v->kind == TPL_UNDEF)
        return tpl_fail_undef(c, v);
    return tpl_fail(c, "bad operand type for abs(): '%s'", tpl_type_name(v));
}

// Half to even on the exact decimal value, which is what printf does too.
static enum err round_float(struct tpl_ctx *c, double f, int64_t digits, struct tpl_val *out) {
    char text[512];
    *out = tpl_float(f);
    if (!isfinite(f) || digits > 330)
        return ERR_OK;
    if (digits < 0) {
        (void)snprintf(text, sizeof text, "%.0e", f);
        const char *e10 = text;
        while (*e10 && *e10 != 'e')
            e10++;
        int exponent = *e10 ? atoi(e10 + 1) : 0;
        // Significant digits that stay. With none left, half of the unit decides.
        int64_t keep = exponent + 1 + digits;
        if (keep < 0 || digits < -330) {
            *out = tpl_float(copysign(0.0, f));
            return ERR_OK;
        }
        if (keep == 0) {
            double unit = pow(10.0, (double)-digits);
            *out = tpl_float(copysign(fabs(f) > unit / 2 ? unit : 0.0, f));
            return ERR_OK;
        }
        (void)snprintf(text, sizeof text, "%.*e", (int)keep - 1, f);
    } else {
        (void)snprintf(text, sizeof text, "%.*f", (int)digits, f);
    }
    double r = strtod(text, NULL);
    if (isinf(r))
        return tpl_fail(c, "rounded value too large to represent");
    *out = tpl_float(r);
    return ERR_OK;
}

static enum err round_int(struct tpl_ctx *c, int64_t v, int64_t digits, struct tpl_val *out) {
    *out = tpl_int(v);
    if (digits >= 0)
        return ERR_OK;
    int64_t unit = 1;
    for (int64_t i = digits; i < 0; i++) {
        if (__builtin_mul_overflow(unit, (int64_t)10, &unit)) {
            *out = tpl_int(0);
            return ERR_OK;
        }
    }
    int64_t rest = v % unit, down;
    if (rest < 0)
        rest += unit;
    if (__builtin_sub_overflow(v, rest, &down))
        return tpl_fail(c, "an integer is over 64 bits");
    bool odd = (down / unit) % 2 != 0;
    if (rest > unit / 2 || (rest == unit / 2 && odd && unit > 1)) {
        if (__builtin_add_overflow(down, unit, &down))
            return tpl_fail(c, "an integer is over 64 bits");
    }
    *out = tpl_int(down);
    return ERR_OK;
}

// math.ceil or floor of v * 10**digits, divided by it again.
static enum err round_towards(struct tpl_ctx *c, const struct tpl_val *v, int64_t digits, bool up,
                              struct tpl_val *out) {
    const struct tpl_val ten = tpl_int(10), exponent = tpl_int(digits);
    struct tpl_val scale, scaled, whole;
    int64_t i;
    bool ok = true;
    enum err e = tpl_binary(c, '^', &ten, &exponent, &scale);
    if (!e)
        e = tpl_binary(c, '*', v, &scale, &scaled);
    if (e)
        return e;
    whole = scaled;
    if (scaled.kind == TPL_FLOAT) {
        e = tpl_float_to_int(c, up ? ceil(scaled.u.f) : floor(scaled.u.f), &i, &ok);
        whole = tpl_int(i);
    }
    if (!e && !ok)
        return tpl_fail(c, "cannot convert float infinity or NaN to integer");
    return e ? e : tpl_binary(c, '/', &whole, &scale, out);
}

static enum err do_round(struct tpl_ctx *c, const struct tpl_call *call, struct tpl_val *out) {
    static const struct tpl_str by_default = {.p = "common", .len = 6, .chars = 6};
    const struct tpl_val *v = &call->self;
    const struct tpl_str *method;
    int64_t digits, i = 0;
    enum err e = tpl_arg_str(c, call, 1, &by_default, &method);
    if (e)
        return e;
    bool up = tpl_str_is(method, "ceil");
    if (!up && !tpl_str_is(method, "floor") && !tpl_str_is(method, "common"))
        return tpl_fail(c, "method must be common, ceil or floor");
    if (v->kind == TPL_UNDEF)
        return tpl_fail_undef(c, v);
    if (!tpl_is_number(v))
        return tpl_fail(c, "type %s doesn't define __round__ method", tpl_type_name(v));
    bool common = tpl_str_is(method, "common"), ok = true;
    e = common ? tpl_arg_index(c, call, 0, 0, &digits) : tpl_arg_int(c, call, 0, 0, &digits);
    if (e)
        return e;
    if (!common)
        return round_towards(c, v, digits, up, out);
    if (tpl_as_int(v, &i))
        return round_int(c, i, digits, out);
    e = round_float(c, v->u.f, digits, out);
    if (e || call->arg[0].kind != TPL_NONE)
        return e;
    e = tpl_float_to_int(c, out->u.f, &i, &ok); // no precision at all gives an integer
    *out = tpl_int(i);
    return e || ok ? e : tpl_fail(c, "cannot convert float infinity or NaN to integer");
}

const struct tpl_fn tpl_filters_num[] = {
    {"int", do_int, 0, 0, {"default", "base"}},
    {"float", do_float, 0, 0, {"default"}},
    {"abs", do_abs, 0, 0, {NULL}},
    {"round", do_round, 0, 0, {"precision", "method"}},
    {.name = NULL},
};

// SPDX-License-Identifier: Apache-2.0
// int() and float() of text.
#include "model/template/builtins.h"
#include "model/template/ctx.h"
#include "model/template/str.h"
#include "model/template/unicode.h"
#include <math.h>
#include <stdlib.h>
#include <strings.h>

// The text without white space around it, lower case, with ASCII digits, ended by a NUL. *out is
// NULL where another character beyond ASCII or a NUL stands in it.
static enum err clean(struct tpl_ctx *c, const struct tpl_str *s, char **out) {
    struct tpl_val v;
    char *to;
    size_t n = 0;
    enum err e = tpl_str_strip(c, s, NULL, 3, &v);
    if (!e)
        e = tpl_step(c, v.u.s->len);
    if (!e)
        e = tpl_alloc(c, v.u.s->len + 1, 1, &to);
    if (e)
        return e;
    *out = to;
    for (size_t i = 0; i < v.u.s->len;) {
        uint32_t cp;
        i += tpl_uc_next(v.u.s->p + i, v.u.s->len - i, &cp);
        int digit = tpl_uc_decimal_value(cp);
        if (digit < 0 && (cp >= 0x80 || cp == 0)) {
            *out = NULL;
            return ERR_OK;
        }
        to[n++] = (char)(digit >= 0               ? '0' + digit
                         : cp >= 'A' && cp <= 'Z' ? (int)cp + 32
                                                  : (int)cp);
    }
    to[n] = '\0';
    return ERR_OK;
}

static int digit_value(char ch) {
    if (ch >= '0' && ch <= '9')
        return ch - '0';
    return ch >= 'a' && ch <= 'z' ? ch - 'a' + 10 : 99;
}

// Skips "0x" and the like where the base allows it and settles base 0; false on a bad base.
static bool skip_prefix(const char **p, int64_t *base) {
    static const struct {
        char letter;
        int64_t base;
    } prefixes[] = {{'b', 2}, {'o', 8}, {'x', 16}};
    if (*base != 0 && (*base < 2 || *base > 36))
        return false;
    for (size_t i = 0; i < sizeof prefixes / sizeof *prefixes; i++) {
        if ((*p)[0] == '0' && (*p)[1] == prefixes[i].letter &&
            (*base == 0 || *base == prefixes[i].base)) {
            *base = prefixes[i].base;
            *p += (*p)[2] == '_' ? 3 : 2;
            return true;
        }
    }
    if (*base == 0) {
        const char *q = *p; // no leading zeros but in zero itself
        *base = 10;
        while (*q == '0' || *q == '_')
            q++;
        return q == *p || *q == '\0';
    }
    return true;
}

enum err tpl_parse_int(struct tpl_ctx *c, const struct tpl_str *s, int64_t base, int64_t *out,
                       bool *ok) {
    char *text;
    enum err e = clean(c, s, &text);
    *ok = false;
    if (e || !text)
        return e;
    const char *p = text;
    bool negative = *p == '-', over = false;
    int64_t v = 0;
    if (*p == '-' || *p == '+')
        p++;
    if (!skip_prefix(&p, &base) || digit_value(*p) >= base)
        return ERR_OK;
    for (; *p; p++) {
        if (*p == '_' && digit_value(p[1]) < base)
            continue;
        int d = digit_value(*p);
        if (d >= base)
            return ERR_OK;
        over = over || __builtin_mul_overflow(v, base, &v) ||
               __builtin_sub_overflow(v, (int64_t)d, &v); // downwards: INT64_MIN is one further
    }
    if (over || (!negative && v == INT64_MIN))
        return tpl_fail(c, "an integer is over 64 bits");
    *out = negative ? v : -v;
    *ok = true;
    return ERR_OK;
}

// Digits with single underscores between them, copied without those.
static size_t take_digits(const char **p, char **to) {
    size_t n = 0;
    while ((**p >= '0' && **p <= '9') || (**p == '_' && n && (*p)[1] >= '0' && (*p)[1] <= '9')) {
        if (**p != '_')
            *(*to)++ = **p;
        (*p)++;
        n++;
    }
    return n;
}

enum err tpl_parse_float(struct tpl_ctx *c, const struct tpl_str *s, double *out, bool *ok) {
    char *text;
    enum err e = clean(c, s, &text);
    *ok = false;
    if (e || !text)
        return e;
    const char *p = text;
    char *to = text; // underscores go, so writing never overtakes reading
    double sign = *p == '-' ? -1.0 : 1.0;
    if (*p == '-' || *p == '+')
        p++;
    if (strcasecmp(p, "inf") == 0 || strcasecmp(p, "infinity") == 0 || strcasecmp(p, "nan") == 0) {
        *out = *p == 'n' ? (double)NAN : sign * (double)INFINITY;
        *ok = true;
        return ERR_OK;
    }
    size_t whole = take_digits(&p, &to), fraction = 0;
    if (*p == '.') {
        *to++ = *p++;
        fraction = take_digits(&p, &to);
    }
    if (!whole && !fraction)
        return ERR_OK;
    if (*p == 'e') {
        *to++ = *p++;
        if (*p == '-' || *p == '+')
            *to++ = *p++;
        if (!take_digits(&p, &to))
            return ERR_OK;
    }
    if (*p)
        return ERR_OK;
    *to = '\0';
    *out = sign * strtod(text, NULL);
    *ok = true;
    return ERR_OK;
}

enum err tpl_float_to_int(struct tpl_ctx *c, double f, int64_t *out, bool *ok) {
    *ok = isfinite(f);
    if (!*ok)
        return ERR_OK;
    if (!(f > -9223372036854775809.0 && f < 9223372036854775808.0))
        return tpl_fail(c, "an integer is over 64 bits");
    *out = (int64_t)f;
    return ERR_OK;
}

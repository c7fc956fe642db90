// SPDX-License-Identifier: Apache-2.0
#include "model/template/numfmt.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

static int print_float(char *to, size_t room, double f, char conv, int precision, bool alternate) {
    switch (conv) {
    case 'e':
        return alternate ? snprintf(to, room, "%#.*e", precision, f)
                         : snprintf(to, room, "%.*e", precision, f);
    case 'E':
        return alternate ? snprintf(to, room, "%#.*E", precision, f)
                         : snprintf(to, room, "%.*E", precision, f);
    case 'g':
        return alternate ? snprintf(to, room, "%#.*g", precision, f)
                         : snprintf(to, room, "%.*g", precision, f);
    case 'G':
        return alternate ? snprintf(to, room, "%#.*G", precision, f)
                         : snprintf(to, room, "%.*G", precision, f);
    default:
        return alternate ? snprintf(to, room, "%#.*f", precision, f)
                         : snprintf(to, room, "%.*f", precision, f);
    }
}

enum err tpl_num_float(struct tpl_ctx *c, double f, char conv, int64_t precision, bool alternate,
                       char **out) {
    if (precision > TPL_MAX_PRECISION)
        return tpl_fail(c, "a precision over %d is not supported", TPL_MAX_PRECISION);
    size_t room = 340 + (size_t)(precision < 0 ? 6 : precision); // 309 digits before the point
    enum err e = tpl_alloc(c, room, 1, out);
    if (e)
        return e;
    if (!isfinite(f)) {
        bool upper = conv == 'E' || conv == 'F' || conv == 'G';
        (void)snprintf(*out, room, "%s",
                       isnan(f) ? (upper ? "NAN" : "nan") : (upper ? "INF" : "inf"));
        return ERR_OK;
    }
    (void)print_float(*out, room, fabs(f), conv, precision < 0 ? 6 : (int)precision, alternate);
    return tpl_step(c, room);
}

size_t tpl_num_uint(uint64_t v, unsigned base, bool upper, char out[TPL_UINT_CHARS]) {
    const char *digits = upper ? "0123456789ABCDEF" : "0123456789abcdef";
    char reversed[TPL_UINT_CHARS];
    size_t n = 0;
    do {
        reversed[n++] = digits[v % base];
        v /= base;
    } while (v);
    for (size_t i = 0; i < n; i++)
        out[i] = reversed[n - 1 - i];
    out[n] = '\0';
    return n;
}

static enum err fill(struct tpl_sb *b, uint32_t cp, int64_t times) {
    enum err e = ERR_OK;
    if (times > TPL_MAX_PAD)
        return tpl_fail_limit(b->c, "much memory");
    for (int64_t i = 0; !e && i < times; i++)
        e = tpl_sb_char(b, cp, false);
    return e;
}

static int64_t left_of(const struct tpl_padding *p, int64_t gap) {
    if (gap <= 0)
        return 0;
    return p->align == '<' ? 0 : p->align == '^' ? gap / 2 : gap;
}

enum err tpl_pad_number(struct tpl_sb *b, const struct tpl_padding *p, const char *prefix,
                        const char *body, bool literal) {
    size_t n_prefix = strlen(prefix), n = strlen(body);
    int64_t gap = p->width - (int64_t)(n_prefix + n), left = left_of(p, gap);
    enum err e = p->align == '=' ? ERR_OK : fill(b, p->fill, left);
    if (!e)
        e = tpl_sb_add(b, prefix, n_prefix, literal);
    if (!e && p->align == '=')
        e = fill(b, p->fill, left);
    if (!e)
        e = tpl_sb_add(b, body, n, literal);
    return e ? e : fill(b, p->fill, gap - left);
}

enum err tpl_pad_text(struct tpl_sb *b, const struct tpl_padding *p, const struct tpl_str *s) {
    int64_t gap = p->width - (int64_t)s->chars, left = left_of(p, gap);
    enum err e = fill(b, p->fill, left);
    if (!e)
        e = tpl_sb_str(b, s);
    return e ? e : fill(b, p->fill, gap - left);
}

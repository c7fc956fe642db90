// SPDX-License-Identifier: Apache-2.0
// printf-style formatting: "%s has %d" % (a, b), and the format filter.
#include "base/utf8.h"
#include "model/template/builtins.h"
#include "model/template/numfmt.h"
#include "model/template/unicode.h"
#include <math.h>
#include <string.h>

struct percent {
    struct tpl_ctx *c;
    const struct tpl_str *fmt;
    const struct tpl_val *args;
    size_t at;
    size_t used;  // arguments taken in order
    bool literal; // of the format's text at hand
    struct tpl_sb b;
};
struct directive {
    bool left, plus, space, alternate, zero;
    int64_t width, precision; // -1: not given
    char conv;
    struct tpl_val key; // absent: take the next argument
};

static bool is_mapping(const struct tpl_val *v) {
    return v->kind == TPL_DICT || v->kind == TPL_LIST || v->kind == TPL_RANGE ||
           v->kind == TPL_UNDEF;
}

static enum err next_arg(struct percent *p, struct tpl_val *out) {
    bool tuple = p->args->kind == TPL_TUPLE;
    if (p->used >= (tuple ? p->args->u.l->n : 1))
        return tpl_fail(p->c, "not enough arguments for format string");
    *out = tuple ? p->args->u.l->v[p->used] : *p->args;
    p->used++;
    return ERR_OK;
}

static enum err take_key(struct percent *p, struct directive *d) {
    size_t begin = p->at + 1, depth = 1, at = begin;
    for (; at < p->fmt->len; at++) {
        depth += p->fmt->p[at] == '(';
        depth -= p->fmt->p[at] == ')';
        if (depth == 0)
            break;
    }
    if (at >= p->fmt->len)
        return tpl_fail(p->c, "incomplete format key");
    p->at = at + 1;
    if (p->args->kind != TPL_DICT)
        return tpl_fail(p->c, "format requires a mapping");
    return tpl_str_sub(p->c, p->fmt, begin, at, &d->key);
}

static enum err take_number(struct percent *p, int64_t *out) {
    const char *s = p->fmt->p;
    struct tpl_val v;
    if (p->at < p->fmt->len && s[p->at] == '*') {
        p->at++;
        enum err e = next_arg(p, &v);
        if (!e && !tpl_as_int(&v, out))
            return tpl_fail(p->c, "* wants int");
        return e;
    }
    *out = p->at < p->fmt->len && s[p->at] >= '0' && s[p->at] <= '9' ? 0 : -1;
    for (; p->at < p->fmt->len && s[p->at] >= '0' && s[p->at] <= '9'; p->at++) {
        *out = *out * 10 + (s[p->at] - '0');
        if (*out > TPL_MAX_PAD)
            return tpl_fail_limit(p->c, "much memory");
    }
    return ERR_OK;
}

static void take_flags(struct percent *p, struct directive *d) {
    for (; p->at < p->fmt->len; p->at++) {
        switch (p->fmt->p[p->at]) {
        case '-':
            d->left = true;
            break;
        case '+':
            d->plus = true;
            break;
        case ' ':
            d->space = true;
            break;
        case '#':
            d->alternate = true;
            break;
        case '0':
            d->zero = true;
            break;
        default:
            return;
        }
    }
}

// Everything after the % sign.
static enum err parse(struct percent *p, struct directive *d) {
    enum err e = ERR_OK;
    *d = (struct directive){.precision = -1, .key.kind = TPL_ABSENT};
    if (p->at < p->fmt->len && p->fmt->p[p->at] == '(')
        e = take_key(p, d);
    take_flags(p, d);
    if (!e)
        e = take_number(p, &d->width);
    if (!e && d->width < -1) { // a negative * means left
        d->left = true;
        d->width = d->width < -TPL_MAX_PAD ? TPL_MAX_PAD + 1 : -d->width;
    }
    if (!e && d->width > TPL_MAX_PAD)
        return tpl_fail_limit(p->c, "much memory");
    if (!e && p->at < p->fmt->len && p->fmt->p[p->at] == '.') {
        p->at++;
        e = take_number(p, &d->precision);
        if (d->precision < 0)
            d->precision = 0;
    }
    if (!e && p->at < p->fmt->len && memchr("hlL", p->fmt->p[p->at], 3))
        p->at++;
    if (!e && p->at >= p->fmt->len)
        return tpl_fail(p->c, "incomplete format");
    if (!e)
        d->conv = p->fmt->p[p->at++];
    return e;
}

static struct tpl_padding padding(const struct directive *d, bool number) {
    bool zero = number && d->zero && !d->left;
    return (struct tpl_padding){.fill = zero ? '0' : ' ',
                                .align = d->left ? '<'
                                         : zero  ? '='
                                                 : '>',
                                .width = d->width};
}

// ascii(): repr with everything beyond ASCII escaped.
static enum err ascii_only(struct tpl_ctx *c, const struct tpl_str **s) {
    struct tpl_sb b;
    struct tpl_val v;
    enum err e = ERR_OK;
    bool literal = tpl_str_literal(*s);
    tpl_sb_init(&b, c);
    for (size_t at = 0; !e && at < (*s)->len;) {
        uint32_t cp;
        char digits[TPL_UINT_CHARS];
        at += tpl_uc_next((*s)->p + at, (*s)->len - at, &cp);
        if (cp < 0x80) {
            e = tpl_sb_char(&b, cp, literal);
            continue;
        }
        size_t want = cp < 0x100     ? 2
                      : cp < 0x10000 ? 4
                                     : 8,
               n = tpl_num_uint(cp, 16, false, digits);
        e = tpl_sb_add(&b, want == 2 ? "\\x" : want == 4 ? "\\u" : "\\U", 2, literal);
        if (!e)
            e = tpl_sb_add(&b, "00000000", want - n, literal);
        if (!e)
            e = tpl_sb_add(&b, digits, n, literal);
    }
    if (!e)
        e = tpl_sb_finish(&b, &v);
    if (!e)
        *s = v.u.s;
    return e;
}

static enum err add_text(struct percent *p, const struct directive *d, const struct tpl_val *v) {
    struct tpl_sb b;
    struct tpl_val text = *v;
    const struct tpl_str *s;
    enum err e = ERR_OK;
    if (d->conv != 's') {
        tpl_sb_init(&b, p->c);
        e = tpl_sb_repr(&b, v);
        if (!e)
            e = tpl_sb_finish(&b, &text);
    }
    if (!e)
        e = tpl_to_str(p->c, &text, &s);
    if (!e && d->conv == 'a')
        e = ascii_only(p->c, &s);
    if (!e && p->fmt->markup && !s->markup) {
        tpl_sb_init(&b, p->c);
        e = tpl_sb_escaped(&b, s);
        if (!e)
            e = tpl_sb_finish(&b, &text);
        s = text.u.s;
    }
    if (!e && d->precision >= 0 && (uint64_t)d->precision < s->chars) {
        e = tpl_step(p->c, s->len);
        if (!e)
            e = tpl_str_sub(p->c, s, 0, tpl_str_offset(s, (size_t)d->precision), &text);
        s = text.u.s;
    }
    const struct tpl_padding pad = padding(d, false);
    return e ? e : tpl_pad_text(&p->b, &pad, s);
}

static const char *sign_text(const struct directive *d, bool negative) {
    return negative ? "-" : d->plus ? "+" : d->space ? " " : "";
}

static enum err add_int(struct percent *p, const struct directive *d, const struct tpl_val *v) {
    char digits[TPL_UINT_CHARS], prefix[8];
    char body[TPL_UINT_CHARS + TPL_MAX_PRECISION];
    bool hex = d->conv == 'x' || d->conv == 'X', octal = d->conv == 'o', ok = true;
    int64_t i;
    enum err e = ERR_OK;
    if (v->kind == TPL_FLOAT && !hex && !octal) {
        e = tpl_float_to_int(p->c, v->u.f, &i, &ok);
        if (!e && !ok)
            return tpl_fail(p->c, "cannot convert float infinity or NaN to integer");
    } else if (!tpl_as_int(v, &i)) {
        return v->kind == TPL_UNDEF
                   ? tpl_fail_undef(p->c, v)
                   : tpl_fail(p->c, "%%%c format: %s is required, not %s", d->conv,
                              hex || octal ? "an integer" : "a real number", tpl_type_name(v));
    }
    if (e)
        return e;
    if (d->precision > TPL_MAX_PRECISION)
        return tpl_fail(p->c, "a precision over %d is not supported", TPL_MAX_PRECISION);
    size_t n = tpl_num_uint(i < 0 ? 0 - (uint64_t)i : (uint64_t)i,
                            hex     ? 16
                            : octal ? 8
                                    : 10,
                            d->conv == 'X', digits);
    size_t zeros = d->precision > (int64_t)n ? (size_t)d->precision - n : 0;
    memset(body, '0', zeros);
    memcpy(body + zeros, digits, n + 1);
    strcpy(prefix, sign_text(d, i < 0));
    if (d->alternate && (hex || octal))
        strcat(prefix, d->conv == 'x' ? "0x" : octal ? "0o" : "0X");
    const struct tpl_padding pad = padding(d, true);
    return tpl_pad_number(&p->b, &pad, prefix, body, false);
}

static enum err add_float(struct percent *p, const struct directive *d, const struct tpl_val *v) {
    char *body;
    if (v->kind == TPL_UNDEF)
        return tpl_fail_undef(p->c, v);
    if (!tpl_is_number(v))
        return tpl_fail(p->c, "must be real number, not %s", tpl_type_name(v));
    double f = tpl_as_double(v);
    enum err e = tpl_num_float(p->c, f, d->conv, d->precision, d->alternate, &body);
    struct tpl_padding pad = padding(d, true);
    return e ? e : tpl_pad_number(&p->b, &pad, sign_text(d, signbit(f) && !isnan(f)), body, false);
}

static enum err add_char(struct percent *p, const struct directive *d, const struct tpl_val *v) {
    struct tpl_val text = *v;
    int64_t i;
    char u[4];
    enum err e = ERR_OK;
    if (tpl_as_int(v, &i)) {
        if (i < 0 || i > 0x10ffff || (i >= 0xd800 && i < 0xe000))
            return tpl_fail(p->c, "%%c arg not in range(0x110000)");
        e = tpl_str_new(p->c, u, (size_t)utf8_encode((uint32_t)i, u), false, &text);
    }
    if (!e && (text.kind != TPL_STR || text.u.s->chars != 1))
        return tpl_fail(p->c, "%%c requires int or char");
    const struct tpl_padding pad = padding(d, false);
    return e ? e : tpl_pad_text(&p->b, &pad, text.u.s);
}

static enum err convert(struct percent *p, const struct directive *d) {
    struct tpl_val v;
    enum err e;
    if (d->conv == '%')
        return tpl_sb_add(&p->b, "%", 1, p->literal);
    if (d->key.kind == TPL_ABSENT) {
        e = next_arg(p, &v);
    } else {
        const struct tpl_val *hit;
        e = tpl_dict_get(p->c, p->args->u.d, &d->key, &hit);
        if (!e && !hit)
            return tpl_fail(p->c, "the format's key '%.*s' is missing", (int)d->key.u.s->len,
                            d->key.u.s->p);
        if (!e)
            v = *hit;
    }
    if (e)
        return e;
    if (memchr("sra", d->conv, 3))
        return add_text(p, d, &v);
    if (memchr("diuxXo", d->conv, 6))
        return add_int(p, d, &v);
    if (memchr("eEfFgG", d->conv, 6))
        return add_float(p, d, &v);
    if (d->conv == 'c')
        return add_char(p, d, &v);
    return tpl_fail(p->c, "unsupported format character (0x%x)", (unsigned char)d->conv);
}

enum err tpl_percent(struct tpl_ctx *c, const struct tpl_str *fmt, const struct tpl_val *args,
                     struct tpl_val *out) {
    struct percent p = {.c = c, .fmt = fmt, .args = args, .literal = tpl_str_literal(fmt)};
    enum err e = tpl_step(c, fmt->len);
    tpl_sb_init(&p.b, c);
    while (!e && p.at < fmt->len) {
        const char *hit = memchr(fmt->p + p.at, '%', fmt->len - p.at);
        size_t end = hit ? (size_t)(hit - fmt->p) : fmt->len;
        struct directive d;
        e = tpl_sb_sub(&p.b, fmt, p.at, end);
        p.at = hit ? end + 1 : end;
        if (!e && hit)
            e = parse(&p, &d);
        if (!e && hit)
            e = convert(&p, &d);
    }
    if (!e && !is_mapping(args) && p.used < (args->kind == TPL_TUPLE ? args->u.l->n : 1))
        return tpl_fail(c, "not all arguments converted during string formatting");
    if (!e)
        e = tpl_sb_finish(&p.b, out);
    return !e && fmt->markup ? tpl_str_markup(c, out->u.s, true, out) : e;
}

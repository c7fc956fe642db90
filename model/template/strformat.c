// SPDX-License-Identifier: Apache-2.0
// str.format: replacement fields, conversions and format specifications.
#include "model/template/builtins.h"
#include "model/template/numfmt.h"
#include "model/template/unicode.h"
#include <math.h>
#include <string.h>

struct formatter {
    struct tpl_ctx *c;
    const struct tpl_args *args;
    bool markup;
    int64_t next; // number of the next {} field
    bool automatic, numbered;
};
struct spec {
    struct tpl_padding pad;
    bool aligned, filled;
    char sign, grouping, type;
    bool alternate;
    int64_t precision; // -1: not given
};

static enum err format_into(struct formatter *f, struct tpl_sb *b, const struct tpl_str *s,
                            int nesting);

static bool in(const char *set, char ch) {
    return ch && strchr(set, ch);
}

// --- specifications
// --------------------------------------------------------------------------------

static enum err spec_number(struct tpl_ctx *c, const struct tpl_str *s, size_t *at, int64_t *out) {
    int64_t v = -1;
    for (; *at < s->len && s->p[*at] >= '0' && s->p[*at] <= '9'; (*at)++) {
        v = (v < 0 ? 0 : v) * 10 + (s->p[*at] - '0');
        if (v > TPL_MAX_PAD)
            return tpl_fail_limit(c, "much memory");
    }
    *out = v;
    return ERR_OK;
}

static char take(const struct tpl_str *s, size_t *at, const char *set) {
    if (*at < s->len && in(set, s->p[*at]))
        return s->p[(*at)++];
    return '\0';
}

static enum err parse_spec(struct tpl_ctx *c, const struct tpl_str *s, struct spec *out) {
    uint32_t fill = ' ';
    size_t at = 0, first = s->len ? tpl_uc_next(s->p, s->len, &fill) : 0;
    *out = (struct spec){.pad = {.fill = ' '}, .precision = -1};
    if (first && first < s->len && in("<>=^", s->p[first])) {
        out->pad.fill = fill;
        out->pad.align = s->p[first];
        out->filled = true;
        at = first + 1;
    } else {
        out->pad.align = take(s, &at, "<>=^");
    }
    out->aligned = out->pad.align != '\0';
    out->sign = take(s, &at, "+- ");
    if (take(s, &at, "z"))
        return tpl_fail(c, "the format option 'z' is not supported");
    out->alternate = take(s, &at, "#") != '\0';
    if (take(s, &at, "0") && !out->filled) {
        out->pad.fill = '0';
        if (!out->aligned)
            out->pad.align = '=';
    }
    enum err e = spec_number(c, s, &at, &out->pad.width);
    out->grouping = take(s, &at, ",_");
    if (!e && take(s, &at, ".")) {
        e = spec_number(c, s, &at, &out->precision);
        if (!e && out->precision < 0)
            return tpl_fail(c, "Format specifier missing precision");
    }
    out->type = at < s->len ? s->p[at++] : '\0';
    if (!e && (at < s->len || out->type == 'n'))
        return tpl_fail(c, "Invalid format specifier");
    if (!e && out->grouping && out->pad.fill == '0' && out->pad.align == '=')
        return tpl_fail(c, "zero padding with a thousands separator is not supported");
    return e;
}

// --- values
// ----------------------------------------------------------------------------------------

// Puts a separator into the whole part of a number, counted from its end.
static enum err group_digits(struct tpl_ctx *c, const char *from, char separator, size_t every,
                             char **out) {
    size_t whole = strspn(from, "0123456789abcdefABCDEF"), n = 0;
    enum err e = tpl_alloc(c, strlen(from) * 2 + 1, 1, out);
    for (size_t i = 0; !e && from[i]; i++) {
        if (i && i < whole && (whole - i) % every == 0)
            (*out)[n++] = separator;
        (*out)[n++] = from[i];
    }
    return e;
}

static const char *sign_of(const struct spec *s, bool negative) {
    return negative ? "-" : s->sign == '+' ? "+" : s->sign == ' ' ? " " : "";
}

static enum err unknown_code(struct tpl_ctx *c, const struct spec *s, const struct tpl_val *v) {
    return tpl_fail(c, "Unknown format code '%c' for object of type '%s'", s->type,
                    tpl_type_name(v));
}

static enum err format_str(struct tpl_sb *b, struct spec *s, const struct tpl_val *v) {
    const struct tpl_str *text = v->u.s;
    struct tpl_val cut;
    if (s->type && s->type != 's')
        return unknown_code(b->c, s, v);
    if (s->sign || s->alternate || s->grouping)
        return tpl_fail(b->c, "this option is not allowed in a string format specifier");
    if (s->pad.align == '=' && s->aligned)
        return tpl_fail(b->c, "'=' alignment not allowed in string format specifier");
    if (!s->aligned)
        s->pad.align = '<';
    if (s->precision >= 0 && (uint64_t)s->precision < text->chars) {
        enum err e = tpl_step(b->c, text->len);
        if (!e)
            e = tpl_str_sub(b->c, text, 0, tpl_str_offset(text, (size_t)s->precision), &cut);
        if (e)
            return e;
        text = cut.u.s;
    }
    return tpl_pad_text(b, &s->pad, text);
}

static enum err format_char(struct tpl_sb *b, struct spec *s, int64_t i) {
    if (s->sign || s->alternate || s->grouping || s->precision >= 0)
        return tpl_fail(b->c, "this option is not allowed with integer format specifier 'c'");
    if (i < 0 || i > 0x10ffff || (i >= 0xd800 && i < 0xe000))
        return tpl_fail(b->c, "%%c arg not in range(0x110000)");
    struct tpl_sb one;
    struct tpl_val v;
    tpl_sb_init(&one, b->c);
    enum err e = tpl_sb_char(&one, (uint32_t)i, false);
    if (!e)
        e = tpl_sb_finish(&one, &v);
    if (!s->pad.align)
        s->pad.align = '<';
    if (s->pad.align == '=')
        s->pad.align = '>';
    return e ? e : tpl_pad_text(b, &s->pad, v.u.s);
}

static enum err format_int(struct tpl_sb *b, struct spec *s, int64_t i) {
    char digits[TPL_UINT_CHARS], prefix[8], *body = digits;
    unsigned base = s->type == 'b' ? 2 : s->type == 'o' ? 8 : in("xX", s->type) ? 16 : 10;
    if (s->precision >= 0)
        return tpl_fail(b->c, "Precision not allowed in integer format specifier");
    if (s->grouping == ',' && base != 10)
        return tpl_fail(b->c, "Cannot specify ',' with '%c'.", s->type);
    (void)tpl_num_uint(i < 0 ? 0 - (uint64_t)i : (uint64_t)i, base, s->type == 'X', digits);
    strcpy(prefix, sign_of(s, i < 0));
    if (s->alternate && base != 10)
        strcat(prefix, base == 2 ? "0b" : base == 8 ? "0o" : s->type == 'X' ? "0X" : "0x");
    enum err e =
        s->grouping ? group_digits(b->c, digits, s->grouping, base == 10 ? 3 : 4, &body) : ERR_OK;
    return e ? e : tpl_pad_number(b, &s->pad, prefix, body, false);
}

static void strip_zeros(char *digits) {
    size_t n = strlen(digits);
    while (n > 1 && digits[n - 1] == '0')
        digits[--n] = '\0';
}

// No type and a precision: like g, but a point with a digit after it stays.
static enum err general_float(struct tpl_ctx *c, double f, int64_t precision, char **out) {
    if (precision == 0)
        precision = 1;
    enum err e = tpl_num_float(c, f, 'e', precision - 1, false, out);
    char *exponent = e ? NULL : strchr(*out, 'e');
    if (e || !exponent)
        return e;
    int64_t point = 1; // digits before the decimal point
    int x = 0;
    for (const char *p = exponent + 2; *p; p++)
        x = x * 10 + (*p - '0');
    point += exponent[1] == '-' ? -x : x;
    if (point > -4 && point <= precision - 1) {
        e = tpl_num_float(c, f, 'f', precision - point, false, out);
        if (e)
            return e;
        strip_zeros(*out);
        if ((*out)[strlen(*out) - 1] == '.')
            strcat(*out, "0");
        return ERR_OK;
    }
    char tail[16];
    strncpy(tail, exponent, sizeof tail - 1);
    tail[sizeof tail - 1] = '\0';
    *exponent = '\0';
    if (strchr(*out, '.'))
        strip_zeros(*out);
    if ((*out)[strlen(*out) - 1] == '.')
        (*out)[strlen(*out) - 1] = '\0';
    strcat(*out, tail);
    return ERR_OK;
}

static enum err float_body(struct tpl_ctx *c, const struct spec *s, double f, char **out) {
    if (s->type == '%') {
        enum err e = tpl_num_float(c, f * 100, 'f', s->precision, s->alternate, out);
        if (!e)
            strcat(*out, "%");
        return e;
    }
    if (s->type)
        return tpl_num_float(c, f, s->type,
                             in("gG", s->type) && s->precision == 0 ? 1 : s->precision,
                             s->alternate, out);
    if (s->alternate)
        return tpl_fail(c, "the format option '#' without a type is not supported");
    if (s->precision >= 0 && isfinite(f))
        return general_float(c, f, s->precision, out);
    enum err e = tpl_alloc(c, TPL_FLOAT_CHARS, 1, out);
    if (!e)
        (void)tpl_float_repr(isnan(f) ? f : fabs(f), *out);
    return e;
}

static enum err format_float(struct tpl_sb *b, struct spec *s, double f) {
    char *body;
    enum err e = float_body(b->c, s, f, &body);
    if (!e && s->grouping && isfinite(f))
        e = group_digits(b->c, body, s->grouping, 3, &body);
    return e ? e : tpl_pad_number(b, &s->pad, sign_of(s, signbit(f) && !isnan(f)), body, false);
}

static enum err format_number(struct tpl_sb *b, struct spec *s, const struct tpl_val *v) {
    int64_t i;
    if (!s->pad.align)
        s->pad.align = '>';
    if (s->type && !in(v->kind == TPL_FLOAT ? "eEfFgG%" : "bcdoxXeEfFgG%", s->type))
        return unknown_code(b->c, s, v);
    if (!tpl_as_int(v, &i) || in("eEfFgG%", s->type))
        return format_float(b, s, tpl_as_double(v));
    if (s->type == 'c' && s->pad.align == '>' && !s->aligned)
        s->pad.align = '<';
    return s->type == 'c' ? format_char(b, s, i) : format_int(b, s, i);
}

// format(value, spec)
static enum err format_value(struct tpl_sb *b, const struct tpl_val *v,
                             const struct tpl_str *spec) {
    struct spec s;
    if (spec->len == 0)
        return tpl_sb_val(b, v);
    if (v->kind != TPL_STR && !tpl_is_number(v))
        return tpl_fail(b->c, "unsupported format string passed to %s.__format__",
                        tpl_type_name(v));
    enum err e = parse_spec(b->c, spec, &s);
    if (e)
        return e;
    return v->kind == TPL_STR ? format_str(b, &s, v) : format_number(b, &s, v);
}

// --- fields
// ----------------------------------------------------------------------------------------

static enum err field_base(struct formatter *f, const struct tpl_str *name, struct tpl_val *out) {
    bool number = false;
    int64_t i = 0;
    if (name->len == 0) {
        f->automatic = true;
        i = f->next++;
        number = true;
    } else if (name->p[0] >= '0' && name->p[0] <= '9') {
        enum err e = tpl_parse_int(f->c, name, 10, &i, &number);
        if (e)
            return e;
        f->numbered = f->numbered || number;
    }
    if (f->automatic && f->numbered)
        return tpl_fail(f->c, "cannot switch from manual field specification to automatic field "
                              "numbering");
    if (number) {
        if (i < 0 || (uint64_t)i >= f->args->n)
            return tpl_fail(f->c, "Replacement index %lld out of range for positional args tuple",
                            (long long)i);
        *out = f->args->v[i];
        return ERR_OK;
    }
    for (size_t k = 0; k < f->args->n_kw; k++) {
        if (tpl_str_same(f->args->kw[k].name, name)) {
            *out = f->args->kw[k].val;
            return ERR_OK;
        }
    }
    return tpl_fail(f->c, "the format field '%.*s' has no argument",
                    (int)(name->len < 80 ? name->len : 80), name->p);
}

// One .name or [key] of a field's name, from `at` on.
static enum err field_member(struct formatter *f, const struct tpl_str *s, size_t *at, size_t end,
                             struct tpl_val *v) {
    struct tpl_val key, of = *v;
    bool attribute = s->p[*at] == '.', number = false;
    size_t begin = *at + 1, stop = begin;
    int64_t i;
    if (attribute) {
        while (stop < end && s->p[stop] != '.' && s->p[stop] != '[')
            stop++;
        *at = stop;
    } else {
        while (stop < end && s->p[stop] != ']')
            stop++;
        if (stop == end)
            return tpl_fail(f->c, "Missing ']' in format string");
        *at = stop + 1;
    }
    if (stop == begin)
        return tpl_fail(f->c, "Empty attribute in format string");
    enum err e = tpl_str_sub(f->c, s, begin, stop, &key);
    if (e)
        return e;
    if (attribute)
        return tpl_getattr(f->c, &of, key.u.s, v);
    if (s->p[begin] >= '0' && s->p[begin] <= '9') {
        e = tpl_parse_int(f->c, key.u.s, 10, &i, &number);
        if (number)
            key = tpl_int(i);
    }
    return e ? e : tpl_getitem(f->c, &of, &key, v);
}

static enum err field_value(struct formatter *f, const struct tpl_str *s, size_t begin, size_t end,
                            struct tpl_val *out) {
    struct tpl_val name;
    size_t at = begin;
    while (at < end && s->p[at] != '.' && s->p[at] != '[')
        at++;
    enum err e = tpl_str_sub(f->c, s, begin, at, &name);
    if (!e)
        e = field_base(f, name.u.s, out);
    while (!e && at < end) {
        if (s->p[at] != '.' && s->p[at] != '[')
            return tpl_fail(f->c, "Only '.' or '[' may follow ']' in format field specifier");
        e = field_member(f, s, &at, end, out);
    }
    return e;
}

static enum err convert(struct formatter *f, char how, struct tpl_val *v) {
    struct tpl_sb b;
    tpl_sb_init(&b, f->c);
    if (how == 'a') {
        static const struct tpl_str ascii = {.p = "%a", .len = 2, .chars = 2};
        struct tpl_list one = {.n = 1, .v = v};
        const struct tpl_val args = tpl_tuple(&one);
        return tpl_percent(f->c, &ascii, &args, v);
    }
    if (how != 'r' && how != 's')
        return tpl_fail(f->c, "Unknown conversion specifier");
    enum err e = how == 'r' ? tpl_sb_repr(&b, v) : tpl_sb_val(&b, v);
    return e ? e : tpl_sb_finish(&b, v);
}

static enum err add_escaped(struct formatter *f, struct tpl_sb *b, const struct tpl_val *v,
                            const struct tpl_str *spec) {
    struct tpl_sb plain;
    struct tpl_val text = *v;
    if (v->kind == TPL_STR && v->u.s->markup) {
        if (spec->len)
            return tpl_fail(f->c, "Unsupported format specification for Markup.");
        return tpl_sb_str(b, v->u.s);
    }
    tpl_sb_init(&plain, f->c);
    enum err e = format_value(&plain, v, spec);
    if (!e)
        e = tpl_sb_finish(&plain, &text);
    return e ? e : tpl_sb_escaped(b, text.u.s);
}

// The field s[begin..end) without its braces.
static enum err add_field(struct formatter *f, struct tpl_sb *b, const struct tpl_str *s,
                          size_t begin, size_t end, int nesting) {
    size_t name_end = begin, bracket = 0, spec_begin;
    struct tpl_val v, spec;
    char how = '\0';
    for (; name_end < end; name_end++) {
        char ch = s->p[name_end];
        bracket += ch == '[';
        bracket -= ch == ']' && bracket;
        if (!bracket && (ch == '!' || ch == ':'))
            break;
    }
    spec_begin = name_end;
    if (name_end < end && s->p[name_end] == '!') {
        if (name_end + 1 >= end || (name_end + 2 < end && s->p[name_end + 2] != ':'))
            return tpl_fail(f->c, "expected ':' after conversion specifier");
        how = s->p[name_end + 1];
        spec_begin = name_end + 2;
    }
    enum err e = field_value(f, s, begin, name_end, &v);
    if (!e && how)
        e = convert(f, how, &v);
    if (!e)
        e = tpl_str_sub(f->c, s, spec_begin < end ? spec_begin + 1 : end, end, &spec);
    if (!e && spec.u.s->len && memchr(spec.u.s->p, '{', spec.u.s->len)) {
        struct tpl_sb inner;
        tpl_sb_init(&inner, f->c);
        e = format_into(f, &inner, spec.u.s, nesting + 1);
        if (!e)
            e = tpl_sb_finish(&inner, &spec);
    }
    if (e)
        return e;
    return f->markup ? add_escaped(f, b, &v, spec.u.s) : format_value(b, &v, spec.u.s);
}

// The position of the brace that closes the field that begins at `at`, or SIZE_MAX.
static size_t field_end(const struct tpl_str *s, size_t at) {
    size_t depth = 1;
    for (; at < s->len; at++) {
        depth += s->p[at] == '{';
        depth -= s->p[at] == '}';
        if (depth == 0)
            return at;
    }
    return SIZE_MAX;
}

static enum err format_into(struct formatter *f, struct tpl_sb *b, const struct tpl_str *s,
                            int nesting) {
    enum err e = tpl_step(f->c, s->len);
    if (nesting > 1)
        return tpl_fail(f->c, "Max string recursion exceeded");
    for (size_t at = 0, plain = 0; !e && at <= s->len;) {
        char ch = at < s->len ? s->p[at] : '\0';
        if (at < s->len && ch != '{' && ch != '}') {
            at++;
            continue;
        }
        e = tpl_sb_sub(b, s, plain, at);
        if (e || at == s->len)
            break;
        if (at + 1 < s->len && s->p[at + 1] == ch) { // a doubled brace is one
            plain = at + 1;
            at += 2;
            continue;
        }
        size_t end = ch == '{' ? field_end(s, at + 1) : SIZE_MAX;
        if (end == SIZE_MAX)
            return tpl_fail(f->c, ch == '{' ? "expected '}' before end of string"
                                            : "Single '}' encountered in format string");
        e = add_field(f, b, s, at + 1, end, nesting);
        plain = at = end + 1;
    }
    return e;
}

enum err tpl_format(struct tpl_ctx *c, const struct tpl_str *fmt, const struct tpl_args *args,
                    struct tpl_val *out) {
    struct formatter f = {.c = c, .args = args, .markup = fmt->markup};
    struct tpl_sb b;
    tpl_sb_init(&b, c);
    enum err e = format_into(&f, &b, fmt, 0);
    if (!e)
        e = tpl_sb_finish(&b, out);
    return !e && fmt->markup ? tpl_str_markup(c, out->u.s, true, out) : e;
}

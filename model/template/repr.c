// SPDX-License-Identifier: Apache-2.0
// str() and repr().
#include "model/template/ast.h"
#include "model/template/ctx.h"
#include "model/template/eval.h"
#include "model/template/str.h"
#include "model/template/unicode.h"
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

size_t tpl_float_repr(double f, char out[TPL_FLOAT_CHARS]) {
    char sci[32], digits[20];
    int precision = 0, n = 0, exponent;
    if (isnan(f) || isinf(f))
        return (size_t)snprintf(out, TPL_FLOAT_CHARS, "%s",
                                isnan(f) ? "nan"
                                : f < 0  ? "-inf"
                                         : "inf");
    do {
        (void)snprintf(sci, sizeof sci, "%.*e", precision, f);
    } while (strtod(sci, NULL) != f && ++precision < 17); // NOLINT: exact on purpose
    const char *p = sci, *sign = "";
    if (*p == '-') {
        sign = "-";
        p++;
    }
    for (; *p && *p != 'e'; p++) {
        if (*p >= '0' && *p <= '9')
            digits[n++] = *p;
    }
    exponent = *p == 'e' ? atoi(p + 1) : 0;
    while (n > 1 && digits[n - 1] == '0')
        n--;
    if (exponent < -4 || exponent >= 16)
        return (size_t)snprintf(out, TPL_FLOAT_CHARS, "%s%c%s%.*se%c%02d", sign, digits[0],
                                n > 1 ? "." : "", n - 1, digits + 1, exponent < 0 ? '-' : '+',
                                abs(exponent));
    if (exponent < 0)
        return (size_t)snprintf(out, TPL_FLOAT_CHARS, "%s0.%.*s%.*s", sign, -exponent - 1, "0000",
                                n, digits);
    if (n <= exponent + 1)
        return (size_t)snprintf(out, TPL_FLOAT_CHARS, "%s%.*s%.*s.0", sign, n, digits,
                                exponent + 1 - n, "0000000000000000");
    return (size_t)snprintf(out, TPL_FLOAT_CHARS, "%s%.*s.%.*s", sign, exponent + 1, digits,
                            n - exponent - 1, digits + exponent + 1);
}

static enum err add_escape(struct tpl_sb *b, uint32_t cp, char quote, bool literal) {
    char text[16];
    int n;
    if (cp == '\\' || cp == (uint32_t)quote)
        n = snprintf(text, sizeof text, "\\%c", (int)cp);
    else if (cp == '\n' || cp == '\r' || cp == '\t')
        n = snprintf(text, sizeof text, "\\%c", cp == '\n' ? 'n' : cp == '\r' ? 'r' : 't');
    else if (cp < 0x100)
        n = snprintf(text, sizeof text, "\\x%02x", (unsigned)cp);
    else if (cp < 0x10000)
        n = snprintf(text, sizeof text, "\\u%04x", (unsigned)cp);
    else
        n = snprintf(text, sizeof text, "\\U%08x", (unsigned)cp);
    return tpl_sb_add(b, text, (size_t)n, literal);
}

static enum err repr_str(struct tpl_sb *b, const struct tpl_str *s) {
    bool literal = tpl_str_literal(s);
    char quote = memchr(s->p, '\'', s->len) && !memchr(s->p, '"', s->len) ? '"' : '\'';
    size_t plain = 0;
    enum err e = s->markup ? tpl_sb_puts(b, "Markup(") : ERR_OK;
    if (!e)
        e = tpl_sb_add(b, &quote, 1, false);
    for (size_t i = 0; !e && i < s->len;) {
        uint32_t cp;
        size_t len = tpl_uc_next(s->p + i, s->len - i, &cp);
        bool as_is = cp < 0x80 ? cp >= 0x20 && cp != 0x7f && cp != '\\' && cp != (uint32_t)quote
                               : tpl_uc_is(TPL_UC_PRINTABLE, cp);
        if (!as_is) {
            e = tpl_sb_sub(b, s, plain, i);
            if (!e)
                e = add_escape(b, cp, quote, literal);
            plain = i + len;
        }
        i += len;
    }
    if (!e)
        e = tpl_sb_sub(b, s, plain, s->len);
    if (!e)
        e = tpl_sb_add(b, &quote, 1, false);
    return !e && s->markup ? tpl_sb_puts(b, ")") : e;
}

static enum err repr_list(struct tpl_sb *b, const struct tpl_list *l, const char *open,
                          const char *close) {
    enum err e = tpl_sb_puts(b, open);
    for (size_t i = 0; !e && i < l->n; i++) {
        if (i)
            e = tpl_sb_puts(b, ", ");
        if (!e)
            e = tpl_sb_repr(b, &l->v[i]);
    }
    return e ? e : tpl_sb_puts(b, close);
}

static enum err repr_dict(struct tpl_sb *b, const struct tpl_dict *d) {
    enum err e = tpl_sb_puts(b, "{");
    for (size_t i = 0; !e && i < d->n; i++) {
        if (i)
            e = tpl_sb_puts(b, ", ");
        if (!e)
            e = tpl_sb_repr(b, &d->e[i].key);
        if (!e)
            e = tpl_sb_puts(b, ": ");
        if (!e)
            e = tpl_sb_repr(b, &d->e[i].val);
    }
    return e ? e : tpl_sb_puts(b, "}");
}

static enum err repr_view(struct tpl_sb *b, const struct tpl_val *v) {
    struct tpl_list *l;
    enum err e = tpl_to_list(b->c, v, &l);
    if (!e)
        e = tpl_sb_puts(b, tpl_type_name(v));
    return e ? e : repr_list(b, l, "([", "])");
}

static enum err add_number(struct tpl_sb *b, const struct tpl_val *v) {
    char text[TPL_FLOAT_CHARS];
    size_t n = v->kind == TPL_FLOAT ? tpl_float_repr(v->u.f, text)
                                    : (size_t)snprintf(text, sizeof text, "%" PRId64, v->u.i);
    return tpl_sb_add(b, text, n, false);
}

static enum err repr_range(struct tpl_sb *b, const struct tpl_range *r) {
    char text[80];
    int n = r->step == 1
                ? snprintf(text, sizeof text, "range(%" PRId64 ", %" PRId64 ")", r->start, r->stop)
                : snprintf(text, sizeof text, "range(%" PRId64 ", %" PRId64 ", %" PRId64 ")",
                           r->start, r->stop, r->step);
    return tpl_sb_add(b, text, (size_t)n, false);
}

static enum err repr_macro(struct tpl_sb *b, const struct tpl_macro *m) {
    const struct tpl_str *name = m->node->u.def->name;
    enum err e = tpl_sb_puts(b, "<Macro ");
    if (!e)
        e = name ? repr_str(b, name) : tpl_sb_puts(b, "anonymous");
    return e ? e : tpl_sb_puts(b, ">");
}

// Python prints an address here, which nobody can rely on.
static enum err repr_opaque(struct tpl_sb *b, const struct tpl_val *v) {
    enum err e = tpl_sb_puts(b, "<");
    if (!e)
        e = tpl_sb_puts(b, tpl_type_name(v));
    if (!e && (v->kind == TPL_FUNC || v->kind == TPL_METHOD)) {
        e = tpl_sb_puts(b, " ");
        if (!e)
            e = tpl_sb_puts(b, v->kind == TPL_FUNC ? v->u.fn->name : v->u.method->fn->name);
    } else if (!e) {
        e = tpl_sb_puts(b, " object");
    }
    return e ? e : tpl_sb_puts(b, ">");
}

static enum err repr_nested(struct tpl_sb *b, const struct tpl_val *v) {
    enum err e = tpl_enter(b->c);
    if (e)
        return e;
    switch (v->kind) {
    case TPL_LIST:
        e = repr_list(b, v->u.l, "[", "]");
        break;
    case TPL_TUPLE:
        e = repr_list(b, v->u.l, "(", v->u.l->n == 1 ? ",)" : ")");
        break;
    case TPL_DICT:
        e = repr_dict(b, v->u.d);
        break;
    case TPL_VIEW:
        e = repr_view(b, v);
        break;
    default:
        e = tpl_sb_puts(b, "<Namespace ");
        if (!e)
            e = repr_dict(b, v->u.d);
        if (!e)
            e = tpl_sb_puts(b, ">");
        break;
    }
    tpl_leave(b->c);
    return e;
}

enum err tpl_sb_repr(struct tpl_sb *b, const struct tpl_val *v) {
    switch (v->kind) {
    case TPL_ABSENT:
    case TPL_UNDEF:
        return tpl_sb_puts(b, "Undefined");
    case TPL_NONE:
        return tpl_sb_puts(b, "None");
    case TPL_BOOL:
        return tpl_sb_puts(b, v->u.b ? "True" : "False");
    case TPL_INT:
    case TPL_FLOAT:
        return add_number(b, v);
    case TPL_STR:
        return repr_str(b, v->u.s);
    case TPL_LIST:
    case TPL_TUPLE:
    case TPL_DICT:
    case TPL_VIEW:
    case TPL_NS:
        return repr_nested(b, v);
    case TPL_RANGE:
        return repr_range(b, v->u.range);
    case TPL_MACRO:
        return repr_macro(b, v->u.macro);
    case TPL_LOOP:
        return tpl_loop_repr(b, v->u.loop);
    default:
        return repr_opaque(b, v);
    }
}

enum err tpl_sb_val(struct tpl_sb *b, const struct tpl_val *v) {
    if (v->kind == TPL_STR)
        return tpl_sb_str(b, v->u.s);
    if (v->kind == TPL_UNDEF || v->kind == TPL_ABSENT)
        return ERR_OK;
    return tpl_sb_repr(b, v);
}

enum err tpl_to_str(struct tpl_ctx *c, const struct tpl_val *v, const struct tpl_str **out) {
    struct tpl_sb b;
    struct tpl_val s;
    if (v->kind == TPL_STR) {
        *out = v->u.s;
        return ERR_OK;
    }
    tpl_sb_init(&b, c);
    enum err e = tpl_sb_val(&b, v);
    if (!e)
        e = tpl_sb_finish(&b, &s);
    if (!e)
        *out = s.u.s;
    return e;
}

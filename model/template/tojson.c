// SPDX-License-Identifier: Apache-2.0
// The tojson filter: json.dumps with ensure_ascii off.
#include "model/template/builtins.h"
#include "model/template/ctx.h"
#include "model/template/str.h"
#include "model/template/unicode.h"
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

struct writer {
    struct tpl_sb b;
    bool ascii, sorted, pretty;
    struct tpl_val indent; // a string, if pretty
    const struct tpl_str *item_separator, *key_separator;
    size_t level;
};

static enum err write_value(struct writer *w, const struct tpl_val *v);

static size_t escape(uint32_t cp, char out[16]) {
    static const char from[] = "\"\\\b\f\n\r\t", to[] = "\"\\bfnrt";
    const char *simple = cp < 0x80 && cp ? strchr(from, (int)cp) : NULL;
    if (simple)
        return (size_t)snprintf(out, 16, "\\%c", to[simple - from]);
    if (cp >= 0x10000) {
        uint32_t v = cp - 0x10000;
        return (size_t)snprintf(out, 16, "\\u%04x\\u%04x", (unsigned)(0xd800 + (v >> 10)),
                                (unsigned)(0xdc00 + (v & 0x3ff)));
    }
    return (size_t)snprintf(out, 16, "\\u%04x", (unsigned)cp);
}

static enum err write_str(struct writer *w, const struct tpl_str *s) {
    bool literal = tpl_str_literal(s);
    size_t plain = 0;
    enum err e = tpl_sb_puts(&w->b, "\"");
    for (size_t i = 0; !e && i < s->len;) {
        uint32_t cp;
        size_t len = tpl_uc_next(s->p + i, s->len - i, &cp);
        bool as_is = cp >= 0x20 && cp != '"' && cp != '\\' && (!w->ascii || cp < 0x7f);
        if (!as_is) {
            char text[16];
            size_t n = escape(cp, text);
            e = tpl_sb_sub(&w->b, s, plain, i);
            if (!e)
                e = tpl_sb_add(&w->b, text, n, literal);
            plain = i + len;
        }
        i += len;
    }
    if (!e)
        e = tpl_sb_sub(&w->b, s, plain, s->len);
    return e ? e : tpl_sb_puts(&w->b, "\"");
}

static enum err write_number(struct writer *w, const struct tpl_val *v) {
    char text[TPL_FLOAT_CHARS];
    size_t n;
    if (v->kind == TPL_INT)
        n = (size_t)snprintf(text, sizeof text, "%" PRId64, v->u.i);
    else if (isnan(v->u.f) || isinf(v->u.f))
        return tpl_sb_puts(&w->b, isnan(v->u.f) ? "NaN" : v->u.f < 0 ? "-Infinity" : "Infinity");
    else
        n = tpl_float_repr(v->u.f, text);
    return tpl_sb_add(&w->b, text, n, false);
}

static enum err new_line(struct writer *w) {
    enum err e = w->pretty ? tpl_sb_puts(&w->b, "\n") : ERR_OK;
    return e || !w->pretty ? e : tpl_sb_fill(&w->b, w->indent.u.s, w->level);
}

static enum err separate(struct writer *w, bool first) {
    enum err e = first ? ERR_OK : tpl_sb_str(&w->b, w->item_separator);
    return e ? e : new_line(w);
}

static enum err write_list(struct writer *w, const struct tpl_list *l) {
    if (l->n == 0)
        return tpl_sb_puts(&w->b, "[]");
    enum err e = tpl_sb_puts(&w->b, "[");
    w->level++;
    for (size_t i = 0; !e && i < l->n; i++) {
        e = separate(w, i == 0);
        if (!e)
            e = write_value(w, &l->v[i]);
    }
    w->level--;
    if (!e)
        e = new_line(w);
    return e ? e : tpl_sb_puts(&w->b, "]");
}

static enum err write_key(struct writer *w, const struct tpl_val *key) {
    enum err e;
    switch (key->kind) {
    case TPL_STR:
        return write_str(w, key->u.s);
    case TPL_NONE:
    case TPL_BOOL:
    case TPL_INT:
    case TPL_FLOAT:
        e = tpl_sb_puts(&w->b, "\"");
        if (!e)
            e = write_value(w, key);
        return e ? e : tpl_sb_puts(&w->b, "\"");
    default:
        return tpl_fail(w->b.c, "keys must be str, int, float, bool or None, not %s",
                        tpl_type_name(key));
    }
}

// The entries in the order in which they are written.
static enum err entries_of(struct writer *w, const struct tpl_dict *d, struct tpl_val **keys,
                           struct tpl_val **vals) {
    enum err e = tpl_alloc(w->b.c, d->n, sizeof **keys, keys);
    if (!e)
        e = tpl_alloc(w->b.c, d->n, sizeof **vals, vals);
    for (size_t i = 0; !e && i < d->n; i++) {
        (*keys)[i] = d->e[i].key;
        (*vals)[i] = d->e[i].val;
    }
    return e ? e : tpl_sort(w->b.c, *vals, *keys, d->n, false);
}

static enum err write_dict(struct writer *w, const struct tpl_dict *d) {
    struct tpl_val *keys = NULL, *vals = NULL;
    if (d->n == 0)
        return tpl_sb_puts(&w->b, "{}");
    enum err e = w->sorted ? entries_of(w, d, &keys, &vals) : ERR_OK;
    if (!e)
        e = tpl_sb_puts(&w->b, "{");
    w->level++;
    for (size_t i = 0; !e && i < d->n; i++) {
        e = separate(w, i == 0);
        if (!e)
            e = write_key(w, keys ? &keys[i] : &d->e[i].key);
        if (!e)
            e = tpl_sb_str(&w->b, w->key_separator);
        if (!e)
            e = write_value(w, vals ? &vals[i] : &d->e[i].val);
    }
    w->level--;
    if (!e)
        e = new_line(w);
    return e ? e : tpl_sb_puts(&w->b, "}");
}

static enum err write_value(struct writer *w, const struct tpl_val *v) {
    enum err e;
    switch (v->kind) {
    case TPL_NONE:
        return tpl_sb_puts(&w->b, "null");
    case TPL_BOOL:
        return tpl_sb_puts(&w->b, v->u.b ? "true" : "false");
    case TPL_INT:
    case TPL_FLOAT:
        return write_number(w, v);
    case TPL_STR:
        return write_str(w, v->u.s);
    case TPL_LIST:
    case TPL_TUPLE:
    case TPL_DICT:
        e = tpl_enter(w->b.c);
        if (e)
            return e;
        e = v->kind == TPL_DICT ? write_dict(w, v->u.d) : write_list(w, v->u.l);
        tpl_leave(w->b.c);
        return e;
    default:
        return tpl_fail(w->b.c, "Object of type %s is not JSON serializable", tpl_type_name(v));
    }
}

static enum err set_indent(struct tpl_ctx *c, struct writer *w, const struct tpl_val *indent) {
    static const struct tpl_str space = {.p = " ", .len = 1, .chars = 1};
    struct tpl_sb b;
    int64_t n;
    if (indent->kind == TPL_ABSENT || indent->kind == TPL_NONE)
        return ERR_OK;
    w->pretty = true;
    w->indent = *indent;
    if (indent->kind == TPL_STR)
        return ERR_OK;
    if (!tpl_as_int(indent, &n))
        return tpl_fail(c, "the indent must be an integer or a string, not %s",
                        tpl_type_name(indent));
    tpl_sb_init(&b, c);
    enum err e = tpl_sb_fill(&b, &space, n > 0 ? (size_t)n : 0);
    return e ? e : tpl_sb_finish(&b, &w->indent);
}

static enum err set_separators(struct tpl_ctx *c, struct writer *w, const struct tpl_val *v) {
    static const struct tpl_str comma = {.p = ",", .len = 1, .chars = 1};
    static const struct tpl_str comma_space = {.p = ", ", .len = 2, .chars = 2};
    static const struct tpl_str colon_space = {.p = ": ", .len = 2, .chars = 2};
    struct tpl_list *l;
    w->item_separator = w->pretty ? &comma : &comma_space;
    w->key_separator = &colon_space;
    if (v->kind == TPL_ABSENT || v->kind == TPL_NONE)
        return ERR_OK;
    enum err e = tpl_to_list(c, v, &l);
    if (e)
        return e;
    if (l->n != 2 || l->v[0].kind != TPL_STR || l->v[1].kind != TPL_STR)
        return tpl_fail(c, "the separators must be two strings");
    w->item_separator = l->v[0].u.s;
    w->key_separator = l->v[1].u.s;
    return ERR_OK;
}

enum err tpl_tojson(struct tpl_ctx *c, const struct tpl_call *call, struct tpl_val *out) {
    struct writer w = {.ascii = tpl_arg_true(call, 0), .sorted = tpl_arg_true(call, 3)};
    tpl_sb_init(&w.b, c);
    enum err e = set_indent(c, &w, &call->arg[1]);
    if (!e)
        e = set_separators(c, &w, &call->arg[2]);
    if (!e)
        e = write_value(&w, &call->self);
    return e ? e : tpl_sb_finish(&w.b, out);
}

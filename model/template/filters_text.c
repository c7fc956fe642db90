// SPDX-License-Identifier: Apache-2.0
// Filters on text. Most take any value and work on its str().
#include "model/template/builtins.h"
#include "model/template/ctx.h"
#include "model/template/str.h"
#include "model/template/unicode.h"
#include <stdio.h>

static enum err case_of(struct tpl_ctx *c, const struct tpl_call *call, enum tpl_case how,
                        struct tpl_val *out) {
    const struct tpl_str *s;
    enum err e = tpl_to_str(c, &call->self, &s);
    return e ? e : tpl_str_case(c, s, how, out);
}

static enum err do_upper(struct tpl_ctx *c, const struct tpl_call *call, struct tpl_val *out) {
    return case_of(c, call, TPL_UPPER, out);
}

static enum err do_lower(struct tpl_ctx *c, const struct tpl_call *call, struct tpl_val *out) {
    return case_of(c, call, TPL_LOWER, out);
}

static enum err do_capitalize(struct tpl_ctx *c, const struct tpl_call *call, struct tpl_val *out) {
    return case_of(c, call, TPL_CAPITALIZE, out);
}

static bool starts_word(uint32_t cp) {
    return cp == '-' || cp == '(' || cp == '{' || cp == '[' || cp == '<' ||
           tpl_uc_is(TPL_UC_SPACE, cp);
}

static enum err add_cased(struct tpl_sb *b, const struct tpl_str *s, size_t begin, size_t end,
                          enum tpl_case how) {
    struct tpl_val v;
    enum err e = tpl_str_sub(b->c, s, begin, end, &v);
    if (!e)
        e = tpl_str_case(b->c, v.u.s, how, &v);
    return e ? e : tpl_sb_str(b, v.u.s);
}

// jinja2's own title: words begin after white space and after -({[<, unlike str.title's.
static enum err do_title(struct tpl_ctx *c, const struct tpl_call *call, struct tpl_val *out) {
    const struct tpl_str *s;
    struct tpl_sb b;
    enum err e = tpl_to_str(c, &call->self, &s);
    tpl_sb_init(&b, c);
    for (size_t at = 0; !e && at < s->len;) {
        uint32_t cp;
        size_t first = at + tpl_uc_next(s->p + at, s->len - at, &cp), end = first;
        bool separator = starts_word(cp);
        while (end < s->len) {
            size_t len = tpl_uc_next(s->p + end, s->len - end, &cp);
            if (starts_word(cp) != separator)
                break;
            end += len;
        }
        if (separator)
            e = tpl_sb_sub(&b, s, at, end);
        else
            e = add_cased(&b, s, at, first, TPL_UPPER);
        if (!e && !separator)
            e = add_cased(&b, s, first, end, TPL_LOWER);
        at = end;
    }
    return e ? e : tpl_sb_finish(&b, out);
}

static enum err do_trim(struct tpl_ctx *c, const struct tpl_call *call, struct tpl_val *out) {
    const struct tpl_str *s, *chars = NULL;
    enum err e = tpl_to_str(c, &call->self, &s);
    if (!e && call->arg[0].kind != TPL_NONE)
        e = tpl_arg_str(c, call, 0, NULL, &chars);
    return e ? e : tpl_str_strip(c, s, chars, 3, out);
}

static enum err do_replace(struct tpl_ctx *c, const struct tpl_call *call, struct tpl_val *out) {
    const struct tpl_str *s, *from, *to;
    int64_t count;
    enum err e = tpl_to_str(c, &call->self, &s);
    if (!e)
        e = tpl_to_str(c, &call->arg[0], &from);
    if (!e)
        e = tpl_to_str(c, &call->arg[1], &to);
    if (!e)
        e = tpl_arg_index(c, call, 2, -1, &count);
    if (!e)
        e = tpl_str_replace(c, s, from, to, count, out);
    return e ? e : tpl_str_markup(c, out->u.s, false, out);
}

static enum err self_str(struct tpl_ctx *c, const struct tpl_call *call,
                         const struct tpl_str **out) {
    *out = call->self.u.s;
    if (call->self.kind == TPL_UNDEF)
        return tpl_fail_undef(c, &call->self);
    return call->self.kind == TPL_STR ? ERR_OK
                                      : tpl_fail(c, "this filter works on a string, not on a %s",
                                                 tpl_type_name(&call->self));
}

static enum err indent_unit(struct tpl_ctx *c, const struct tpl_call *call,
                            const struct tpl_str **out) {
    static const struct tpl_str space = {.p = " ", .len = 1, .chars = 1};
    int64_t width;
    struct tpl_sb b;
    struct tpl_val v;
    if (call->arg[0].kind == TPL_STR) {
        *out = call->arg[0].u.s;
        return ERR_OK;
    }
    enum err e = tpl_arg_int(c, call, 0, 4, &width);
    tpl_sb_init(&b, c);
    if (!e)
        e = tpl_sb_fill(&b, &space, width > 0 ? (size_t)width : 0);
    if (!e)
        e = tpl_sb_finish(&b, &v);
    if (!e)
        *out = v.u.s;
    return e;
}

static enum err do_indent(struct tpl_ctx *c, const struct tpl_call *call, struct tpl_val *out) {
    static const struct tpl_str newline = {.p = "\n", .len = 1, .chars = 1};
    const struct tpl_str *s, *unit;
    struct tpl_list *lines;
    struct tpl_val v;
    struct tpl_sb b;
    bool first = tpl_arg_true(call, 1), blank = tpl_arg_true(call, 2);
    enum err e = self_str(c, call, &s);
    if (!e)
        e = indent_unit(c, call, &unit);
    if (!e) // so that a line break at the end survives the split
        e = tpl_str_concat(c, s, &newline, &v);
    if (!e)
        e = tpl_str_splitlines(c, v.u.s, false, &lines);
    tpl_sb_init(&b, c);
    for (size_t i = 0; !e && i < lines->n; i++) {
        const struct tpl_str *line = lines->v[i].u.s;
        if (i)
            e = tpl_sb_str(&b, &newline);
        if (!e && (i ? blank || line->len : first))
            e = tpl_sb_str(&b, unit);
        if (!e)
            e = tpl_sb_str(&b, line);
    }
    if (!e)
        e = tpl_sb_finish(&b, out);
    return e ? e : tpl_str_markup(c, out->u.s, s->markup, out);
}

static enum err do_center(struct tpl_ctx *c, const struct tpl_call *call, struct tpl_val *out) {
    const struct tpl_str *s;
    int64_t width;
    enum err e = tpl_to_str(c, &call->self, &s);
    if (!e)
        e = tpl_arg_int(c, call, 0, 80, &width);
    if (e)
        return e;
    if (width > TPL_MAX_PAD)
        return tpl_fail_limit(c, "much memory");
    int64_t gap = width > (int64_t)s->chars ? width - (int64_t)s->chars : 0;
    int64_t left = gap / 2 + (gap & width & 1);
    return tpl_str_pad(c, s, left, gap - left, NULL, out);
}

// The last word is dropped where it would be cut, if there is another one before it.
static enum err cut_words(struct tpl_ctx *c, const struct tpl_str *s, size_t end, size_t *cut) {
    size_t hit;
    enum err e = tpl_str_rfind(c, s, 0, end, " ", 1, &hit);
    *cut = hit == SIZE_MAX ? end : hit;
    return e;
}

static enum err do_truncate(struct tpl_ctx *c, const struct tpl_call *call, struct tpl_val *out) {
    static const struct tpl_str dots = {.p = "...", .len = 3, .chars = 3};
    const struct tpl_str *s, *ending;
    int64_t length, leeway;
    size_t n;
    enum err e = tpl_arg_int(c, call, 0, 255, &length);
    if (!e)
        e = tpl_arg_str(c, call, 2, &dots, &ending);
    if (!e)
        e = tpl_arg_index(c, call, 3, 5, &leeway);
    if (e)
        return e;
    if (length < (int64_t)ending->chars)
        return tpl_fail(c, "expected length >= %zu, got %lld", ending->chars, (long long)length);
    if (leeway < 0)
        return tpl_fail(c, "expected leeway >= 0, got %lld", (long long)leeway);
    if (!tpl_len(&call->self, &n))
        return tpl_fail(c, "object of type '%s' has no len()", tpl_type_name(&call->self));
    if ((int64_t)n - leeway <= length) {
        *out = call->self;
        return ERR_OK;
    }
    e = self_str(c, call, &s);
    if (e)
        return e;
    size_t end = tpl_str_offset(s, (size_t)length - ending->chars);
    e = tpl_step(c, end);
    if (!e && !tpl_arg_true(call, 1))
        e = cut_words(c, s, end, &end);
    struct tpl_val v, end_val = tpl_str(ending);
    if (!e)
        e = tpl_str_sub(c, s, 0, end, &v);
    return e ? e : tpl_binary(c, '+', &v, &end_val, out);
}

static enum err do_wordcount(struct tpl_ctx *c, const struct tpl_call *call, struct tpl_val *out) {
    const struct tpl_str *s;
    int64_t n = 0;
    bool inside = false;
    enum err e = tpl_to_str(c, &call->self, &s);
    if (!e)
        e = tpl_step(c, s->len * 4);
    for (size_t at = 0; !e && at < s->len;) {
        uint32_t cp;
        at += tpl_uc_next(s->p + at, s->len - at, &cp);
        bool word = cp == '_' || tpl_uc_is(TPL_UC_ALNUM, cp);
        n += word && !inside;
        inside = word;
    }
    *out = tpl_int(n);
    return e;
}

static enum err do_string(struct tpl_ctx *c, const struct tpl_call *call, struct tpl_val *out) {
    const struct tpl_str *s;
    enum err e = tpl_to_str(c, &call->self, &s);
    if (!e)
        *out = tpl_str(s);
    return e;
}

static enum err escape(struct tpl_ctx *c, const struct tpl_call *call, bool again,
                       struct tpl_val *out) {
    const struct tpl_str *s;
    struct tpl_sb b;
    enum err e = tpl_to_str(c, &call->self, &s);
    if (!e && again) {
        e = tpl_str_markup(c, s, false, out);
        if (!e)
            s = out->u.s;
    }
    tpl_sb_init(&b, c);
    if (!e)
        e = tpl_sb_escaped(&b, s);
    if (!e)
        e = tpl_sb_finish(&b, out);
    return e ? e : tpl_str_markup(c, out->u.s, true, out);
}

static enum err do_escape(struct tpl_ctx *c, const struct tpl_call *call, struct tpl_val *out) {
    return escape(c, call, false, out);
}

static enum err do_forceescape(struct tpl_ctx *c, const struct tpl_call *call,
                               struct tpl_val *out) {
    return escape(c, call, true, out);
}

static enum err do_safe(struct tpl_ctx *c, const struct tpl_call *call, struct tpl_val *out) {
    const struct tpl_str *s;
    enum err e = tpl_to_str(c, &call->self, &s);
    return e ? e : tpl_str_markup(c, s, true, out);
}

static enum err do_format(struct tpl_ctx *c, const struct tpl_call *call, struct tpl_val *out) {
    const struct tpl_str *s;
    const struct tpl_args *a = call->args;
    enum err e = tpl_to_str(c, &call->self, &s);
    if (e)
        return e;
    if (a->n && a->n_kw)
        return tpl_fail(c, "can't handle positional and keyword arguments at the same time");
    if (!a->n_kw) {
        const struct tpl_list l = {.n = a->n, .v = a->v};
        const struct tpl_val args = tpl_tuple(&l);
        return tpl_percent(c, s, &args, out);
    }
    struct tpl_dict *d;
    e = tpl_dict_new(c, a->n_kw, &d);
    for (size_t i = 0; !e && i < a->n_kw; i++) {
        const struct tpl_val key = tpl_str(a->kw[i].name);
        e = tpl_dict_set(c, d, &key, &a->kw[i].val);
    }
    const struct tpl_val args = tpl_dict(d);
    return e ? e : tpl_percent(c, s, &args, out);
}

static bool is_unreserved(unsigned char ch) {
    return (ch >= 'a' && ch <= 'z') || (ch >= 'A' && ch <= 'Z') || (ch >= '0' && ch <= '9') ||
           ch == '_' || ch == '.' || ch == '-' || ch == '~' || ch == '/';
}

static enum err do_urlencode(struct tpl_ctx *c, const struct tpl_call *call, struct tpl_val *out) {
    const struct tpl_str *s;
    struct tpl_sb b;
    if (call->self.kind != TPL_STR && tpl_iterable(&call->self))
        return tpl_fail(c, "urlencode of a %s is not supported", tpl_type_name(&call->self));
    enum err e = tpl_to_str(c, &call->self, &s);
    if (e)
        return e;
    bool literal = tpl_str_literal(s);
    tpl_sb_init(&b, c);
    for (size_t i = 0; !e && i < s->len; i++) {
        unsigned char ch = (unsigned char)s->p[i];
        char text[4] = {(char)ch, '\0', '\0', '\0'};
        if (!is_unreserved(ch))
            (void)snprintf(text, sizeof text, "%%%02X", ch);
        e = tpl_sb_add(&b, text, is_unreserved(ch) ? 1 : 3, literal);
    }
    return e ? e : tpl_sb_finish(&b, out);
}

const struct tpl_fn tpl_filters_text[] = {
    {"trim", do_trim, 0, 0, {"chars"}},
    {"tojson", tpl_tojson, 0, 0, {"ensure_ascii", "indent", "separators", "sort_keys"}},
    {"upper", do_upper, 0, 0, {NULL}},
    {"lower", do_lower, 0, 0, {NULL}},
    {"capitalize", do_capitalize, 0, 0, {NULL}},
    {"title", do_title, 0, 0, {NULL}},
    {"string", do_string, 0, 0, {NULL}},
    {"replace", do_replace, 2, 0, {"old", "new", "count"}},
    {"indent", do_indent, 0, 0, {"width", "first", "blank"}},
    {"safe", do_safe, 0, 0, {NULL}},
    {"escape", do_escape, 0, 0, {NULL}},
    {"e", do_escape, 0, 0, {NULL}},
    {"forceescape", do_forceescape, 0, 0, {NULL}},
    {"format", do_format, 0, TPL_FN_RAW, {NULL}},
    {"center", do_center, 0, 0, {"width"}},
    {"truncate", do_truncate, 0, 0, {"length", "killwords", "end", "leeway"}},
    {"wordcount", do_wordcount, 0, 0, {NULL}},
    {"urlencode", do_urlencode, 0, 0, {NULL}},
    {.name = NULL},
};

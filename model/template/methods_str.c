// SPDX-License-Identifier: Apache-2.0
// Methods of strings, except those that split and those that ask.
#include "base/utf8.h"
#include "model/template/builtins.h"
#include "model/template/ctx.h"
#include "model/template/str.h"
#include "model/template/unicode.h"
#include <string.h>

static const struct tpl_str *self_of(const struct tpl_call *call) {
    return call->self.u.s;
}

// The part of the string that the arguments number i and i + 1 choose, in bytes; *valid is false if
// the start lies behind it.
static enum err chosen_part(struct tpl_ctx *c, const struct tpl_call *call, size_t i, size_t *begin,
                            size_t *end, bool *valid) {
    const struct tpl_str *s = self_of(call);
    int64_t n = (int64_t)s->chars, from, to;
    enum err e = tpl_arg_index(c, call, i, 0, &from);
    if (!e)
        e = tpl_arg_index(c, call, i + 1, n, &to);
    if (!e && (from != 0 || to != n) && s->chars != s->len)
        e = tpl_step(c, s->len); // characters are counted from the start
    if (e)
        return e;
    if (to > n)
        to = n;
    else if (to < 0)
        to = to + n < 0 ? 0 : to + n;
    if (from < 0)
        from = from + n < 0 ? 0 : from + n;
    *valid = from <= to;
    *begin = tpl_str_offset(s, (size_t)from);
    *end = *valid ? tpl_str_offset(s, (size_t)to) : *begin;
    return ERR_OK;
}

// --- finding
// ---------------------------------------------------------------------------------------

static enum err find(struct tpl_ctx *c, const struct tpl_call *call, bool last, int64_t *out) {
    const struct tpl_str *s = self_of(call), *needle;
    size_t begin, end, at = SIZE_MAX;
    bool valid;
    enum err e = tpl_arg_str(c, call, 0, NULL, &needle);
    if (!e)
        e = chosen_part(c, call, 1, &begin, &end, &valid);
    if (!e)
        e = tpl_step(c, s->len);
    if (e)
        return e;
    if (valid && needle->len == 0)
        at = last ? end : begin;
    else if (valid && last)
        e = tpl_str_rfind(c, s, begin, end, needle->p, needle->len, &at);
    else if (valid)
        at = tpl_str_find(s, begin, end, needle->p, needle->len);
    *out = at == SIZE_MAX ? -1 : (int64_t)utf8_count(s->p, at);
    return e;
}

static enum err str_find(struct tpl_ctx *c, const struct tpl_call *call, struct tpl_val *out) {
    *out = tpl_int(0);
    return find(c, call, false, &out->u.i);
}

static enum err str_rfind(struct tpl_ctx *c, const struct tpl_call *call, struct tpl_val *out) {
    *out = tpl_int(0);
    return find(c, call, true, &out->u.i);
}

static enum err str_index(struct tpl_ctx *c, const struct tpl_call *call, struct tpl_val *out) {
    enum err e = str_find(c, call, out);
    return !e && out->u.i < 0 ? tpl_fail(c, "substring not found") : e;
}

static enum err str_rindex(struct tpl_ctx *c, const struct tpl_call *call, struct tpl_val *out) {
    enum err e = str_rfind(c, call, out);
    return !e && out->u.i < 0 ? tpl_fail(c, "substring not found") : e;
}

static enum err str_count(struct tpl_ctx *c, const struct tpl_call *call, struct tpl_val *out) {
    const struct tpl_str *s = self_of(call), *needle;
    size_t begin, end;
    bool valid;
    int64_t n = 0;
    enum err e = tpl_arg_str(c, call, 0, NULL, &needle);
    if (!e)
        e = chosen_part(c, call, 1, &begin, &end, &valid);
    if (!e)
        e = tpl_step(c, s->len);
    if (e)
        return e;
    if (valid && needle->len == 0)
        n = (int64_t)utf8_count(s->p + begin, end - begin) + 1;
    while (valid && needle->len) {
        size_t hit = tpl_str_find(s, begin, end, needle->p, needle->len);
        if (hit == SIZE_MAX)
            break;
        n++;
        begin = hit + needle->len;
        e = tpl_step(c, needle->len);
        if (e)
            return e;
    }
    *out = tpl_int(n);
    return ERR_OK;
}

static bool part_has(const struct tpl_str *s, size_t begin, size_t end, const struct tpl_str *what,
                     bool at_end) {
    if (what->len > end - begin)
        return false;
    return memcmp(s->p + (at_end ? end - what->len : begin), what->p, what->len) == 0;
}

static enum err has_edge(struct tpl_ctx *c, const struct tpl_call *call, bool at_end,
                         struct tpl_val *out) {
    const struct tpl_val *what = &call->arg[0];
    size_t begin, end, n = what->kind == TPL_TUPLE ? what->u.l->n : 1;
    bool valid, found = false;
    enum err e = chosen_part(c, call, 1, &begin, &end, &valid);
    for (size_t i = 0; !e && i < n; i++) {
        const struct tpl_val *one = what->kind == TPL_TUPLE ? &what->u.l->v[i] : what;
        if (one->kind != TPL_STR)
            return tpl_fail(c, "%s first arg must be str or a tuple of str, not %s",
                            at_end ? "endswith" : "startswith", tpl_type_name(one));
        found = found || (valid && part_has(self_of(call), begin, end, one->u.s, at_end));
        e = tpl_step(c, one->u.s->len);
    }
    *out = tpl_bool(found);
    return e;
}

static enum err str_startswith(struct tpl_ctx *c, const struct tpl_call *call,
                               struct tpl_val *out) {
    return has_edge(c, call, false, out);
}

static enum err str_endswith(struct tpl_ctx *c, const struct tpl_call *call, struct tpl_val *out) {
    return has_edge(c, call, true, out);
}

static enum err str_removeprefix(struct tpl_ctx *c, const struct tpl_call *call,
                                 struct tpl_val *out) {
    const struct tpl_str *s = self_of(call), *what;
    enum err e = tpl_arg_str(c, call, 0, NULL, &what);
    if (!e)
        e = tpl_step(c, what->len);
    if (e)
        return e;
    return tpl_str_sub(c, s, part_has(s, 0, s->len, what, false) ? what->len : 0, s->len, out);
}

static enum err str_removesuffix(struct tpl_ctx *c, const struct tpl_call *call,
                                 struct tpl_val *out) {
    const struct tpl_str *s = self_of(call), *what;
    enum err e = tpl_arg_str(c, call, 0, NULL, &what);
    if (!e)
        e = tpl_step(c, what->len);
    if (e)
        return e;
    return tpl_str_sub(c, s, 0, part_has(s, 0, s->len, what, true) ? s->len - what->len : s->len,
                       out);
}

// --- changing
// --------------------------------------------------------------------------------------

static enum err strip(struct tpl_ctx *c, const struct tpl_call *call, int sides,
                      struct tpl_val *out) {
    const struct tpl_str *chars = NULL;
    enum err e = call->arg[0].kind == TPL_NONE ? ERR_OK : tpl_arg_str(c, call, 0, NULL, &chars);
    return e ? e : tpl_str_strip(c, self_of(call), chars, sides, out);
}

static enum err str_strip(struct tpl_ctx *c, const struct tpl_call *call, struct tpl_val *out) {
    return strip(c, call, 3, out);
}

static enum err str_lstrip(struct tpl_ctx *c, const struct tpl_call *call, struct tpl_val *out) {
    return strip(c, call, 1, out);
}

static enum err str_rstrip(struct tpl_ctx *c, const struct tpl_call *call, struct tpl_val *out) {
    return strip(c, call, 2, out);
}

static enum err str_upper(struct tpl_ctx *c, const struct tpl_call *call, struct tpl_val *out) {
    return tpl_str_case(c, self_of(call), TPL_UPPER, out);
}

static enum err str_lower(struct tpl_ctx *c, const struct tpl_call *call, struct tpl_val *out) {
    return tpl_str_case(c, self_of(call), TPL_LOWER, out);
}

static enum err str_title(struct tpl_ctx *c, const struct tpl_call *call, struct tpl_val *out) {
    return tpl_str_case(c, self_of(call), TPL_TITLE, out);
}

static enum err str_capitalize(struct tpl_ctx *c, const struct tpl_call *call,
                               struct tpl_val *out) {
    return tpl_str_case(c, self_of(call), TPL_CAPITALIZE, out);
}

static enum err str_swapcase(struct tpl_ctx *c, const struct tpl_call *call, struct tpl_val *out) {
    return tpl_str_case(c, self_of(call), TPL_SWAPCASE, out);
}

// For a method of markup: text that is not markup is escaped first.
static enum err for_self(struct tpl_ctx *c, const struct tpl_call *call, const struct tpl_str *s,
                         const struct tpl_str **out) {
    struct tpl_sb b;
    struct tpl_val v;
    *out = s;
    if (!self_of(call)->markup || s->markup)
        return ERR_OK;
    tpl_sb_init(&b, c);
    enum err e = tpl_sb_escaped(&b, s);
    if (!e)
        e = tpl_sb_finish(&b, &v);
    if (!e)
        *out = v.u.s;
    return e;
}

static enum err keep_markup(struct tpl_ctx *c, const struct tpl_call *call, enum err e,
                            struct tpl_val *out) {
    return e ? e : tpl_str_markup(c, out->u.s, self_of(call)->markup, out);
}

static enum err str_replace(struct tpl_ctx *c, const struct tpl_call *call, struct tpl_val *out) {
    const struct tpl_str *from, *to;
    int64_t count;
    enum err e = tpl_arg_str(c, call, 0, NULL, &from);
    if (!e)
        e = tpl_arg_str(c, call, 1, NULL, &to);
    if (!e)
        e = tpl_arg_int(c, call, 2, -1, &count);
    if (!e)
        e = for_self(c, call, to, &to);
    if (!e)
        e = tpl_str_replace(c, self_of(call), from, to, count, out);
    return keep_markup(c, call, e, out);
}

static enum err str_join(struct tpl_ctx *c, const struct tpl_call *call, struct tpl_val *out) {
    struct tpl_list *items;
    struct tpl_sb b;
    enum err e = tpl_to_list(c, &call->arg[0], &items);
    tpl_sb_init(&b, c);
    for (size_t i = 0; !e && i < items->n; i++) {
        const struct tpl_str *part = items->v[i].u.s;
        if (items->v[i].kind != TPL_STR)
            return tpl_fail(c, "sequence item %zu: expected str instance, %s found", i,
                            tpl_type_name(&items->v[i]));
        e = for_self(c, call, part, &part);
        if (!e && i)
            e = tpl_sb_str(&b, self_of(call));
        if (!e)
            e = tpl_sb_str(&b, part);
    }
    if (!e)
        e = tpl_sb_finish(&b, out);
    return keep_markup(c, call, e, out);
}

static enum err str_format(struct tpl_ctx *c, const struct tpl_call *call, struct tpl_val *out) {
    return tpl_format(c, self_of(call), call->args, out);
}

// --- padding
// ---------------------------------------------------------------------------------------

static enum err pad(struct tpl_ctx *c, const struct tpl_call *call, int side, struct tpl_val *out) {
    const struct tpl_str *s = self_of(call), *fill;
    int64_t width, gap, left = 0;
    enum err e = tpl_arg_int(c, call, 0, 0, &width);
    if (!e)
        e = tpl_arg_str(c, call, 1, NULL, &fill);
    if (e)
        return e;
    if (fill && fill->chars != 1)
        return tpl_fail(c, "The fill character must be exactly one character long");
    if (width > TPL_MAX_PAD)
        return tpl_fail_limit(c, "much memory");
    gap = width > (int64_t)s->chars ? width - (int64_t)s->chars : 0;
    if (side == 0)
        left = gap / 2 + (gap & width & 1); // the odd one goes where CPython puts it
    else if (side > 0)
        left = gap;
    return tpl_str_pad(c, s, left, gap - left, fill, out);
}

static enum err str_center(struct tpl_ctx *c, const struct tpl_call *call, struct tpl_val *out) {
    return pad(c, call, 0, out);
}

static enum err str_ljust(struct tpl_ctx *c, const struct tpl_call *call, struct tpl_val *out) {
    return pad(c, call, -1, out);
}

static enum err str_rjust(struct tpl_ctx *c, const struct tpl_call *call, struct tpl_val *out) {
    return pad(c, call, 1, out);
}

static enum err str_zfill(struct tpl_ctx *c, const struct tpl_call *call, struct tpl_val *out) {
    static const struct tpl_str zero = {.p = "0", .len = 1, .chars = 1};
    const struct tpl_str *s = self_of(call);
    struct tpl_sb b;
    int64_t width;
    enum err e = tpl_arg_int(c, call, 0, 0, &width);
    if (e)
        return e;
    if (width > TPL_MAX_PAD)
        return tpl_fail_limit(c, "much memory");
    size_t sign = s->len && (s->p[0] == '+' || s->p[0] == '-') ? 1 : 0;
    size_t zeros = width > (int64_t)s->chars ? (size_t)(width - (int64_t)s->chars) : 0;
    tpl_sb_init(&b, c);
    e = tpl_sb_sub(&b, s, 0, sign);
    if (!e)
        e = tpl_sb_fill(&b, &zero, zeros);
    if (!e)
        e = tpl_sb_sub(&b, s, sign, s->len);
    if (!e)
        e = tpl_sb_finish(&b, out);
    return keep_markup(c, call, e, out);
}

static enum err str_expandtabs(struct tpl_ctx *c, const struct tpl_call *call,
                               struct tpl_val *out) {
    static const struct tpl_str space = {.p = " ", .len = 1, .chars = 1};
    const struct tpl_str *s = self_of(call);
    struct tpl_sb b;
    int64_t size, column = 0;
    size_t plain = 0;
    enum err e = tpl_arg_int(c, call, 0, 8, &size);
    if (!e && size > TPL_MAX_PAD)
        return tpl_fail_limit(c, "much memory");
    tpl_sb_init(&b, c);
    for (size_t at = 0; !e && at < s->len;) {
        uint32_t cp;
        size_t len = tpl_uc_next(s->p + at, s->len - at, &cp);
        if (cp == '\t') {
            e = tpl_sb_sub(&b, s, plain, at);
            if (!e && size > 0)
                e = tpl_sb_fill(&b, &space, (size_t)(size - column % size));
            column = size > 0 ? column + size - column % size : column;
            plain = at + len;
        } else {
            column = cp == '\n' || cp == '\r' ? 0 : column + 1;
        }
        at += len;
    }
    if (!e)
        e = tpl_sb_sub(&b, s, plain, s->len);
    if (!e)
        e = tpl_sb_finish(&b, out);
    return keep_markup(c, call, e, out);
}

const struct tpl_fn tpl_methods_str[] = {
    {"strip", str_strip, 0, TPL_FN_POSITIONAL, {"chars"}},
    {"lstrip", str_lstrip, 0, TPL_FN_POSITIONAL, {"chars"}},
    {"rstrip", str_rstrip, 0, TPL_FN_POSITIONAL, {"chars"}},
    {"upper", str_upper, 0, 0, {NULL}},
    {"lower", str_lower, 0, 0, {NULL}},
    {"title", str_title, 0, 0, {NULL}},
    {"capitalize", str_capitalize, 0, 0, {NULL}},
    {"swapcase", str_swapcase, 0, 0, {NULL}},
    {"startswith", str_startswith, 1, TPL_FN_POSITIONAL, {"prefix", "start", "end"}},
    {"endswith", str_endswith, 1, TPL_FN_POSITIONAL, {"suffix", "start", "end"}},
    {"replace", str_replace, 2, TPL_FN_POSITIONAL, {"old", "new", "count"}},
    {"find", str_find, 1, TPL_FN_POSITIONAL, {"sub", "start", "end"}},
    {"rfind", str_rfind, 1, TPL_FN_POSITIONAL, {"sub", "start", "end"}},
    {"index", str_index, 1, TPL_FN_POSITIONAL, {"sub", "start", "end"}},
    {"rindex", str_rindex, 1, TPL_FN_POSITIONAL, {"sub", "start", "end"}},
    {"count", str_count, 1, TPL_FN_POSITIONAL, {"sub", "start", "end"}},
    {"removeprefix", str_removeprefix, 1, TPL_FN_POSITIONAL, {"prefix"}},
    {"removesuffix", str_removesuffix, 1, TPL_FN_POSITIONAL, {"suffix"}},
    {"join", str_join, 1, TPL_FN_POSITIONAL, {"iterable"}},
    {"format", str_format, 0, TPL_FN_RAW, {NULL}},
    {"center", str_center, 1, TPL_FN_POSITIONAL, {"width", "fillchar"}},
    {"ljust", str_ljust, 1, TPL_FN_POSITIONAL, {"width", "fillchar"}},
    {"rjust", str_rjust, 1, TPL_FN_POSITIONAL, {"width", "fillchar"}},
    {"zfill", str_zfill, 1, TPL_FN_POSITIONAL, {"width"}},
    {"expandtabs", str_expandtabs, 0, 0, {"tabsize"}},
    {.name = NULL},
};

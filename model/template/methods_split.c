// SPDX-License-Identifier: Apache-2.0
// Methods of strings that cut them up.
#include "model/template/builtins.h"
#include "model/template/ctx.h"
#include "model/template/str.h"
#include "model/template/unicode.h"

static enum err push_part(struct tpl_ctx *c, struct tpl_list_builder *b, const struct tpl_str *s,
                          size_t begin, size_t end) {
    struct tpl_val v;
    enum err e = tpl_str_sub(c, s, begin, end, &v);
    return e ? e : tpl_list_push(c, b, &v);
}

static void reverse(struct tpl_list *l) {
    for (size_t i = 0; i < l->n / 2; i++) {
        struct tpl_val v = l->v[i];
        l->v[i] = l->v[l->n - 1 - i];
        l->v[l->n - 1 - i] = v;
    }
}

// End of the run of characters at `at` that are (or are not) white space.
static size_t skip(const struct tpl_str *s, size_t at, bool space) {
    uint32_t cp;
    while (at < s->len) {
        size_t len = tpl_uc_next(s->p + at, s->len - at, &cp);
        if (tpl_uc_is(TPL_UC_SPACE, cp) != space)
            break;
        at += len;
    }
    return at;
}

static size_t skip_back(const struct tpl_str *s, size_t at, bool space) {
    uint32_t cp;
    while (at > 0) {
        size_t len = tpl_uc_prev(s->p, at, &cp);
        if (tpl_uc_is(TPL_UC_SPACE, cp) != space)
            break;
        at -= len;
    }
    return at;
}

static enum err split_space(struct tpl_ctx *c, const struct tpl_str *s, int64_t max,
                            struct tpl_list_builder *b) {
    enum err e = ERR_OK;
    for (size_t at = skip(s, 0, true); !e && at < s->len; max--) {
        size_t end = max == 0 ? s->len : skip(s, at, false);
        e = push_part(c, b, s, at, end);
        at = max == 0 ? s->len : skip(s, end, true);
    }
    return e;
}

static enum err rsplit_space(struct tpl_ctx *c, const struct tpl_str *s, int64_t max,
                             struct tpl_list_builder *b) {
    enum err e = ERR_OK;
    for (size_t at = skip_back(s, s->len, true); !e && at > 0; max--) {
        size_t begin = max == 0 ? 0 : skip_back(s, at, false);
        e = push_part(c, b, s, begin, at);
        at = max == 0 ? 0 : skip_back(s, begin, true);
    }
    return e;
}

static enum err split_by(struct tpl_ctx *c, const struct tpl_str *s, const struct tpl_str *sep,
                         int64_t max, struct tpl_list_builder *b) {
    size_t at = 0;
    for (; max != 0; max--) {
        size_t hit = tpl_str_find(s, at, s->len, sep->p, sep->len);
        if (hit == SIZE_MAX)
            break;
        enum err e = push_part(c, b, s, at, hit);
        if (!e)
            e = tpl_step(c, sep->len);
        if (e)
            return e;
        at = hit + sep->len;
    }
    return push_part(c, b, s, at, s->len);
}

static enum err rsplit_by(struct tpl_ctx *c, const struct tpl_str *s, const struct tpl_str *sep,
                          int64_t max, struct tpl_list_builder *b) {
    size_t end = s->len;
    for (; max != 0; max--) {
        size_t hit;
        enum err e = tpl_str_rfind(c, s, 0, end, sep->p, sep->len, &hit);
        if (e)
            return e;
        if (hit == SIZE_MAX)
            break;
        e = push_part(c, b, s, hit + sep->len, end);
        if (e)
            return e;
        end = hit;
    }
    return push_part(c, b, s, 0, end);
}

static enum err split(struct tpl_ctx *c, const struct tpl_call *call, bool from_right,
                      struct tpl_val *out) {
    const struct tpl_str *s = call->self.u.s, *sep = NULL;
    struct tpl_list_builder b = {0};
    int64_t max;
    enum err e = tpl_arg_int(c, call, 1, -1, &max);
    if (!e && call->arg[0].kind != TPL_NONE)
        e = tpl_arg_str(c, call, 0, NULL, &sep);
    if (!e)
        e = tpl_step(c, s->len);
    if (!e)
        e = tpl_list_push(c, &b, NULL);
    if (e)
        return e;
    if (sep && sep->len == 0)
        return tpl_fail(c, "empty separator");
    if (max < 0)
        max = -1;
    if (from_right)
        e = sep ? rsplit_by(c, s, sep, max, &b) : rsplit_space(c, s, max, &b);
    else
        e = sep ? split_by(c, s, sep, max, &b) : split_space(c, s, max, &b);
    if (from_right)
        reverse(b.list);
    *out = tpl_list(b.list);
    return e;
}

static enum err str_split(struct tpl_ctx *c, const struct tpl_call *call, struct tpl_val *out) {
    return split(c, call, false, out);
}

static enum err str_rsplit(struct tpl_ctx *c, const struct tpl_call *call, struct tpl_val *out) {
    return split(c, call, true, out);
}

static enum err str_splitlines(struct tpl_ctx *c, const struct tpl_call *call,
                               struct tpl_val *out) {
    struct tpl_list *l;
    enum err e = tpl_str_splitlines(c, call->self.u.s, tpl_arg_true(call, 0), &l);
    if (!e)
        *out = tpl_list(l);
    return e;
}

static enum err partition(struct tpl_ctx *c, const struct tpl_call *call, bool last,
                          struct tpl_val *out) {
    const struct tpl_str *s = call->self.u.s, *sep;
    struct tpl_list_builder b = {0};
    size_t hit;
    enum err e = tpl_arg_str(c, call, 0, NULL, &sep);
    if (!e)
        e = tpl_step(c, s->len);
    if (e)
        return e;
    if (sep->len == 0)
        return tpl_fail(c, "empty separator");
    if (last)
        e = tpl_str_rfind(c, s, 0, s->len, sep->p, sep->len, &hit);
    else
        hit = tpl_str_find(s, 0, s->len, sep->p, sep->len);
    // Without a hit the whole string is the first part (or the last, looked at from the right).
    size_t cut[4] = {0, s->len, s->len, s->len};
    if (last)
        cut[1] = cut[2] = 0;
    if (!e && hit != SIZE_MAX) {
        cut[1] = hit;
        cut[2] = hit + sep->len;
    }
    for (int i = 0; !e && i < 3; i++)
        e = push_part(c, &b, s, cut[i], cut[i + 1]);
    if (!e)
        *out = tpl_tuple(b.list);
    return e;
}

static enum err str_partition(struct tpl_ctx *c, const struct tpl_call *call, struct tpl_val *out) {
    return partition(c, call, false, out);
}

static enum err str_rpartition(struct tpl_ctx *c, const struct tpl_call *call,
                               struct tpl_val *out) {
    return partition(c, call, true, out);
}

const struct tpl_fn tpl_methods_split[] = {
    {"split", str_split, 0, 0, {"sep", "maxsplit"}},
    {"rsplit", str_rsplit, 0, 0, {"sep", "maxsplit"}},
    {"splitlines", str_splitlines, 0, 0, {"keepends"}},
    {"partition", str_partition, 1, TPL_FN_POSITIONAL, {"sep"}},
    {"rpartition", str_rpartition, 1, TPL_FN_POSITIONAL, {"sep"}},
    {.name = NULL},
};

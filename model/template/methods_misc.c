// SPDX-License-Identifier: Apache-2.0
// Methods of lists, tuples, dictionaries, ranges and cyclers.
#include "model/template/builtins.h"
#include "model/template/ctx.h"
#include "model/template/str.h"

static enum err seq_count(struct tpl_ctx *c, const struct tpl_call *call, struct tpl_val *out) {
    struct tpl_list *l;
    int64_t n = 0;
    enum err e = tpl_to_list(c, &call->self, &l);
    for (size_t i = 0; !e && i < l->n; i++) {
        bool same;
        e = tpl_equal(c, &l->v[i], &call->arg[0], &same);
        n += !e && same;
    }
    *out = tpl_int(n);
    return e;
}

static enum err seq_index(struct tpl_ctx *c, const struct tpl_call *call, struct tpl_val *out) {
    struct tpl_list *l;
    int64_t from, to;
    enum err e = tpl_to_list(c, &call->self, &l);
    if (e)
        return e;
    int64_t n = (int64_t)l->n;
    e = tpl_arg_int(c, call, 1, 0, &from);
    if (!e)
        e = tpl_arg_int(c, call, 2, n, &to);
    if (e)
        return e;
    from = from < 0 ? (from + n < 0 ? 0 : from + n) : from;
    to = to < 0 ? to + n : to > n ? n : to;
    for (int64_t i = from; i < to; i++) {
        bool same;
        e = tpl_equal(c, &l->v[i], &call->arg[0], &same);
        if (e)
            return e;
        if (same) {
            *out = tpl_int(i);
            return ERR_OK;
        }
    }
    return tpl_fail(c, "the value is not in the %s", tpl_type_name(&call->self));
}

static enum err itself(struct tpl_ctx *c, const struct tpl_call *call, struct tpl_val *out) {
    (void)c;
    *out = call->self; // nothing can change it, so it is its own copy
    return ERR_OK;
}

static enum err dict_get(struct tpl_ctx *c, const struct tpl_call *call, struct tpl_val *out) {
    const struct tpl_val *hit;
    enum err e = tpl_dict_get(c, call->self.u.d, &call->arg[0], &hit);
    if (e)
        return e;
    *out = hit ? *hit : call->arg[1].kind == TPL_ABSENT ? tpl_none() : call->arg[1];
    return ERR_OK;
}

static enum err dict_view(struct tpl_ctx *c, const struct tpl_call *call, enum tpl_view_kind kind,
                          struct tpl_val *out) {
    struct tpl_view *v;
    enum err e = tpl_alloc(c, 1, sizeof *v, &v);
    if (e)
        return e;
    *v = (struct tpl_view){.kind = kind, .d = call->self.u.d};
    *out = (struct tpl_val){.kind = TPL_VIEW, .u.view = v};
    return ERR_OK;
}

static enum err dict_items(struct tpl_ctx *c, const struct tpl_call *call, struct tpl_val *out) {
    return dict_view(c, call, TPL_VIEW_ITEMS, out);
}

static enum err dict_keys(struct tpl_ctx *c, const struct tpl_call *call, struct tpl_val *out) {
    return dict_view(c, call, TPL_VIEW_KEYS, out);
}

static enum err dict_values(struct tpl_ctx *c, const struct tpl_call *call, struct tpl_val *out) {
    return dict_view(c, call, TPL_VIEW_VALUES, out);
}

static enum err cycler_next(struct tpl_ctx *c, const struct tpl_call *call, struct tpl_val *out) {
    struct tpl_cycler *cy = call->self.u.cycler;
    (void)c;
    *out = cy->items.u.l->v[cy->pos];
    cy->pos = (cy->pos + 1) % cy->items.u.l->n;
    return ERR_OK;
}

static enum err cycler_reset(struct tpl_ctx *c, const struct tpl_call *call, struct tpl_val *out) {
    (void)c;
    call->self.u.cycler->pos = 0;
    *out = tpl_none();
    return ERR_OK;
}

const struct tpl_fn tpl_methods_list[] = {
    {"count", seq_count, 1, TPL_FN_POSITIONAL, {"value"}},
    {"index", seq_index, 1, TPL_FN_POSITIONAL, {"value", "start", "stop"}},
    {"copy", itself, 0, 0, {NULL}},
    {.name = NULL},
};
const struct tpl_fn tpl_methods_dict[] = {
    {"get", dict_get, 1, TPL_FN_POSITIONAL, {"key", "default"}},
    {"items", dict_items, 0, 0, {NULL}},
    {"keys", dict_keys, 0, 0, {NULL}},
    {"values", dict_values, 0, 0, {NULL}},
    {"copy", itself, 0, 0, {NULL}},
    {.name = NULL},
};
const struct tpl_fn tpl_methods_range[] = {
    {"count", seq_count, 1, TPL_FN_POSITIONAL, {"value"}},
    {"index", seq_index, 1, TPL_FN_POSITIONAL, {"value"}},
    {.name = NULL},
};
const struct tpl_fn tpl_methods_cycler[] = {
    {"next", cycler_next, 0, 0, {NULL}},
    {"reset", cycler_reset, 0, 0, {NULL}},
    {.name = NULL},
};

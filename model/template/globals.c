// SPDX-License-Identifier: Apache-2.0
// Global functions.
#include "model/template/builtins.h"
#include "model/template/ctx.h"
#include "model/template/str.h"

static enum err make_range(struct tpl_ctx *c, const struct tpl_call *call, struct tpl_val *out) {
    int64_t v[3] = {0, 0, 1};
    struct tpl_range *r;
    bool one = call->arg[1].kind == TPL_ABSENT;
    for (size_t i = 0; i < 3; i++) {
        if (call->arg[i].kind != TPL_ABSENT && !tpl_as_int(&call->arg[i], &v[one ? 1 : i]))
            return tpl_fail(c, "'%s' object cannot be interpreted as an integer",
                            tpl_type_name(&call->arg[i]));
    }
    if (v[2] == 0)
        return tpl_fail(c, "range() arg 3 must not be zero");
    // The distance may be wider than an int64, never than a uint64.
    uint64_t distance = 0, stride = v[2] > 0 ? (uint64_t)v[2] : 0 - (uint64_t)v[2];
    if (v[2] > 0 && v[1] > v[0])
        distance = (uint64_t)v[1] - (uint64_t)v[0];
    else if (v[2] < 0 && v[0] > v[1])
        distance = (uint64_t)v[0] - (uint64_t)v[1];
    uint64_t n = distance ? (distance - 1) / stride + 1 : 0;
    if (n > TPL_MAX_RANGE)
        return tpl_fail(c, "Range too big. The sandbox blocks ranges larger than %d.",
                        TPL_MAX_RANGE);
    enum err e = tpl_alloc(c, 1, sizeof *r, &r);
    if (e)
        return e;
    *r = (struct tpl_range){.start = v[0], .stop = v[1], .step = v[2], .n = (int64_t)n};
    *out = (struct tpl_val){.kind = TPL_RANGE, .u.range = r};
    return ERR_OK;
}

static enum err add_pairs(struct tpl_ctx *c, struct tpl_dict *d, const struct tpl_val *from) {
    struct tpl_iter *it;
    struct tpl_val item;
    struct tpl_list *pair;
    bool done = false;
    const struct tpl_view items = {.kind = TPL_VIEW_ITEMS, .d = from->u.d};
    const struct tpl_val as_items = {.kind = TPL_VIEW, .u.view = &items};
    enum err e = tpl_iter_open(c, from->kind == TPL_DICT ? &as_items : from, &it);
    while (!e) {
        e = tpl_iter_next(c, it, &item, &done);
        if (e || done)
            break;
        e = tpl_to_list(c, &item, &pair);
        if (!e && pair->n != 2)
            return tpl_fail(c, "dictionary update sequence element has length %zu; 2 is required",
                            pair->n);
        if (!e)
            e = tpl_dict_set(c, d, &pair->v[0], &pair->v[1]);
    }
    return e;
}

static enum err build_dict(struct tpl_ctx *c, const struct tpl_args *args, const char *what,
                           struct tpl_dict **out) {
    if (args->n > 1)
        return tpl_fail(c, "%s expected at most 1 argument, got %zu", what, args->n);
    enum err e = tpl_dict_new(c, args->n_kw, out);
    if (!e && args->n)
        e = add_pairs(c, *out, &args->v[0]);
    for (size_t i = 0; !e && i < args->n_kw; i++) {
        const struct tpl_val key = tpl_str(args->kw[i].name);
        e = tpl_dict_set(c, *out, &key, &args->kw[i].val);
    }
    return e;
}

static enum err make_dict(struct tpl_ctx *c, const struct tpl_call *call, struct tpl_val *out) {
    struct tpl_dict *d;
    enum err e = build_dict(c, call->args, "dict", &d);
    if (!e)
        *out = tpl_dict(d);
    return e;
}

static enum err make_namespace(struct tpl_ctx *c, const struct tpl_call *call,
                               struct tpl_val *out) {
    struct tpl_dict *d;
    enum err e = build_dict(c, call->args, "namespace", &d);
    for (size_t i = 0; !e && i < d->n; i++) {
        const struct tpl_val *key = &d->e[i].key;
        if (key->kind == TPL_STR && key->u.s->len && key->u.s->p[0] == '_')
            return tpl_fail(c, "a namespace cannot store underscore-prefixed attributes");
    }
    if (!e)
        *out = (struct tpl_val){.kind = TPL_NS, .u.d = d};
    return e;
}

static enum err make_cycler(struct tpl_ctx *c, const struct tpl_call *call, struct tpl_val *out) {
    struct tpl_cycler *cy;
    struct tpl_list *l;
    if (call->args->n_kw || !call->args->n)
        return tpl_fail(c, "at least one item has to be provided");
    enum err e = tpl_list_new(c, call->args->n, &l);
    if (!e)
        e = tpl_alloc(c, 1, sizeof *cy, &cy);
    if (e)
        return e;
    for (size_t i = 0; i < l->n; i++)
        l->v[i] = call->args->v[i];
    cy->items = tpl_tuple(l);
    *out = (struct tpl_val){.kind = TPL_CYCLER, .u.cycler = cy};
    return ERR_OK;
}

static enum err make_joiner(struct tpl_ctx *c, const struct tpl_call *call, struct tpl_val *out) {
    struct tpl_cycler *j;
    enum err e = tpl_alloc(c, 1, sizeof *j, &j);
    if (e)
        return e;
    j->items = call->arg[0];
    if (j->items.kind == TPL_ABSENT)
        e = tpl_str_z(c, ", ", &j->items);
    *out = (struct tpl_val){.kind = TPL_JOINER, .u.cycler = j};
    return e;
}

static enum err raise_exception(struct tpl_ctx *c, const struct tpl_call *call,
                                struct tpl_val *out) {
    const struct tpl_str *s;
    enum err e = tpl_to_str(c, &call->arg[0], &s);
    (void)out;
    if (e)
        return e;
    // The message is the template author's, for whoever sent the request: no line number.
    return err_set(c->info, ERR_TEMPLATE, NULL, "%.*s", (int)(s->len < 4096 ? s->len : 4096), s->p);
}

static enum err strftime_now(struct tpl_ctx *c, const struct tpl_call *call, struct tpl_val *out) {
    const struct tpl_str *s;
    enum err e = tpl_arg_str(c, call, 0, NULL, &s);
    return e ? e : tpl_strftime(c, s, out);
}

static const struct tpl_fn globals[] = {
    {"namespace", make_namespace, 0, TPL_FN_RAW, {NULL}},
    {"raise_exception", raise_exception, 1, 0, {"message"}},
    {"range", make_range, 1, TPL_FN_POSITIONAL, {"start", "stop", "step"}},
    {"dict", make_dict, 0, TPL_FN_RAW, {NULL}},
    {"strftime_now", strftime_now, 1, 0, {"format"}},
    {"cycler", make_cycler, 0, TPL_FN_RAW, {NULL}},
    {"joiner", make_joiner, 0, 0, {"sep"}},
    {.name = NULL},
};

const struct tpl_fn *tpl_find_global(const char *name, size_t len) {
    return tpl_find_in(globals, name, len);
}

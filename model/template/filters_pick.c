// SPDX-License-Identifier: Apache-2.0
// Filters that work on one element after the other, as it is asked for: map, the select family,
// unique.
#include "model/template/builtins.h"
#include "model/template/ctx.h"
#include "model/template/str.h"

struct pick {
    struct tpl_iter *from;      // NULL: nothing to read
    const struct tpl_args *all; // as written; looked at once the first element is asked for
    bool prepared, by_attribute;
    struct tpl_path path;
    struct tpl_val missing;  // map's default
    const struct tpl_fn *fn; // the filter or test to apply; NULL: none
    struct tpl_args args;    // for it
    bool keep;               // select: the outcome that keeps an element
    bool case_sensitive;     // unique
    struct tpl_dict *seen;
};

static enum err new_pick(struct tpl_ctx *c, const struct tpl_call *call,
                         enum err (*next)(struct tpl_ctx *, struct tpl_iter *, struct tpl_val *,
                                          bool *),
                         struct pick **state, struct tpl_val *out) {
    struct tpl_iter *it;
    struct tpl_args *all;
    enum err e = tpl_alloc(c, 1, sizeof **state, state);
    if (!e)
        e = tpl_alloc(c, 1, sizeof *all, &all);
    if (!e)
        e = tpl_iter_new(c, "generator", next, &call->self, *state, &it);
    if (e)
        return e;
    *all = *call->args;
    (*state)->all = all;
    *out = (struct tpl_val){.kind = TPL_ITER, .u.it = it};
    return ERR_OK;
}

// The function named by argument number i; the arguments behind it and all keywords are for it.
static enum err applied(struct tpl_ctx *c, size_t i, bool is_filter, struct pick *p) {
    const struct tpl_val *name = &p->all->v[i];
    p->fn = name->kind != TPL_STR ? NULL
            : is_filter           ? tpl_find_filter(name->u.s->p, name->u.s->len)
                                  : tpl_find_test(name->u.s->p, name->u.s->len);
    if (!p->fn)
        return tpl_fail(c, "No %s named '%.*s'.", is_filter ? "filter" : "test",
                        name->kind == TPL_STR && name->u.s->len < 80 ? (int)name->u.s->len : 0,
                        name->kind == TPL_STR ? name->u.s->p : "");
    p->args = *p->all;
    p->args.n = p->all->n - i - 1;
    p->args.v = p->all->v + i + 1;
    return ERR_OK;
}

static enum err map_attribute(struct tpl_ctx *c, struct pick *p) {
    struct tpl_val attribute = {.kind = TPL_ABSENT};
    const struct tpl_str *other = NULL;
    for (size_t i = 0; i < p->all->n_kw; i++) {
        if (tpl_str_is(p->all->kw[i].name, "attribute"))
            attribute = p->all->kw[i].val;
        else if (tpl_str_is(p->all->kw[i].name, "default"))
            p->missing = p->all->kw[i].val;
        else
            other = p->all->kw[i].name;
    }
    if (attribute.kind == TPL_ABSENT)
        return tpl_fail(c, "map requires a filter argument");
    if (other)
        return tpl_fail(c, "Unexpected keyword argument '%.*s'",
                        (int)(other->len < 80 ? other->len : 80), other->p);
    return tpl_path_parse(c, &attribute, &p->path);
}

// Opens what is read. A false value, such as None, is read as if it were empty.
static enum err prepare(struct tpl_ctx *c, struct tpl_iter *it, struct pick *p, bool *done) {
    *done = p->prepared && !p->from;
    if (p->prepared)
        return ERR_OK;
    p->prepared = true;
    *done = !tpl_truth(&it->src);
    return *done ? ERR_OK : tpl_iter_open(c, &it->src, &p->from);
}

static enum err next_mapped(struct tpl_ctx *c, struct tpl_iter *it, struct tpl_val *out,
                            bool *done) {
    struct pick *p = it->state;
    struct tpl_val item;
    bool first = !p->prepared;
    enum err e = prepare(c, it, p, done);
    if (!e && !*done && first)
        e = p->all->n ? applied(c, 0, true, p) : map_attribute(c, p);
    if (!e && !*done)
        e = tpl_iter_next(c, p->from, &item, done);
    if (e || *done)
        return e;
    return p->fn ? tpl_call_fn(c, p->fn, &item, &p->args, out)
                 : tpl_path_get(c, &p->path, &item, &p->missing, out);
}

static enum err do_map(struct tpl_ctx *c, const struct tpl_call *call, struct tpl_val *out) {
    struct pick *p;
    return new_pick(c, call, next_mapped, &p, out);
}

static enum err prepare_select(struct tpl_ctx *c, struct pick *p) {
    size_t at = p->by_attribute ? 1 : 0;
    enum err e = ERR_OK;
    if (p->by_attribute && p->all->n == 0)
        return tpl_fail(c, "Missing parameter for attribute name");
    if (p->by_attribute)
        e = tpl_path_parse(c, &p->all->v[0], &p->path);
    return e || p->all->n <= at ? e : applied(c, at, false, p);
}

static enum err next_selected(struct tpl_ctx *c, struct tpl_iter *it, struct tpl_val *out,
                              bool *done) {
    struct pick *p = it->state;
    bool first = !p->prepared;
    enum err e = prepare(c, it, p, done);
    if (!e && !*done && first)
        e = prepare_select(c, p);
    while (!e && !*done) {
        struct tpl_val subject;
        e = tpl_iter_next(c, p->from, out, done);
        if (e || *done)
            return e;
        e = tpl_path_get(c, &p->path, out, NULL, &subject);
        if (!e && p->fn)
            e = tpl_call_fn(c, p->fn, &subject, &p->args, &subject);
        if (!e && tpl_truth(&subject) == p->keep)
            break;
    }
    return e;
}

static enum err select_any(struct tpl_ctx *c, const struct tpl_call *call, bool by_attribute,
                           bool keep, struct tpl_val *out) {
    struct pick *p;
    enum err e = new_pick(c, call, next_selected, &p, out);
    if (e)
        return e;
    p->by_attribute = by_attribute;
    p->keep = keep;
    return ERR_OK;
}

static enum err do_select(struct tpl_ctx *c, const struct tpl_call *call, struct tpl_val *out) {
    return select_any(c, call, false, true, out);
}

static enum err do_reject(struct tpl_ctx *c, const struct tpl_call *call, struct tpl_val *out) {
    return select_any(c, call, false, false, out);
}

static enum err do_selectattr(struct tpl_ctx *c, const struct tpl_call *call, struct tpl_val *out) {
    return select_any(c, call, true, true, out);
}

static enum err do_rejectattr(struct tpl_ctx *c, const struct tpl_call *call, struct tpl_val *out) {
    return select_any(c, call, true, false, out);
}

static enum err next_unique(struct tpl_ctx *c, struct tpl_iter *it, struct tpl_val *out,
                            bool *done) {
    struct pick *p = it->state;
    const struct tpl_val *known = NULL, yes = tpl_bool(true);
    enum err e = p->from ? ERR_OK : tpl_iter_open(c, &it->src, &p->from);
    if (e)
        return e;
    for (;;) {
        struct tpl_val key;
        e = tpl_iter_next(c, p->from, out, done);
        if (e || *done)
            return e;
        e = tpl_path_get(c, &p->path, out, NULL, &key);
        if (!e && !p->case_sensitive && key.kind == TPL_STR)
            e = tpl_str_case(c, key.u.s, TPL_LOWER, &key);
        if (!e)
            e = tpl_dict_get(c, p->seen, &key, &known);
        if (!e && !known)
            e = tpl_dict_set(c, p->seen, &key, &yes);
        if (e || !known)
            return e;
    }
}

static enum err do_unique(struct tpl_ctx *c, const struct tpl_call *call, struct tpl_val *out) {
    struct pick *p;
    enum err e = new_pick(c, call, next_unique, &p, out);
    if (!e)
        e = tpl_path_parse(c, &call->arg[1], &p->path);
    if (!e)
        e = tpl_dict_new(c, 0, &p->seen);
    if (!e)
        p->case_sensitive = tpl_arg_true(call, 0);
    return e;
}

const struct tpl_fn tpl_filters_pick[] = {
    {"map", do_map, 0, TPL_FN_RAW, {NULL}},
    {"select", do_select, 0, TPL_FN_RAW, {NULL}},
    {"reject", do_reject, 0, TPL_FN_RAW, {NULL}},
    {"selectattr", do_selectattr, 0, TPL_FN_RAW, {NULL}},
    {"rejectattr", do_rejectattr, 0, TPL_FN_RAW, {NULL}},
    {"unique", do_unique, 0, 0, {"case_sensitive", "attribute"}},
    {.name = NULL},
};

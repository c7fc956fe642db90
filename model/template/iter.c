// SPDX-License-Identifier: Apache-2.0
// Iteration. Each step function hands out the element at it->pos of it->src.
#include "model/template/ctx.h"
#include "model/template/str.h"
#include "model/template/unicode.h"

static enum err next_list(struct tpl_ctx *c, struct tpl_iter *it, struct tpl_val *out, bool *done) {
    (void)c;
    *done = it->pos >= it->src.u.l->n;
    if (!*done)
        *out = it->src.u.l->v[it->pos++];
    return ERR_OK;
}

static enum err next_char(struct tpl_ctx *c, struct tpl_iter *it, struct tpl_val *out, bool *done) {
    const struct tpl_str *s = it->src.u.s;
    uint32_t cp;
    *done = it->pos >= s->len;
    if (*done)
        return ERR_OK;
    size_t begin = it->pos;
    it->pos += tpl_uc_next(s->p + begin, s->len - begin, &cp);
    enum err e = tpl_str_sub(c, s, begin, it->pos, out);
    return e ? e : tpl_str_markup(c, out->u.s, false, out); // iterating forgets what is safe
}

static enum err next_entry(struct tpl_ctx *c, struct tpl_iter *it, struct tpl_val *out,
                           bool *done) {
    const struct tpl_dict *d = it->src.kind == TPL_DICT ? it->src.u.d : it->src.u.view->d;
    enum tpl_view_kind kind = it->src.kind == TPL_DICT ? TPL_VIEW_KEYS : it->src.u.view->kind;
    *done = it->pos >= d->n;
    if (*done)
        return ERR_OK;
    const struct tpl_entry *e = &d->e[it->pos++];
    if (kind == TPL_VIEW_ITEMS)
        return tpl_pair(c, &e->key, &e->val, out);
    *out = kind == TPL_VIEW_KEYS ? e->key : e->val;
    return ERR_OK;
}

static enum err next_in_range(struct tpl_ctx *c, struct tpl_iter *it, struct tpl_val *out,
                              bool *done) {
    (void)c;
    const struct tpl_range *r = it->src.u.range;
    *done = (int64_t)it->pos >= r->n;
    if (!*done)
        *out = tpl_int(r->start + r->step * (int64_t)it->pos++);
    return ERR_OK;
}

static enum err next_none(struct tpl_ctx *c, struct tpl_iter *it, struct tpl_val *out, bool *done) {
    (void)c;
    (void)it;
    (void)out;
    *done = true;
    return ERR_OK;
}

enum err tpl_iter_new(struct tpl_ctx *c, const char *type,
                      enum err (*next)(struct tpl_ctx *, struct tpl_iter *, struct tpl_val *,
                                       bool *),
                      const struct tpl_val *src, void *state, struct tpl_iter **out) {
    struct tpl_iter *it;
    enum err e = tpl_alloc(c, 1, sizeof *it, &it);
    if (e)
        return e;
    *it = (struct tpl_iter){.type = type, .next = next, .src = *src, .state = state};
    *out = it;
    return ERR_OK;
}

bool tpl_iterable(const struct tpl_val *v) {
    switch (v->kind) {
    case TPL_UNDEF:
    case TPL_STR:
    case TPL_LIST:
    case TPL_TUPLE:
    case TPL_DICT:
    case TPL_VIEW:
    case TPL_RANGE:
    case TPL_ITER:
    case TPL_LOOP:
        return true;
    default:
        return false;
    }
}

enum err tpl_iter_open(struct tpl_ctx *c, const struct tpl_val *v, struct tpl_iter **out) {
    switch (v->kind) {
    case TPL_ITER:
        *out = v->u.it;
        return ERR_OK;
    case TPL_LIST:
    case TPL_TUPLE:
        return tpl_iter_new(c, "list_iterator", next_list, v, NULL, out);
    case TPL_STR:
        return tpl_iter_new(c, "str_iterator", next_char, v, NULL, out);
    case TPL_DICT:
    case TPL_VIEW:
        return tpl_iter_new(c, "dict_iterator", next_entry, v, NULL, out);
    case TPL_RANGE:
        return tpl_iter_new(c, "range_iterator", next_in_range, v, NULL, out);
    case TPL_UNDEF:
        return tpl_iter_new(c, "generator", next_none, v, NULL, out);
    default:
        return tpl_fail(c, "'%s' object is not iterable", tpl_type_name(v));
    }
}

enum err tpl_iter_next(struct tpl_ctx *c, struct tpl_iter *it, struct tpl_val *out, bool *done) {
    *done = false;
    enum err e = tpl_step(c, 0);
    if (!e)
        e = tpl_enter(c); // iterators over iterators nest without the syntax showing it
    if (e)
        return e;
    e = it->next(c, it, out, done);
    tpl_leave(c);
    return e;
}

enum err tpl_to_list(struct tpl_ctx *c, const struct tpl_val *v, struct tpl_list **out) {
    struct tpl_list_builder b = {0};
    struct tpl_iter *it;
    struct tpl_val item;
    bool done = false;
    enum err e = tpl_iter_open(c, v, &it);
    if (!e)
        e = tpl_list_push(c, &b, NULL);
    while (!e) {
        e = tpl_iter_next(c, it, &item, &done);
        if (e || done)
            break;
        e = tpl_list_push(c, &b, &item);
    }
    *out = b.list;
    return e;
}

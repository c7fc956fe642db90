// SPDX-License-Identifier: Apache-2.0
// Expressions.
#include "model/template/eval.h"
#include "model/template/builtins.h"

static enum err eval_name(const struct tpl_ctx *c, const struct tpl_node *n, struct tpl_val *out) {
    const struct tpl_frame *f = c->frame;
    for (unsigned i = 0; i < n->u.name.hops; i++)
        f = f->outer;
    *out = f->slot[n->u.name.slot];
    if (out->kind == TPL_ABSENT)
        *out = (struct tpl_val){.kind = TPL_UNDEF, .u.undef = &n->u.name.name->undef};
    return ERR_OK;
}

static enum err eval_list(struct tpl_ctx *c, const struct tpl_node *n, struct tpl_val *out) {
    struct tpl_list *l;
    enum err e = tpl_list_new(c, n->u.list.n, &l);
    for (size_t i = 0; !e && i < n->u.list.n; i++)
        e = tpl_eval(c, n->u.list.v[i], &l->v[i]);
    if (!e)
        *out = n->kind == TPL_N_TUPLE ? tpl_tuple(l) : tpl_list(l);
    return e;
}

static enum err eval_dict(struct tpl_ctx *c, const struct tpl_node *n, struct tpl_val *out) {
    struct tpl_dict *d;
    enum err e = tpl_dict_new(c, n->u.list.n / 2, &d);
    for (size_t i = 0; !e && i < n->u.list.n; i += 2) {
        struct tpl_val key, val;
        e = tpl_eval(c, n->u.list.v[i], &key);
        if (!e)
            e = tpl_eval(c, n->u.list.v[i + 1], &val);
        if (!e)
            e = tpl_dict_set(c, d, &key, &val);
    }
    if (!e)
        *out = tpl_dict(d);
    return e;
}

static enum err eval_concat(struct tpl_ctx *c, const struct tpl_node *n, struct tpl_val *out) {
    const struct tpl_str *joined = NULL, *part;
    for (size_t i = 0; i < n->u.list.n; i++) {
        struct tpl_val v;
        enum err e = tpl_eval(c, n->u.list.v[i], &v);
        if (!e)
            e = tpl_to_str(c, &v, &part);
        if (!e && part->markup) { // joining forgets what is safe
            e = tpl_str_markup(c, part, false, &v);
            if (!e)
                part = v.u.s;
        }
        if (!e && joined)
            e = tpl_str_concat(c, joined, part, &v);
        if (e)
            return e;
        joined = joined ? v.u.s : part;
    }
    *out = tpl_str(joined);
    return ERR_OK;
}

static enum err eval_cond(struct tpl_ctx *c, const struct tpl_node *n, struct tpl_val *out) {
    struct tpl_val test;
    enum err e = tpl_eval(c, n->u.cond.test, &test);
    if (e)
        return e;
    if (tpl_truth(&test))
        return tpl_eval(c, n->u.cond.yes, out);
    if (n->u.cond.no)
        return tpl_eval(c, n->u.cond.no, out);
    *out = (struct tpl_val){.kind = TPL_UNDEF, .u.undef = n->u.cond.undef};
    return ERR_OK;
}

static enum err eval_and_or(struct tpl_ctx *c, const struct tpl_node *n, struct tpl_val *out) {
    enum err e = tpl_eval(c, n->u.bin.a, out);
    if (e || tpl_truth(out) == (n->kind == TPL_N_OR))
        return e;
    return tpl_eval(c, n->u.bin.b, out);
}

static enum err eval_unary(struct tpl_ctx *c, const struct tpl_node *n, struct tpl_val *out) {
    struct tpl_val v;
    enum err e = tpl_eval(c, n->u.bin.a, &v);
    if (e)
        return e;
    if (n->kind != TPL_N_NOT)
        return tpl_unary(c, n->u.bin.op, &v, out);
    *out = tpl_bool(!tpl_truth(&v));
    return ERR_OK;
}

static enum err eval_binary(struct tpl_ctx *c, const struct tpl_node *n, struct tpl_val *out) {
    struct tpl_val a, b;
    enum err e = tpl_eval(c, n->u.bin.a, &a);
    if (!e)
        e = tpl_eval(c, n->u.bin.b, &b);
    if (e)
        return e;
    c->line = n->line;
    return n->kind == TPL_N_ITEM ? tpl_getitem(c, &a, &b, out)
                                 : tpl_binary(c, n->u.bin.op, &a, &b, out);
}

static enum err eval_compare(struct tpl_ctx *c, const struct tpl_node *n, struct tpl_val *out) {
    struct tpl_val left, right;
    bool holds = true;
    enum err e = tpl_eval(c, n->u.compare.first, &left);
    for (size_t i = 0; !e && holds && i < n->u.compare.n; i++) {
        e = tpl_eval(c, n->u.compare.rest[i].with, &right);
        if (!e)
            e = tpl_compare(c, n->u.compare.rest[i].op, &left, &right, &holds);
        left = right;
    }
    *out = tpl_bool(holds);
    return e;
}

static enum err eval_attr(struct tpl_ctx *c, const struct tpl_node *n, struct tpl_val *out) {
    struct tpl_val of;
    enum err e = tpl_eval(c, n->u.attr.of, &of);
    return e ? e : tpl_getattr(c, &of, n->u.attr.name, out);
}

static enum err eval_slice(struct tpl_ctx *c, const struct tpl_node *n, struct tpl_val *out) {
    const struct tpl_node *part[3] = {n->u.slice.start, n->u.slice.stop, n->u.slice.step};
    struct tpl_val of, bound[3] = {tpl_none(), tpl_none(), tpl_none()};
    enum err e = tpl_eval(c, n->u.slice.of, &of);
    for (int i = 0; !e && i < 3; i++) {
        if (part[i])
            e = tpl_eval(c, part[i], &bound[i]);
    }
    return e ? e : tpl_slice(c, &of, bound, out);
}

static enum err add_star_args(struct tpl_ctx *c, const struct tpl_node *star,
                              struct tpl_args *out) {
    struct tpl_val v;
    struct tpl_list *more;
    enum err e = tpl_eval(c, star, &v);
    if (!e)
        e = tpl_to_list(c, &v, &more);
    if (e)
        return e;
    const struct tpl_list have = {.n = out->n, .v = out->v};
    const struct tpl_list *all;
    e = tpl_list_concat(c, &have, more, &all);
    if (e)
        return e;
    out->n = all->n;
    out->v = all->v;
    return ERR_OK;
}

static enum err check_keyword(struct tpl_ctx *c, const struct tpl_args *a,
                              const struct tpl_str *name) {
    for (size_t i = 0; i < a->n_kw; i++) {
        if (tpl_str_same(a->kw[i].name, name))
            return tpl_fail(c, "multiple values for keyword argument '%.*s'", (int)name->len,
                            name->p);
    }
    return tpl_step(c, a->n_kw);
}

static enum err add_keywords(struct tpl_ctx *c, const struct tpl_actuals *a, struct tpl_args *out) {
    struct tpl_val more = {.kind = TPL_ABSENT};
    enum err e = a->star_star ? tpl_eval(c, a->star_star, &more) : ERR_OK;
    if (e)
        return e;
    if (a->star_star && more.kind != TPL_DICT)
        return tpl_fail(c, "argument after ** must be a mapping, not %s", tpl_type_name(&more));
    size_t n = a->n_kw + (a->star_star ? more.u.d->n : 0);
    if (n == 0)
        return ERR_OK;
    e = tpl_alloc(c, n, sizeof *out->kw, &out->kw);
    for (size_t i = 0; !e && i < a->n_kw; i++) {
        e = check_keyword(c, out, a->kw[i].name);
        if (!e)
            e = tpl_eval(c, a->kw[i].value, &out->kw[out->n_kw].val);
        if (!e)
            out->kw[out->n_kw++].name = a->kw[i].name;
    }
    for (size_t i = 0; !e && a->star_star && i < more.u.d->n; i++) {
        const struct tpl_entry *entry = &more.u.d->e[i];
        if (entry->key.kind != TPL_STR)
            return tpl_fail(c, "keywords must be strings");
        e = check_keyword(c, out, entry->key.u.s);
        if (!e)
            out->kw[out->n_kw++] = (struct tpl_kwarg){entry->key.u.s, entry->val};
    }
    return e;
}

enum err tpl_eval_args(struct tpl_ctx *c, const struct tpl_actuals *a, struct tpl_args *out) {
    enum err e = ERR_OK;
    *out = (struct tpl_args){0};
    if (a->pos.n)
        e = tpl_alloc(c, a->pos.n, sizeof *out->v, &out->v);
    for (size_t i = 0; !e && i < a->pos.n; i++, out->n++)
        e = tpl_eval(c, a->pos.v[i], &out->v[i]);
    if (!e && a->star)
        e = add_star_args(c, a->star, out);
    return e ? e : add_keywords(c, a, out);
}

static enum err eval_call(struct tpl_ctx *c, const struct tpl_node *n, struct tpl_val *out) {
    struct tpl_val callee;
    struct tpl_args args;
    enum err e = tpl_eval(c, n->u.call.callee, &callee);
    if (!e)
        e = tpl_eval_args(c, &n->u.call.args, &args);
    c->line = n->line;
    return e ? e : tpl_call_value(c, &callee, &args, out);
}

static enum err eval_apply(struct tpl_ctx *c, const struct tpl_node *n, struct tpl_val *out) {
    struct tpl_val of;
    struct tpl_args args;
    if (!n->u.apply.fn)
        return tpl_fail(c, "No %s named '%.*s' found.", n->kind == TPL_N_FILTER ? "filter" : "test",
                        (int)(n->u.apply.name->len < 80 ? n->u.apply.name->len : 80),
                        n->u.apply.name->p);
    enum err e = ERR_OK;
    if (n->u.apply.of)
        e = tpl_eval(c, n->u.apply.of, &of);
    else
        of = tpl_str(c->body);
    if (!e)
        e = tpl_eval_args(c, &n->u.apply.args, &args);
    c->line = n->line;
    return e ? e : tpl_call_fn(c, n->u.apply.fn, &of, &args, out);
}

static enum err eval_any(struct tpl_ctx *c, const struct tpl_node *n, struct tpl_val *out) {
    switch (n->kind) {
    case TPL_N_TUPLE:
    case TPL_N_LIST:
        return eval_list(c, n, out);
    case TPL_N_DICT:
        return eval_dict(c, n, out);
    case TPL_N_CONCAT:
        return eval_concat(c, n, out);
    case TPL_N_COND:
        return eval_cond(c, n, out);
    case TPL_N_OR:
    case TPL_N_AND:
        return eval_and_or(c, n, out);
    case TPL_N_NOT:
    case TPL_N_NEG:
    case TPL_N_POS:
        return eval_unary(c, n, out);
    case TPL_N_BINARY:
    case TPL_N_ITEM:
        return eval_binary(c, n, out);
    case TPL_N_COMPARE:
        return eval_compare(c, n, out);
    case TPL_N_ATTR:
        return eval_attr(c, n, out);
    case TPL_N_SLICE:
        return eval_slice(c, n, out);
    case TPL_N_CALL:
        return eval_call(c, n, out);
    case TPL_N_FILTER:
    case TPL_N_TEST:
        return eval_apply(c, n, out);
    default:
        return err_set(c->info, ERR_INTERNAL, NULL, "not an expression");
    }
}

enum err tpl_eval(struct tpl_ctx *c, const struct tpl_node *n, struct tpl_val *out) {
    enum err e = tpl_step(c, 0);
    if (e)
        return e;
    c->line = n->line;
    if (n->kind == TPL_N_CONST) {
        *out = n->u.value;
        return ERR_OK;
    }
    if (n->kind == TPL_N_NAME)
        return eval_name(c, n, out);
    e = tpl_enter(c);
    if (e)
        return e;
    e = eval_any(c, n, out);
    tpl_leave(c);
    return e;
}

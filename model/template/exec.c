// SPDX-License-Identifier: Apache-2.0
// Statements, frames and macros.
#include "model/template/eval.h"

enum err tpl_frame_load(struct tpl_ctx *c, const struct tpl_scope *scope, struct tpl_frame *f) {
    for (size_t i = 0; i < scope->n; i++) {
        const struct tpl_slot *s = &scope->slot[i];
        const struct tpl_frame *from = f;
        const struct tpl_val *hit;
        enum err e = ERR_OK;
        switch (s->load) {
        case TPL_LOAD_PARAM:
            continue;
        case TPL_LOAD_UNSET:
            f->slot[i] = (struct tpl_val){.kind = TPL_ABSENT};
            continue;
        case TPL_LOAD_ALIAS:
            for (unsigned hop = 0; hop < s->hops; hop++)
                from = from->outer;
            f->slot[i] = from->slot[s->from];
            continue;
        case TPL_LOAD_RESOLVE: {
            const struct tpl_val key = tpl_str(s->name->text);
            e = tpl_dict_get(c, c->vars, &key, &hit);
            if (e)
                return e;
            f->slot[i] = (struct tpl_val){.kind = TPL_ABSENT};
            if (hit)
                f->slot[i] = *hit;
            else if (s->name->global)
                f->slot[i] = (struct tpl_val){.kind = TPL_FUNC, .u.fn = s->name->global};
            break;
        }
        }
    }
    return tpl_step(c, scope->n);
}

enum err tpl_frame_new(struct tpl_ctx *c, const struct tpl_scope *scope, struct tpl_frame *outer,
                       struct tpl_frame **out) {
    struct tpl_frame *f;
    enum err e = tpl_alloc(c, 1, sizeof *f + scope->n * sizeof f->slot[0], &f);
    if (e)
        return e;
    f->outer = outer;
    *out = f;
    return tpl_frame_load(c, scope, f);
}

static enum err unpack(struct tpl_ctx *c, const struct tpl_node *target, const struct tpl_val *v) {
    struct tpl_iter *it;
    struct tpl_val item;
    bool done = false;
    size_t n = target->u.list.n;
    enum err e = tpl_iter_open(c, v, &it);
    for (size_t i = 0; !e && i < n; i++) {
        e = tpl_iter_next(c, it, &item, &done);
        if (!e && done)
            return tpl_fail(c, "not enough values to unpack (expected %zu, got %zu)", n, i);
        if (!e)
            e = tpl_assign(c, target->u.list.v[i], &item);
    }
    if (!e)
        e = tpl_iter_next(c, it, &item, &done);
    if (!e && !done)
        return tpl_fail(c, "too many values to unpack (expected %zu)", n);
    return e;
}

static enum err assign_attribute(struct tpl_ctx *c, const struct tpl_node *target,
                                 const struct tpl_val *v) {
    struct tpl_val ns;
    enum err e = tpl_eval(c, target->u.attr.of, &ns);
    if (e)
        return e;
    if (ns.kind != TPL_NS)
        return tpl_fail(c, "cannot assign attribute on non-namespace object");
    const struct tpl_str *name = target->u.attr.name;
    if (name->len && name->p[0] == '_')
        return tpl_fail(c, "a namespace cannot store the underscore-prefixed attribute '%.*s'",
                        (int)name->len, name->p);
    const struct tpl_val key = tpl_str(name);
    return tpl_dict_set(c, ns.u.d, &key, v);
}

enum err tpl_assign(struct tpl_ctx *c, const struct tpl_node *target, const struct tpl_val *v) {
    if (target->kind == TPL_N_TUPLE)
        return unpack(c, target, v);
    if (target->kind == TPL_N_NSREF)
        return assign_attribute(c, target, v);
    c->frame->slot[target->u.name.slot] = *v;
    return ERR_OK;
}

// Runs a body in a frame of its own and gives its text.
static enum err capture(struct tpl_ctx *c, const struct tpl_nodes *body, struct tpl_frame *frame,
                        enum tpl_jump *jump, struct tpl_val *out) {
    struct tpl_frame *was_frame = c->frame;
    struct tpl_sb b, *was_out = c->out;
    tpl_sb_init(&b, c);
    c->frame = frame;
    c->out = &b;
    enum err e = tpl_exec(c, body, jump);
    c->frame = was_frame;
    c->out = was_out;
    return e ? e : tpl_sb_finish(&b, out);
}

// The filter of a filter or set block on the block's text, in the block's frame.
static enum err filter_text(struct tpl_ctx *c, const struct tpl_node *filter,
                            struct tpl_frame *frame, struct tpl_val *text) {
    struct tpl_frame *was_frame = c->frame;
    const struct tpl_str *was_body = c->body;
    c->frame = frame;
    c->body = text->u.s;
    enum err e = tpl_eval(c, filter, text);
    c->frame = was_frame;
    c->body = was_body;
    return e;
}

static enum err exec_set_block(struct tpl_ctx *c, const struct tpl_node *n, enum tpl_jump *jump) {
    struct tpl_frame *f;
    struct tpl_val text;
    enum err e = tpl_frame_new(c, n->u.set.scope, c->frame, &f);
    if (!e)
        e = capture(c, &n->u.set.body, f, jump, &text);
    if (e || *jump != TPL_GO_ON)
        return e;
    if (n->u.set.value)
        e = filter_text(c, n->u.set.value, f, &text);
    return e ? e : tpl_assign(c, n->u.set.target, &text);
}

static enum err exec_filter_block(struct tpl_ctx *c, const struct tpl_node *n,
                                  enum tpl_jump *jump) {
    struct tpl_frame *f;
    struct tpl_val text;
    enum err e = tpl_frame_new(c, n->u.block.scope, c->frame, &f);
    if (!e)
        e = capture(c, &n->u.block.body, f, jump, &text);
    if (e || *jump != TPL_GO_ON)
        return e;
    e = filter_text(c, n->u.block.filter, f, &text);
    if (!e && text.kind != TPL_STR)
        return tpl_fail(c, "the filter of a filter block gave a %s, not a string",
                        tpl_type_name(&text));
    return e ? e : tpl_sb_str(c->out, text.u.s);
}

static enum err exec_with(struct tpl_ctx *c, const struct tpl_node *n, enum tpl_jump *jump) {
    struct tpl_frame *f, *was = c->frame;
    const struct tpl_nodes *pairs = &n->u.block.pairs;
    enum err e = tpl_frame_new(c, n->u.block.scope, c->frame, &f);
    for (size_t i = 0; !e && i < pairs->n; i += 2) {
        struct tpl_val v;
        e = tpl_eval(c, pairs->v[i + 1], &v);
        c->frame = f;
        if (!e)
            e = tpl_assign(c, pairs->v[i], &v);
        c->frame = was;
    }
    if (e)
        return e;
    c->frame = f;
    e = tpl_exec(c, &n->u.block.body, jump);
    c->frame = was;
    return e;
}

static enum err exec_if(struct tpl_ctx *c, const struct tpl_node *n, enum tpl_jump *jump) {
    for (size_t i = 0; i < n->u.branches.n; i++) {
        const struct tpl_branch *b = &n->u.branches.v[i];
        struct tpl_val test = tpl_bool(true);
        enum err e = b->test ? tpl_eval(c, b->test, &test) : ERR_OK;
        if (e)
            return e;
        if (tpl_truth(&test))
            return tpl_exec(c, &b->body, jump);
    }
    return ERR_OK;
}

static enum err exec_set(struct tpl_ctx *c, const struct tpl_node *n) {
    struct tpl_val v;
    enum err e = tpl_eval(c, n->u.set.value, &v);
    return e ? e : tpl_assign(c, n->u.set.target, &v);
}

static enum err exec_output(struct tpl_ctx *c, const struct tpl_node *n) {
    struct tpl_val v;
    enum err e = tpl_eval(c, n->u.bin.a, &v);
    return e ? e : tpl_sb_val(c->out, &v);
}

static enum err exec_one(struct tpl_ctx *c, const struct tpl_node *n, enum tpl_jump *jump) {
    switch (n->kind) {
    case TPL_N_DATA:
        return tpl_sb_str(c->out, n->u.value.u.s);
    case TPL_N_OUTPUT:
        return exec_output(c, n);
    case TPL_N_IF:
        return exec_if(c, n, jump);
    case TPL_N_FOR:
        return tpl_exec_for(c, n, jump);
    case TPL_N_SET:
        return exec_set(c, n);
    case TPL_N_SET_BLOCK:
        return exec_set_block(c, n, jump);
    case TPL_N_MACRO:
        return tpl_exec_macro(c, n);
    case TPL_N_CALL_BLOCK:
        return tpl_exec_call_block(c, n);
    case TPL_N_FILTER_BLOCK:
        return exec_filter_block(c, n, jump);
    case TPL_N_WITH:
        return exec_with(c, n, jump);
    case TPL_N_GENERATION:
        return tpl_exec_generation(c, n);
    case TPL_N_BREAK:
        *jump = TPL_BREAK;
        return ERR_OK;
    case TPL_N_CONTINUE:
        *jump = TPL_CONTINUE;
        return ERR_OK;
    default:
        return err_set(c->info, ERR_INTERNAL, NULL, "not a statement");
    }
}

enum err tpl_exec(struct tpl_ctx *c, const struct tpl_nodes *body, enum tpl_jump *jump) {
    *jump = TPL_GO_ON;
    enum err e = tpl_enter(c);
    if (e)
        return e;
    for (size_t i = 0; !e && i < body->n && *jump == TPL_GO_ON; i++) {
        c->line = body->v[i]->line;
        e = tpl_step(c, 0);
        if (!e)
            e = exec_one(c, body->v[i], jump);
    }
    tpl_leave(c);
    return e;
}

// --- macros
// ----------------------------------------------------------------------------------------

static enum err new_macro(struct tpl_ctx *c, const struct tpl_node *n, struct tpl_val *out) {
    struct tpl_macro *m;
    enum err e = tpl_alloc(c, 1, sizeof *m, &m);
    if (e)
        return e;
    *m = (struct tpl_macro){.node = n, .outer = c->frame};
    *out = (struct tpl_val){.kind = TPL_MACRO, .u.macro = m};
    return ERR_OK;
}

enum err tpl_exec_macro(struct tpl_ctx *c, const struct tpl_node *n) {
    struct tpl_val m;
    enum err e = new_macro(c, n, &m);
    return e ? e : tpl_assign(c, n->u.def->target, &m);
}

enum err tpl_exec_call_block(struct tpl_ctx *c, const struct tpl_node *n) {
    const struct tpl_node *call = n->u.def->call;
    struct tpl_val callee, caller, result;
    struct tpl_args args;
    struct tpl_kwarg *kw;
    enum err e = new_macro(c, n, &caller);
    if (!e)
        e = tpl_eval(c, call->u.call.callee, &callee);
    if (!e)
        e = tpl_eval_args(c, &call->u.call.args, &args);
    if (!e)
        e = tpl_alloc(c, args.n_kw + 1, sizeof *kw, &kw);
    for (size_t i = 0; !e && i < args.n_kw; i++)
        kw[i] = args.kw[i];
    if (!e) {
        static const struct tpl_str name = {.p = "caller", .len = 6, .chars = 6};
        kw[args.n_kw++] = (struct tpl_kwarg){&name, caller};
        args.kw = kw;
        e = tpl_call_value(c, &callee, &args, &result);
    }
    if (e)
        return e;
    if (result.kind != TPL_STR)
        return tpl_fail(c, "a call block's call gave a %s, not a string", tpl_type_name(&result));
    return tpl_sb_str(c->out, result.u.s);
}

enum err tpl_exec_generation(struct tpl_ctx *c, const struct tpl_node *n) {
    const struct tpl_macro body = {.node = n, .outer = c->frame};
    const struct tpl_args none = {0};
    struct tpl_val text;
    enum err e = tpl_call_macro(c, &body, &none, &text);
    return e ? e : tpl_sb_str(c->out, text.u.s);
}

// Takes the keyword argument of that name out of `left`, or leaves *out absent.
static void take_keyword(struct tpl_args *left, const struct tpl_str *name, struct tpl_val *out) {
    *out = (struct tpl_val){.kind = TPL_ABSENT};
    for (size_t i = 0; i < left->n_kw; i++) {
        if (!tpl_str_same(left->kw[i].name, name))
            continue;
        *out = left->kw[i].val;
        left->n_kw--;
        for (; i < left->n_kw; i++)
            left->kw[i] = left->kw[i + 1];
    }
}

static enum err bind_hidden(struct tpl_ctx *c, const struct tpl_def *d, struct tpl_args *left,
                            struct tpl_frame *f) {
    static const struct tpl_str caller = {.p = "caller", .len = 6, .chars = 6};
    size_t slot = d->params.n;
    enum err e = ERR_OK;
    if (d->caller && !d->explicit_caller) {
        take_keyword(left, &caller, &f->slot[slot]);
        if (f->slot[slot].kind == TPL_ABSENT || f->slot[slot].kind == TPL_NONE)
            e = tpl_undef_hint(c, "No caller defined", &f->slot[slot]);
        slot++;
    }
    if (!e && d->kwargs) {
        struct tpl_dict *kw;
        e = tpl_dict_new(c, left->n_kw, &kw);
        for (size_t i = 0; !e && i < left->n_kw; i++) {
            const struct tpl_val key = tpl_str(left->kw[i].name);
            e = tpl_dict_set(c, kw, &key, &left->kw[i].val);
        }
        if (!e)
            f->slot[slot++] = tpl_dict(kw);
    } else if (!e && left->n_kw) {
        return tpl_fail(c, "macro '%.*s' takes no keyword argument '%.*s'",
                        d->name ? (int)d->name->len : 0, d->name ? d->name->p : "",
                        (int)(left->kw[0].name->len < 80 ? left->kw[0].name->len : 80),
                        left->kw[0].name->p);
    }
    size_t extra = left->n > d->params.n ? left->n - d->params.n : 0;
    if (!e && d->varargs) {
        struct tpl_list *l;
        e = tpl_list_new(c, extra, &l);
        for (size_t i = 0; !e && i < extra; i++)
            l->v[i] = left->v[d->params.n + i];
        if (!e)
            f->slot[slot] = tpl_tuple(l);
    } else if (!e && extra) {
        return tpl_fail(c, "macro '%.*s' takes not more than %zu argument(s)",
                        d->name ? (int)d->name->len : 0, d->name ? d->name->p : "", d->params.n);
    }
    return e;
}

// Defaults are evaluated in the macro's own frame, in order, so that they can use earlier
// parameters.
static enum err fill_defaults(struct tpl_ctx *c, const struct tpl_def *d, struct tpl_frame *f) {
    enum err e = ERR_OK;
    size_t first = d->params.n - d->defaults.n;
    for (size_t i = 0; !e && i < d->params.n; i++) {
        if (f->slot[i].kind != TPL_ABSENT)
            continue;
        if (i >= first)
            e = tpl_eval(c, d->defaults.v[i - first], &f->slot[i]);
        else
            e = tpl_undef_hint(c, "a macro's parameter was not provided", &f->slot[i]);
    }
    return e;
}

enum err tpl_call_macro(struct tpl_ctx *c, const struct tpl_macro *m, const struct tpl_args *args,
                        struct tpl_val *out) {
    const struct tpl_def *d = m->node->u.def;
    struct tpl_args left = *args;
    struct tpl_frame *f, *was = c->frame;
    enum tpl_jump jump;
    enum err e = tpl_enter(c);
    if (e)
        return e;
    if (args->n_kw) { // keywords are crossed off in a copy
        e = tpl_step(c, args->n_kw * d->params.n);
        if (!e)
            e = tpl_alloc(c, args->n_kw, sizeof *left.kw, &left.kw);
        for (size_t i = 0; !e && i < args->n_kw; i++)
            left.kw[i] = args->kw[i];
    }
    if (!e)
        e = tpl_frame_new(c, d->scope, m->outer, &f);
    for (size_t i = 0; !e && i < d->params.n; i++) {
        if (i < args->n)
            f->slot[i] = args->v[i];
        else
            take_keyword(&left, d->params.v[i]->u.name.name->text, &f->slot[i]);
    }
    if (!e)
        e = bind_hidden(c, d, &left, f);
    if (!e) {
        c->frame = f;
        e = fill_defaults(c, d, f);
        c->frame = was;
    }
    if (!e)
        e = capture(c, &d->body, f, &jump, out);
    tpl_leave(c);
    return e;
}

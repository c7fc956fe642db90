// SPDX-License-Identifier: Apache-2.0
// The for statement and the variable `loop`. Elements are pulled one by one, each just before its
// turn, so a loop's condition sees what the body has changed so far.
#include "model/template/builtins.h"
#include "model/template/eval.h"
#include <inttypes.h>
#include <stdio.h>

// The next element that passes the loop's condition.
static enum err pull(struct tpl_ctx *c, struct tpl_loop *l, struct tpl_val *out, bool *done) {
    for (;;) {
        enum err e = tpl_iter_next(c, l->it, out, done);
        if (e || *done || !l->filtered)
            return e;
        struct tpl_frame *was = c->frame;
        struct tpl_val test;
        c->frame = l->test_frame;
        e = tpl_assign(c, l->node->target, out);
        if (!e)
            e = tpl_eval(c, l->node->test, &test);
        c->frame = was;
        if (e || tpl_truth(&test))
            return e;
    }
}

static enum err step(struct tpl_ctx *c, struct tpl_loop *l, struct tpl_val *out, bool *done) {
    enum err e = ERR_OK;
    *done = false;
    if (l->after.kind != TPL_ABSENT) {
        *out = l->after;
        l->after.kind = TPL_ABSENT;
    } else {
        e = pull(c, l, out, done);
    }
    if (e || *done)
        return e;
    l->index0++;
    l->before = l->current;
    l->current = *out;
    return ERR_OK;
}

static enum err peek(struct tpl_ctx *c, struct tpl_loop *l) {
    bool done = false;
    if (l->after.kind != TPL_ABSENT)
        return ERR_OK;
    enum err e = pull(c, l, &l->after, &done);
    if (e || done)
        l->after.kind = TPL_ABSENT;
    return e;
}

static enum err length(struct tpl_ctx *c, struct tpl_loop *l) {
    size_t n;
    if (l->length >= 0)
        return ERR_OK;
    if (!l->filtered && tpl_len(&l->iterable, &n)) {
        l->length = (int64_t)n;
        return ERR_OK;
    }
    // What is left is read in advance and then iterated over as a list.
    struct tpl_list_builder b = {0};
    struct tpl_val v;
    bool done = false;
    enum err e = tpl_list_push(c, &b, NULL);
    while (!e && !done) {
        e = pull(c, l, &v, &done);
        if (!e && !done)
            e = tpl_list_push(c, &b, &v);
    }
    if (e)
        return e;
    l->length = (int64_t)b.list->n + l->index0 + 1 + (l->after.kind != TPL_ABSENT);
    l->filtered = false;
    v = tpl_list(b.list);
    return tpl_iter_open(c, &v, &l->it);
}

static enum err run_body(struct tpl_ctx *c, const struct tpl_for *node, struct tpl_loop *l,
                         struct tpl_frame *f, bool *completed, enum tpl_jump *jump) {
    struct tpl_val item;
    bool done = false;
    for (;;) {
        enum err e = step(c, l, &item, &done);
        if (e || done)
            return e;
        struct tpl_frame *was = c->frame;
        e = tpl_frame_load(c, node->scope, f);
        c->frame = f;
        if (!e)
            e = tpl_assign(c, node->target, &item);
        if (!e)
            e = tpl_exec(c, &node->body, jump);
        c->frame = was;
        if (e)
            return e;
        if (*jump == TPL_GO_ON)
            *completed = true;
        if (*jump == TPL_BREAK)
            break;
    }
    return ERR_OK;
}

static enum err run_else(struct tpl_ctx *c, const struct tpl_for *node, enum tpl_jump *jump) {
    struct tpl_frame *f, *was = c->frame;
    enum err e = tpl_frame_new(c, node->else_scope, c->frame, &f);
    if (e)
        return e;
    c->frame = f;
    e = tpl_exec(c, &node->otherwise, jump);
    c->frame = was;
    return e;
}

static enum err run(struct tpl_ctx *c, const struct tpl_for *node, const struct tpl_val *iterable,
                    int64_t depth0, enum tpl_jump *jump) {
    struct tpl_loop *l;
    struct tpl_frame *f;
    bool completed = false;
    enum err e = tpl_alloc(c, 1, sizeof *l, &l);
    if (e)
        return e;
    *l = (struct tpl_loop){.node = node,
                           .filtered = node->test != NULL,
                           .outer = c->frame,
                           .iterable = *iterable,
                           .index0 = -1,
                           .depth0 = depth0,
                           .length = -1};
    e = tpl_iter_open(c, iterable, &l->it);
    if (!e && node->test)
        e = tpl_frame_new(c, node->test_scope, c->frame, &l->test_frame);
    if (!e)
        e = tpl_frame_new(c, node->scope, c->frame, &f);
    if (e)
        return e;
    f->slot[0] = (struct tpl_val){.kind = TPL_LOOP, .u.loop = l};
    e = run_body(c, node, l, f, &completed, jump);
    *jump = TPL_GO_ON;
    // As in jinja2, a round that ends in break or continue does not count as one.
    if (!e && !completed && node->otherwise.n)
        e = run_else(c, node, jump);
    return e;
}

enum err tpl_exec_for(struct tpl_ctx *c, const struct tpl_node *n, enum tpl_jump *jump) {
    struct tpl_val iterable;
    enum err e = tpl_eval(c, n->u.loop->iter, &iterable);
    return e ? e : run(c, n->u.loop, &iterable, 0, jump);
}

enum err tpl_loop_call(struct tpl_ctx *c, struct tpl_loop *l, const struct tpl_args *args,
                       struct tpl_val *out) {
    if (!l->node->recursive)
        return tpl_fail(c, "The loop must have the 'recursive' marker to be called recursively.");
    if (args->n != 1 || args->n_kw)
        return tpl_fail(c, "loop() takes one argument");
    struct tpl_frame *was_frame = c->frame;
    struct tpl_sb b, *was_out = c->out;
    enum tpl_jump jump;
    enum err e = tpl_enter(c);
    if (e)
        return e;
    tpl_sb_init(&b, c);
    c->frame = l->outer;
    c->out = &b;
    e = run(c, l->node, &args->v[0], l->depth0 + 1, &jump);
    c->frame = was_frame;
    c->out = was_out;
    tpl_leave(c);
    return e ? e : tpl_sb_finish(&b, out);
}

enum err tpl_loop_repr(struct tpl_sb *b, struct tpl_loop *l) {
    char text[64];
    enum err e = length(b->c, l);
    if (e)
        return e;
    int n = snprintf(text, sizeof text, "<LoopContext %" PRId64 "/%" PRId64 ">", l->index0 + 1,
                     l->length);
    return tpl_sb_add(b, text, (size_t)n, false);
}

static enum err neighbour(struct tpl_ctx *c, struct tpl_loop *l, bool next, struct tpl_val *out) {
    enum err e = next ? peek(c, l) : ERR_OK;
    if (e)
        return e;
    *out = next ? l->after : l->before;
    if (next ? out->kind == TPL_ABSENT : l->index0 == 0)
        return tpl_undef_hint(c, next ? "there is no next item" : "there is no previous item", out);
    return ERR_OK;
}

enum err tpl_loop_attribute(struct tpl_ctx *c, struct tpl_loop *l, const struct tpl_str *name,
                            struct tpl_val *out, bool *found) {
    enum err e = ERR_OK;
    *found = true;
    if (tpl_str_is(name, "index")) {
        *out = tpl_int(l->index0 + 1);
    } else if (tpl_str_is(name, "index0")) {
        *out = tpl_int(l->index0);
    } else if (tpl_str_is(name, "first")) {
        *out = tpl_bool(l->index0 == 0);
    } else if (tpl_str_is(name, "last")) {
        e = peek(c, l);
        *out = tpl_bool(l->after.kind == TPL_ABSENT);
    } else if (tpl_str_is(name, "length")) {
        e = length(c, l);
        *out = tpl_int(l->length);
    } else if (tpl_str_is(name, "revindex")) {
        e = length(c, l);
        *out = tpl_int(l->length - l->index0);
    } else if (tpl_str_is(name, "revindex0")) {
        e = length(c, l);
        *out = tpl_int(l->length - l->index0 - 1);
    } else if (tpl_str_is(name, "previtem")) {
        e = neighbour(c, l, false, out);
    } else if (tpl_str_is(name, "nextitem")) {
        e = neighbour(c, l, true, out);
    } else if (tpl_str_is(name, "depth")) {
        *out = tpl_int(l->depth0 + 1);
    } else if (tpl_str_is(name, "depth0")) {
        *out = tpl_int(l->depth0);
    } else {
        *found = false;
    }
    return e;
}

static enum err loop_cycle(struct tpl_ctx *c, const struct tpl_call *call, struct tpl_val *out) {
    if (call->args->n == 0 || call->args->n_kw)
        return tpl_fail(c, "no items for cycling given");
    *out = call->args->v[(size_t)call->self.u.loop->index0 % call->args->n];
    return ERR_OK;
}

static enum err loop_changed(struct tpl_ctx *c, const struct tpl_call *call, struct tpl_val *out) {
    struct tpl_loop *l = call->self.u.loop;
    struct tpl_list *now;
    bool same = false;
    enum err e = tpl_list_new(c, call->args->n, &now);
    if (e)
        return e;
    for (size_t i = 0; i < now->n; i++)
        now->v[i] = call->args->v[i];
    const struct tpl_val v = tpl_tuple(now);
    if (l->changed.kind != TPL_ABSENT)
        e = tpl_equal(c, &l->changed, &v, &same);
    if (!same)
        l->changed = v;
    *out = tpl_bool(!same);
    return e;
}

const struct tpl_fn tpl_methods_loop[] = {
    {.name = "cycle", .call = loop_cycle, .flags = TPL_FN_RAW},
    {.name = "changed", .call = loop_changed, .flags = TPL_FN_RAW},
    {.name = NULL},
};

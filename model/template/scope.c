// SPDX-License-Identifier: Apache-2.0
// Which variable a name means is decided before rendering, by jinja2's rules: a scope is looked at
// as a whole first, so a name that is set anywhere in it belongs to it everywhere in it, also
// before the assignment and in the scopes inside. What such a variable holds on entry is its slot's
// load.
#include "model/template/parser.h"
#include "model/template/str.h"
#include <string.h>

struct tpl_binding {
    struct tpl_binding *shadowed; // the same name further out
    struct tpl_binding *next;     // in the same scope
    struct tpl_name *name;
    unsigned level, slot;
};
struct open_scope {
    struct open_scope *outer;
    struct tpl_scope *scope;
    struct tpl_binding *bindings;
    size_t cap;
    unsigned level;
    unsigned branch; // ifs of this scope that the walk is inside of
};
struct resolver {
    struct arena *a;
    struct err_info *info;
    enum err err;
    struct open_scope *cur;
    struct tpl_name *loop, *caller, *kwargs, *varargs;
};

static void collect(struct resolver *r, const struct tpl_node *n);
static void settle(struct resolver *r, struct tpl_node *n);

static void no_memory(struct resolver *r) {
    if (!r->err)
        r->err = err_set(r->info, ERR_NOMEM, NULL, "out of memory");
}

static void enter(struct resolver *r, struct open_scope *s) {
    *s = (struct open_scope){.outer = r->cur, .level = r->cur ? r->cur->level + 1 : 0};
    s->scope = arena_zalloc(r->a, sizeof *s->scope);
    r->cur = s;
    if (!s->scope)
        no_memory(r);
}

static struct tpl_scope *leave(struct resolver *r) {
    struct open_scope *s = r->cur;
    for (struct tpl_binding *b = s->bindings; b; b = b->next)
        b->name->top = b->shadowed;
    r->cur = s->outer;
    return s->scope;
}

static unsigned add_slot(struct resolver *r, struct tpl_slot slot) {
    struct open_scope *s = r->cur;
    if (r->err)
        return 0;
    if (s->scope->n == s->cap) {
        size_t cap = s->cap ? s->cap * 2 : 4;
        struct tpl_slot *v = arena_calloc(r->a, cap, sizeof *v);
        if (!v) {
            no_memory(r);
            return 0;
        }
        if (s->scope->n)
            memcpy(v, s->scope->slot, s->scope->n * sizeof *v);
        s->scope->slot = v;
        s->cap = cap;
    }
    s->scope->slot[s->scope->n] = slot;
    return (unsigned)s->scope->n++;
}

static void declare(struct resolver *r, struct tpl_name *name, struct tpl_slot slot) {
    struct tpl_binding *b = arena_zalloc(r->a, sizeof *b);
    if (!b) {
        no_memory(r);
        return;
    }
    slot.name = name;
    b->slot = add_slot(r, slot);
    b->name = name;
    b->level = r->cur->level;
    b->shadowed = name->top;
    b->next = r->cur->bindings;
    r->cur->bindings = b;
    name->top = b;
}

static bool is_own(const struct resolver *r, const struct tpl_name *name) {
    return name->top && name->top->level == r->cur->level;
}

static void note_load(struct resolver *r, struct tpl_name *name) {
    if (!name->top)
        declare(r, name, (struct tpl_slot){.load = TPL_LOAD_RESOLVE});
}

static void note_store(struct resolver *r, struct tpl_name *name) {
    if (is_own(r, name))
        return;
    if (name->top)
        declare(r, name,
                (struct tpl_slot){.load = TPL_LOAD_ALIAS,
                                  .hops = r->cur->level - name->top->level,
                                  .from = name->top->slot});
    else // set in some branches only: in the others it is what the caller gave
        declare(r, name,
                (struct tpl_slot){.load = r->cur->branch ? TPL_LOAD_RESOLVE : TPL_LOAD_UNSET});
}

static void note_param(struct resolver *r, struct tpl_name *name) {
    if (!is_own(r, name))
        declare(r, name, (struct tpl_slot){.load = TPL_LOAD_PARAM});
}

static void collect_all(struct resolver *r, const struct tpl_nodes *l) {
    for (size_t i = 0; i < l->n; i++)
        collect(r, l->v[i]);
}

static void collect_actuals(struct resolver *r, const struct tpl_actuals *a) {
    collect_all(r, &a->pos);
    for (size_t i = 0; i < a->n_kw; i++)
        collect(r, a->kw[i].value);
    collect(r, a->star);
    collect(r, a->star_star);
}

static void collect_target(struct resolver *r, const struct tpl_node *n, bool param) {
    if (n->kind == TPL_N_NSREF) {
        collect(r, n->u.attr.of);
    } else if (n->kind == TPL_N_TUPLE) {
        for (size_t i = 0; i < n->u.list.n; i++)
            collect_target(r, n->u.list.v[i], param);
    } else if (param) {
        note_param(r, n->u.name.name);
    } else {
        note_store(r, n->u.name.name);
    }
}

static void collect_if(struct resolver *r, const struct tpl_node *n) {
    for (size_t i = 0; i < n->u.branches.n; i++) {
        collect(r, n->u.branches.v[i].test);
        r->cur->branch++;
        collect_all(r, &n->u.branches.v[i].body);
        r->cur->branch--;
    }
}

static void collect_statement(struct resolver *r, const struct tpl_node *n) {
    switch (n->kind) {
    case TPL_N_OUTPUT:
        collect(r, n->u.bin.a);
        break;
    case TPL_N_IF:
        collect_if(r, n);
        break;
    case TPL_N_FOR:
        collect(r, n->u.loop->iter);
        break;
    case TPL_N_SET:
        collect(r, n->u.set.value);
        collect_target(r, n->u.set.target, false);
        break;
    case TPL_N_SET_BLOCK:
        collect_target(r, n->u.set.target, false);
        break;
    case TPL_N_MACRO:
        note_store(r, n->u.def->target->u.name.name);
        break;
    case TPL_N_CALL_BLOCK:
        collect(r, n->u.def->call);
        break;
    case TPL_N_FILTER_BLOCK:
        collect(r, n->u.block.filter);
        break;
    case TPL_N_WITH:
        for (size_t i = 1; i < n->u.block.pairs.n; i += 2)
            collect(r, n->u.block.pairs.v[i]);
        break;
    default:
        break;
    }
}

// Notes what a scope's own part of n reads and sets, in order; scopes inside are left alone.
static void collect(struct resolver *r, const struct tpl_node *n) {
    if (!n || r->err)
        return;
    switch (n->kind) {
    case TPL_N_NAME:
        note_load(r, n->u.name.name);
        break;
    case TPL_N_TUPLE:
    case TPL_N_LIST:
    case TPL_N_DICT:
    case TPL_N_CONCAT:
        collect_all(r, &n->u.list);
        break;
    case TPL_N_COND:
        collect(r, n->u.cond.test);
        collect(r, n->u.cond.yes);
        collect(r, n->u.cond.no);
        break;
    case TPL_N_OR:
    case TPL_N_AND:
    case TPL_N_NOT:
    case TPL_N_NEG:
    case TPL_N_POS:
    case TPL_N_BINARY:
    case TPL_N_ITEM:
        collect(r, n->u.bin.a);
        collect(r, n->u.bin.b);
        break;
    case TPL_N_COMPARE:
        collect(r, n->u.compare.first);
        for (size_t i = 0; i < n->u.compare.n; i++)
            collect(r, n->u.compare.rest[i].with);
        break;
    case TPL_N_ATTR:
        collect(r, n->u.attr.of);
        break;
    case TPL_N_SLICE:
        collect(r, n->u.slice.of);
        collect(r, n->u.slice.start);
        collect(r, n->u.slice.stop);
        collect(r, n->u.slice.step);
        break;
    case TPL_N_CALL:
        collect(r, n->u.call.callee);
        collect_actuals(r, &n->u.call.args);
        break;
    case TPL_N_FILTER:
    case TPL_N_TEST:
        collect(r, n->u.apply.of);
        collect_actuals(r, &n->u.apply.args);
        break;
    default:
        collect_statement(r, n);
        break;
    }
}

static void settle_all(struct resolver *r, const struct tpl_nodes *l) {
    for (size_t i = 0; i < l->n; i++)
        settle(r, l->v[i]);
}

static void settle_actuals(struct resolver *r, const struct tpl_actuals *a) {
    settle_all(r, &a->pos);
    for (size_t i = 0; i < a->n_kw; i++)
        settle(r, a->kw[i].value);
    settle(r, a->star);
    settle(r, a->star_star);
}

static void settle_target(struct resolver *r, struct tpl_node *n) {
    if (n->kind == TPL_N_NSREF)
        settle(r, n->u.attr.of);
    else
        settle(r, n); // a name, or a tuple of targets
}

static void settle_for(struct resolver *r, struct tpl_for *f) {
    struct open_scope s;
    settle(r, f->iter);
    if (f->test) { // its targets get the same slots as in the body's scope
        enter(r, &s);
        (void)add_slot(r, (struct tpl_slot){.load = TPL_LOAD_UNSET});
        collect_target(r, f->target, true);
        collect(r, f->test);
        settle(r, f->test);
        f->test_scope = leave(r);
    }
    enter(r, &s);
    if (f->uses_loop && r->loop)
        declare(r, r->loop, (struct tpl_slot){.load = TPL_LOAD_PARAM});
    else
        (void)add_slot(r, (struct tpl_slot){.load = TPL_LOAD_PARAM});
    collect_target(r, f->target, true);
    collect_all(r, &f->body);
    settle_target(r, f->target);
    settle_all(r, &f->body);
    f->scope = leave(r);
    if (f->otherwise.n) {
        enter(r, &s);
        collect_all(r, &f->otherwise);
        settle_all(r, &f->otherwise);
        f->else_scope = leave(r);
    }
}

static void settle_def(struct resolver *r, struct tpl_def *d, int line) {
    struct open_scope s;
    enter(r, &s);
    for (size_t i = 0; i < d->params.n && !r->err; i++) {
        note_param(r, d->params.v[i]->u.name.name);
        if (!r->err && s.scope->n != i + 1)
            r->err = err_set(r->info, ERR_TEMPLATE, NULL, "line %d: duplicate argument '%.*s'",
                             line, (int)d->params.v[i]->u.name.name->text->len,
                             d->params.v[i]->u.name.name->text->p);
    }
    if (d->caller && !d->explicit_caller)
        note_param(r, r->caller);
    if (d->kwargs)
        note_param(r, r->kwargs);
    if (d->varargs)
        note_param(r, r->varargs);
    collect_all(r, &d->defaults);
    collect_all(r, &d->body);
    settle_all(r, &d->params);
    settle_all(r, &d->defaults);
    settle_all(r, &d->body);
    d->scope = leave(r);
}

static void settle_statement(struct resolver *r, struct tpl_node *n) {
    struct open_scope s;
    switch (n->kind) {
    case TPL_N_OUTPUT:
        settle(r, n->u.bin.a);
        break;
    case TPL_N_IF:
        for (size_t i = 0; i < n->u.branches.n; i++) {
            settle(r, n->u.branches.v[i].test);
            settle_all(r, &n->u.branches.v[i].body);
        }
        break;
    case TPL_N_FOR:
        settle_for(r, n->u.loop);
        break;
    case TPL_N_SET:
        settle(r, n->u.set.value);
        settle_target(r, n->u.set.target);
        break;
    case TPL_N_SET_BLOCK:
        settle_target(r, n->u.set.target);
        enter(r, &s);
        collect_all(r, &n->u.set.body);
        collect(r, n->u.set.value);
        settle_all(r, &n->u.set.body);
        settle(r, n->u.set.value);
        n->u.set.scope = leave(r);
        break;
    case TPL_N_MACRO:
        settle(r, n->u.def->target);
        settle_def(r, n->u.def, n->line);
        break;
    case TPL_N_CALL_BLOCK:
        settle(r, n->u.def->call);
        settle_def(r, n->u.def, n->line);
        break;
    case TPL_N_GENERATION:
        settle_def(r, n->u.def, n->line);
        break;
    case TPL_N_FILTER_BLOCK:
        enter(r, &s);
        collect_all(r, &n->u.block.body);
        collect(r, n->u.block.filter);
        settle_all(r, &n->u.block.body);
        settle(r, n->u.block.filter);
        n->u.block.scope = leave(r);
        break;
    case TPL_N_WITH:
        for (size_t i = 1; i < n->u.block.pairs.n; i += 2)
            settle(r, n->u.block.pairs.v[i]);
        enter(r, &s);
        for (size_t i = 0; i < n->u.block.pairs.n; i += 2)
            collect_target(r, n->u.block.pairs.v[i], true);
        collect_all(r, &n->u.block.body);
        for (size_t i = 0; i < n->u.block.pairs.n; i += 2)
            settle_target(r, n->u.block.pairs.v[i]);
        settle_all(r, &n->u.block.body);
        n->u.block.scope = leave(r);
        break;
    default:
        break;
    }
}

// Gives the names of n their places, now that the current scope has been collected, and does the
// scopes inside.
static void settle(struct resolver *r, struct tpl_node *n) {
    if (!n || r->err)
        return;
    switch (n->kind) {
    case TPL_N_NAME:
        n->u.name.hops = r->cur->level - n->u.name.name->top->level;
        n->u.name.slot = n->u.name.name->top->slot;
        break;
    case TPL_N_TUPLE:
    case TPL_N_LIST:
    case TPL_N_DICT:
    case TPL_N_CONCAT:
        for (size_t i = 0; i < n->u.list.n; i++)
            settle_target(r, n->u.list.v[i]);
        break;
    case TPL_N_COND:
        settle(r, n->u.cond.test);
        settle(r, n->u.cond.yes);
        settle(r, n->u.cond.no);
        break;
    case TPL_N_OR:
    case TPL_N_AND:
    case TPL_N_NOT:
    case TPL_N_NEG:
    case TPL_N_POS:
    case TPL_N_BINARY:
    case TPL_N_ITEM:
        settle(r, n->u.bin.a);
        settle(r, n->u.bin.b);
        break;
    case TPL_N_COMPARE:
        settle(r, n->u.compare.first);
        for (size_t i = 0; i < n->u.compare.n; i++)
            settle(r, n->u.compare.rest[i].with);
        break;
    case TPL_N_ATTR:
        settle(r, n->u.attr.of);
        break;
    case TPL_N_SLICE:
        settle(r, n->u.slice.of);
        settle(r, n->u.slice.start);
        settle(r, n->u.slice.stop);
        settle(r, n->u.slice.step);
        break;
    case TPL_N_CALL:
        settle(r, n->u.call.callee);
        settle_actuals(r, &n->u.call.args);
        break;
    case TPL_N_FILTER:
    case TPL_N_TEST:
        settle(r, n->u.apply.of);
        settle_actuals(r, &n->u.apply.args);
        break;
    default:
        settle_statement(r, n);
        break;
    }
}

enum err tpl_resolve(struct chat_template *t, struct err_info *info) {
    struct resolver r = {.a = &t->arena, .info = info};
    struct open_scope s;
    const struct {
        const char *name;
        struct tpl_name **to;
    } special[] = {
        {"loop", &r.loop}, {"caller", &r.caller}, {"kwargs", &r.kwargs}, {"varargs", &r.varargs}};
    for (struct tpl_name *n = t->names; n; n = n->next) {
        for (size_t i = 0; i < sizeof special / sizeof *special; i++) {
            if (tpl_str_is(n->text, special[i].name))
                *special[i].to = n;
        }
    }
    enter(&r, &s);
    collect_all(&r, &t->body);
    settle_all(&r, &t->body);
    t->scope = leave(&r);
    return r.err;
}

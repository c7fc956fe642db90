// SPDX-License-Identifier: Apache-2.0
// The statement rules.
#include "model/template/parser.h"
#include "base/utf8.h"
#include "model/template/str.h"
#include <string.h>

static bool parse_body(struct tpl_parser *p, const char *const *ends, struct tpl_nodes *out);

static bool at_end_name(const struct tpl_parser *p, const char *const *ends) {
    for (; *ends; ends++) {
        if (tpl__is_name(tpl__peek(p), *ends))
            return true;
    }
    return false;
}

static struct tpl_node *parse_data(struct tpl_parser *p) {
    const struct tpl_token *t = tpl__peek(p);
    struct tpl_node *n = tpl__node(p, TPL_N_DATA, t->line);
    if (n)
        n->u.value = t->value;
    p->at++;
    return n;
}

static struct tpl_node *output_of(struct tpl_parser *p, struct tpl_node *value, int line) {
    struct tpl_node *n = value ? tpl__node(p, TPL_N_OUTPUT, line) : NULL;
    if (n)
        n->u.bin.a = value;
    return n;
}

static struct tpl_node *parse_if(struct tpl_parser *p, int line) {
    static const char *const ends[] = {"elif", "else", "endif", NULL}, *const last[] = {"endif",
                                                                                        NULL};
    struct tpl_node *n = tpl__node(p, TPL_N_IF, line);
    size_t cap = 0;
    bool soft = p->soft;
    if (!n)
        return NULL;
    p->soft = true;
    for (bool more = true; more;) {
        struct tpl_branch b = {0};
        bool is_else = n->u.branches.n > 0 && tpl__is_name(tpl__peek(p) - 1, "else");
        if (!is_else) {
            b.test = tpl__tuple(p, false, false);
            if (!b.test)
                return NULL;
        }
        if (!parse_body(p, is_else ? last : ends, &b.body))
            return NULL;
        if (n->u.branches.n == cap) {
            cap = cap ? cap * 2 : 2;
            struct tpl_branch *v = arena_calloc(p->a, cap, sizeof *v);
            if (!v)
                return tpl__no_memory(p);
            if (n->u.branches.n)
                memcpy(v, n->u.branches.v, n->u.branches.n * sizeof *v);
            n->u.branches.v = v;
        }
        n->u.branches.v[n->u.branches.n++] = b;
        more = !tpl__is_name(tpl__peek(p), "endif");
        p->at++;
    }
    p->soft = soft;
    return n;
}

// A body that is a scope of its own, so it starts outside of conditions again.
static bool parse_scope_body(struct tpl_parser *p, const char *const *ends, struct tpl_nodes *out) {
    bool soft = p->soft;
    p->soft = false;
    bool ok = parse_body(p, ends, out);
    p->soft = soft;
    return ok;
}

// The same, and reading `loop`, `caller` and so on in it is noted.
static bool parse_noted_body(struct tpl_parser *p, const char *const *ends, bool in_loop,
                             struct tpl_nodes *out, unsigned *used) {
    struct tpl_uses uses = {.outer = p->uses};
    bool was_in_loop = p->in_loop;
    p->uses = &uses;
    p->in_loop = in_loop;
    bool ok = parse_scope_body(p, ends, out);
    p->uses = uses.outer;
    p->in_loop = was_in_loop;
    *used = uses.used;
    return ok;
}

static struct tpl_node *parse_for(struct tpl_parser *p, int line) {
    static const char *const ends[] = {"endfor", "else", NULL}, *const last[] = {"endfor", NULL};
    struct tpl_node *n = tpl__node(p, TPL_N_FOR, line);
    struct tpl_for *f = arena_zalloc(p->a, sizeof *f);
    unsigned used;
    if (!n || !f)
        return tpl__no_memory(p);
    n->u.loop = f;
    p->for_depth++;
    f->target = tpl__target(p, false);
    if (!f->target)
        return NULL;
    if (!tpl__skip_name(p, "in"))
        return tpl__fail(p, tpl__peek(p)->line, "expected token 'in'");
    f->iter = tpl__tuple(p, false, false);
    if (!f->iter)
        return NULL;
    bool soft = p->soft;
    p->soft = false;
    if (tpl__skip_name(p, "if")) {
        f->test = tpl__expression(p, true);
        if (!f->test)
            return NULL;
    }
    p->soft = soft;
    f->recursive = tpl__skip_name(p, "recursive");
    if (!parse_noted_body(p, ends, true, &f->body, &used))
        return NULL;
    f->uses_loop = f->recursive || (used & TPL_USE_LOOP);
    bool otherwise = tpl__is_name(tpl__peek(p), "else");
    p->at++;
    if (otherwise) {
        if (!parse_scope_body(p, last, &f->otherwise))
            return NULL;
        p->at++;
    }
    p->for_depth--;
    return n;
}

static struct tpl_node *parse_set(struct tpl_parser *p, int line) {
    static const char *const ends[] = {"endset", NULL};
    struct tpl_node *n = tpl__node(p, TPL_N_SET, line);
    if (!n)
        return NULL;
    n->u.set.target = tpl__target(p, true);
    if (!n->u.set.target)
        return NULL;
    if (tpl__skip(p, TPL_T_ASSIGN)) {
        n->u.set.value = tpl__tuple(p, true, false);
        return n->u.set.value ? n : NULL;
    }
    bool soft = p->soft;
    p->soft = false;
    n->kind = TPL_N_SET_BLOCK;
    n->u.set.value = tpl__filters(p, NULL, false);
    if (p->err || !parse_body(p, ends, &n->u.set.body))
        return NULL;
    p->soft = soft;
    p->at++;
    return n;
}

static bool parse_signature(struct tpl_parser *p, struct tpl_def *d) {
    struct tpl_node_list params = {0}, defaults = {0};
    bool soft = p->soft;
    if (!tpl__expect(p, TPL_T_LPAREN))
        return false;
    p->soft = false;
    while (tpl__peek(p)->kind != TPL_T_RPAREN) {
        if (params.nodes.n && !tpl__expect(p, TPL_T_COMMA))
            return false;
        const struct tpl_token *t = tpl__peek(p);
        if (!tpl__expect(p, TPL_T_NAME))
            return false;
        struct tpl_node *name = tpl__name(p, t);
        if (!tpl__collect(p, &params, name))
            return false;
        tpl__note_store(p, name->u.name.name->text);
        if (tpl__is_name(t, "caller"))
            d->explicit_caller = true;
        if (tpl__skip(p, TPL_T_ASSIGN)) {
            if (!tpl__collect(p, &defaults, tpl__expression(p, true)))
                return false;
        } else if (defaults.nodes.n) {
            tpl__fail(p, t->line, "non-default argument follows default argument");
            return false;
        }
    }
    p->at++;
    p->soft = soft;
    d->params = params.nodes;
    d->defaults = defaults.nodes;
    return true;
}

static bool has_param(const struct tpl_def *d, const char *name, bool with_default) {
    for (size_t i = 0; i < d->params.n; i++) {
        if (tpl_str_is(d->params.v[i]->u.name.name->text, name))
            return !with_default || i >= d->params.n - d->defaults.n;
    }
    return false;
}

// The body of a macro, call block or generation block; `end` closes it.
static bool parse_def_body(struct tpl_parser *p, struct tpl_def *d, const char *end, int line) {
    const char *const ends[] = {end, NULL};
    unsigned used;
    if (!parse_noted_body(p, ends, false, &d->body, &used))
        return false;
    p->at++;
    d->caller = used & TPL_USE_CALLER;
    d->kwargs = (used & TPL_USE_KWARGS) && !has_param(d, "kwargs", false);
    d->varargs = (used & TPL_USE_VARARGS) && !has_param(d, "varargs", false);
    if (d->caller && d->explicit_caller && !has_param(d, "caller", true)) {
        tpl__fail(p, line, "the special \"caller\" argument must be omitted or be given a default");
        return false;
    }
    return true;
}

static struct tpl_def *new_def(struct tpl_parser *p, struct tpl_node *n) {
    struct tpl_def *d = arena_zalloc(p->a, sizeof *d);
    if (!n || !d)
        return tpl__no_memory(p);
    return n->u.def = d;
}

static struct tpl_node *parse_macro(struct tpl_parser *p, int line) {
    struct tpl_node *n = tpl__node(p, TPL_N_MACRO, line);
    struct tpl_def *d = new_def(p, n);
    const struct tpl_token *t = tpl__peek(p);
    if (!d || !tpl__expect(p, TPL_T_NAME))
        return NULL;
    d->target = tpl__name(p, t);
    if (!d->target)
        return NULL;
    d->name = d->target->u.name.name->text;
    if (!parse_signature(p, d) || !parse_def_body(p, d, "endmacro", line))
        return NULL;
    return n;
}

static struct tpl_node *parse_call_block(struct tpl_parser *p, int line) {
    struct tpl_node *n = tpl__node(p, TPL_N_CALL_BLOCK, line);
    struct tpl_def *d = new_def(p, n);
    if (!d || (tpl__peek(p)->kind == TPL_T_LPAREN && !parse_signature(p, d)))
        return NULL;
    d->call = tpl__expression(p, true);
    if (!d->call)
        return NULL;
    if (d->call->kind != TPL_N_CALL)
        return tpl__fail(p, line, "expected call");
    return parse_def_body(p, d, "endcall", line) ? n : NULL;
}

// transformers' marker for what the assistant wrote; its text is rendered as it is.
static struct tpl_node *parse_generation(struct tpl_parser *p, int line) {
    struct tpl_node *n = tpl__node(p, TPL_N_GENERATION, line);
    struct tpl_def *d = new_def(p, n);
    return d && parse_def_body(p, d, "endgeneration", line) ? n : NULL;
}

static struct tpl_node *parse_filter_block(struct tpl_parser *p, int line) {
    static const char *const ends[] = {"endfilter", NULL};
    struct tpl_node *n = tpl__node(p, TPL_N_FILTER_BLOCK, line);
    if (!n)
        return NULL;
    bool soft = p->soft;
    p->soft = false;
    n->u.block.filter = tpl__filters(p, NULL, true);
    if (!n->u.block.filter || !parse_body(p, ends, &n->u.block.body))
        return NULL;
    p->soft = soft;
    p->at++;
    return n;
}

static struct tpl_node *parse_with(struct tpl_parser *p, int line) {
    static const char *const ends[] = {"endwith", NULL};
    struct tpl_node *n = tpl__node(p, TPL_N_WITH, line);
    struct tpl_node_list pairs = {0};
    while (n && tpl__peek(p)->kind != TPL_T_BLOCK_END && tpl__peek(p)->kind != TPL_T_COLON) {
        if (pairs.nodes.n && !tpl__expect(p, TPL_T_COMMA))
            return NULL;
        if (!tpl__collect(p, &pairs, tpl__target(p, false)) || !tpl__expect(p, TPL_T_ASSIGN) ||
            !tpl__collect(p, &pairs, tpl__expression(p, true)))
            return NULL;
    }
    if (!n || !parse_scope_body(p, ends, &n->u.block.body))
        return NULL;
    n->u.block.pairs = pairs.nodes;
    p->at++;
    return n;
}

static struct tpl_node *parse_print(struct tpl_parser *p, int line) {
    struct tpl_node *n = tpl__node(p, TPL_N_IF, line); // a body without a test: prints one by one
    struct tpl_node_list out = {0};
    while (n && tpl__peek(p)->kind != TPL_T_BLOCK_END) {
        if (out.nodes.n && !tpl__expect(p, TPL_T_COMMA))
            return NULL;
        if (!tpl__collect(p, &out, output_of(p, tpl__expression(p, true), line)))
            return NULL;
    }
    if (!n)
        return NULL;
    n->u.branches.v = arena_zalloc(p->a, sizeof *n->u.branches.v);
    if (!n->u.branches.v)
        return tpl__no_memory(p);
    n->u.branches.n = 1;
    n->u.branches.v[0].body = out.nodes;
    return n;
}

static struct tpl_node *parse_jump(struct tpl_parser *p, enum tpl_node_kind kind, int line) {
    if (!p->in_loop)
        return tpl__fail(p, line, "'%s' outside loop", kind == TPL_N_BREAK ? "break" : "continue");
    return tpl__node(p, kind, line);
}

static struct tpl_node *unknown_tag(struct tpl_parser *p, const struct tpl_token *t,
                                    const char *const *ends) {
    static const char *const known[] = {"block",      "extends", "include", "import", "from",
                                        "autoescape", "do",      "trans",   NULL};
    for (size_t i = 0; known[i]; i++) {
        if (tpl__is_name(t, known[i]))
            return tpl__fail(p, t->line, "the tag '%s' is not supported in a chat template",
                             known[i]);
    }
    if (ends && ends[0])
        return tpl__fail(p, t->line, "Encountered unknown tag '%.*s'; looking for '%s'",
                         (int)(t->len < 40 ? t->len : 40), t->p, ends[0]);
    return tpl__fail(p, t->line, "Encountered unknown tag '%.*s'", (int)(t->len < 40 ? t->len : 40),
                     t->p);
}

static struct tpl_node *parse_statement(struct tpl_parser *p, const char *const *ends) {
    static const struct {
        const char *name;
        struct tpl_node *(*rule)(struct tpl_parser *, int);
    } rules[] = {{"for", parse_for},
                 {"if", parse_if},
                 {"print", parse_print},
                 {"set", parse_set},
                 {"macro", parse_macro},
                 {"call", parse_call_block},
                 {"generation", parse_generation},
                 {"filter", parse_filter_block},
                 {"with", parse_with}};
    const struct tpl_token *t = tpl__peek(p);
    if (t->kind != TPL_T_NAME)
        return tpl__fail(p, t->line, "tag name expected");
    p->at++;
    if (tpl__is_name(t, "break"))
        return parse_jump(p, TPL_N_BREAK, t->line);
    if (tpl__is_name(t, "continue"))
        return parse_jump(p, TPL_N_CONTINUE, t->line);
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++) {
        if (tpl__is_name(t, rules[i].name))
            return rules[i].rule(p, t->line);
    }
    return unknown_tag(p, t, ends);
}

// Text, prints and statements up to a tag named in `ends` (NULL: the template's end); the cursor is
// then on that name.
static bool parse_items(struct tpl_parser *p, const char *const *ends, struct tpl_nodes *out) {
    struct tpl_node_list l = {0};
    for (;;) {
        const struct tpl_token *t = tpl__peek(p);
        struct tpl_node *n;
        if (t->kind == TPL_T_EOF) {
            if (ends)
                tpl__fail(p, t->line, "Unexpected end of template. Looking for '%s'.", ends[0]);
            break;
        }
        if (t->kind == TPL_T_DATA) {
            n = parse_data(p);
        } else if (t->kind == TPL_T_VAR_BEGIN) {
            p->at++;
            n = output_of(p, tpl__tuple(p, true, false), t->line);
            if (n && !tpl__expect(p, TPL_T_VAR_END))
                return false;
        } else {
            p->at++;
            if (ends && at_end_name(p, ends))
                break;
            n = parse_statement(p, ends);
            if (n && !tpl__expect(p, TPL_T_BLOCK_END))
                return false;
        }
        if (!tpl__collect(p, &l, n))
            return false;
    }
    *out = l.nodes;
    return !p->err;
}

static bool parse_body(struct tpl_parser *p, const char *const *ends, struct tpl_nodes *out) {
    (void)tpl__skip(p, TPL_T_COLON);
    if (!tpl__expect(p, TPL_T_BLOCK_END) || !tpl__down(p))
        return false;
    bool ok = parse_items(p, ends, out);
    tpl__up(p);
    return ok;
}

static void keep_names(struct tpl_parser *p) {
    for (size_t i = 0; i < TPL_NAME_BUCKETS; i++) {
        for (struct tpl_name *n = p->bucket[i], *next; n; n = next) {
            next = n->next;
            n->next = p->t->names;
            p->t->names = n;
        }
    }
}

static enum err parse_all(struct tpl_parser *p) {
    if (!parse_items(p, NULL, &p->t->body))
        return p->err ? p->err : err_set(p->info, ERR_INTERNAL, NULL, "no reason was given");
    if (p->unknown.nodes.n) {
        const struct tpl_node *n = p->unknown.nodes.v[0];
        const struct tpl_str *s = n->u.apply.name;
        tpl__fail(p, n->line, "No %s named '%.*s'.", n->kind == TPL_N_FILTER ? "filter" : "test",
                  (int)(s->len < 80 ? s->len : 80), s->p);
        return p->err;
    }
    keep_names(p);
    return tpl_resolve(p->t, p->info);
}

enum err tpl_parse(struct chat_template *t, const char *text, size_t len, struct err_info *info) {
    struct tpl_parser p = {.t = t, .a = &t->arena, .info = info};
    struct arena scratch; // what only parsing needs
    if (!utf8_valid(text, len))
        return err_set(info, ERR_TEMPLATE, NULL, "the template is not valid UTF-8");
    enum err e = hash_key_random(&p.key);
    if (e)
        return err_set(info, e, NULL, "no random key for hashing");
    arena_init(&scratch, t->arena.max);
    p.bucket = arena_calloc(&scratch, TPL_NAME_BUCKETS, sizeof(struct tpl_name *));
    if (!p.bucket)
        return err_set(info, ERR_NOMEM, NULL, "out of memory");
    e = tpl_lex(p.a, &scratch, text, len, &p.tokens, info);
    if (!e)
        e = parse_all(&p);
    arena_fini(&scratch);
    return e;
}

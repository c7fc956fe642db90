// SPDX-License-Identifier: Apache-2.0
// What all rules use: the cursor, errors, nodes, names.
#include "model/template/parser.h"
#include "model/template/str.h"
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

const struct tpl_token *tpl__peek(const struct tpl_parser *p) {
    return &p->tokens.v[p->at];
}

bool tpl__is_name(const struct tpl_token *t, const char *name) {
    return t->kind == TPL_T_NAME && strlen(name) == t->len && memcmp(t->p, name, t->len) == 0;
}

bool tpl__skip(struct tpl_parser *p, enum tpl_tok kind) {
    if (tpl__peek(p)->kind != kind || kind == TPL_T_EOF)
        return false;
    p->at++;
    return true;
}

bool tpl__skip_name(struct tpl_parser *p, const char *name) {
    if (!tpl__is_name(tpl__peek(p), name))
        return false;
    p->at++;
    return true;
}

static const char *token_text(enum tpl_tok kind) {
    static const char *const text[] = {
        [TPL_T_EOF] = "end of template",
        [TPL_T_DATA] = "template text",
        [TPL_T_VAR_BEGIN] = "begin of print statement",
        [TPL_T_VAR_END] = "end of print statement",
        [TPL_T_BLOCK_BEGIN] = "begin of statement block",
        [TPL_T_BLOCK_END] = "end of statement block",
        [TPL_T_NAME] = "name",
        [TPL_T_RBRACKET] = "]",
        [TPL_T_LPAREN] = "(",
        [TPL_T_RPAREN] = ")",
        [TPL_T_ASSIGN] = "=",
        [TPL_T_COLON] = ":",
        [TPL_T_COMMA] = ",",
    };
    return (size_t)kind < sizeof text / sizeof *text && text[kind] ? text[kind] : "token";
}

bool tpl__expect(struct tpl_parser *p, enum tpl_tok kind) {
    const struct tpl_token *t = tpl__peek(p);
    if (tpl__skip(p, kind))
        return true;
    if (t->kind == TPL_T_EOF)
        tpl__fail(p, t->line, "unexpected end of template, expected '%s'", token_text(kind));
    else if (t->len && t->kind != TPL_T_DATA)
        tpl__fail(p, t->line, "expected token '%s', got '%.*s'", token_text(kind),
                  (int)(t->len < 40 ? t->len : 40), t->p);
    else
        tpl__fail(p, t->line, "expected token '%s', got '%s'", token_text(kind),
                  token_text(t->kind));
    return false;
}

void *tpl__fail(struct tpl_parser *p, int line, const char *fmt, ...) {
    char text[256];
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    if (!p->err)
        p->err = err_set(p->info, ERR_TEMPLATE, NULL, "line %d: %s", line, text);
    return NULL;
}

void *tpl__no_memory(struct tpl_parser *p) {
    if (!p->err)
        p->err = err_set(p->info, ERR_NOMEM, NULL, "out of memory");
    return NULL;
}

bool tpl__down(struct tpl_parser *p) {
    if (++p->nest <= TPL_MAX_NEST)
        return true;
    tpl__fail(p, tpl__peek(p)->line, "nested over %d deep", TPL_MAX_NEST);
    return false;
}

void tpl__up(struct tpl_parser *p) {
    p->nest--;
}

struct tpl_node *tpl__node(struct tpl_parser *p, enum tpl_node_kind kind, int line) {
    struct tpl_node *n = arena_zalloc(p->a, sizeof *n);
    if (!n)
        return tpl__no_memory(p);
    n->kind = kind;
    n->line = line;
    n->depth = 1;
    return n;
}

bool tpl__above(struct tpl_parser *p, struct tpl_node *node, const struct tpl_node *child) {
    if (!child)
        return false;
    if (node->depth <= child->depth)
        node->depth = child->depth + 1;
    if (node->depth <= TPL_MAX_TREE)
        return true;
    tpl__fail(p, node->line, "an expression is over %d operations deep", TPL_MAX_TREE);
    return false;
}

bool tpl__collect(struct tpl_parser *p, struct tpl_node_list *l, struct tpl_node *n) {
    if (!n)
        return false;
    if (l->nodes.n == l->cap) {
        size_t cap = l->cap ? l->cap * 2 : 4;
        struct tpl_node **v = arena_calloc(p->a, cap, sizeof(struct tpl_node *));
        if (!v)
            return tpl__no_memory(p) != NULL;
        if (l->nodes.n)
            memcpy(v, l->nodes.v, l->nodes.n * sizeof(struct tpl_node *));
        l->nodes.v = v;
        l->cap = cap;
    }
    l->nodes.v[l->nodes.n++] = n;
    return true;
}

// One struct per distinct name, found by hash: a template has at most some thousand.
static struct tpl_name *intern(struct tpl_parser *p, const char *text, size_t len) {
    struct tpl_name **bucket = &p->bucket[hash_bytes(&p->key, text, len) % TPL_NAME_BUCKETS];
    for (struct tpl_name *n = *bucket; n; n = n->next) {
        if (n->text->len == len && memcmp(n->text->p, text, len) == 0)
            return n;
    }
    struct tpl_name *n = arena_zalloc(p->a, sizeof *n);
    struct tpl_str *s = tpl_str_const(p->a, text, len);
    if (!n || !s)
        return tpl__no_memory(p);
    n->text = s;
    n->undef.name = s;
    n->global = tpl_find_global(text, len);
    n->next = *bucket;
    *bucket = n;
    return n;
}

const struct tpl_str *tpl__text(struct tpl_parser *p, const struct tpl_token *t) {
    struct tpl_name *n = intern(p, t->p, t->len);
    return n ? n->text : NULL;
}

static unsigned special_use(const char *name, size_t len) {
    static const struct {
        const char *name;
        unsigned use;
    } table[] = {{"loop", TPL_USE_LOOP},
                 {"caller", TPL_USE_CALLER},
                 {"kwargs", TPL_USE_KWARGS},
                 {"varargs", TPL_USE_VARARGS}};
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        if (strlen(table[i].name) == len && memcmp(table[i].name, name, len) == 0)
            return table[i].use;
    }
    return 0;
}

void tpl__note_load(struct tpl_parser *p, const struct tpl_str *name) {
    unsigned use = special_use(name->p, name->len);
    for (struct tpl_uses *u = p->uses; use && u; u = u->outer)
        u->used |= use & ~u->set;
}

void tpl__note_store(struct tpl_parser *p, const struct tpl_str *name) {
    unsigned use = special_use(name->p, name->len);
    for (struct tpl_uses *u = p->uses; use && u; u = u->outer)
        u->set |= use & ~u->used;
}

struct tpl_node *tpl__name(struct tpl_parser *p, const struct tpl_token *t) {
    struct tpl_node *n = tpl__node(p, TPL_N_NAME, t->line);
    if (!n)
        return NULL;
    n->u.name.name = intern(p, t->p, t->len);
    return n->u.name.name ? n : NULL;
}

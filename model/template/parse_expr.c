// SPDX-License-Identifier: Apache-2.0
// The expression rules from ** up to the conditional expression, tuples, and assignment targets.
#include "model/template/parser.h"
#include "model/template/str.h"
#include <string.h>

static struct tpl_node *parse_or(struct tpl_parser *p);

static struct tpl_node *parse_pow(struct tpl_parser *p) {
    int line = tpl__peek(p)->line;
    struct tpl_node *n = tpl__unary(p, true);
    while (n && tpl__skip(p, TPL_T_POW)) // from left to right, as jinja2 does it
        n = tpl__binary(p, TPL_N_BINARY, '^', line, n, tpl__unary(p, true));
    return n;
}

static struct tpl_node *parse_product(struct tpl_parser *p) {
    struct tpl_node *n = parse_pow(p);
    while (n) {
        const struct tpl_token *t = tpl__peek(p);
        char op = t->kind == TPL_T_MUL        ? '*'
                  : t->kind == TPL_T_DIV      ? '/'
                  : t->kind == TPL_T_FLOORDIV ? 'f'
                  : t->kind == TPL_T_MOD      ? '%'
                                              : '\0';
        if (!op)
            break;
        p->at++;
        n = tpl__binary(p, TPL_N_BINARY, op, t->line, n, parse_pow(p));
    }
    return n;
}

static struct tpl_node *parse_concat(struct tpl_parser *p) {
    int line = tpl__peek(p)->line;
    struct tpl_node *n = parse_product(p);
    struct tpl_node_list l = {0};
    if (!n || tpl__peek(p)->kind != TPL_T_TILDE)
        return n;
    if (!tpl__collect(p, &l, n))
        return NULL;
    while (tpl__skip(p, TPL_T_TILDE)) {
        if (!tpl__collect(p, &l, parse_product(p)))
            return NULL;
    }
    return tpl__list_node(p, TPL_N_CONCAT, line, &l);
}

static struct tpl_node *parse_sum(struct tpl_parser *p) {
    struct tpl_node *n = parse_concat(p);
    while (n) {
        const struct tpl_token *t = tpl__peek(p);
        if (t->kind != TPL_T_ADD && t->kind != TPL_T_SUB)
            break;
        p->at++;
        n = tpl__binary(p, TPL_N_BINARY, t->kind == TPL_T_ADD ? '+' : '-', t->line, n,
                        parse_concat(p));
    }
    return n;
}

// The comparison operator at the cursor, which moves behind it.
static bool skip_comparison(struct tpl_parser *p, enum tpl_cmp *op) {
    static const struct {
        enum tpl_tok kind;
        enum tpl_cmp op;
    } table[] = {{TPL_T_EQ, TPL_EQ}, {TPL_T_NE, TPL_NE}, {TPL_T_LT, TPL_LT},
                 {TPL_T_LE, TPL_LE}, {TPL_T_GT, TPL_GT}, {TPL_T_GE, TPL_GE}};
    const struct tpl_token *t = tpl__peek(p);
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        if (t->kind == table[i].kind) {
            p->at++;
            *op = table[i].op;
            return true;
        }
    }
    if (tpl__skip_name(p, "in")) {
        *op = TPL_IN;
        return true;
    }
    if (tpl__is_name(t, "not") && tpl__is_name(t + 1, "in")) {
        p->at += 2;
        *op = TPL_NOT_IN;
        return true;
    }
    return false;
}

static struct tpl_node *parse_compare(struct tpl_parser *p) {
    int line = tpl__peek(p)->line;
    struct tpl_node *first = parse_sum(p), *n = NULL;
    size_t cap = 0;
    enum tpl_cmp op;
    while (first && skip_comparison(p, &op)) {
        if (!n) {
            n = tpl__node(p, TPL_N_COMPARE, line);
            if (!n || !tpl__above(p, n, first))
                return NULL;
            n->u.compare.first = first;
        }
        struct tpl_node *with = parse_sum(p);
        if (!with || !tpl__above(p, n, with))
            return NULL;
        if (n->u.compare.n == cap) {
            cap = cap ? cap * 2 : 1;
            struct tpl_comparison *grown = arena_calloc(p->a, cap, sizeof *grown);
            if (!grown)
                return tpl__no_memory(p);
            if (n->u.compare.n)
                memcpy(grown, n->u.compare.rest, n->u.compare.n * sizeof *grown);
            n->u.compare.rest = grown;
        }
        n->u.compare.rest[n->u.compare.n++] = (struct tpl_comparison){op, with};
    }
    return n ? n : first;
}

static struct tpl_node *parse_not(struct tpl_parser *p) {
    int line = tpl__peek(p)->line;
    if (!tpl__is_name(tpl__peek(p), "not"))
        return parse_compare(p);
    if (!tpl__down(p))
        return NULL;
    p->at++;
    struct tpl_node *n = tpl__unary_node(p, TPL_N_NOT, '!', line, parse_not(p));
    tpl__up(p);
    return n;
}

static struct tpl_node *parse_and(struct tpl_parser *p) {
    struct tpl_node *n = parse_not(p);
    int line = tpl__peek(p)->line;
    while (n && tpl__skip_name(p, "and"))
        n = tpl__binary(p, TPL_N_AND, '&', line, n, parse_not(p));
    return n;
}

static struct tpl_node *parse_or(struct tpl_parser *p) {
    struct tpl_node *n = parse_and(p);
    int line = tpl__peek(p)->line;
    while (n && tpl__skip_name(p, "or"))
        n = tpl__binary(p, TPL_N_OR, '|', line, n, parse_and(p));
    return n;
}

static struct tpl_node *make_cond(struct tpl_parser *p, int line, struct tpl_node *test,
                                  struct tpl_node *yes, struct tpl_node *no) {
    struct tpl_node *n = tpl__node(p, TPL_N_COND, line);
    struct tpl_undef *undef = arena_zalloc(p->a, sizeof *undef);
    if (!n || !undef)
        return tpl__no_memory(p);
    if (!tpl__above(p, n, test) || !tpl__above(p, n, yes) || (no && !tpl__above(p, n, no)))
        return NULL;
    undef->hint = "the inline if-expression evaluated to false and no else section was defined.";
    n->u.cond.test = test;
    n->u.cond.yes = yes;
    n->u.cond.no = no;
    n->u.cond.undef = undef;
    return n;
}

static struct tpl_node *parse_cond(struct tpl_parser *p) {
    int line = tpl__peek(p)->line;
    size_t unknown = p->unknown.nodes.n;
    struct tpl_node *n = parse_or(p);
    while (n && tpl__skip_name(p, "if")) {
        struct tpl_node *test = parse_or(p), *no = NULL;
        if (!test)
            return NULL;
        if (tpl__skip_name(p, "else")) {
            no = tpl__expression(p, true);
            if (!no)
                return NULL;
        }
        n = make_cond(p, line, test, n, no);
        p->unknown.nodes.n = unknown;
    }
    return n;
}

struct tpl_node *tpl__expression(struct tpl_parser *p, bool with_cond) {
    if (!tpl__down(p))
        return NULL;
    struct tpl_node *n = with_cond ? parse_cond(p) : parse_or(p);
    tpl__up(p);
    return n;
}

static bool ends_tuple(const struct tpl_parser *p) {
    enum tpl_tok next = tpl__peek(p)->kind;
    return next == TPL_T_VAR_END || next == TPL_T_BLOCK_END || next == TPL_T_RPAREN;
}

enum part { PART_EXPRESSION, PART_NO_COND, PART_TARGET, PART_NS_TARGET };

static struct tpl_node *parse_part(struct tpl_parser *p, enum part part) {
    if (part == PART_TARGET || part == PART_NS_TARGET)
        return tpl__primary(p, part == PART_NS_TARGET);
    return tpl__expression(p, part == PART_EXPRESSION);
}

static struct tpl_node *tuple_of(struct tpl_parser *p, enum part part, bool parentheses) {
    struct tpl_node_list l = {0};
    bool is_tuple = false;
    int line = tpl__peek(p)->line;
    while (!ends_tuple(p)) {
        if (!tpl__collect(p, &l, parse_part(p, part)))
            return NULL;
        if (!tpl__skip(p, TPL_T_COMMA))
            break;
        is_tuple = true;
    }
    if (!is_tuple && l.nodes.n)
        return l.nodes.v[0];
    if (!is_tuple && !parentheses)
        return tpl__fail(p, line, "Expected an expression, got '%.*s'", (int)tpl__peek(p)->len,
                         tpl__peek(p)->p);
    return tpl__list_node(p, TPL_N_TUPLE, line, &l);
}

struct tpl_node *tpl__tuple(struct tpl_parser *p, bool with_cond, bool parentheses) {
    return tuple_of(p, with_cond ? PART_EXPRESSION : PART_NO_COND, parentheses);
}

static bool assignable(struct tpl_parser *p, const struct tpl_node *n) {
    switch (n->kind) {
    case TPL_N_NAME:
        tpl__note_store(p, n->u.name.name->text);
        if (p->for_depth && tpl_str_is(n->u.name.name->text, "loop")) {
            tpl__fail(p, n->line, "Can't assign to special loop variable in for-loop target");
            return false;
        }
        return true;
    case TPL_N_NSREF:
        return true;
    case TPL_N_TUPLE:
        for (size_t i = 0; i < n->u.list.n; i++) {
            if (!assignable(p, n->u.list.v[i]))
                return false;
        }
        return true;
    default:
        tpl__fail(p, n->line, "can't assign to this expression");
        return false;
    }
}

struct tpl_node *tpl__target(struct tpl_parser *p, bool with_namespace) {
    p->in_target = true;
    struct tpl_node *n = tuple_of(p, with_namespace ? PART_NS_TARGET : PART_TARGET, false);
    p->in_target = false;
    return n && assignable(p, n) ? n : NULL;
}

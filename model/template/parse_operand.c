// SPDX-License-Identifier: Apache-2.0
// The expression rules that bind tightest: literals, names, members, calls, filters, tests, signs.
#include "model/template/parser.h"
#include "model/template/str.h"
#include <string.h>

static struct tpl_node *parse_postfix(struct tpl_parser *p, struct tpl_node *n);

struct tpl_node *tpl__binary(struct tpl_parser *p, enum tpl_node_kind kind, char op, int line,
                             struct tpl_node *a, struct tpl_node *b) {
    struct tpl_node *n = a && b ? tpl__node(p, kind, line) : NULL;
    if (!n || !tpl__above(p, n, a) || !tpl__above(p, n, b))
        return NULL;
    n->u.bin.op = op;
    n->u.bin.a = a;
    n->u.bin.b = b;
    return n;
}

struct tpl_node *tpl__unary_node(struct tpl_parser *p, enum tpl_node_kind kind, char op, int line,
                                 struct tpl_node *a) {
    struct tpl_node *n = a ? tpl__node(p, kind, line) : NULL;
    if (!n || !tpl__above(p, n, a))
        return NULL;
    n->u.bin.op = op;
    n->u.bin.a = a;
    return n;
}

static struct tpl_node *make_const(struct tpl_parser *p, struct tpl_val v, int line) {
    struct tpl_node *n = tpl__node(p, TPL_N_CONST, line);
    if (n)
        n->u.value = v;
    return n;
}

struct tpl_node *tpl__list_node(struct tpl_parser *p, enum tpl_node_kind kind, int line,
                                const struct tpl_node_list *l) {
    struct tpl_node *n = tpl__node(p, kind, line);
    for (size_t i = 0; n && i < l->nodes.n; i++) {
        if (!tpl__above(p, n, l->nodes.v[i]))
            return NULL;
    }
    if (n)
        n->u.list = l->nodes;
    return n;
}

static struct tpl_node *parse_list(struct tpl_parser *p, int line) {
    struct tpl_node_list l = {0};
    while (tpl__peek(p)->kind != TPL_T_RBRACKET) {
        if (l.nodes.n && !tpl__expect(p, TPL_T_COMMA))
            return NULL;
        if (tpl__peek(p)->kind == TPL_T_RBRACKET)
            break;
        if (!tpl__collect(p, &l, tpl__expression(p, true)))
            return NULL;
    }
    p->at++;
    return tpl__list_node(p, TPL_N_LIST, line, &l);
}

static struct tpl_node *parse_dict(struct tpl_parser *p, int line) {
    struct tpl_node_list l = {0};
    while (tpl__peek(p)->kind != TPL_T_RBRACE) {
        if (l.nodes.n && !tpl__expect(p, TPL_T_COMMA))
            return NULL;
        if (tpl__peek(p)->kind == TPL_T_RBRACE)
            break;
        if (!tpl__collect(p, &l, tpl__expression(p, true)) || !tpl__expect(p, TPL_T_COLON) ||
            !tpl__collect(p, &l, tpl__expression(p, true)))
            return NULL;
    }
    p->at++;
    return tpl__list_node(p, TPL_N_DICT, line, &l);
}

static struct tpl_node *parse_name(struct tpl_parser *p, bool with_namespace) {
    const struct tpl_token *t = tpl__peek(p);
    p->at++;
    if (tpl__is_name(t, "true") || tpl__is_name(t, "True"))
        return make_const(p, tpl_bool(true), t->line);
    if (tpl__is_name(t, "false") || tpl__is_name(t, "False"))
        return make_const(p, tpl_bool(false), t->line);
    if (tpl__is_name(t, "none") || tpl__is_name(t, "None"))
        return make_const(p, tpl_none(), t->line);
    struct tpl_node *name = tpl__name(p, t);
    if (name && !p->in_target)
        tpl__note_load(p, name->u.name.name->text);
    if (!name || !with_namespace || !tpl__skip(p, TPL_T_DOT))
        return name;
    const struct tpl_token *attr = tpl__peek(p);
    if (!tpl__expect(p, TPL_T_NAME))
        return NULL;
    struct tpl_node *n = tpl__node(p, TPL_N_NSREF, t->line);
    if (!n)
        return NULL;
    n->u.attr.of = name;
    n->u.attr.name = tpl__text(p, attr);
    return n->u.attr.name ? n : NULL;
}

// Neighbouring string literals are one.
static struct tpl_node *parse_string(struct tpl_parser *p) {
    const struct tpl_token *t = tpl__peek(p);
    size_t n = 0, at = 0;
    for (size_t i = p->at; p->tokens.v[i].kind == TPL_T_STRING; i++)
        n += p->tokens.v[i].value.u.s->len;
    if (p->tokens.v[p->at + 1].kind != TPL_T_STRING) {
        p->at++;
        return make_const(p, t->value, t->line);
    }
    char *joined = arena_alloc(p->a, n + 1);
    if (!joined)
        return tpl__no_memory(p);
    for (; tpl__peek(p)->kind == TPL_T_STRING; p->at++) {
        const struct tpl_str *s = tpl__peek(p)->value.u.s;
        memcpy(joined + at, s->p, s->len);
        at += s->len;
    }
    struct tpl_str *s = tpl_str_const(p->a, joined, n);
    return s ? make_const(p, tpl_str(s), t->line) : tpl__no_memory(p);
}

struct tpl_node *tpl__primary(struct tpl_parser *p, bool with_namespace) {
    const struct tpl_token *t = tpl__peek(p);
    struct tpl_node *n;
    switch (t->kind) {
    case TPL_T_NAME:
        return parse_name(p, with_namespace);
    case TPL_T_STRING:
        return parse_string(p);
    case TPL_T_INTEGER:
    case TPL_T_FLOAT:
        p->at++;
        return make_const(p, t->value, t->line);
    case TPL_T_LPAREN:
        p->at++;
        n = tpl__tuple(p, true, true);
        return n && tpl__expect(p, TPL_T_RPAREN) ? n : NULL;
    case TPL_T_LBRACKET:
        p->at++;
        return parse_list(p, t->line);
    case TPL_T_LBRACE:
        p->at++;
        return parse_dict(p, t->line);
    case TPL_T_EOF:
        return tpl__fail(p, t->line, "unexpected end of template");
    default:
        return tpl__fail(p, t->line, "unexpected '%.*s'", (int)t->len, t->p);
    }
}

static bool parse_argument(struct tpl_parser *p, struct tpl_actuals *a, struct tpl_node_list *pos,
                           struct tpl_node_list *values, struct tpl_node_list *names) {
    const struct tpl_token *t = tpl__peek(p);
    bool ok;
    if (tpl__skip(p, TPL_T_MUL)) {
        ok = !a->star && !a->star_star;
        a->star = tpl__expression(p, true);
        if (!a->star)
            return false;
    } else if (tpl__skip(p, TPL_T_POW)) {
        ok = !a->star_star;
        a->star_star = tpl__expression(p, true);
        if (!a->star_star)
            return false;
    } else if (t->kind == TPL_T_NAME && t[1].kind == TPL_T_ASSIGN) {
        ok = !a->star_star;
        p->at += 2;
        struct tpl_node *name = tpl__node(p, TPL_N_CONST, t->line);
        const struct tpl_str *text = tpl__text(p, t);
        if (!name || !text)
            return false;
        name->u.value = tpl_str(text);
        if (!tpl__collect(p, names, name) || !tpl__collect(p, values, tpl__expression(p, true)))
            return false;
    } else {
        ok = !a->star && !a->star_star && !values->nodes.n;
        if (!tpl__collect(p, pos, tpl__expression(p, true)))
            return false;
    }
    if (!ok)
        tpl__fail(p, t->line, "invalid syntax for function call expression");
    return ok;
}

static bool finish_keywords(struct tpl_parser *p, struct tpl_actuals *a,
                            const struct tpl_node_list *names, const struct tpl_node_list *values) {
    a->n_kw = values->nodes.n;
    a->kw = arena_calloc(p->a, a->n_kw, sizeof *a->kw);
    if (a->n_kw && !a->kw)
        return tpl__no_memory(p) != NULL;
    for (size_t i = 0; i < a->n_kw; i++) {
        a->kw[i].name = names->nodes.v[i]->u.value.u.s;
        a->kw[i].value = values->nodes.v[i];
    }
    return true;
}

// "(" arguments ")"; `above` is the node that they belong to.
static bool parse_arguments(struct tpl_parser *p, struct tpl_actuals *a, struct tpl_node *above) {
    struct tpl_node_list pos = {0}, values = {0}, names = {0};
    if (!tpl__expect(p, TPL_T_LPAREN))
        return false;
    for (bool comma = false; tpl__peek(p)->kind != TPL_T_RPAREN; comma = true) {
        if (comma && !tpl__expect(p, TPL_T_COMMA))
            return false;
        if (tpl__peek(p)->kind == TPL_T_RPAREN)
            break;
        if (!parse_argument(p, a, &pos, &values, &names))
            return false;
    }
    p->at++;
    a->pos = pos.nodes;
    for (size_t i = 0; i < pos.nodes.n; i++) {
        if (!tpl__above(p, above, pos.nodes.v[i]))
            return false;
    }
    for (size_t i = 0; i < values.nodes.n; i++) {
        if (!tpl__above(p, above, values.nodes.v[i]))
            return false;
    }
    return (!a->star || tpl__above(p, above, a->star)) &&
           (!a->star_star || tpl__above(p, above, a->star_star)) &&
           finish_keywords(p, a, &names, &values);
}

// What stands between the brackets of a[...] up to a comma: an expression or a slice of `of`.
static struct tpl_node *parse_subscribed(struct tpl_parser *p, struct tpl_node *of, bool *slice) {
    struct tpl_node *part[3] = {NULL, NULL, NULL};
    int line = tpl__peek(p)->line, i = 0;
    *slice = false;
    if (tpl__peek(p)->kind != TPL_T_COLON) {
        part[0] = tpl__expression(p, true);
        if (!part[0] || tpl__peek(p)->kind != TPL_T_COLON)
            return part[0];
    }
    while (i < 2 && tpl__skip(p, TPL_T_COLON)) {
        enum tpl_tok next = tpl__peek(p)->kind;
        i++;
        if (next == TPL_T_COLON || next == TPL_T_RBRACKET || next == TPL_T_COMMA)
            continue;
        part[i] = tpl__expression(p, true);
        if (!part[i])
            return NULL;
    }
    struct tpl_node *n = tpl__node(p, TPL_N_SLICE, line);
    if (!n || !tpl__above(p, n, of))
        return NULL;
    for (i = 0; i < 3; i++) {
        if (part[i] && !tpl__above(p, n, part[i]))
            return NULL;
    }
    *slice = true;
    n->u.slice.of = of;
    n->u.slice.start = part[0];
    n->u.slice.stop = part[1];
    n->u.slice.step = part[2];
    return n;
}

static struct tpl_node *parse_brackets(struct tpl_parser *p, struct tpl_node *of, int line) {
    struct tpl_node_list keys = {0};
    bool slice = false;
    while (tpl__peek(p)->kind != TPL_T_RBRACKET) {
        if (keys.nodes.n && !tpl__expect(p, TPL_T_COMMA))
            return NULL;
        if (slice)
            return tpl__fail(p, line, "a slice among several subscripts is not supported");
        if (!tpl__collect(p, &keys, parse_subscribed(p, of, &slice)))
            return NULL;
        if (slice && keys.nodes.n > 1)
            return tpl__fail(p, line, "a slice among several subscripts is not supported");
    }
    p->at++;
    if (slice)
        return keys.nodes.v[0];
    struct tpl_node *key =
        keys.nodes.n == 1 ? keys.nodes.v[0] : tpl__list_node(p, TPL_N_TUPLE, line, &keys);
    return tpl__binary(p, TPL_N_ITEM, 0, line, of, key);
}

static struct tpl_node *parse_dot(struct tpl_parser *p, struct tpl_node *of, int line) {
    const struct tpl_token *t = tpl__peek(p);
    if (t->kind == TPL_T_INTEGER) {
        p->at++;
        return tpl__binary(p, TPL_N_ITEM, 0, line, of, make_const(p, t->value, t->line));
    }
    if (t->kind != TPL_T_NAME)
        return tpl__fail(p, t->line, "expected name or number");
    p->at++;
    struct tpl_node *n = tpl__node(p, TPL_N_ATTR, line);
    if (!n || !tpl__above(p, n, of))
        return NULL;
    n->u.attr.of = of;
    n->u.attr.name = tpl__text(p, t);
    return n->u.attr.name ? n : NULL;
}

static struct tpl_node *parse_call(struct tpl_parser *p, struct tpl_node *callee, int line) {
    struct tpl_node *n = tpl__node(p, TPL_N_CALL, line);
    if (!n || !tpl__above(p, n, callee) || !parse_arguments(p, &n->u.call.args, n))
        return NULL;
    n->u.call.callee = callee;
    return n;
}

static struct tpl_node *parse_postfix(struct tpl_parser *p, struct tpl_node *n) {
    while (n) {
        int line = tpl__peek(p)->line;
        if (tpl__skip(p, TPL_T_DOT))
            n = parse_dot(p, n, line);
        else if (tpl__skip(p, TPL_T_LBRACKET))
            n = parse_brackets(p, n, line);
        else if (tpl__peek(p)->kind == TPL_T_LPAREN)
            n = parse_call(p, n, line);
        else
            break;
    }
    return n;
}

// The name of a filter or test, dots included, which end up in no table.
static const struct tpl_str *applied_name(struct tpl_parser *p) {
    struct tpl_token t = *tpl__peek(p);
    if (!tpl__expect(p, TPL_T_NAME))
        return NULL;
    while (tpl__skip(p, TPL_T_DOT)) {
        const struct tpl_token *more = tpl__peek(p);
        if (!tpl__expect(p, TPL_T_NAME))
            return NULL;
        t.len = (size_t)(more->p + more->len - t.p);
    }
    return tpl__text(p, &t);
}

static bool finish_apply(struct tpl_parser *p, struct tpl_node *n) {
    const struct tpl_str *s = n->u.apply.name;
    n->u.apply.fn =
        n->kind == TPL_N_FILTER ? tpl_find_filter(s->p, s->len) : tpl_find_test(s->p, s->len);
    // Inside a condition it is an error only once it is reached; parse_cond forgets what it finds
    // to be inside one.
    return n->u.apply.fn || p->soft || tpl__collect(p, &p->unknown, n);
}

struct tpl_node *tpl__filters(struct tpl_parser *p, struct tpl_node *of, bool first) {
    while (first || tpl__skip(p, TPL_T_PIPE)) {
        struct tpl_node *n = tpl__node(p, TPL_N_FILTER, tpl__peek(p)->line);
        if (!n || (of && !tpl__above(p, n, of)))
            return NULL;
        n->u.apply.of = of;
        n->u.apply.name = applied_name(p);
        if (!n->u.apply.name || !finish_apply(p, n))
            return NULL;
        if (tpl__peek(p)->kind == TPL_T_LPAREN && !parse_arguments(p, &n->u.apply.args, n))
            return NULL;
        of = n;
        first = false;
    }
    return of;
}

static bool starts_test_argument(const struct tpl_token *t) {
    switch (t->kind) {
    case TPL_T_NAME:
        return !tpl__is_name(t, "else") && !tpl__is_name(t, "or") && !tpl__is_name(t, "and");
    case TPL_T_STRING:
    case TPL_T_INTEGER:
    case TPL_T_FLOAT:
    case TPL_T_LBRACKET:
    case TPL_T_LBRACE:
        return true;
    default:
        return false;
    }
}

static struct tpl_node *parse_test(struct tpl_parser *p, struct tpl_node *of, int line) {
    bool negated = tpl__skip_name(p, "not");
    struct tpl_node *n = tpl__node(p, TPL_N_TEST, line);
    if (!n || !tpl__above(p, n, of))
        return NULL;
    n->u.apply.of = of;
    n->u.apply.name = applied_name(p);
    if (!n->u.apply.name || !finish_apply(p, n))
        return NULL;
    const struct tpl_token *t = tpl__peek(p);
    if (t->kind == TPL_T_LPAREN) {
        if (!parse_arguments(p, &n->u.apply.args, n))
            return NULL;
    } else if (starts_test_argument(t)) {
        struct tpl_node_list args = {0};
        if (tpl__is_name(t, "is"))
            return tpl__fail(p, t->line, "You cannot chain multiple tests with is");
        struct tpl_node *arg = tpl__primary(p, false);
        arg = arg ? parse_postfix(p, arg) : NULL;
        if (!tpl__collect(p, &args, arg) || !tpl__above(p, n, arg))
            return NULL;
        n->u.apply.args.pos = args.nodes;
    }
    return negated ? tpl__unary_node(p, TPL_N_NOT, '!', line, n) : n;
}

static struct tpl_node *parse_applied(struct tpl_parser *p, struct tpl_node *n) {
    while (n) {
        const struct tpl_token *t = tpl__peek(p);
        if (t->kind == TPL_T_PIPE)
            n = tpl__filters(p, n, false);
        else if (tpl__skip_name(p, "is"))
            n = parse_test(p, n, t->line);
        else if (t->kind == TPL_T_LPAREN)
            n = parse_call(p, n, t->line);
        else
            break;
    }
    return n;
}

struct tpl_node *tpl__unary(struct tpl_parser *p, bool with_filters) {
    const struct tpl_token *t = tpl__peek(p);
    struct tpl_node *n;
    if (t->kind == TPL_T_SUB || t->kind == TPL_T_ADD) {
        bool neg = t->kind == TPL_T_SUB;
        p->at++;
        if (!tpl__down(p))
            return NULL;
        n = tpl__unary_node(p, neg ? TPL_N_NEG : TPL_N_POS, neg ? '-' : '+', t->line,
                            tpl__unary(p, false));
        tpl__up(p);
    } else {
        n = tpl__primary(p, false);
    }
    n = parse_postfix(p, n);
    return with_filters ? parse_applied(p, n) : n;
}

// SPDX-License-Identifier: Apache-2.0
// Tokens to the syntax tree, by recursive descent; one function per rule of README.md's grammar.
// A rule's function returns NULL after it has filled the error (p->err says which kind).
#pragma once
#include "base/hash.h"
#include "model/template/ast.h"
#include "model/template/lexer.h"

// Parses the whole template into t, whose arena is ready, and resolves its names.
enum err tpl_parse(struct chat_template *t, const char *text, size_t len, struct err_info *info);
// scope.c: gives each scope its slots and each name its place.
enum err tpl_resolve(struct chat_template *t, struct err_info *info);

// What follows is shared by parser.c, parse_expr.c, parse_operand.c and parse_common.c.

// Special names that a body reads without having set them: such a name makes the enclosing loop or
// macro provide it.
enum { TPL_USE_LOOP = 1, TPL_USE_CALLER = 2, TPL_USE_KWARGS = 4, TPL_USE_VARARGS = 8 };
struct tpl_uses {
    struct tpl_uses *outer;
    unsigned used, set;
};

struct tpl_node_list { // grows while a rule collects
    struct tpl_nodes nodes;
    size_t cap;
};

enum { TPL_NAME_BUCKETS = 4096 };
struct tpl_parser {
    struct chat_template *t;
    struct arena *a;
    struct err_info *info;
    enum err err;
    struct tpl_tokens tokens;
    size_t at;
    unsigned nest;
    bool soft;                    // an unknown filter or test is an error only once it is reached
    struct tpl_node_list unknown; // those found outside of conditions
    bool in_loop;                 // break and continue are possible
    bool in_target;               // names are being set, not read
    unsigned for_depth;
    struct tpl_uses *uses;
    struct hash_key key;
    struct tpl_name **bucket; // TPL_NAME_BUCKETS lists
};
const struct tpl_token *tpl__peek(const struct tpl_parser *p);
bool tpl__is_name(const struct tpl_token *t, const char *name);
bool tpl__skip(struct tpl_parser *p, enum tpl_tok kind); // over it if it is there
bool tpl__skip_name(struct tpl_parser *p, const char *name);
bool tpl__expect(struct tpl_parser *p, enum tpl_tok kind); // false: error filled
void *tpl__fail(struct tpl_parser *p, int line, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
void *tpl__no_memory(struct tpl_parser *p);
bool tpl__down(struct tpl_parser *p); // one level of nesting more; false: too deep
void tpl__up(struct tpl_parser *p);
struct tpl_node *tpl__node(struct tpl_parser *p, enum tpl_node_kind kind, int line);
// Raises node's depth over child's; false beyond the limit.
bool tpl__above(struct tpl_parser *p, struct tpl_node *node, const struct tpl_node *child);
bool tpl__collect(struct tpl_parser *p, struct tpl_node_list *l, struct tpl_node *n);
const struct tpl_str *tpl__text(struct tpl_parser *p, const struct tpl_token *t);
struct tpl_node *tpl__name(struct tpl_parser *p, const struct tpl_token *t);
void tpl__note_load(struct tpl_parser *p, const struct tpl_str *name);
void tpl__note_store(struct tpl_parser *p, const struct tpl_str *name);

struct tpl_node *tpl__binary(struct tpl_parser *p, enum tpl_node_kind kind, char op, int line,
                             struct tpl_node *a, struct tpl_node *b);
struct tpl_node *tpl__unary_node(struct tpl_parser *p, enum tpl_node_kind kind, char op, int line,
                                 struct tpl_node *a);
struct tpl_node *tpl__list_node(struct tpl_parser *p, enum tpl_node_kind kind, int line,
                                const struct tpl_node_list *l);
struct tpl_node *tpl__primary(struct tpl_parser *p, bool with_namespace);
struct tpl_node *tpl__unary(struct tpl_parser *p, bool with_filters);
struct tpl_node *tpl__expression(struct tpl_parser *p, bool with_cond);
struct tpl_node *tpl__tuple(struct tpl_parser *p, bool with_cond, bool parentheses);
struct tpl_node *tpl__target(struct tpl_parser *p, bool with_namespace);
// Filters after `of`; `first` says that the next token is a filter's name without its bar.
struct tpl_node *tpl__filters(struct tpl_parser *p, struct tpl_node *of, bool first);

// SPDX-License-Identifier: Apache-2.0
// The syntax tree. Made by the parser in the template's arena, completed by scope.c (which variable
// each name means), read-only from then on. The grammar is in README.md; each node names its rule.
#pragma once
#include "base/arena.h"
#include "model/template/builtins.h"
#include "model/template/value.h"

enum {
    TPL_MAX_NEST = 100, // statements and parentheses inside each other, while parsing
    TPL_MAX_TREE =
        200, // depth of an expression's tree (a chain a + b + c + ... is as deep as it is long)
};

enum tpl_node_kind {
    // expressions
    TPL_N_CONST, // u.value
    TPL_N_NAME,  // u.name, also as an assignment target
    TPL_N_NSREF, // u.attr, an assignment target only: namespace.name
    TPL_N_TUPLE, // u.list, also as an assignment target
    TPL_N_LIST,
    TPL_N_DICT,   // u.list: key, value, key, value ...
    TPL_N_CONCAT, // u.list
    TPL_N_COND,   // u.cond
    TPL_N_OR,     // u.bin, as the next ones
    TPL_N_AND,
    TPL_N_NOT, // u.bin.a, as the next ones
    TPL_N_NEG,
    TPL_N_POS,
    TPL_N_BINARY,
    TPL_N_COMPARE, // u.compare
    TPL_N_ATTR,    // u.attr
    TPL_N_ITEM,    // u.bin: a[b]
    TPL_N_SLICE,   // u.slice
    TPL_N_CALL,    // u.call
    TPL_N_FILTER,  // u.apply
    TPL_N_TEST,
    // statements
    TPL_N_DATA,   // u.value: text between tags
    TPL_N_OUTPUT, // u.bin.a: {{ }}
    TPL_N_IF,
    TPL_N_FOR,
    TPL_N_SET,
    TPL_N_SET_BLOCK,
    TPL_N_MACRO,
    TPL_N_CALL_BLOCK,
    TPL_N_FILTER_BLOCK,
    TPL_N_WITH,
    TPL_N_GENERATION,
    TPL_N_BREAK,
    TPL_N_CONTINUE,
};

struct tpl_binding;
struct tpl_name { // one per distinct name of a template
    const struct tpl_str *text;
    struct tpl_undef undef; // what the name is where it is not set
    const struct tpl_fn *global;
    struct tpl_binding *top; // scope.c, while it works
    struct tpl_name *next;   // in the parser's table
};

// What a scope's variables hold when it is entered, as jinja2 decides it by looking at the whole
// scope.
enum tpl_load {
    TPL_LOAD_PARAM,   // bound by whoever enters the scope
    TPL_LOAD_RESOLVE, // the caller's variable of that name, else a global function
    TPL_LOAD_ALIAS,   // the enclosing scope's variable
    TPL_LOAD_UNSET,
};
struct tpl_slot {
    enum tpl_load load;
    struct tpl_name *name; // NULL: no name reaches it
    unsigned hops, from;   // TPL_LOAD_ALIAS: scopes outwards from this one, slot there
};
struct tpl_scope {
    size_t n;
    struct tpl_slot *slot;
};

struct tpl_nodes {
    size_t n;
    struct tpl_node **v;
};
struct tpl_keyword {
    const struct tpl_str *name;
    struct tpl_node *value;
};
struct tpl_actuals { // arguments of a call, filter or test
    struct tpl_nodes pos;
    size_t n_kw;
    struct tpl_keyword *kw;
    struct tpl_node *star, *star_star; // or NULL
};
struct tpl_branch {
    struct tpl_node *test; // NULL: else
    struct tpl_nodes body;
};
// A macro, a call block, or the body of a generation block.
struct tpl_def {
    const struct tpl_str *name; // NULL: a call block
    struct tpl_node *target;    // a macro's own name
    struct tpl_nodes params;    // names
    struct tpl_nodes defaults;  // of the last parameters
    struct tpl_nodes body;
    struct tpl_scope *scope;
    bool caller, kwargs, varargs; // hidden parameters that the body reads, slots in this order
    bool explicit_caller;
    struct tpl_node *call; // a call block's call
};
struct tpl_for {
    struct tpl_node *target, *iter, *test;
    struct tpl_nodes body, otherwise;
    struct tpl_scope *scope, *test_scope, *else_scope; // slot 0 of the first two is `loop`
    bool recursive, uses_loop;
};

struct tpl_node {
    enum tpl_node_kind kind;
    int line;
    unsigned depth; // of the expression below
    union {
        struct tpl_val value;
        struct {
            struct tpl_name *name;
            unsigned hops, slot;
        } name;
        struct tpl_nodes list;
        struct {
            struct tpl_node *test, *yes, *no; // no: NULL where there is no else
            struct tpl_undef *undef;          // what it is then
        } cond;
        struct {
            struct tpl_node *a, *b;
            char op; // + - * / % and 'f' for //, '^' for **
        } bin;
        struct {
            struct tpl_node *first;
            size_t n;
            struct tpl_comparison {
                enum tpl_cmp op;
                struct tpl_node *with;
            } * rest;
        } compare;
        struct {
            struct tpl_node *of; // TPL_N_NSREF: the name
            const struct tpl_str *name;
        } attr;
        struct {
            struct tpl_node *of, *start, *stop, *step; // the last three may be NULL
        } slice;
        struct {
            struct tpl_node *callee;
            struct tpl_actuals args;
        } call;
        struct {
            struct tpl_node *of;     // NULL: the text of the enclosing filter or set block
            const struct tpl_fn *fn; // NULL: no such filter or test, an error when it is reached
            const struct tpl_str *name;
            struct tpl_actuals args;
        } apply;
        struct {
            size_t n;
            struct tpl_branch *v;
        } branches;
        struct tpl_for *loop;
        struct {
            struct tpl_node *target, *value; // of a set block: the filter or NULL
            struct tpl_nodes body;
            struct tpl_scope *scope;
        } set;
        struct tpl_def *def;
        struct { // filter block (filter), with block (pairs: target, value, ...)
            struct tpl_node *filter;
            struct tpl_nodes pairs;
            struct tpl_nodes body;
            struct tpl_scope *scope;
        } block;
    } u;
};

struct chat_template {
    struct arena arena;
    const char *text; // the source, as it was given
    size_t len;
    struct tpl_nodes body;
    struct tpl_scope *scope;
    struct tpl_name *names;
};

// SPDX-License-Identifier: Apache-2.0
// Text to tokens: tags, white space control (trim_blocks and lstrip_blocks are on), raw blocks,
// literals.
#pragma once
#include "base/arena.h"
#include "base/err.h"
#include "model/template/value.h"

enum tpl_tok {
    TPL_T_EOF,
    TPL_T_DATA,
    TPL_T_VAR_BEGIN,
    TPL_T_VAR_END,
    TPL_T_BLOCK_BEGIN,
    TPL_T_BLOCK_END,
    TPL_T_NAME,
    TPL_T_STRING,
    TPL_T_INTEGER,
    TPL_T_FLOAT,
    TPL_T_ADD,
    TPL_T_SUB,
    TPL_T_MUL,
    TPL_T_DIV,
    TPL_T_FLOORDIV,
    TPL_T_MOD,
    TPL_T_POW,
    TPL_T_TILDE,
    TPL_T_LBRACKET,
    TPL_T_RBRACKET,
    TPL_T_LPAREN,
    TPL_T_RPAREN,
    TPL_T_LBRACE,
    TPL_T_RBRACE,
    TPL_T_EQ,
    TPL_T_NE,
    TPL_T_GT,
    TPL_T_GE,
    TPL_T_LT,
    TPL_T_LE,
    TPL_T_ASSIGN,
    TPL_T_DOT,
    TPL_T_COLON,
    TPL_T_PIPE,
    TPL_T_COMMA,
    TPL_T_SEMICOLON,
};

struct tpl_token {
    enum tpl_tok kind;
    int line;
    const char *p; // as written
    size_t len;
    struct tpl_val value; // data, strings and numbers
};
struct tpl_tokens {
    struct tpl_token *v; // the last one is TPL_T_EOF
    size_t n;
};

// The whole template at once. Values live in `a`; the tokens and the text that they point into live
// in `scratch`.
enum err tpl_lex(struct arena *a, struct arena *scratch, const char *text, size_t len,
                 struct tpl_tokens *out, struct err_info *info);

// literal.c: a string literal's content between the quotes, and numbers as written. The message of
// a failure names no line.
enum err tpl_literal_string(struct arena *a, const char *p, size_t len, struct tpl_val *out,
                            struct err_info *info);
enum err tpl_literal_number(struct arena *a, const char *p, size_t len, bool is_float,
                            struct tpl_val *out, struct err_info *info);
// Length of the number that starts at p, 0 if none does.
size_t tpl_scan_number(const char *p, size_t n, bool after_dot, bool *is_float);

// SPDX-License-Identifier: Apache-2.0
// Strings with provenance: making, cutting, joining, and the builder that everything which produces
// text writes into (captured blocks, str(), filters, and the output itself).
#pragma once
#include "base/arena.h"
#include "model/chat_template.h"
#include "model/template/value.h"

// A string in the arena, not literal, valid UTF-8 not checked; NULL without memory.
struct tpl_str *tpl_str_const(struct arena *a, const char *p, size_t len);

enum err tpl_str_new(struct tpl_ctx *c, const char *p, size_t len, bool literal,
                     struct tpl_val *out);                                 // copies
enum err tpl_str_z(struct tpl_ctx *c, const char *s, struct tpl_val *out); // template's own text
// Part [begin, end) in bytes, on character boundaries. Shares the bytes; keeps provenance and
// markup.
enum err tpl_str_sub(struct tpl_ctx *c, const struct tpl_str *s, size_t begin, size_t end,
                     struct tpl_val *out);
enum err tpl_str_concat(struct tpl_ctx *c, const struct tpl_str *a, const struct tpl_str *b,
                        struct tpl_val *out); // markup if either is
enum err tpl_str_markup(struct tpl_ctx *c, const struct tpl_str *s, bool markup,
                        struct tpl_val *out);
bool tpl_str_literal(const struct tpl_str *s); // some part of it is literal
// The runs of a string, at least one: number i begins and ends there.
static inline size_t tpl_str_n_runs(const struct tpl_str *s) {
    return s->n_runs ? s->n_runs : 1;
}
bool tpl_str_run(const struct tpl_str *s, size_t i, size_t *begin, size_t *end); // its literal
size_t tpl_str_offset(const struct tpl_str *s,
                      size_t chars); // bytes of the first `chars` characters
bool tpl_str_is(const struct tpl_str *s, const char *z);
bool tpl_str_same(const struct tpl_str *a, const struct tpl_str *b);
// First or last occurrence in s[from..to) as a byte offset, or SIZE_MAX. The needle is not empty.
size_t tpl_str_find(const struct tpl_str *s, size_t from, size_t to, const char *needle, size_t n);
enum err tpl_str_rfind(struct tpl_ctx *c, const struct tpl_str *s, size_t from, size_t to,
                       const char *needle, size_t n, size_t *at);

struct tpl_sb {
    struct tpl_ctx *c;
    struct tpl_tail *tail;   // in the arena, or NULL
    struct chat_output *top; // the render's output, or NULL
    size_t cap_spans;        // of the output
    size_t chars;
    bool literal; // of the whole while tail has no runs
};
void tpl_sb_init(struct tpl_sb *b, struct tpl_ctx *c);
void tpl_sb_init_output(struct tpl_sb *b, struct tpl_ctx *c, struct chat_output *out);
enum err tpl_sb_add(struct tpl_sb *b, const char *p, size_t n, bool literal);
enum err tpl_sb_puts(struct tpl_sb *b, const char *s); // the template's own text
enum err tpl_sb_str(struct tpl_sb *b, const struct tpl_str *s);
enum err tpl_sb_sub(struct tpl_sb *b, const struct tpl_str *s, size_t begin, size_t end);
enum err tpl_sb_char(struct tpl_sb *b, uint32_t cp, bool literal);
enum err tpl_sb_fill(struct tpl_sb *b, const struct tpl_str *s, size_t times);
enum err tpl_sb_finish(struct tpl_sb *b, struct tpl_val *out);

// str() and repr() as Python prints them.
enum err tpl_sb_val(struct tpl_sb *b, const struct tpl_val *v);
enum err tpl_sb_repr(struct tpl_sb *b, const struct tpl_val *v);
enum err tpl_to_str(struct tpl_ctx *c, const struct tpl_val *v, const struct tpl_str **out);
// The shortest decimal that reads back as f, laid out as Python's repr does; returns its length.
enum { TPL_FLOAT_CHARS = 32 };
size_t tpl_float_repr(double f, char out[TPL_FLOAT_CHARS]);
// As tpl_sb_str for text that is not markup: & < > ' " become entities.
enum err tpl_sb_escaped(struct tpl_sb *b, const struct tpl_str *s);

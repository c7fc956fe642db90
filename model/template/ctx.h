// SPDX-License-Identifier: Apache-2.0
// The state of one render, and the bounds that every part of the interpreter counts against.
#pragma once
#include "base/arena.h"
#include "base/hash.h"
#include "model/chat_template.h"
#include "model/template/value.h"

enum {
    TPL_MAX_DEPTH = 1500,   // nested evaluations: what a thread's stack is sure to hold
    TPL_WORK_PER_STEP = 64, // bytes looked at that count as one more step
    TPL_MAX_RANGE = 100000, // elements of a range, as in jinja2's sandbox
    TPL_MAX_PAD = 64 << 20, // characters of padding that one operation may ask for
};

struct tpl_sb;
struct tpl_frame { // the variables of one scope
    struct tpl_frame *outer;
    struct tpl_val slot[];
};

struct tpl_ctx {
    struct arena arena;
    struct hash_key key;
    struct tpl_dict *vars; // the caller's variables
    int64_t now;
    uint64_t steps, max_steps;
    unsigned depth;
    int line; // being evaluated, for messages
    struct tpl_frame *frame;
    struct tpl_sb *out;         // where output statements write
    const struct tpl_str *body; // the captured text that a filter block's filter works on
    struct err_info *info;
};

// Fills the error: "line 12: ...". Returns ERR_TEMPLATE.
enum err tpl_fail(struct tpl_ctx *c, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
enum err tpl_fail_limit(struct tpl_ctx *c, const char *what); // ERR_LIMIT
// The use of an undefined value.
enum err tpl_fail_undef(struct tpl_ctx *c, const struct tpl_val *v);
// Counts one step and `work` bytes.
enum err tpl_step(struct tpl_ctx *c, size_t work);
// Enter and leave one level of recursion; leave only what was entered.
enum err tpl_enter(struct tpl_ctx *c);
static inline void tpl_leave(struct tpl_ctx *c) {
    c->depth--;
}
// n * size zeroed bytes from the arena in *out. ERR_LIMIT beyond the memory limit, else ERR_NOMEM.
enum err tpl_alloc(struct tpl_ctx *c, size_t n, size_t size, void *out);

enum err tpl_undef_hint(struct tpl_ctx *c, const char *hint, struct tpl_val *out);
enum err tpl_undef_member(struct tpl_ctx *c, const struct tpl_val *owner,
                          const struct tpl_val *name, struct tpl_val *out);

// SPDX-License-Identifier: Apache-2.0
// Inside a gradient unit.
//
//   unit.c        create, begin, run, drop; what a slice of work costs
//   unit_layout.c the range: where everything lies in it
//   unit_head.c   the loss, and its gradient as far as the last layer's output
//   unit_product.c dx = dy W, the products with the base
//   unit_layer.c  one layer backward, from down to the norm in front of attention
//   unit_sums.c   results, and the unit's gradient into the sums
//
//   NONE --begin--> FORWARD --> HEAD_* --> [AGAIN] --> DOWN_DX .. ATTN_NORM_BACK, layer by layer
//     ^                                                             |
//     +-- drop, error --  DONE <-- ADD <-- CHECKED <-- CHECK <-- RESULTS
//
// Shapes in comments: T tokens of the row, S target rows in hand, H hidden,
// Q = (heads + 2 kv_heads) * head_dim, A = heads * head_dim, I intermediate, V vocabulary, R padded
// rank.
//
// Invariants
// 1. Between two calls of run nothing of the unit is on the queue.
// 2. What is computed never depends on where the cursor stopped, nor on how many layers are kept: a
//    stage is cut along outputs, and a layer that runs again gives the same bits.
// 3. The sums change in ADD alone, after CHECK has seen every value of the gradient; drop takes
//    away again what ADD has added so far.
#pragma once
#include "finetune/lora/unit.h"

enum lora__stage {
    UNIT_NONE,
    UNIT_FORWARD,
    // slices of target rows
    UNIT_HEAD_NORM,
    UNIT_LOGITS,
    UNIT_XENT,
    UNIT_HEAD_DX,
    UNIT_HEAD_NORM_BACK,
    UNIT_SCATTER,
    // one layer
    UNIT_AGAIN, // forward of a layer that was not kept
    UNIT_ACT,
    UNIT_DOWN_DX,
    UNIT_DOWN_LORA,
    UNIT_SWIGLU_BACK,
    UNIT_FFN_NORM,
    UNIT_GATE_UP_DX,
    UNIT_GATE_UP_LORA,
    UNIT_FFN_NORM_BACK,
    UNIT_O_DX,
    UNIT_O_LORA,
    UNIT_ATTN_BACK,
    UNIT_ROPE_BACK,
    UNIT_QK_NORM_BACK,
    UNIT_ATTN_NORM,
    UNIT_QKV_DX,
    UNIT_QKV_LORA,
    UNIT_ATTN_NORM_BACK,
    // the end
    UNIT_RESULTS,
    UNIT_CHECK,
    UNIT_CHECKED,
    UNIT_ADD,
    UNIT_DONE,
};

// Linears in the order in which backward comes to them.
enum lora__group { GROUP_DOWN, GROUP_GATE_UP, GROUP_O, GROUP_QKV, GROUPS };

struct lora__cursor {
    enum lora__stage stage;
    int32_t layer;
    int32_t done; // of the stage: columns, rows or tokens
    // Of a transposed product: first row of the block in hand, its rows; first column of the group
    // in hand, columns of a group. done counts rows of W.
    int32_t row, block, column, width;
    int32_t want;   // first target row of the slice in hand
    int32_t module; // of a group's adapters: the one in hand, and
    int32_t step;   // its operation
    int64_t at;     // element of the gradient
};

// Of one layer that is kept; all layers but those share one.
struct lora__kept {
    kn_addr qkv, attn_out, ffn_in, gate_up; // [T, Q], [T, A], [T, H], [T, 2 I]
    kn_addr q_in;                           // [T, A], where q's heads have a norm
};

// Addresses in the range. ld_*: elements between rows; the tape's places are dense.
struct lora__buffers {
    kn_addr kv;                                              // blocks, at a place that never moves
    kn_addr keys, targets, weights, losses, hits, rows, all; // per token or target; all: 0, 1, ...
    kn_addr g;                                               // [T, H] gradient of the residual
    // of the head
    kn_addr h, hn, hnq, logits, dhn, dh; // [S, H], .., [S, V], [S, H]; dh [T, H]
    // of a layer, in the same place
    kn_addr xn, dxn, act, dact, dattn, dqkv, u, du;
    kn_addr residual; // [L + 1][T, H]: entering each layer, and the last one's output
    kn_addr kept;     // [n_kept (+ 1)]
    size_t kept_bytes;
    int64_t ld_hidden, ld_inter, ld_attn, ld_qkv, ld_vocab;
};

struct lora_unit {
    const struct mdl_weights *w;
    const struct kn_ops *ops;
    struct kn_queue *q;
    const struct clock *clock;
    struct lora_params *params;
    struct lora_unit_limits limits;
    struct mdl_forward *forward;
    struct mdl_lora_slots *slots;
    struct mdl_tape tape;
    enum lora__group last_group; // of layer 0: where backward may end
    int32_t slice_rows;          // target rows whose logits exist at a time

    // the row in hand, copied
    struct lora_row row; // its arrays are those below
    int32_t *ids, *seq_start, *pos, *kv_len, *blocks, *slot, *wants, *targets;
    float *weights;
    uint64_t *keys;
    int32_t max_blocks, n_targets;

    struct lora__buffers buf;
    int32_t n_kept; // last layers whose activations are kept
    bool holds;     // the range is in use

    struct lora__cursor at;
    // results
    float *losses;
    int32_t *hits;
    int32_t flag;
    int32_t bad; // a value of the gradient is not finite

    double scale; // measured time of a slice over its estimate
};

// One slice's account, as in the layer walk: estimated ns.
struct lora__account {
    double spent, budget;
    bool synced; // ended before the budget was spent
};
#define LORA__UNLIMITED 1e300
static inline bool lora__sliced(const struct lora__account *a) {
    return a->budget < LORA__UNLIMITED;
}

// ---- unit.c
void lora__spend(const struct lora_unit *u, struct lora__account *a, double bytes, double flops);
// How many of `n` units that cost so much together fit the budget: a multiple of `unit`, or all.
int32_t lora__cut(const struct lora_unit *u, const struct lora__account *a, int32_t n, double bytes,
                  double flops, int32_t unit);
// Ends the slice: what comes next looks at what was downloaded.
static inline void lora__sync(struct lora__account *a) {
    a->spent = a->budget;
    a->synced = true;
}
static inline void lora__goto(struct lora_unit *u, enum lora__stage s) {
    u->at.stage = s;
    u->at.done = u->at.row = u->at.column = u->at.module = u->at.step = 0;
    u->at.at = 0;
}
static inline void lora__next(struct lora_unit *u) {
    lora__goto(u, (enum lora__stage)(u->at.stage + 1));
}

// Dropout of the rows in hand for one module.
struct kn_dropout lora__dropout(const struct lora_unit *u, int32_t layer, enum mdl_target t);

// ---- unit_layout.c
size_t lora__layout(const struct mdl_weights *w, const struct lora_params *p,
                    const struct lora_unit_limits *limits, int32_t tokens, int32_t n_kept,
                    int32_t slice_rows, struct lora__buffers *b);
int32_t lora__slice_rows(const struct mdl_weights *w, int32_t max_tokens);
void lora__place(struct lora_unit *u, kn_addr range);
void lora__kept(const struct lora_unit *u, int32_t layer, struct lora__kept *out);
kn_addr lora__residual(const struct lora_unit *u, int32_t layer);
kn_addr lora__tape_place(void *arg, int32_t layer, enum mdl_tape_kind kind, int32_t rows,
                         int32_t width);

// ---- unit_product.c
// dx[rows, k] = dy W, one piece; true in *all once every row and column is recorded.
struct lora__product {
    const struct mdl_matrix *m;
    kn_addr dy, dx;
    int64_t lddy, lddx;
    int32_t rows;
};
enum err lora__product_back(struct lora_unit *u, struct lora__account *a,
                            const struct lora__product *p, bool *all);

// ---- stages; each records work for the account's budget and moves the cursor
enum err lora__stage_head(struct lora_unit *u, struct lora__account *a);
enum err lora__stage_layer(struct lora_unit *u, struct lora__account *a);
enum err lora__stage_sums(struct lora_unit *u, struct lora__account *a);
void lora__undo_sums(struct lora_unit *u);

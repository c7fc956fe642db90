// SPDX-License-Identifier: Apache-2.0
// The one layer walk: a batch through the model, as a cursor that can stop at a deadline and go on
// later. Serving, training and evaluation run this same code. Driven by the thread that drives the
// queue.
//
//   begin(batch) -> run(deadline) -> AGAIN ... run -> DONE -> results
//
// A cursor at rest between two run calls has its activations in device memory and nothing on the
// queue, so other work (another cursor's, too) may run on the same queue in between.
#pragma once
#include "base/clock.h"
#include "base/err.h"
#include "kernels/device.h"
#include "model/batch.h"
#include "model/weights.h"

enum mdl_linear { MDL_QKV, MDL_O, MDL_GATE_UP, MDL_DOWN, MDL_LINEARS };

// What one product of the walk looked like, for hooks.
struct mdl_linear_call {
    int32_t layer;
    enum mdl_linear which;
    kn_addr x; // PLAIN input [rows, k]
    int64_t ldx;
    // PLAIN [rows, n]. MDL_QKV, MDL_GATE_UP (gate | up): the product's output, before rotation and
    // activation. MDL_O, MDL_DOWN: the residual stream, to which the product has just been added;
    // the hook adds to it in the same way, so that the order is (residual + W x) + adapter.
    kn_addr y;
    int64_t ldy;
    // All of the batch's tokens, or a part of them where a slice ends before; x, y and batch->seq
    // begin with it.
    int32_t rows;
    int32_t row;                  // number of the first
    const struct kn_batch *batch; // slots per sequence
};

// LoRA hook: called after each product was recorded; records y += scale * B (A x) for the rows
// whose sequence has an adapter, and leaves the bits of all other rows alone. An error ends the run
// with it. NULL linear: none. Where a hook is not wanted, the walk may fuse.
struct mdl_hooks {
    enum err (*linear)(void *arg, struct kn_queue *q, const struct mdl_linear_call *call);
    // Records the product, too, where it is whole and of one weight: the backend may let the two
    // overlap. NULL: the walk records it and calls `linear`.
    enum err (*product)(void *arg, struct kn_queue *q, const struct kn_gemm *gemm,
                        const struct mdl_linear_call *call);
    // Whether `linear` is called for this product; the same until the batch has ended. NULL:
    // always.
    bool (*wants)(void *arg, int32_t layer, enum mdl_linear which);
    // Floating-point operations of a row, about: in slices, `linear` is called for as many rows as
    // fit. NULL: for all.
    double (*flops)(void *arg, int32_t layer, enum mdl_linear which);
    void *arg;
};

// Activations that backward needs. For each the walk asks once a layer for a place (PLAIN [rows,
// width], dense) and writes there; 0 means: not wanted. With a tape every row runs through every
// layer, wanted or not.
enum mdl_tape_kind {
    MDL_TAPE_ATTN_IN,  // residual stream entering the layer [hidden]
    MDL_TAPE_QKV,      // after rotation; k as it came [(heads + 2 kv_heads) * head_dim]
    MDL_TAPE_ATTN_OUT, // attention's output [heads * head_dim]
    MDL_TAPE_FFN_IN,   // residual stream after attention [hidden]
    MDL_TAPE_GATE_UP,  // [2 * intermediate]
    MDL_TAPE_FINAL,    // residual stream after the last layer [hidden]; layer = n_layers
    MDL_TAPE_Q,        // q before its heads' norms, where the model has them [heads * head_dim]
    MDL_TAPE_KINDS
};
struct mdl_tape {
    kn_addr (*place)(void *arg, int32_t layer, enum mdl_tape_kind kind, int32_t rows,
                     int32_t width);
    void *arg;
};

struct mdl_forward_limits {
    int32_t max_tokens; // of one batch
    int32_t max_seqs;
    int32_t max_want;
    int32_t max_blocks; // per sequence
};

struct mdl_kv { // where the cache lies
    kn_addr pool;
    struct kn_kv_shape shape;
};

struct mdl_forward;

// The queue and the weights are borrowed. ERR_UNSUPPORTED names an operation that the backend
// lacks.
enum err mdl_forward_create(const struct mdl_weights *w, struct kn_queue *q,
                            const struct mdl_forward_limits *limits, const struct clock *clock,
                            struct mdl_forward **out, struct err_info *info);
void mdl_forward_destroy(struct mdl_forward *f);
size_t mdl_forward_bytes(const struct mdl_forward *f); // device workspace

// The batch's arrays are uploaded; hooks and tape may be NULL and are borrowed until the end. A
// batch that had not ended is dropped. ERR_INVALID or ERR_LIMIT names what is wrong with the batch,
// which then leaves no trace. ids < 0 refer to the cursor's last batch that ended.
enum err mdl_forward_begin(struct mdl_forward *f, const struct mdl_batch *b,
                           const struct mdl_kv *kv, const struct mdl_hooks *hooks,
                           const struct mdl_tape *tape, struct err_info *info);
// Goes on until the end, or until the monotonic clock has passed deadline_ns (INT64_MAX: no
// deadline) at the next place where it can stop: after a product's output range of a few hundred
// microseconds, and at least up to the first of them. *done tells which. On error the cursor is at
// rest and the batch is lost; other batches are not.
enum err mdl_forward_run(struct mdl_forward *f, int64_t deadline_ns, bool *done,
                         struct err_info *info);
// Backward without kept activations. After DONE of a batch with a tape: the batch goes through
// `layer` once more, from the residual stream that the tape kept as the layer's MDL_TAPE_ATTN_IN
// [rows, hidden], up to gate | up (what follows is no activation that backward needs). Same KV
// cache, hooks and tape, same bits; then run until done.
enum err mdl_forward_again(struct mdl_forward *f, int32_t layer, kn_addr residual,
                           struct err_info *info);
// For backward: the batch of the last begin in device memory, and its rotation table
// (kn_rope_table). Valid until the next begin.
struct mdl_forward_view {
    struct kn_batch batch;
    kn_addr rope_table;
};
void mdl_forward_view(const struct mdl_forward *f, struct mdl_forward_view *out);
// After DONE: one entry per wanted position, in order; valid until the next begin.
const struct kn_sample_out *mdl_forward_samples(const struct mdl_forward *f);

// Tests and oracles: copies the raw logits of each wanted position, f32 [n_want][vocab], into `to`
// while the cursor runs. NULL switches it off.
void mdl_forward_capture_logits(struct mdl_forward *f, float *to);

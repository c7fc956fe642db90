// SPDX-License-Identifier: Apache-2.0
// One gradient unit: a packed row goes forward through the serving walk (mdl_forward with tape and
// adapter), then backward for the adapter alone, and its gradient is added to the int64 sums. A
// resumable cursor like mdl_forward: run(deadline) looks at the clock after at most a few hundred
// microseconds of work, by its estimates. A look costs some microseconds, and cutting makes a unit
// of 512 tokens about a twentieth longer. Driven by the thread that drives the queue.
//
//   begin(row) -> run ... run -> DONE -> result
//        drop() at any time: the unit is lost, sums are as before begin
//
// Memory: the unit works in one range that the caller lends (KV blocks, activations, backward's
// buffers). Each layer's activations are kept from forward to backward where the range has room,
// the last layers' first; of the others only the residual stream that enters them is kept, and
// backward runs their forward again. Results have the same bits either way. Once the gradient is
// whole (lora_unit_holds false) the range is free, and adding it to the sums needs it no more.
#pragma once
#include "finetune/lora/params.h"

struct lora_unit_limits {
    int32_t max_tokens, max_seqs; // of a row
    bool keep;                    // keep activations; false: never
};
// Bytes of the range: what keeps all activations (or none without `keep`), and the least that a
// unit works with.
size_t lora_unit_bytes(const struct mdl_weights *w, const struct lora_params *p,
                       const struct lora_unit_limits *limits, size_t *least);

struct lora_row { // a packed row: sequences of their own, positions from 0
    int32_t n_tokens, n_seqs;
    const int32_t *ids;       // [n_tokens]
    const int32_t *seq_start; // [n_seqs + 1]
    const uint8_t *mask;      // [n_tokens]: token is a target (never a sequence's first)
    const uint64_t *keys;     // [n_tokens] for dropout: of (seed, epoch, sample, token); NULL: none
    float weight;             // of each target's gradient; the step's normalisation is AdamW's
    const float *weights;     // [n_tokens], in place of `weight` where not NULL
    int exponent;             // of the int64 sums
    bool backward;            // false: losses only
    bool base;                // without the adapter; losses only
};
struct lora_row_result {
    double loss; // f64 sum of the targets' losses, in order
    int64_t targets, hits;
    const float *losses; // [targets], valid until the next begin
    bool overflow;       // the exponent was too fine, or a value was not finite: nothing was added
    bool finite;         // loss and gradient
};

struct lora_unit;
// ERR_UNSUPPORTED names what training cannot do with the model or the backend.
enum err lora_unit_create(const struct mdl_weights *w, struct kn_queue *q, struct lora_params *p,
                          const struct lora_unit_limits *limits, const struct clock *clock,
                          struct lora_unit **out, struct err_info *info);
void lora_unit_destroy(struct lora_unit *u);
// The row's arrays are copied. ERR_LIMIT where row or range do not fit.
enum err lora_unit_begin(struct lora_unit *u, const struct lora_row *row, kn_addr range,
                         size_t range_bytes, struct err_info *info);
// Bytes at the begin of the range that begin would take for the row; 0 where it gives an error.
size_t lora_unit_uses(const struct lora_unit *u, const struct lora_row *row, kn_addr range,
                      size_t range_bytes);
// INT64_MAX: to the end without a look at the clock. An error drops the unit.
enum err lora_unit_run(struct lora_unit *u, int64_t deadline_ns, bool *done, struct err_info *info);
void lora_unit_drop(struct lora_unit *u);
// As drop, but at once: of the sums it leaves anything. For those who clear them, or need them no
// more.
void lora_unit_abandon(struct lora_unit *u);
bool lora_unit_holds(const struct lora_unit *u); // whether the range is in use
// After DONE.
void lora_unit_result(const struct lora_unit *u, struct lora_row_result *out);

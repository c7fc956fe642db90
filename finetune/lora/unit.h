// SPDX-License-Identifier: Apache-2.0
// One gradient unit: a packed row goes forward through the serving walk (mdl_forward with tape and
// adapter), then backward for the adapter alone, and its gradient is added to the int64 sums. A
// resumable cursor like mdl_forward: run(deadline) stops after at most a few hundred microseconds
// of work.
//
//   begin(row) -> run ... run -> DONE -> result
//        drop() at any time: the unit is lost, sums are as before begin
//
// Memory: the unit works in one range that the caller lends (activations, its own KV blocks);
// everything else is in lora_params. With `keep` each layer's activations are kept from forward to
// backward; without, only the residual stream entering each layer is, and backward runs the layer's
// forward again.
#pragma once
#include "finetune/lora/params.h"

struct lora_unit_limits {
    int32_t max_tokens, max_seqs; // of a row
    bool keep;                    // keep activations
};
// Bytes of the range that a unit needs.
size_t lora_unit_bytes(const struct mdl_weights *w, const struct lora_params *p,
                       const struct lora_unit_limits *limits);

struct lora_row { // a packed row: sequences of their own, positions from 0
    int32_t n_tokens, n_seqs;
    const int32_t *ids;       // [n_tokens]
    const int32_t *seq_start; // [n_seqs + 1]
    const uint8_t *mask;      // [n_tokens]: token is a target (never a sequence's first)
    const uint64_t
        *keys;     // [n_tokens] for dropout: of (seed, epoch, sample, token); NULL: no dropout
    float weight;  // of each target's gradient; the step's normalisation comes with AdamW
    int exponent;  // of the int64 sums
    bool backward; // false: losses only
};
struct lora_row_result {
    double loss; // f64 sum of the targets' losses, in order
    int64_t targets, hits;
    const float *losses; // [targets], valid until the next begin
    bool overflow;       // the exponent was too fine, or a value was not finite: nothing was added
    bool finite;         // loss and gradient
};

struct lora_unit;
enum err lora_unit_create(const struct mdl_weights *w, struct kn_queue *q, struct lora_params *p,
                          const struct lora_unit_limits *limits, const struct clock *clock,
                          struct lora_unit **out, struct err_info *info);
void lora_unit_destroy(struct lora_unit *u);
enum err lora_unit_begin(struct lora_unit *u, const struct lora_row *row, kn_addr range,
                         size_t range_bytes, struct err_info *info);
enum err lora_unit_run(struct lora_unit *u, int64_t deadline_ns, bool *done, struct err_info *info);
void lora_unit_drop(struct lora_unit *u);
void lora_unit_result(const struct lora_unit *u, struct lora_row_result *out);

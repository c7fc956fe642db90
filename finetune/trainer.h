// SPDX-License-Identifier: Apache-2.0
// The training loop: over the plan's steps, each row a gradient unit, then clipping and AdamW.
// Blocks the calling thread (the trainer's own) until the run has ended or was stopped. What it
// needs to go on later is in struct ft_state and in the adapter with its moments.
//
// Rules, numbered in finetune/lora/README.md:
//   - a step's gradient is the sum over its rows, divided by the step's supervised tokens (DPO:
//     pairs), however they are packed into rows and micro-batches
//   - sums are int64 at a power of two that the last committed step gives; a row whose gradient
//     does not fit repeats the step at a coarser one
//   - a loss or gradient that is not finite ends the run with the state of the last committed step
#pragma once
#include "finetune/batcher.h"
#include "finetune/executor.h"
#include "finetune/schedule.h"
#include <stdatomic.h>

enum ft_method { FT_SUPERVISED, FT_DPO };

struct ft_hyper {
    enum ft_method method;
    double beta_dpo; // DPO's temperature
    struct ft_schedule schedule;
    double beta1, beta2, eps, weight_decay;
    double max_grad_norm; // 0: no clipping
    bool dropout;         // the adapter's dropout is used
    uint64_t seed;        // of order and dropout
    int32_t row_tokens, row_seqs;
    int64_t eval_steps, save_steps; // 0: at the end only
    int64_t eval_samples;           // of the validation file at eval_steps; 0: all
};

// What a checkpoint keeps beside matrices and moments.
struct ft_state {
    int64_t step;                                 // committed
    int32_t exponent;                             // of the next step's sums
    int64_t trained_tokens;                       // supervised and not, each time they were seen
    double train_loss, train_accuracy, grad_norm; // of the last step
    double valid_loss, valid_accuracy;            // after this step; NAN: not evaluated
    int64_t repeats;                              // steps that were repeated at a coarser scale
};
void ft_state_init(struct ft_state *s);

struct ft_progress {
    const struct ft_state *state;
    int64_t steps; // of the run
    int32_t epoch;
    double lr;
    double tokens_per_s; // smoothed
    double eta_s;
    bool evaluated; // valid_loss is of this step
};

struct ft_trainer {
    struct ft_exec *exec;
    struct ft_dataset *data, *validation; // validation may be NULL
    struct ft_plan *plan;
    struct ft_hyper hyper;
    const struct clock *clock;
    // After each committed step and its evaluation; where that was cut short by a stop, when the
    // run is gone on with. An error ends the run with it.
    enum err (*progress)(void *arg, const struct ft_progress *p, struct err_info *info);
    // After a step where a checkpoint is due, and before a stop (`stopping`). NULL: none.
    enum err (*save)(void *arg, const struct ft_state *s, bool stopping, struct err_info *info);
    void *arg;
    _Atomic bool *stop; // set: the run ends after the row in hand; what the step had is lost
};

// From state->step to the plan's last step. ERR_CANCELLED: stopped; ERR_NONFINITE names the line.
// *state is of the last committed step in each case.
enum err ft_train(const struct ft_trainer *t, struct ft_state *state, struct err_info *info);

// The exponent for sums whose largest value was `largest` at 2^exponent; the same if it was 0.
int32_t ft_exponent(double largest, int32_t exponent);

// SPDX-License-Identifier: Apache-2.0
// The options of `graft train`: one table for flags, environment twins, --help and the reference
// page.
#pragma once
#include "base/options.h"
#include <stdbool.h>
#include <stdint.h>

struct train_options {
    const char *model, *data, *validation, *output, *chat_template, *cache_dir;
    const char *resume; // NULL: a new run; "": go on in `output`; else the folder to go on from
    // adapter
    struct opt_list targets;
    int64_t r;
    double alpha, dropout;
    bool rslora;
    // training
    const char *method, *schedule, *truncation;
    double beta_dpo, lr, warmup_ratio, weight_decay, beta1, beta2, eps, max_grad_norm;
    int64_t epochs, batch_size, max_seq_length, seed;
    bool packing;
    // checkpoints and evaluation
    int64_t save_steps, save_limit, eval_steps, eval_samples;
    // machine
    int64_t threads, activation_bytes;
    const char *isa;
};

extern const struct opt_table train_option_table;

// SPDX-License-Identifier: Apache-2.0
// What tests of training share: a golden file of tests/golden/finetune, and a unit on a tiny model
// with its adapter. Functions fail the running cmocka test where something does not succeed.
#pragma once
#include "finetune/lora/unit.h"
#include "tests/model/model_fixture.h"

enum { TF_ROWS = 8, TF_TOKENS = 64, TF_SEQS = 8, TF_MAX_STEPS = 64 };

struct tf_row {
    int32_t n_tokens, n_seqs, n_targets;
    int32_t ids[TF_TOKENS], seq_start[TF_SEQS + 1];
    uint8_t mask[TF_TOKENS];
    float losses[TF_TOKENS];
};

struct tf_golden {
    int32_t layers, r;
    float alpha;
    bool rslora;
    unsigned targets;
    int32_t n_rows;
    struct tf_row rows[TF_ROWS];
    struct mdl_adapter *start, *gradient; // A and B, and what belongs to them
    int32_t steps;
    double lr, beta1, beta2, eps, decay, max_norm;
    double loss[TF_MAX_STEPS], norm[TF_MAX_STEPS];
    double loss_spread[TF_MAX_STEPS], norm_spread[TF_MAX_STEPS]; // what f32 noise may do to them
};
// name: "f32" for tests/golden/finetune/f32.train
void tf_golden_read(struct tf_golden *g, const struct mdl_config *c, const char *name);
void tf_golden_fini(struct tf_golden *g);

struct tf {
    struct fx fx;
    struct lora_params *params;
    struct lora_unit *unit;
    struct lora_unit_limits limits;
    kn_addr range;
    size_t range_bytes;
};
struct tf_options {
    struct fx_options fx;
    bool forget; // keep no activations
    bool rslora;
    float dropout;
    unsigned targets; // 0: all
    int32_t r;        // 0: 4
    float alpha;      // 0: 8
    const struct clock *clock;
};
// model: "f32" for tests/golden/models/f32.gguf; "walk", "walk-norm", "qwen3": as reference.py has
// them
void tf_open(struct tf *t, const char *model, const struct tf_options *o);
void tf_open_model(struct fx *x, const char *model, const struct fx_options *o);
void tf_close(struct tf *t);

void tf_set(struct tf *t, const struct mdl_adapter *w);
// Runs a row to its end, with a deadline at each look at the clock if `sliced`.
void tf_unit(struct tf *t, const struct lora_row *row, bool sliced, struct lora_row_result *out);
struct lora_row tf_lora_row(const struct tf_row *row, int exponent);
void tf_clear(struct tf *t);
// Copy of the int64 sums; freed with mem_free.
int64_t *tf_sums(struct tf *t, int64_t *n);
// The sums over 2^exponent, as matrices.
struct mdl_adapter *tf_gradient(struct tf *t, int exponent);
struct mdl_adapter *tf_adapter(const struct tf *t); // zeros, of the trained shape

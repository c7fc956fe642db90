// SPDX-License-Identifier: Apache-2.0
// A model's resident weights: loaded once, immutable, shared by every engine, by training and by
// evaluation.
#pragma once
#include "base/err.h"
#include "kernels/device.h"
#include "model/config.h"
#include "model/source.h"

struct mdl_layer {
    struct kn_weight *qkv;       // [(heads + 2 kv_heads) * head_dim, hidden]
    struct kn_weight *o;         // [hidden, heads * head_dim]
    struct kn_weight *gate_up;   // KN_STACK_GATE_UP, [2 * intermediate, hidden]
    struct kn_weight *down;      // [hidden, intermediate]
    kn_addr attn_norm, ffn_norm; // f32 [hidden]
    kn_addr qkv_bias;            // f32 or 0
    kn_addr q_norm, k_norm;      // f32 [head_dim] or 0
};

struct mdl_weights {
    struct mdl_config config;
    const struct kn_ops *ops;
    struct kn_device *device; // that holds them; outlives the weights
    int rank, world;
    struct mdl_layer *layers;       // [config.n_layers]
    struct kn_weight *embed, *head; // the same handle when tied
    kn_addr final_norm;
    kn_addr inv_freq; // f32 [head_dim / 2]
    size_t bytes;     // resident
};

struct mdl_progress { // may be NULL
    void (*tick)(void *arg, size_t done_bytes, size_t total_bytes);
    void *arg;
};

// Reads every tensor of the source; shapes are checked against the config, and an unexpected or
// missing tensor is refused by name.
enum err mdl_weights_load(const struct mdl_source *src, const struct kn_ops *ops,
                          struct kn_device *device, int rank, int world,
                          const struct mdl_progress *progress, struct mdl_weights **out,
                          struct err_info *info);
void mdl_weights_destroy(struct mdl_weights *w);

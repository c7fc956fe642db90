// SPDX-License-Identifier: Apache-2.0
// A model's resident weights: loaded once, immutable, shared by every engine, by training and by
// evaluation.
#pragma once
#include "base/err.h"
#include "kernels/device.h"
#include "model/config.h"
#include "model/source.h"

enum { MDL_MAX_PARTS = 3 };

// One linear of the walk: y[rows, n] = x[rows, k] Wᵀ. Nearly always one resident matrix. Where a
// file gives the parts of q + k + v or of gate + up types that the device cannot stack, there is
// one matrix per part, and their outputs lie side by side.
struct mdl_matrix {
    struct kn_weight *part[MDL_MAX_PARTS];
    int32_t part_n[MDL_MAX_PARTS]; // outputs of each
    int n_parts;
    int32_t n, k;   // outputs in all and inputs, of this rank's shard
    unsigned forms; // bit f set: a part multiplies x in enum kn_form f
};

struct mdl_layer {
    struct mdl_matrix qkv;       // n = (heads + 2 kv_heads) * head_dim
    struct mdl_matrix o;         // k = heads * head_dim
    struct mdl_matrix gate_up;   // n = 2 * intermediate; one part: KN_STACK_GATE_UP
    struct mdl_matrix down;      // k = intermediate
    kn_addr attn_norm, ffn_norm; // f32 [hidden]
    kn_addr qkv_bias;            // f32 [qkv.n] or 0
    kn_addr q_norm, k_norm;      // f32 [head_dim] or 0
};

struct mdl_weights {
    struct mdl_config config;
    const struct kn_ops *ops;
    struct kn_device *device; // that holds them; outlives the weights. Engines may run on others
    int rank, world;
    struct mdl_layer *layers;                  // [config.n_layers]
    int32_t n_heads, n_kv_heads, intermediate; // of this rank
    struct kn_weight *embed;                   // whole on every rank
    struct mdl_matrix head;                    // the embedding's handle when tied
    kn_addr final_norm;                        // f32 [hidden]
    kn_addr inv_freq;                          // f32 [head_dim / 2]
    size_t bytes;                              // resident

    // private below
    kn_addr vectors; // one range for norms, biases and inv_freq
    size_t vectors_bytes;
};

struct mdl_progress { // may be NULL
    // After each tensor; false ends the loading with ERR_CANCELLED.
    bool (*tick)(void *arg, size_t done_bytes, size_t total_bytes);
    void *arg;
};

// Reads every tensor of the source; a missing tensor or one whose shape is not what the config says
// is refused by name. rank of world: q, k, v, gate and up are cut along their outputs, o and down
// along their inputs, embedding and head are whole; ERR_UNSUPPORTED where heads or blocks do not
// divide. Blocks on the source's files.
enum err mdl_weights_load(const struct mdl_source *src, const struct kn_ops *ops,
                          struct kn_device *device, int rank, int world,
                          const struct mdl_progress *progress, struct mdl_weights **out,
                          struct err_info *info);
void mdl_weights_destroy(struct mdl_weights *w);

// SPDX-License-Identifier: Apache-2.0
// An engine over the real layer walk: what its configuration begins with.
#pragma once
#include "serving/engine.h"
#include "tests/model/model_fixture.h"

// On that device, which may be another than the one that holds the fixture's weights.
static inline struct eng_config walk_config(const struct fx *x, struct kn_device *device,
                                            int32_t blocks) {
    const struct mdl_config *c = &x->weights->config;
    const struct kn_kv_shape shape = {c->n_layers, c->n_kv_heads, c->head_dim};
    return (struct eng_config){
        .weights = x->weights,
        .ops = x->ops,
        .device = device,
        .kv_bytes = (size_t)blocks * x->ops->kv_block_bytes(&shape),
        .max_num_seqs = 12,
        .max_num_batched_tokens = 64,
        .max_model_len = 64,
        .max_queue = 64,
        .prefix_cache = true,
    };
}

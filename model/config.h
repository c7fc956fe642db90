// SPDX-License-Identifier: Apache-2.0
// What a model's layers look like, read from GGUF metadata or a Hugging Face config.json. Plain
// data, checked when made: every dimension is positive, bounded, and consistent with the others.
#pragma once
#include "base/err.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum mdl_family { // what the layer walk needs to know; the architecture's name is in `architecture`
    MDL_LLAMA,    // Llama 2, 3.x, SmolLM2
};

enum mdl_rope_kind {
    MDL_ROPE_DEFAULT,
    MDL_ROPE_LLAMA3,
    MDL_ROPE_FACTORS, // a GGUF file's rope_freqs.weight: llama3 scaling worked out beforehand
};

enum { MDL_MAX_EOS = 8, MDL_MAX_HEAD_DIM = 256 };

struct mdl_config {
    char architecture[48]; // "llama", "LlamaForCausalLM"
    enum mdl_family family;
    int32_t n_layers, hidden, intermediate;
    int32_t n_heads, n_kv_heads, head_dim;
    int32_t vocab;
    int32_t context; // max_position_embeddings
    float rms_eps;
    bool tied;      // the head is the embedding
    bool qkv_bias;  // Qwen2
    bool qk_norm;   // Qwen3
    int32_t window; // sliding window, 0: none
    bool attn_bias, mlp_bias;

    float rope_theta;
    enum mdl_rope_kind rope_kind;
    // llama3 scaling (Llama 3.1 reference code)
    float rope_factor, rope_low_freq, rope_high_freq;
    int32_t rope_original_context;
    float rope_factors[MDL_MAX_HEAD_DIM / 2]; // MDL_ROPE_FACTORS: divide inv_freq

    int32_t bos; // -1: none
    int32_t eos[MDL_MAX_EOS];
    int32_t n_eos; // 0: the model's files name none; the tokenizer may still know one

    // generation_config.json: sampling defaults; < 0: not given
    float gen_temperature, gen_top_p, gen_min_p, gen_repetition_penalty;
    int32_t gen_top_k;
};

// inv_freq[head_dim / 2] for the config's RoPE kind.
void mdl_rope_inv_freq(const struct mdl_config *c, float *inv_freq);
// Checks ranges and divisibility; the error names the field.
enum err mdl_config_check(const struct mdl_config *c, struct err_info *info);
// config.json and generation_config.json (may be NULL) of a Hugging Face folder. An architecture or
// RoPE type that is not supported is refused by its name, with the list of what is.
enum err mdl_config_from_hf(const char *json, size_t len, const char *gen_json, size_t gen_len,
                            struct mdl_config *out, struct err_info *info);

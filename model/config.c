// SPDX-License-Identifier: Apache-2.0
#include "model/config.h"
#include <math.h>

static enum err check_int(const char *field, int64_t v, int64_t min, int64_t max,
                          struct err_info *info) {
    if (v >= min && v <= max)
        return ERR_OK;
    return err_set(info, ERR_FORMAT, NULL, "%s is %lld, must be between %lld and %lld", field,
                   (long long)v, (long long)min, (long long)max);
}

static enum err check_float(const char *field, float v, double min, double max,
                            struct err_info *info) {
    if (isfinite(v) && (double)v >= min && (double)v <= max)
        return ERR_OK;
    return err_set(info, ERR_FORMAT, NULL, "%s is %g, must be between %g and %g", field, (double)v,
                   min, max);
}

static enum err check_dims(const struct mdl_config *c, struct err_info *info) {
    const struct {
        const char *field;
        int32_t v, min, max;
    } rows[] = {
        {"the number of layers", c->n_layers, 1, 1024},
        {"the hidden size", c->hidden, 1, 65536},
        {"the intermediate size", c->intermediate, 1, 1 << 20},
        {"the number of attention heads", c->n_heads, 1, 1024},
        {"the number of key-value heads", c->n_kv_heads, 1, c->n_heads},
        {"the head dimension", c->head_dim, 2, MDL_MAX_HEAD_DIM},
        {"the vocabulary size", c->vocab, 1, 1 << 20},
        {"the context length", c->context, 1, 1 << 28},
        {"the sliding window", c->window, 0, 1 << 28},
        {"the number of end-of-sequence ids", c->n_eos, 0, MDL_MAX_EOS},
        {"the BOS id", c->bos, -1, c->vocab - 1},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        enum err e = check_int(rows[i].field, rows[i].v, rows[i].min, rows[i].max, info);
        if (e)
            return e;
    }
    if (c->n_heads % c->n_kv_heads)
        return err_set(info, ERR_FORMAT, NULL,
                       "the number of attention heads, %d, is no multiple of that of key-value "
                       "heads, %d",
                       c->n_heads, c->n_kv_heads);
    if (c->head_dim % 2)
        return err_set(info, ERR_FORMAT, NULL, "the head dimension, %d, is odd", c->head_dim);
    for (int i = 0; i < c->n_eos; i++) {
        enum err e = check_int("an end-of-sequence id", c->eos[i], 0, c->vocab - 1, info);
        if (e)
            return e;
    }
    return ERR_OK;
}

static enum err check_rope(const struct mdl_config *c, struct err_info *info) {
    enum err e = check_float("the RoPE base", c->rope_theta, 1e-3, 1e15, info);
    if (!e && c->rope_kind == MDL_ROPE_LLAMA3) {
        e = check_float("the RoPE scaling factor", c->rope_factor, 1, 1e6, info);
        if (!e)
            e = check_float("low_freq_factor", c->rope_low_freq, 1e-6, 1e6, info);
        if (!e)
            e = check_float("high_freq_factor", c->rope_high_freq, 1e-6, 1e6, info);
        if (!e)
            e = check_int("original_max_position_embeddings", c->rope_original_context, 1, 1 << 28,
                          info);
        if (!e && c->rope_high_freq <= c->rope_low_freq)
            e = err_set(info, ERR_FORMAT, NULL,
                        "high_freq_factor must be greater than low_freq_factor");
    }
    if (!e && c->rope_kind == MDL_ROPE_FACTORS)
        for (int i = 0; !e && i < c->head_dim / 2; i++)
            e = check_float("a RoPE frequency factor", c->rope_factors[i], 1e-6, 1e6, info);
    return e;
}

// Sampling defaults; a negative value stands for "not given".
static enum err check_sampling(const struct mdl_config *c, struct err_info *info) {
    enum err e = ERR_OK;
    if (c->gen_temperature >= 0 || isnan(c->gen_temperature))
        e = check_float("temperature", c->gen_temperature, 0, 100, info);
    if (!e && (c->gen_top_p >= 0 || isnan(c->gen_top_p)))
        e = check_float("top_p", c->gen_top_p, 1e-9, 1, info);
    if (!e && (c->gen_min_p >= 0 || isnan(c->gen_min_p)))
        e = check_float("min_p", c->gen_min_p, 0, 1, info);
    if (!e && (c->gen_repetition_penalty >= 0 || isnan(c->gen_repetition_penalty)))
        e = check_float("repetition_penalty", c->gen_repetition_penalty, 1e-3, 1e3, info);
    return e;
}

enum err mdl_config_check(const struct mdl_config *c, struct err_info *info) {
    enum err e = check_dims(c, info);
    if (!e)
        e = check_float("the RMS norm's epsilon", c->rms_eps, 0, 1, info);
    if (!e)
        e = check_rope(c, info);
    if (!e)
        e = check_sampling(c, info);
    return e;
}

// Llama 3.1's scaling (meta-llama/llama-models, apply_scaling): long waves are stretched by
// `factor`, short ones are kept, those between are blended.
static float llama3_scale(const struct mdl_config *c, float freq) {
    const float context = (float)c->rope_original_context;
    const float wavelen = 6.2831853071795864f / freq;
    if (wavelen < context / c->rope_high_freq)
        return freq;
    if (wavelen > context / c->rope_low_freq)
        return freq / c->rope_factor;
    float smooth = (context / wavelen - c->rope_low_freq) / (c->rope_high_freq - c->rope_low_freq);
    return (1 - smooth) * freq / c->rope_factor + smooth * freq;
}

void mdl_rope_inv_freq(const struct mdl_config *c, float *inv_freq) {
    for (int i = 0; i < c->head_dim / 2; i++) {
        // f32 as in the published models' own code; the power is worked out in f64 and rounded, so
        // that it does not depend on the C library.
        float exponent = (float)(2 * i) / (float)c->head_dim;
        float freq = 1.0f / (float)pow((double)c->rope_theta, (double)exponent);
        if (c->rope_kind == MDL_ROPE_LLAMA3)
            freq = llama3_scale(c, freq);
        else if (c->rope_kind == MDL_ROPE_FACTORS)
            freq /= c->rope_factors[i];
        inv_freq[i] = freq;
    }
}

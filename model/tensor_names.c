// SPDX-License-Identifier: Apache-2.0
// GGUF's names of a llama model's tensors, as Hugging Face calls them.
#include "model/source_internal.h"
#include <stdio.h>
#include <string.h>

static const struct {
    const char *gguf, *hf;
} whole[] = {
    {"token_embd.weight", "model.embed_tokens.weight"},
    {"output_norm.weight", "model.norm.weight"},
    {"output.weight", "lm_head.weight"},
};

// Behind "blk.<layer>." and "model.layers.<layer>."
static const struct {
    const char *gguf, *hf;
} in_layer[] = {
    {"attn_norm.weight", "input_layernorm.weight"},
    {"attn_q.weight", "self_attn.q_proj.weight"},
    {"attn_k.weight", "self_attn.k_proj.weight"},
    {"attn_v.weight", "self_attn.v_proj.weight"},
    {"attn_output.weight", "self_attn.o_proj.weight"},
    {"ffn_norm.weight", "post_attention_layernorm.weight"},
    {"ffn_gate.weight", "mlp.gate_proj.weight"},
    {"ffn_up.weight", "mlp.up_proj.weight"},
    {"ffn_down.weight", "mlp.down_proj.weight"},
    {"attn_q.bias", "self_attn.q_proj.bias"},
    {"attn_k.bias", "self_attn.k_proj.bias"},
    {"attn_v.bias", "self_attn.v_proj.bias"},
    {"attn_q_norm.weight", "self_attn.q_norm.weight"},
    {"attn_k_norm.weight", "self_attn.k_norm.weight"},
};

static bool equal(struct tok_str a, const char *b) {
    return a.n == strlen(b) && memcmp(a.p, b, a.n) == 0;
}

// Takes "<digits>." off the front; one spelling per number, so that two names never become one.
static bool take_layer(struct tok_str *s, int *layer) {
    size_t n = 0;
    *layer = 0;
    while (n < s->n && n < 5 && s->p[n] >= '0' && s->p[n] <= '9')
        *layer = *layer * 10 + (s->p[n++] - '0');
    if (n == 0 || n == s->n || s->p[n] != '.' || (n > 1 && s->p[0] == '0'))
        return false;
    *s = (struct tok_str){s->p + n + 1, s->n - n - 1};
    return true;
}

bool mdl__hf_name(struct tok_str name, char out[96]) {
    for (size_t i = 0; i < sizeof whole / sizeof *whole; i++) {
        if (equal(name, whole[i].gguf)) {
            snprintf(out, 96, "%s", whole[i].hf);
            return true;
        }
    }
    int layer;
    if (name.n < 4 || memcmp(name.p, "blk.", 4) != 0)
        return false;
    name = (struct tok_str){name.p + 4, name.n - 4};
    if (!take_layer(&name, &layer))
        return false;
    for (size_t i = 0; i < sizeof in_layer / sizeof *in_layer; i++) {
        if (equal(name, in_layer[i].gguf)) {
            snprintf(out, 96, "model.layers.%d.%s", layer, in_layer[i].hf);
            return true;
        }
    }
    return false;
}

// SPDX-License-Identifier: Apache-2.0
// The range of a unit, from its begin on:
//
//   KV blocks | per token and target | gradient of the residual | head or layer |
//   residual streams | kept layers
//
// Nothing is cleared: whatever lay there before, NaN too, no stage reads a value that the unit has
// not written, and attention takes none of a position that a row does not see. Head and layer share
// their part.
#include "finetune/lora/unit_internal.h"

enum {
    ALIGN = 64,      // bytes
    ROW_ALIGN = 16,  // elements
    MAX_SLICE = 128, // the transposed product's block of rows
    MIN_SLICE = 16,
    LOGITS_BYTES = 32 << 20,
};

// Rows that lie a multiple of 1 KiB apart would share few sets of the caches.
static int64_t padded_row(int64_t n) {
    n = (n + ROW_ALIGN - 1) / ROW_ALIGN * ROW_ALIGN;
    return n % 256 ? n : n + ROW_ALIGN;
}

static kn_addr take(size_t *used, size_t bytes) {
    size_t at = *used;
    *used += (bytes + ALIGN - 1) & ~(size_t)(ALIGN - 1);
    return at;
}

static kn_addr take_rows(size_t *used, int32_t rows, int64_t ld) {
    return take(used, (size_t)rows * (size_t)ld * sizeof(float));
}

int32_t lora__slice_rows(const struct mdl_weights *w, int32_t max_tokens) {
    int64_t fit = LOGITS_BYTES / (padded_row(w->config.vocab) * (int64_t)sizeof(float));
    fit = fit / MIN_SLICE * MIN_SLICE;
    fit = fit < MIN_SLICE ? MIN_SLICE : fit > MAX_SLICE ? MAX_SLICE : fit;
    return fit < max_tokens ? (int32_t)fit : max_tokens;
}

static int32_t padded_rank(const struct mdl_weights *w, const struct lora_params *p) {
    int32_t most = 0;
    for (int32_t l = 0; l < w->config.n_layers; l++)
        for (int t = 0; t < MDL_TARGETS; t++) {
            struct lora_module m;
            lora_params_module(p, l, (enum mdl_target)t, &m);
            most = m.r > most ? m.r : most;
        }
    return (most + ROW_ALIGN - 1) / ROW_ALIGN * ROW_ALIGN;
}

static size_t lay_out_head(const struct mdl_weights *w, int32_t tokens, int32_t slice, size_t used,
                           struct lora__buffers *b) {
    b->h = take_rows(&used, slice, b->ld_hidden);
    b->hn = take_rows(&used, slice, b->ld_hidden);
    b->hnq = take(&used, (size_t)slice * w->ops->form_row_bytes(KN_FORM_Q8, w->config.hidden));
    b->logits = take_rows(&used, slice, b->ld_vocab);
    b->dhn = take_rows(&used, slice, b->ld_hidden);
    b->dh = take_rows(&used, tokens, b->ld_hidden);
    return used;
}

static size_t lay_out_layer(int32_t tokens, int32_t rank, size_t used, struct lora__buffers *b) {
    b->xn = take_rows(&used, tokens, b->ld_hidden);
    b->dxn = take_rows(&used, tokens, b->ld_hidden);
    b->act = take_rows(&used, tokens, b->ld_inter);
    b->dact = take_rows(&used, tokens, b->ld_inter);
    b->dattn = take_rows(&used, tokens, b->ld_attn);
    b->dqkv = take_rows(&used, tokens, b->ld_qkv);
    b->u = take_rows(&used, tokens, rank);
    b->du = take_rows(&used, tokens, rank);
    return used;
}

// Offsets of everything; returns the size. Sums cannot overflow: each term is bounded by what the
// layer walk allocates for as many tokens, times the number of layers.
size_t lora__layout(const struct mdl_weights *w, const struct lora_params *p,
                    const struct lora_unit_limits *limits, int32_t tokens, int32_t n_kept,
                    int32_t slice, struct lora__buffers *b) {
    const struct mdl_config *c = &w->config;
    int32_t attn = w->n_heads * c->head_dim, qkv = attn + 2 * w->n_kv_heads * c->head_dim;
    size_t used = 0, n = (size_t)tokens;
    struct kn_kv_shape shape = {c->n_layers, w->n_kv_heads, c->head_dim};
    size_t blocks = (size_t)limits->max_tokens / KN_KV_BLOCK + (size_t)limits->max_seqs;
    *b = (struct lora__buffers){.ld_hidden = padded_row(c->hidden),
                                .ld_inter = padded_row(w->intermediate),
                                .ld_attn = padded_row(attn),
                                .ld_qkv = padded_row(qkv),
                                .ld_vocab = padded_row(c->vocab)};
    b->kv = take(&used, blocks * w->ops->kv_block_bytes(&shape));
    b->keys = take(&used, n * sizeof(uint64_t));
    b->targets = take(&used, n * sizeof(int32_t));
    b->weights = take(&used, n * sizeof(float));
    b->losses = take(&used, n * sizeof(float));
    b->hits = take(&used, n * sizeof(int32_t));
    b->rows = take(&used, n * sizeof(int32_t));
    b->g = take_rows(&used, tokens, b->ld_hidden);
    size_t head = lay_out_head(w, tokens, slice, used, b);
    size_t layer = lay_out_layer(tokens, padded_rank(w, p), used, b);
    used = head > layer ? head : layer;
    b->residual = take(&used, ((size_t)c->n_layers + 1) * n * (size_t)c->hidden * sizeof(float));
    size_t at = 0;
    take_rows(&at, tokens, qkv);
    take_rows(&at, tokens, attn);
    take_rows(&at, tokens, c->hidden);
    take_rows(&at, tokens, 2 * (int64_t)w->intermediate);
    if (c->qk_norm)
        take_rows(&at, tokens, attn);
    b->kept_bytes = at;
    b->kept = take(&used, (size_t)(n_kept < c->n_layers ? n_kept + 1 : n_kept) * at);
    return used;
}

void lora__place(struct lora_unit *u, kn_addr range) {
    struct lora__buffers *b = &u->buf;
    kn_addr *const all[] = {&b->kv,    &b->keys, &b->targets, &b->weights, &b->losses,   &b->hits,
                            &b->rows,  &b->g,    &b->h,       &b->hn,      &b->hnq,      &b->logits,
                            &b->dhn,   &b->dh,   &b->xn,      &b->dxn,     &b->act,      &b->dact,
                            &b->dattn, &b->dqkv, &b->u,       &b->du,      &b->residual, &b->kept};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        *all[i] += range;
}

size_t lora_unit_bytes(const struct mdl_weights *w, const struct lora_params *p,
                       const struct lora_unit_limits *limits, size_t *least) {
    struct lora__buffers b;
    int32_t slice = lora__slice_rows(w, limits->max_tokens);
    size_t none = lora__layout(w, p, limits, limits->max_tokens, 0, slice, &b) + ALIGN;
    if (least)
        *least = none;
    return limits->keep
               ? lora__layout(w, p, limits, limits->max_tokens, w->config.n_layers, slice, &b) +
                     ALIGN
               : none;
}

// A layer that is not kept has the first place.
void lora__kept(const struct lora_unit *u, int32_t layer, struct lora__kept *out) {
    const struct mdl_config *c = &u->w->config;
    int32_t spare = u->n_kept < c->n_layers, i = layer - (c->n_layers - u->n_kept);
    size_t used = (size_t)(i < 0 ? 0 : i + spare) * u->buf.kept_bytes;
    int32_t attn = u->w->n_heads * c->head_dim, tokens = u->row.n_tokens;
    out->qkv = u->buf.kept + take_rows(&used, tokens, u->w->layers[layer].qkv.n);
    out->attn_out = u->buf.kept + take_rows(&used, tokens, attn);
    out->ffn_in = u->buf.kept + take_rows(&used, tokens, c->hidden);
    out->gate_up = u->buf.kept + take_rows(&used, tokens, 2 * (int64_t)u->w->intermediate);
    out->q_in = c->qk_norm ? u->buf.kept + take_rows(&used, tokens, attn) : 0;
}

kn_addr lora__residual(const struct lora_unit *u, int32_t layer) {
    return u->buf.residual +
           (size_t)layer * (size_t)u->row.n_tokens * (size_t)u->w->config.hidden * sizeof(float);
}

// In the forward of the whole row the residual streams and the kept layers' activations are wanted,
// in that of one layer again its activations.
kn_addr lora__tape_place(void *arg, int32_t layer, enum mdl_tape_kind kind, int32_t rows,
                         int32_t width) {
    (void)rows;
    (void)width;
    const struct lora_unit *u = arg;
    bool again = u->at.stage == UNIT_AGAIN;
    if (kind == MDL_TAPE_FINAL)
        return lora__residual(u, u->w->config.n_layers);
    if (!u->row.backward)
        return 0;
    if (kind == MDL_TAPE_ATTN_IN)
        return again ? 0 : lora__residual(u, layer);
    if (!again && layer < u->w->config.n_layers - u->n_kept)
        return 0;
    struct lora__kept k;
    lora__kept(u, layer, &k);
    switch (kind) {
    case MDL_TAPE_QKV:
        return k.qkv;
    case MDL_TAPE_ATTN_OUT:
        return k.attn_out;
    case MDL_TAPE_FFN_IN:
        return k.ffn_in;
    case MDL_TAPE_Q:
        return k.q_in;
    default:
        return k.gate_up;
    }
}

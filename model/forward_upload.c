// SPDX-License-Identifier: Apache-2.0
// The batch's way to the device: mdl__forward_check looks at what the builder must guarantee where
// that costs no more than a pass over the tokens; mdl__forward_upload copies the arrays to fixed
// addresses, so that a step's recording stays valid for the next.
#include "base/mem.h"
#include "model/forward_internal.h"
#include <string.h>

enum { EXTRA_ALIGN = 16 };

void mdl__forward_meta_layout(const struct mdl_forward_limits *l, struct mdl__meta *m) {
    size_t tokens = (size_t)l->max_tokens * sizeof(int32_t);
    size_t seqs = (size_t)l->max_seqs * sizeof(int32_t);
    m->header = 0;
    m->ids = 4 * sizeof(int32_t);
    m->pos = m->ids + tokens;
    m->seq = m->pos + tokens;
    m->seq_start = m->seq + tokens;
    m->kv_len = m->seq_start + seqs + sizeof(int32_t);
    m->slot = m->kv_len + seqs;
    m->out_rows = m->slot + seqs;
    m->bytes = m->out_rows + (size_t)l->max_want * sizeof(int32_t);
}

static enum err check_counts(const struct mdl_forward *f, const struct mdl_batch *b,
                             struct err_info *info) {
    const struct mdl_forward_limits *l = &f->limits;
    if (b->n_tokens < 1 || b->n_tokens > l->max_tokens)
        return err_set(info, ERR_LIMIT, NULL, "batch of %d tokens, limit %d", b->n_tokens,
                       l->max_tokens);
    if (b->n_seqs < 1 || b->n_seqs > l->max_seqs || b->n_seqs > b->n_tokens)
        return err_set(info, ERR_LIMIT, NULL, "batch of %d sequences, limit %d, %d tokens",
                       b->n_seqs, l->max_seqs, b->n_tokens);
    if (b->n_want < 0 || b->n_want > l->max_want)
        return err_set(info, ERR_LIMIT, NULL, "batch wants %d positions, limit %d", b->n_want,
                       l->max_want);
    if (b->max_blocks < 1 || b->max_blocks > l->max_blocks)
        return err_set(info, ERR_LIMIT, NULL, "batch has %d blocks a sequence, limit %d",
                       b->max_blocks, l->max_blocks);
    return ERR_OK;
}

static enum err check_seqs(const struct mdl_forward *f, const struct mdl_batch *b,
                           struct err_info *info) {
    if (b->seq_start[0] != 0 || b->seq_start[b->n_seqs] != b->n_tokens)
        return err_set(info, ERR_INVALID, NULL, "the sequences do not cover the batch's tokens");
    for (int32_t s = 0; s < b->n_seqs; s++) {
        int32_t begin = b->seq_start[s], end = b->seq_start[s + 1];
        if (end <= begin || end > b->n_tokens)
            return err_set(info, ERR_INVALID, NULL, "sequence %d has no tokens in the batch", s);
        if (b->kv_len[s] < 1 || (b->kv_len[s] - 1) / KN_KV_BLOCK >= b->max_blocks)
            return err_set(info, ERR_INVALID, NULL, "sequence %d: %d positions in %d blocks", s,
                           b->kv_len[s], b->max_blocks);
        for (int32_t t = begin; t < end; t++)
            if (b->pos[t] != b->kv_len[s] - (end - t) || b->pos[t] < 0)
                return err_set(info, ERR_INVALID, NULL,
                               "token %d stands at position %d of a sequence of %d", t, b->pos[t],
                               b->kv_len[s]);
    }
    for (int32_t t = 0; t < b->n_tokens; t++)
        if (b->ids[t] >= f->w->config.vocab || (b->ids[t] < 0 && ~b->ids[t] >= f->previous))
            return err_set(info, ERR_INVALID, NULL, "token %d has id %d", t, b->ids[t]);
    return ERR_OK;
}

static enum err check_wants(const struct mdl_forward *f, const struct mdl_batch *b,
                            struct err_info *info) {
    for (int32_t i = 0; i < b->n_want; i++) {
        const struct mdl_want *w = &b->want[i];
        const struct kn_sample_row *p = &w->params;
        if (w->row < 0 || w->row >= b->n_tokens)
            return err_set(info, ERR_INVALID, NULL, "wanted position %d is row %d of %d", i, w->row,
                           b->n_tokens);
        if (p->n_bias < 0 || p->n_counts < 0 || (p->n_bias && !w->bias) ||
            (p->n_counts && !w->counts) || p->target >= f->w->config.vocab ||
            p->n_logprobs > KN_MAX_TOP_LOGPROBS)
            return err_set(info, ERR_INVALID, NULL, "wanted position %d has invalid parameters", i);
    }
    return ERR_OK;
}

enum err mdl__forward_check(const struct mdl_forward *f, const struct mdl_batch *b,
                            const struct mdl_kv *kv, struct err_info *info) {
    const struct mdl_config *c = &f->w->config;
    if (!kv->pool || kv->shape.layers != c->n_layers || kv->shape.kv_heads != f->w->n_kv_heads ||
        kv->shape.head_dim != c->head_dim)
        return err_set(info, ERR_INVALID, NULL, "the KV cache has another shape than the model");
    enum err e = check_counts(f, b, info);
    if (!e)
        e = check_seqs(f, b, info);
    if (!e)
        e = check_wants(f, b, info);
    return e;
}

static size_t padded(size_t bytes) {
    return (bytes + EXTRA_ALIGN - 1) / EXTRA_ALIGN * EXTRA_ALIGN;
}

static size_t mask_bytes(const struct mdl_forward *f, const struct mdl_want *w) {
    return w->mask ? ((size_t)f->w->config.vocab + 31) / 32 * sizeof(uint32_t) : 0;
}

static enum err reserve_extra(struct mdl_forward *f, size_t bytes) {
    if (bytes <= f->extra_bytes)
        return ERR_OK;
    if (bytes < 2 * f->extra_bytes)
        bytes = 2 * f->extra_bytes;
    unsigned char *stage = mem_alloc(bytes);
    kn_addr extra;
    enum err e = stage ? f->ops->alloc(f->device, bytes, &extra) : ERR_NOMEM;
    if (e) {
        mem_free(stage);
        return e;
    }
    if (f->extra)
        f->ops->free(f->device, f->extra, f->extra_bytes);
    mem_free(f->extra_stage);
    f->extra = extra;
    f->extra_stage = stage;
    f->extra_bytes = bytes;
    return ERR_OK;
}

// Copies bytes to the host image; returns where they will be on the device.
static kn_addr put(struct mdl_forward *f, size_t *used, const void *src, size_t bytes) {
    if (!bytes)
        return 0;
    memcpy(f->extra_stage + *used, src, bytes);
    kn_addr at = f->extra + *used;
    *used += padded(bytes);
    return at;
}

static enum err upload_wants(struct mdl_forward *f, const struct mdl_batch *b) {
    size_t need = 0, used = 0;
    for (int32_t i = 0; i < b->n_want; i++) {
        const struct mdl_want *w = &b->want[i];
        need += padded((size_t)w->params.n_bias * sizeof *w->bias) +
                padded((size_t)w->params.n_counts * sizeof *w->counts) + padded(mask_bytes(f, w));
    }
    enum err e = reserve_extra(f, need);
    if (e)
        return e;
    for (int32_t i = 0; i < b->n_want; i++) {
        const struct mdl_want *w = &b->want[i];
        struct kn_sample_row *r = &f->rows[i];
        *r = w->params;
        r->bias = put(f, &used, w->bias, (size_t)r->n_bias * sizeof *w->bias);
        r->counts = put(f, &used, w->counts, (size_t)r->n_counts * sizeof *w->counts);
        r->mask = put(f, &used, w->mask, mask_bytes(f, w));
    }
    if (used)
        e = f->ops->upload(f->q, f->extra, f->extra_stage, used);
    if (!e && b->n_want)
        e = f->ops->upload(f->q, f->buf.sample_rows, f->rows, (size_t)b->n_want * sizeof *f->rows);
    return e;
}

static void stage_arrays(struct mdl_forward *f, const struct mdl_batch *b) {
    const struct mdl__meta *m = &f->meta;
    size_t tokens = (size_t)b->n_tokens * sizeof(int32_t);
    size_t seqs = (size_t)b->n_seqs * sizeof(int32_t);
    const int32_t header[4] = {b->n_tokens, b->n_seqs, b->n_want, 0};
    memcpy(f->stage + m->header, header, sizeof header);
    memcpy(f->stage + m->ids, b->ids, tokens);
    memcpy(f->stage + m->pos, b->pos, tokens);
    memcpy(f->stage + m->seq_start, b->seq_start, seqs + sizeof(int32_t));
    memcpy(f->stage + m->kv_len, b->kv_len, seqs);
    if (b->slot)
        memcpy(f->stage + m->slot, b->slot, seqs);
    else
        memset(f->stage + m->slot, 0xff, seqs); // -1
    for (int32_t s = 0; s < b->n_seqs; s++)
        for (int32_t t = b->seq_start[s]; t < b->seq_start[s + 1]; t++)
            memcpy(f->stage + m->seq + (size_t)t * sizeof s, &s, sizeof s);
    f->rows_are_wants = b->n_want == b->n_tokens;
    for (int32_t i = 0; i < b->n_want; i++) {
        memcpy(f->stage + m->out_rows + (size_t)i * sizeof i, &b->want[i].row, sizeof i);
        f->rows_are_wants &= b->want[i].row == i;
    }
}

// Query-key pairs, from which the time of attention is estimated.
static double count_pairs(const struct mdl_batch *b, int32_t window) {
    double pairs = 0;
    for (int32_t t = 0; t < b->n_tokens; t++)
        pairs += window > 0 && b->pos[t] >= window ? window : b->pos[t] + 1;
    return pairs;
}

enum err mdl__forward_upload(struct mdl_forward *f, const struct mdl_batch *b) {
    stage_arrays(f, b);
    f->attn_work = count_pairs(b, f->w->config.window);
    kn_addr at = f->buf.meta;
    const struct mdl__meta *m = &f->meta;
    f->batch = (struct kn_batch){.n_tokens = b->n_tokens,
                                 .n_seqs = b->n_seqs,
                                 .n_out = b->n_want,
                                 .header = at + m->header,
                                 .ids = at + m->ids,
                                 .pos = at + m->pos,
                                 .seq = at + m->seq,
                                 .seq_start = at + m->seq_start,
                                 .kv_len = at + m->kv_len,
                                 .block_table = f->buf.block_table,
                                 .max_blocks = b->max_blocks,
                                 .slot = at + m->slot,
                                 .out_rows = at + m->out_rows};
    enum err e = f->ops->upload(f->q, f->buf.meta, f->stage, m->bytes);
    if (!e)
        e = f->ops->upload(f->q, f->buf.block_table, b->block_table,
                           (size_t)b->n_seqs * (size_t)b->max_blocks * sizeof *b->block_table);
    if (!e)
        e = upload_wants(f, b);
    return e;
}

// SPDX-License-Identifier: Apache-2.0
// The walk: one function per stage, in the order of enum mdl__stage. Shapes in comments: T tokens
// of the batch, R rows in hand (T, or the wanted ones after STAGE_PRUNE), H hidden, Q = (heads + 2
// kv_heads) * head_dim, A = heads * head_dim, I intermediate, V vocabulary.
//
// A stage that is done leaves at.stage at the next one; a stage that was cut leaves at.done where
// it goes on.
#include "model/forward_internal.h"
#include <math.h>

enum { CUT_TOKENS = 16, CUT_ROWS = 16 };

static bool takes(const struct mdl_matrix *m, enum kn_form form) {
    return m->forms >> form & 1;
}

static const struct mdl_layer *layer(const struct mdl_forward *f) {
    return &f->w->layers[f->at.layer];
}

static bool stage_begins(const struct mdl_forward *f) {
    return !f->at.done && !f->at.row;
}

static kn_addr place(struct mdl_forward *f, enum mdl_tape_kind kind, int32_t width) {
    return f->tape ? f->tape->place(f->tape->arg, f->at.layer, kind, f->at.rows, width) : 0;
}

static kn_addr row_of(const struct mdl_forward *f, kn_addr base, int64_t ld, int32_t row) {
    return base + (size_t)row * (size_t)ld * f->plain_bytes;
}

static enum err copy_rows(struct mdl_forward *f, kn_addr src, int64_t ld_src, kn_addr dst,
                          int64_t ld_dst, kn_addr rows, int32_t n, int32_t k) {
    struct kn_gather g = {
        .src = src, .dst = dst, .ld_src = ld_src, .ld_dst = ld_dst, .rows = rows, .n = n, .k = k};
    return f->ops->gather(f->q, &g);
}

// Rows [row, row + n) of one residual stream to another.
static enum err copy_residual(struct mdl_forward *f, kn_addr src, int64_t ld_src, kn_addr dst,
                              int64_t ld_dst, int32_t row, int32_t n) {
    return copy_rows(f, row_of(f, src, ld_src, row), ld_src, row_of(f, dst, ld_dst, row), ld_dst,
                     f->buf.identity, n, f->w->config.hidden);
}

// Rows of the residual stream go onto the tape as they are now.
static enum err tape_residual(struct mdl_forward *f, enum mdl_tape_kind kind, int32_t row,
                              int32_t n) {
    int32_t width = f->w->config.hidden;
    if (!f->taped[kind])
        return ERR_OK;
    return copy_residual(f, f->residual, f->buf.ld_hidden, f->taped[kind], width, row, n);
}

// Rows from at.done on that an operation of so many bytes a row does now.
static int32_t take_rows(struct mdl_forward *f, struct mdl__account *a, double bytes) {
    int32_t left = f->at.rows - f->at.done;
    int32_t n = mdl__cut(f, a, left, bytes * MDL__NS_PER_BYTE * left, CUT_ROWS);
    mdl__spend(f, a, bytes * n, 0);
    f->at.done += n;
    return n;
}

// x[T, H] = embedding rows; the rotation table of the step.
static enum err stage_embed(struct mdl_forward *f, struct mdl__account *a) {
    const struct mdl_config *c = &f->w->config;
    int32_t row = f->at.done, n = take_rows(f, a, c->hidden * 8.0 + c->head_dim * 32.0);
    struct kn_embed p = {.w = f->w->embed,
                         .batch = &f->batch,
                         .prev_tokens = f->buf.tokens,
                         .x = f->residual,
                         .ldx = f->buf.ld_hidden,
                         .token_begin = row,
                         .token_end = row + n};
    struct kn_rope_table t = {.batch = &f->batch,
                              .inv_freq = f->w->inv_freq,
                              .scale = 1.0F,
                              .dim = c->head_dim,
                              .table = f->buf.rope,
                              .token_begin = row,
                              .token_end = row + n};
    if (row + n == f->at.rows)
        mdl__next(f);
    enum err e = f->ops->embed(f->q, &p);
    return e ? e : f->ops->rope_table(f->q, &t);
}

// xn[R, H] = rmsnorm(residual) * weight, in the forms that `m` multiplies and hooks read.
// The same rows of the residual go onto the tape as `kind` before.
static enum err norm(struct mdl_forward *f, struct mdl__account *a, kn_addr weight,
                     const struct mdl_matrix *m, enum mdl_linear which, enum mdl_tape_kind kind) {
    const struct mdl_config *c = &f->w->config;
    if (stage_begins(f))
        f->taped[kind] = place(f, kind, c->hidden);
    bool from = f->at.again && kind == MDL_TAPE_ATTN_IN;
    double copies = 8.0 * c->hidden * ((f->taped[kind] != 0) + from);
    int32_t row = f->at.done, n = take_rows(f, a, 8.0 * c->hidden + copies);
    int64_t ld = f->buf.ld_hidden;
    enum err e = ERR_OK;
    if (from)
        e = copy_residual(f, f->again_from, c->hidden, f->residual, ld, row, n);
    if (!e)
        e = tape_residual(f, kind, row, n);
    bool plain = mdl__hooked(f, which) || takes(m, KN_FORM_PLAIN), q8 = takes(m, KN_FORM_Q8);
    size_t q8_row = f->ops->form_row_bytes(KN_FORM_Q8, c->hidden);
    struct kn_rmsnorm p = {.x = row_of(f, f->residual, ld, row),
                           .ldx = ld,
                           .weight = weight,
                           .eps = c->rms_eps,
                           .rows = n,
                           .k = c->hidden,
                           .y = plain ? row_of(f, f->spare, ld, row) : 0,
                           .ldy = ld,
                           .yq = q8 ? f->buf.xnq + (size_t)row * q8_row : 0};
    if (f->at.done == f->at.rows)
        mdl__next(f);
    return e ? e : f->ops->rmsnorm(f->q, &p);
}

static enum err stage_attn_norm(struct mdl_forward *f, struct mdl__account *a) {
    return norm(f, a, layer(f)->attn_norm, &layer(f)->qkv, MDL_QKV, MDL_TAPE_ATTN_IN);
}

// Where this layer's qkv and attention output lie: on the tape if it wants them.
static kn_addr qkv_at(const struct mdl_forward *f, int64_t *ld) {
    kn_addr taped = f->taped[MDL_TAPE_QKV];
    *ld = taped ? layer(f)->qkv.n : f->buf.ld_qkv;
    return taped ? taped : f->buf.qkv;
}

static kn_addr attn_at(const struct mdl_forward *f, int64_t *ld) {
    kn_addr taped = f->taped[MDL_TAPE_ATTN_OUT];
    *ld = taped ? layer(f)->o.k : f->buf.ld_attn;
    return taped ? taped : f->buf.attn;
}

// qkv[T, Q] = xn Wqkvᵀ (+ bias)
static enum err stage_qkv(struct mdl_forward *f, struct mdl__account *a) {
    if (stage_begins(f))
        f->taped[MDL_TAPE_QKV] = place(f, MDL_TAPE_QKV, layer(f)->qkv.n);
    struct mdl__product p = {.m = &layer(f)->qkv,
                             .x = f->spare,
                             .xq = f->buf.xnq,
                             .ldx = f->buf.ld_hidden,
                             .bias = layer(f)->qkv_bias,
                             .rows = f->at.rows,
                             .epilogue = KN_GEMM_STORE};
    p.y = qkv_at(f, &p.ldy);
    return mdl__linear(f, a, &p, MDL_QKV);
}

// Rotates q and k; k and v go into the cache.
static enum err stage_rope_kv(struct mdl_forward *f, struct mdl__account *a) {
    const struct mdl_config *c = &f->w->config;
    int32_t row = f->at.done, n = take_rows(f, a, layer(f)->qkv.n * 8.0);
    struct kn_rope_kv p = {.batch = &f->batch,
                           .table = f->buf.rope,
                           .q_norm = layer(f)->q_norm,
                           .k_norm = layer(f)->k_norm,
                           .eps = c->rms_eps,
                           .pool = f->kv.pool,
                           .shape = f->kv.shape,
                           .layer = f->at.layer,
                           .heads = f->w->n_heads,
                           .token_begin = row,
                           .token_end = row + n};
    p.qkv = qkv_at(f, &p.ldqkv);
    if (p.q_norm)
        p.q_in = place(f, MDL_TAPE_Q, p.heads * c->head_dim);
    if (f->at.done == f->at.rows) {
        mdl__next(f);
        // Nothing reads what the last layer makes of rows that nobody wants.
        if (f->at.layer == c->n_layers - 1 && !f->batch.n_out && !f->tape)
            f->at.stage = STAGE_DONE;
    }
    return f->ops->rope_kv(f->q, &p);
}

static bool prunes(const struct mdl_forward *f) {
    return f->at.layer == f->w->config.n_layers - 1 && f->batch.n_out < f->batch.n_tokens &&
           !f->tape && !mdl__hooked(f, MDL_O) && !mdl__hooked(f, MDL_GATE_UP) &&
           !mdl__hooked(f, MDL_DOWN);
}

// attn[T, A]: softmax(q kᵀ / sqrt(head_dim)) v over the cache
static enum err stage_attn(struct mdl_forward *f, struct mdl__account *a) {
    const struct mdl_config *c = &f->w->config;
    const struct mdl_matrix *o = &layer(f)->o;
    if (stage_begins(f))
        f->taped[MDL_TAPE_ATTN_OUT] = place(f, MDL_TAPE_ATTN_OUT, o->k);
    double flops = f->attn_work / f->at.rows * 4.0 * o->k;
    int32_t rest = f->at.rows - f->at.done;
    int32_t count = mdl__cut(f, a, rest, flops * MDL__NS_PER_FLOP * rest, CUT_TOKENS);
    struct kn_attn p = {.batch = &f->batch,
                        .pool = f->kv.pool,
                        .shape = f->kv.shape,
                        .layer = f->at.layer,
                        .heads = f->w->n_heads,
                        .window = c->window,
                        .scale = 1.0F / sqrtf((float)c->head_dim),
                        .outq = takes(o, KN_FORM_Q8) && !prunes(f) ? f->buf.attnq : 0,
                        .token_begin = f->at.done,
                        .token_end = f->at.done + count};
    p.q = qkv_at(f, &p.ldq);
    p.out = attn_at(f, &p.ldout);
    mdl__spend(f, a, 0, flops * count);
    f->at.done += count;
    if (f->at.done == f->at.rows)
        mdl__next(f);
    return f->ops->attn(f->q, &p);
}

// Gathers the wanted rows of the residual and of the attention output. The places of xn and qkv are
// free by now.
static enum err stage_prune(struct mdl_forward *f, struct mdl__account *a) {
    if (!prunes(f)) {
        mdl__next(f);
        return ERR_OK;
    }
    const struct mdl_matrix *o = &layer(f)->o;
    int32_t n = f->batch.n_out;
    kn_addr rows = f->batch.out_rows;
    enum err e = copy_rows(f, f->residual, f->buf.ld_hidden, f->spare, f->buf.ld_hidden, rows, n,
                           f->w->config.hidden);
    if (!e)
        e = copy_rows(f, f->buf.attn, f->buf.ld_attn, f->buf.qkv, f->buf.ld_attn, rows, n, o->k);
    struct kn_quantize p = {
        .x = f->buf.qkv, .ldx = f->buf.ld_attn, .yq = f->buf.attnq, .rows = n, .k = o->k};
    if (!e && takes(o, KN_FORM_Q8))
        e = f->ops->quantize(f->q, &p);
    kn_addr residual = f->spare;
    f->spare = f->residual;
    f->residual = residual;
    f->at.rows = n;
    mdl__spend(f, a, (double)n * o->k * 24, 0);
    mdl__next(f);
    return e;
}

// residual[R, H] += attn Woᵀ
static enum err stage_o(struct mdl_forward *f, struct mdl__account *a) {
    struct mdl__product p = {.m = &layer(f)->o,
                             .xq = f->buf.attnq,
                             .y = f->residual,
                             .ldy = f->buf.ld_hidden,
                             .rows = f->at.rows,
                             .epilogue = KN_GEMM_ADD};
    p.x = attn_at(f, &p.ldx);
    if (prunes(f))
        p.x = f->buf.qkv;
    return mdl__linear(f, a, &p, MDL_O);
}

static enum err stage_ffn_norm(struct mdl_forward *f, struct mdl__account *a) {
    return norm(f, a, layer(f)->ffn_norm, &layer(f)->gate_up, MDL_GATE_UP, MDL_TAPE_FFN_IN);
}

// Whether the product itself makes silu(gate) * up.
static bool fuses(const struct mdl_forward *f) {
    return !mdl__hooked(f, MDL_GATE_UP) && !f->taped[MDL_TAPE_GATE_UP] &&
           layer(f)->gate_up.n_parts == 1;
}

// act[R, I]: over gate's own place where gate | up lie in the workspace
static kn_addr act_at(const struct mdl_forward *f, int64_t *ld) {
    bool in_place = !fuses(f) && !f->taped[MDL_TAPE_GATE_UP];
    *ld = in_place ? f->buf.ld_gate_up : f->buf.ld_inter;
    return f->buf.gate_up;
}

// act[R, I] = silu(xn Wgateᵀ) * (xn Wupᵀ), or gate | up [R, 2 I] apart
static enum err stage_gate_up(struct mdl_forward *f, struct mdl__account *a) {
    const struct mdl_matrix *m = &layer(f)->gate_up;
    if (stage_begins(f))
        f->taped[MDL_TAPE_GATE_UP] = place(f, MDL_TAPE_GATE_UP, m->n);
    kn_addr taped = f->taped[MDL_TAPE_GATE_UP];
    struct mdl__product p = {.m = m,
                             .x = f->spare,
                             .xq = f->buf.xnq,
                             .ldx = f->buf.ld_hidden,
                             .y = taped ? taped : f->buf.gate_up,
                             .ldy = taped      ? m->n
                                    : fuses(f) ? f->buf.ld_inter
                                               : f->buf.ld_gate_up,
                             .rows = f->at.rows,
                             .epilogue = fuses(f) ? KN_GEMM_SWIGLU : KN_GEMM_STORE,
                             .gate_up = m->n_parts == 1};
    enum err e = mdl__linear(f, a, &p, MDL_GATE_UP);
    if (f->at.again && f->at.stage != STAGE_GATE_UP)
        f->at.stage = STAGE_DONE;
    return e;
}

// What `down` multiplies: silu(gate) * up if that was not fused, and its Q8 form.
static enum err stage_act(struct mdl_forward *f, struct mdl__account *a) {
    const struct mdl_matrix *m = &layer(f)->gate_up;
    kn_addr taped = f->taped[MDL_TAPE_GATE_UP];
    int64_t ld, ldx = taped ? m->n : f->buf.ld_gate_up;
    kn_addr act = act_at(f, &ld);
    int32_t row = f->at.done, n = take_rows(f, a, (fuses(f) ? 4.0 : 16.0) * m->n);
    act = row_of(f, act, ld, row);
    struct kn_swiglu s = {.x = row_of(f, taped ? taped : f->buf.gate_up, ldx, row),
                          .ldx = ldx,
                          .y = act,
                          .ldy = ld,
                          .rows = n,
                          .k = m->n / 2};
    size_t q8_row = f->ops->form_row_bytes(KN_FORM_Q8, m->n / 2);
    struct kn_quantize z = {
        .x = act, .ldx = ld, .yq = f->buf.actq + (size_t)row * q8_row, .rows = n, .k = m->n / 2};
    enum err e = fuses(f) ? ERR_OK : f->ops->swiglu(f->q, &s);
    if (!e && takes(&layer(f)->down, KN_FORM_Q8))
        e = f->ops->quantize(f->q, &z);
    if (f->at.done == f->at.rows)
        mdl__next(f);
    return e;
}

// residual[R, H] += act Wdownᵀ; then the next layer
static enum err stage_down(struct mdl_forward *f, struct mdl__account *a) {
    struct mdl__product p = {.m = &layer(f)->down,
                             .xq = f->buf.actq,
                             .y = f->residual,
                             .ldy = f->buf.ld_hidden,
                             .rows = f->at.rows,
                             .epilogue = KN_GEMM_ADD};
    p.x = act_at(f, &p.ldx);
    enum err e = mdl__linear(f, a, &p, MDL_DOWN);
    if (f->at.stage != STAGE_DOWN) {
        f->at.layer++;
        if (f->at.layer < f->w->config.n_layers)
            f->at.stage = STAGE_ATTN_NORM;
    }
    return e;
}

static enum err stage_final(struct mdl_forward *f, struct mdl__account *a) {
    if (stage_begins(f))
        f->taped[MDL_TAPE_FINAL] = place(f, MDL_TAPE_FINAL, f->w->config.hidden);
    int32_t row = f->at.done, n = f->at.rows;
    if (f->taped[MDL_TAPE_FINAL])
        n = take_rows(f, a, 8.0 * f->w->config.hidden);
    enum err e = tape_residual(f, MDL_TAPE_FINAL, row, n);
    if (row + n == f->at.rows)
        mdl__next(f);
    if (f->at.stage != STAGE_FINAL && !f->batch.n_out)
        f->at.stage = STAGE_DONE;
    return e;
}

static int32_t slice(const struct mdl_forward *f) {
    int32_t rest = f->batch.n_out - f->at.want;
    return rest < f->slice_rows ? rest : f->slice_rows;
}

// hn[S, H]: the final norm of the wanted rows
static enum err stage_head_norm(struct mdl_forward *f, struct mdl__account *a) {
    const struct mdl_config *c = &f->w->config;
    const struct mdl_matrix *m = &f->w->head;
    int32_t n = slice(f);
    size_t first = (size_t)f->at.want;
    struct kn_rmsnorm p = {.ldx = f->buf.ld_hidden,
                           .weight = f->w->final_norm,
                           .eps = c->rms_eps,
                           .rows = n,
                           .k = c->hidden,
                           .y = takes(m, KN_FORM_PLAIN) ? f->buf.hn : 0,
                           .ldy = f->buf.ld_hidden,
                           .yq = takes(m, KN_FORM_Q8) ? f->buf.hnq : 0};
    enum err e = ERR_OK;
    if (f->rows_are_wants || f->at.rows != f->batch.n_tokens) { // in the wanted order already
        p.x = f->residual + first * (size_t)f->buf.ld_hidden * f->plain_bytes;
    } else {
        p.x = f->buf.h;
        e = copy_rows(f, f->residual, f->buf.ld_hidden, f->buf.h, f->buf.ld_hidden,
                      f->batch.out_rows + first * sizeof(int32_t), n, c->hidden);
    }
    mdl__spend(f, a, (double)n * c->hidden * 16, 0);
    mdl__next(f);
    return e ? e : f->ops->rmsnorm(f->q, &p);
}

// logits[S, V] = hn Wheadᵀ
static enum err stage_logits(struct mdl_forward *f, struct mdl__account *a) {
    struct mdl__product p = {.m = &f->w->head,
                             .x = f->buf.hn,
                             .xq = f->buf.hnq,
                             .ldx = f->buf.ld_hidden,
                             .y = f->buf.logits,
                             .ldy = f->buf.ld_vocab,
                             .rows = slice(f),
                             .epilogue = KN_GEMM_STORE};
    bool all;
    enum err e = mdl__product(f, a, &p, &all);
    if (all)
        mdl__next(f);
    return e;
}

static enum err stage_sample(struct mdl_forward *f, struct mdl__account *a) {
    int32_t n = slice(f), vocab = f->w->config.vocab;
    size_t first = (size_t)f->at.want, row = (size_t)f->buf.ld_vocab * f->plain_bytes;
    enum err e = ERR_OK;
    for (int32_t i = 0; f->capture && i < n && !e; i++)
        e = f->ops->download(f->q, f->capture + (first + (size_t)i) * (size_t)vocab,
                             f->buf.logits + (size_t)i * row, (size_t)vocab * sizeof(float));
    struct kn_sample p = {.logits = f->buf.logits,
                          .ld = f->buf.ld_vocab,
                          .rows = n,
                          .vocab = vocab,
                          .params = f->buf.sample_rows + first * sizeof(struct kn_sample_row),
                          .out = f->buf.sample_outs + first * sizeof(struct kn_sample_out),
                          .tokens = f->buf.tokens + first * sizeof(int32_t)};
    if (!e)
        e = f->ops->sample(f->q, &p);
    mdl__spend(f, a, (double)n * vocab * 8, 0);
    f->at.want += n;
    mdl__next(f);
    if (f->at.want < f->batch.n_out)
        f->at.stage = STAGE_HEAD_NORM;
    return e;
}

static enum err stage_results(struct mdl_forward *f, struct mdl__account *a) {
    (void)a;
    mdl__next(f);
    return f->ops->download(f->q, f->samples, f->buf.sample_outs,
                            (size_t)f->batch.n_out * sizeof *f->samples);
}

enum err mdl__forward_stage(struct mdl_forward *f, struct mdl__account *a) {
    static enum err (*const stages[])(struct mdl_forward *, struct mdl__account *) = {
        [STAGE_EMBED] = stage_embed,
        [STAGE_ATTN_NORM] = stage_attn_norm,
        [STAGE_QKV] = stage_qkv,
        [STAGE_ROPE_KV] = stage_rope_kv,
        [STAGE_ATTN] = stage_attn,
        [STAGE_PRUNE] = stage_prune,
        [STAGE_O] = stage_o,
        [STAGE_FFN_NORM] = stage_ffn_norm,
        [STAGE_GATE_UP] = stage_gate_up,
        [STAGE_ACT] = stage_act,
        [STAGE_DOWN] = stage_down,
        [STAGE_FINAL] = stage_final,
        [STAGE_HEAD_NORM] = stage_head_norm,
        [STAGE_LOGITS] = stage_logits,
        [STAGE_SAMPLE] = stage_sample,
        [STAGE_RESULTS] = stage_results,
    };
    return stages[f->at.stage](f, a);
}

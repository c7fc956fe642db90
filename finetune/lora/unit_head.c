// SPDX-License-Identifier: Apache-2.0
// The loss of the target rows and its gradient as far as the last layer's output, a slice of rows
// at a time: only so many rows of logits exist at once.
#include "finetune/lora/unit_internal.h"

enum { CUT_COLUMNS = 64, XENT_ROWS = 4 };

static bool takes(const struct mdl_matrix *m, enum kn_form form) {
    return m->forms >> form & 1;
}

static int32_t slice(const struct lora_unit *u) {
    int32_t rest = u->n_targets - u->at.want;
    return rest < u->slice_rows ? rest : u->slice_rows;
}

static kn_addr element(kn_addr base, int64_t at) {
    return base + (kn_addr)at * sizeof(float);
}

// h[S, H]: the target rows of the last layer's output; hn: their norm, as serving makes it
static enum err stage_norm(struct lora_unit *u, struct lora__account *a) {
    const struct mdl_config *c = &u->w->config;
    const struct mdl_matrix *m = &u->w->head;
    int32_t n = slice(u);
    struct kn_gather g = {.src = lora__residual(u, c->n_layers),
                          .dst = u->buf.h,
                          .ld_src = c->hidden,
                          .ld_dst = u->buf.ld_hidden,
                          .rows = u->buf.rows + (size_t)u->at.want * sizeof(int32_t),
                          .n = n,
                          .k = c->hidden};
    struct kn_rmsnorm r = {.x = u->buf.h,
                           .ldx = u->buf.ld_hidden,
                           .weight = u->w->final_norm,
                           .eps = c->rms_eps,
                           .rows = n,
                           .k = c->hidden,
                           .y = takes(m, KN_FORM_PLAIN) ? u->buf.hn : 0,
                           .ldy = u->buf.ld_hidden,
                           .yq = takes(m, KN_FORM_Q8) ? u->buf.hnq : 0};
    lora__spend(u, a, (double)n * c->hidden * 16, 0);
    lora__next(u);
    enum err e = u->ops->gather(u->q, &g);
    return e ? e : u->ops->rmsnorm(u->q, &r);
}

// logits[S, V] = hn Wheadᵀ, in pieces of columns
static enum err stage_logits(struct lora_unit *u, struct lora__account *a) {
    const struct mdl_matrix *m = &u->w->head;
    int part = 0;
    int32_t offset = 0, rows = slice(u);
    while (u->at.done >= offset + m->part_n[part])
        offset += m->part_n[part++];
    const struct kn_weight *w = m->part[part];
    int32_t begin = u->at.done - offset, left = m->part_n[part] - begin;
    double bytes = (double)u->ops->weight_bytes(w) / m->part_n[part], flops = 2.0 * m->k * rows;
    int32_t n = lora__cut(u, a, left, bytes * left, flops * left, CUT_COLUMNS);
    struct kn_gemm g = {.w = w,
                        .x = u->ops->weight_form(w) == KN_FORM_Q8 ? u->buf.hnq : u->buf.hn,
                        .ldx = u->buf.ld_hidden,
                        .y = element(u->buf.logits, offset),
                        .ldy = u->buf.ld_vocab,
                        .rows = rows,
                        .n_begin = begin,
                        .n_end = begin + n,
                        .epilogue = KN_GEMM_STORE};
    lora__spend(u, a, bytes * n, flops * n);
    u->at.done += n;
    if (u->at.done == m->n)
        lora__next(u);
    return u->ops->gemm(u->q, &g);
}

static void next_slice(struct lora_unit *u) {
    u->at.want += slice(u);
    if (u->at.want < u->n_targets)
        lora__goto(u, UNIT_HEAD_NORM);
    else
        lora__goto(u, u->row.backward ? UNIT_SCATTER : UNIT_RESULTS);
}

// losses and hits [S]; the logits become their gradient
static enum err stage_xent(struct lora_unit *u, struct lora__account *a) {
    int32_t vocab = u->w->config.vocab, left = slice(u) - u->at.done;
    double bytes = (double)vocab * 40;
    int32_t n = lora__cut(u, a, left, bytes * left, 0, XENT_ROWS);
    int64_t at = u->at.want + u->at.done;
    struct kn_xent p = {.logits = element(u->buf.logits, u->at.done * u->buf.ld_vocab),
                        .ld = u->buf.ld_vocab,
                        .rows = n,
                        .vocab = vocab,
                        .target = u->buf.targets + (size_t)at * sizeof(int32_t),
                        .weight = element(u->buf.weights, at),
                        .loss = element(u->buf.losses, at),
                        .hit = u->buf.hits + (size_t)at * sizeof(int32_t),
                        .grad = u->row.backward};
    lora__spend(u, a, bytes * n, 0);
    u->at.done += n;
    if (u->at.done == slice(u)) {
        if (u->row.backward)
            lora__next(u);
        else
            next_slice(u);
    }
    return u->ops->xent(u->q, &p);
}

// dhn[S, H] = dlogits Whead
static enum err stage_dx(struct lora_unit *u, struct lora__account *a) {
    struct lora__product p = {.m = &u->w->head,
                              .dy = u->buf.logits,
                              .dx = u->buf.dhn,
                              .lddy = u->buf.ld_vocab,
                              .lddx = u->buf.ld_hidden,
                              .rows = slice(u)};
    bool all;
    enum err e = lora__product_back(u, a, &p, &all);
    if (all)
        lora__next(u);
    return e;
}

// dh[S, H]: backward of the final norm, each slice at its place
static enum err stage_norm_back(struct lora_unit *u, struct lora__account *a) {
    int32_t n = slice(u);
    struct kn_rmsnorm_back p = {.x = u->buf.h,
                                .dy = u->buf.dhn,
                                .dx = element(u->buf.dh, u->at.want * u->buf.ld_hidden),
                                .ldx = u->buf.ld_hidden,
                                .lddy = u->buf.ld_hidden,
                                .lddx = u->buf.ld_hidden,
                                .weight = u->w->final_norm,
                                .eps = u->w->config.rms_eps,
                                .rows = n,
                                .k = u->w->config.hidden};
    lora__spend(u, a, (double)n * p.k * 16, 0);
    next_slice(u);
    return u->ops->rmsnorm_back(u->q, &p);
}

// g[T, H]: rows that predict no target have no gradient of their own
static enum err stage_scatter(struct lora_unit *u, struct lora__account *a) {
    int32_t k = u->w->config.hidden, left = k - u->at.done;
    double bytes = 8.0 * u->row.n_tokens;
    int32_t n = lora__cut(u, a, left, bytes * left, 0, CUT_COLUMNS);
    struct kn_scatter p = {.src = element(u->buf.dh, u->at.done),
                           .dst = element(u->buf.g, u->at.done),
                           .ld_src = u->buf.ld_hidden,
                           .ld_dst = u->buf.ld_hidden,
                           .rows = u->buf.rows,
                           .n = u->n_targets,
                           .n_dst = u->row.n_tokens,
                           .k = n};
    lora__spend(u, a, bytes * n, 0);
    u->at.done += n;
    if (u->at.done == k) {
        lora__next(u);
        u->at.layer = u->w->config.n_layers - 1;
    }
    return u->ops->scatter(u->q, &p);
}

enum err lora__stage_head(struct lora_unit *u, struct lora__account *a) {
    switch (u->at.stage) {
    case UNIT_HEAD_NORM:
        return stage_norm(u, a);
    case UNIT_LOGITS:
        return stage_logits(u, a);
    case UNIT_XENT:
        return stage_xent(u, a);
    case UNIT_HEAD_DX:
        return stage_dx(u, a);
    case UNIT_HEAD_NORM_BACK:
        return stage_norm_back(u, a);
    default:
        return stage_scatter(u, a);
    }
}

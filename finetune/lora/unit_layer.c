// SPDX-License-Identifier: Apache-2.0
// One layer backward, one function per stage, in the order of enum lora__stage. g [T, H] is the
// gradient of the residual stream: of the layer's output at the begin, of its input at the end.
// Nothing is made that no trained matrix below needs.
#include "finetune/lora/unit_internal.h"
#include <math.h>

enum { CUT_COLUMNS = 32, CUT_ROWS = 16, CUT_TOKENS = 4 };

static const struct mdl_layer *layer(const struct lora_unit *u) {
    return &u->w->layers[u->at.layer];
}

static kn_addr element(kn_addr base, int64_t at) {
    return base + (kn_addr)at * sizeof(float);
}

// Whether backward ends with this group: nothing that is trained lies below it.
static bool ends_with(const struct lora_unit *u, enum lora__group g) {
    return u->at.layer == 0 && u->last_group == g;
}

// ---- a group: its product and its adapters

struct linear {
    const struct mdl_matrix *m;
    enum mdl_target first; // its modules stand side by side in y
    int n_modules;
    kn_addr x, dy, dx;
    int64_t ldx, lddy, lddx;
};

static struct linear linear_of(const struct lora_unit *u, enum lora__group g) {
    const struct lora__buffers *b = &u->buf;
    const struct mdl_layer *y = layer(u);
    struct lora__kept k;
    lora__kept(u, u->at.layer, &k);
    switch (g) {
    case GROUP_DOWN:
        return (struct linear){&y->down,    MDL_TARGET_DOWN, 1,          b->act, b->g, b->dact,
                               b->ld_inter, b->ld_hidden,    b->ld_inter};
    case GROUP_GATE_UP:
        return (struct linear){&y->gate_up,  MDL_TARGET_GATE, 2,           b->xn, k.gate_up, b->dxn,
                               b->ld_hidden, y->gate_up.n,    b->ld_hidden};
    case GROUP_O:
        return (struct linear){&y->o,  MDL_TARGET_O, 1,         k.attn_out, b->g, b->dattn,
                               y->o.k, b->ld_hidden, b->ld_attn};
    default:
        return (struct linear){&y->qkv, MDL_TARGET_Q, 3,         b->xn,       b->dqkv,
                               b->dxn,  b->ld_hidden, b->ld_qkv, b->ld_hidden};
    }
}

static bool trains(const struct lora_unit *u, enum mdl_target first, int n) {
    for (int i = 0; i < n; i++) {
        struct lora_module m;
        lora_params_module(u->params, u->at.layer, first + (unsigned)i, &m);
        if (m.r)
            return true;
    }
    return false;
}

// dx = dy W
static enum err stage_dx(struct lora_unit *u, struct lora__account *a, enum lora__group g) {
    if (ends_with(u, g)) {
        lora__next(u);
        return ERR_OK;
    }
    struct linear l = linear_of(u, g);
    struct lora__product p = {l.m, l.dy, l.dx, l.lddy, l.lddx, u->row.n_tokens};
    bool all;
    enum err e = lora__product_back(u, a, &p, &all);
    if (all)
        lora__next(u);
    return e;
}

// One module of a group: x and dy as the module sees them.
struct adapter {
    struct lora_module m;
    struct linear l;
    kn_addr dy;
    struct kn_dropout dropout;
};

// u[T, R] = A x; du[T, R] = scale dy B
static enum err adapter_shrink(struct lora_unit *u, struct lora__account *a,
                               const struct adapter *x, bool *all) {
    int32_t left = u->row.n_tokens - u->at.done;
    double flops = 2.0 * x->m.r * (x->m.k + x->m.n), bytes = 4.0 * (x->m.k + x->m.n);
    int32_t n = lora__cut(u, a, left, bytes * left, flops * left, CUT_ROWS);
    struct kn_lora_shrink_back p = {.x = x->l.x,
                                    .dy = x->dy,
                                    .ldx = x->l.ldx,
                                    .lddy = x->l.lddy,
                                    .a = x->m.a,
                                    .b = x->m.b,
                                    .rows = u->row.n_tokens,
                                    .k = x->m.k,
                                    .n = x->m.n,
                                    .r = x->m.r,
                                    .scale = x->m.scale,
                                    .dropout = x->dropout,
                                    .u = u->buf.u,
                                    .du = u->buf.du,
                                    .row_begin = u->at.done,
                                    .row_end = u->at.done + n};
    lora__spend(u, a, bytes * n, flops * n);
    u->at.done += n;
    *all = u->at.done == u->row.n_tokens;
    return u->ops->lora_shrink_back(u->q, &p);
}

// dA[r, k] = duᵀ x; dB[n, r] = scale dyᵀ u
static enum err adapter_grad(struct lora_unit *u, struct lora__account *a, const struct adapter *x,
                             enum kn_lora_side side, bool *all) {
    bool is_a = side == KN_LORA_A;
    int32_t width = is_a ? x->m.k : x->m.n, left = width - u->at.done;
    double flops = 2.0 * x->m.r * u->row.n_tokens, bytes = 4.0 * u->row.n_tokens;
    int32_t n = lora__cut(u, a, left, bytes * left, flops * left, CUT_COLUMNS);
    struct kn_lora_grad p = {.side = side,
                             .left = is_a ? u->buf.du : u->buf.u,
                             .right = is_a ? x->l.x : x->dy,
                             .ld_right = is_a ? x->l.ldx : x->l.lddy,
                             .rows = u->row.n_tokens,
                             .width = width,
                             .r = x->m.r,
                             .scale = x->m.scale,
                             .dropout = is_a ? x->dropout : (struct kn_dropout){0},
                             .grad = is_a ? x->m.grad_a : x->m.grad_b,
                             .begin = u->at.done,
                             .end = u->at.done + n};
    lora__spend(u, a, bytes * n, flops * n);
    u->at.done += n;
    *all = u->at.done == width;
    return u->ops->lora_grad(u->q, &p);
}

// dx += du A
static enum err adapter_dx(struct lora_unit *u, struct lora__account *a, const struct adapter *x,
                           bool *all) {
    int32_t left = x->m.k - u->at.done;
    double flops = 2.0 * x->m.r * u->row.n_tokens, bytes = 8.0 * u->row.n_tokens;
    int32_t n = lora__cut(u, a, left, bytes * left, flops * left, CUT_COLUMNS);
    struct kn_lora_dx p = {.du = u->buf.du,
                           .a = x->m.a,
                           .dx = x->l.dx,
                           .lddx = x->l.lddx,
                           .rows = u->row.n_tokens,
                           .k = x->m.k,
                           .r = x->m.r,
                           .dropout = x->dropout,
                           .k_begin = u->at.done,
                           .k_end = u->at.done + n};
    lora__spend(u, a, bytes * n, flops * n);
    u->at.done += n;
    *all = u->at.done == x->m.k;
    return u->ops->lora_dx(u->q, &p);
}

enum { STEP_SHRINK, STEP_GRAD_A, STEP_GRAD_B, STEP_DX, STEPS };

static enum err adapter_step(struct lora_unit *u, struct lora__account *a, const struct adapter *x,
                             bool *all) {
    switch (u->at.step) {
    case STEP_SHRINK:
        return adapter_shrink(u, a, x, all);
    case STEP_GRAD_A:
        return adapter_grad(u, a, x, KN_LORA_A, all);
    case STEP_GRAD_B:
        return adapter_grad(u, a, x, KN_LORA_B, all);
    default:
        return adapter_dx(u, a, x, all);
    }
}

static bool find_adapter(const struct lora_unit *u, enum lora__group g, struct adapter *x) {
    x->l = linear_of(u, g);
    enum mdl_target t = x->l.first + (unsigned)u->at.module;
    lora_params_module(u->params, u->at.layer, t, &x->m);
    int64_t offset = 0;
    for (int i = 0; i < u->at.module; i++) {
        int32_t n, k;
        mdl_target_shape(&u->w->config, x->l.first + (unsigned)i, &n, &k);
        offset += n;
    }
    x->dy = element(x->l.dy, offset);
    x->dropout = lora__dropout(u, u->at.layer, t);
    return x->m.r > 0;
}

// The group's adapters, one after the other; the last group of all ends backward.
static enum err stage_lora(struct lora_unit *u, struct lora__account *a, enum lora__group g) {
    struct adapter x;
    enum err e = ERR_OK;
    bool end = ends_with(u, g), all = true;
    if (find_adapter(u, g, &x))
        e = adapter_step(u, a, &x, &all);
    else
        u->at.step = STEPS - 1;
    if (!all)
        return e;
    u->at.done = 0;
    if (++u->at.step < (end ? STEP_DX : STEPS))
        return e;
    u->at.step = 0;
    if (++u->at.module < x.l.n_modules)
        return e;
    if (end)
        lora__goto(u, UNIT_RESULTS);
    else
        lora__next(u);
    return e;
}

// ---- what lies between the products

// act[T, I]: what down multiplied, for its adapter
static enum err stage_act(struct lora_unit *u, struct lora__account *a) {
    int32_t k = u->w->intermediate, left = u->row.n_tokens - u->at.done;
    if (!trains(u, MDL_TARGET_DOWN, 1)) {
        lora__next(u);
        return ERR_OK;
    }
    struct lora__kept kept;
    lora__kept(u, u->at.layer, &kept);
    int32_t n = lora__cut(u, a, left, 24.0 * k * left, 0, CUT_ROWS);
    struct kn_swiglu p = {.x = element(kept.gate_up, 2 * (int64_t)k * u->at.done),
                          .ldx = 2 * (int64_t)k,
                          .y = element(u->buf.act, u->buf.ld_inter * u->at.done),
                          .ldy = u->buf.ld_inter,
                          .rows = n,
                          .k = k};
    lora__spend(u, a, 24.0 * k * n, 0);
    u->at.done += n;
    if (u->at.done == u->row.n_tokens)
        lora__next(u);
    return u->ops->swiglu(u->q, &p);
}

// gate | up [T, 2 I] becomes its own gradient
static enum err stage_swiglu_back(struct lora_unit *u, struct lora__account *a) {
    int32_t k = u->w->intermediate, left = u->row.n_tokens - u->at.done;
    struct lora__kept kept;
    lora__kept(u, u->at.layer, &kept);
    int32_t n = lora__cut(u, a, left, 32.0 * k * left, 0, CUT_ROWS);
    struct kn_swiglu_back p = {.x = kept.gate_up,
                               .dy = u->buf.dact,
                               .dx = kept.gate_up,
                               .ldx = 2 * (int64_t)k,
                               .lddy = u->buf.ld_inter,
                               .lddx = 2 * (int64_t)k,
                               .rows = u->row.n_tokens,
                               .k = k,
                               .row_begin = u->at.done,
                               .row_end = u->at.done + n};
    lora__spend(u, a, 32.0 * k * n, 0);
    u->at.done += n;
    if (u->at.done == u->row.n_tokens)
        lora__next(u);
    return u->ops->swiglu_back(u->q, &p);
}

// xn[T, H]: what the group multiplied, for its adapters
static enum err stage_norm(struct lora_unit *u, struct lora__account *a, kn_addr x, kn_addr weight,
                           enum mdl_target first, int n_modules) {
    const struct mdl_config *c = &u->w->config;
    if (!trains(u, first, n_modules)) {
        lora__next(u);
        return ERR_OK;
    }
    int32_t left = u->row.n_tokens - u->at.done;
    int32_t n = lora__cut(u, a, left, 8.0 * c->hidden * left, 0, CUT_ROWS);
    struct kn_rmsnorm p = {.x = element(x, (int64_t)c->hidden * u->at.done),
                           .ldx = c->hidden,
                           .weight = weight,
                           .eps = c->rms_eps,
                           .rows = n,
                           .k = c->hidden,
                           .y = element(u->buf.xn, u->buf.ld_hidden * u->at.done),
                           .ldy = u->buf.ld_hidden};
    lora__spend(u, a, 8.0 * c->hidden * n, 0);
    u->at.done += n;
    if (u->at.done == u->row.n_tokens)
        lora__next(u);
    return u->ops->rmsnorm(u->q, &p);
}

// g[T, H] += backward of the norm
static enum err stage_norm_back(struct lora_unit *u, struct lora__account *a, kn_addr x,
                                kn_addr weight) {
    const struct mdl_config *c = &u->w->config;
    int32_t left = u->row.n_tokens - u->at.done;
    int32_t n = lora__cut(u, a, left, 16.0 * c->hidden * left, 0, CUT_ROWS);
    struct kn_rmsnorm_back p = {.x = x,
                                .dy = u->buf.dxn,
                                .dx = u->buf.g,
                                .ldx = c->hidden,
                                .lddy = u->buf.ld_hidden,
                                .lddx = u->buf.ld_hidden,
                                .weight = weight,
                                .eps = c->rms_eps,
                                .rows = u->row.n_tokens,
                                .k = c->hidden,
                                .add = true,
                                .row_begin = u->at.done,
                                .row_end = u->at.done + n};
    lora__spend(u, a, 16.0 * c->hidden * n, 0);
    u->at.done += n;
    if (u->at.done == u->row.n_tokens)
        lora__next(u);
    return u->ops->rmsnorm_back(u->q, &p);
}

// Tokens from at.done on whose attention costs about a slice; later tokens see more keys.
static int32_t attn_tokens(const struct lora_unit *u, const struct lora__account *a, double *cost) {
    const struct mdl_config *c = &u->w->config;
    int32_t n = u->row.n_tokens, t = u->at.done;
    double flops = 0, width = 10.0 * u->w->n_heads * c->head_dim;
    while (t < n) {
        int32_t seen = u->pos[t] + 1;
        flops += width * (c->window > 0 && seen > c->window ? c->window : seen);
        t++;
        if ((t - u->at.done) % CUT_TOKENS == 0 &&
            lora__cut(u, a, 2, 0, flops, 1) < 2) // no more fits
            break;
    }
    *cost = flops;
    return t - u->at.done;
}

// dqkv[T, Q] of the rotated q and k, and of v
static enum err stage_attn_back(struct lora_unit *u, struct lora__account *a) {
    const struct mdl_config *c = &u->w->config;
    struct mdl_forward_view view;
    struct lora__kept k;
    mdl_forward_view(u->forward, &view);
    lora__kept(u, u->at.layer, &k);
    double flops;
    int32_t n = attn_tokens(u, a, &flops);
    struct kn_attn_back p = {.batch = &view.batch,
                             .q = k.qkv,
                             .ldq = layer(u)->qkv.n,
                             .pool = u->buf.kv,
                             .shape = {c->n_layers, u->w->n_kv_heads, c->head_dim},
                             .layer = u->at.layer,
                             .heads = u->w->n_heads,
                             .window = c->window,
                             .scale = 1.0F / sqrtf((float)c->head_dim),
                             .out = k.attn_out,
                             .dout = u->buf.dattn,
                             .ldout = layer(u)->o.k,
                             .lddout = u->buf.ld_attn,
                             .dqkv = u->buf.dqkv,
                             .lddqkv = u->buf.ld_qkv,
                             .token_begin = u->at.done,
                             .token_end = u->at.done + n};
    lora__spend(u, a, 0, flops);
    u->at.done += n;
    if (u->at.done == u->row.n_tokens)
        lora__next(u);
    return u->ops->attn_back(u->q, &p);
}

static enum err stage_rope_back(struct lora_unit *u, struct lora__account *a) {
    struct mdl_forward_view view;
    mdl_forward_view(u->forward, &view);
    int32_t heads = u->w->n_heads + u->w->n_kv_heads, dim = u->w->config.head_dim;
    int32_t left = heads - u->at.done;
    double bytes = 8.0 * u->row.n_tokens * dim;
    int32_t n = lora__cut(u, a, left, bytes * left, 0, 1);
    struct kn_rope_back p = {.batch = &view.batch,
                             .dqkv = element(u->buf.dqkv, (int64_t)dim * u->at.done),
                             .lddqkv = u->buf.ld_qkv,
                             .table = view.rope_table,
                             .heads = n,
                             .head_dim = dim};
    lora__spend(u, a, bytes * n, 0);
    u->at.done += n;
    if (u->at.done == heads)
        lora__next(u);
    return u->ops->rope_back(u->q, &p);
}

// dqkv's q, then its k: of what the norms of their heads gave, then of what they took.
static enum err stage_qk_norm_back(struct lora_unit *u, struct lora__account *a) {
    const struct mdl_config *c = &u->w->config;
    if (!c->qk_norm) {
        lora__next(u);
        return ERR_OK;
    }
    struct lora__kept k;
    lora__kept(u, u->at.layer, &k);
    bool is_k = u->at.step > 0;
    int32_t heads = is_k ? u->w->n_kv_heads : u->w->n_heads, left = u->row.n_tokens - u->at.done;
    int64_t attn = (int64_t)u->w->n_heads * c->head_dim;
    double bytes = 16.0 * heads * c->head_dim;
    int32_t n = lora__cut(u, a, left, bytes * left, 0, CUT_ROWS);
    kn_addr dy = element(u->buf.dqkv, is_k ? attn : 0);
    struct kn_rmsnorm_back p = {.x = is_k ? element(k.qkv, attn) : k.q_in,
                                .dy = dy,
                                .dx = dy,
                                .ldx = is_k ? layer(u)->qkv.n : attn,
                                .lddy = u->buf.ld_qkv,
                                .lddx = u->buf.ld_qkv,
                                .weight = is_k ? layer(u)->k_norm : layer(u)->q_norm,
                                .eps = c->rms_eps,
                                .rows = u->row.n_tokens,
                                .k = c->head_dim,
                                .heads = heads,
                                .row_begin = u->at.done,
                                .row_end = u->at.done + n};
    lora__spend(u, a, bytes * n, 0);
    u->at.done += n;
    if (u->at.done == u->row.n_tokens) {
        u->at.done = 0;
        u->at.step++;
        if (is_k)
            lora__next(u);
    }
    return u->ops->rmsnorm_back(u->q, &p);
}

// A layer that was not kept goes forward once more; lora_unit_run then runs the walk.
static enum err stage_again(struct lora_unit *u) {
    if (u->at.layer >= u->w->config.n_layers - u->n_kept) {
        lora__next(u);
        return ERR_OK;
    }
    u->at.done = 1;
    return mdl_forward_again(u->forward, u->at.layer, lora__residual(u, u->at.layer), NULL);
}

enum err lora__stage_layer(struct lora_unit *u, struct lora__account *a) {
    struct lora__kept k;
    lora__kept(u, u->at.layer, &k);
    const struct mdl_layer *y = layer(u);
    enum err e;
    switch (u->at.stage) {
    case UNIT_AGAIN:
        return stage_again(u);
    case UNIT_ACT:
        return stage_act(u, a);
    case UNIT_DOWN_DX:
        return stage_dx(u, a, GROUP_DOWN);
    case UNIT_DOWN_LORA:
        return stage_lora(u, a, GROUP_DOWN);
    case UNIT_SWIGLU_BACK:
        return stage_swiglu_back(u, a);
    case UNIT_FFN_NORM:
        return stage_norm(u, a, k.ffn_in, y->ffn_norm, MDL_TARGET_GATE, 2);
    case UNIT_GATE_UP_DX:
        return stage_dx(u, a, GROUP_GATE_UP);
    case UNIT_GATE_UP_LORA:
        return stage_lora(u, a, GROUP_GATE_UP);
    case UNIT_FFN_NORM_BACK:
        return stage_norm_back(u, a, k.ffn_in, y->ffn_norm);
    case UNIT_O_DX:
        return stage_dx(u, a, GROUP_O);
    case UNIT_O_LORA:
        return stage_lora(u, a, GROUP_O);
    case UNIT_ATTN_BACK:
        return stage_attn_back(u, a);
    case UNIT_ROPE_BACK:
        return stage_rope_back(u, a);
    case UNIT_QK_NORM_BACK:
        return stage_qk_norm_back(u, a);
    case UNIT_ATTN_NORM:
        return stage_norm(u, a, lora__residual(u, u->at.layer), y->attn_norm, MDL_TARGET_Q, 3);
    case UNIT_QKV_DX:
        return stage_dx(u, a, GROUP_QKV);
    case UNIT_QKV_LORA:
        return stage_lora(u, a, GROUP_QKV);
    default: // UNIT_ATTN_NORM_BACK: then the layer below, which layer 0 never comes to
        e = stage_norm_back(u, a, lora__residual(u, u->at.layer), y->attn_norm);
        if (u->at.stage != UNIT_ATTN_NORM_BACK) {
            u->at.layer--;
            lora__goto(u, UNIT_AGAIN);
        }
        return e;
    }
}

// SPDX-License-Identifier: Apache-2.0
// Products of the walk with the hooks that follow them, and what pieces of work cost.
#include "model/forward_internal.h"
#include <math.h>

enum { CUT_COLUMNS = 64, CUT_HOOK_ROWS = 32 };

void mdl__next(struct mdl_forward *f) {
    f->at.stage++;
    f->at.done = f->at.row = 0;
}

void mdl__spend(struct mdl_forward *f, struct mdl__account *a, double bytes, double flops) {
    double ns = bytes * MDL__NS_PER_BYTE + flops * MDL__NS_PER_FLOP;
    a->spent += ns * f->scale;
}

// How many of `n` units that cost `ns` together fit the budget: a multiple of `unit`, or all.
int32_t mdl__cut(const struct mdl_forward *f, const struct mdl__account *a, int32_t n, double ns,
                 int32_t unit) {
    ns *= f->scale;
    double left = a->budget - a->spent;
    // A short rest goes along; a slice that is nearly spent still does a decent piece.
    if (ns <= 1.25 * left)
        return n;
    double share = fmax(left, a->budget / 2) / ns * n;
    if (share >= n)
        return n;
    int32_t units = ((int32_t)share / unit + 1) * unit;
    return units < n ? units : n;
}

// Columns [begin, end) of one part of the block of rows in hand.
static struct kn_gemm gemm_of(const struct mdl_forward *f, const struct mdl__product *p, int part,
                              int32_t begin, int32_t end) {
    const struct kn_weight *w = p->m->part[part];
    int32_t offset = 0;
    for (int i = 0; i < part; i++)
        offset += p->m->part_n[i];
    bool q8 = f->ops->weight_form(w) == KN_FORM_Q8;
    size_t row = (size_t)f->at.row, plain = f->plain_bytes;
    return (struct kn_gemm){
        .w = w,
        .x = q8 ? p->xq + row * f->ops->form_row_bytes(KN_FORM_Q8, p->m->k)
                : p->x + row * (size_t)p->ldx * plain,
        .ldx = p->ldx,
        .y = p->y + (row * (size_t)p->ldy + (size_t)offset) * plain,
        .ldy = p->ldy,
        .bias = p->bias ? p->bias + (size_t)offset * sizeof(float) : 0,
        .rows = f->at.block,
        .n_begin = begin,
        .n_end = end,
        .epilogue = p->epilogue,
    };
}

// Records columns of the block of rows in hand from at.done on, as many as the budget allows, in
// the one part where at.done falls.
static enum err product_piece(struct mdl_forward *f, struct mdl__account *a,
                              const struct mdl__product *p) {
    int part = 0;
    int32_t offset = 0;
    while (f->at.done >= offset + p->m->part_n[part])
        offset += p->m->part_n[part++];
    int32_t fused = p->gate_up ? 2 : 1; // weight rows per column
    int32_t n = p->m->part_n[part] / fused;
    int32_t begin = f->at.done - offset;
    double bytes = (double)f->ops->weight_bytes(p->m->part[part]) / n;
    double flops = 2.0 * p->m->k * f->at.block * fused;
    double column = bytes * MDL__NS_PER_BYTE + flops * MDL__NS_PER_FLOP;
    int32_t count = mdl__cut(f, a, n - begin, column * (n - begin), CUT_COLUMNS);
    struct kn_gemm g = gemm_of(f, p, part, begin, begin + count);
    mdl__spend(f, a, bytes * count, flops * count);
    f->at.done += count;
    return f->ops->gemm(f->q, &g);
}

enum err mdl__product(struct mdl_forward *f, struct mdl__account *a, const struct mdl__product *p,
                      bool *all) {
    int32_t n = p->gate_up ? p->m->n / 2 : p->m->n;
    enum err e = ERR_OK;
    while (!e && f->at.row < p->rows && a->spent < a->budget) {
        if (!f->at.done) {
            int32_t rest = p->rows - f->at.row;
            f->at.block = mdl__sliced(a) && rest > f->cut_rows ? f->cut_rows : rest;
        }
        e = product_piece(f, a, p);
        if (f->at.done == n) {
            f->at.row += f->at.block;
            f->at.done = 0;
        }
    }
    *all = f->at.row >= p->rows;
    return e;
}

bool mdl__hooked(const struct mdl_forward *f, enum mdl_linear which) {
    const struct mdl_hooks *h = f->hooks;
    return h && (!h->wants || h->wants(h->arg, f->at.layer, which));
}

// n rows of a product from `row` on, as the hook sees them. batch: room for a copy.
static struct mdl_linear_call hook_call(const struct mdl_forward *f, const struct mdl__product *p,
                                        enum mdl_linear which, int32_t row, int32_t n,
                                        struct kn_batch *batch) {
    *batch = f->batch; // its counts stay: a part may have fewer rows than sequences
    batch->seq += (kn_addr)row * sizeof(int32_t);
    return (struct mdl_linear_call){
        .layer = f->at.layer,
        .which = which,
        .x = p->x + (size_t)row * (size_t)p->ldx * f->plain_bytes,
        .ldx = p->ldx,
        .y = p->y + (size_t)row * (size_t)p->ldy * f->plain_bytes,
        .ldy = p->ldy,
        .rows = n,
        .row = row,
        .batch = batch,
    };
}

// Operations of a hook's row; thin products run at half the speed of others.
static double hook_flops(const struct mdl_forward *f, enum mdl_linear which) {
    const struct mdl_hooks *h = f->hooks;
    return h->flops ? 2 * h->flops(h->arg, f->at.layer, which) : 0;
}

// Calls the hook for rows from at.done on; true in *all once it was called for all.
static enum err hook(struct mdl_forward *f, struct mdl__account *a, const struct mdl__product *p,
                     enum mdl_linear which, bool *all) {
    const struct mdl_hooks *h = f->hooks;
    int32_t left = p->rows - f->at.done, row = f->at.done;
    double flops = hook_flops(f, which);
    int32_t n = mdl__cut(f, a, left, flops * MDL__NS_PER_FLOP * left, CUT_HOOK_ROWS);
    struct kn_batch batch;
    struct mdl_linear_call call = hook_call(f, p, which, row, n, &batch);
    mdl__spend(f, a, 0, flops * n);
    f->at.done += n;
    *all = f->at.done == p->rows;
    return h->linear(h->arg, f->q, &call);
}

// A whole product with its hook in one.
static enum err product_hooked(struct mdl_forward *f, struct mdl__account *a,
                               const struct mdl__product *p, enum mdl_linear which) {
    struct kn_batch batch;
    struct mdl_linear_call call = hook_call(f, p, which, 0, p->rows, &batch);
    f->at.block = p->rows;
    struct kn_gemm g = gemm_of(f, p, 0, 0, 0);
    mdl__spend(f, a, (double)f->ops->weight_bytes(g.w),
               (2.0 * p->m->k * p->m->n + hook_flops(f, which)) * p->rows);
    mdl__next(f);
    return f->hooks->product(f->hooks->arg, f->q, &g, &call);
}

enum err mdl__linear(struct mdl_forward *f, struct mdl__account *a, const struct mdl__product *p,
                     enum mdl_linear which) {
    bool all;
    if (mdl__hooked(f, which) && f->hooks->product && !mdl__sliced(a) && p->m->n_parts == 1 &&
        p->rows)
        return product_hooked(f, a, p, which);
    enum err e = mdl__product(f, a, p, &all);
    if (e || !all)
        return e;
    if (mdl__hooked(f, which))
        e = hook(f, a, p, which, &all);
    if (all)
        mdl__next(f);
    return e;
}

// SPDX-License-Identifier: Apache-2.0
// dx = dy W in pieces: a block of rows, columns of dx if all of them are too much for one piece,
// and runs of W's rows one after the other. Runs cost least: nothing is read or rounded twice.
#include "finetune/lora/unit_internal.h"

enum {
    MOST_ROWS = 512, // of a block
    LEAST_ROWS = 32,
    LEAST_COLUMNS = 64, // of dx, in one go
    CUT_COLUMNS = 32,
    MOST_RUNS = 6 * KN_GEMM_T_RUN, // rows of W whose part of dy lies packed at once
};

static kn_addr element(kn_addr base, int64_t at) {
    return base + (kn_addr)at * sizeof(float);
}

static int32_t block_rows(const struct lora_unit *u, const struct lora__account *a, int32_t rest) {
    if (!lora__sliced(a))
        return rest;
    double flops = 2.0 * KN_GEMM_T_RUN * LEAST_COLUMNS * rest;
    int32_t n = lora__cut(u, a, rest, 0, flops, LEAST_ROWS);
    return n < MOST_ROWS + MOST_ROWS / 4 ? n : MOST_ROWS; // a short rest goes along
}

// Columns of dx such that a run of W's rows fits the slice: in groups of one width.
static int32_t group_columns(const struct lora_unit *u, const struct lora__account *a, int32_t k) {
    struct lora__account whole = {.budget = a->budget};
    double flops = 2.0 * KN_GEMM_T_RUN * u->at.block * k;
    int32_t n = lora__cut(u, &whole, k, 0, flops, CUT_COLUMNS);
    n = n < LEAST_COLUMNS ? LEAST_COLUMNS : n;
    int32_t groups = (k + n - 1) / n, width = (k + groups - 1) / groups;
    return (width + CUT_COLUMNS - 1) / CUT_COLUMNS * CUT_COLUMNS;
}

// Rows of W from at.done on, of the part where that falls.
static enum err record_piece(struct lora_unit *u, struct lora__account *a,
                             const struct lora__product *p, int32_t columns) {
    const struct mdl_matrix *m = p->m;
    int part = 0;
    int32_t offset = 0;
    while (u->at.done >= offset + m->part_n[part])
        offset += m->part_n[part++];
    const struct kn_weight *w = m->part[part];
    int32_t begin = u->at.done - offset, left = m->part_n[part] - begin;
    double bytes = (double)u->ops->weight_bytes(w) / m->part_n[part] / m->k * columns;
    double flops = 2.0 * columns * u->at.block;
    int32_t n = lora__cut(u, a, left, bytes * left, flops * left, KN_GEMM_T_RUN);
    n = n < MOST_RUNS ? n : MOST_RUNS;
    struct kn_gemm_t g = {.w = w,
                          .dy = element(p->dy, u->at.row * p->lddy + offset),
                          .lddy = p->lddy,
                          .dx = element(p->dx, u->at.row * p->lddx),
                          .lddx = p->lddx,
                          .rows = u->at.block,
                          .n_begin = begin,
                          .n_end = begin + n,
                          .k_begin = u->at.column,
                          .k_end = u->at.column + columns,
                          .add = u->at.done > 0};
    lora__spend(u, a, bytes * n, flops * n);
    u->at.done += n;
    return u->ops->gemm_t(u->q, &g);
}

enum err lora__product_back(struct lora_unit *u, struct lora__account *a,
                            const struct lora__product *p, bool *all) {
    enum err e = ERR_OK;
    int32_t k = p->m->k;
    while (!e && u->at.row < p->rows && a->spent < a->budget) {
        if (!u->at.done && !u->at.column) {
            u->at.block = block_rows(u, a, p->rows - u->at.row);
            u->at.width = group_columns(u, a, k);
        }
        int32_t left = k - u->at.column, columns = left < u->at.width ? left : u->at.width;
        e = record_piece(u, a, p, columns);
        if (u->at.done < p->m->n)
            continue;
        u->at.done = 0;
        u->at.column += columns;
        if (u->at.column < k)
            continue;
        u->at.column = 0;
        u->at.row += u->at.block;
    }
    *all = u->at.row >= p->rows;
    return e;
}

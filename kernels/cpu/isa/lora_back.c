// SPDX-License-Identifier: Apache-2.0
// Backward of one module's adapter, for training: u and du, dx, the gradients of A and B. Both
// matrices have one layout (lora_layout.h), so u = A x and du = dy B are one product (lora.h), dx
// += du A is the other, and both gradients are a third:
//   grad(c, j) = sum over the rows of left[row][j] right[row][c], one chain over the rows in order
// in tiles of 16 ranks times a panel.
#include "kernels/cpu/isa/lora.h"
#include "kernels/cpu/isa/tile.h"

enum {
    BLOCK_ROWS = 32,                   // of a piece of shrink_back and dx
    COLUMNS = 512,                     // of a piece of dx
    GRAD_COLUMNS = 4 * CPU_LORA_PANEL, // of a piece of grad: dropout's noise comes for as many
    GRAD_ROWS = 64,                    // that the panels of a piece go over in turn
    DROPPED = CPU_SCRATCH_BYTES / (int)sizeof(float),
};

static int32_t padded(int32_t n) {
    return (n + V_LANES - 1) & ~(V_LANES - 1);
}

static int32_t at_most(int32_t x, int32_t most) {
    return x < most ? x : most;
}

// Rows of a piece: enough pieces for all threads, and dropped rows of k values fit the scratch
// memory.
static int32_t piece_rows(int32_t rows, int32_t most, float p, int32_t k, int nt) {
    int32_t n = rows / (4 * nt) > 4 ? rows / (4 * nt) : 4;
    if (p > 0 && most > DROPPED / padded(k))
        most = DROPPED / padded(k);
    return at_most(n, most);
}

// Rows [row, row + n) of x after dropout; their distance in *ld.
static const float *drop_rows(const struct kn_dropout *d, const float *x, int64_t *ld, int32_t k,
                              int32_t row, int32_t n, int32_t begin, int32_t end, float *scratch) {
    x += row * *ld;
    if (!(d->p > 0))
        return x;
    for (int32_t i = 0; i < n; i++)
        ISA(lora_dropout)
    (d, d->module, row + i, x + i * *ld, scratch + (int64_t)i * padded(k), begin, end);
    *ld = padded(k);
    return scratch;
}

// ---- u, du

static void clear_padding(float *u, int32_t rows, int32_t r) {
    int32_t rp = padded(r);
    for (int32_t i = 0; i < rows && r < rp; i++)
        memset(u + i * rp + r, 0, (size_t)(rp - r) * sizeof *u);
}

void ISA(cpu_lora_shrink_back)(const void *params, struct cpu_task *t) {
    const struct kn_lora_shrink_back *p = params;
    struct lora_matrix a = lora_f32(p->a, p->k, p->r), b = lora_f32(p->b, p->n, p->r);
    int32_t last = p->row_end ? p->row_end : p->rows, rp = padded(p->r);
    int32_t n = piece_rows(last - p->row_begin, BLOCK_ROWS, p->dropout.p, p->k, t->nt);
    int32_t pieces = (last - p->row_begin - 1) / n + 1;
    for (int32_t i; cpu_claim(t, pieces, &i);) {
        int32_t row = p->row_begin + i * n, rows = at_most(last - row, n);
        int64_t ld = p->ldx;
        const float *x =
            drop_rows(&p->dropout, (const float *)p->x, &ld, p->k, row, rows, 0, p->k, t->scratch);
        float *u = (float *)p->u + (int64_t)row * rp, *du = (float *)p->du + (int64_t)row * rp;
        const float *dy = (const float *)p->dy + row * p->lddy;
        ISA(lora_shrink)(&a, x, ld, rows, 1.0f, u, rp);
        ISA(lora_shrink)(&b, dy, p->lddy, rows, p->scale, du, rp);
        clear_padding(u, rows, p->r);
        clear_padding(du, rows, p->r);
    }
}

// ---- dx

static void dx_piece(const struct kn_lora_dx *p, int32_t row, int32_t rows, int32_t begin,
                     int32_t end, float *scratch) {
    const float *du = (const float *)p->du + (int64_t)row * padded(p->r);
    float *dx = (float *)p->dx + row * p->lddx;
    struct lora_matrix a = lora_f32(p->a, p->k, p->r);
    if (!(p->dropout.p > 0)) {
        ISA(lora_expand)(&a, du, padded(p->r), rows, 1.0f, dx, p->lddx, begin, end);
        return;
    }
    int64_t ld = padded(p->k);
    for (int32_t i = 0; i < rows; i++)
        memset(scratch + i * ld + begin, 0, (size_t)(end - begin) * sizeof *scratch);
    ISA(lora_expand)(&a, du, padded(p->r), rows, 1.0f, scratch, ld, begin, end);
    for (int32_t i = 0; i < rows; i++) {
        float *g = scratch + i * ld, *out = dx + i * p->lddx;
        ISA(lora_dropout)(&p->dropout, p->dropout.module, row + i, g, g, begin, end);
        for (int32_t c = begin; c < end; c += V_LANES)
            v_store_n(out + c, end - c,
                      v_add(v_load_n(out + c, end - c), v_load_n(g + c, end - c)));
    }
}

void ISA(cpu_lora_dx)(const void *params, struct cpu_task *t) {
    const struct kn_lora_dx *p = params;
    int32_t last = p->k_end ? p->k_end : p->k;
    int32_t columns = (last - p->k_begin - 1) / COLUMNS + 1;
    int32_t n = piece_rows(p->rows, BLOCK_ROWS, p->dropout.p, p->k, t->nt);
    int32_t blocks = (p->rows - 1) / n + 1;
    for (int32_t i; cpu_claim(t, blocks * columns, &i);) {
        int32_t row = i / columns * n, begin = p->k_begin + i % columns * COLUMNS;
        dx_piece(p, row, at_most(p->rows - row, n), begin, at_most(last, begin + COLUMNS),
                 t->scratch);
    }
}

// ---- gradients

// Columns [c, end) of rows [row, row + n), at most four panels: the panels' sums go on.
static void grad_rows(const struct kn_lora_grad *p, int32_t row, int32_t n, int32_t c, int32_t end,
                      float *scratch) {
    int32_t rp = padded(p->r);
    int64_t ld = p->ld_right;
    const float *right =
        drop_rows(&p->dropout, (const float *)p->right, &ld, p->width, row, n, c, end, scratch);
    struct tile t = {.a = (const float *)p->left + (int64_t)row * rp,
                     .lda = rp,
                     .ldo = CPU_LORA_PANEL,
                     .len = n,
                     .go_on = row > 0};
    float tail[GRAD_ROWS * CPU_LORA_PANEL];
    for (; c < end; c += CPU_LORA_PANEL) {
        t.b = right + c;
        t.ldb = ld;
        if (c + CPU_LORA_PANEL > p->width) { // nothing may lie beside the last column
            for (int32_t i = 0; i < n; i++)
                v_store(tail + i * V_LANES, v_load_n(t.b + i * ld, p->width - c));
            t.b = tail;
            t.ldb = V_LANES;
        }
        t.out = (float *)p->grad + (int64_t)(c / CPU_LORA_PANEL) * p->r * CPU_LORA_PANEL;
        ISA(tile_cols_tall)(&t, p->r);
    }
}

void ISA(cpu_lora_grad)(const void *params, struct cpu_task *t) {
    const struct kn_lora_grad *p = params;
    int32_t last = p->end ? p->end : p->width;
    int32_t n = p->dropout.p > 0 ? at_most(GRAD_ROWS, DROPPED / padded(p->width)) : GRAD_ROWS;
    int32_t first = p->begin / GRAD_COLUMNS, pieces = (last - 1) / GRAD_COLUMNS + 1 - first;
    v16f scale = v_set1(p->scale);
    for (int32_t i; cpu_claim(t, pieces, &i);) {
        int32_t c = (first + i) * GRAD_COLUMNS, end = at_most(last, c + GRAD_COLUMNS);
        c = c > p->begin ? c : p->begin;
        for (int32_t row = 0; row < p->rows; row += n)
            grad_rows(p, row, at_most(p->rows - row, n), c, end, t->scratch);
        float *g = (float *)p->grad + (int64_t)(c / CPU_LORA_PANEL) * p->r * CPU_LORA_PANEL;
        size_t values = cpu_lora_values(end - c, p->r);
        if (p->rows == 0)
            memset(g, 0, values * sizeof *g);
        for (size_t j = 0; p->side == KN_LORA_B && j < values; j += V_LANES)
            v_store(g + j, v_mul(v_load(g + j), scale));
    }
}

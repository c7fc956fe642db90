// SPDX-License-Identifier: Apache-2.0
// The two products with an adapter's matrix: tiles of a few rows whose sums lie in registers. A single
// row is bound by reading the matrix once: it fetches its stream ahead.
#include "kernels/cpu/isa/lora.h"

// TALL x WIDE vectors of sums for several rows, 1 x ROW_WIDE for one.
#if defined(KN_ISA_AVX512)
enum { TALL = 4, WIDE = 4, ROW_WIDE = 8 };
#elif defined(KN_ISA_AVX2)
enum { TALL = 2, WIDE = 2, ROW_WIDE = 4 };
#else
enum { TALL = 2, WIDE = 1, ROW_WIDE = 2 };
#endif

enum {
    AHEAD = 8192 / sizeof(float), // how far a stream is fetched ahead: the latency of memory
    // Up to here a row takes several panels at a time, to keep the adders busy. With more ranks they lie
    // far from one another, and one chain is long enough.
    FEW_RANKS = 16,
};

// A product over rows of x or y with a matrix of r vectors per panel.
struct product {
    const float *m;
    int32_t wide, r;
    const float *from; // x or u
    int64_t ld_from;
    float *to; // u or y
    int64_t ld_to;
    float scale;
};

V_FN void clear(const int n, v16f *sums) {
    V_UNROLL
    for (int i = 0; i < n; i++)
        sums[i] = v_zero();
}

// ---- u = scale * x M

// One panel: nr vectors of it times mr rows of x.
V_FN void shrink_panel(const int mr, const int nr, v16f *sums, const v16f x[], const float *w) {
    V_UNROLL
    for (int j = 0; j < nr; j++) {
        v16f m = v_load(w + j * V_LANES);
        V_UNROLL
        for (int i = 0; i < mr; i++)
            sums[i * nr + j] = v_fma(x[i], m, sums[i * nr + j]);
    }
}

// Ranks [j, j + nr) of rows [row, row + mr).
V_FN void shrink_tile(const int mr, const int nr, const struct product *p, int32_t row, int32_t j) {
    v16f sums[TALL * WIDE > ROW_WIDE ? TALL * WIDE : ROW_WIDE], v[TALL];
    const float *x = p->from + row * p->ld_from, *w = p->m + (size_t)j * V_LANES;
    const size_t step = (size_t)p->r * V_LANES;
    const size_t ahead = (AHEAD + step - 1) / step * step;
    int32_t c = 0;
    clear(mr * nr, sums);
    for (; c + V_LANES <= p->wide; c += V_LANES, w += step) {
        V_UNROLL
        for (int i = 0; i < mr; i++)
            v[i] = v_load(x + i * p->ld_from + c);
        if (mr == 1) {
            V_UNROLL
            for (int i = 0; i < nr; i++)
                __builtin_prefetch(w + ahead + i * V_LANES, 0, 3);
        }
        shrink_panel(mr, nr, sums, v, w);
    }
    if (c < p->wide) {
        V_UNROLL
        for (int i = 0; i < mr; i++)
            v[i] = v_load_n(x + i * p->ld_from + c, p->wide - c);
        shrink_panel(mr, nr, sums, v, w);
    }
    float *u = p->to + row * p->ld_to + j;
    V_UNROLL
    for (int i = 0; i < mr; i++)
        for (int n = 0; n < nr; n++)
            u[i * p->ld_to + n] = p->scale * v_sum(sums[i * nr + n]);
}

// One row with many ranks: panel by panel, so that the matrix is one stream; the sums, which are more
// than there are registers, lie in memory.
static void shrink_long_row(const struct product *p, int32_t row) {
    float sums[KN_LORA_MAX_RANK * V_LANES];
    const float *x = p->from + row * p->ld_from, *w = p->m;
    const size_t step = (size_t)p->r * V_LANES;
    float *u = p->to + row * p->ld_to;
    for (size_t i = 0; i < step; i += V_LANES)
        v_store(sums + i, v_zero());
    for (int32_t c = 0; c < p->wide; c += V_LANES, w += step) {
        v16f v = v_load_n(x + c, p->wide - c);
        for (size_t i = 0; i < step; i += V_LANES) {
            __builtin_prefetch(w + i + AHEAD, 0, 3);
            v_store(sums + i, v_fma(v, v_load(w + i), v_load(sums + i)));
        }
    }
    for (int32_t j = 0; j < p->r; j++)
        u[j] = p->scale * v_sum(v_load(sums + (size_t)j * V_LANES));
}

// All ranks of mr rows; `most` at a time, then the rest in halves.
V_FN void shrink_rows(const int mr, const int most, const struct product *p, int32_t row) {
    int32_t j = 0;
    for (; j + most <= p->r; j += most)
        shrink_tile(mr, most, p, row, j);
    if (most > 4 && j + 4 <= p->r) {
        shrink_tile(mr, 4, p, row, j);
        j += 4;
    }
    if (most > 2 && j + 2 <= p->r) {
        shrink_tile(mr, 2, p, row, j);
        j += 2;
    }
    if (most > 1 && j < p->r)
        shrink_tile(mr, 1, p, row, j);
}

void ISA(lora_shrink)(const float *m, int32_t wide, int32_t r, const float *x, int64_t ldx,
                      int32_t rows, float scale, float *u, int64_t ldu) {
    struct product p = {m, wide, r, x, ldx, u, ldu, scale};
    int32_t row = 0;
    for (; row + TALL <= rows; row += TALL)
        shrink_rows(TALL, WIDE, &p, row);
    for (; row < rows; row++) {
        if (r > FEW_RANKS)
            shrink_long_row(&p, row);
        else
            shrink_rows(1, ROW_WIDE, &p, row);
    }
}

// ---- y += scale * u Mᵀ

// np panels from panel `w` on, columns c on, of rows [row, row + mr). lanes: of the last panel, where
// it is the only one.
V_FN void expand_tile(const int mr, const int np, const struct product *p, int32_t row, int32_t c,
                      const int32_t lanes) {
    v16f sums[TALL * WIDE > ROW_WIDE ? TALL * WIDE : ROW_WIDE],
        m[ROW_WIDE > WIDE ? ROW_WIDE : WIDE];
    const size_t step = (size_t)p->r * V_LANES;
    const float *u = p->from + row * p->ld_from;
    const float *w = p->m + (size_t)(c / V_LANES) * step;
    clear(mr * np, sums);
    for (int32_t j = 0; j < p->r; j++, w += V_LANES) {
        V_UNROLL
        for (int n = 0; n < np; n++)
            m[n] = v_load(w + (size_t)n * step);
        if (mr == 1) {
            V_UNROLL
            for (int n = 0; n < np; n++)
                __builtin_prefetch(w + (size_t)n * step + AHEAD, 0, 3);
        }
        V_UNROLL
        for (int i = 0; i < mr; i++) {
            v16f a = v_set1(u[i * p->ld_from + j]);
            V_UNROLL
            for (int n = 0; n < np; n++)
                sums[i * np + n] = v_fma(a, m[n], sums[i * np + n]);
        }
    }
    v16f scale = v_set1(p->scale);
    float *y = p->to + row * p->ld_to + c;
    V_UNROLL
    for (int i = 0; i < mr; i++)
        for (int n = 0; n < np; n++) {
            float *at = y + i * p->ld_to + n * V_LANES;
            if (lanes == V_LANES)
                v_store(at, v_fma(scale, sums[i * np + n], v_load(at)));
            else
                v_store_n(at, lanes, v_fma(scale, sums[i * np + n], v_load_n(at, lanes)));
        }
}

// The same panels for all rows, so that they are read from the nearest cache.
V_FN void expand_rows(const int tall_np, const int np, const struct product *p, int32_t rows,
                      int32_t c, const int32_t lanes) {
    int32_t row = 0;
    for (; row + TALL <= rows; row += TALL)
        for (int n = 0; n < np; n += tall_np)
            expand_tile(TALL, tall_np, p, row, c + n * V_LANES, lanes);
    for (; row < rows; row++) {
        if (np > 2 && p->r > FEW_RANKS)
            for (int n = 0; n < np; n += 2)
                expand_tile(1, 2, p, row, c + n * V_LANES, lanes);
        else
            expand_tile(1, np, p, row, c, lanes);
    }
}

void ISA(lora_expand)(const float *m, int32_t wide, int32_t r, const float *u, int64_t ldu,
                      int32_t rows, float scale, float *y, int64_t ldy, int32_t begin,
                      int32_t end) {
    struct product p = {m, wide, r, u, ldu, y, ldy, scale};
    int32_t c = begin;
    for (; c + ROW_WIDE * V_LANES <= end; c += ROW_WIDE * V_LANES)
        expand_rows(WIDE, ROW_WIDE, &p, rows, c, V_LANES);
    for (; c + V_LANES <= end; c += V_LANES)
        expand_rows(1, 1, &p, rows, c, V_LANES);
    if (c < end)
        expand_rows(1, 1, &p, rows, c, end - c);
}

// SPDX-License-Identifier: Apache-2.0
// The two products with an adapter's matrix: tiles of a few rows whose sums lie in registers. A
// single row is bound by reading the matrix once: it fetches its stream ahead.
#include "kernels/cpu/isa/lora.h"

// TALL x WIDE vectors of sums for several rows; for one ROW_RANKS of u, ROW_WIDE of y.
#if defined(KN_ISA_AVX512)
enum { TALL = 4, WIDE = 4, ROW_RANKS = 16, ROW_WIDE = 4 };
#elif defined(KN_ISA_AVX2)
enum { TALL = 2, WIDE = 2, ROW_RANKS = 4, ROW_WIDE = 4 };
#else
enum { TALL = 2, WIDE = 1, ROW_RANKS = 2, ROW_WIDE = 2 };
#endif

enum {
    AHEAD = 8192, // bytes that a stream is fetched ahead: the latency of memory
    LINE = 64,
    // Up to here a row takes several panels at a time, to keep the adders busy. With more ranks
    // they lie far from one another, and one chain is long enough.
    FEW_RANKS = 16,
};

// A product over rows of x or y with a matrix of r vectors per panel.
struct product {
    const char *m, *end, *next; // the matrix, its end, and where the stream goes on from there
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

// Vectors of M of type t: bytes, and the vector at p.
V_FN size_t vector_bytes(const enum kn_dtype t) {
    return t == KN_F32 ? V_LANES * sizeof(float) : V_LANES * sizeof(uint16_t);
}

V_FN v16f load(const enum kn_dtype t, const char *p) {
    const void *at = p;
    return t == KN_F32 ? v_load(at) : t == KN_BF16 ? v_load_bf16(at) : v_load_f16(at);
}

static struct product make_product(const struct lora_matrix *m) {
    size_t bytes = cpu_lora_values(m->wide, m->r) * (m->dtype == KN_F32 ? 4 : 2);
    const char *at = m->values, *end = at + bytes;
    return (struct product){
        .m = at, .end = end, .next = m->next ? m->next : end, .wide = m->wide, .r = m->r};
}

// What the stream has `ahead` bytes behind w.
V_FN const char *ahead_of(const struct product *p, const char *w, size_t ahead) {
    size_t left = (size_t)(p->end - w);
    return ahead < left ? w + ahead : p->next + (ahead - left);
}

// n vectors, `step` bytes from one to the next, fetched ahead.
V_FN void fetch(const enum kn_dtype t, const char *p, const int n, size_t step) {
    V_UNROLL
    for (int i = 0; i < n; i++)
        if (step >= LINE || i % (LINE / (int)vector_bytes(t)) == 0)
            __builtin_prefetch(p + (size_t)i * step, 0, 3);
}

// ---- u = scale * x M

// One panel: nr vectors of it times mr rows of x.
V_FN void shrink_panel(const enum kn_dtype t, const int mr, const int nr, v16f *sums,
                       const v16f x[], const char *w) {
    V_UNROLL
    for (int j = 0; j < nr; j++) {
        v16f m = load(t, w + (size_t)j * vector_bytes(t));
        V_UNROLL
        for (int i = 0; i < mr; i++)
            sums[i * nr + j] = v_fma(x[i], m, sums[i * nr + j]);
    }
}

// Ranks [j, j + nr) of rows [row, row + mr).
V_FN void shrink_tile(const enum kn_dtype t, const int mr, const int nr, const struct product *p,
                      int32_t row, int32_t j) {
    v16f sums[TALL * WIDE > ROW_RANKS ? TALL * WIDE : ROW_RANKS], v[TALL];
    const float *x = p->from + row * p->ld_from;
    const char *w = p->m + (size_t)j * vector_bytes(t);
    const size_t step = (size_t)p->r * vector_bytes(t);
    const size_t ahead = (AHEAD + step - 1) / step * step;
    int32_t c = 0;
    clear(mr * nr, sums);
    for (; c + V_LANES <= p->wide; c += V_LANES, w += step) {
        V_UNROLL
        for (int i = 0; i < mr; i++)
            v[i] = v_load(x + i * p->ld_from + c);
        if (mr == 1)
            fetch(t, ahead_of(p, w, ahead), nr, vector_bytes(t));
        shrink_panel(t, mr, nr, sums, v, w);
    }
    if (c < p->wide) {
        V_UNROLL
        for (int i = 0; i < mr; i++)
            v[i] = v_load_n(x + i * p->ld_from + c, p->wide - c);
        shrink_panel(t, mr, nr, sums, v, w);
    }
    float *u = p->to + row * p->ld_to + j;
    V_UNROLL
    for (int i = 0; i < mr; i++)
        for (int n = 0; n < nr; n++)
            u[i * p->ld_to + n] = p->scale * v_sum(sums[i * nr + n]);
}

// One row with many ranks: panel by panel, so that the matrix is one stream; the sums, which are
// more than there are registers, lie in memory.
V_FN void shrink_long_row(const enum kn_dtype t, const struct product *p, int32_t row) {
    float sums[KN_LORA_MAX_RANK * V_LANES];
    const float *x = p->from + row * p->ld_from;
    const char *w = p->m;
    const size_t values = (size_t)p->r * V_LANES;
    float *u = p->to + row * p->ld_to;
    for (size_t i = 0; i < values; i += V_LANES)
        v_store(sums + i, v_zero());
    for (int32_t c = 0; c < p->wide; c += V_LANES) {
        v16f v = v_load_n(x + c, p->wide - c);
        const char *f = ahead_of(p, w, AHEAD);
        for (size_t i = 0; i < values; i += V_LANES, w += vector_bytes(t), f += vector_bytes(t)) {
            __builtin_prefetch(f, 0, 3);
            v_store(sums + i, v_fma(v, load(t, w), v_load(sums + i)));
        }
    }
    for (int32_t j = 0; j < p->r; j++)
        u[j] = p->scale * v_sum(v_load(sums + (size_t)j * V_LANES));
}

// All ranks of mr rows; `most` at a time, then the rest in halves.
V_FN void shrink_rows(const enum kn_dtype t, const int mr, const int most, const struct product *p,
                      int32_t row) {
    int32_t j = 0;
    for (; j + most <= p->r; j += most)
        shrink_tile(t, mr, most, p, row, j);
    if (most > 8 && j + 8 <= p->r) {
        shrink_tile(t, mr, 8, p, row, j);
        j += 8;
    }
    if (most > 4 && j + 4 <= p->r) {
        shrink_tile(t, mr, 4, p, row, j);
        j += 4;
    }
    if (most > 2 && j + 2 <= p->r) {
        shrink_tile(t, mr, 2, p, row, j);
        j += 2;
    }
    if (most > 1 && j < p->r)
        shrink_tile(t, mr, 1, p, row, j);
}

V_FN void shrink(const enum kn_dtype t, const struct product *p, int32_t rows) {
    int32_t row = 0;
    for (; row + TALL <= rows; row += TALL)
        shrink_rows(t, TALL, WIDE, p, row);
    for (; row < rows; row++) {
        if (p->r > FEW_RANKS)
            shrink_long_row(t, p, row);
        else
            shrink_rows(t, 1, ROW_RANKS, p, row);
    }
}

void ISA(lora_shrink)(const struct lora_matrix *m, const float *x, int64_t ldx, int32_t rows,
                      float scale, float *u, int64_t ldu) {
    struct product p = make_product(m);
    p.from = x;
    p.ld_from = ldx;
    p.to = u;
    p.ld_to = ldu;
    p.scale = scale;
    if (m->dtype == KN_F32)
        shrink(KN_F32, &p, rows);
    else if (m->dtype == KN_BF16)
        shrink(KN_BF16, &p, rows);
    else
        shrink(KN_F16, &p, rows);
}

// ---- y += scale * u Mᵀ

// np panels from panel `w` on, columns c on, of rows [row, row + mr). lanes: of the last panel,
// where it is the only one.
V_FN void expand_tile(const enum kn_dtype t, const bool add, const int mr, const int np,
                      const struct product *p, int32_t row, int32_t c, const int32_t lanes) {
    v16f sums[TALL * WIDE > ROW_WIDE ? TALL * WIDE : ROW_WIDE],
        m[ROW_WIDE > WIDE ? ROW_WIDE : WIDE];
    const size_t step = (size_t)p->r * vector_bytes(t);
    const float *u = p->from + row * p->ld_from;
    const char *w = p->m + (size_t)(c / V_LANES) * step, *f = ahead_of(p, w, AHEAD);
    clear(mr * np, sums);
    for (int32_t j = 0; j < p->r; j++, w += vector_bytes(t), f += vector_bytes(t)) {
        V_UNROLL
        for (int n = 0; n < np; n++)
            m[n] = load(t, w + (size_t)n * step);
        if (mr == 1)
            fetch(t, f, np, step);
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
            if (!add)
                v_store_n(at, lanes, sums[i * np + n]);
            else if (lanes == V_LANES)
                v_store(at, v_fma(scale, sums[i * np + n], v_load(at)));
            else
                v_store_n(at, lanes, v_fma(scale, sums[i * np + n], v_load_n(at, lanes)));
        }
}

// The same panels for all rows, so that they are read from the nearest cache.
V_FN void expand_rows(const enum kn_dtype t, const bool add, const int tall_np, const int np,
                      const struct product *p, int32_t rows, int32_t c, const int32_t lanes) {
    int32_t row = 0;
    for (; row + TALL <= rows; row += TALL)
        for (int n = 0; n < np; n += tall_np)
            expand_tile(t, add, TALL, tall_np, p, row, c + n * V_LANES, lanes);
    for (; row < rows; row++) {
        if (np > 2 && p->r > FEW_RANKS)
            for (int n = 0; n < np; n += 2)
                expand_tile(t, add, 1, 2, p, row, c + n * V_LANES, lanes);
        else
            expand_tile(t, add, 1, np, p, row, c, lanes);
    }
}

V_FN void expand(const enum kn_dtype t, const bool add, const struct product *p, int32_t rows,
                 int32_t c, int32_t end) {
    for (; c + ROW_WIDE * V_LANES <= end; c += ROW_WIDE * V_LANES)
        expand_rows(t, add, ROW_WIDE > WIDE ? WIDE : ROW_WIDE, ROW_WIDE, p, rows, c, V_LANES);
    for (; ROW_WIDE > WIDE && c + WIDE * V_LANES <= end; c += WIDE * V_LANES)
        expand_rows(t, add, WIDE, WIDE, p, rows, c, V_LANES);
    for (; c + V_LANES <= end; c += V_LANES)
        expand_rows(t, add, 1, 1, p, rows, c, V_LANES);
    if (c < end)
        expand_rows(t, add, 1, 1, p, rows, c, end - c);
}

void ISA(lora_expand)(const struct lora_matrix *m, const float *u, int64_t ldu, int32_t rows,
                      float scale, float *y, int64_t ldy, int32_t begin, int32_t end) {
    struct product p = make_product(m);
    p.from = u;
    p.ld_from = ldu;
    p.to = y;
    p.ld_to = ldy;
    p.scale = scale;
    if (m->dtype == KN_F32)
        expand(KN_F32, true, &p, rows, begin, end);
    else if (m->dtype == KN_BF16)
        expand(KN_BF16, true, &p, rows, begin, end);
    else
        expand(KN_F16, true, &p, rows, begin, end);
}

void ISA(lora_expand_sums)(const struct lora_matrix *m, const float *u, int64_t ldu, int32_t rows,
                           float *sums, int64_t ld) {
    struct product p = make_product(m);
    p.from = u;
    p.ld_from = ldu;
    p.to = sums;
    p.ld_to = ld;
    if (m->dtype == KN_F32)
        expand(KN_F32, false, &p, rows, 0, m->wide);
    else if (m->dtype == KN_BF16)
        expand(KN_BF16, false, &p, rows, 0, m->wide);
    else
        expand(KN_F16, false, &p, rows, 0, m->wide);
}

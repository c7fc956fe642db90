// SPDX-License-Identifier: Apache-2.0
// Products with BF16 weights on CPUs that multiply pairs of bf16 (vdpbf16ps): 16 sums each take two
// columns with one instruction, twice what f32 multiply-adds do. Activations are rounded to bf16.
// A tile of up to B_ROWS rows times a pair of panels has its sums in registers.
//
// Order of the sums: one chain over k for each output. vdpbf16ps adds the odd column's product
// first, then the even one's, each like a fused multiply-add that rounds to nearest even, takes
// denormal inputs for zero and flushes denormal results to zero (Intel SDM volume 2, VDPBF16PS).
// Rounding of activations: nearest even; denormals become zero, what rounds beyond the largest bf16
// becomes infinite, a NaN stays one.
#include "kernels/cpu/isa/gemm_internal.h"

#if defined(KN_ISA_AVX512BF16)
#include "kernels/cpu/isa/transpose.h"

enum {
    B_ROWS = GEMM_BF16_ROWS,
    RUN_MOST = 576, // columns of a pair that a strip's tiles use before the next ones: they stay in
                    // the first cache
    SUMS_BYTES = 256 << 10, // of the scratch memory; the packed activations follow
    X_BYTES = 512 << 10,    // of these, which stay in the second cache
    AHEAD = 8192,           // bytes that a stream is prefetched ahead: the latency of memory
    STEP = 2 * CPU_VECTOR,  // bytes of two columns of a pair
};

V_FN __m512bh pairs_load(const uint8_t *p) {
    return (__m512bh)_mm512_loadu_si512(p);
}

V_FN void run_tile(const int mr, const struct gemm_bf16_tile *a) {
    v16f acc[B_ROWS][2];
    const uint8_t *w = a->w, *ahead = a->ahead;
    const uint32_t *x = a->x;
    struct gemm_fetch nothing = {0}, *fetch = a->fetch ? a->fetch : &nothing;
    uint32_t fetched = fetch->done;
    V_UNROLL
    for (int i = 0; i < mr; i++) {
        const float *at = a->sums + i * a->ld_sums;
        acc[i][0] = a->add ? v_load(at) : v_zero();
        acc[i][1] = a->add ? v_load(at + V_LANES) : v_zero();
    }
    for (const uint8_t *end = w + (size_t)a->steps * STEP; w < end;
         w += STEP, x += mr, ahead += a->ahead_step) {
        __m512bh w0 = pairs_load(w), w1 = pairs_load(w + CPU_VECTOR);
        __builtin_prefetch(ahead, 0, 3);
        __builtin_prefetch(ahead + CPU_VECTOR, 0, 3);
        fetched = gemm_fetch_step(fetch, fetched);
        V_UNROLL
        for (int i = 0; i < mr; i++) {
            __m512bh b = (__m512bh)_mm512_set1_epi32((int32_t)x[i]);
            acc[i][0] = _mm512_dpbf16_ps(acc[i][0], b, w0);
            acc[i][1] = _mm512_dpbf16_ps(acc[i][1], b, w1);
        }
    }
    if (a->fetch)
        a->fetch->done = fetched;
    V_UNROLL
    for (int i = 0; i < mr; i++) {
        v_store(a->sums + i * a->ld_sums, acc[i][0]);
        v_store(a->sums + i * a->ld_sums + V_LANES, acc[i][1]);
    }
}

// ---- one function per height

#define HEIGHTS(X) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11) X(12)
#define TILE_FN(mr)                                                                                \
    static void tile_##mr(const struct gemm_bf16_tile *a) {                                        \
        run_tile(mr, a);                                                                           \
    }
HEIGHTS(TILE_FN)

typedef void (*tile_fn)(const struct gemm_bf16_tile *a);
#define TILE_ENTRY(mr) [mr - 1] = tile_##mr,
static const tile_fn tiles[B_ROWS] = {HEIGHTS(TILE_ENTRY)};

// ---- activations

// Columns [0, n) of a row as pairs, zeros beyond.
V_FN v16f round_pairs(const float *x, int32_t n) {
    const int32_t half = V_LANES;
    if (n >= 2 * half)
        return v_from_bits((v16i)_mm512_cvtne2ps_pbh(v_load(x + half), v_load(x)));
    __m512 high = n > half ? v_load_n(x + half, n - half) : v_zero();
    return v_from_bits((v16i)_mm512_cvtne2ps_pbh(high, v_load_n(x, n)));
}

// Some rows' next n columns, n at most 32: out [(n + 1) / 2][rows]. Writes up to 15 words more.
V_FN void pack_columns(const float *x, int64_t ldx, int32_t rows, int32_t n, uint32_t *out) {
    v16f v[V_LANES];
    V_UNROLL
    for (int i = 0; i < V_LANES; i++) // lanes beyond the rows are overwritten or not read
        v[i] = round_pairs(x + (i < rows ? i : 0) * ldx, n);
    v_transpose(v);
    V_UNROLL
    for (int j = 0; j < V_LANES; j++)
        if (2 * j < n)
            vi_store(out + j * rows, v_bits(v[j]));
}

// The rows of one tile, `len` columns.
static void pack_rows(const float *x, int64_t ldx, int32_t rows, int32_t len, uint32_t *out) {
    enum { GROUP = 2 * V_LANES };
    int32_t c = 0;
    if (rows == 1) {
        for (; c < len; c += GROUP)
            vi_store(out + c / 2, v_bits(round_pairs(x + c, len - c)));
        return;
    }
    for (; c + GROUP <= len; c += GROUP, out += V_LANES * rows)
        pack_columns(x + c, ldx, rows, GROUP, out);
    if (c < len)
        pack_columns(x + c, ldx, rows, len - c, out);
}

void ISA(gemm_bf16_tile)(int32_t rows, const struct gemm_bf16_tile *a) {
    tiles[rows - 1](a);
}

void ISA(gemm_bf16_pack)(const float *x, int64_t ldx, int32_t rows, int32_t len, uint32_t *out) {
    pack_rows(x, ldx, rows, len, out);
}

// How a strip is cut. Its rows: `tiles` of nearly equal height, the first `taller` of them one row
// taller. Its columns: runs of one size, as what is fetched ahead is the next run.
struct cut {
    int32_t tiles, height, taller;
    int32_t run;
};

static struct cut cut_strip(int32_t rows, int32_t columns) {
    int32_t n = (rows + B_ROWS - 1) / B_ROWS;
    struct cut c = {.tiles = n, .height = rows / n, .taller = rows % n, .run = columns};
    if (n == 1) // what has no other tile to wait for needs no runs
        return c;
    int32_t runs = (columns + RUN_MOST - 1) / RUN_MOST;
    c.run = (columns + runs - 1) / runs;
    c.run += c.run % 2;
    return c;
}

// The strip's rows, columns [c, c + len), run by run, in a run tile by tile.
static void pack(const struct gemm_strip *s, const struct cut *cut, int32_t c, int32_t len,
                 uint32_t *out) {
    const struct kn_gemm *p = s->p;
    for (int32_t end = c + len; c < end; c += cut->run) {
        int32_t columns = end - c < cut->run ? end - c : cut->run, steps = (columns + 1) / 2;
        const float *x = (const float *)p->x + s->row0 * p->ldx + c;
        for (int32_t i = 0; i < cut->tiles; i++) {
            int32_t rows = cut->height + (i < cut->taller);
            pack_rows(x, p->ldx, rows, columns, out);
            x += rows * p->ldx;
            out += rows * steps;
        }
    }
}

// ---- strips

// Columns [c, c + len) of one pair. Tiles share the work of fetching the columns of the next run,
// so that memory is never idle; a tile that is alone fetches its own stream.
static void add_columns(const struct gemm_strip *s, const struct cut *cut, int32_t pair, int32_t c,
                        int32_t len, const uint32_t *x, float *sums, int64_t ld_sums) {
    const uint8_t *w = s->seg->data + (size_t)pair * s->seg->pair_bytes + (size_t)c * CPU_VECTOR;
    struct gemm_bf16_tile a = {
        .ld_sums = ld_sums, .ahead_step = STEP / (size_t)cut->tiles, .fetch = s->fetch};
    for (int32_t end = c + len; c < end; c += cut->run) {
        int32_t columns = end - c < cut->run ? end - c : cut->run;
        bool last = s->p->w->k - c <= cut->run && cut->tiles > 1;
        a.w = w;
        a.x = x;
        a.sums = sums;
        a.steps = (columns + 1) / 2;
        a.add = c > 0;
        w += (size_t)a.steps * STEP;
        a.ahead = cut->tiles > 1 ? w : a.w + AHEAD;
        for (int32_t i = 0, row = 0; i < cut->tiles; i++) {
            int32_t rows = cut->height + (i < cut->taller);
            if (last)
                ISA(gemm_fetch_y)(s, pair, row, row + rows);
            tiles[rows - 1](&a);
            row += rows;
            a.x += rows * a.steps;
            a.sums += rows * ld_sums;
            a.ahead += (size_t)a.steps * a.ahead_step;
        }
        x = a.x;
    }
}

void ISA(gemm_bf16)(const struct gemm_strip *s) {
    int32_t k = s->p->w->k, fit = X_BYTES / 2 / s->rows / RUN_MOST * RUN_MOST;
    float *sums = (float *)(void *)s->scratch;
    uint32_t *x = (uint32_t *)(void *)(s->scratch + SUMS_BYTES);
    int32_t columns = k < fit ? k : fit; // that are packed at once
    // As long as one packing has all columns, a pair is finished at a time, near the first cache.
    int32_t most = k <= fit ? 1 : SUMS_BYTES / (s->rows * CPU_PAIR * (int32_t)sizeof(float));
    const struct cut cut = cut_strip(s->rows, columns);
    if (s->fetch)
        gemm_fetch_plan(s->fetch, (uint32_t)(cut.tiles * ((k + 1) / 2) * s->pairs));
    for (int32_t i = 0, n; i < s->pairs; i += n) {
        n = s->pairs - i < most ? s->pairs - i : most;
        for (int32_t c = 0; c < k; c += columns) {
            int32_t len = k - c < columns ? k - c : columns;
            if (s->packed->row0 != s->row0 || s->packed->column != c) {
                pack(s, &cut, c, len, x);
                *s->packed = (struct gemm_packed){s->row0, c};
            }
            for (int32_t j = 0; j < n; j++)
                add_columns(s, &cut, s->pair0 + i + j, c, len, x, sums + j * CPU_PAIR,
                            (int64_t)n * CPU_PAIR);
        }
        ISA(gemm_finish)(s, s->pair0 + i, n, sums);
    }
}
#else
typedef int no_content; // a translation unit must have a declaration
#endif

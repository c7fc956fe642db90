// SPDX-License-Identifier: Apache-2.0
// Products with F32, BF16 and F16 weights in f32 arithmetic. A tile of a few rows times a few panels
// has its sums in registers; weights are converted while they are used, so that the caches hold the
// two-byte form.
#include "kernels/cpu/isa/gemm_internal.h"

// Tile shapes: at most F_ROWS rows, and per height as many panels as the registers hold sums of.
// The tallest tile reuses most; the lowest ones have enough sums to hide the latency of an addition.
#if defined(KN_ISA_AVX512)
enum { F_ROWS = 8 };
#define TILES(T, X)                                                                                \
    X(T, 1, 1)                                                                                     \
    X(T, 1, 2)                                                                                     \
    X(T, 1, 3)                                                                                     \
    X(T, 1, 4)                                                                                     \
    X(T, 2, 1) X(T, 2, 2) X(T, 2, 3) X(T, 2, 4) X(T, 3, 1) X(T, 3, 2) X(T, 3, 3) X(T, 4, 1)        \
        X(T, 4, 2) X(T, 4, 3) X(T, 5, 1) X(T, 5, 2) X(T, 5, 3) X(T, 6, 1) X(T, 6, 2) X(T, 6, 3)    \
            X(T, 7, 1) X(T, 7, 2) X(T, 7, 3) X(T, 8, 1) X(T, 8, 2) X(T, 8, 3)
static const int8_t panels_of_height[F_ROWS + 1] = {4, 4, 4, 3, 3, 3, 3, 3, 3};
#elif defined(KN_ISA_AVX2)
enum { F_ROWS = 6 };
#define TILES(T, X)                                                                                \
    X(T, 1, 1)                                                                                     \
    X(T, 1, 2)                                                                                     \
    X(T, 1, 3)                                                                                     \
    X(T, 1, 4)                                                                                     \
    X(T, 2, 1) X(T, 2, 2) X(T, 2, 3) X(T, 3, 1) X(T, 3, 2) X(T, 4, 1) X(T, 5, 1) X(T, 6, 1)
static const int8_t panels_of_height[F_ROWS + 1] = {4, 4, 3, 2, 1, 1, 1};
#else
enum { F_ROWS = 3 };
#define TILES(T, X) X(T, 1, 1) X(T, 1, 2) X(T, 2, 1) X(T, 3, 1)
static const int8_t panels_of_height[F_ROWS + 1] = {2, 2, 1, 1};
#endif

enum {
    MAX_PANELS = 4,
    BLOCK_ROWS = 128,       // rows of a strip
    SUMS_BYTES = 256 << 10, // of the scratch memory
    AHEAD_MOST = 256 << 10, // how far ahead prefetched weights may lie: they must stay in a cache
    AHEAD_NEAR = 2048,      // else this far
};

struct tile {
    const uint8_t *w; // first panel, at the first column
    size_t panel_stride;
    int32_t k;
    const float *x;
    int64_t ldx;
    float *sums;
    int64_t ld_sums;
    bool add; // on top of earlier runs
    // What each panel prefetches while it goes on by two columns: the panel of the next tile there,
    // moving by ahead_step bytes.
    const uint8_t *ahead;
    size_t ahead_step;
};

// Column c of a panel, c even; and column c + 1.
V_FN v16f load_even(enum kn_dtype t, const uint8_t *w) {
    if (t == KN_BF16)
        return v_bf16_even(vi_load(w));
    if (t == KN_F16)
        return v_load_f16((const uint16_t *)(const void *)w);
    return v_load((const float *)(const void *)w);
}

V_FN v16f load_odd(enum kn_dtype t, const uint8_t *w) {
    if (t == KN_BF16)
        return v_bf16_odd(vi_load(w));
    if (t == KN_F16)
        return v_load_f16((const uint16_t *)(const void *)(w + 32));
    return v_load((const float *)(const void *)(w + 64));
}

// Compilers like to load early what is needed late, and then spill sums: this keeps what stands
// below it from being loaded above it.
#define LOADS_STAY_BELOW() __asm__ volatile("" ::: "memory")

// One column for all rows. Three pointers reach nine rows with two scaled offsets each.
V_FN void fma_column(const int mr, const int nv, v16f acc[][MAX_PANELS], const float *const x[3],
                     int64_t ldx, const int c, const v16f *w) {
    V_UNROLL
    for (int i = 0; i < mr; i++) {
        v16f a = v_set1(x[i / 3][i % 3 * ldx + c]);
        V_UNROLL
        for (int j = 0; j < nv; j++)
            acc[i][j] = v_fma(a, w[j], acc[i][j]);
    }
}

V_FN void prefetch_panels(const enum kn_dtype t, const int nv, const uint8_t *p, size_t stride) {
    V_UNROLL
    for (int j = 0; j < nv; j++) {
        __builtin_prefetch(p + (size_t)j * stride, 0, 3);
        if (t == KN_F32)
            __builtin_prefetch(p + (size_t)j * stride + 64, 0, 3);
    }
}

// One run: `len` columns from a->x + c0, weights from w.
V_FN void run_tile(const enum kn_dtype t, const int mr, const int nv, const struct tile *a,
                   int32_t c0, int32_t len, const uint8_t *w, const uint8_t *ahead, bool add) {
    const size_t step = t == KN_F32 ? 128 : 64, stride = a->panel_stride;
    const int64_t ldx = a->ldx;
    const float *x[3] = {a->x + c0, a->x + c0 + 3 * ldx, a->x + c0 + 6 * ldx};
    v16f acc[F_ROWS][MAX_PANELS], v[MAX_PANELS];
    V_UNROLL
    for (int i = 0; i < mr; i++) {
        V_UNROLL
        for (int j = 0; j < nv; j++)
            acc[i][j] = v_zero();
    }
    for (const float *end = x[0] + (len & ~1); x[0] < end; x[0] += 2, x[1] += 2, x[2] += 2) {
        V_UNROLL
        for (int j = 0; j < nv; j++)
            v[j] = load_even(t, w + (size_t)j * stride);
        prefetch_panels(t, nv, ahead, stride);
        fma_column(mr, nv, acc, x, ldx, 0, v);
        LOADS_STAY_BELOW();
        V_UNROLL
        for (int j = 0; j < nv; j++)
            v[j] = load_odd(t, w + (size_t)j * stride);
        fma_column(mr, nv, acc, x, ldx, 1, v);
        w += step;
        ahead += a->ahead_step;
    }
    if (len & 1) { // nothing may lie beside the last column
        V_UNROLL
        for (int j = 0; j < nv; j++)
            v[j] = load_even(t, w + (size_t)j * stride);
        fma_column(mr, nv, acc, x, ldx, 0, v);
    }
    V_UNROLL
    for (int i = 0; i < mr; i++) {
        float *s = a->sums + i * a->ld_sums;
        V_UNROLL
        for (int j = 0; j < nv; j++)
            v_store(s + j * V_LANES, add ? v_add(v_load(s + j * V_LANES), acc[i][j]) : acc[i][j]);
    }
}

V_FN void all_runs(const enum kn_dtype t, const int mr, const int nv, const struct tile *a) {
    const size_t bytes = t == KN_F32 ? 64 : 32; // of a column
    for (int32_t c = 0; c < a->k; c += GEMM_RUN)
        run_tile(t, mr, nv, a, c, a->k - c < GEMM_RUN ? a->k - c : GEMM_RUN,
                 a->w + (size_t)c * bytes, a->ahead + (size_t)(c / 2) * a->ahead_step,
                 a->add || c > 0);
}

#define TILE_FN(T, mr, nv)                                                                         \
    static void tile_##T##_##mr##_##nv(const struct tile *a) {                                     \
        all_runs(KN_##T, mr, nv, a);                                                               \
    }
TILES(F32, TILE_FN)
TILES(BF16, TILE_FN)
TILES(F16, TILE_FN)

typedef void (*tile_fn)(const struct tile *a);
#define TILE_ENTRY(T, mr, nv) [mr - 1][nv - 1] = tile_##T##_##mr##_##nv,
static const tile_fn tiles_f32[F_ROWS][MAX_PANELS] = {TILES(F32, TILE_ENTRY)};
static const tile_fn tiles_bf16[F_ROWS][MAX_PANELS] = {TILES(BF16, TILE_ENTRY)};
static const tile_fn tiles_f16[F_ROWS][MAX_PANELS] = {TILES(F16, TILE_ENTRY)};

static tile_fn tile_for(enum kn_dtype t, int32_t height, int32_t nv) {
    if (t == KN_BF16)
        return tiles_bf16[height - 1][nv - 1];
    return t == KN_F16 ? tiles_f16[height - 1][nv - 1] : tiles_f32[height - 1][nv - 1];
}

// All `rows` rows times nv panels, in tiles of nearly equal height. The tiles share the work of
// fetching what lies `ahead` bytes on, so that memory is never idle.
static void rows_of_tiles(enum kn_dtype t, struct tile a, int32_t rows, int32_t nv, size_t ahead) {
    int32_t n = (rows + F_ROWS - 1) / F_ROWS;
    const float *x = a.x;
    float *sums = a.sums;
    size_t column = t == KN_F32 ? 64 : 32, bytes = (size_t)a.k * column;
    a.ahead_step = ahead ? 2 * column / (size_t)n : 0;
    for (int32_t i = 0; i < n; i++) {
        int32_t r0 = (int32_t)((int64_t)rows * i / n), r1 = (int32_t)((int64_t)rows * (i + 1) / n);
        a.x = x + r0 * a.ldx;
        a.sums = sums + r0 * a.ld_sums;
        a.ahead = a.w + (ahead ? ahead + bytes * (size_t)i / (size_t)n : 0);
        tile_for(t, r1 - r0, nv)(&a);
    }
}

// Panels that one tile takes when there are `rows` rows.
static int32_t panels_at_once(int32_t rows) {
    int32_t n = (rows + F_ROWS - 1) / F_ROWS;
    return panels_of_height[(rows + n - 1) / n];
}

// ---- strips

int32_t ISA(gemm_float_rows)(const struct kn_weight *w) {
    (void)w;
    return BLOCK_ROWS;
}

// Columns [c, c + len) for all panels of pairs [pair0, pair0 + pairs): sums [rows][pairs][32].
static void add_columns(const struct gemm_strip *s, int32_t pair0, int32_t pairs, int32_t c,
                        int32_t len, float *sums) {
    const struct kn_gemm *p = s->p;
    enum kn_dtype t = s->seg->dtype;
    size_t stride = s->seg->pair_bytes / 2, column = t == KN_F32 ? 64 : 32;
    const uint8_t *w = s->seg->data + (size_t)pair0 * s->seg->pair_bytes + (size_t)c * column;
    struct tile a = {.panel_stride = stride,
                     .k = len,
                     .x = (const float *)p->x + s->row0 * p->ldx + c,
                     .ldx = p->ldx,
                     .ld_sums = (int64_t)pairs * CPU_PAIR,
                     .add = c > 0};
    int32_t panels = 2 * pairs, most = panels_at_once(s->rows);
    for (int32_t j = 0, nv; j < panels; j += nv) {
        nv = panels - j < most ? panels - j : most;
        a.w = w + (size_t)j * stride;
        a.sums = sums + j * CPU_PANEL;
        // The next tile's panels; where they are too far away, further on in these.
        size_t ahead = (size_t)nv * stride;
        rows_of_tiles(t, a, s->rows, nv, ahead <= AHEAD_MOST ? ahead : AHEAD_NEAR);
    }
}

void ISA(gemm_float)(const struct gemm_strip *s) {
    int32_t k = s->p->w->k, most = SUMS_BYTES / (s->rows * CPU_PAIR * (int32_t)sizeof(float));
    // One tile reads its weights once: then all of k in one go, which is one long stream.
    int32_t columns = s->rows <= F_ROWS ? k : GEMM_RUN;
    float *sums = (float *)(void *)s->scratch;
    for (int32_t i = 0, n; i < s->pairs; i += n) {
        n = s->pairs - i < most ? s->pairs - i : most;
        for (int32_t c = 0; c < k; c += columns)
            add_columns(s, s->pair0 + i, n, c, k - c < columns ? k - c : columns, sums);
        ISA(gemm_finish)(s, s->pair0 + i, n, sums);
    }
}

int32_t ISA(gemm_f32_panels)(void) {
    return panels_of_height[F_ROWS];
}

void ISA(gemm_f32_tile)(const float *w, size_t panel_stride, int32_t nv, int32_t k, const float *x,
                        int64_t ldx, int32_t rows, float *sums, int64_t ld_sums, bool add) {
    struct tile a = {.w = (const uint8_t *)w,
                     .panel_stride = panel_stride,
                     .k = k,
                     .x = x,
                     .ldx = ldx,
                     .sums = sums,
                     .ld_sums = ld_sums,
                     .add = add};
    rows_of_tiles(KN_F32, a, rows, nv, 0);
}

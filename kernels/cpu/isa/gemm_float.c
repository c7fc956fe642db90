// SPDX-License-Identifier: Apache-2.0
// Products with F32, BF16 and F16 weights in f32 arithmetic. A tile of a few rows times a few panels
// has its sums in registers. For many rows, two-byte weights are converted once per block of rows.
#include "kernels/cpu/isa/gemm_internal.h"

// Tile shapes: at most F_ROWS rows, and per height as many panels as the registers hold sums of.
// The tallest tile reuses most; the lowest ones have enough sums to hide the latency of an addition.
#if defined(KN_ISA_AVX512)
enum { F_ROWS = 8 };
#define TILES(T, X)                                                                                \
    X(T, 1, 1)                                                                                     \
    X(T, 1, 2)                                                                                     \
    X(T, 1, 3) X(T, 1, 4) X(T, 2, 1) X(T, 2, 2) X(T, 2, 3) X(T, 2, 4) X(T, 3, 1) X(T, 3, 2)        \
        X(T, 3, 3) X(T, 4, 1) X(T, 4, 2) X(T, 4, 3) X(T, 5, 1) X(T, 5, 2) X(T, 5, 3) X(T, 6, 1)    \
            X(T, 6, 2) X(T, 6, 3) X(T, 7, 1) X(T, 7, 2) X(T, 7, 3) X(T, 8, 1) X(T, 8, 2)           \
                X(T, 8, 3)
static const int8_t panels_of_height[F_ROWS + 1] = {4, 4, 4, 3, 3, 3, 3, 3, 3};
#elif defined(KN_ISA_AVX2)
enum { F_ROWS = 6 };
#define TILES(T, X)                                                                                \
    X(T, 1, 1)                                                                                     \
    X(T, 1, 2)                                                                                     \
    X(T, 1, 3) X(T, 1, 4) X(T, 2, 1) X(T, 2, 2) X(T, 2, 3) X(T, 3, 1) X(T, 3, 2) X(T, 4, 1)        \
        X(T, 5, 1) X(T, 6, 1)
static const int8_t panels_of_height[F_ROWS + 1] = {4, 4, 3, 2, 1, 1, 1};
#else
enum { F_ROWS = 3 };
#define TILES(T, X) X(T, 1, 1) X(T, 1, 2) X(T, 2, 1) X(T, 3, 1)
static const int8_t panels_of_height[F_ROWS + 1] = {2, 2, 1, 1};
#endif

enum {
    MAX_PANELS = 4,
    DIRECT_ROWS = 64,       // up to this many rows weights are converted while they are used
    BLOCK_ROWS = 256,       // rows of a strip
    AHEAD = 2048,           // bytes that weights are prefetched ahead
    SUMS_BYTES = 512 << 10, // of the scratch memory; the converted weights follow
    CONVERTED_STRIDE = GEMM_RUN * 64 + 256, // not a power of two: panels in different cache sets
};

struct tile {
    const uint8_t *w; // first panel, at the first column
    size_t panel_stride;
    int32_t k;
    const float *x;
    int64_t ldx;
    float *sums;
    int64_t ld_sums;
    bool add;     // on top of earlier runs
    size_t ahead; // prefetch distance, 0 where the weights are near
};

// Columns c and c + 1 of a panel.
V_FN void load_two(enum kn_dtype t, const uint8_t *w, v16f *even, v16f *odd) {
    if (t == KN_BF16) {
        v16i raw = vi_load(w);
        *even = v_bf16_even(raw);
        *odd = v_bf16_odd(raw);
    } else if (t == KN_F16) {
        *even = v_load_f16((const uint16_t *)(const void *)w);
        *odd = v_load_f16((const uint16_t *)(const void *)(w + 32));
    } else {
        *even = v_load((const float *)(const void *)w);
        *odd = v_load((const float *)(const void *)(w + 64));
    }
}

V_FN v16f load_one(enum kn_dtype t, const uint8_t *w) {
    if (t == KN_BF16)
        return v_bf16_even(vi_load(w));
    if (t == KN_F16)
        return v_load_f16((const uint16_t *)(const void *)w);
    return v_load((const float *)(const void *)w);
}

V_FN void fma_row(const int nv, v16f *acc, float x, const v16f *w) {
    v16f a = v_set1(x);
    V_UNROLL
    for (int j = 0; j < nv; j++)
        acc[j] = v_fma(a, w[j], acc[j]);
}

// One run: `len` columns from a->x + c0, weights from w.
V_FN void run_tile(const enum kn_dtype t, const int mr, const int nv, const struct tile *a,
                   int32_t c0, int32_t len, const uint8_t *w, bool add) {
    const size_t step = t == KN_F32 ? 128 : 64, stride = a->panel_stride, ahead = a->ahead;
    const int64_t ldx = a->ldx;
    const float *x = a->x + c0;
    v16f acc[F_ROWS][MAX_PANELS], even[MAX_PANELS], odd[MAX_PANELS];
    V_UNROLL
    for (int i = 0; i < mr; i++) {
        V_UNROLL
        for (int j = 0; j < nv; j++)
            acc[i][j] = v_zero();
    }
    for (const float *end = x + (len & ~1); x < end; x += 2, w += step) {
        V_UNROLL
        for (int j = 0; j < nv; j++) {
            const uint8_t *wj = w + (size_t)j * stride;
            load_two(t, wj, &even[j], &odd[j]);
            __builtin_prefetch(wj + ahead, 0, 3);
            if (t == KN_F32)
                __builtin_prefetch(wj + ahead + 64, 0, 3);
        }
        V_UNROLL
        for (int i = 0; i < mr; i++)
            fma_row(nv, acc[i], x[i * ldx], even);
        V_UNROLL
        for (int i = 0; i < mr; i++)
            fma_row(nv, acc[i], x[i * ldx + 1], odd);
    }
    if (len & 1) {
        V_UNROLL
        for (int j = 0; j < nv; j++)
            even[j] = load_one(t, w + (size_t)j * stride);
        V_UNROLL
        for (int i = 0; i < mr; i++)
            fma_row(nv, acc[i], x[i * ldx], even);
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
                 a->w + (size_t)c * bytes, a->add || c > 0);
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

// All `rows` rows times nv panels, in tiles of nearly equal height. Only the first tile finds its
// weights far away.
static void rows_of_tiles(enum kn_dtype t, struct tile a, int32_t rows, int32_t nv) {
    int32_t n = (rows + F_ROWS - 1) / F_ROWS;
    const float *x = a.x;
    float *sums = a.sums;
    for (int32_t i = 0; i < n; i++) {
        int32_t r0 = (int32_t)((int64_t)rows * i / n), r1 = (int32_t)((int64_t)rows * (i + 1) / n);
        a.x = x + r0 * a.ldx;
        a.sums = sums + r0 * a.ld_sums;
        tile_for(t, r1 - r0, nv)(&a);
        a.ahead = 0;
    }
}

// Panels that one tile takes when there are `rows` rows.
static int32_t panels_at_once(int32_t rows) {
    int32_t n = (rows + F_ROWS - 1) / F_ROWS;
    return panels_of_height[(rows + n - 1) / n];
}

// `len` columns of a panel to f32.
static void convert(enum kn_dtype t, const uint8_t *w, int32_t len, float *out) {
    for (int32_t c = 0; c < len; c += 2, w += 64, out += 2 * V_LANES) {
        v16f even, odd;
        load_two(t == KN_BF16 ? KN_BF16 : KN_F16, w, &even, &odd);
        __builtin_prefetch(w + AHEAD, 0, 3);
        v_store(out, even);
        v_store(out + V_LANES, odd); // beside an odd last column lies a zero
    }
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
    bool direct = s->rows <= DIRECT_ROWS || t == KN_F32;
    size_t stride = s->seg->pair_bytes / 2, column = t == KN_F32 ? 64 : 32;
    const uint8_t *w = s->seg->data + (size_t)pair0 * s->seg->pair_bytes + (size_t)c * column;
    uint8_t *converted = (uint8_t *)s->scratch + SUMS_BYTES;
    struct tile a = {.panel_stride = direct ? stride : CONVERTED_STRIDE,
                     .k = len,
                     .x = (const float *)p->x + s->row0 * p->ldx + c,
                     .ldx = p->ldx,
                     .ld_sums = (int64_t)pairs * CPU_PAIR,
                     .add = c > 0,
                     .ahead = direct ? AHEAD : 0};
    int32_t panels = 2 * pairs, most = panels_at_once(s->rows);
    for (int32_t j = 0, nv; j < panels; j += nv) {
        nv = panels - j < most ? panels - j : most;
        a.w = w + (size_t)j * stride;
        a.sums = sums + j * CPU_PANEL;
        if (!direct) {
            for (int32_t i = 0; i < nv; i++)
                convert(t, a.w + (size_t)i * stride, len,
                        (float *)(void *)(converted + (size_t)i * CONVERTED_STRIDE));
            a.w = converted;
        }
        rows_of_tiles(direct ? t : KN_F32, a, s->rows, nv);
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
    rows_of_tiles(KN_F32, a, rows, nv);
}

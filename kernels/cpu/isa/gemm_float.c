// SPDX-License-Identifier: Apache-2.0
// Products with F32, BF16 and F16 weights in f32 arithmetic. A tile of up to F_ROWS rows times a
// pair of panels (or, with few registers, one panel after the other) has its sums in registers;
// weights are converted while they are used, so that the caches hold the two-byte form.
#include "kernels/cpu/isa/gemm_internal.h"

// F_PAIR_ROWS: the tallest tile whose sums of both panels fit.
#if defined(KN_ISA_AVX512)
enum { F_ROWS = 12, F_PAIR_ROWS = 12 };
#define HEIGHTS(T, X)                                                                              \
    X(T, 1)                                                                                        \
    X(T, 2) X(T, 3) X(T, 4) X(T, 5) X(T, 6) X(T, 7) X(T, 8) X(T, 9) X(T, 10) X(T, 11) X(T, 12)
#elif defined(KN_ISA_AVX2)
enum { F_ROWS = 6, F_PAIR_ROWS = 2 };
#define HEIGHTS(T, X) X(T, 1) X(T, 2) X(T, 3) X(T, 4) X(T, 5) X(T, 6)
#else
enum { F_ROWS = 2, F_PAIR_ROWS = 1 };
#define HEIGHTS(T, X) X(T, 1) X(T, 2)
#endif

enum {
    BLOCK_ROWS = 128,       // rows of a strip
    SUMS_BYTES = 256 << 10, // of the scratch memory
    AHEAD = 8192,           // bytes that a stream is prefetched ahead: the latency of memory
    AHEAD_MOST = 256 << 10, // how far ahead prefetched weights may lie: they must stay in a cache
};

struct tile {
    const uint8_t *w; // the pair, at the first column
    int32_t k;        // columns
    const float *x;
    int64_t ldx;
    float *sums;
    int64_t ld_sums;
    bool add; // on top of earlier runs
    // What is prefetched while the tile goes on by two columns, and how fast that moves.
    const uint8_t *ahead;
    size_t ahead_step;
};

// Columns c (even) and c + 1 of a panel; w is its vector for column c.
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
        return v_load_f16((const uint16_t *)(const void *)(w + CPU_VECTOR / 2));
    return v_load((const float *)(const void *)(w + 2 * CPU_VECTOR));
}

// Compilers like to load early what is needed late, and then spill sums: this keeps what stands
// below it from being loaded above it.
#define LOADS_STAY_BELOW() __asm__ volatile("" ::: "memory")

// One column for all rows, np panels. Each of the pointers reaches three rows with scaled offsets.
V_FN void fma_column(const int mr, const int np, v16f acc[][2], const float *const x[4],
                     int64_t ldx, const int c, const v16f w[2]) {
    V_UNROLL
    for (int i = 0; i < mr; i++) {
        v16f a = v_set1(x[i / 3][i % 3 * ldx + c]);
        acc[i][0] = v_fma(a, w[0], acc[i][0]);
        if (np == 2)
            acc[i][1] = v_fma(a, w[1], acc[i][1]);
    }
}

V_FN void prefetch_step(const size_t step, const uint8_t *p) {
    for (size_t o = 0; o < step; o += CPU_VECTOR)
        __builtin_prefetch(p + o, 0, 3);
}

V_FN void store_sums(const int mr, const int np, v16f acc[][2], float *sums, int64_t ld, bool add) {
    V_UNROLL
    for (int i = 0; i < mr; i++, sums += ld) {
        v_store(sums, add ? v_add(v_load(sums), acc[i][0]) : acc[i][0]);
        if (np == 2)
            v_store(sums + V_LANES, add ? v_add(v_load(sums + V_LANES), acc[i][1]) : acc[i][1]);
    }
}

// One run: `len` columns from a->x + c0, np panels from w.
V_FN void run_tile(const enum kn_dtype t, const int mr, const int np, const struct tile *a,
                   int32_t c0, int32_t len, const uint8_t *w, const uint8_t *ahead, float *sums,
                   bool add) {
    const size_t step = 2 * cpu_column_bytes(t);
    const int bases = (mr + 2) / 3;
    const int64_t ldx = a->ldx;
    const float *x[4];
    v16f acc[F_ROWS][2], v[2] = {v_zero(), v_zero()};
    V_UNROLL
    for (int i = 0; i < bases; i++)
        x[i] = a->x + c0 + 3 * i * ldx;
    V_UNROLL
    for (int i = 0; i < mr; i++)
        acc[i][0] = acc[i][1] = v_zero();
    for (const float *end = x[0] + (len & ~1); x[0] < end; w += step, ahead += a->ahead_step) {
        v[0] = load_even(t, w);
        if (np == 2)
            v[1] = load_even(t, w + CPU_VECTOR);
        prefetch_step(step, ahead);
        fma_column(mr, np, acc, x, ldx, 0, v);
        LOADS_STAY_BELOW();
        v[0] = load_odd(t, w);
        if (np == 2)
            v[1] = load_odd(t, w + CPU_VECTOR);
        fma_column(mr, np, acc, x, ldx, 1, v);
        V_UNROLL
        for (int i = 0; i < bases; i++)
            x[i] += 2;
    }
    if (len & 1) { // nothing may lie beside the last column
        v[0] = load_even(t, w);
        if (np == 2)
            v[1] = load_even(t, w + CPU_VECTOR);
        fma_column(mr, np, acc, x, ldx, 0, v);
    }
    store_sums(mr, np, acc, sums, a->ld_sums, add);
}

V_FN void all_runs(const enum kn_dtype t, const int mr, const struct tile *a) {
    const int np = mr <= F_PAIR_ROWS ? 2 : 1;
    for (int32_t c = 0; c < a->k; c += GEMM_RUN) {
        int32_t len = a->k - c < GEMM_RUN ? a->k - c : GEMM_RUN;
        const uint8_t *w = a->w + (size_t)c * cpu_column_bytes(t);
        const uint8_t *ahead = a->ahead + (size_t)(c / 2) * a->ahead_step;
        for (int h = 0; h < 2; h += np)
            run_tile(t, mr, np, a, c, len, w + h * CPU_VECTOR, ahead, a->sums + h * V_LANES,
                     a->add || c > 0);
    }
}

// ---- one function per type and height

#define TILE_FN(T, mr)                                                                             \
    static void tile_##T##_##mr(const struct tile *a) {                                            \
        all_runs(KN_##T, mr, a);                                                                   \
    }
#if defined(KN_ISA_AVX512BF16) // which has gemm_bf16.c
#define TYPES(X) HEIGHTS(F32, X) HEIGHTS(F16, X)
#else
#define TYPES(X) HEIGHTS(F32, X) HEIGHTS(F16, X) HEIGHTS(BF16, X)
#endif
TYPES(TILE_FN)

typedef void (*tile_fn)(const struct tile *a);
#define TILE_ENTRY(T, mr) [KN_##T][mr - 1] = tile_##T##_##mr,
static const tile_fn tiles[KN_BF16 + 1][F_ROWS] = {TYPES(TILE_ENTRY)};

// ---- strips

// All rows times one pair, in tiles of nearly equal height. They share the work of fetching what
// lies `ahead` bytes on, so that memory is never idle; 0: all is near.
static void rows_of_tiles(enum kn_dtype t, struct tile a, int32_t rows, size_t ahead) {
    int32_t n = (rows + F_ROWS - 1) / F_ROWS;
    const float *x = a.x;
    float *sums = a.sums;
    size_t bytes = (size_t)a.k * cpu_column_bytes(t);
    a.ahead_step = ahead ? 2 * cpu_column_bytes(t) / (size_t)n : 0;
    for (int32_t i = 0; i < n; i++) {
        int32_t r0 = gemm_tile_row(rows, n, i), r1 = gemm_tile_row(rows, n, i + 1);
        a.x = x + r0 * a.ldx;
        a.sums = sums + r0 * a.ld_sums;
        a.ahead = a.w + (ahead ? ahead + bytes * (size_t)i / (size_t)n : 0);
        tiles[t][r1 - r0 - 1](&a);
    }
}

int32_t ISA(gemm_float_rows)(const struct kn_weight *w) {
    (void)w;
    return BLOCK_ROWS;
}

// Columns [c, c + len) for pairs [pair0, pair0 + pairs): sums [rows][pairs][32].
static void add_columns(const struct gemm_strip *s, int32_t pair0, int32_t pairs, int32_t c,
                        int32_t len, float *sums) {
    const struct kn_gemm *p = s->p;
    enum kn_dtype t = s->seg->dtype;
    size_t pair_bytes = s->seg->pair_bytes;
    const uint8_t *w = s->seg->data + (size_t)pair0 * pair_bytes + (size_t)c * cpu_column_bytes(t);
    struct tile a = {.k = len,
                     .x = (const float *)p->x + s->row0 * p->ldx + c,
                     .ldx = p->ldx,
                     .ld_sums = (int64_t)pairs * CPU_PAIR,
                     .add = c > 0};
    // One tile goes through its stream once; more than one come back to it, and then the next pair
    // is what memory has to deliver.
    bool next_pair = s->rows > F_ROWS && pair_bytes <= AHEAD_MOST;
    for (int32_t i = 0; i < pairs; i++) {
        a.w = w + (size_t)i * pair_bytes;
        a.sums = sums + i * CPU_PAIR;
        rows_of_tiles(t, a, s->rows, next_pair ? pair_bytes : AHEAD);
    }
}

void ISA(gemm_float)(const struct gemm_strip *s) {
    int32_t k = s->p->w->k, most = SUMS_BYTES / (s->rows * CPU_PAIR * (int32_t)sizeof(float));
    int32_t columns = s->rows <= F_ROWS ? k : GEMM_RUN;
    float *sums = (float *)(void *)s->scratch;
    for (int32_t i = 0, n; i < s->pairs; i += n) {
        n = s->pairs - i < most ? s->pairs - i : most;
        for (int32_t c = 0; c < k; c += columns)
            add_columns(s, s->pair0 + i, n, c, k - c < columns ? k - c : columns, sums);
        ISA(gemm_finish)(s, s->pair0 + i, n, sums);
    }
}

void ISA(gemm_f32_tile)(const float *w, int32_t k, const float *x, int64_t ldx, int32_t rows,
                        float *sums, int64_t ld_sums, bool add) {
    struct tile a = {.w = (const uint8_t *)w,
                     .k = k,
                     .x = x,
                     .ldx = ldx,
                     .sums = sums,
                     .ld_sums = ld_sums,
                     .add = add};
    rows_of_tiles(KN_F32, a, rows, 0);
}

// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/isa/tile.h"

// One step of the chains: column c of A's rows (counted from the bases, each of which reaches three
// rows with scaled offsets) or, by columns, the values beside one another at base[0].
V_FN void step(const bool rows, const int mr, const int nv, v16f acc[][TILE_NV],
               const float *const base[6], int64_t lda, const int c, const float *b) {
    v16f w[TILE_NV];
    V_UNROLL
    for (int v = 0; v < nv; v++)
        w[v] = v_load(b + v * V_LANES);
    V_UNROLL
    for (int i = 0; i < mr; i++) {
        v16f x = v_set1(rows ? base[i / 3][i % 3 * lda + c] : base[0][i]);
        V_UNROLL
        for (int v = 0; v < nv; v++)
            acc[i][v] = v_fma(x, w[v], acc[i][v]);
    }
}

V_FN void chains(const bool rows, const int mr, const int nv, v16f acc[][TILE_NV],
                 const struct tile *t) {
    const int bases = rows ? (mr + 2) / 3 : 1;
    const float *base[6], *b = t->b;
    int64_t lda = t->lda, ldb = t->ldb;
    V_UNROLL
    for (int i = 0; i < bases; i++)
        base[i] = t->a + 3 * i * lda;
    int32_t c = 0;
    for (; c + 2 <= t->len; c += 2) {
        step(rows, mr, nv, acc, base, lda, 0, b);
        b += ldb;
        if (!rows)
            base[0] += lda;
        step(rows, mr, nv, acc, base, lda, 1, b);
        b += ldb;
        V_UNROLL
        for (int i = 0; i < bases; i++)
            base[i] += rows ? 2 : lda;
    }
    if (c < t->len)
        step(rows, mr, nv, acc, base, lda, 0, b);
}

// `last`: lanes of the last vector.
V_FN void product(const bool rows, const int mr, const int nv, const struct tile *t, int32_t last) {
    v16f acc[TILE_TALL > TILE_MR ? TILE_TALL : TILE_MR][TILE_NV];
    V_UNROLL
    for (int i = 0; i < mr; i++)
        V_UNROLL
    for (int v = 0; v < nv; v++) {
        const float *at = t->out + i * t->ldo + v * V_LANES;
        acc[i][v] = !t->go_on                 ? v_zero()
                    : v < nv - 1 || last > 15 ? v_load(at)
                                              : v_load_n(at, last);
    }
    chains(rows, mr, nv, acc, t);
    V_UNROLL
    for (int i = 0; i < mr; i++)
        V_UNROLL
    for (int v = 0; v < nv; v++) {
        float *at = t->out + i * t->ldo + v * V_LANES;
        if (v < nv - 1 || last > 15)
            v_store(at, acc[i][v]);
        else
            v_store_n(at, last, acc[i][v]);
    }
}

// ---- one function per size

typedef void (*tile_fn)(const struct tile *t, int32_t last);

#define KERNEL_OF(form, by_rows, mr, nv)                                                           \
    static void form##_##mr##_##nv(const struct tile *t, int32_t last) {                           \
        product(by_rows, mr, nv, t, last);                                                         \
    }
#define KERNEL(mr, nv) KERNEL_OF(rows, true, mr, nv) KERNEL_OF(cols, false, mr, nv)
#if defined(KN_ISA_AVX512)
#define KERNELS(mr) KERNEL(mr, 1) KERNEL(mr, 2) KERNEL(mr, 3) KERNEL(mr, 4)
#define ROW(X, mr)                                                                                 \
    { X##_##mr##_1, X##_##mr##_2, X##_##mr##_3, X##_##mr##_4 }
#else
#define KERNELS(mr) KERNEL(mr, 1)
#define ROW(X, mr)                                                                                 \
    { X##_##mr##_1 }
#endif
KERNELS(1)
KERNELS(2)
#if defined(KN_ISA_AVX512) || defined(KN_ISA_AVX2)
KERNELS(3)
KERNELS(4)
KERNELS(5)
KERNELS(6)
#define TABLE(X)                                                                                   \
    { ROW(X, 1), ROW(X, 2), ROW(X, 3), ROW(X, 4), ROW(X, 5), ROW(X, 6) }
#else
#define TABLE(X)                                                                                   \
    { ROW(X, 1), ROW(X, 2) }
#endif
static const tile_fn rows_table[TILE_MR][TILE_NV] = TABLE(rows);
static const tile_fn cols_table[TILE_MR][TILE_NV] = TABLE(cols);

#if defined(KN_ISA_AVX512)
enum { TALL_ROWS = 12 }; // by rows: four bases
KERNEL_OF(rows, true, 12, 1)
KERNEL_OF(cols, false, 16, 1)
#define TALL_COLS_FN cols_16_1
#define TALL_ROWS_FN rows_12_1
#elif defined(KN_ISA_AVX2)
enum { TALL_ROWS = 6 };
#define TALL_COLS_FN cols_4_1
#define TALL_ROWS_FN rows_6_1
#else
enum { TALL_ROWS = 2 };
#define TALL_COLS_FN cols_2_1
#define TALL_ROWS_FN rows_2_1
#endif

// ---- any size

// Vectors are shared evenly among the tiles of a row.
static void all(const tile_fn table[TILE_MR][TILE_NV], bool rows, const struct tile *t, int32_t m,
                int32_t n) {
    int32_t vectors = (n + V_LANES - 1) / V_LANES, tiles = (vectors + TILE_NV - 1) / TILE_NV;
    for (int32_t j = 0; j < tiles; j++) {
        int32_t v0 = vectors * j / tiles, v1 = vectors * (j + 1) / tiles;
        int32_t last = j + 1 < tiles ? V_LANES : n - (v1 - 1) * V_LANES;
        struct tile x = *t;
        x.b += v0 * V_LANES;
        for (int32_t i = 0; i < m; i += TILE_MR) {
            int32_t mr = m - i < TILE_MR ? m - i : TILE_MR;
            x.a = t->a + i * (rows ? t->lda : 1);
            x.out = t->out + i * t->ldo + v0 * V_LANES;
            table[mr - 1][v1 - v0 - 1](&x, last);
        }
    }
}

void ISA(tile_rows)(const struct tile *t, int32_t m, int32_t n) {
    all(rows_table, true, t, m, n);
}

void ISA(tile_cols)(const struct tile *t, int32_t m, int32_t n) {
    all(cols_table, false, t, m, n);
}

static void tall(const tile_fn table[TILE_MR][TILE_NV], tile_fn whole, int32_t height, bool rows,
                 struct tile t, int32_t m) {
    while (m > 0) {
        int32_t mr = m >= height ? height : m < TILE_MR ? m : TILE_MR;
        (mr == height ? whole : table[mr - 1][0])(&t, V_LANES);
        t.a += mr * (rows ? t.lda : 1);
        t.out += mr * t.ldo;
        m -= mr;
    }
}

void ISA(tile_rows_tall)(const struct tile *t, int32_t m) {
    tall(rows_table, TALL_ROWS_FN, TALL_ROWS, true, *t, m);
}

void ISA(tile_cols_tall)(const struct tile *t, int32_t m) {
    tall(cols_table, TALL_COLS_FN, TILE_TALL, false, *t, m);
}

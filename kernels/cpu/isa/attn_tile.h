// SPDX-License-Identifier: Apache-2.0
// Attention of a few query rows to one tile of the cache: scores, online softmax, weighted sum of
// values. The operations of one row are the same whatever rows it is grouped with:
//   score    one chain of v_fma over the dimensions, in order
//   softmax  the tile's maximum, then p = 2^(score - maximum); the row's sum is kept in 16 lanes
//   values   out = out * correction, then one chain of v_fma over the visible positions, in order
// Positions that the row does not see get no operation on `out` and weight 0 in the sum, so what
// lies there (even NaN) has no influence.
#pragma once
#include "kernels/cpu/isa/math.h"
#include "kernels/cpu/kv.h"

enum {
    ATTN_TILE = 64, // positions; tiles are counted from position 0
    ATTN_BLOCKS = ATTN_TILE / KN_KV_BLOCK,
    ATTN_LD = KV_MAX_HEAD_DIM + 16, // floats between rows of q and out; spreads them over L1's sets
#if defined(KN_ISA_AVX512)
    ATTN_MR = 6, // rows and vectors of one tile of sums in registers
    ATTN_NV = 4,
#elif defined(KN_ISA_AVX2)
    ATTN_MR = 6,
    ATTN_NV = 1,
#else
    ATTN_MR = 2,
    ATTN_NV = 1,
#endif
};

// acc[r][v] += a[r * lda] * the even (odd) half of the words at b[v].
V_FN void attn_even(const int mr, const int nv, v16f acc[ATTN_MR][ATTN_NV], const float *a,
                    const int lda, const uint16_t *const b[ATTN_NV], size_t at) {
    v16f w[ATTN_NV];
    V_UNROLL
    for (int v = 0; v < nv; v++)
        w[v] = v_bf16_even(vi_load(b[v] + at));
    V_UNROLL
    for (int r = 0; r < mr; r++) {
        v16f x = v_set1(a[r * lda]);
        V_UNROLL
        for (int v = 0; v < nv; v++)
            acc[r][v] = v_fma(x, w[v], acc[r][v]);
    }
}
V_FN void attn_odd(const int mr, const int nv, v16f acc[ATTN_MR][ATTN_NV], const float *a,
                   const int lda, const uint16_t *const b[ATTN_NV], size_t at) {
    v16f w[ATTN_NV];
    V_UNROLL
    for (int v = 0; v < nv; v++)
        w[v] = v_bf16_odd(vi_load(b[v] + at));
    V_UNROLL
    for (int r = 0; r < mr; r++) {
        v16f x = v_set1(a[r * lda]);
        V_UNROLL
        for (int v = 0; v < nv; v++)
            acc[r][v] = v_fma(x, w[v], acc[r][v]);
    }
}

// s[r][v * 16 + lane] = q[r] . key `lane` of block v.
V_FN void attn_qk(const int mr, const int nv, const float *q, const uint16_t *const *k,
                  int32_t pairs, float *s) {
    v16f acc[ATTN_MR][ATTN_NV];
    const uint16_t *b[ATTN_NV];
    V_UNROLL
    for (int v = 0; v < nv; v++)
        b[v] = k[v];
    V_UNROLL
    for (int r = 0; r < mr; r++)
        V_UNROLL
    for (int v = 0; v < nv; v++)
        acc[r][v] = v_zero();
    size_t at = 0;
    size_t ahead = (size_t)pairs * KV_K_STEP; // V lies behind K
    for (int32_t i = 0; i < pairs; i++, q += 2, at += KV_K_STEP) {
        if (mr < ATTN_MR) {
            V_UNROLL
            for (int v = 0; v < nv; v++)
                __builtin_prefetch(b[v] + ahead + at);
        }
        attn_even(mr, nv, acc, q, ATTN_LD, b, at);
        attn_odd(mr, nv, acc, q + 1, ATTN_LD, b, at);
    }
    V_UNROLL
    for (int r = 0; r < mr; r++)
        V_UNROLL
    for (int v = 0; v < nv; v++)
        v_store(s + r * ATTN_TILE + v * V_LANES, acc[r][v]);
}

// What attn_pv adds up: p[r][j] * value j of the tile for j in [begin, end).
struct attn_values {
    const uint16_t *block[ATTN_BLOCKS]; // V of each block, at the first of this call's vectors
    const uint16_t *next[ATTN_BLOCKS];  // what is read next, as far from its start: prefetched
    int32_t step;                       // bf16 values from one pair of positions to the next
    int32_t begin, end;
};

// o[r][v * 16 + lane] = o * corr[r] + sum over j.
V_FN void attn_pv(const int mr, const int nv, const float *p, const struct attn_values *x,
                  const float *corr, float *o) {
    v16f acc[ATTN_MR][ATTN_NV];
    V_UNROLL
    for (int r = 0; r < mr; r++)
        V_UNROLL
    for (int v = 0; v < nv; v++)
        acc[r][v] = v_mul(v_load(o + r * ATTN_LD + v * V_LANES), v_set1(corr[r]));
    for (int32_t j = x->begin; j < x->end;) {
        int32_t blk = j / KN_KV_BLOCK, stop = (blk + 1) * KN_KV_BLOCK;
        stop = stop < x->end ? stop : x->end;
        const uint16_t *b[ATTN_NV];
        V_UNROLL
        for (int v = 0; v < nv; v++)
            b[v] = x->block[blk] + v * 2 * V_LANES;
        size_t step = (size_t)x->step, at = (size_t)(j % KN_KV_BLOCK / 2) * step;
        if (j & 1) {
            attn_odd(mr, nv, acc, p + j, ATTN_TILE, b, at);
            j++;
            at += step;
        }
        for (; j + 2 <= stop; j += 2, at += step) {
            if (mr < ATTN_MR) {
                V_UNROLL
                for (int v = 0; v < nv; v++)
                    __builtin_prefetch(x->next[blk] + v * 2 * V_LANES + at);
            }
            attn_even(mr, nv, acc, p + j, ATTN_TILE, b, at);
            attn_odd(mr, nv, acc, p + j + 1, ATTN_TILE, b, at);
        }
        if (j < stop) {
            attn_even(mr, nv, acc, p + j, ATTN_TILE, b, at);
            j++;
        }
    }
    V_UNROLL
    for (int r = 0; r < mr; r++)
        V_UNROLL
    for (int v = 0; v < nv; v++)
        v_store(o + r * ATTN_LD + v * V_LANES, acc[r][v]);
}

typedef void (*attn_qk_fn)(const float *q, const uint16_t *const *k, int32_t pairs, float *s);
typedef void (*attn_pv_fn)(const float *p, const struct attn_values *x, const float *corr,
                           float *o);

#define ATTN_KERNEL(mr, nv)                                                                        \
    static void attn_qk_##mr##_##nv(const float *q, const uint16_t *const *k, int32_t pairs,       \
                                    float *s) {                                                    \
        attn_qk(mr, nv, q, k, pairs, s);                                                           \
    }                                                                                              \
    static void attn_pv_##mr##_##nv(const float *p, const struct attn_values *x,                   \
                                    const float *corr, float *o) {                                 \
        attn_pv(mr, nv, p, x, corr, o);                                                            \
    }
#if defined(KN_ISA_AVX512)
#define ATTN_ROW(X, mr)                                                                            \
    { X##_##mr##_1, X##_##mr##_2, X##_##mr##_3, X##_##mr##_4 }
#define ATTN_KERNELS(mr) ATTN_KERNEL(mr, 1) ATTN_KERNEL(mr, 2) ATTN_KERNEL(mr, 3) ATTN_KERNEL(mr, 4)
#else
#define ATTN_ROW(X, mr)                                                                            \
    { X##_##mr##_1 }
#define ATTN_KERNELS(mr) ATTN_KERNEL(mr, 1)
#endif
ATTN_KERNELS(1)
ATTN_KERNELS(2)
#if defined(KN_ISA_AVX512) || defined(KN_ISA_AVX2)
ATTN_KERNELS(3)
ATTN_KERNELS(4)
ATTN_KERNELS(5)
ATTN_KERNELS(6)
#define ATTN_TABLE(X)                                                                              \
    {                                                                                              \
        ATTN_ROW(X, 1), ATTN_ROW(X, 2), ATTN_ROW(X, 3), ATTN_ROW(X, 4), ATTN_ROW(X, 5),            \
            ATTN_ROW(X, 6)                                                                         \
    }
#else
#define ATTN_TABLE(X)                                                                              \
    { ATTN_ROW(X, 1), ATTN_ROW(X, 2) }
#endif
static const attn_qk_fn attn_qk_table[ATTN_MR][ATTN_NV] = ATTN_TABLE(attn_qk);
static const attn_pv_fn attn_pv_table[ATTN_MR][ATTN_NV] = ATTN_TABLE(attn_pv);

// Scores of n <= ATTN_MR rows -> weights, in place. m and l are the rows' running maximum and sums
// of weights (16 lanes each); corr[r] is what earlier sums and values have to be multiplied with.
V_FN void attn_softmax(int n, float *s, int32_t begin, int32_t end, float *m, float *l,
                       float corr[V_LANES]) {
    v16m seen[ATTN_BLOCKS];
    V_UNROLL
    for (int b = 0; b < ATTN_BLOCKS; b++)
        seen[b] = vm_and(vm_first(end - b * V_LANES), vm_not(vm_first(begin - b * V_LANES)));
    float fall[V_LANES] = {0};
    for (int r = 0; r < n; r++) {
        v16f x[ATTN_BLOCKS];
        V_UNROLL
        for (int b = 0; b < ATTN_BLOCKS; b++) {
            float *at = s + r * ATTN_TILE + b * V_LANES;
            x[b] = v_select(seen[b], v_load(at), v_set1(-__builtin_inff()));
            v_store(at, x[b]);
        }
        float top = v_hmax(v_max(v_max(x[0], x[1]), v_max(x[2], x[3])));
        float old = m[r];
        m[r] = top > old ? top : old;
        fall[r] = old - m[r];
    }
    v_store(corr, v_exp2_neg(v_load(fall)));
    for (int r = 0; r < n; r++) {
        v16f x[ATTN_BLOCKS], mv = v_set1(m[r]);
        V_UNROLL
        for (int b = 0; b < ATTN_BLOCKS; b++) {
            float *at = s + r * ATTN_TILE + b * V_LANES;
            x[b] = v_exp2_neg(v_sub(v_load(at), mv));
            v_store(at, x[b]);
        }
        v16f sum = v_add(v_add(x[0], x[1]), v_add(x[2], x[3]));
        float *lr = l + r * V_LANES;
        v_store(lr, v_fma(v_load(lr), v_set1(corr[r]), sum));
    }
}

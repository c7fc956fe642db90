// SPDX-License-Identifier: Apache-2.0
// Attention of a few query rows to one tile of the cache: scores, online softmax, weighted sum of
// values. The operations of one row are the same whatever rows it is grouped with:
//   scores   attn_qk_table: q . k for 16 positions of a block each
//   softmax  attn_softmax: the tile's maximum, then p = 2^(score - maximum); the row's sum of
//            weights is kept in 16 lanes
//   values   attn_pv_table: out * correction, then the visible positions, in order. A call may stop
//            at a multiple of ATTN_CUT and another go on there: the bits are those of one call.
// Positions that the row does not see get no operation on `out` and weight 0 in the sum, so what
// lies there (even NaN) has no influence. attn_f32.h and attn_bf16.h say how they calculate.
#pragma once
#include "kernels/cpu/isa/math.h"
#include "kernels/cpu/kv.h"

enum {
    ATTN_TILE = 64, // positions; tiles are counted from position 0
    ATTN_BLOCKS = ATTN_TILE / KN_KV_BLOCK,
    ATTN_LD = KV_MAX_HEAD_DIM + 16, // values between rows of q and out; spreads them over L1's sets
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

// What attn_pv adds up: p[r][j] * value j of the tile for j in [begin, end).
struct attn_values {
    const uint16_t *block[ATTN_BLOCKS]; // V of each block, at the first of this call's vectors
    const uint16_t *next[ATTN_BLOCKS];  // what is read next, as far from its start: prefetched
    int32_t step;                       // bf16 values from one pair of positions to the next
    int32_t begin, end;
};

// What attn_softmax does with n <= ATTN_MR rows. Arrays are at the first row's place.
struct attn_rows {
    int32_t n;
    bool whole;                           // all see the whole tile
    int32_t begin[ATTN_MR], end[ATTN_MR]; // positions [begin, end) of the tile that each sees
    uint64_t seen[ATTN_MR];               // the same as bits
    float *m, *l;                         // running maximum; running sum of weights in 16 lanes
    float corr[V_LANES];                  // out: what earlier sums and values are multiplied with
};

// Scores of a row's block of 16 positions, -inf where it does not see them.
V_FN v16f attn_seen(const bool whole, const struct attn_rows *g, int32_t r, int32_t b,
                    const float *s) {
    v16f x = v_load(s + r * ATTN_TILE + b * V_LANES);
    if (whole)
        return x;
    v16m seen = vm_from_bits((uint32_t)(g->seen[r] >> (b * V_LANES)) & 0xffffu);
    return v_select(seen, x, v_set1(-__builtin_inff()));
}

// New maxima of the rows, and what the change of the old ones means for their sums.
V_FN void attn_maxima(const bool whole, struct attn_rows *g, const float *s) {
    float fall[V_LANES] = {0};
    for (int32_t r = 0; r < g->n; r++) {
        v16f a = v_max(attn_seen(whole, g, r, 0, s), attn_seen(whole, g, r, 1, s));
        v16f b = v_max(attn_seen(whole, g, r, 2, s), attn_seen(whole, g, r, 3, s));
        float top = v_hmax(v_max(a, b)), old = g->m[r];
        g->m[r] = top > old ? top : old;
        fall[r] = old - g->m[r];
    }
    v_store(g->corr, v_exp2_neg(v_load(fall)));
}
_Static_assert(ATTN_BLOCKS == 4 && ATTN_TILE == 64, "attn_maxima, struct attn_rows");

#if defined(KN_ISA_AVX512BF16)
#include "kernels/cpu/isa/attn_bf16.h"
#else
#include "kernels/cpu/isa/attn_f32.h"
#endif

// Scores s of a group of rows -> weights p.
static void attn_softmax(struct attn_rows *g, const float *s, attn_num *p) {
    if (g->whole)
        attn_weights(true, g, s, p);
    else
        attn_weights(false, g, s, p);
}

typedef void (*attn_qk_fn)(const attn_num *q, const uint16_t *const *k, int32_t pairs, float *s);
typedef void (*attn_pv_fn)(const attn_num *p, const struct attn_values *x, const float *corr,
                           float *o);

#define ATTN_KERNEL(mr, nv)                                                                        \
    static void attn_qk_##mr##_##nv(const attn_num *q, const uint16_t *const *k, int32_t pairs,    \
                                    float *s) {                                                    \
        attn_qk(mr, nv, q, k, pairs, s);                                                           \
    }                                                                                              \
    static void attn_pv_##mr##_##nv(const attn_num *p, const struct attn_values *x,                \
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

// SPDX-License-Identifier: Apache-2.0
// Attention with VDPBF16PS (see attn_tile.h): two products of bf16 values are added to an f32 lane,
// the odd one first, each sum rounded. Keys and values lie in the cache as the instruction wants
// them; q and the weights are rounded to bf16.
//   score    one chain over the pairs of dimensions, in order
//   values   one chain over the pairs of positions, in order. Where a row sees one position of a
//            pair, the other one's value is cleared: its weight is 0, and 0 * NaN would be NaN.
//   sum      of the rounded weights, by the same instruction with ones. Most implementations add
//            up the weights before they are rounded. With the rounded ones those that are used sum
//            to 1: an error d of a weight w costs w * d * (value - result) and not w * d * value,
//            so that nothing is lost of what the values have in common.
#pragma once

typedef uint16_t attn_num; // q and the weights: bf16
enum { ATTN_CUT = 2 };

V_FN void attn_put_q(uint16_t *q, v16f x) {
    _mm256_storeu_si256((__m256i *)(void *)q, (__m256i)_mm512_cvtneps_pbh(x));
}

// acc[r][v] += the pair of values at a[r * lda] times the pairs w[v].
V_FN void attn_pairs(const int mr, const int nv, v16f acc[ATTN_MR][ATTN_NV], const uint16_t *a,
                     const int lda, const v16i w[ATTN_NV]) {
    V_UNROLL
    for (int r = 0; r < mr; r++) {
        int32_t pair;
        memcpy(&pair, a + r * lda, sizeof pair);
        v16i x = vi_set1(pair);
        V_UNROLL
        for (int v = 0; v < nv; v++)
            acc[r][v] = _mm512_dpbf16_ps(acc[r][v], (__m512bh)x, (__m512bh)w[v]);
    }
}

// s[r][v * 16 + lane] = q[r] . key `lane` of block v.
V_FN void attn_qk(const int mr, const int nv, const uint16_t *q, const uint16_t *const *k,
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
        v16i w[ATTN_NV];
        V_UNROLL
        for (int v = 0; v < nv; v++) {
            if (mr < ATTN_MR)
                __builtin_prefetch(b[v] + ahead + at);
            w[v] = vi_load(b[v] + at);
        }
        attn_pairs(mr, nv, acc, q, ATTN_LD, w);
    }
    V_UNROLL
    for (int r = 0; r < mr; r++)
        V_UNROLL
    for (int v = 0; v < nv; v++)
        v_store(s + r * ATTN_TILE + v * V_LANES, acc[r][v]);
}

// One pair of positions of which only one is seen: `half` has that one's bits.
V_FN void attn_lone(const int mr, const int nv, v16f acc[ATTN_MR][ATTN_NV], const uint16_t *p,
                    const uint16_t *b, uint32_t half) {
    v16i w[ATTN_NV];
    V_UNROLL
    for (int v = 0; v < nv; v++)
        w[v] = vi_and(vi_load(b + v * 2 * V_LANES), vi_set1((int32_t)half));
    attn_pairs(mr, nv, acc, p, ATTN_TILE, w);
}

// o[r][v * 16 + lane] = o * corr[r] + sum over j.
V_FN void attn_pv(const int mr, const int nv, const uint16_t *p, const struct attn_values *x,
                  const float *corr, float *o) {
    v16f acc[ATTN_MR][ATTN_NV];
    V_UNROLL
    for (int r = 0; r < mr; r++)
        V_UNROLL
    for (int v = 0; v < nv; v++)
        acc[r][v] = v_mul(v_load(o + r * ATTN_LD + v * V_LANES), v_set1(corr[r]));
    size_t step = (size_t)x->step;
    int32_t j = x->begin;
    if (j & 1) {
        const uint16_t *b = x->block[j / KN_KV_BLOCK] + (size_t)(j % KN_KV_BLOCK / 2) * step;
        attn_lone(mr, nv, acc, p + j - 1, b, 0xffff0000u);
        j++;
    }
    while (j + 2 <= x->end) {
        int32_t blk = j / KN_KV_BLOCK, stop = (blk + 1) * KN_KV_BLOCK;
        stop = stop < x->end ? stop : x->end & ~1;
        size_t at = (size_t)(j % KN_KV_BLOCK / 2) * step;
        const uint16_t *b = x->block[blk] + at, *next = x->next[blk] + at;
        for (; j < stop; j += 2, b += step, next += step) {
            v16i w[ATTN_NV];
            V_UNROLL
            for (int v = 0; v < nv; v++) {
                if (mr < ATTN_MR)
                    __builtin_prefetch(next + v * 2 * V_LANES);
                w[v] = vi_load(b + v * 2 * V_LANES);
            }
            attn_pairs(mr, nv, acc, p + j, ATTN_TILE, w);
        }
    }
    if (j < x->end) {
        const uint16_t *b = x->block[j / KN_KV_BLOCK] + (size_t)(j % KN_KV_BLOCK / 2) * step;
        attn_lone(mr, nv, acc, p + j, b, 0x0000ffffu);
    }
    V_UNROLL
    for (int r = 0; r < mr; r++)
        V_UNROLL
    for (int v = 0; v < nv; v++)
        v_store(o + r * ATTN_LD + v * V_LANES, acc[r][v]);
}

// 2^x for x <= 0 to bf16 and a little more: relative error below 4e-6, 2^0 is 1.
// 2^floor(x) times a polynomial in x - floor(x). -inf gives 0, NaN gives NaN.
V_FN v16f attn_exp2(v16f x) {
    v16f r = _mm512_reduce_ps(x, 9);
    v16f e = v_fma(v_set1(0x1.b7f734p-7f), r, v_set1(0x1.abf868p-5f));
    e = v_fma(e, r, v_set1(0x1.ee2452p-3f));
    e = v_fma(e, r, v_set1(0x1.62d6c6p-1f));
    e = v_fma(e, r, v_set1(1.0f));
    return _mm512_scalef_ps(e, x);
}

V_FN void attn_weights(const bool whole, struct attn_rows *g, const float *s, uint16_t *p) {
    attn_maxima(whole, g, s);
    const __m512bh ones = (__m512bh)vi_set1(0x3f803f80);
    for (int32_t r = 0; r < g->n; r++) {
        v16f mv = v_set1(g->m[r]);
        v16f sum = v_mul(v_load(g->l + r * V_LANES), v_set1(g->corr[r]));
        V_UNROLL
        for (int b = 0; b < ATTN_BLOCKS; b += 2) {
            v16f lo = attn_exp2(v_sub(attn_seen(whole, g, r, b, s), mv));
            v16f hi = attn_exp2(v_sub(attn_seen(whole, g, r, b + 1, s), mv));
            __m512bh w = _mm512_cvtne2ps_pbh(hi, lo); // 32 weights in the order of positions
            vi_store(p + r * ATTN_TILE + b * V_LANES, (v16i)w);
            sum = _mm512_dpbf16_ps(sum, w, ones);
        }
        v_store(g->l + r * V_LANES, sum);
    }
}

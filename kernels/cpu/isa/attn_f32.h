// SPDX-License-Identifier: Apache-2.0
// Attention in f32 (see attn_tile.h): a score is one chain of v_fma over the dimensions, in order;
// a value is one chain of v_fma over the visible positions, in order.
#pragma once

typedef float attn_num; // q and the weights
enum { ATTN_CUT = 1 };

V_FN void attn_put_q(float *q, v16f x) {
    v_store(q, x);
}

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

V_FN void attn_weights(const bool whole, struct attn_rows *g, const float *s, float *p) {
    attn_maxima(whole, g, s);
    for (int32_t r = 0; r < g->n; r++) {
        v16f x[ATTN_BLOCKS], mv = v_set1(g->m[r]);
        V_UNROLL
        for (int b = 0; b < ATTN_BLOCKS; b++) {
            x[b] = v_exp2_neg(v_sub(attn_seen(whole, g, r, b, s), mv));
            v_store(p + r * ATTN_TILE + b * V_LANES, x[b]);
        }
        v16f sum = v_add(v_add(x[0], x[1]), v_add(x[2], x[3]));
        float *lr = g->l + r * V_LANES;
        v_store(lr, v_fma(v_load(lr), v_set1(g->corr[r]), sum));
    }
}

// SPDX-License-Identifier: Apache-2.0
// Pieces that several row kernels share: the norm's sum and the Q8 form of 32 values. Their order
// of operations depends on the row's length alone.
#pragma once
#include "kernels/cpu/isa/vec.h"

enum { Q8_VALUES = 32 };

// Sum of squares: vector i goes to sum i mod 4; the four sums are added as a tree.
V_FN float row_sum_squares(const float *x, int32_t k) {
    v16f s[4] = {v_zero(), v_zero(), v_zero(), v_zero()};
    int32_t i = 0;
    for (; i + 64 <= k; i += 64) {
        V_UNROLL
        for (int j = 0; j < 4; j++) {
            v16f v = v_load(x + i + 16 * j);
            s[j] = v_fma(v, v, s[j]);
        }
    }
    V_UNROLL
    for (int j = 0; j < 4; j++) {
        v16f v = i + 16 * j < k ? v_load_n(x + i + 16 * j, k - i - 16 * j) : v_zero();
        s[j] = v_fma(v, v, s[j]);
    }
    return v_sum(v_add(v_add(s[0], s[1]), v_add(s[2], s[3])));
}

// What a row is multiplied with to have a mean square of 1.
V_FN float row_rms_scale(const float *x, int32_t k, float eps) {
    return 1.0f / __builtin_sqrtf(row_sum_squares(x, k) / (float)k + eps);
}

// 32 values, symmetric: d = max|x| / 127, q = x / d to nearest even. A block that holds NaN or
// infinity gets such a d, so that it cannot pass for a sound one.
V_FN void row_quantize_block(v16f a, v16f b, struct cpu_q8_block *out) {
    v16i abs_bits = vi_set1(0x7fffffff); // ordered as integers, NaN above all
    int32_t top = vi_hmax(vi_max(vi_and(v_bits(a), abs_bits), vi_and(v_bits(b), abs_bits)));
    float amax;
    memcpy(&amax, &top, sizeof amax);
    float d = amax / 127.0f, inv = 127.0f / amax;
    if (top < 0x0e000000) // below 2^-99: 127 / amax could overflow
        d = inv = 0.0f;
    v16f s = v_set1(inv), hi = v_set1(127.0f), lo = v_set1(-127.0f);
    v16i qa = v_cvt_i(v_max(v_min(v_mul(a, s), hi), lo)); // NaN becomes 127
    v16i qb = v_cvt_i(v_max(v_min(v_mul(b, s), hi), lo));
    vi_store_i8(out->q, qa);
    vi_store_i8(out->q + 16, qb);
    int32_t sum = vi_sum(vi_add(qa, qb));
    out->d = d;
    out->dsum = d * (float)sum;
    out->sum = sum;
    out->off8 = -128 * sum;
    out->off4 = -8 * sum;
    memset(out->pad, 0, sizeof out->pad);
}

V_FN void row_quantize(const float *x, int32_t k, struct cpu_q8_block *out) {
    for (int32_t i = 0; i < k; i += Q8_VALUES)
        row_quantize_block(v_load(x + i), v_load(x + i + 16), out + i / Q8_VALUES);
}

// Claims the next rows [*begin, *end) of `rows` rows of k values: enough of them to hide what a
// claim costs.
V_FN bool row_claim(struct cpu_task *t, int32_t rows, int32_t k, int32_t *begin, int32_t *end) {
    enum { CHUNK_VALUES = 4096 };
    int32_t chunk = k >= CHUNK_VALUES ? 1 : CHUNK_VALUES / k, c;
    if (!cpu_claim(t, (rows - 1) / chunk + 1, &c))
        return false;
    *begin = c * chunk;
    *end = rows - *begin < chunk ? rows : *begin + chunk;
    return true;
}

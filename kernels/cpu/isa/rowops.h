// SPDX-License-Identifier: Apache-2.0
// Pieces that several row kernels share: the norm's sum and the Q8 form of 32 values. Their order
// of operations depends on the row's length alone.
#pragma once
#include "kernels/cpu/isa/vec.h"

enum { Q8_VALUES = 32 };
#define Q8_OUTLIER (1.0f / 3) // of an outlier: what no other value of its block exceeds

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

V_FN int32_t q8_top_bits(v16f a, v16f b) { // the largest magnitude's; NaN is above all
    return vi_hmax(vi_max(v_bits(v_abs(a)), v_bits(v_abs(b))));
}

V_FN float q8_top(v16f a, v16f b) {
    int32_t bits = q8_top_bits(a, b);
    float top;
    memcpy(&top, &bits, sizeof top);
    return top;
}

V_FN v16i q8_round(v16f x, float scale) {
    v16f y = v_mul(x, v_set1(scale));
    return v_cvt_i(v_max(v_min(y, v_set1(127.0f)), v_set1(-127.0f))); // NaN becomes 127
}

// `sum` is that of all 32 values, in steps of d.
V_FN void q8_store(struct cpu_q8_block *out, v16i qa, v16i qb, float d, int32_t sum) {
    vi_store_i8(out->q, qa);
    vi_store_i8(out->q + V_LANES, qb);
    out->d = d;
    out->dsum = d * (float)sum;
    out->sum = sum;
    out->off8 = -128 * sum;
    out->off4 = -8 * sum;
    out->high = out->high_word = out->pad = 0;
}

// A block with an outlier at `at`: d is what the others want, but no less than an outlier of
// 127 * 128 steps needs.
static __attribute__((noinline, unused)) void q8_outlier_block(v16f a, v16f b, int at,
                                                               struct cpu_q8_block *out) {
    enum { MOST = 127 * CPU_Q8_HIGH };
    float x[Q8_VALUES];
    v_store(x, a);
    v_store(x + V_LANES, b);
    float outlier = x[at];
    uint32_t lane = 1u << at;
    a = v_select(vm_from_bits(lane & 0xffff), v_zero(), a);
    b = v_select(vm_from_bits(lane >> V_LANES), v_zero(), b);
    float top = q8_top(a, b) * (1.0f / 127), least = __builtin_fabsf(outlier) * (1.0f / MOST);
    float d = top > least ? top : least, scale = 1.0f / d;
    v16i qa = q8_round(a, scale), qb = q8_round(b, scale);
    const float magic = 0x1.8p23f; // added and taken away again, it rounds to nearest even
    float steps = outlier * scale;
    int32_t n = (int32_t)(steps + magic - magic);
    n = n > MOST ? MOST : n < -MOST ? -MOST : n;
    q8_store(out, qa, qb, d, vi_sum(vi_add(qa, qb)) + n);
    int32_t high = (n + (n < 0 ? -64 : 64)) / CPU_Q8_HIGH; // leaves -64..64
    out->high = (int32_t)((uint32_t)(high & 255) << at % 4 * 8);
    out->high_word = at / 4;
    out->q[at] = (int8_t)(n - high * CPU_Q8_HIGH);
}

// 32 values, symmetric: d = max|x| / 127, q = x / d to nearest even. If all but one are at most a
// third of that one, it is the block's outlier, and d the others' max|x| / 127. A block that holds
// NaN or infinity gets such a d, so that it cannot pass for a sound one.
V_FN void row_quantize_block(v16f a, v16f b, struct cpu_q8_block *out) {
    int32_t top = q8_top_bits(a, b);
    float amax;
    memcpy(&amax, &top, sizeof amax);
    float d = amax / 127.0f, inv = 127.0f / amax;
    if (top < 0x0e000000) // below 2^-99: 127 / amax could overflow
        d = inv = 0.0f;
    v16f part = v_set1(amax * Q8_OUTLIER);
    uint32_t large = vm_bits(v_gt(v_abs(a), part)) | vm_bits(v_gt(v_abs(b), part)) << V_LANES;
    if (__builtin_expect((large & (large - 1)) == 0 && large && d > 0, 0)) {
        q8_outlier_block(a, b, __builtin_ctz(large), out);
        return;
    }
    v16i qa = q8_round(a, inv), qb = q8_round(b, inv);
    q8_store(out, qa, qb, d, vi_sum(vi_add(qa, qb)));
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

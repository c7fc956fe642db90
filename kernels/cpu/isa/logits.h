// SPDX-License-Identifier: Apache-2.0
// A row of logits as the sampler sees it, and the passes over it: maximum, sums, ranks, the most
// likely ones. Sums are made per chunk in vectors and then in double over the chunks, so that they
// depend on the row alone.
#pragma once
#include "kernels/cpu/isa/math.h"

enum {
    LOGITS_CHUNKS = 2048, // at most
    LOGITS_TOP = KN_MAX_TOP_LOGPROBS,
};

struct logits {
    const float *x;
    const int32_t *id;    // token of each value; NULL: its index
    const uint32_t *mask; // bit clear: not allowed; NULL: all are
    int32_t n;
};

// Values i..i + 15; -inf where there is none or it is not allowed.
V_FN v16f logits_load(const struct logits *l, int32_t i) {
    v16f none = v_set1(-__builtin_inff());
    int32_t left = l->n - i;
    v16f v = left >= V_LANES ? v_load(l->x + i)
                             : v_select(vm_first(left), v_load_n(l->x + i, left), none);
    if (l->mask)
        v = v_select(vm_from_bits(l->mask[i / 32] >> (i & 16) & 0xffffu), v, none);
    return v;
}

// Values of one chunk: a multiple of 16, and so that there are at most LOGITS_CHUNKS.
V_FN int32_t logits_chunk(const struct logits *l) {
    int32_t chunk = 512;
    while ((l->n - 1) / chunk >= LOGITS_CHUNKS)
        chunk *= 2;
    return chunk;
}

struct logits_max {
    float value;
    int32_t at;  // index of the first such value; -1 if all are -inf
    bool finite; // no NaN and no infinity among the values
};

V_FN struct logits_max logits_find_max(const struct logits *l) {
    enum { STREAMS = 4, STEP = STREAMS * V_LANES };
    v16f best[STREAMS];
    v16i at[STREAMS], size = vi_zero(), abs_bits = vi_set1(0x7fffffff);
    int32_t lane[V_LANES];
    for (int32_t i = 0; i < V_LANES; i++)
        lane[i] = i;
    v16i index = vi_load(lane);
    V_UNROLL
    for (int s = 0; s < STREAMS; s++) {
        best[s] = v_set1(-__builtin_inff());
        at[s] = vi_set1(-1);
    }
    for (int32_t i = 0; i < l->n; i += STEP) {
        V_UNROLL
        for (int s = 0; s < STREAMS; s++) {
            int32_t from = i + s * V_LANES;
            if (from >= l->n)
                break;
            v16f x = logits_load(l, from);
            v16m more = v_gt(x, best[s]);
            best[s] = v_select(more, x, best[s]);
            at[s] = vi_select(more, vi_add(index, vi_set1(from)), at[s]);
            v16i mag = vi_and(v_bits(x), abs_bits);
            if (from + V_LANES > l->n) // what fills the vector up does not count
                mag = vi_select(vm_first(l->n - from), mag, vi_zero());
            size = vi_max(size, mag);
        }
    }
    struct logits_max r = {-__builtin_inff(), -1, vi_hmax(size) < 0x7f800000};
    for (int s = 0; s < STREAMS; s++) {
        float b[V_LANES];
        int32_t a[V_LANES];
        v_store(b, best[s]);
        vi_store(a, at[s]);
        for (int i = 0; i < V_LANES; i++)
            if (a[i] >= 0 && (r.at < 0 || b[i] > r.value || (b[i] == r.value && a[i] < r.at))) {
                r.value = b[i];
                r.at = a[i];
            }
    }
    return r;
}

// Sum of 2^((x - max) * scale); each chunk's share goes to chunks[] unless that is NULL.
V_FN double logits_sum(const struct logits *l, float max, float scale, double *chunks) {
    int32_t chunk = logits_chunk(l);
    v16f m = v_set1(max), s = v_set1(scale);
    double total = 0.0;
    for (int32_t c = 0, i = 0; i < l->n; c++) {
        int32_t end = l->n - i < chunk ? l->n : i + chunk;
        v16f a = v_zero(), b = v_zero();
        for (; i < end; i += 2 * V_LANES) {
            a = v_add(a, v_exp2_neg(v_mul(v_sub(logits_load(l, i), m), s)));
            if (i + V_LANES < end)
                b = v_add(b, v_exp2_neg(v_mul(v_sub(logits_load(l, i + V_LANES), m), s)));
        }
        i = end;
        double sum = (double)v_sum(v_add(a, b));
        if (chunks)
            chunks[c] = sum;
        total += sum;
    }
    return total;
}

V_FN int32_t logits_count_above(const struct logits *l, float x) {
    v16f v = v_set1(x);
    v16i n = vi_zero(), one = vi_set1(1);
    for (int32_t i = 0; i < l->n; i += V_LANES)
        n = vi_add(n, vi_select(v_gt(logits_load(l, i), v), one, vi_zero()));
    return vi_sum(n);
}

// The n <= LOGITS_TOP largest values, largest first, lower index first among equals. Returns how
// many there are.
V_FN int32_t logits_find_top(const struct logits *l, int32_t n, int32_t *id, float *value) {
    int32_t have = 0;
    for (int32_t i = 0; i < l->n; i += V_LANES) {
        v16f v = logits_load(l, i);
        float floor = have < n ? -__builtin_inff() : value[n - 1];
        uint32_t bits = vm_bits(v_gt(v, v_set1(floor)));
        if (!bits)
            continue;
        float x[V_LANES];
        v_store(x, v);
        for (; bits; bits &= bits - 1) {
            int b = __builtin_ctz(bits);
            if (have == n && !(x[b] > value[n - 1]))
                continue;
            int32_t j = have < n ? have++ : n - 1;
            for (; j > 0 && x[b] > value[j - 1]; j--) {
                value[j] = value[j - 1];
                id[j] = id[j - 1];
            }
            value[j] = x[b];
            id[j] = i + b;
        }
    }
    return have;
}

// SPDX-License-Identifier: Apache-2.0
// Sums of gradients in int64, their norm, AdamW. Values are shared among the threads in chunks.
//
// vNd, vNl: f64 and int64 vectors of the compiler's own, as wide as the level's registers.
#include "kernels/cpu/isa/math.h"

enum {
    CHUNK = 8192, // values of a claim
#if defined(KN_ISA_AVX512)
    WIDE = 8,
#elif defined(KN_ISA_AVX2)
    WIDE = 4,
#else
    WIDE = 2,
#endif
};
typedef double vNd __attribute__((vector_size(WIDE * 8)));
typedef int64_t vNl __attribute__((vector_size(WIDE * 8)));
typedef float vNf __attribute__((vector_size(WIDE * 4)));

V_FN vNl wide_load(const int64_t *p) {
    vNl x;
    memcpy(&x, p, sizeof x);
    return x;
}
V_FN void wide_store(int64_t *p, vNl x) {
    memcpy(p, &x, sizeof x);
}
V_FN vNd wide_load_f32(const float *p) {
    vNf x;
    memcpy(&x, p, sizeof x);
    return __builtin_convertvector(x, vNd);
}
V_FN void wide_store_f32(float *p, vNd x) {
    vNf y = __builtin_convertvector(x, vNf);
    memcpy(p, &y, sizeof y);
}
V_FN vNl wide_max(vNl x, vNl y) {
    vNl more = x > y;
    return (x & more) | (y & ~more);
}

// Claims the next values of [first, last), 0, 0 being all n.
static bool claim_values(struct cpu_task *t, int64_t first, int64_t last, int64_t n, int64_t *begin,
                         int64_t *end) {
    int32_t c;
    last = last ? last : n;
    if (!cpu_claim(t, (int32_t)((last - first - 1) / CHUNK + 1), &c))
        return false;
    *begin = first + (int64_t)c * CHUNK;
    *end = last - *begin < CHUNK ? last : *begin + CHUNK;
    return true;
}

// ---- sums

// Adds round(g * scale), which is exact but for that rounding: |x| + 2^52 has no fraction left, its
// low bits are the whole number. False: some value does not fit, and is left out.
V_FN bool add_values(enum kn_grad_mode mode, const float *g, int64_t *acc, int64_t n,
                     double scale) {
    const double top = 0x1p52;
    const int64_t fraction = 0xfffffffffffff;
    bool good = true;
    int64_t i = 0;
    vNl bad = {0};
    vNd none = {0}, limit = none + top;
    for (; i + WIDE <= n; i += WIDE) {
        vNd x = wide_load_f32(g + i) * scale;
        vNd size = (vNd)((vNl)x & INT64_MAX);
        vNl fits = size < limit; // false for NaN
        bad |= ~fits;
        if (mode == KN_GRAD_CHECK)
            continue;
        vNl whole = (vNl)(size + limit) & fraction;
        vNl negative = (vNl)x >> 63;
        if (mode == KN_GRAD_SUBTRACT)
            negative = ~negative;
        wide_store(acc + i, wide_load(acc + i) + (((whole ^ negative) - negative) & fits));
    }
    for (int w = 0; w < WIDE; w++)
        good &= bad[w] == 0;
    for (; i < n; i++) {
        double x = (double)g[i] * scale, size = x < 0 ? -x : x;
        if (!(size < top)) {
            good = false;
            continue;
        }
        double t = size + top;
        int64_t bits;
        memcpy(&bits, &t, sizeof bits);
        bits &= fraction;
        if (mode != KN_GRAD_CHECK)
            acc[i] += (x < 0) != (mode == KN_GRAD_SUBTRACT) ? -bits : bits;
    }
    return good;
}

static bool add_any(const struct kn_grad_add *p, int64_t begin, int64_t n, double scale) {
    const float *g = (const float *)p->g + begin;
    int64_t *acc = p->acc ? (int64_t *)p->acc + begin : NULL;
    if (p->mode == KN_GRAD_ADD)
        return add_values(KN_GRAD_ADD, g, acc, n, scale);
    if (p->mode == KN_GRAD_SUBTRACT)
        return add_values(KN_GRAD_SUBTRACT, g, acc, n, scale);
    return add_values(KN_GRAD_CHECK, g, acc, n, scale);
}

void ISA(cpu_grad_add)(const void *params, struct cpu_task *t) {
    const struct kn_grad_add *p = params;
    uint64_t bits = (uint64_t)(p->exponent + 1023) << 52;
    double scale;
    memcpy(&scale, &bits, sizeof scale);
    for (int64_t begin, end; claim_values(t, p->begin, p->end, p->n, &begin, &end);)
        if (!add_any(p, begin, end - begin, scale))
            __atomic_store_n((int32_t *)p->flag, 1, __ATOMIC_RELAXED);
}

// ---- norm

// Four vectors of sums, then a tree; the rest one by one.
static double sum_squares(const int64_t *acc, int64_t n, double factor, double *largest) {
    vNd sum[4] = {{0}, {0}, {0}, {0}}, top = {0};
    int64_t i = 0;
    for (; i + 4 * WIDE <= n; i += 4 * WIDE) {
        V_UNROLL
        for (int j = 0; j < 4; j++) {
            vNd x = __builtin_convertvector(wide_load(acc + i + j * WIDE), vNd) * factor;
            vNl size = (vNl)x & INT64_MAX; // ordered like the values
            sum[j] += x * x;
            top = (vNd)wide_max((vNl)top, size);
        }
    }
    sum[0] = (sum[0] + sum[1]) + (sum[2] + sum[3]);
    double total = 0, most = 0;
    for (int w = 0; w < WIDE; w++) {
        total += sum[0][w];
        most = top[w] > most ? top[w] : most;
    }
    for (; i < n; i++) {
        double x = (double)acc[i] * factor;
        total += x * x;
        x = x < 0 ? -x : x;
        most = x > most ? x : most;
    }
    *largest = most;
    return total;
}

void ISA(cpu_sumsq)(const void *params, struct cpu_task *t) {
    const struct kn_sumsq *p = params;
    int64_t last = p->end ? p->end : p->n, first = p->begin / KN_SUMSQ_CHUNK;
    double *out = (double *)p->out, *largest = (double *)p->largest;
    int64_t chunks = (last - 1) / KN_SUMSQ_CHUNK + 1 - first;
    for (int32_t i; cpu_claim(t, (int32_t)chunks, &i);) {
        int64_t c = first + i, at = c * KN_SUMSQ_CHUNK;
        int64_t n = last - at < KN_SUMSQ_CHUNK ? last - at : KN_SUMSQ_CHUNK;
        out[c] = sum_squares((const int64_t *)p->acc + at, n, p->factor, &largest[c]);
    }
}

// ---- AdamW

struct adam {
    double factor;
    v16f keep, b1, g1, b2, g2; // 1 - lr decay, the betas and what is left of them
    v16f root, eps, step;      // sqrt(c2), -, lr / c1
};

V_FN void adam_values(const struct adam *a, float *w, float *m, float *v, int64_t *acc, int32_t n) {
    float g[V_LANES];
    for (int i = 0; i < V_LANES; i += WIDE)
        wide_store_f32(g + i, __builtin_convertvector(wide_load(acc + i), vNd) * a->factor);
    memset(acc, 0, V_LANES * sizeof *acc);
    v16f gv = v_load(g), wv = v_mul(v_load_n(w, n), a->keep);
    v16f mv = v_fma(a->g1, gv, v_mul(a->b1, v_load_n(m, n)));
    v16f vv = v_fma(v_mul(a->g2, gv), gv, v_mul(a->b2, v_load_n(v, n)));
    v16f denom = v_add(v_div(v_sqrt(vv), a->root), a->eps);
    v_store_n(m, n, mv);
    v_store_n(v, n, vv);
    v_store_n(w, n, v_fnma(a->step, v_div(mv, denom), wv));
}

void ISA(cpu_adamw)(const void *params, struct cpu_task *t) {
    const struct kn_adamw *p = params;
    const struct adam a = {
        .factor = p->factor,
        .keep = v_set1((float)(1.0 - p->lr * p->decay)),
        .b1 = v_set1((float)p->beta1),
        .g1 = v_set1((float)(1.0 - p->beta1)),
        .b2 = v_set1((float)p->beta2),
        .g2 = v_set1((float)(1.0 - p->beta2)),
        .root = v_set1((float)__builtin_sqrt(p->c2)),
        .eps = v_set1((float)p->eps),
        .step = v_set1((float)(p->lr / p->c1)),
    };
    float *w = (float *)p->w, *m = (float *)p->m, *v = (float *)p->v;
    int64_t *acc = (int64_t *)p->acc;
    for (int64_t begin, end; claim_values(t, p->begin, p->end, p->n, &begin, &end);) {
        int64_t i = begin;
        for (; i + V_LANES <= end; i += V_LANES)
            adam_values(&a, w + i, m + i, v + i, acc + i, V_LANES);
        if (i < end) {
            int64_t rest[V_LANES] = {0};
            memcpy(rest, acc + i, (size_t)(end - i) * sizeof *rest);
            adam_values(&a, w + i, m + i, v + i, rest, (int32_t)(end - i));
            memset(acc + i, 0, (size_t)(end - i) * sizeof *acc);
        }
    }
}

// SPDX-License-Identifier: Apache-2.0
// Backward of operations on rows: RMS norm, SwiGLU, the rotation; scatter; the loss. Rows are
// shared among the threads in chunks; a row is one thread's work from begin to end.
#include "kernels/cpu/isa/logits.h"
#include "kernels/cpu/isa/math.h"
#include "kernels/cpu/isa/rowops.h"

// row_claim within rows [first, last) of an operation; 0, 0: all `rows`.
static bool claim_between(struct cpu_task *t, int32_t first, int32_t last, int32_t rows, int32_t k,
                          int32_t *begin, int32_t *end) {
    last = last ? last : rows;
    if (!row_claim(t, last - first, k, begin, end))
        return false;
    *begin += first;
    *end += first;
    return true;
}

// ---- RMS norm

// Sum of a * b * c in four sums like row_sum_squares.
V_FN float sum_of_products(const float *a, const float *b, const float *c, int32_t k) {
    v16f s[4] = {v_zero(), v_zero(), v_zero(), v_zero()};
    for (int32_t i = 0; i < k; i += 64) {
        V_UNROLL
        for (int j = 0; j < 4; j++) {
            int32_t at = i + 16 * j, n = k - at;
            if (n <= 0)
                break;
            v16f ab = v_mul(v_load_n(a + at, n), v_load_n(b + at, n));
            s[j] = v_fma(ab, v_load_n(c + at, n), s[j]);
        }
    }
    return v_sum(v_add(v_add(s[0], s[1]), v_add(s[2], s[3])));
}

// dx = s w dy - x c with s = 1 / rms and c = s^3 sum(w dy x) / k.
static void norm_row_back(const struct kn_rmsnorm_back *p, const float *x, const float *dy,
                          float *dx) {
    const float *w = (const float *)p->weight;
    float s = row_rms_scale(x, p->k, p->eps);
    float c = s * s * s * (sum_of_products(w, dy, x, p->k) / (float)p->k);
    v16f sv = v_set1(s), cv = v_set1(c);
    for (int32_t i = 0; i < p->k; i += V_LANES) {
        int32_t n = p->k - i;
        v16f g = v_mul(v_mul(v_load_n(w + i, n), v_load_n(dy + i, n)), sv);
        g = v_fnma(v_load_n(x + i, n), cv, g);
        if (p->add)
            g = v_add(v_load_n(dx + i, n), g);
        v_store_n(dx + i, n, g);
    }
}

void ISA(cpu_rmsnorm_back)(const void *params, struct cpu_task *t) {
    const struct kn_rmsnorm_back *p = params;
    int32_t heads = p->heads > 0 ? p->heads : 1;
    for (int32_t begin, end;
         claim_between(t, p->row_begin, p->row_end, p->rows, heads * p->k, &begin, &end);)
        for (int32_t r = begin; r < end; r++)
            for (int32_t h = 0; h < heads; h++)
                norm_row_back(p, (const float *)p->x + r * p->ldx + h * p->k,
                              (const float *)p->dy + r * p->lddy + h * p->k,
                              (float *)p->dx + r * p->lddx + h * p->k);
}

// ---- SwiGLU

// y = g s u with s = 1 / (1 + e^-g): dg = dy u s (1 + g (1 - s)), du = dy g s.
static void swiglu_row_back(const float *x, const float *dy, float *dx, int32_t k) {
    v16f one = v_set1(1.0f);
    for (int32_t i = 0; i < k; i += V_LANES) {
        int32_t n = k - i;
        v16f g = v_load_n(x + i, n), u = v_load_n(x + k + i, n), d = v_load_n(dy + i, n);
        v16f s = v_div(one, v_add(one, v_exp(v_neg(g))));
        v16f slope = v_mul(s, v_fma(g, v_sub(one, s), one));
        v_store_n(dx + i, n, v_mul(v_mul(d, u), slope));
        v_store_n(dx + k + i, n, v_mul(d, v_mul(g, s)));
    }
}

void ISA(cpu_swiglu_back)(const void *params, struct cpu_task *t) {
    const struct kn_swiglu_back *p = params;
    for (int32_t begin, end;
         claim_between(t, p->row_begin, p->row_end, p->rows, p->k, &begin, &end);)
        for (int32_t r = begin; r < end; r++)
            swiglu_row_back((const float *)p->x + r * p->ldx, (const float *)p->dy + r * p->lddy,
                            (float *)p->dx + r * p->lddx, p->k);
}

// ---- rotation: the transposed matrix of rope.c's

static void rotate_head_back(float *x, int32_t d, const float *table) {
    int32_t half = d / 2;
    for (int32_t i = 0; i < half; i += V_LANES) {
        int32_t n = half - i;
        v16f a = v_load_n(x + i, n), b = v_load_n(x + half + i, n);
        v16f c = v_load_n(table + i, n), s = v_load_n(table + half + i, n);
        v_store_n(x + i, n, v_fma(b, s, v_mul(a, c)));
        v_store_n(x + half + i, n, v_fnma(a, s, v_mul(b, c)));
    }
}

void ISA(cpu_rope_back)(const void *params, struct cpu_task *t) {
    const struct kn_rope_back *p = params;
    int32_t heads = p->heads + p->kv_heads, d = p->head_dim;
    for (int32_t begin, end; row_claim(t, p->batch->n_tokens, heads * d, &begin, &end);)
        for (int32_t r = begin; r < end; r++)
            for (int32_t h = 0; h < heads; h++)
                rotate_head_back((float *)p->dqkv + r * p->lddqkv + h * d, d,
                                 (const float *)p->table + (int64_t)r * d);
}

// ---- scatter

void ISA(cpu_scatter)(const void *params, struct cpu_task *t) {
    const struct kn_scatter *p = params;
    const int32_t *rows = (const int32_t *)p->rows;
    float *dst = (float *)p->dst;
    size_t bytes = (size_t)p->k * sizeof(float);
    for (int32_t begin, end; row_claim(t, p->n_dst, p->k, &begin, &end);)
        for (int32_t i = begin; i < end; i++)
            memset(dst + i * p->ld_dst, 0, bytes);
    if (p->n == 0)
        return;
    cpu_barrier(t);
    for (int32_t begin, end; row_claim(t, p->n, p->k, &begin, &end);)
        for (int32_t i = begin; i < end; i++) {
            if (rows[i] < 0 || rows[i] >= p->n_dst) {
                cpu_fail(t, ERR_INTERNAL);
                return;
            }
            memcpy(dst + rows[i] * p->ld_dst, (const float *)p->src + i * p->ld_src, bytes);
        }
}

// ---- cross-entropy

// x becomes (softmax - onehot) * weight. `sum`: of e^(x - max).
static void loss_gradient(float *x, int32_t n, float max, double sum, int32_t target,
                          float weight) {
    v16f m = v_set1(max), scale = v_set1(0x1.715476p+0f);
    v16f factor = v_set1((float)((double)weight / sum));
    v16f at = v_exp2_neg(v_mul(v_sub(v_set1(x[target]), m), scale));
    float e[V_LANES];
    v_store(e, at);
    for (int32_t i = 0; i < n; i += V_LANES) {
        v16f v = v_exp2_neg(v_mul(v_sub(v_load_n(x + i, n - i), m), scale));
        v_store_n(x + i, n - i, v_mul(v, factor));
    }
    x[target] = (float)(((double)e[0] / sum - 1.0) * (double)weight);
}

static void loss_row(const struct kn_xent *p, int32_t row) {
    float *x = (float *)p->logits + row * p->ld, *loss = (float *)p->loss + row;
    int32_t target = ((const int32_t *)p->target)[row], *hit = (int32_t *)p->hit;
    struct logits l = {.x = x, .n = p->vocab};
    struct logits_max m = logits_find_max(&l);
    if (hit)
        hit[row] = m.finite && m.at == target;
    if (!m.finite) {
        *loss = __builtin_nanf("");
        for (int32_t i = 0; p->grad && i < p->vocab; i++)
            x[i] = *loss;
        return;
    }
    double sum = logits_sum(&l, m.value, 0x1.715476p+0f, NULL);
    double log_sum = (double)m.value + m_log(sum);
    *loss = -(float)((double)x[target] - log_sum);
    if (p->grad)
        loss_gradient(x, p->vocab, m.value, sum, target, ((const float *)p->weight)[row]);
}

void ISA(cpu_xent)(const void *params, struct cpu_task *t) {
    const struct kn_xent *p = params;
    for (int32_t i; cpu_claim(t, p->rows, &i);) {
        int32_t target = ((const int32_t *)p->target)[i];
        if (target < 0 || target >= p->vocab) {
            cpu_fail(t, ERR_INTERNAL);
            continue;
        }
        loss_row(p, i);
    }
}

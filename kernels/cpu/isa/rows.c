// SPDX-License-Identifier: Apache-2.0
// Operations on whole rows: RMS norm, quantisation to the Q8 form, SwiGLU, embedding, gather. Rows
// are shared among the threads in chunks; a row is one thread's work from begin to end.
#include "kernels/cpu/isa/math.h"
#include "kernels/cpu/isa/rowops.h"
#include "kernels/cpu/weight.h"

// One row. yq's blocks are made while the values are in registers.
static void norm_row(const struct kn_rmsnorm *p, const float *x, float *y,
                     struct cpu_q8_block *yq) {
    const float *w = (const float *)p->weight;
    v16f s = v_set1(row_rms_scale(x, p->k, p->eps));
    int32_t i = 0;
    for (; i + Q8_VALUES <= p->k; i += Q8_VALUES) {
        v16f a = v_mul(v_mul(v_load(x + i), s), v_load(w + i));
        v16f b = v_mul(v_mul(v_load(x + i + 16), s), v_load(w + i + 16));
        if (y) {
            v_store(y + i, a);
            v_store(y + i + 16, b);
        }
        if (yq)
            row_quantize_block(a, b, yq + i / Q8_VALUES);
    }
    for (; i < p->k; i += V_LANES) // k is a multiple of 32 where there is a yq
        v_store_n(y + i, p->k - i,
                  v_mul(v_mul(v_load_n(x + i, p->k - i), s), v_load_n(w + i, p->k - i)));
}

void ISA(cpu_rmsnorm)(const void *params, struct cpu_task *t) {
    const struct kn_rmsnorm *p = params;
    for (int32_t begin, end; row_claim(t, p->rows, p->k, &begin, &end);)
        for (int32_t r = begin; r < end; r++) {
            const float *x = (const float *)p->x + r * p->ldx;
            float *y = p->y ? (float *)p->y + r * p->ldy : NULL;
            struct cpu_q8_block *yq = (struct cpu_q8_block *)p->yq;
            norm_row(p, x, y, yq ? yq + (int64_t)r * (p->k / Q8_VALUES) : NULL);
        }
}

void ISA(cpu_quantize_row)(const float *x, int32_t k, struct cpu_q8_block *out) {
    row_quantize(x, k, out);
}

void ISA(cpu_quantize)(const void *params, struct cpu_task *t) {
    const struct kn_quantize *p = params;
    for (int32_t begin, end; row_claim(t, p->rows, p->k, &begin, &end);)
        for (int32_t r = begin; r < end; r++)
            row_quantize((const float *)p->x + r * p->ldx, p->k,
                         (struct cpu_q8_block *)p->yq + (int64_t)r * (p->k / Q8_VALUES));
}

void ISA(cpu_swiglu)(const void *params, struct cpu_task *t) {
    const struct kn_swiglu *p = params;
    for (int32_t begin, end; row_claim(t, p->rows, p->k, &begin, &end);)
        for (int32_t r = begin; r < end; r++) {
            const float *gate = (const float *)p->x + r * p->ldx, *up = gate + p->k;
            float *y = (float *)p->y + r * p->ldy;
            int32_t i = 0;
            for (; i + V_LANES <= p->k; i += V_LANES)
                v_store(y + i, v_mul(v_silu(v_load(gate + i)), v_load(up + i)));
            if (i < p->k)
                v_store_n(y + i, p->k - i,
                          v_mul(v_silu(v_load_n(gate + i, p->k - i)), v_load_n(up + i, p->k - i)));
        }
}

// A token that there is not (the previous step chose none) becomes a row of zeros: its sequence has
// ended with an error already, and its row must not disturb the others.
void ISA(cpu_embed)(const void *params, struct cpu_task *t) {
    const struct kn_embed *p = params;
    const int32_t *ids = (const int32_t *)p->batch->ids, *prev = (const int32_t *)p->prev_tokens;
    int32_t k = p->w->k, first = p->token_begin;
    int32_t n = (p->token_end ? p->token_end : p->batch->n_tokens) - first;
    for (int32_t begin, end; row_claim(t, n, k, &begin, &end);)
        for (int32_t i = first + begin; i < first + end; i++) {
            float *x = (float *)p->x + i * p->ldx;
            int32_t id = ids[i] >= 0 ? ids[i] : prev ? prev[~ids[i]] : -1;
            if (id >= 0 && id < p->w->n)
                cpu_weight_row(p->w, id, x);
            else
                memset(x, 0, (size_t)k * sizeof *x);
        }
}

void ISA(cpu_gather)(const void *params, struct cpu_task *t) {
    const struct kn_gather *p = params;
    const int32_t *rows = (const int32_t *)p->rows;
    for (int32_t begin, end; row_claim(t, p->n, p->k, &begin, &end);)
        for (int32_t i = begin; i < end; i++)
            memcpy((float *)p->dst + i * p->ld_dst, (const float *)p->src + rows[i] * p->ld_src,
                   (size_t)p->k * sizeof(float));
}

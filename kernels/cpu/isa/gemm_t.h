// SPDX-License-Identifier: Apache-2.0
// What the two ways of the transposed product share: the pieces of work, the rows of W that lie
// together, dequantised columns. gemm_t.c multiplies in f32, gemm_t_bf16.c pairs of bf16.
#pragma once
#include "kernels/cpu/isa/gemm_internal.h"
#include "kernels/cpu/isa/isa.h"
#include "kernels/cpu/isa/transpose.h"

// The rows of W that lie together: a part of a stack, or its gate or up half.
struct gemm_t_span {
    const struct cpu_segment *seg;
    int32_t n, col; // rows, y column of the first
    int half;       // of a gate_up segment; -1: panels alternate between the halves
};

static inline const uint8_t *gemm_t_panel(const struct gemm_t_span *s, int32_t panel, int *half) {
    int32_t pair = s->half < 0 ? panel / 2 : panel;
    *half = s->half < 0 ? panel % 2 : s->half;
    return s->seg->data + (size_t)pair * s->seg->pair_bytes;
}

// Rows [*lo, *hi) of the span that the call's range takes: the runs that begin in it.
static inline bool gemm_t_range(const struct kn_gemm_t *p, int32_t n, int32_t col, int32_t *lo,
                                int32_t *hi) {
    int32_t end = p->n_end ? p->n_end : p->w->n;
    *lo = p->n_begin > col ? (p->n_begin - col - 1) / KN_GEMM_T_RUN + 1 : 0;
    *hi = end > col ? (end - col - 1) / KN_GEMM_T_RUN + 1 : 0;
    *lo *= KN_GEMM_T_RUN;
    *hi = *hi > n / KN_GEMM_T_RUN ? n : *hi * KN_GEMM_T_RUN;
    return *lo < *hi;
}

// ---- dequantising: v[i] = 16 rows' weights of column c + i, for i < count; zero beyond

V_FN void gemm_t_plain(enum kn_dtype t, const uint8_t *panel, int32_t c, int32_t count,
                       v16f v[V_LANES]) {
    for (int32_t i = 0; i < count; i++) {
        size_t at = (size_t)(c + i);
        const uint8_t *w = panel + (t == KN_F32 ? at : at / 2) * 2 * CPU_VECTOR;
        if (t == KN_F32)
            v[i] = v_load((const float *)(const void *)w);
        else if (t == KN_F16)
            v[i] = v_load_f16((const uint16_t *)(const void *)(w + at % 2 * (CPU_VECTOR / 2)));
        else
            v[i] = at % 2 ? v_bf16_odd(vi_load(w)) : v_bf16_even(vi_load(w));
    }
}

// Half a block: columns [0, 16) or [16, 32).
V_FN void gemm_t_quant(enum kn_dtype t, const uint8_t *block, int half, int second,
                       v16f v[V_LANES]) {
    const uint8_t *q = block + (size_t)half * cpu_quant_bytes(t);
    const uint8_t *tail = block + 2 * cpu_quant_bytes(t) + half * 32;
    v16f d = v_load_f16((const uint16_t *)(const void *)tail), m = v_zero();
    if (t == KN_Q4_1)
        m = v_load_f16((const uint16_t *)(const void *)(tail + 64));
    v16i offset = vi_set1(t == KN_Q8_0 ? 128 : t == KN_Q4_0 ? 8 : 0);
    v16i mask = vi_set1(t == KN_Q8_0 ? 255 : 15);
    for (int w = 0; w < 4; w++) {
        v16i word = vi_load(q + (size_t)(t == KN_Q8_0 ? 4 * second + w : w) * 64);
        if (t != KN_Q8_0 && second)
            word = vi_srl(word, 4);
        V_UNROLL
        for (int j = 0; j < 4; j++) {
            v16i u = vi_sub(vi_and(word, mask), offset);
            word = vi_srl(word, 8);
            v16f x = v_mul(d, vi_cvt_f(u));
            v[4 * w + j] = t == KN_Q4_1 ? v_add(x, m) : x;
        }
    }
}

// sums [rows][units][32] begin as columns [32 * unit0, ...) of rows [row0, row0 + rows) of dx, and
// become these.
void ISA(gemm_t_begin)(const struct kn_gemm_t *p, int32_t row0, int32_t rows, int32_t unit0,
                       int32_t units, float *sums);
void ISA(gemm_t_finish)(const struct kn_gemm_t *p, int32_t row0, int32_t rows, int32_t unit0,
                        int32_t units, const float *sums);
#if defined(KN_ISA_AVX512BF16)
// Whether the product is made of pairs of bf16: all but f32 weights.
bool ISA(gemm_t_takes_bf16)(const struct kn_weight *w);
void ISA(gemm_t_bf16)(const struct kn_gemm_t *p, struct cpu_task *t);
#endif

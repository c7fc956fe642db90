// SPDX-License-Identifier: Apache-2.0
// What the products share. A strip is a block of rows of x times some pairs of panels of one
// segment; its sums are made in the thread's scratch memory and then finished: bias, epilogue,
// columns outside the asked range left alone. See gemm.c for the order of the sums.
#pragma once
#include "kernels/cpu/isa/vec.h"
#include "kernels/cpu/weight.h"

enum { GEMM_RUN = 256 }; // sums over k of plain types are made in runs of this many columns

// Units of work [0, total) in chunks that shrink as the end comes near, so that the threads end
// together without a claim for every unit. Chunk i is the same range for every thread.
struct guided {
    int64_t at, left; // chunk `index` starts at `at`; units left from there
    int32_t index, grain;
};

static inline int64_t guided_size(const struct guided *g, int nt) {
    int64_t size = nt == 1 ? g->left : g->left * 2 / (3 * nt);
    if (size < g->grain)
        size = g->grain;
    return size < g->left ? size : g->left;
}

static inline bool guided_claim(struct guided *g, struct cpu_task *t, int64_t *begin, int64_t *n) {
    int32_t want;
    if (g->left == 0 || !cpu_claim(t, INT32_MAX, &want))
        return false;
    for (; g->index < want && g->left > 0; g->index++) {
        int64_t size = guided_size(g, t->nt);
        g->at += size;
        g->left -= size;
    }
    *begin = g->at;
    *n = g->left > 0 ? guided_size(g, t->nt) : 0;
    return *n > 0;
}

struct gemm_strip {
    const struct kn_gemm *p;
    const struct cpu_segment *seg;
    int32_t pair0, pairs;
    int32_t row0, rows;
    char *scratch; // CPU_SCRATCH_BYTES
};

// Columns of y to make: [begin, end).
static inline void gemm_range(const struct kn_gemm *p, int32_t *begin, int32_t *end) {
    int32_t all = p->epilogue == KN_GEMM_SWIGLU ? p->w->n / 2 : p->w->n;
    *begin = p->n_begin;
    *end = p->n_end ? p->n_end : all;
}

// Largest pieces that the scratch memory and the caches take; any size gives the same bits.
int32_t ISA(gemm_float_rows)(const struct kn_weight *w);
int32_t ISA(gemm_quant_rows)(const struct kn_weight *w);
void ISA(gemm_float)(const struct gemm_strip *s);
void ISA(gemm_quant)(const struct gemm_strip *s);
// sums: [rows][pairs][32].
void ISA(gemm_finish)(const struct gemm_strip *s, int32_t pair0, int32_t pairs, const float *sums);

// The inner product of the plain types, also used by the transposed product: `rows` rows of x times
// a pair of panels in f32 ([k][2][16]); sums [rows][ld_sums], 32 of them. `add`: on top of earlier
// runs.
void ISA(gemm_f32_tile)(const float *w, int32_t k, const float *x, int64_t ldx, int32_t rows,
                        float *sums, int64_t ld_sums, bool add);

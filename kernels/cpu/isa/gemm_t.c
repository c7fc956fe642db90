// SPDX-License-Identifier: Apache-2.0
// dx = dy W on the layout that the forward product uses: panels are dequantised and transposed, a
// run of rows of W at a time, and multiplied in f32. Work is cut along k and along the rows of dy.
//
// Order of the sums: over n in y's order of columns, in runs of at most KN_GEMM_T_RUN that start
// anew with each part of a stack; the runs' sums are added in order, to what dx holds with `add`.
// Where CPUs multiply pairs of bf16, gemm_t_bf16.c makes the product, but for f32 weights.
#include "kernels/cpu/isa/gemm_t.h"

enum {
    BLOCK_ROWS = 128,
    SUMS_BYTES = 256 << 10, // of the scratch memory; a transposed pair follows
};

// What one thread does in one go: k columns in units of 32, for a block of rows.
struct piece {
    const struct kn_gemm_t *p;
    int32_t unit0, units;
    int32_t row0, rows;
    float *sums;       // [rows][units][32]
    float *transposed; // [KN_GEMM_T_RUN][32]
};

// ---- one run

// Rows [16 * panel0, ...) of the span, `panels` of them, 16 columns from c: out [row][32], of which
// 16 are written.
static void transpose_columns(const struct gemm_t_span *s, int32_t panel0, int32_t panels,
                              int32_t k, int32_t c, float *out) {
    enum kn_dtype t = s->seg->dtype;
    int32_t count = k - c < V_LANES ? k - c : V_LANES; // below 1 beyond the last column
    for (int32_t i = 0; i < panels; i++) {
        v16f v[V_LANES];
        for (int j = 0; j < V_LANES; j++)
            v[j] = v_zero();
        int half;
        const uint8_t *pair = gemm_t_panel(s, panel0 + i, &half);
        if (cpu_dtype_quantised(t))
            gemm_t_quant(t, pair + (size_t)(c / CPU_QBLOCK) * cpu_block_bytes(t), half,
                         c / V_LANES % 2, v);
        else
            gemm_t_plain(t, pair + (size_t)half * CPU_VECTOR, c, count, v);
        v_transpose(v);
        for (int j = 0; j < V_LANES; j++, out += CPU_PAIR)
            v_store(out, v[j]);
    }
}

static void add_run(const struct piece *x, const struct gemm_t_span *s, int32_t row, int32_t len,
                    bool add) {
    const struct kn_gemm_t *p = x->p;
    const float *dy = (const float *)p->dy + x->row0 * p->lddy + s->col + row;
    int32_t panels = (len + V_LANES - 1) / V_LANES;
    for (int32_t u = 0; u < x->units; u++) {
        for (int32_t h = 0; h < 2; h++)
            transpose_columns(s, row / V_LANES, panels, p->w->k,
                              (x->unit0 + u) * CPU_PAIR + h * V_LANES, x->transposed + h * V_LANES);
        ISA(gemm_f32_tile)
        (x->transposed, len, dy, p->lddy, x->rows, x->sums + u * CPU_PAIR,
         (int64_t)x->units * CPU_PAIR, add);
    }
}

static void add_span(const struct piece *x, const struct gemm_t_span *s, bool *add) {
    int32_t row, end;
    for (gemm_t_range(x->p, s->n, s->col, &row, &end); row < end; row += KN_GEMM_T_RUN) {
        add_run(x, s, row, end - row < KN_GEMM_T_RUN ? end - row : KN_GEMM_T_RUN, *add);
        *add = true;
    }
}

void ISA(gemm_t_begin)(const struct kn_gemm_t *p, int32_t row0, int32_t rows, int32_t unit0,
                       int32_t units, float *sums) {
    int32_t c0 = unit0 * CPU_PAIR, width = units * CPU_PAIR;
    for (int32_t r = 0; r < rows; r++, sums += width)
        for (int32_t c = 0; c < width; c += V_LANES) {
            const float *dx = (const float *)p->dx + (row0 + r) * p->lddx + c0 + c;
            int32_t left = p->w->k - c0 - c;
            v_store(sums + c, left >= V_LANES ? v_load(dx)
                              : left > 0      ? v_load_n(dx, left)
                                              : v_zero());
        }
}

void ISA(gemm_t_finish)(const struct kn_gemm_t *p, int32_t row0, int32_t rows, int32_t unit0,
                        int32_t units, const float *sums) {
    int32_t c0 = unit0 * CPU_PAIR, width = units * CPU_PAIR;
    for (int32_t r = 0; r < rows; r++)
        for (int32_t c = 0; c < width && c0 + c < p->w->k; c += V_LANES) {
            float *dx = (float *)p->dx + (row0 + r) * p->lddx + c0 + c;
            int32_t left = p->w->k - c0 - c;
            v16f v = v_load(sums + (int64_t)r * width + c);
            if (left >= V_LANES)
                v_store(dx, v);
            else
                v_store_n(dx, left, v);
        }
}

static void run_piece(const struct piece *x) {
    const struct kn_weight *w = x->p->w;
    bool add = x->p->add;
    if (add)
        ISA(gemm_t_begin)(x->p, x->row0, x->rows, x->unit0, x->units, x->sums);
    for (int i = 0; i < w->n_segments; i++) {
        const struct cpu_segment *seg = &w->segments[i];
        struct gemm_t_span s = {
            .seg = seg, .n = seg->n, .col = seg->col, .half = seg->gate_up ? 0 : -1};
        add_span(x, &s, &add);
        if (!seg->gate_up)
            continue;
        s.half = 1;
        s.col += seg->n;
        add_span(x, &s, &add);
    }
    if (!add) // the range takes no run
        memset(x->sums, 0, (size_t)x->rows * (size_t)x->units * CPU_PAIR * sizeof *x->sums);
    ISA(gemm_t_finish)(x->p, x->row0, x->rows, x->unit0, x->units, x->sums);
}

void ISA(cpu_gemm_t)(const void *params, struct cpu_task *t) {
    const struct kn_gemm_t *p = params;
#if defined(KN_ISA_AVX512BF16)
    if (ISA(gemm_t_takes_bf16)(p->w)) {
        ISA(gemm_t_bf16)(p, t);
        return;
    }
#endif
    int32_t end = p->k_end ? p->k_end : p->w->k, first = p->k_begin / CPU_PAIR;
    int32_t units = (end - 1) / CPU_PAIR + 1 - first;
    int32_t blocks = (p->rows - 1) / BLOCK_ROWS + 1;
    struct piece x = {.p = p,
                      .sums = (float *)t->scratch,
                      .transposed = (float *)t->scratch + SUMS_BYTES / sizeof(float)};
    struct cpu_work work = {.total = blocks * units, .grain = 1};
    for (int32_t at, n; cpu_take(t, &work, &at, &n);)
        while (n > 0) {
            int32_t unit = at % units, block = at / units;
            x.row0 = block * BLOCK_ROWS;
            x.rows = p->rows - x.row0 < BLOCK_ROWS ? p->rows - x.row0 : BLOCK_ROWS;
            int32_t most = SUMS_BYTES / (x.rows * CPU_PAIR * (int32_t)sizeof(float));
            x.unit0 = first + unit;
            x.units = units - unit < most ? units - unit : most;
            x.units = x.units < n ? x.units : n;
            run_piece(&x);
            at += x.units;
            n -= x.units;
        }
}

// SPDX-License-Identifier: Apache-2.0
// dx = dy W on the layout that the forward product uses: panels are dequantised and transposed, a
// run of rows of W at a time, and multiplied in f32. Work is cut along k and along the rows of dy.
//
// Order of the sums: over n in y's order of columns, in runs of at most GEMM_RUN that start anew
// with each part of a stack; the runs' sums are added in order.
#include "kernels/cpu/isa/gemm_internal.h"
#include "kernels/cpu/isa/transpose.h"

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
    float *transposed; // [GEMM_RUN][32]
};

// The rows of W that lie together: a part of a stack, or its gate or up half.
struct span {
    const struct cpu_segment *seg;
    int32_t n, col; // rows, y column of the first
    int half;       // of a gate_up segment; -1: panels alternate between the halves
};

static const uint8_t *span_panel(const struct span *s, int32_t panel, int *half) {
    int32_t pair = s->half < 0 ? panel / 2 : panel;
    *half = s->half < 0 ? panel % 2 : s->half;
    return s->seg->data + (size_t)pair * s->seg->pair_bytes;
}

// ---- dequantising: v[i] = 16 rows' weights of column c + i, for i < count; zero beyond

static void plain_columns(enum kn_dtype t, const uint8_t *panel, int32_t c, int32_t count,
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
static void quant_columns(enum kn_dtype t, const uint8_t *block, int half, int second,
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

// ---- one run

// Rows [16 * panel0, ...) of the span, `panels` of them, 16 columns from c: out [row][32], of which
// 16 are written.
static void transpose_columns(const struct span *s, int32_t panel0, int32_t panels, int32_t k,
                              int32_t c, float *out) {
    enum kn_dtype t = s->seg->dtype;
    int32_t count = k - c < V_LANES ? k - c : V_LANES; // below 1 beyond the last column
    for (int32_t i = 0; i < panels; i++) {
        v16f v[V_LANES];
        for (int j = 0; j < V_LANES; j++)
            v[j] = v_zero();
        int half;
        const uint8_t *pair = span_panel(s, panel0 + i, &half);
        if (cpu_dtype_quantised(t))
            quant_columns(t, pair + (size_t)(c / CPU_QBLOCK) * cpu_block_bytes(t), half,
                          c / V_LANES % 2, v);
        else
            plain_columns(t, pair + (size_t)half * CPU_VECTOR, c, count, v);
        v_transpose(v);
        for (int j = 0; j < V_LANES; j++, out += CPU_PAIR)
            v_store(out, v[j]);
    }
}

static void add_run(const struct piece *x, const struct span *s, int32_t row, int32_t len,
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

static void add_span(const struct piece *x, const struct span *s, bool *add) {
    for (int32_t row = 0; row < s->n; row += GEMM_RUN) {
        add_run(x, s, row, s->n - row < GEMM_RUN ? s->n - row : GEMM_RUN, *add);
        *add = true;
    }
}

static void finish(const struct piece *x) {
    const struct kn_gemm_t *p = x->p;
    int32_t c0 = x->unit0 * CPU_PAIR, width = x->units * CPU_PAIR;
    for (int32_t r = 0; r < x->rows; r++)
        for (int32_t c = 0; c < width && c0 + c < p->w->k; c += V_LANES) {
            float *dx = (float *)p->dx + (x->row0 + r) * p->lddx + c0 + c;
            int32_t left = p->w->k - c0 - c;
            v16f v = v_load(x->sums + (int64_t)r * width + c);
            if (left >= V_LANES)
                v_store(dx, p->add ? v_add(v_load(dx), v) : v);
            else
                v_store_n(dx, left, p->add ? v_add(v_load_n(dx, left), v) : v);
        }
}

static void run_piece(const struct piece *x) {
    const struct kn_weight *w = x->p->w;
    bool add = false;
    for (int i = 0; i < w->n_segments; i++) {
        const struct cpu_segment *seg = &w->segments[i];
        struct span s = {.seg = seg, .n = seg->n, .col = seg->col, .half = seg->gate_up ? 0 : -1};
        add_span(x, &s, &add);
        if (!seg->gate_up)
            continue;
        s.half = 1;
        s.col += seg->n;
        add_span(x, &s, &add);
    }
    finish(x);
}

void ISA(cpu_gemm_t)(const void *params, struct cpu_task *t) {
    const struct kn_gemm_t *p = params;
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

// SPDX-License-Identifier: Apache-2.0
// dx = dy W on CPUs that multiply pairs of bf16, for weights that are not f32: twice what f32
// multiply-adds do. dy and dequantised weights are rounded to bf16 (to nearest even), sums are f32.
//
// Order of the sums: over n in y's order of columns, two rows of W at a time, the odd one first, as
// gemm_bf16.c has it. One chain, which goes on from what dx holds with `add`; a part of a stack,
// and up after gate, starts a new pair.
#include "kernels/cpu/isa/gemm_t.h"

#if defined(KN_ISA_AVX512BF16)

enum {
    MOST_ROWS = 256,  // of a block of dy; a transposed run of W is used by all of them
    LEAST_ROWS = 128, // where all columns of dy do not fit
    RUN_MOST = 576,   // rows of W that lie transposed, in the first cache
    // Of the scratch memory.
    X_BYTES = 768 << 10,
    SUMS_BYTES = 256 << 10,
    RUN_BYTES = RUN_MOST / 2 * 2 * CPU_VECTOR,
};

// The rows of W are cut into runs, each within a span.
struct place {
    int segment, half;
    int32_t row; // 0, or of the span that the last run was of
};
struct run {
    struct gemm_t_span span;
    int32_t row, len;
};

struct work {
    const struct kn_gemm_t *p;
    int32_t row0, rows;            // the block in hand
    int32_t tiles, height, taller; // `taller` tiles first that are one row taller
    int32_t packed;                // row0 of the block whose columns lie packed; -1: none
    float *sums;                   // [rows][units][32]
    uint32_t *transposed, *x;      // [steps][32]; by run and tile: [steps][rows]
};

// The next one of the call's range; false: none is left.
static bool next_run(const struct kn_gemm_t *p, struct place *at, struct run *run) {
    while (at->segment < p->w->n_segments) {
        const struct cpu_segment *s = &p->w->segments[at->segment];
        int32_t col = s->col + at->half * s->n, lo, hi;
        bool any = gemm_t_range(p, s->n, col, &lo, &hi), up = s->gate_up && !at->half;
        int32_t row = at->row > lo ? at->row : lo;
        if (!any || row >= hi) {
            *at = (struct place){up ? at->segment : at->segment + 1, up, 0};
            continue;
        }
        int32_t runs = (hi - lo + RUN_MOST - 1) / RUN_MOST, len = (hi - lo + runs - 1) / runs;
        len = (len + CPU_PAIR - 1) / CPU_PAIR * CPU_PAIR;
        run->span = (struct gemm_t_span){s, s->n, col, s->gate_up ? at->half : -1};
        run->row = row;
        run->len = hi - row < len ? hi - row : len;
        at->row = row + run->len;
        return true;
    }
    return false;
}

// Rows of W in the call's range.
static int32_t range_rows(const struct kn_gemm_t *p) {
    struct place at = {0};
    struct run r;
    int32_t n = 0;
    while (next_run(p, &at, &r))
        n += r.len;
    return n;
}

// ---- transposing

// 16 rows of columns [c, c + 32), rounded: out [8][32] pairs of rows.
static void transpose_rounded(enum kn_dtype t, const uint8_t *pair, int half, int32_t k, int32_t c,
                              uint32_t *out) {
    v16f a[V_LANES], b[V_LANES], v[V_LANES];
    if (cpu_dtype_quantised(t)) {
        const uint8_t *block = pair + (size_t)(c / CPU_QBLOCK) * cpu_block_bytes(t);
        gemm_t_quant(t, block, half, 0, a);
        gemm_t_quant(t, block, half, 1, b);
    } else {
        const uint8_t *panel = pair + (size_t)half * CPU_VECTOR;
        V_UNROLL
        for (int i = 0; i < V_LANES; i++)
            a[i] = b[i] = v_zero();
        gemm_t_plain(t, panel, c, k - c < V_LANES ? k - c : V_LANES, a);
        c += V_LANES;
        gemm_t_plain(t, panel, c, k - c < V_LANES ? k - c : V_LANES, b);
    }
    V_UNROLL
    for (int i = 0; i < V_LANES; i++) // pairs of rows of column c + i, then of c + 16 + i
        v[i] = v_from_bits((v16i)_mm512_cvtne2ps_pbh(b[i], a[i]));
    v_transpose(v);
    V_UNROLL
    for (int i = 0; i < V_LANES / 2; i++) {
        vi_store(out + i * CPU_PAIR, v_bits(v[i]));
        vi_store(out + i * CPU_PAIR + V_LANES, v_bits(v[V_LANES / 2 + i]));
    }
}

// The same of bf16 weights: pairs of columns become pairs of rows.
static void transpose_bf16(const uint8_t *pair, int half, int32_t k, int32_t c, uint32_t *out) {
    const uint8_t *panel = pair + (size_t)half * CPU_VECTOR + (size_t)c * CPU_VECTOR;
    int32_t count = (k - c + 1) / 2;
    v16f v[V_LANES];
    int16_t index[2 * V_LANES];
    for (int i = 0; i < V_LANES; i++) {
        v[i] = i < count ? v_from_bits(vi_load(panel + (size_t)i * 2 * CPU_VECTOR)) : v_zero();
        index[2 * i] = (int16_t)i;
        index[2 * i + 1] = (int16_t)(2 * V_LANES + i);
    }
    v_transpose(v);
    v16i low = vi_load(index), high = _mm512_add_epi16(low, _mm512_set1_epi16(V_LANES));
    V_UNROLL
    for (int i = 0; i < V_LANES; i += 2, out += CPU_PAIR) {
        v16i even = v_bits(v[i]), odd = v_bits(v[i + 1]);
        vi_store(out, _mm512_permutex2var_epi16(even, low, odd));
        vi_store(out + V_LANES, _mm512_permutex2var_epi16(even, high, odd));
    }
}

static void transpose_run(const struct run *r, int32_t k, int32_t c, uint32_t *out) {
    enum kn_dtype t = r->span.seg->dtype;
    for (int32_t i = 0; i < r->len; i += CPU_PANEL, out += CPU_PANEL / 2 * CPU_PAIR) {
        int half;
        const uint8_t *pair = gemm_t_panel(&r->span, (r->row + i) / CPU_PANEL, &half);
        if (t == KN_BF16)
            transpose_bf16(pair, half, k, c, out);
        else
            transpose_rounded(t, pair, half, k, c, out);
    }
}

// ---- products

static int32_t tile_height(const struct work *w, int32_t i) {
    return w->height + (i < w->taller);
}

static uint32_t *pack_run(const struct work *w, const struct run *r, uint32_t *out) {
    const struct kn_gemm_t *p = w->p;
    const float *dy = (const float *)p->dy + w->row0 * p->lddy + r->span.col + r->row;
    for (int32_t i = 0; i < w->tiles; i++) {
        int32_t rows = tile_height(w, i);
        ISA(gemm_bf16_pack)(dy, p->lddy, rows, r->len, out);
        dy += rows * p->lddy;
        out += (int64_t)rows * ((r->len + 1) / 2);
    }
    return out;
}

static const uint32_t *multiply(const struct work *w, const struct run *r, int32_t unit,
                                const uint32_t *x, float *sums, int64_t ld_sums, bool add) {
    transpose_run(r, w->p->w->k, unit * CPU_PAIR, w->transposed);
    const uint8_t *panel = (const uint8_t *)w->transposed;
    struct gemm_bf16_tile a = {.w = panel,
                               .steps = (r->len + 1) / 2,
                               .x = x,
                               .sums = sums,
                               .ld_sums = ld_sums,
                               .add = add,
                               .ahead = panel};
    for (int32_t i = 0; i < w->tiles; i++) {
        int32_t rows = tile_height(w, i);
        ISA(gemm_bf16_tile)(rows, &a);
        a.x += (int64_t)rows * a.steps;
        a.sums += rows * ld_sums;
    }
    return a.x;
}

// Runs from *at on whose columns of dy fit the scratch memory together.
static int part_runs(const struct work *w, struct place *at) {
    size_t words = 0;
    int n = 0;
    for (;; n++) {
        struct place next = *at;
        struct run r;
        if (!next_run(w->p, &next, &r))
            return n;
        words += (size_t)w->rows * (size_t)((r.len + 1) / 2);
        if (n > 0 && words > X_BYTES / sizeof(uint32_t))
            return n;
        *at = next;
    }
}

// Units of 32 columns of dx, part by part of the rows of W.
static void run_piece(struct work *w, int32_t unit0, int32_t units) {
    const struct kn_gemm_t *p = w->p;
    struct place at = {0};
    bool add = p->add, first = true, last = false;
    if (add)
        ISA(gemm_t_begin)(p, w->row0, w->rows, unit0, units, w->sums);
    for (; !last; first = false) {
        struct place start = at, from = at, rest;
        int n = part_runs(w, &at);
        rest = at;
        uint32_t *out = w->x;
        struct run r;
        last = !next_run(p, &rest, &r);
        if (w->packed != w->row0 || !first || !last)
            for (int i = 0; i < n && next_run(p, &from, &r); i++)
                out = pack_run(w, &r, out);
        w->packed = first && last ? w->row0 : -1;
        for (int32_t u = 0; u < units; u++) {
            const uint32_t *x = w->x;
            from = start;
            for (int i = 0; i < n && next_run(p, &from, &r); i++)
                x = multiply(w, &r, unit0 + u, x, w->sums + u * CPU_PAIR, units * CPU_PAIR,
                             add || i > 0);
        }
        add = add || n > 0;
    }
    if (!add) // the range takes no run
        memset(w->sums, 0, (size_t)w->rows * (size_t)units * CPU_PAIR * sizeof *w->sums);
    ISA(gemm_t_finish)(p, w->row0, w->rows, unit0, units, w->sums);
}

// ---- sharing the work

bool ISA(gemm_t_takes_bf16)(const struct kn_weight *w) {
    for (int i = 0; i < w->n_segments; i++)
        if (w->segments[i].dtype == KN_F32)
            return false;
    return true;
}

static void set_block(struct work *w, int32_t row0, int32_t most) {
    int32_t left = w->p->rows - row0;
    w->row0 = row0;
    w->rows = left < most ? left : most;
    w->tiles = (w->rows + GEMM_BF16_ROWS - 1) / GEMM_BF16_ROWS;
    w->height = w->rows / w->tiles;
    w->taller = w->rows % w->tiles;
}

void ISA(gemm_t_bf16)(const struct kn_gemm_t *p, struct cpu_task *t) {
    char *scratch = t->scratch;
    struct work w = {.p = p,
                     .packed = -1,
                     .sums = (float *)(void *)scratch,
                     .transposed = (uint32_t *)(void *)(scratch + SUMS_BYTES),
                     .x = (uint32_t *)(void *)(scratch + SUMS_BYTES + RUN_BYTES)};
    int32_t first = p->k_begin / CPU_PAIR;
    int32_t units = ((p->k_end ? p->k_end : p->w->k) - 1) / CPU_PAIR + 1 - first;
    // A column more for each part that has an odd number of them.
    int32_t fit = X_BYTES / 2 / (range_rows(p) + 2 * CPU_WEIGHT_PARTS);
    bool whole = fit >= LEAST_ROWS || fit >= p->rows;
    int32_t rows = !whole ? LEAST_ROWS : fit < MOST_ROWS ? fit : MOST_ROWS;
    int32_t blocks = (p->rows - 1) / rows + 1;
    int32_t most = whole ? 1 : SUMS_BYTES / (rows * CPU_PAIR * (int32_t)sizeof(float));
    // Where dy has to be packed once more for each piece, pieces are large.
    struct cpu_work work = {.total = blocks * units, .grain = 1};
    if (!whole)
        work.grain = (work.total / t->nt + 1) / 2 + 1;
    for (int32_t at, n; cpu_take(t, &work, &at, &n);)
        while (n > 0) {
            int32_t unit = at % units, take = units - unit < most ? units - unit : most;
            take = take < n ? take : n;
            set_block(&w, at / units * rows, rows);
            run_piece(&w, first + unit, take);
            at += take;
            n -= take;
        }
}
#else
typedef int no_content; // a translation unit must have a declaration
#endif

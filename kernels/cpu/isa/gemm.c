// SPDX-License-Identifier: Apache-2.0
// y = epilogue(x Wt + bias): sharing the work and finishing the sums. The products themselves are
// in gemm_float.c, gemm_bf16.c and gemm_quant.c.
//
// Order of the sums, the same for any number of rows, of threads and of calls:
// 1. Plain types: one chain of fused multiply-adds over k in order, in runs of GEMM_RUN columns
//    from 0; the runs' sums are added in order.
// 2. BF16 on avx512bf16: one chain over k of rounded activations (gemm_bf16.c says which).
// 3. Quantised types: the exact integer sum of a block of 32, times both scales, added in order of
//    the blocks, after it (Q4_1) the minimum's term.
// 4. Then bias, then the epilogue. Work is cut along rows and outputs, never along k.
#include "kernels/cpu/isa/gemm_internal.h"
#include "kernels/cpu/isa/math.h"

// ---- sharing the work

// Pairs [*p0, *p0 + result) of the segment that make columns of [begin, end).
static int32_t pairs_in_range(const struct cpu_segment *s, int32_t begin, int32_t end,
                              int32_t *p0) {
    int32_t per = s->gate_up ? CPU_PANEL : CPU_PAIR;
    int32_t first = begin - s->col, last = end - s->col, n = s->n;
    first = first < 0 ? 0 : first;
    last = last > n ? n : last;
    if (first >= last)
        return 0;
    *p0 = first / per;
    return (last - 1) / per + 1 - *p0;
}

struct share {
    const struct kn_gemm *p;
    int32_t pair0[CPU_WEIGHT_PARTS], pairs[CPU_WEIGHT_PARTS]; // of each segment
    int32_t per_block;                                        // pairs of all segments
    int32_t block_rows;
};

static void plan_share(struct share *s, const struct kn_gemm *p) {
    const struct kn_weight *w = p->w;
    int32_t begin, end;
    gemm_range(p, &begin, &end);
    s->p = p;
    s->per_block = 0;
    for (int i = 0; i < w->n_segments; i++) {
        s->pairs[i] = pairs_in_range(&w->segments[i], begin, end, &s->pair0[i]);
        s->per_block += s->pairs[i];
    }
    s->block_rows = w->form == KN_FORM_Q8 ? ISA(gemm_quant_rows)(w) : ISA(gemm_float_rows)(w);
}

void ISA(gemm_product)(const struct gemm_strip *s) {
    enum kn_dtype t = s->seg->dtype;
    if (cpu_dtype_quantised(t)) {
        ISA(gemm_quant)(s);
        return;
    }
#if defined(KN_ISA_AVX512BF16)
    if (t == KN_BF16) {
        ISA(gemm_bf16)(s);
        return;
    }
#endif
    ISA(gemm_float)(s);
}

// Units [at, at + n) of one block of rows, segment by segment.
static void run_units(const struct share *s, int32_t block, int32_t at, int32_t n, char *scratch,
                      struct gemm_packed *packed) {
    const struct kn_gemm *p = s->p;
    struct gemm_strip strip = {.p = p, .scratch = scratch, .packed = packed};
    strip.row0 = block * s->block_rows;
    strip.rows = p->rows - strip.row0 < s->block_rows ? p->rows - strip.row0 : s->block_rows;
    for (int i = 0; i < p->w->n_segments && n > 0; i++) {
        if (at >= s->pairs[i]) {
            at -= s->pairs[i];
            continue;
        }
        int32_t take = s->pairs[i] - at < n ? s->pairs[i] - at : n;
        strip.seg = &p->w->segments[i];
        strip.pair0 = s->pair0[i] + at;
        strip.pairs = take;
        ISA(gemm_product)(&strip);
        n -= take;
        at = 0;
    }
}

void ISA(cpu_gemm)(const void *params, struct cpu_task *t) {
    struct share s;
    plan_share(&s, params);
    int32_t blocks = (s.p->rows - 1) / s.block_rows + 1;
    // Blocks of rows one after the other: with many rows a thread keeps to its rows, with few to
    // its part of the weights.
    struct cpu_work work = {.total = blocks * s.per_block, .grain = 1};
    struct gemm_packed packed = {-1, -1};
    for (int32_t at, n; cpu_take(t, &work, &at, &n);)
        while (n > 0) {
            int32_t in_block = at % s.per_block;
            int32_t take = s.per_block - in_block < n ? s.per_block - in_block : n;
            run_units(&s, at / s.per_block, in_block, take, t->scratch, &packed);
            at += take;
            n -= take;
        }
}

// ---- finishing the sums

// One panel's place in y: lanes [lo, hi) go to columns col + lo ... .
struct place {
    int32_t col, lo, hi;
    v16f bias;
};

static struct place panel_place(const struct gemm_strip *s, int32_t pair, int half) {
    struct place at;
    int32_t begin, end, count = cpu_panel_columns(s->seg, pair, half, &at.col);
    gemm_range(s->p, &begin, &end);
    int32_t first = s->seg->gate_up ? pair * CPU_PANEL : at.col; // as ranges count
    if (s->p->epilogue == KN_GEMM_SWIGLU)
        at.col = first; // the column of silu(gate) * up
    at.lo = begin > first ? begin - first : 0;
    at.hi = end - first < count ? end - first : count;
    at.bias = v_zero();
    if (s->p->bias) {
        int32_t col;
        count = cpu_panel_columns(s->seg, pair, half, &col);
        at.bias = v_load_n((const float *)s->p->bias + col, count);
    }
    return at;
}

V_FN void put(float *y, const struct place *at, v16f v, bool add) {
    if (at->lo == 0 && at->hi == V_LANES) {
        v_store(y, add ? v_add(v_load(y), v) : v);
    } else if (at->lo == 0) {
        v_store_n(y, at->hi, add ? v_add(v_load_n(y, at->hi), v) : v);
    } else { // a stack's part does not start at a multiple of 32
        float lanes[V_LANES];
        v_store(lanes, v);
        for (int32_t i = at->lo; i < at->hi; i++)
            y[i] = add ? y[i] + lanes[i] : lanes[i];
    }
}

static void finish_pair(const struct gemm_strip *s, int32_t pair, const float *sums, int64_t ld) {
    const struct kn_gemm *p = s->p;
    struct place a = panel_place(s, pair, 0), b = panel_place(s, pair, 1);
    bool bias = p->bias != 0, add = p->epilogue == KN_GEMM_ADD;
    float *y = (float *)p->y + s->row0 * p->ldy;
    for (int32_t r = 0; r < s->rows; r++, y += p->ldy, sums += ld) {
        v16f va = v_load(sums), vb = v_load(sums + V_LANES);
        if (bias) {
            va = v_add(va, a.bias);
            vb = v_add(vb, b.bias);
        }
        if (p->epilogue == KN_GEMM_SWIGLU) {
            put(y + a.col, &a, v_mul(v_silu(va), vb), false);
            continue;
        }
        if (a.lo < a.hi)
            put(y + a.col, &a, va, add);
        if (b.lo < b.hi)
            put(y + b.col, &b, vb, add);
    }
}

void ISA(gemm_finish)(const struct gemm_strip *s, int32_t pair0, int32_t pairs, const float *sums) {
    int64_t ld = (int64_t)pairs * CPU_PAIR;
    for (int32_t i = 0; i < pairs; i++)
        finish_pair(s, pair0 + i, sums + i * CPU_PAIR, ld);
}

void ISA(gemm_fetch_y)(const struct gemm_strip *s, int32_t pair, int32_t r0, int32_t r1) {
    int32_t a, b;
    (void)cpu_panel_columns(s->seg, pair, 0, &a);
    (void)cpu_panel_columns(s->seg, pair, 1, &b);
    if (s->p->epilogue == KN_GEMM_SWIGLU)
        a = b = pair * CPU_PANEL;
    const float *y = (const float *)s->p->y + (s->row0 + r0) * s->p->ldy;
    for (int32_t r = r0; r < r1; r++, y += s->p->ldy) {
        __builtin_prefetch(y + a, 1, 2); // the second cache has room
        __builtin_prefetch(y + b, 1, 2);
    }
}

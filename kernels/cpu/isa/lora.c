// SPDX-License-Identifier: Apache-2.0
// The operation on a ragged batch whose sequences use different adapters, and dropout. A piece of work
// is a block of rows, or one part (module) of it: each run of rows with the same slot makes u = A x in scratch
// memory and adds scale * B u, so nothing is shared between pieces.
#include "kernels/cpu/isa/lora.h"
#include "kernels/cpu/isa/philox16.h"
#include <math.h>

enum {
    BLOCK_ROWS = 32,        // at most; the matrices come from a near cache after the first rows
    PIECES = 4,             // per thread, if there are rows enough
    FEATURES = 4 * V_LANES, // whose noise one call gives
    HEAD_BYTES = 4096,
};

void ISA(lora_dropout)(const struct kn_dropout *d, uint32_t module, int32_t row, const float *x,
                       float *out, int32_t begin, int32_t end) {
    uint64_t key = ((const uint64_t *)d->keys)[row];
    double limit = ceil((double)d->p * 0x1p32); // below 2^32, as p is below 1
    const v16i sign = vi_set1(INT32_MIN), least = vi_xor(vi_set1((int32_t)(uint32_t)limit), sign);
    const v16f keep = v_set1(1.0f / (1.0f - d->p)), zero = v_zero();
    int32_t lane[V_LANES];
    for (int i = 0; i < V_LANES; i++)
        lane[i] = i;
    for (int32_t f = begin / FEATURES * FEATURES; f < end; f += FEATURES) {
        v16i c[4] = {vi_add(vi_load(lane), vi_set1(f / 4)), vi_set1((int32_t)module), vi_zero(),
                     vi_zero()};
        philox16(c, key);
        for (int w = 0; w < 4; w++) {
            int32_t at = f + w * V_LANES, n = end - at;
            if (at < begin || n <= 0)
                continue;
            v16m dropped = vi_gt(least, vi_xor(c[w], sign));
            v_store_n(out + at, n, v_select(dropped, zero, v_mul(v_load_n(x + at, n), keep)));
        }
    }
}

// Rows [row, row + n) of one slot, part j.
static void run_rows(const struct kn_lora *p, const struct kn_lora_entry *e, int j, int32_t row,
                     int32_t n, float *scratch) {
    const float *x = (const float *)p->x + row * p->ldx;
    float *y = (float *)p->y + row * p->ldy + p->col[j], *u = scratch;
    int64_t ldx = p->ldx;
    if (p->dropout.p > 0) {
        float *dropped = scratch + (size_t)BLOCK_ROWS * KN_LORA_MAX_RANK;
        ldx = (p->k + V_LANES - 1) / V_LANES * V_LANES;
        for (int32_t i = 0; i < n; i++)
            ISA(lora_dropout)
        (&p->dropout, p->dropout.module + (uint32_t)j, row + i, x + i * p->ldx, dropped + i * ldx,
         0, p->k);
        x = dropped;
    }
    ISA(lora_shrink)((const float *)e->a, p->k, e->r, x, ldx, n, 1.0f, u, e->r);
    ISA(lora_expand)
    ((const float *)e->b, p->n[j], e->r, u, e->r, n, e->scale, y, p->ldy, 0, p->n[j]);
}

// The run of rows from `row` on that have one slot: returns its end.
static int32_t run_end(const struct kn_lora *p, int32_t row, int32_t end) {
    const int32_t *seq = (const int32_t *)p->batch->seq, *slot = (const int32_t *)p->batch->slot;
    int32_t s = slot[seq[row]], next = row + 1;
    while (next < end && slot[seq[next]] == s)
        next++;
    return next;
}

// The entry of a row's slot, NULL where there is nothing to add.
static const struct kn_lora_entry *entry_of(const struct kn_lora *p, int32_t row, int j) {
    int32_t s = ((const int32_t *)p->batch->slot)[((const int32_t *)p->batch->seq)[row]];
    if (s < 0 || s >= p->n_slots)
        return NULL;
    const struct kn_lora_entry *e =
        &((const struct kn_lora_entry *)p->entries)[(int64_t)j * p->n_slots + s];
    return e->r > 0 ? e : NULL;
}

// Memory has nothing to do while a row's sums are added up: it fetches where the next run begins.
static void fetch_head(const struct kn_lora *p, int32_t row, int j, int parts_end) {
    for (; j < parts_end; j++) {
        const struct kn_lora_entry *e = entry_of(p, row, j);
        for (int o = 0; e && o < HEAD_BYTES; o += 64)
            __builtin_prefetch((const char *)e->a + o, 0, 2);
        if (e)
            return;
    }
}

// Rows [begin, end) of parts [j0, j1), run by run.
static void block(const struct kn_lora *p, int j0, int j1, int32_t begin, int32_t end,
                  struct cpu_task *t) {
    for (int32_t row = begin, next; row < end; row = next) {
        next = run_end(p, row, end);
        if (next < end)
            fetch_head(p, next, j0, j1);
        if (((const int32_t *)p->batch->slot)[((const int32_t *)p->batch->seq)[row]] >=
            p->n_slots) {
            cpu_fail(t, ERR_INVALID);
            return;
        }
        for (int j = j0; j < j1; j++) {
            const struct kn_lora_entry *e = entry_of(p, row, j);
            if (e)
                run_rows(p, e, j, row, next - row, t->scratch);
        }
    }
}

// Rows of a block: enough pieces for all threads, and dropped rows fit the scratch memory.
static int32_t block_rows(const struct kn_lora *p, int nt) {
    int32_t n = p->rows / (nt * PIECES);
    if (p->dropout.p > 0) {
        size_t row = ((size_t)p->k + V_LANES) * sizeof(float);
        size_t fit = (CPU_SCRATCH_BYTES - BLOCK_ROWS * KN_LORA_MAX_RANK * sizeof(float)) / row;
        n = (size_t)n > fit ? (int32_t)fit : n;
    }
    n = n > BLOCK_ROWS ? BLOCK_ROWS : n;
    return n > 4 ? n / 4 * 4 : n > 1 ? n : 1;
}

void ISA(cpu_lora)(const void *params, struct cpu_task *t) {
    const struct kn_lora *p = params;
    int32_t n = block_rows(p, t->nt), blocks = (p->rows - 1) / n + 1;
    // The parts of a row follow one another in memory. They are split where there are few rows.
    int32_t split = blocks < PIECES * t->nt ? p->n_parts : 1;
    for (int32_t i; cpu_claim(t, blocks * split, &i);) {
        int32_t begin = i / split * n, end = p->rows - begin < n ? p->rows : begin + n;
        int j = split > 1 ? i % split : 0;
        block(p, j, split > 1 ? j + 1 : p->n_parts, begin, end, t);
    }
}

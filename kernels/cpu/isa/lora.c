// SPDX-License-Identifier: Apache-2.0
// The operation on a ragged batch whose sequences use different adapters, and dropout. A piece of
// work is a block of rows, or one part (module) of it: each run of rows with the same slot makes u
// = A x in scratch memory and adds scale * B u, so nothing is shared between pieces.
#include "kernels/cpu/isa/lora.h"
#include "kernels/cpu/isa/philox16.h"
#include <math.h>

enum {
    BLOCK_ROWS = 32,        // at most; the matrices come from a near cache after the first rows
    PIECES = 4,             // per thread, if there are rows enough
    FEATURES = 4 * V_LANES, // whose noise one call gives
    HEAD_BYTES = 8192,
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

// A run of rows with one slot, one part.
struct item {
    const struct kn_lora_entry *e;
    int32_t row, n;
    int j;
};

// `next`: what comes after it, NULL at the end.
static void run_rows(const struct kn_lora *p, const struct item *it, const struct item *next,
                     float *scratch) {
    const struct kn_lora_entry *e = it->e;
    const float *x = (const float *)p->x + it->row * p->ldx;
    float *y = (float *)p->y + it->row * p->ldy + p->col[it->j], *u = scratch;
    int64_t ldx = p->ldx;
    if (p->dropout.p > 0) {
        float *dropped = scratch + (size_t)BLOCK_ROWS * KN_LORA_MAX_RANK;
        ldx = (p->k + V_LANES - 1) / V_LANES * V_LANES;
        for (int32_t i = 0; i < it->n; i++)
            ISA(lora_dropout)
        (&p->dropout, p->dropout.module + (uint32_t)it->j, it->row + i, x + i * p->ldx,
         dropped + i * ldx, 0, p->k);
        x = dropped;
    }
    struct lora_matrix a = {(const void *)e->a, e->dtype, p->k, e->r, (const void *)e->b};
    struct lora_matrix b = {(const void *)e->b, e->dtype, p->n[it->j], e->r,
                            next ? (const void *)next->e->a : NULL};
    ISA(lora_shrink)(&a, x, ldx, it->n, 1.0f, u, e->r);
    ISA(lora_expand)(&b, u, e->r, it->n, e->scale, y, p->ldy, 0, p->n[it->j]);
}

static int32_t slot_of(const struct kn_lora *p, int32_t row) {
    return ((const int32_t *)p->batch->slot)[((const int32_t *)p->batch->seq)[row]];
}

// The run of rows from `row` on that have one slot: returns its end.
static int32_t run_end(const struct kn_lora *p, int32_t row, int32_t end) {
    int32_t s = slot_of(p, row), next = row + 1;
    while (next < end && slot_of(p, next) == s)
        next++;
    return next;
}

// Parts [j0, j1) of rows up to `end`, run by run.
struct range {
    const struct kn_lora *p;
    int j0, j1;
    int32_t end;
};

// Moves on to the next part of the run, or of the runs after it, that has something to add.
static bool next_item(const struct range *r, struct item *it, struct cpu_task *t) {
    for (;;) {
        if (it->n == 0 || ++it->j == r->j1) {
            it->row += it->n;
            if (it->row == r->end)
                return false;
            it->n = run_end(r->p, it->row, r->end) - it->row;
            it->j = r->j0;
        }
        int32_t s = slot_of(r->p, it->row);
        if (s >= r->p->n_slots) {
            cpu_fail(t, ERR_INVALID);
            return false;
        }
        const struct kn_lora_entry *entries = (const struct kn_lora_entry *)r->p->entries;
        it->e = s < 0 ? NULL : &entries[(int64_t)it->j * r->p->n_slots + s];
        if (it->e && it->e->r > 0)
            return true;
    }
}

static void block(const struct range *r, int32_t begin, struct cpu_task *t) {
    struct item it = {.row = begin};
    bool more = next_item(r, &it, t);
    for (int o = 0; more && o < HEAD_BYTES; o += 64) // later ones are fetched by those before them
        __builtin_prefetch((const char *)it.e->a + o, 0, 3);
    while (more) {
        struct item next = it;
        more = next_item(r, &next, t);
        run_rows(r->p, &it, more ? &next : NULL, t->scratch);
        it = next;
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
        struct range r = {p, j, split > 1 ? j + 1 : p->n_parts, end};
        block(&r, begin, t);
    }
}

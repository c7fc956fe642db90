// SPDX-License-Identifier: Apache-2.0
// What the products share. A strip is a block of rows of x times some pairs of panels of one
// segment; its sums are made in the thread's scratch memory and then finished: bias, epilogue,
// columns outside the asked range left alone. See gemm.c for the order of the sums.
#pragma once
#include "kernels/cpu/isa/vec.h"
#include "kernels/cpu/weight.h"

enum { GEMM_RUN = 256 }; // sums over k of plain types are made in runs of this many columns

// Which activations lie packed in a thread's scratch memory, from one strip of a product to the
// next. A block of rows has one size within a product.
struct gemm_packed {
    int32_t row0, column; // -1: none
};

// What somebody else reads after a strip, fetched into the second cache while its tiles run.
// Evenly, line by line: when its queue is full the CPU drops what it is asked to fetch.
enum { GEMM_FETCH_LINE = 64 };
struct gemm_range {
    const char *origin; // line i, counted through all ranges, is at origin + 64 i
    uint32_t end;       // lines up to the end of this range
};
struct gemm_fetch {
    const struct gemm_range *range; // the one in hand
    uint32_t n;                     // lines of all, below 1 << 15
    uint32_t done, step;            // 2^-16 of a line: fetched so far; with each step of a tile
};
// For a strip of so many steps: ready before it ends, so that the last ones arrive in time.
static inline void gemm_fetch_plan(struct gemm_fetch *f, uint32_t steps) {
    steps -= steps / 8;
    f->step = (uint32_t)(((uint64_t)(f->n - (f->done >> 16)) << 16) / (steps ? steps : 1)) + 1;
}
// One step, from `done` on; returns where the next one goes on.
V_FN uint32_t gemm_fetch_step(struct gemm_fetch *f, uint32_t done) {
    uint32_t to = done + f->step, all = f->n << 16;
    to = to < all ? to : all;
    for (uint32_t i = done >> 16; i < to >> 16; i++) {
        while (i >= f->range->end)
            f->range++;
        __builtin_prefetch(f->range->origin + (size_t)i * GEMM_FETCH_LINE, 0, 2);
    }
    return to;
}

struct gemm_strip {
    const struct kn_gemm *p;
    const struct cpu_segment *seg;
    int32_t pair0, pairs;
    int32_t row0, rows;
    char *scratch; // CPU_SCRATCH_BYTES
    struct gemm_packed *packed;
    struct gemm_fetch *fetch; // or NULL; products that do not heed it leave it as it is
};

// Tiles of nearly equal height: the first row of tile i of n.
static inline int32_t gemm_tile_row(int32_t rows, int32_t n, int32_t i) {
    return (int32_t)((int64_t)rows * i / n);
}

// Columns of y to make: [begin, end); of gate and of up where they are stacked.
static inline void gemm_range(const struct kn_gemm *p, int32_t *begin, int32_t *end) {
    int32_t all = p->w->gate_up ? p->w->n / 2 : p->w->n;
    *begin = p->n_begin;
    *end = p->n_end ? p->n_end : all;
}

// Largest pieces that the scratch memory and the caches take; any size gives the same bits.
int32_t ISA(gemm_float_rows)(const struct kn_weight *w);
int32_t ISA(gemm_quant_rows)(const struct kn_weight *w);
void ISA(gemm_float)(const struct gemm_strip *s);
void ISA(gemm_bf16)(const struct gemm_strip *s); // avx512bf16 only
void ISA(gemm_quant)(const struct gemm_strip *s);
void ISA(gemm_product)(const struct gemm_strip *s); // the one for the segment's type
// sums: [rows][pairs][32].
void ISA(gemm_finish)(const struct gemm_strip *s, int32_t pair0, int32_t pairs, const float *sums);
// Where many rows are finished at once: fetches what the pair makes of rows [r0, r1) of the strip.
void ISA(gemm_fetch_y)(const struct gemm_strip *s, int32_t pair, int32_t r0, int32_t r1);

// The inner product of the plain types, also used by the transposed product: `rows` rows of x times
// a pair of panels in f32 ([k][2][16]); sums [rows][ld_sums], 32 of them. `add`: on top of earlier
// runs.
void ISA(gemm_f32_tile)(const float *w, int32_t k, const float *x, int64_t ldx, int32_t rows,
                        float *sums, int64_t ld_sums, bool add);

#if defined(KN_ISA_AVX512BF16)
// gemm_bf16.c, also used by the transposed product: up to GEMM_BF16_ROWS rows of pairs of bf16
// times 32 columns. One chain for each sum, two terms a step.
enum { GEMM_BF16_ROWS = 12 };
struct gemm_bf16_tile {
    const uint8_t *w;  // two vectors of pairs for each step
    int32_t steps;     // of two terms
    const uint32_t *x; // packed: [steps][rows]
    float *sums;
    int64_t ld_sums;
    bool add; // go on with earlier sums
    // What is prefetched while the tile goes on by one step, and how fast that moves.
    const uint8_t *ahead;
    size_t ahead_step;
    struct gemm_fetch *fetch; // or NULL
};
void ISA(gemm_bf16_tile)(int32_t rows, const struct gemm_bf16_tile *a);
// Rounds the rows of one tile, `len` values of each: out [(len + 1) / 2][rows], an odd value beside
// zero. Writes up to 15 words more.
void ISA(gemm_bf16_pack)(const float *x, int64_t ldx, int32_t rows, int32_t len, uint32_t *out);
#endif

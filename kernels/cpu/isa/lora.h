// SPDX-License-Identifier: Apache-2.0
// The two products with an adapter's matrix M in the layout of kernels/cpu/lora_layout.h, and
// dropout. Serving (lora.c) and backward share them, so both have the same bits.
//
// Order of the sums: u[row][j] is 16 chains of v_fma over the panels, one per lane, added by v_sum.
// y[row][c] is one chain over j from 0, which is then added to y by one v_fma with the scale. Rows
// and panels are independent of one another, so neither depends on how they are cut.
#pragma once
#include "kernels/cpu/isa/vec.h"
#include "kernels/cpu/lora_layout.h"

// M: `wide` x r, of KN_F32, KN_BF16 or KN_F16.
struct lora_matrix {
    const void *values;
    enum kn_dtype dtype;
    int32_t wide, r;
    const void *next; // what is read afterwards, and fetched as this one ends; NULL: not known
};
static inline struct lora_matrix lora_f32(kn_addr values, int32_t wide, int32_t r) {
    return (struct lora_matrix){(const void *)values, KN_F32, wide, r, NULL};
}

// u[row][j] = scale * sum over c of x[row][c] M(c, j) for row < rows, j < r. Reads M once for each
// few rows.
void ISA(lora_shrink)(const struct lora_matrix *m, const float *x, int64_t ldx, int32_t rows,
                      float scale, float *u, int64_t ldu);
// y[row][c] += scale * sum over j of u[row][j] M(c, j) for c in [begin, end); begin is a multiple
// of 16, end too or it is `wide`. u and y begin at row 0 and column 0.
void ISA(lora_expand)(const struct lora_matrix *m, const float *u, int64_t ldu, int32_t rows,
                      float scale, float *y, int64_t ldy, int32_t begin, int32_t end);

// sums[row][c] = what lora_expand multiplies by the scale and adds, for all c < wide.
void ISA(lora_expand_sums)(const struct lora_matrix *m, const float *u, int64_t ldu, int32_t rows,
                           float *sums, int64_t ld);

// Dropout of row `row` of a batch, columns [begin, end) (begin as above): out[c] = x[c] / (1 - p)
// where (keys[row], module, c) is kept, else 0. Its own transpose, so backward applies it to
// gradients. out may be x. Both begin at column 0. The module counts, whatever d->module says.
void ISA(lora_dropout)(const struct kn_dropout *d, uint32_t module, int32_t row, const float *x,
                       float *out, int32_t begin, int32_t end);

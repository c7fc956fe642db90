// SPDX-License-Identifier: Apache-2.0
// f32 products with their sums in registers, what backward is made of: out[m][n] = or += A B, one
// chain of v_fma over `len` for each value, in order. B's rows are contiguous; A is read by rows
// (ISA(tile_rows): a[i * lda + c]) or by columns (ISA(tile_cols): a[c * lda + i]), so nothing has
// to be transposed for Aᵀ B. A chain that goes on from `out` has the bits of one that never
// stopped.
#pragma once
#include "kernels/cpu/isa/vec.h"

// TILE_MR x TILE_NV vectors of sums fit into the registers; where there is one vector only,
// TILE_TALL rows do, a divisor of 16.
#if defined(KN_ISA_AVX512)
enum { TILE_MR = 6, TILE_NV = 4, TILE_TALL = 16 };
#elif defined(KN_ISA_AVX2)
enum { TILE_MR = 6, TILE_NV = 1, TILE_TALL = 4 };
#else
enum { TILE_MR = 2, TILE_NV = 1, TILE_TALL = 2 };
#endif

struct tile {
    const float *a;
    int64_t lda;
    const float *b; // readable in whole vectors
    int64_t ldb;
    float *out;
    int64_t ldo;
    int32_t len;
    bool go_on; // the chains start from what `out` has, not from 0
};

// out[m][n] for any m, n; values of `out` beyond n are not touched.
void ISA(tile_rows)(const struct tile *t, int32_t m, int32_t n);
void ISA(tile_cols)(const struct tile *t, int32_t m, int32_t n);
// The same for one vector: out[m][16], all of it stored.
void ISA(tile_rows_tall)(const struct tile *t, int32_t m);
void ISA(tile_cols_tall)(const struct tile *t, int32_t m);

// SPDX-License-Identifier: Apache-2.0
// How the CPU backend keeps the matrices of an adapter, A [r, k] and B [n, r], in f32 or, for
// serving, in 16 bits. Both have one layout, in panels of 16 along their wide side (k of A, n of
// B): for each panel r vectors,
// [ceil(wide / 16)][r][16]. So
//
//   A: value (j, c) lies at panel c / 16, vector j, lane c mod 16
//   B: value (c, j) lies at panel c / 16, vector j, lane c mod 16
//
// Only the last panel may have lanes beyond the wide side; they hold zero. Ranks are not padded.
//
// With M for either of them there are two products only (isa/lora.h):
//   u[row][j] = sum over c of x[row][c] M(c, j)    A x, and backward dy B
//   y[row][c] += sum over j of u[row][j] M(c, j)   B u, and backward du A
#pragma once
#include "kernels/lora.h"

enum { CPU_LORA_PANEL = 16 };

static inline int32_t cpu_lora_panels(int32_t wide) {
    return (wide - 1) / CPU_LORA_PANEL + 1;
}

// Floats of a matrix.
static inline size_t cpu_lora_values(int32_t wide, int32_t r) {
    return (size_t)cpu_lora_panels(wide) * CPU_LORA_PANEL * (size_t)r;
}

// lora_layout.c: entries of kn_ops. rows, cols: [r, k] for A, [n, r] for B; 0 bytes where a size is
// not positive, r is over KN_LORA_MAX_RANK or the wide side over CPU_LORA_MOST_WIDE.
enum { CPU_LORA_MOST_WIDE = 1 << 22 };
size_t cpu_lora_bytes(enum kn_lora_side side, int32_t rows, int32_t cols);
void cpu_lora_pack(enum kn_lora_side side, int32_t rows, int32_t cols, const float *src, void *dst);
void cpu_lora_unpack(enum kn_lora_side side, int32_t rows, int32_t cols, const void *src,
                     float *dst);
void cpu_lora_narrow(enum kn_dtype t, const void *src, size_t bytes, void *dst);
void cpu_lora_widen(enum kn_dtype t, const void *src, size_t bytes, void *dst);

// SPDX-License-Identifier: Apache-2.0
// The integer dot product of one block: mr rows of activations with a pair of panels (32 weight
// rows), exact for every input, so that no sum may saturate.
//
// dot_block(bits, start, mr, w, quants, x, ldx, acc): acc[i][h] = start of row i + sum over the
// block's 32 columns of (unsigned weight) * (signed activation), 16 weight rows a vector.
//   bits 4: vectors of nibbles as in weight.h (panels 256 bytes apart), 8: bytes (512 bytes apart)
//   start: what undoes the weights' offset
// D_ROWS: the most rows of a tile.
#pragma once
#include "kernels/cpu/isa/vec.h"

enum dot_start { DOT_FROM_0, DOT_FROM_OFF4, DOT_FROM_OFF8 };

V_FN int32_t dot_start_value(const enum dot_start s, const struct cpu_q8_block *x) {
    return s == DOT_FROM_OFF8 ? x->off8 : s == DOT_FROM_OFF4 ? x->off4 : 0;
}

// Activations 4t..4t+3 as one word.
V_FN int32_t dot_word(const struct cpu_q8_block *x, int t) {
    int32_t v;
    memcpy(&v, x->q + 4 * t, sizeof v);
    return v;
}

#if defined(KN_ISA_AVX512)
#include "kernels/cpu/isa/dot_avx512.h"
#elif defined(KN_ISA_AVX2)
#include "kernels/cpu/isa/dot_avx2.h"
#else
#include "kernels/cpu/isa/dot_portable.h"
#endif

// SPDX-License-Identifier: Apache-2.0
// The integer dot product of one block: mr rows of activations with a pair of panels (32 weight
// rows), exact for every input, so that no sum may saturate.
//
// dot_block(bits, start, mr, w, quants, x, ldx, acc): acc[i][h] = start of row i + sum over the
// block's 32 columns of (unsigned weight) * (signed activation), 16 weight rows a vector.
//   bits 4: vectors of nibbles as in weight.h (panels 256 bytes apart), 8: bytes (512 bytes apart)
//   start: what undoes the weights' offset
//
// dot_four_columns(bits, w, t, x): sum over columns 4t..4t+3 of one panel's weights times the bytes
// of x, 16 weight rows.
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

// What outliers add to dot_block's sums. Most blocks have none.
V_FN void dot_outliers(const int bits, const int mr, const uint8_t *w, const struct cpu_q8_block *x,
                       int64_t ldx, v16i acc[][2]) {
    const size_t panel = bits == 8 ? 512 : 256;
    int32_t any = 0;
    V_UNROLL
    for (int i = 0; i < mr; i++)
        any |= x[i * ldx].high;
    if (__builtin_expect(any == 0, 1))
        return;
    V_UNROLL
    for (int i = 0; i < mr; i++) {
        int32_t high = x[i * ldx].high, t = x[i * ldx].high_word;
        if (__builtin_expect(high == 0, 1))
            continue;
        V_UNROLL
        for (int h = 0; h < 2; h++) {
            v16i sum = dot_four_columns(bits, w + (size_t)h * panel, t, high);
            acc[i][h] = vi_add(acc[i][h], vi_sll(sum, 7));
        }
    }
}
_Static_assert(CPU_Q8_HIGH == 1 << 7, "dot_outliers shifts by that");

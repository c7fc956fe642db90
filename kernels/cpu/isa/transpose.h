// SPDX-License-Identifier: Apache-2.0
// Transposes 16 vectors of 16 lanes: afterwards lane i of v[j] is what lane j of v[i] was.
#pragma once
#include "kernels/cpu/isa/vec.h"

#if defined(KN_ISA_AVX512)
V_FN void v_transpose(v16f v[V_LANES]) {
    __m512 t[V_LANES];
    V_UNROLL
    for (int i = 0; i < 16; i += 2) { // pairs of rows: 2 x 2
        t[i] = _mm512_unpacklo_ps(v[i], v[i + 1]);
        t[i + 1] = _mm512_unpackhi_ps(v[i], v[i + 1]);
    }
    V_UNROLL
    for (int i = 0; i < 16; i += 4) { // 4 x 4 within each 128-bit part
        for (int h = 0; h < 2; h++) {
            __m512d a = _mm512_castps_pd(t[i + h]), b = _mm512_castps_pd(t[i + h + 2]);
            v[i + 2 * h] = _mm512_castpd_ps(_mm512_unpacklo_pd(a, b));
            v[i + 2 * h + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(a, b));
        }
    }
    // v[4 * g + c] now has, in its part l, column 4 * l + c of rows 4 * g to 4 * g + 3.
    V_UNROLL
    for (int c = 0; c < 4; c++) {
        __m512 a = _mm512_shuffle_f32x4(v[c], v[4 + c], 0x44);
        __m512 b = _mm512_shuffle_f32x4(v[8 + c], v[12 + c], 0x44);
        __m512 d = _mm512_shuffle_f32x4(v[c], v[4 + c], 0xee);
        __m512 e = _mm512_shuffle_f32x4(v[8 + c], v[12 + c], 0xee);
        t[c] = _mm512_shuffle_f32x4(a, b, 0x88);
        t[4 + c] = _mm512_shuffle_f32x4(a, b, 0xdd);
        t[8 + c] = _mm512_shuffle_f32x4(d, e, 0x88);
        t[12 + c] = _mm512_shuffle_f32x4(d, e, 0xdd);
    }
    V_UNROLL
    for (int i = 0; i < 16; i++)
        v[i] = t[i];
}
#else
V_FN void v_transpose(v16f v[V_LANES]) {
    float rows[V_LANES][V_LANES], columns[V_LANES][V_LANES];
    for (int i = 0; i < V_LANES; i++)
        v_store(rows[i], v[i]);
    for (int i = 0; i < V_LANES; i++)
        for (int j = 0; j < V_LANES; j++)
            columns[i][j] = rows[j][i];
    for (int i = 0; i < V_LANES; i++)
        v[i] = v_load(columns[i]);
}
#endif

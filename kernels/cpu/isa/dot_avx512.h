// SPDX-License-Identifier: Apache-2.0
// The block's dot product with VPDPBUSD: four products of an unsigned and a signed byte are added
// to a 32-bit lane without saturation (at most 32 * 255 * 128 in all). See dot.h.
#pragma once

enum { D_ROWS = 6 };

V_FN void dot_four(const int mr, const int t, __m512i w0, __m512i w1, const struct cpu_q8_block *x,
                   int64_t ldx, v16i acc[][2]) {
    V_UNROLL
    for (int i = 0; i < mr; i++) {
        __m512i a = _mm512_set1_epi32(dot_word(&x[i * ldx], t));
        acc[i][0] = _mm512_dpbusd_epi32(acc[i][0], w0, a);
        acc[i][1] = _mm512_dpbusd_epi32(acc[i][1], w1, a);
    }
}

V_FN void dot_block(const int bits, const enum dot_start start, const int mr, const uint8_t *w,
                    const struct cpu_q8_block *x, int64_t ldx, v16i acc[][2]) {
    const size_t panel = bits == 8 ? 512 : 256;
    V_UNROLL
    for (int i = 0; i < mr; i++)
        acc[i][0] = acc[i][1] = vi_set1(dot_start_value(start, &x[i * ldx]));
    if (bits == 8) {
        V_UNROLL
        for (int t = 0; t < 8; t++)
            dot_four(mr, t, vi_load(w + t * 64), vi_load(w + panel + t * 64), x, ldx, acc);
        return;
    }
    const __m512i low = _mm512_set1_epi8(15);
    V_UNROLL
    for (int t = 0; t < 4; t++) {
        __m512i r0 = vi_load(w + t * 64), r1 = vi_load(w + panel + t * 64);
        dot_four(mr, t, vi_and(r0, low), vi_and(r1, low), x, ldx, acc);
        dot_four(mr, t + 4, vi_and(vi_srl(r0, 4), low), vi_and(vi_srl(r1, 4), low), x, ldx, acc);
    }
}

V_FN v16i dot_four_columns(const int bits, const uint8_t *w, int32_t t, int32_t x) {
    __m512i r;
    if (bits == 8)
        r = vi_load(w + t * 64);
    else
        r = vi_and(_mm512_srl_epi32(vi_load(w + t % 4 * 64), _mm_cvtsi32_si128(t & 4)),
                   _mm512_set1_epi8(15));
    return _mm512_dpbusd_epi32(_mm512_setzero_si512(), r, _mm512_set1_epi32(x));
}

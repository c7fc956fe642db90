// SPDX-License-Identifier: Apache-2.0
// The block's dot product with VPMADDUBSW on nibbles. That instruction adds two products in 16 bits
// and saturates, so bytes are taken as 16 * high + low: a nibble times a signed byte is at most
// 15 * 128, and all sixteen products that meet in a 16-bit lane over the block at most 30720. See
// dot.h.
#pragma once

enum { D_ROWS = 4 };

// Two partial sums of 16-bit lanes: of the low nibbles and of the high ones.
struct dot_half {
    __m256i lo[D_ROWS], hi[D_ROWS];
};

V_FN __m256i dot_nibbles(__m256i sum, __m256i nibbles, int32_t x) {
    return _mm256_add_epi16(sum, _mm256_maddubs_epi16(nibbles, _mm256_set1_epi32(x)));
}

// Eight weight rows (half a panel) of the block.
V_FN void dot_eight(const int bits, const int mr, const uint8_t *w, const struct cpu_q8_block *x,
                    int64_t ldx, struct dot_half *s) {
    const __m256i low = _mm256_set1_epi8(15);
    const int vectors = bits == 8 ? 8 : 4;
    V_UNROLL
    for (int i = 0; i < mr; i++)
        s->lo[i] = s->hi[i] = _mm256_setzero_si256();
    V_UNROLL
    for (int t = 0; t < vectors; t++) {
        __m256i r = _mm256_load_si256((const __m256i *)(const void *)(w + t * 64));
        __m256i lo = _mm256_and_si256(r, low);
        __m256i hi = _mm256_and_si256(_mm256_srli_epi16(r, 4), low);
        V_UNROLL
        for (int i = 0; i < mr; i++) {
            s->lo[i] = dot_nibbles(s->lo[i], lo, dot_word(&x[i * ldx], t));
            s->hi[i] = dot_nibbles(s->hi[i], hi, dot_word(&x[i * ldx], bits == 8 ? t : t + 4));
        }
    }
}

V_FN __m256i dot_sum(const int bits, __m256i lo, __m256i hi, int32_t start) {
    const __m256i ones = _mm256_set1_epi16(1);
    __m256i a = _mm256_madd_epi16(lo, ones), b = _mm256_madd_epi16(hi, ones);
    if (bits == 8)
        b = _mm256_slli_epi32(b, 4);
    return _mm256_add_epi32(_mm256_add_epi32(a, b), _mm256_set1_epi32(start));
}

V_FN void dot_block(const int bits, const enum dot_start start, const int mr, const uint8_t *w,
                    const struct cpu_q8_block *x, int64_t ldx, v16i acc[][2]) {
    const size_t panel = bits == 8 ? 512 : 256;
    V_UNROLL
    for (int h = 0; h < 2; h++) {
        struct dot_half s;
        dot_eight(bits, mr, w + (size_t)h * panel, x, ldx, &s);
        V_UNROLL
        for (int i = 0; i < mr; i++)
            acc[i][h].a = dot_sum(bits, s.lo[i], s.hi[i], dot_start_value(start, &x[i * ldx]));
        dot_eight(bits, mr, w + (size_t)h * panel + 32, x, ldx, &s);
        V_UNROLL
        for (int i = 0; i < mr; i++)
            acc[i][h].b = dot_sum(bits, s.lo[i], s.hi[i], dot_start_value(start, &x[i * ldx]));
    }
}

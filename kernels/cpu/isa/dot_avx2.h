// SPDX-License-Identifier: Apache-2.0
// The block's dot product in AVX2, whose multiply of bytes (VPMADDUBSW) adds two products in 16
// bits and saturates. See dot.h.
//   Nibbles: that instruction is exact: a product is at most 15 * 128, and all sixteen that meet in
//   a 16-bit lane over the block at most 30720.
//   Bytes: even and odd columns apart as 16-bit values, which VPMADDWD multiplies and adds in 32.
#pragma once

enum { D_ROWS = 4 };

// Unrolled, GCC regroups the additions into trees and spills their parts.
#if defined(__clang__)
#define DOT_ROLLED _Pragma("clang loop unroll(disable)")
#else
#define DOT_ROLLED _Pragma("GCC unroll 1")
#endif

V_FN __m256i dot_load(const void *p) {
    return _mm256_loadu_si256((const __m256i *)p);
}

// Eight weight rows, 4-bit: 32-bit sums of mr rows.
V_FN void dot_eight_nibbles(const int mr, const uint8_t *w, const struct cpu_q8_block *x,
                            int64_t ldx, __m256i *sums) {
    const __m256i low = _mm256_set1_epi8(15), ones = _mm256_set1_epi16(1);
    __m256i lo[D_ROWS], hi[D_ROWS];
    V_UNROLL
    for (int i = 0; i < mr; i++)
        lo[i] = hi[i] = _mm256_setzero_si256();
    DOT_ROLLED
    for (int t = 0; t < 4; t++) {
        __m256i r = dot_load(w + t * 64);
        __m256i a = _mm256_and_si256(r, low), b = _mm256_and_si256(_mm256_srli_epi16(r, 4), low);
        V_UNROLL
        for (int i = 0; i < mr; i++) {
            __m256i xa = _mm256_set1_epi32(dot_word(&x[i * ldx], t));
            __m256i xb = _mm256_set1_epi32(dot_word(&x[i * ldx], t + 4));
            lo[i] = _mm256_add_epi16(lo[i], _mm256_maddubs_epi16(a, xa));
            hi[i] = _mm256_add_epi16(hi[i], _mm256_maddubs_epi16(b, xb));
        }
    }
    V_UNROLL
    for (int i = 0; i < mr; i++)
        sums[i] = _mm256_add_epi32(_mm256_madd_epi16(lo[i], ones), _mm256_madd_epi16(hi[i], ones));
}

// A block of activations as 16-bit values: of each four, the even and the odd ones.
struct dot_words {
    _Alignas(32) int32_t even[8], odd[8];
};

V_FN void dot_split(const struct cpu_q8_block *x, struct dot_words *out) {
    __m256i q = dot_load(x->q);
    __m256i even = _mm256_srai_epi16(_mm256_slli_epi16(q, 8), 8), odd = _mm256_srai_epi16(q, 8);
    _mm256_store_si256((__m256i *)(void *)out->even, even);
    _mm256_store_si256((__m256i *)(void *)out->odd, odd);
}

// Eight weight rows, 8-bit.
V_FN void dot_eight_bytes(const int mr, const uint8_t *w, const struct dot_words x[D_ROWS],
                          __m256i *sums) {
    const __m256i low = _mm256_set1_epi16(255);
    V_UNROLL
    for (int i = 0; i < mr; i++)
        sums[i] = _mm256_setzero_si256();
    DOT_ROLLED
    for (int t = 0; t < 8; t++) {
        __m256i r = dot_load(w + t * 64);
        __m256i even = _mm256_and_si256(r, low), odd = _mm256_srli_epi16(r, 8);
        V_UNROLL
        for (int i = 0; i < mr; i++) {
            __m256i a = _mm256_madd_epi16(even, _mm256_set1_epi32(x[i].even[t]));
            __m256i b = _mm256_madd_epi16(odd, _mm256_set1_epi32(x[i].odd[t]));
            sums[i] = _mm256_add_epi32(sums[i], _mm256_add_epi32(a, b));
        }
    }
}

V_FN void dot_block(const int bits, const enum dot_start start, const int mr, const uint8_t *w,
                    const struct cpu_q8_block *x, int64_t ldx, v16i acc[][2]) {
    const size_t panel = bits == 8 ? 512 : 256;
    struct dot_words words[D_ROWS];
    if (bits == 8) {
        V_UNROLL
        for (int i = 0; i < mr; i++)
            dot_split(&x[i * ldx], &words[i]);
    }
    for (size_t e = 0; e < 4; e++) { // eight rows each: both halves of both panels
        const uint8_t *we = w + e / 2 * panel + e % 2 * 32;
        __m256i sums[D_ROWS];
        if (bits == 8)
            dot_eight_bytes(mr, we, words, sums);
        else
            dot_eight_nibbles(mr, we, x, ldx, sums);
        V_UNROLL
        for (int i = 0; i < mr; i++) {
            sums[i] =
                _mm256_add_epi32(sums[i], _mm256_set1_epi32(dot_start_value(start, &x[i * ldx])));
            memcpy((char *)acc[i] + e * sizeof sums[i], &sums[i], sizeof sums[i]);
        }
    }
}

V_FN v16i dot_four_columns(const int bits, const uint8_t *w, int32_t t, int32_t x) {
    const __m256i low = _mm256_set1_epi16(255), nibbles = _mm256_set1_epi8(15);
    const __m256i both = _mm256_set1_epi32(x);
    const __m256i even = _mm256_srai_epi16(_mm256_slli_epi16(both, 8), 8);
    const __m256i odd = _mm256_srai_epi16(both, 8);
    __m256i sums[2];
    for (int e = 0; e < 2; e++) { // eight rows each
        __m256i r;
        if (bits == 8)
            r = dot_load(w + t * 64 + e * 32);
        else
            r = _mm256_and_si256(
                _mm256_srl_epi32(dot_load(w + t % 4 * 64 + e * 32), _mm_cvtsi32_si128(t & 4)),
                nibbles);
        sums[e] = _mm256_add_epi32(_mm256_madd_epi16(_mm256_and_si256(r, low), even),
                                   _mm256_madd_epi16(_mm256_srli_epi16(r, 8), odd));
    }
    return vi_load(sums);
}

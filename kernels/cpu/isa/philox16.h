// SPDX-License-Identifier: Apache-2.0
// Philox4x32-10 (kernels/philox.h) for 16 counters at a time, with one key.
#pragma once
#include "kernels/cpu/isa/vec.h"

// The high halves of the 64-bit products of unsigned lanes with m; vi_mul gives the low ones.
V_FN v16i philox_high(v16i a, uint32_t m) {
#if defined(KN_ISA_AVX512)
    __m512i k = _mm512_set1_epi64(m);
    __m512i even = _mm512_srli_epi64(_mm512_mul_epu32(a, k), 32);
    __m512i odd = _mm512_mul_epu32(_mm512_srli_epi64(a, 32), k);
    return _mm512_mask_blend_epi32(0xaaaa, even, odd);
#elif defined(KN_ISA_AVX2)
    __m256i k = _mm256_set1_epi64x(m), x[2] = {a.a, a.b};
    for (int i = 0; i < 2; i++) {
        __m256i even = _mm256_srli_epi64(_mm256_mul_epu32(x[i], k), 32);
        __m256i odd = _mm256_mul_epu32(_mm256_srli_epi64(x[i], 32), k);
        x[i] = _mm256_blend_epi32(even, odd, 0xaa);
    }
    return v2_i(x[0], x[1]);
#else
    uint32_t x[V_LANES];
    vi_store(x, a);
    for (int i = 0; i < V_LANES; i++)
        x[i] = (uint32_t)((uint64_t)x[i] * m >> 32);
    return vi_load(x);
#endif
}

// c: the four words of each counter, then the four random words.
V_FN void philox16(v16i c[4], uint64_t key) {
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
    for (int round = 0; round < 10; round++) {
        const uint32_t m0 = 0xd2511f53u, m1 = 0xcd9e8d57u;
        v16i high0 = philox_high(c[0], m0), low0 = vi_mul(c[0], vi_set1((int32_t)m0));
        v16i high1 = philox_high(c[2], m1), low1 = vi_mul(c[2], vi_set1((int32_t)m1));
        c[0] = vi_xor(vi_xor(high1, c[1]), vi_set1((int32_t)k0));
        c[1] = low1;
        c[2] = vi_xor(vi_xor(high0, c[3]), vi_set1((int32_t)k1));
        c[3] = low0;
        k0 += 0x9e3779b9u;
        k1 += 0xbb67ae85u;
    }
}

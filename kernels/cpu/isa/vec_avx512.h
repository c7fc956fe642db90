// SPDX-License-Identifier: Apache-2.0
// 16-lane vectors on AVX-512 (F, BW, DQ, VL): one zmm register each. See vec.h for the meaning.
#pragma once
#include <immintrin.h>

typedef __m512 v16f;
typedef __m512i v16i;
typedef __mmask16 v16m;

V_FN v16m vm_first(int32_t n) { // the first n lanes; n may be out of [0, 16]
    return (v16m)(n >= 16 ? 0xffffu : n <= 0 ? 0u : (1u << n) - 1u);
}
V_FN v16m vm_and(v16m a, v16m b) {
    return (v16m)(a & b);
}
V_FN v16m vm_or(v16m a, v16m b) {
    return (v16m)(a | b);
}
V_FN v16m vm_not(v16m a) {
    return (v16m)~a;
}
V_FN uint32_t vm_bits(v16m a) { // lane i is bit i
    return a;
}
V_FN v16m vm_from_bits(uint32_t bits) {
    return (v16m)bits;
}

V_FN v16f v_zero(void) {
    return _mm512_setzero_ps();
}
V_FN v16f v_set1(float f) {
    return _mm512_set1_ps(f);
}
V_FN v16f v_load(const float *p) {
    return _mm512_loadu_ps(p);
}
V_FN void v_store(float *p, v16f a) {
    _mm512_storeu_ps(p, a);
}
V_FN v16f v_load_n(const float *p, int32_t n) {
    return _mm512_maskz_loadu_ps(vm_first(n), p);
}
V_FN void v_store_n(float *p, int32_t n, v16f a) {
    _mm512_mask_storeu_ps(p, vm_first(n), a);
}
V_FN v16f v_add(v16f a, v16f b) {
    return _mm512_add_ps(a, b);
}
V_FN v16f v_sub(v16f a, v16f b) {
    return _mm512_sub_ps(a, b);
}
V_FN v16f v_mul(v16f a, v16f b) {
    return _mm512_mul_ps(a, b);
}
V_FN v16f v_div(v16f a, v16f b) {
    return _mm512_div_ps(a, b);
}
V_FN v16f v_sqrt(v16f a) {
    return _mm512_sqrt_ps(a);
}
V_FN v16f v_fma(v16f a, v16f b, v16f c) { // a * b + c
    return _mm512_fmadd_ps(a, b, c);
}
V_FN v16f v_fnma(v16f a, v16f b, v16f c) { // c - a * b
    return _mm512_fnmadd_ps(a, b, c);
}
V_FN v16f v_min(v16f a, v16f b) { // a < b ? a : b, so b where either is NaN
    return _mm512_min_ps(a, b);
}
V_FN v16f v_max(v16f a, v16f b) { // a > b ? a : b
    return _mm512_max_ps(a, b);
}
V_FN v16f v_rint(v16f a) { // to nearest even; |a| < 2^22
    return _mm512_roundscale_ps(a, 8);
}
V_FN v16f v_select(v16m m, v16f a, v16f b) { // m ? a : b
    return _mm512_mask_blend_ps(m, b, a);
}
V_FN v16m v_lt(v16f a, v16f b) {
    return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ);
}
V_FN v16m v_gt(v16f a, v16f b) {
    return _mm512_cmp_ps_mask(a, b, _CMP_GT_OQ);
}
V_FN v16m v_eq(v16f a, v16f b) {
    return _mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ);
}
V_FN v16i v_bits(v16f a) {
    return _mm512_castps_si512(a);
}
V_FN v16f v_from_bits(v16i a) {
    return _mm512_castsi512_ps(a);
}
V_FN v16i v_cvt_i(v16f a) { // to nearest even; |a| < 2^22
    return _mm512_cvtps_epi32(a);
}
V_FN v16f v_load_f16(const uint16_t *p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)p));
}
V_FN v16f v_scale2(v16f a, v16f n) { // a * 2^n, n whole and in [-252, 254], rounded once
    return _mm512_scalef_ps(a, n);
}
V_FN float v_sum(v16f a) { // lane i with i + 8, then 4, 2, 1
    __m256 h = _mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
    __m128 q = _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
    q = _mm_add_ps(q, _mm_movehl_ps(q, q));
    return _mm_cvtss_f32(_mm_add_ss(q, _mm_movehdup_ps(q)));
}

V_FN float v_hmax(v16f a) { // no lane may be NaN
    return _mm512_reduce_max_ps(a);
}

V_FN v16i vi_zero(void) {
    return _mm512_setzero_si512();
}
V_FN v16i vi_set1(int32_t i) {
    return _mm512_set1_epi32(i);
}
V_FN v16i vi_load(const void *p) {
    return _mm512_loadu_si512(p);
}
V_FN void vi_store(void *p, v16i a) {
    _mm512_storeu_si512(p, a);
}
V_FN v16i vi_load_u16(const uint16_t *p) {
    return _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(const void *)p));
}
V_FN void vi_store_u16(uint16_t *p, v16i a) { // low halves
    _mm256_storeu_si256((__m256i *)(void *)p, _mm512_cvtepi32_epi16(a));
}
V_FN void vi_store_i8(int8_t *p, v16i a) { // lanes must lie in [-128, 127]
    _mm_storeu_si128((__m128i *)(void *)p, _mm512_cvtepi32_epi8(a));
}
V_FN v16i vi_add(v16i a, v16i b) {
    return _mm512_add_epi32(a, b);
}
V_FN v16i vi_sub(v16i a, v16i b) {
    return _mm512_sub_epi32(a, b);
}
V_FN v16i vi_mul(v16i a, v16i b) { // low 32 bits
    return _mm512_mullo_epi32(a, b);
}
V_FN v16i vi_and(v16i a, v16i b) {
    return _mm512_and_si512(a, b);
}
V_FN v16i vi_or(v16i a, v16i b) {
    return _mm512_or_si512(a, b);
}
V_FN v16i vi_xor(v16i a, v16i b) {
    return _mm512_xor_si512(a, b);
}
V_FN v16i vi_andnot(v16i a, v16i b) { // ~a & b
    return _mm512_andnot_si512(a, b);
}
#define vi_sll(a, n) _mm512_slli_epi32((a), (n))
#define vi_srl(a, n) _mm512_srli_epi32((a), (n))
#define vi_sra(a, n) _mm512_srai_epi32((a), (n))
V_FN v16i vi_min(v16i a, v16i b) {
    return _mm512_min_epi32(a, b);
}
V_FN v16i vi_max(v16i a, v16i b) {
    return _mm512_max_epi32(a, b);
}
V_FN v16m vi_gt(v16i a, v16i b) {
    return _mm512_cmpgt_epi32_mask(a, b);
}
V_FN v16m vi_eq(v16i a, v16i b) {
    return _mm512_cmpeq_epi32_mask(a, b);
}
V_FN v16i vi_select(v16m m, v16i a, v16i b) { // m ? a : b
    return _mm512_mask_blend_epi32(m, b, a);
}
V_FN v16f vi_cvt_f(v16i a) {
    return _mm512_cvtepi32_ps(a);
}
V_FN int32_t vi_sum(v16i a) {
    return _mm512_reduce_add_epi32(a);
}
V_FN int32_t vi_hmax(v16i a) {
    return _mm512_reduce_max_epi32(a);
}

// SPDX-License-Identifier: Apache-2.0
// 16-lane vectors on AVX2 with FMA and F16C: two ymm registers each. See vec.h for the meaning.
#pragma once
#include <immintrin.h>

typedef struct {
    __m256 a, b;
} v16f;
typedef struct {
    __m256i a, b;
} v16i;
typedef v16i v16m; // all bits of a lane set or clear

V_FN v16f v2_f(__m256 a, __m256 b) {
    return (v16f){a, b};
}
V_FN v16i v2_i(__m256i a, __m256i b) {
    return (v16i){a, b};
}
V_FN __m256i v2_cast(__m256 a) {
    return _mm256_castps_si256(a);
}

V_FN v16m vm_first(int32_t n) { // the first n lanes; n may be out of [0, 16]
    __m256i k = _mm256_set1_epi32(n), i = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return v2_i(_mm256_cmpgt_epi32(k, i),
                _mm256_cmpgt_epi32(k, _mm256_add_epi32(i, _mm256_set1_epi32(8))));
}
V_FN v16m vm_and(v16m x, v16m y) {
    return v2_i(_mm256_and_si256(x.a, y.a), _mm256_and_si256(x.b, y.b));
}
V_FN v16m vm_or(v16m x, v16m y) {
    return v2_i(_mm256_or_si256(x.a, y.a), _mm256_or_si256(x.b, y.b));
}
V_FN v16m vm_not(v16m x) {
    __m256i ones = _mm256_set1_epi32(-1);
    return v2_i(_mm256_xor_si256(x.a, ones), _mm256_xor_si256(x.b, ones));
}
V_FN uint32_t vm_bits(v16m x) { // lane i is bit i
    return (uint32_t)_mm256_movemask_ps(_mm256_castsi256_ps(x.a)) |
           (uint32_t)_mm256_movemask_ps(_mm256_castsi256_ps(x.b)) << 8;
}
V_FN v16m vm_from_bits(uint32_t bits) {
    __m256i k = _mm256_set1_epi32((int32_t)bits);
    __m256i lo = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128), hi = _mm256_slli_epi32(lo, 8);
    return v2_i(_mm256_cmpeq_epi32(_mm256_and_si256(k, lo), lo),
                _mm256_cmpeq_epi32(_mm256_and_si256(k, hi), hi));
}

V_FN v16f v_zero(void) {
    return v2_f(_mm256_setzero_ps(), _mm256_setzero_ps());
}
V_FN v16f v_set1(float f) {
    return v2_f(_mm256_set1_ps(f), _mm256_set1_ps(f));
}
V_FN v16f v_load(const float *p) {
    return v2_f(_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8));
}
V_FN void v_store(float *p, v16f x) {
    _mm256_storeu_ps(p, x.a);
    _mm256_storeu_ps(p + 8, x.b);
}
V_FN v16f v_load_n(const float *p, int32_t n) {
    v16m m = vm_first(n);
    return v2_f(_mm256_maskload_ps(p, m.a), _mm256_maskload_ps(p + 8, m.b));
}
V_FN void v_store_n(float *p, int32_t n, v16f x) {
    v16m m = vm_first(n);
    _mm256_maskstore_ps(p, m.a, x.a);
    _mm256_maskstore_ps(p + 8, m.b, x.b);
}
V_FN v16f v_add(v16f x, v16f y) {
    return v2_f(_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b));
}
V_FN v16f v_sub(v16f x, v16f y) {
    return v2_f(_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b));
}
V_FN v16f v_mul(v16f x, v16f y) {
    return v2_f(_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b));
}
V_FN v16f v_div(v16f x, v16f y) {
    return v2_f(_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b));
}
V_FN v16f v_sqrt(v16f x) {
    return v2_f(_mm256_sqrt_ps(x.a), _mm256_sqrt_ps(x.b));
}
V_FN v16f v_fma(v16f x, v16f y, v16f z) { // x * y + z
    return v2_f(_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b));
}
V_FN v16f v_fnma(v16f x, v16f y, v16f z) { // z - x * y
    return v2_f(_mm256_fnmadd_ps(x.a, y.a, z.a), _mm256_fnmadd_ps(x.b, y.b, z.b));
}
V_FN v16f v_min(v16f x, v16f y) { // x < y ? x : y, so y where either is NaN
    return v2_f(_mm256_min_ps(x.a, y.a), _mm256_min_ps(x.b, y.b));
}
V_FN v16f v_max(v16f x, v16f y) { // x > y ? x : y
    return v2_f(_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b));
}
V_FN v16f v_rint(v16f x) { // to nearest even; |x| < 2^22
    return v2_f(_mm256_round_ps(x.a, 8), _mm256_round_ps(x.b, 8));
}
V_FN v16i v_bits(v16f x) {
    return v2_i(v2_cast(x.a), v2_cast(x.b));
}
V_FN v16f v_from_bits(v16i x) {
    return v2_f(_mm256_castsi256_ps(x.a), _mm256_castsi256_ps(x.b));
}
V_FN v16f v_select(v16m m, v16f x, v16f y) { // m ? x : y
    return v2_f(_mm256_blendv_ps(y.a, x.a, _mm256_castsi256_ps(m.a)),
                _mm256_blendv_ps(y.b, x.b, _mm256_castsi256_ps(m.b)));
}
V_FN v16m v_lt(v16f x, v16f y) {
    return v2_i(v2_cast(_mm256_cmp_ps(x.a, y.a, _CMP_LT_OQ)),
                v2_cast(_mm256_cmp_ps(x.b, y.b, _CMP_LT_OQ)));
}
V_FN v16m v_gt(v16f x, v16f y) {
    return v2_i(v2_cast(_mm256_cmp_ps(x.a, y.a, _CMP_GT_OQ)),
                v2_cast(_mm256_cmp_ps(x.b, y.b, _CMP_GT_OQ)));
}
V_FN v16m v_eq(v16f x, v16f y) {
    return v2_i(v2_cast(_mm256_cmp_ps(x.a, y.a, _CMP_EQ_OQ)),
                v2_cast(_mm256_cmp_ps(x.b, y.b, _CMP_EQ_OQ)));
}
V_FN v16i v_cvt_i(v16f x) { // to nearest even; |x| < 2^22
    return v2_i(_mm256_cvtps_epi32(x.a), _mm256_cvtps_epi32(x.b));
}
V_FN v16f v_load_f16(const uint16_t *p) {
    return v2_f(_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)p)),
                _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)(p + 8))));
}
V_FN float v_sum(v16f x) { // lane i with i + 8, then 4, 2, 1
    __m256 h = _mm256_add_ps(x.a, x.b);
    __m128 q = _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
    q = _mm_add_ps(q, _mm_movehl_ps(q, q));
    return _mm_cvtss_f32(_mm_add_ss(q, _mm_movehdup_ps(q)));
}

V_FN float v_hmax(v16f x) { // no lane may be NaN
    __m256 h = _mm256_max_ps(x.a, x.b);
    __m128 q = _mm_max_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
    q = _mm_max_ps(q, _mm_movehl_ps(q, q));
    return _mm_cvtss_f32(_mm_max_ss(q, _mm_movehdup_ps(q)));
}

V_FN v16i vi_zero(void) {
    return v2_i(_mm256_setzero_si256(), _mm256_setzero_si256());
}
V_FN v16i vi_set1(int32_t i) {
    return v2_i(_mm256_set1_epi32(i), _mm256_set1_epi32(i));
}
V_FN v16i vi_load(const void *p) {
    const __m256i *v = (const __m256i *)p;
    return v2_i(_mm256_loadu_si256(v), _mm256_loadu_si256(v + 1));
}
V_FN void vi_store(void *p, v16i x) {
    __m256i *v = (__m256i *)p;
    _mm256_storeu_si256(v, x.a);
    _mm256_storeu_si256(v + 1, x.b);
}
V_FN v16i vi_load_u16(const uint16_t *p) {
    return v2_i(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(const void *)p)),
                _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(const void *)(p + 8))));
}
V_FN void vi_store_u16(uint16_t *p, v16i x) { // low halves
    __m256i low = _mm256_set1_epi32(0xffff);
    __m256i w = _mm256_packus_epi32(_mm256_and_si256(x.a, low), _mm256_and_si256(x.b, low));
    _mm256_storeu_si256((__m256i *)(void *)p, _mm256_permute4x64_epi64(w, 0xd8));
}
V_FN void vi_store_i8(int8_t *p, v16i x) { // lanes must lie in [-128, 127]
    __m256i w = _mm256_permute4x64_epi64(_mm256_packs_epi32(x.a, x.b), 0xd8);
    _mm_storeu_si128((__m128i *)(void *)p,
                     _mm_packs_epi16(_mm256_castsi256_si128(w), _mm256_extracti128_si256(w, 1)));
}
V_FN v16i vi_add(v16i x, v16i y) {
    return v2_i(_mm256_add_epi32(x.a, y.a), _mm256_add_epi32(x.b, y.b));
}
V_FN v16i vi_sub(v16i x, v16i y) {
    return v2_i(_mm256_sub_epi32(x.a, y.a), _mm256_sub_epi32(x.b, y.b));
}
V_FN v16i vi_mul(v16i x, v16i y) { // low 32 bits
    return v2_i(_mm256_mullo_epi32(x.a, y.a), _mm256_mullo_epi32(x.b, y.b));
}
V_FN v16i vi_and(v16i x, v16i y) {
    return v2_i(_mm256_and_si256(x.a, y.a), _mm256_and_si256(x.b, y.b));
}
V_FN v16i vi_or(v16i x, v16i y) {
    return v2_i(_mm256_or_si256(x.a, y.a), _mm256_or_si256(x.b, y.b));
}
V_FN v16i vi_xor(v16i x, v16i y) {
    return v2_i(_mm256_xor_si256(x.a, y.a), _mm256_xor_si256(x.b, y.b));
}
V_FN v16i vi_andnot(v16i x, v16i y) { // ~x & y
    return v2_i(_mm256_andnot_si256(x.a, y.a), _mm256_andnot_si256(x.b, y.b));
}
V_FN v16i vi_sll(v16i x, int n) {
    return v2_i(_mm256_slli_epi32(x.a, n), _mm256_slli_epi32(x.b, n));
}
V_FN v16i vi_srl(v16i x, int n) {
    return v2_i(_mm256_srli_epi32(x.a, n), _mm256_srli_epi32(x.b, n));
}
V_FN v16i vi_sra(v16i x, int n) {
    return v2_i(_mm256_srai_epi32(x.a, n), _mm256_srai_epi32(x.b, n));
}
V_FN v16i vi_min(v16i x, v16i y) {
    return v2_i(_mm256_min_epi32(x.a, y.a), _mm256_min_epi32(x.b, y.b));
}
V_FN v16i vi_max(v16i x, v16i y) {
    return v2_i(_mm256_max_epi32(x.a, y.a), _mm256_max_epi32(x.b, y.b));
}
V_FN v16m vi_gt(v16i x, v16i y) {
    return v2_i(_mm256_cmpgt_epi32(x.a, y.a), _mm256_cmpgt_epi32(x.b, y.b));
}
V_FN v16m vi_eq(v16i x, v16i y) {
    return v2_i(_mm256_cmpeq_epi32(x.a, y.a), _mm256_cmpeq_epi32(x.b, y.b));
}
V_FN v16i vi_select(v16m m, v16i x, v16i y) { // m ? x : y
    return v2_i(_mm256_blendv_epi8(y.a, x.a, m.a), _mm256_blendv_epi8(y.b, x.b, m.b));
}
V_FN v16f vi_cvt_f(v16i x) {
    return v2_f(_mm256_cvtepi32_ps(x.a), _mm256_cvtepi32_ps(x.b));
}
V_FN int32_t vi_sum(v16i x) {
    __m256i h = _mm256_add_epi32(x.a, x.b);
    __m128i q = _mm_add_epi32(_mm256_castsi256_si128(h), _mm256_extracti128_si256(h, 1));
    q = _mm_add_epi32(q, _mm_shuffle_epi32(q, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(q, _mm_shuffle_epi32(q, 0xb1)));
}
V_FN int32_t vi_hmax(v16i x) {
    __m256i h = _mm256_max_epi32(x.a, x.b);
    __m128i q = _mm_max_epi32(_mm256_castsi256_si128(h), _mm256_extracti128_si256(h, 1));
    q = _mm_max_epi32(q, _mm_shuffle_epi32(q, 0x4e));
    return _mm_cvtsi128_si32(_mm_max_epi32(q, _mm_shuffle_epi32(q, 0xb1)));
}

V_FN v16f v_scale2(v16f x, v16f n) { // x * 2^n, n whole and in [-252, 254], rounded once
    v16i i = v_cvt_i(n), h = vi_sra(i, 1), bias = vi_set1(127);
    v16f s = v_from_bits(vi_sll(vi_add(h, bias), 23));
    v16f t = v_from_bits(vi_sll(vi_add(vi_sub(i, h), bias), 23));
    return v_mul(v_mul(x, s), t);
}

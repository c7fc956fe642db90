// SPDX-License-Identifier: Apache-2.0
// 16-lane vectors in portable C with the compiler's vector types: four of 16 bytes, which any CPU
// with vectors has. See vec.h for the meaning.
#pragma once

typedef float v4_f __attribute__((vector_size(16)));
typedef int32_t v4_i __attribute__((vector_size(16)));
typedef uint32_t v4_u __attribute__((vector_size(16)));
typedef uint16_t v4_h __attribute__((vector_size(8)));

typedef struct {
    v4_f a, b, c, d;
} v16f;
typedef struct {
    v4_i a, b, c, d;
} v16i;
typedef v16i v16m; // all bits of a lane set or clear

// Four times the same expression over the parts of its operands.
#define V4_OP(type, x, op, y) ((type){(x).a op(y).a, (x).b op(y).b, (x).c op(y).c, (x).d op(y).d})

V_FN v16i vi_set1(int32_t i) {
    v4_i v = {i, i, i, i};
    return (v16i){v, v, v, v};
}
V_FN v16i vi_zero(void) {
    return vi_set1(0);
}
V_FN v16i vi_load(const void *p) {
    v16i r;
    memcpy(&r, p, sizeof r);
    return r;
}
V_FN void vi_store(void *p, v16i x) {
    memcpy(p, &x, sizeof x);
}
V_FN v16i vi_and(v16i x, v16i y) {
    return V4_OP(v16i, x, &, y);
}
V_FN v16i vi_or(v16i x, v16i y) {
    return V4_OP(v16i, x, |, y);
}
V_FN v16i vi_xor(v16i x, v16i y) {
    return V4_OP(v16i, x, ^, y);
}
V_FN v16i vi_andnot(v16i x, v16i y) { // ~x & y
    return (v16i){~x.a & y.a, ~x.b & y.b, ~x.c & y.c, ~x.d & y.d};
}
// Wraps around, as the machine's instruction does.
#define V4_WRAP(x, op, y) ((v4_i)((v4_u)(x)op(v4_u)(y)))
V_FN v16i vi_add(v16i x, v16i y) {
    return (v16i){V4_WRAP(x.a, +, y.a), V4_WRAP(x.b, +, y.b), V4_WRAP(x.c, +, y.c),
                  V4_WRAP(x.d, +, y.d)};
}
V_FN v16i vi_sub(v16i x, v16i y) {
    return (v16i){V4_WRAP(x.a, -, y.a), V4_WRAP(x.b, -, y.b), V4_WRAP(x.c, -, y.c),
                  V4_WRAP(x.d, -, y.d)};
}
V_FN v16i vi_mul(v16i x, v16i y) { // low 32 bits
    return (v16i){V4_WRAP(x.a, *, y.a), V4_WRAP(x.b, *, y.b), V4_WRAP(x.c, *, y.c),
                  V4_WRAP(x.d, *, y.d)};
}
V_FN v16i vi_sll(v16i x, int n) {
    return (v16i){(v4_i)((v4_u)x.a << n), (v4_i)((v4_u)x.b << n), (v4_i)((v4_u)x.c << n),
                  (v4_i)((v4_u)x.d << n)};
}
V_FN v16i vi_srl(v16i x, int n) {
    return (v16i){(v4_i)((v4_u)x.a >> n), (v4_i)((v4_u)x.b >> n), (v4_i)((v4_u)x.c >> n),
                  (v4_i)((v4_u)x.d >> n)};
}
V_FN v16i vi_sra(v16i x, int n) {
    return (v16i){x.a >> n, x.b >> n, x.c >> n, x.d >> n};
}
V_FN v16m vi_gt(v16i x, v16i y) {
    return V4_OP(v16m, x, >, y);
}
V_FN v16m vi_eq(v16i x, v16i y) {
    return V4_OP(v16m, x, ==, y);
}
V_FN v16i vi_select(v16m m, v16i x, v16i y) { // m ? x : y
    return vi_or(vi_and(m, x), vi_andnot(m, y));
}
V_FN v16i vi_min(v16i x, v16i y) {
    return vi_select(vi_gt(y, x), x, y);
}
V_FN v16i vi_max(v16i x, v16i y) {
    return vi_select(vi_gt(x, y), x, y);
}
V_FN int32_t vi_sum(v16i x) {
    v4_u s = ((v4_u)x.a + (v4_u)x.c) + ((v4_u)x.b + (v4_u)x.d);
    return (int32_t)((s[0] + s[2]) + (s[1] + s[3]));
}
V_FN int32_t vi_hmax(v16i x) {
    v16i y = {x.c, x.d, x.a, x.b};
    x = vi_max(x, y);
    v4_i m = vi_max(x, (v16i){x.b, x.a, x.d, x.c}).a;
    int32_t a = m[0] > m[2] ? m[0] : m[2], b = m[1] > m[3] ? m[1] : m[3];
    return a > b ? a : b;
}
V_FN v16i vi_load_u16(const uint16_t *p) {
    v4_h h[4];
    memcpy(h, p, sizeof h);
    return (v16i){__builtin_convertvector(h[0], v4_i), __builtin_convertvector(h[1], v4_i),
                  __builtin_convertvector(h[2], v4_i), __builtin_convertvector(h[3], v4_i)};
}
V_FN void vi_store_u16(uint16_t *p, v16i x) { // low halves
    v4_h h[4] = {__builtin_convertvector((v4_u)x.a, v4_h), __builtin_convertvector((v4_u)x.b, v4_h),
                 __builtin_convertvector((v4_u)x.c, v4_h),
                 __builtin_convertvector((v4_u)x.d, v4_h)};
    memcpy(p, h, sizeof h);
}
V_FN void vi_store_i8(int8_t *p, v16i x) { // lanes must lie in [-128, 127]
    int32_t t[16];
    vi_store(t, x);
    for (int i = 0; i < 16; i++)
        p[i] = (int8_t)t[i];
}

V_FN v16m vm_first(int32_t n) { // the first n lanes; n may be out of [0, 16]
    v16i i = {{0, 1, 2, 3}, {4, 5, 6, 7}, {8, 9, 10, 11}, {12, 13, 14, 15}};
    return vi_gt(vi_set1(n), i);
}
V_FN v16m vm_and(v16m x, v16m y) {
    return vi_and(x, y);
}
V_FN v16m vm_or(v16m x, v16m y) {
    return vi_or(x, y);
}
V_FN v16m vm_not(v16m x) {
    return vi_xor(x, vi_set1(-1));
}
V_FN uint32_t vm_bits(v16m x) { // lane i is bit i
    int32_t t[16];
    vi_store(t, x);
    uint32_t r = 0;
    for (int i = 0; i < 16; i++)
        r |= (uint32_t)(t[i] & 1) << i;
    return r;
}
V_FN v16m vm_from_bits(uint32_t bits) {
    v16i lane = {
        {1, 2, 4, 8}, {16, 32, 64, 128}, {256, 512, 1024, 2048}, {4096, 8192, 16384, 32768}};
    return vi_eq(vi_and(vi_set1((int32_t)bits), lane), lane);
}

V_FN v16f v_set1(float f) {
    v4_f v = {f, f, f, f};
    return (v16f){v, v, v, v};
}
V_FN v16f v_zero(void) {
    return v_set1(0.0f);
}
V_FN v16f v_load(const float *p) {
    v16f r;
    memcpy(&r, p, sizeof r);
    return r;
}
V_FN void v_store(float *p, v16f x) {
    memcpy(p, &x, sizeof x);
}
V_FN v16f v_load_n(const float *p, int32_t n) {
    float t[16] = {0};
    for (int i = 0; i < 16 && i < n; i++)
        t[i] = p[i];
    return v_load(t);
}
V_FN void v_store_n(float *p, int32_t n, v16f x) {
    float t[16];
    v_store(t, x);
    for (int i = 0; i < 16 && i < n; i++)
        p[i] = t[i];
}
V_FN v16f v_add(v16f x, v16f y) {
    return V4_OP(v16f, x, +, y);
}
V_FN v16f v_sub(v16f x, v16f y) {
    return V4_OP(v16f, x, -, y);
}
V_FN v16f v_mul(v16f x, v16f y) {
    return V4_OP(v16f, x, *, y);
}
V_FN v16f v_div(v16f x, v16f y) {
    return V4_OP(v16f, x, /, y);
}
V_FN v16f v_sqrt(v16f x) {
    float t[16];
    v_store(t, x);
    for (int i = 0; i < 16; i++)
        t[i] = __builtin_sqrtf(t[i]);
    return v_load(t);
}
V_FN v16f v_fma(v16f x, v16f y, v16f z) { // x * y + z, both rounded
    return v_add(v_mul(x, y), z);
}
V_FN v16f v_fnma(v16f x, v16f y, v16f z) { // z - x * y, both rounded
    return v_sub(z, v_mul(x, y));
}
V_FN v16i v_bits(v16f x) {
    return (v16i){(v4_i)x.a, (v4_i)x.b, (v4_i)x.c, (v4_i)x.d};
}
V_FN v16f v_from_bits(v16i x) {
    return (v16f){(v4_f)x.a, (v4_f)x.b, (v4_f)x.c, (v4_f)x.d};
}
V_FN v16f v_select(v16m m, v16f x, v16f y) { // m ? x : y
    return v_from_bits(vi_select(m, v_bits(x), v_bits(y)));
}
V_FN v16m v_lt(v16f x, v16f y) {
    return V4_OP(v16m, x, <, y);
}
V_FN v16m v_gt(v16f x, v16f y) {
    return V4_OP(v16m, x, >, y);
}
V_FN v16m v_eq(v16f x, v16f y) {
    return V4_OP(v16m, x, ==, y);
}
V_FN v16f v_min(v16f x, v16f y) { // x < y ? x : y, so y where either is NaN
    return v_select(v_lt(x, y), x, y);
}
V_FN v16f v_max(v16f x, v16f y) { // x > y ? x : y
    return v_select(v_gt(x, y), x, y);
}
// Adding 1.5 * 2^23 leaves the whole part, rounded to nearest even, in the low bits.
V_FN v16f v_rint(v16f x) { // |x| < 2^22
    v16f magic = v_set1(0x1.8p23f);
    return v_sub(v_add(x, magic), magic);
}
V_FN v16i v_cvt_i(v16f x) { // to nearest even; |x| < 2^22; NaN gives a multiple of 2^22
    v16f magic = v_set1(0x1.8p23f), end = v_set1(0x1p22f);
    x = v_max(v_min(x, end), v_set1(-0x1p22f));
    return vi_sub(v_bits(v_add(x, magic)), v_bits(magic));
}
V_FN v16f vi_cvt_f(v16i x) {
    return (v16f){__builtin_convertvector(x.a, v4_f), __builtin_convertvector(x.b, v4_f),
                  __builtin_convertvector(x.c, v4_f), __builtin_convertvector(x.d, v4_f)};
}
// The f16's exponent and mantissa as f32 bits, times 2^112, is its value, denormals included.
V_FN v16f v_load_f16(const uint16_t *p) {
    v16i h = vi_load_u16(p);
    v16i sign = vi_sll(vi_and(h, vi_set1(0x8000)), 16);
    v16i mag = vi_sll(vi_and(h, vi_set1(0x7fff)), 13);
    v16i v = v_bits(v_mul(v_from_bits(mag), v_set1(0x1p112f)));
    v16m special = vi_gt(mag, vi_set1(0x0f7fffff)); // infinity or NaN
    v = vi_select(special, vi_or(mag, vi_set1(0x7f800000)), v);
    return v_from_bits(vi_or(v, sign));
}
V_FN float v_sum(v16f x) { // lane i with i + 8, then 4, 2, 1
    v4_f q = (x.a + x.c) + (x.b + x.d);
    return (q[0] + q[2]) + (q[1] + q[3]);
}
V_FN float v_hmax(v16f x) { // no lane may be NaN
    x = v_max(x, (v16f){x.c, x.d, x.a, x.b});
    v4_f m = v_max(x, (v16f){x.b, x.a, x.d, x.c}).a;
    float a = m[0] > m[2] ? m[0] : m[2], b = m[1] > m[3] ? m[1] : m[3];
    return a > b ? a : b;
}
V_FN v16f v_scale2(v16f x, v16f n) { // x * 2^n, n whole and in [-252, 254], rounded once
    v16i i = v_cvt_i(n), h = vi_sra(i, 1), bias = vi_set1(127);
    v16f s = v_from_bits(vi_sll(vi_add(h, bias), 23));
    v16f t = v_from_bits(vi_sll(vi_add(vi_sub(i, h), bias), 23));
    return v_mul(v_mul(x, s), t);
}

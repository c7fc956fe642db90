// SPDX-License-Identifier: Apache-2.0
#include "kernels/tensor.h"
#include <math.h>
#include <string.h>

struct type_row {
    const char *name;
    uint32_t block, bytes; // values and bytes of one block
};

static const struct type_row types[KN_DTYPES] = {
    [KN_F32] = {"F32", 1, 4},     [KN_F16] = {"F16", 1, 2},     [KN_BF16] = {"BF16", 1, 2},
    [KN_Q8_0] = {"Q8_0", 32, 34}, [KN_Q4_0] = {"Q4_0", 32, 18}, [KN_Q4_1] = {"Q4_1", 32, 20},
    [KN_I32] = {"I32", 1, 4},
};

const char *kn_dtype_name(enum kn_dtype t) {
    return (unsigned)t < KN_DTYPES ? types[t].name : "unknown";
}

uint32_t kn_dtype_block(enum kn_dtype t) {
    return (unsigned)t < KN_DTYPES ? types[t].block : 0;
}

uint32_t kn_dtype_block_bytes(enum kn_dtype t) {
    return (unsigned)t < KN_DTYPES ? types[t].bytes : 0;
}

bool kn_row_bytes(enum kn_dtype t, uint64_t k, size_t *out) {
    if ((unsigned)t >= KN_DTYPES || k % types[t].block)
        return false;
    return !__builtin_mul_overflow(k / types[t].block, types[t].bytes, out);
}

static uint32_t bits_of(float f) {
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

static float float_of(uint32_t u) {
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

float kn_f16_to_f32(uint16_t h) {
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, mag = h & 0x7fff;
    if (mag >= 0x7c00) // infinity, NaN (made quiet, as the CPU's own conversion does)
        return float_of(sign | 0x7f800000 | (mag & 0x3ff) << 13 | (mag > 0x7c00 ? 0x400000 : 0));
    if (mag >= 0x0400)
        return float_of(sign | ((mag << 13) + ((127 - 15) << 23)));
    // Subnormal: mag * 2^-24 is exact in f32.
    return float_of(sign | bits_of((float)mag * 0x1p-24f));
}

uint16_t kn_f32_to_f16(float f) {
    uint32_t u = bits_of(f), sign = u >> 16 & 0x8000, mag = u & 0x7fffffff;
    if (mag > 0x7f800000)
        return (uint16_t)(sign | 0x7e00 | (mag >> 13 & 0x3ff));
    if (mag >= 0x477ff000) // rounds to 2^16 or more
        return (uint16_t)(sign | 0x7c00);
    if (mag < 0x38800000) { // subnormal result: the addition rounds at the place of its last bit
        float v = float_of(mag) + 0.5f;
        return (uint16_t)(sign | (bits_of(v) - bits_of(0.5f)));
    }
    uint32_t r = mag + 0xfff + (mag >> 13 & 1);
    return (uint16_t)(sign | ((r - ((127 - 15) << 23)) >> 13));
}

float kn_bf16_to_f32(uint16_t h) {
    return float_of((uint32_t)h << 16);
}

uint16_t kn_f32_to_bf16(float f) {
    uint32_t u = bits_of(f);
    if ((u & 0x7fffffff) > 0x7f800000)
        return (uint16_t)(u >> 16 | 0x40);
    return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

// ---- blocks

enum { BLOCK = 32 };

static uint16_t load16(const uint8_t *p) {
    return (uint16_t)(p[0] | p[1] << 8);
}

static void store16(uint8_t *p, uint16_t v) {
    p[0] = (uint8_t)v;
    p[1] = (uint8_t)(v >> 8);
}

static void dequantize_q8_0(const uint8_t *b, float *dst) {
    float d = kn_f16_to_f32(load16(b));
    for (int i = 0; i < BLOCK; i++)
        dst[i] = d * (float)(int8_t)b[2 + i];
}

static void dequantize_q4_0(const uint8_t *b, float *dst) {
    float d = kn_f16_to_f32(load16(b));
    for (int i = 0; i < BLOCK / 2; i++) {
        dst[i] = d * (float)((b[2 + i] & 15) - 8);
        dst[i + BLOCK / 2] = d * (float)((b[2 + i] >> 4) - 8);
    }
}

static void dequantize_q4_1(const uint8_t *b, float *dst) {
    float d = kn_f16_to_f32(load16(b)), m = kn_f16_to_f32(load16(b + 2));
    for (int i = 0; i < BLOCK / 2; i++) {
        // Product and sum are rounded one after the other.
        float lo = d * (float)(b[4 + i] & 15), hi = d * (float)(b[4 + i] >> 4);
        dst[i] = lo + m;
        dst[i + BLOCK / 2] = hi + m;
    }
}

void kn_dequantize(enum kn_dtype t, const void *src, float *dst, size_t n) {
    const uint8_t *s = src;
    size_t step = kn_dtype_block(t), bytes = kn_dtype_block_bytes(t);
    for (size_t i = 0; i + step <= n && step; i += step, s += bytes) {
        switch (t) {
        case KN_F32:
            memcpy(&dst[i], s, sizeof(float));
            break;
        case KN_F16:
            dst[i] = kn_f16_to_f32(load16(s));
            break;
        case KN_BF16:
            dst[i] = kn_bf16_to_f32(load16(s));
            break;
        case KN_Q8_0:
            dequantize_q8_0(s, dst + i);
            break;
        case KN_Q4_0:
            dequantize_q4_0(s, dst + i);
            break;
        case KN_Q4_1:
            dequantize_q4_1(s, dst + i);
            break;
        case KN_I32: {
            int32_t v;
            memcpy(&v, s, sizeof v);
            dst[i] = (float)v;
            break;
        }
        case KN_DTYPES:
            return;
        }
    }
}

static int clamp(int v, int lo, int hi) {
    return v < lo ? lo : v > hi ? hi : v;
}

// Scale from the largest magnitude; rounds half away from zero.
static void quantize_q8_0(const float *v, uint8_t *b) {
    float top = 0;
    for (int i = 0; i < BLOCK; i++)
        top = fmaxf(top, fabsf(v[i]));
    float d = top / 127, inv = d != 0 ? 1 / d : 0;
    store16(b, kn_f32_to_f16(d));
    for (int i = 0; i < BLOCK; i++)
        b[2 + i] = (uint8_t)(int8_t)clamp((int)roundf(v[i] * inv), -127, 127);
}

// The value of largest magnitude becomes -8; adding 8.5 and cutting rounds half up.
static void quantize_q4_0(const float *v, uint8_t *b) {
    float ext = 0;
    for (int i = 0; i < BLOCK; i++)
        if (fabsf(v[i]) > fabsf(ext))
            ext = v[i];
    float d = ext / -8, inv = d != 0 ? 1 / d : 0;
    store16(b, kn_f32_to_f16(d));
    for (int i = 0; i < BLOCK / 2; i++) {
        float lo = v[i] * inv, hi = v[i + BLOCK / 2] * inv;
        b[2 + i] = (uint8_t)(clamp((int)(lo + 8.5f), 0, 15) | clamp((int)(hi + 8.5f), 0, 15) << 4);
    }
}

static void quantize_q4_1(const float *v, uint8_t *b) {
    float min = v[0], max = v[0];
    for (int i = 1; i < BLOCK; i++) {
        min = fminf(min, v[i]);
        max = fmaxf(max, v[i]);
    }
    float d = (max - min) / 15, inv = d != 0 ? 1 / d : 0;
    store16(b, kn_f32_to_f16(d));
    store16(b + 2, kn_f32_to_f16(min));
    for (int i = 0; i < BLOCK / 2; i++) {
        float lo = (v[i] - min) * inv, hi = (v[i + BLOCK / 2] - min) * inv;
        b[4 + i] = (uint8_t)(clamp((int)(lo + 0.5f), 0, 15) | clamp((int)(hi + 0.5f), 0, 15) << 4);
    }
}

void kn_quantize(enum kn_dtype t, const float *src, void *dst, size_t n) {
    uint8_t *d = dst;
    size_t step = kn_dtype_block(t), bytes = kn_dtype_block_bytes(t);
    for (size_t i = 0; i + step <= n && step; i += step, d += bytes) {
        switch (t) {
        case KN_F32:
            memcpy(d, &src[i], sizeof(float));
            break;
        case KN_F16:
            store16(d, kn_f32_to_f16(src[i]));
            break;
        case KN_BF16:
            store16(d, kn_f32_to_bf16(src[i]));
            break;
        case KN_Q8_0:
            quantize_q8_0(src + i, d);
            break;
        case KN_Q4_0:
            quantize_q4_0(src + i, d);
            break;
        case KN_Q4_1:
            quantize_q4_1(src + i, d);
            break;
        case KN_I32: {
            int32_t v = (int32_t)src[i];
            memcpy(d, &v, sizeof v);
            break;
        }
        case KN_DTYPES:
            return;
        }
    }
}

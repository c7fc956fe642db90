// SPDX-License-Identifier: Apache-2.0
// Element types of files and of device memory, and their block geometry. Stateless, thread-safe.
// Block formats are those of GGUF (little-endian):
//   Q8_0: 32 values: f16 d, int8 q[32];            value = d * q
//   Q4_0: 32 values: f16 d, 16 bytes of nibbles;   value = d * (q - 8)
//   Q4_1: 32 values: f16 d, f16 m, 16 bytes;       value = d * q + m
// where byte j of a 4-bit block holds value j in its low and value j + 16 in its high nibble.
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum kn_dtype { KN_F32, KN_F16, KN_BF16, KN_Q8_0, KN_Q4_0, KN_Q4_1, KN_I32, KN_DTYPES };

const char *kn_dtype_name(enum kn_dtype t);     // "F32", "BF16", "Q8_0", ...
uint32_t kn_dtype_block(enum kn_dtype t);       // values in one block (1 for plain types)
uint32_t kn_dtype_block_bytes(enum kn_dtype t); // bytes of one block
// Bytes of a row of k values; false if k is no multiple of the block or the product overflows.
bool kn_row_bytes(enum kn_dtype t, uint64_t k, size_t *out);

float kn_f16_to_f32(uint16_t h);
uint16_t kn_f32_to_f16(float f); // round to nearest even
float kn_bf16_to_f32(uint16_t h);
uint16_t kn_f32_to_bf16(float f); // round to nearest even; NaN stays NaN
// Dequantises n values (n a multiple of the block) of type t; the definition that all kernels
// share.
void kn_dequantize(enum kn_dtype t, const void *src, float *dst, size_t n);
// Quantises as the reference quantisers of GGUF do; for tests and for making files.
void kn_quantize(enum kn_dtype t, const float *src, void *dst, size_t n);

// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/lora_layout.h"

// The matrix as [wide][r]: A is its transpose.
struct shape {
    int32_t wide, r;
    size_t step_wide, step_r; // distances in the natural layout
};

static struct shape shape_of(enum kn_lora_side side, int32_t rows, int32_t cols) {
    if (side == KN_LORA_A)
        return (struct shape){cols, rows, 1, (size_t)cols};
    return (struct shape){rows, cols, (size_t)cols, 1};
}

size_t cpu_lora_bytes(enum kn_lora_side side, int32_t rows, int32_t cols) {
    struct shape s = shape_of(side, rows, cols);
    if (s.wide <= 0 || s.wide > CPU_LORA_MOST_WIDE || s.r <= 0 || s.r > KN_LORA_MAX_RANK)
        return 0;
    return cpu_lora_values(s.wide, s.r) * sizeof(float);
}

void cpu_lora_pack(enum kn_lora_side side, int32_t rows, int32_t cols, const float *src,
                   void *dst) {
    struct shape s = shape_of(side, rows, cols);
    float *to = dst;
    for (int32_t c = 0; c < s.wide; c += CPU_LORA_PANEL)
        for (int32_t j = 0; j < s.r; j++, to += CPU_LORA_PANEL)
            for (int32_t i = 0; i < CPU_LORA_PANEL; i++)
                to[i] = c + i < s.wide ? src[(size_t)(c + i) * s.step_wide + (size_t)j * s.step_r]
                                       : 0.0f;
}

void cpu_lora_unpack(enum kn_lora_side side, int32_t rows, int32_t cols, const void *src,
                     float *dst) {
    struct shape s = shape_of(side, rows, cols);
    const float *from = src;
    for (int32_t c = 0; c < s.wide; c += CPU_LORA_PANEL)
        for (int32_t j = 0; j < s.r; j++, from += CPU_LORA_PANEL)
            for (int32_t i = 0; i < CPU_LORA_PANEL && c + i < s.wide; i++)
                dst[(size_t)(c + i) * s.step_wide + (size_t)j * s.step_r] = from[i];
}

void cpu_lora_narrow(enum kn_dtype t, const void *src, size_t bytes, void *dst) {
    const float *from = src;
    uint16_t *to = dst; // never ahead of what is still to be read
    for (size_t i = 0; i < bytes / sizeof *from; i++)
        to[i] = t == KN_BF16 ? kn_f32_to_bf16(from[i]) : kn_f32_to_f16(from[i]);
}

void cpu_lora_widen(enum kn_dtype t, const void *src, size_t bytes, void *dst) {
    const uint16_t *from = src;
    float *to = dst;
    for (size_t i = 0; i < bytes / sizeof *to; i++)
        to[i] = t == KN_BF16 ? kn_bf16_to_f32(from[i]) : kn_f16_to_f32(from[i]);
}

// SPDX-License-Identifier: Apache-2.0
// What every file under isa/ starts with: the ISA level's name as a suffix, and the functions that
// exist once per level and are named by its table (table.c). KN_ISA and one of KN_ISA_AVX512,
// KN_ISA_AVX2, KN_ISA_PORTABLE come from the build; avx512bf16 sets KN_ISA_AVX512BF16 beside
// KN_ISA_AVX512.
#pragma once
#include "kernels/cpu/cpu_internal.h"

#ifndef KN_ISA
#define KN_ISA portable
#define KN_ISA_PORTABLE 1
#endif

#define ISA_JOIN2(a, b) a##_##b
#define ISA_JOIN(a, b) ISA_JOIN2(a, b)
#define ISA(name) ISA_JOIN(name, KN_ISA)

// gemm.c, gemm_t.c
void ISA(cpu_gemm)(const void *params, struct cpu_task *t);
void ISA(cpu_gemm_t)(const void *params, struct cpu_task *t);
// rows.c
void ISA(cpu_rmsnorm)(const void *params, struct cpu_task *t);
void ISA(cpu_quantize)(const void *params, struct cpu_task *t);
void ISA(cpu_swiglu)(const void *params, struct cpu_task *t);
void ISA(cpu_embed)(const void *params, struct cpu_task *t);
void ISA(cpu_gather)(const void *params, struct cpu_task *t);
void ISA(cpu_quantize_row)(const float *x, int32_t k, struct cpu_q8_block *out);
// rope.c
void ISA(cpu_rope_table)(const void *params, struct cpu_task *t);
void ISA(cpu_rope_kv)(const void *params, struct cpu_task *t);
// attn.c
void ISA(cpu_attn)(const void *params, struct cpu_task *t);
// lora_back.c
void ISA(cpu_lora_shrink_back)(const void *params, struct cpu_task *t);
void ISA(cpu_lora_dx)(const void *params, struct cpu_task *t);
void ISA(cpu_lora_grad)(const void *params, struct cpu_task *t);
// train_rows.c
void ISA(cpu_xent)(const void *params, struct cpu_task *t);
void ISA(cpu_rmsnorm_back)(const void *params, struct cpu_task *t);
void ISA(cpu_swiglu_back)(const void *params, struct cpu_task *t);
void ISA(cpu_rope_back)(const void *params, struct cpu_task *t);
void ISA(cpu_scatter)(const void *params, struct cpu_task *t);
// train_step.c
void ISA(cpu_grad_add)(const void *params, struct cpu_task *t);
void ISA(cpu_sumsq)(const void *params, struct cpu_task *t);
void ISA(cpu_adamw)(const void *params, struct cpu_task *t);
// attn_back.c
void ISA(cpu_attn_back)(const void *params, struct cpu_task *t);
// lora.c, gemm_lora.c
void ISA(cpu_lora)(const void *params, struct cpu_task *t);
void ISA(cpu_gemm_lora)(const void *params, struct cpu_task *t);
// sample.c
void ISA(cpu_sample)(const void *params, struct cpu_task *t);

// SPDX-License-Identifier: Apache-2.0
// The table of this ISA level's functions. Nothing here runs before `supported` has said yes.
#include "kernels/cpu/cpuid.h"
#include "kernels/cpu/isa/isa.h"

#define ISA_STRING2(x) #x
#define ISA_STRING(x) ISA_STRING2(x)

const struct cpu_isa ISA(cpu_isa) = {
    .name = ISA_STRING(KN_ISA),
    .supported = ISA(cpu_has),
    .gemm = ISA(cpu_gemm),
    .gemm_t = ISA(cpu_gemm_t),
    .rmsnorm = ISA(cpu_rmsnorm),
    .quantize = ISA(cpu_quantize),
    .swiglu = ISA(cpu_swiglu),
    .embed = ISA(cpu_embed),
    .gather = ISA(cpu_gather),
    .rope_table = ISA(cpu_rope_table),
    .rope_kv = ISA(cpu_rope_kv),
    .attn = ISA(cpu_attn),
    .lora_shrink_back = ISA(cpu_lora_shrink_back),
    .lora_dx = ISA(cpu_lora_dx),
    .lora_grad = ISA(cpu_lora_grad),
    .xent = ISA(cpu_xent),
    .rmsnorm_back = ISA(cpu_rmsnorm_back),
    .swiglu_back = ISA(cpu_swiglu_back),
    .rope_back = ISA(cpu_rope_back),
    .scatter = ISA(cpu_scatter),
    .grad_add = ISA(cpu_grad_add),
    .sumsq = ISA(cpu_sumsq),
    .adamw = ISA(cpu_adamw),
    .attn_back = ISA(cpu_attn_back),
    .lora = ISA(cpu_lora),
    .gemm_lora = ISA(cpu_gemm_lora),
    .sample = ISA(cpu_sample),
    .quantize_row = ISA(cpu_quantize_row),
};

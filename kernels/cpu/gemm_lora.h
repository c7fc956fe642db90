// SPDX-License-Identifier: Apache-2.0
// What ops_lora.c records for a product together with the adapters of its rows (isa/gemm_lora.c).
#pragma once
#include "kernels/device.h"

enum { CPU_GEMM_LORA_ROWS = 64 }; // at most

struct cpu_gemm_lora {
    struct kn_gemm gemm; // all columns, no SWIGLU
    struct kn_lora lora; // of the same rows and y, no dropout; rows * n floats fit CPU_SHARED_BYTES
};

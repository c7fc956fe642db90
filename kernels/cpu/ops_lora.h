// SPDX-License-Identifier: Apache-2.0
// The entries of kn_ops_cpu that ops_lora.c makes.
#pragma once
#include "kernels/device.h"

enum err cpu_op_lora(struct kn_queue *q, const struct kn_lora *p);
enum err cpu_op_gemm_lora(struct kn_queue *q, const struct kn_gemm *gemm,
                          const struct kn_lora *lora);

// SPDX-License-Identifier: Apache-2.0
// Entries of kn_ops_cpu that ops_train.c makes.
#pragma once
#include "kernels/device.h"

enum err cpu_op_lora_shrink_back(struct kn_queue *q, const struct kn_lora_shrink_back *p);
enum err cpu_op_lora_dx(struct kn_queue *q, const struct kn_lora_dx *p);
enum err cpu_op_lora_grad(struct kn_queue *q, const struct kn_lora_grad *p);
enum err cpu_op_xent(struct kn_queue *q, const struct kn_xent *p);
enum err cpu_op_rmsnorm_back(struct kn_queue *q, const struct kn_rmsnorm_back *p);
enum err cpu_op_swiglu_back(struct kn_queue *q, const struct kn_swiglu_back *p);
enum err cpu_op_attn_back(struct kn_queue *q, const struct kn_attn_back *p);
enum err cpu_op_rope_back(struct kn_queue *q, const struct kn_rope_back *p);
enum err cpu_op_scatter(struct kn_queue *q, const struct kn_scatter *p);
enum err cpu_op_grad_add(struct kn_queue *q, const struct kn_grad_add *p);
enum err cpu_op_sumsq(struct kn_queue *q, const struct kn_sumsq *p);
enum err cpu_op_adamw(struct kn_queue *q, const struct kn_adamw *p);

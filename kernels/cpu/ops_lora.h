// SPDX-License-Identifier: Apache-2.0
// The entry of kn_ops_cpu that ops_lora.c makes.
#pragma once
#include "kernels/device.h"

enum err cpu_op_lora(struct kn_queue *q, const struct kn_lora *p);

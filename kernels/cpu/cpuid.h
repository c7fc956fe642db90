// SPDX-License-Identifier: Apache-2.0
// Whether this CPU and its kernel can run an ISA level. Compiled for the baseline, so that asking
// is always safe. Stateless, thread-safe.
#pragma once
#include <stdbool.h>

bool cpu_has_avx512bf16(void); // BF16 and all of cpu_has_avx512
bool cpu_has_avx512(void);     // F, BW, VL, DQ, VNNI, and all of cpu_has_avx2
bool cpu_has_avx2(void);       // AVX2, FMA, F16C
bool cpu_has_portable(void);

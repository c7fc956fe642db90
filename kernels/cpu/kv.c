// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/kv.h"
#include <string.h>

bool cpu_kv_shape_ok(const struct kn_kv_shape *s) {
    return s->layers > 0 && s->layers <= 1 << 16 && s->kv_heads > 0 && s->kv_heads <= 1 << 12 &&
           s->head_dim > 0 && s->head_dim <= KV_MAX_HEAD_DIM && s->head_dim % 8 == 0;
}

size_t cpu_kv_block_bytes(const struct kn_kv_shape *s) {
    return cpu_kv_shape_ok(s) ? kv_block_values(s) * sizeof(uint16_t) : 0;
}

// Chunks are slices of a block, not pairs: pairs are then done in order, and one may read what an
// earlier one wrote.
void cpu_run_kv_copy(const void *params, struct cpu_task *t) {
    const struct cpu_kv_copy *c = params;
    enum { SLICE = 16384 };
    int32_t slices = (int32_t)((c->block_bytes + SLICE - 1) / SLICE);
    for (int32_t i; cpu_claim(t, slices, &i);) {
        size_t at = (size_t)i * SLICE;
        size_t n = c->block_bytes - at < SLICE ? c->block_bytes - at : SLICE;
        for (int32_t j = 0; j < c->n; j++) {
            const char *src = c->pool + (size_t)c->pairs[2 * j] * c->block_bytes + at;
            char *dst = c->pool + (size_t)c->pairs[2 * j + 1] * c->block_bytes + at;
            if (src != dst)
                memcpy(dst, src, n);
        }
    }
}

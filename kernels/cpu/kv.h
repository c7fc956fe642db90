// SPDX-License-Identifier: Apache-2.0
// Inside of a KV block: KN_KV_BLOCK positions of all layers. For each (layer, kv head) there is one
// contiguous part of bf16 values: first K as [head_dim / 2][16 positions][2], so that sixteen keys
// are the lanes of a vector and one 64-byte load brings two dimensions of each; then V as [8 pairs
// of positions][dims][2], so that one load brings two positions of sixteen dimensions. `dims` is
// head_dim rounded up to 16; what is beyond head_dim is never looked at. Both are the operand form
// of two-way bf16 dot products. Stateless.
#pragma once
#include "kernels/cpu/cpu_internal.h"

enum {
    KV_K_STEP = KN_KV_BLOCK * 2, // bf16 values from one pair of dimensions to the next
    KV_MAX_HEAD_DIM = 256,
};

static inline int32_t kv_dims(int32_t head_dim) {
    return (head_dim + 15) & ~15;
}
// bf16 values of one (layer, kv head).
static inline size_t kv_part_values(int32_t head_dim) {
    return (size_t)KN_KV_BLOCK * (size_t)(head_dim + kv_dims(head_dim));
}
static inline size_t kv_block_values(const struct kn_kv_shape *s) {
    return (size_t)s->layers * (size_t)s->kv_heads * kv_part_values(s->head_dim);
}
// Where K of (block, layer, kv head) starts; V is kv_v_offset values behind it.
static inline uint16_t *kv_part(kn_addr pool, const struct kn_kv_shape *s, int32_t block,
                                int32_t layer, int32_t head) {
    size_t at = (size_t)block * (size_t)s->layers + (size_t)layer;
    return (uint16_t *)pool +
           (at * (size_t)s->kv_heads + (size_t)head) * kv_part_values(s->head_dim);
}
static inline size_t kv_v_offset(int32_t head_dim) {
    return (size_t)KN_KV_BLOCK * (size_t)head_dim;
}

bool cpu_kv_shape_ok(const struct kn_kv_shape *s);
size_t cpu_kv_block_bytes(const struct kn_kv_shape *s); // 0 for a shape that is not supported

// Parameters of cpu_run_kv_copy: block pairs[2 i] goes to pairs[2 i + 1], in order.
struct cpu_kv_copy {
    char *pool;
    size_t block_bytes;
    const int32_t *pairs;
    int32_t n;
};
void cpu_run_kv_copy(const void *params, struct cpu_task *t);

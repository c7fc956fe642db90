// SPDX-License-Identifier: Apache-2.0
// What the files of checks (ops*.c) share: refusing, recording with a batch, common conditions. The
// host thread that drives the queue.
#pragma once
#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/kv.h"
#include <string.h>

static inline const struct cpu_isa *isa_of(struct kn_queue *q) {
    return cpu_queue_device(q)->isa;
}

static inline enum err refuse(struct kn_queue *q, const char *name, const char *why) {
    return cpu_queue_fail(q, ERR_INVALID, name, why);
}

// Records `params`, which start with a struct that holds a pointer to a batch at offset `at`, and
// lets it point to a copy: the caller's own may be gone when the command runs.
static inline enum err record_batch(struct kn_queue *q, const char *name, cpu_run_fn fn,
                                    const void *params, size_t bytes, size_t at,
                                    const struct kn_batch *batch) {
    _Alignas(16) char both[CPU_PARAM_BYTES];
    size_t tail = (bytes + 15) & ~(size_t)15;
    if (tail + sizeof *batch > sizeof both)
        return cpu_queue_fail(q, ERR_INTERNAL, name, "too many parameters");
    memset(both, 0, sizeof both);
    memcpy(both, params, bytes);
    memcpy(both + tail, batch, sizeof *batch);
    void *slot;
    enum err e = cpu_record_op(q, name, fn, both, tail + sizeof *batch, &slot);
    if (e || !slot)
        return e;
    const struct kn_batch *copy = (const struct kn_batch *)((char *)slot + tail);
    memcpy((char *)slot + at, &copy, sizeof(struct kn_batch *));
    return ERR_OK;
}
#define RECORD_BATCH(q, name, p)                                                                   \
    record_batch(q, #name, isa_of(q)->name, p, sizeof *(p), offsetof(struct kn_##name, batch),     \
                 (p)->batch)

// A batch that an operation over its tokens can use; n_tokens == 0 is for the caller to look at.
static inline bool batch_ok(const struct kn_batch *b) {
    return b && b->n_tokens >= 0 && b->n_seqs >= 0 && b->n_seqs <= b->n_tokens && b->n_out >= 0 &&
           b->max_blocks >= 0;
}

// Tokens of the batch: both 0, or not empty.
static inline bool tokens_ok(const struct kn_batch *b, int32_t begin, int32_t end) {
    return begin >= 0 && end <= b->n_tokens && (end ? begin < end : !begin);
}

static inline bool heads_ok(const struct kn_kv_shape *s, int32_t layer, int32_t heads) {
    return cpu_kv_shape_ok(s) && layer >= 0 && layer < s->layers && heads > 0 && heads <= 1 << 12 &&
           heads % s->kv_heads == 0;
}

// ops.c: the product, and what is wrong with its parameters (NULL: nothing); rows are not 0.
enum err cpu_op_gemm(struct kn_queue *q, const struct kn_gemm *p);
const char *cpu_gemm_wrong(const struct kn_gemm *p);

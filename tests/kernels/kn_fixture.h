// SPDX-License-Identifier: Apache-2.0
// What the kernel tests share: CPU devices of each ISA level, device arrays, batches, random
// numbers and the comparison of floats. Everything asserts with cmocka. Single-threaded.
#pragma once
#include "kernels/cpu/cpu_internal.h"
#include "kernels/device.h"
#include "tests/support/cmocka_all.h"
#include <stdint.h>

struct kn_fixture {
    const struct kn_ops *ops;
    struct kn_device *d;
    struct kn_queue *q;
    struct { // freed by kn_fixture_close
        kn_addr a;
        size_t bytes;
    } mem[256];
    int n_mem;
};

// The ISA levels this machine can run, NULL-terminated.
const char *const *kn_test_levels(void);
// Whether a level's attention rounds queries and weights to bf16.
bool kn_test_attn_rounds(const char *isa);
void kn_fixture_open(struct kn_fixture *f, const char *isa, int threads);
void kn_fixture_close(struct kn_fixture *f);

// Device memory, zeroed, or with a copy of n bytes.
kn_addr kn_test_alloc(struct kn_fixture *f, size_t bytes);
kn_addr kn_test_put(struct kn_fixture *f, const void *src, size_t bytes);
void kn_test_wait(struct kn_fixture *f);
// Value i of a quantised block, in steps of its d.
int32_t kn_test_q8_steps(const struct cpu_q8_block *b, int i);
// Gives back everything that was allocated since the fixture was opened.
void kn_test_free_all(struct kn_fixture *f);

// SplitMix64: the same numbers everywhere.
struct kn_rng {
    uint64_t s;
};
uint64_t kn_rng_u64(struct kn_rng *r);
int32_t kn_rng_below(struct kn_rng *r, int32_t n);
double kn_rng_uniform(struct kn_rng *r); // [0, 1)
float kn_rng_normal(struct kn_rng *r);
void kn_rng_fill(struct kn_rng *r, float *x, size_t n, float scale);

// For mem_free: n zeroed elements; a copy in double precision.
void *kn_zeros(size_t n, size_t size);
double *kn_doubles(const float *x, size_t n);
// Calls fn with each ISA level of this machine.
void kn_for_levels(void (*fn)(const char *isa));

// Distance of x from the exact value in units of the last place of a float near it.
double kn_ulp_error(float x, double exact);
// |a - b| <= atol + rtol * |b| for all n; fails with the place of the first that is not.
void kn_assert_close(const float *a, const double *b, size_t n, double rtol, double atol);
void kn_assert_same(const void *a, const void *b, size_t bytes);

// One sequence of a step: `n` new tokens at positions from `pos`, blocks at `blocks`.
struct kn_test_seq {
    int32_t pos, n;
    const int32_t *blocks;
    int32_t n_blocks;
};
// Puts a batch of them into device memory; ids are `ids` or 0.
void kn_test_batch(struct kn_fixture *f, const struct kn_test_seq *seqs, int n_seqs,
                   const int32_t *ids, struct kn_batch *out);

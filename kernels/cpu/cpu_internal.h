// SPDX-License-Identifier: Apache-2.0
// Inside the CPU backend: how an operation is recorded, how the pool's threads share it, and the
// table of functions that exist once per ISA level.
//
// A command is a function and a copy of its parameters. The pool's threads call the function, each
// with its own cpu_task, and share the work by claiming chunks from a counter (cpu_claim). A thread
// that has lost its core is not waited for unless it holds a chunk: it may come late to a command,
// or not at all. So a function does its work in claimed chunks only, and before the first claim it
// changes nothing that others see. The next command starts when all who came have returned. What a
// chunk computes never depends on who computes it or on how many threads there are.
//
// Each `.c` under isa/ is compiled once per ISA level with KN_ISA set to avx512bf16, avx512, avx2
// or portable; ISA(x) of isa/isa.h gives a function its suffix. 16-lane vectors come from
// isa/vec.h.
#pragma once
#include "kernels/device.h"
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

enum {
    CPU_MAX_THREADS = 256,
    CPU_SCRATCH_BYTES = 2 << 20, // per thread, 64-byte aligned; what is touched stays L2-sized
    CPU_SHARED_BYTES = 4 << 20,
};

struct cpu_command;

struct cpu_task {
    int tid, nt; // this thread, threads that may come
    struct kn_device *device;
    struct kn_queue *queue;
    struct cpu_command *command;
    void *scratch; // CPU_SCRATCH_BYTES of this thread's own; content is lost between commands
    void *shared;  // CPU_SHARED_BYTES of the threads of a command, for what a barrier hands over
    _Atomic int32_t *next;    // the command's claim counter, 0 when the command starts
    _Atomic int *failed;      // enum err; the first one stored wins
    struct cpu_share *shares; // [nt], see cpu_take
    uint64_t epoch;           // what tells this command's words in them from older ones
};

typedef void (*cpu_run_fn)(const void *params, struct cpu_task *t);

// Copies `bytes` (at most CPU_PARAM_BYTES) of params and appends the command. NULL as fn makes the
// queue fail with ERR_UNSUPPORTED when it gets there.
enum { CPU_PARAM_BYTES = 320 };
enum err cpu_record(struct kn_queue *q, cpu_run_fn fn, const void *params, size_t bytes);
struct kn_device *cpu_queue_device(const struct kn_queue *q);

// Claims the next chunk index below n; false when none is left.
static inline bool cpu_claim(struct cpu_task *t, int32_t n, int32_t *i) {
    if (t->nt == 1) { // nobody to share with: no locked instruction needed
        *i = atomic_load_explicit(t->next, memory_order_relaxed);
        atomic_store_explicit(t->next, *i + 1, memory_order_relaxed);
        return *i < n;
    }
    *i = atomic_fetch_add_explicit(t->next, 1, memory_order_relaxed);
    return *i < n;
}

// How far one thread's share of a command is taken: epoch << CPU_SHARE_BITS | units.
struct cpu_share {
    _Alignas(64) _Atomic uint64_t word;
};
enum { CPU_SHARE_BITS = 28 };

// Work [0, total) in units, total below 2^28, that threads take with affinity: each goes through a
// share of its own, so that it meets the same memory in every step, and then helps with the
// others'.
struct cpu_work {
    int32_t total, grain; // grain: units that are always taken together
    int32_t victim;       // 0 at first: whose share is looked at, counted from the own
};
// Takes the next units [*begin, *begin + *n); false when none are left. A command uses either this
// or cpu_claim between two barriers. Pieces shrink as the end of a share comes near.
bool cpu_take(struct cpu_task *t, struct cpu_work *w, int32_t *begin, int32_t *n);

void cpu_fail(struct cpu_task *t, enum err e);
// All threads that have come to the command meet (for commands of two phases): what was claimed
// before is done, the claim counter is 0 again, and no more threads come.
void cpu_barrier(struct cpu_task *t);

// A block of 32 activations as the integer products read it: value = d * n, where n is q, but for
// an outlier's, which is q + 128 * high. A block has one outlier at most, one that stands out so
// far that a step fit for it would be too coarse for the others.
struct cpu_q8_block {
    int8_t q[32];
    float d;
    float dsum;  // d * sum, for weight types with a minimum
    int32_t sum; // of n
    // Where the integer dot starts for weights stored with an offset: -offset * sum.
    int32_t off8; // Q8_0, stored as q + 128: -128 * sum
    int32_t off4; // Q4_0, stored as q + 8: -8 * sum
    int32_t high; // columns 4 * high_word..: the outlier's high at its byte, 0 elsewhere; 0: none
    int32_t high_word; // 0..7
    int32_t pad;       // 0
};                     // 64 bytes

enum { CPU_Q8_HIGH = 128 };

// Functions that exist once per ISA level. One table per level (isa/table.c), chosen when the
// device opens. The parameters are those of the operation (struct kn_gemm for gemm, ...), checked
// when they were recorded; a `batch` in them points to a copy that lives as long as the command.
// NULL: not built, reported as not supported.
struct cpu_isa {
    const char *name;
    bool (*supported)(void); // by this CPU and kernel
    // isa/gemm.c
    cpu_run_fn gemm, gemm_t;
    // isa/rows.c: norm, quantise, swiglu, embed, gather
    cpu_run_fn rmsnorm, quantize, swiglu, embed, gather;
    // isa/rope.c
    cpu_run_fn rope_table, rope_kv;
    // isa/attn.c
    cpu_run_fn attn;
    // isa/sample.c
    cpu_run_fn sample;
    // isa/lora_back.c
    cpu_run_fn lora_shrink_back, lora_dx, lora_grad;
    // isa/train_rows.c, train_step.c, attn_back.c
    cpu_run_fn xent, rmsnorm_back, swiglu_back, rope_back, scatter, grad_add, sumsq, adamw,
        attn_back;
    // isa/lora.c, isa/gemm_lora.c
    cpu_run_fn lora, gemm_lora;
    // isa/rows.c, for weights: quantise one row of k (multiple of 32) values
    void (*quantize_row)(const float *x, int32_t k, struct cpu_q8_block *out);
};
extern const struct cpu_isa cpu_isa_avx512bf16, cpu_isa_avx512, cpu_isa_avx2, cpu_isa_portable;

const struct cpu_isa *cpu_device_isa(const struct kn_device *d);

// The resident panel layout of a weight, which gemm, embed and weight_read share: weight.h.

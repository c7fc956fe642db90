// SPDX-License-Identifier: Apache-2.0
// The CPU device's own state, and what the files of this folder need of one another. Immutable
// after open but for the slabs, which have their lock, and the scratch memory and the shares,
// which belong to whoever runs on the pool.
#pragma once
#include "base/cpus.h"
#include "base/pool.h"
#include "kernels/cpu/cpu_internal.h"
#include "kernels/cpu/slab.h"

struct kn_device {
    struct pool *pool;
    const struct cpu_isa *isa;
    struct cpus cpus;
    struct cpu_slabs slabs; // the weights
    char *scratch;          // threads * CPU_SCRATCH_BYTES, then CPU_SHARED_BYTES
    int threads;
    struct cpu_share *shares; // [threads]
    _Atomic uint64_t epoch;   // given to commands; starts above 0, which fresh shares hold
};

// queue.c. As cpu_record, with a name for errors; *slot (may be NULL) is the copy of the
// parameters, which stays where it is until the queue has passed the command. *slot is NULL if the
// queue had failed before: then nothing is recorded.
enum err cpu_record_op(struct kn_queue *q, const char *name, cpu_run_fn fn, const void *params,
                       size_t bytes, void **slot);
// Says that the command whose parameters are at `slot` reads these bytes once, each thread a share
// in order of their numbers: threads that wait fetch the begin of theirs.
void cpu_record_stream(void *slot, const void *data, size_t bytes);
// Bytes that live as long as the commands recorded now; NULL makes the queue fail with ERR_NOMEM.
void *cpu_queue_stage(struct kn_queue *q, size_t bytes);
// Makes the error sticky, as if a command at this place had failed. Returns ERR_OK unless e is
// ERR_NOMEM: recording itself fails only for lack of memory.
enum err cpu_queue_fail(struct kn_queue *q, enum err e, const char *name, const char *why);

enum err cpu_queue_create(struct kn_device *d, struct kn_queue **out);
void cpu_queue_destroy(struct kn_queue *q);
enum err cpu_queue_submit(struct kn_queue *q);
enum err cpu_queue_wait(struct kn_queue *q, struct err_info *info);
enum err cpu_upload(struct kn_queue *q, kn_addr dst, const void *src, size_t bytes);
enum err cpu_download(struct kn_queue *q, void *dst, kn_addr src, size_t bytes);

// device.c
enum err cpu_open(const struct kn_device_config *cfg, struct kn_device **out,
                  struct err_info *info);
void cpu_close(struct kn_device *d);
void cpu_info(const struct kn_device *d, struct kn_device_info *out);
enum err cpu_alloc(struct kn_device *d, size_t bytes, kn_addr *out);
void cpu_free(struct kn_device *d, kn_addr a, size_t bytes);
void cpu_discard(struct kn_device *d, kn_addr a, size_t bytes);
void cpu_touch(struct kn_device *d, kn_addr a, size_t bytes);

// SPDX-License-Identifier: Apache-2.0
// Recording: commands go into blocks that are kept from step to step, and run (run.c) when the host
// waits. A recorded command does not move until the wait that runs it has returned. One host
// thread.
#include "base/mem.h"
#include "kernels/cpu/queue_internal.h"
#include <string.h>

enum { COPY_CHUNK = 1 << 18 };

struct kn_device *cpu_queue_device(const struct kn_queue *q) {
    return q->device;
}

enum err cpu_queue_create(struct kn_device *d, struct kn_queue **out) {
    *out = NULL;
    struct kn_queue *q = mem_aligned(64, sizeof *q);
    if (!q)
        return ERR_NOMEM;
    memset(q, 0, sizeof *q);
    q->device = d;
    arena_init(&q->staged, 0);
    q->first = q->last = mem_aligned(64, sizeof *q->first);
    if (!q->first) {
        cpu_queue_destroy(q);
        return ERR_NOMEM;
    }
    q->first->next = NULL;
    *out = q;
    return ERR_OK;
}

void cpu_queue_destroy(struct kn_queue *q) {
    if (!q)
        return;
    for (struct block *b = q->first, *next; b; b = next) {
        next = b->next;
        mem_free(b);
    }
    arena_fini(&q->staged);
    mem_free(q);
}

enum err cpu_queue_fail(struct kn_queue *q, enum err e, const char *name, const char *why) {
    if (!q->error.code)
        err_set(&q->error, e, NULL, "operation '%s': %s", name, why);
    return e == ERR_NOMEM ? e : ERR_OK;
}

static struct cpu_command *next_slot(struct kn_queue *q) {
    int at = q->n % BLOCK_COMMANDS;
    if (at == 0 && q->n > 0) {
        if (!q->last->next) {
            struct block *b = mem_aligned(64, sizeof *b);
            if (!b)
                return NULL;
            b->next = NULL;
            q->last->next = b;
        }
        q->last = q->last->next;
    }
    return &q->last->commands[at];
}

enum err cpu_record_op(struct kn_queue *q, const char *name, cpu_run_fn fn, const void *params,
                       size_t bytes, void **slot) {
    if (slot)
        *slot = NULL;
    if (q->error.code) // what would run after an error is skipped anyway
        return q->error.code == ERR_NOMEM ? ERR_NOMEM : ERR_OK;
    if (!fn)
        return cpu_queue_fail(q, ERR_UNSUPPORTED, name, "not built for this CPU");
    if (bytes > CPU_PARAM_BYTES)
        return cpu_queue_fail(q, ERR_INTERNAL, name, "too many parameters");
    struct cpu_command *c = next_slot(q);
    if (!c)
        return cpu_queue_fail(q, ERR_NOMEM, name, "no memory to record it");
    atomic_store_explicit(&c->next, 0, memory_order_relaxed);
    atomic_store_explicit(&c->state, 0, memory_order_relaxed);
    c->fn = fn;
    c->name = name;
    c->stream = NULL;
    if (bytes)
        memcpy(c->params, params, bytes);
    if (slot)
        *slot = c->params;
    q->n++;
    return ERR_OK;
}

enum err cpu_record(struct kn_queue *q, cpu_run_fn fn, const void *params, size_t bytes) {
    return cpu_record_op(q, "command", fn, params, bytes, NULL);
}

void cpu_record_stream(void *slot, const void *data, size_t bytes) {
    struct cpu_command *c =
        (struct cpu_command *)(void *)((char *)slot - offsetof(struct cpu_command, params));
    c->stream = data;
    c->stream_bytes = bytes;
}

void *cpu_queue_stage(struct kn_queue *q, size_t bytes) {
    void *p = arena_alloc(&q->staged, bytes);
    if (!p)
        cpu_queue_fail(q, ERR_NOMEM, "stage", "no memory");
    return p;
}

enum err cpu_queue_submit(struct kn_queue *q) {
    (void)q; // the waiting thread does a share of the work: nothing starts before it waits
    return ERR_OK;
}

// Runs all that was recorded; the first failure becomes the queue's error.
static void run_recorded(struct kn_queue *q) {
    enum err e = q->n > 0 ? cpu_queue_run(q) : ERR_OK;
    if (e) // it ran before anything that was refused while recording
        err_set(&q->error, e, NULL, "operation '%s': %s", q->failed_name, err_text(e));
}

enum err cpu_queue_wait(struct kn_queue *q, struct err_info *info) {
    run_recorded(q);
    enum err e = q->error.code;
    if (e && info)
        *info = q->error;
    q->error.code = ERR_OK;
    q->n = 0;
    q->last = q->first;
    arena_reset(&q->staged);
    return e;
}

// ---- copies between host and device memory, which are the same here

struct copy {
    void *dst;
    const void *src;
    size_t bytes;
};

static void run_copy(const void *params, struct cpu_task *t) {
    const struct copy *c = params;
    int32_t chunks = (int32_t)((c->bytes + COPY_CHUNK - 1) / COPY_CHUNK);
    for (int32_t i; cpu_claim(t, chunks, &i);) {
        size_t at = (size_t)i * COPY_CHUNK;
        size_t n = c->bytes - at < COPY_CHUNK ? c->bytes - at : COPY_CHUNK;
        memcpy((char *)c->dst + at, (const char *)c->src + at, n);
    }
}

enum err cpu_upload(struct kn_queue *q, kn_addr dst, const void *src, size_t bytes) {
    if (bytes == 0)
        return ERR_OK;
    if (!dst || !src)
        return cpu_queue_fail(q, ERR_INVALID, "upload", "no address");
    if (q->error.code)
        return q->error.code == ERR_NOMEM ? ERR_NOMEM : ERR_OK;
    if (q->n == 0) {
        memcpy((void *)dst, src, bytes);
        return ERR_OK;
    }
    // Commands before it may still read the old content: it takes its place among them.
    void *copy = cpu_queue_stage(q, bytes);
    if (!copy)
        return ERR_NOMEM;
    memcpy(copy, src, bytes);
    struct copy c = {(void *)dst, copy, bytes};
    return cpu_record_op(q, "upload", run_copy, &c, sizeof c, NULL);
}

enum err cpu_download(struct kn_queue *q, void *dst, kn_addr src, size_t bytes) {
    if (bytes == 0)
        return ERR_OK;
    if (!dst || !src)
        return cpu_queue_fail(q, ERR_INVALID, "download", "no address");
    if (q->n == 0 && !q->error.code) { // nothing to wait for, and no thread of the pool to take
        memcpy(dst, (const void *)src, bytes);
        return ERR_OK;
    }
    struct copy c = {dst, (const void *)src, bytes};
    return cpu_record_op(q, "download", run_copy, &c, sizeof c, NULL);
}

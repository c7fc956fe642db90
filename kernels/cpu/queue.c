// SPDX-License-Identifier: Apache-2.0
// Commands are recorded into blocks that are kept from step to step, and run when the host waits:
// the waiting thread is thread 0 of the pool. Invariants:
// 1. Commands run in the order of recording, one at a time: `current` is the one that threads may
//    come to.
// 2. A thread comes to a command (come_to) unless it is closed, and leaves it (leave). The last one
//    to leave closes it; so does the last one to reach a barrier in it. Both are one word, so that
//    nobody can come to a command that is over.
// 3. Who closes a finished command decides alone how it goes on: with the next one, or, after an
//    error, not at all.
// 4. A recorded command does not move until the wait that runs it has returned.
#include "base/arena.h"
#include "base/gate.h"
#include "base/mem.h"
#include "kernels/cpu/cpu_device.h"
#include <string.h>

enum {
    BLOCK_COMMANDS = 64,
    COPY_CHUNK = 1 << 18,
    COMMAND_PHASES = 8, // epochs of one command: one more than it may have barriers
};

// A command's state: threads that have come, of these arrived at its end (or at its next barrier),
// and whether more may come.
enum { COME_ONE = 1, COME_MASK = 0x7fff, ARRIVED_SHIFT = 15, ARRIVED_ONE = 1 << ARRIVED_SHIFT };
#define CLOSED ((uint32_t)1 << 31)

struct cpu_command {
    _Alignas(64) _Atomic int32_t next; // claim counter, on one line with the state
    _Atomic uint32_t state;
    _Alignas(64) cpu_run_fn fn;
    const char *name;
    _Alignas(16) char params[CPU_PARAM_BYTES];
};

struct block {
    struct block *next;
    struct cpu_command commands[BLOCK_COMMANDS];
};

struct kn_queue {
    struct kn_device *device;
    struct block *first, *last; // last: where the next command goes
    int n;                      // commands recorded
    struct arena staged;
    struct err_info error; // code ERR_OK: none; set while recording or by the run
    // While the commands run:
    struct gate current; // index of the command that runs; n when all is over
    struct gate phase;   // counts barriers inside commands
    _Atomic int failed;  // enum err of the first failure
    const char *failed_name;
    uint64_t epoch; // of the first command
};

struct kn_device *cpu_queue_device(struct kn_queue *q) {
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

void *cpu_queue_stage(struct kn_queue *q, size_t bytes) {
    void *p = arena_alloc(&q->staged, bytes);
    if (!p)
        cpu_queue_fail(q, ERR_NOMEM, "stage", "no memory");
    return p;
}

// ---- running

void cpu_fail(struct cpu_task *t, enum err e) {
    int none = ERR_OK;
    atomic_compare_exchange_strong(t->failed, &none, (int)e);
}

static bool come_to(struct cpu_command *c) {
    uint32_t s = atomic_load_explicit(&c->state, memory_order_relaxed);
    do {
        if (s & CLOSED)
            return false;
    } while (!atomic_compare_exchange_weak_explicit(&c->state, &s, s + COME_ONE,
                                                    memory_order_acquire, memory_order_relaxed));
    return true;
}

// True for the last of those who have come; the command is then closed to others.
static bool last_to_arrive(struct cpu_command *c) {
    uint32_t s = atomic_load_explicit(&c->state, memory_order_relaxed), to;
    do {
        uint32_t come = s & COME_MASK, arrived = (s & ~CLOSED) >> ARRIVED_SHIFT;
        to = arrived + 1 == come ? come | CLOSED : s + ARRIVED_ONE;
    } while (!atomic_compare_exchange_weak_explicit(&c->state, &s, to, memory_order_acq_rel,
                                                    memory_order_relaxed));
    return (to >> ARRIVED_SHIFT) == CLOSED >> ARRIVED_SHIFT;
}

// Takes from the share of thread v. The next counter counts the shares that are used up.
static bool take_from(struct cpu_task *t, const struct cpu_work *w, int v, int32_t *begin,
                      int32_t *n) {
    int32_t first = (int32_t)((int64_t)w->total * v / t->nt);
    int32_t size = (int32_t)((int64_t)w->total * (v + 1) / t->nt) - first, taken, take;
    uint64_t word = atomic_load_explicit(&t->shares[v].word, memory_order_relaxed), to;
    do {
        taken = word >> CPU_SHARE_BITS == t->epoch
                    ? (int32_t)(word & (((uint64_t)1 << CPU_SHARE_BITS) - 1))
                    : 0; // left by an earlier command
        int32_t left = size - taken;
        if (left <= 0)
            return false;
        take = left / 4 > w->grain ? left / 4 : w->grain;
        take = take < left ? take : left;
        to = t->epoch << CPU_SHARE_BITS | (uint64_t)(taken + take);
    } while (!atomic_compare_exchange_weak_explicit(&t->shares[v].word, &word, to,
                                                    memory_order_relaxed, memory_order_relaxed));
    if (taken + take == size)
        atomic_fetch_add_explicit(t->next, 1, memory_order_relaxed);
    *begin = first + taken;
    *n = take;
    return true;
}

bool cpu_take(struct cpu_task *t, struct cpu_work *w, int32_t *begin, int32_t *n) {
    if (t->nt == 1) {
        *begin = 0;
        *n = w->total;
        return w->victim++ == 0 && w->total > 0;
    }
    int32_t shares = w->total < t->nt ? w->total : t->nt; // those that are not empty
    for (; w->victim < t->nt; w->victim++) {
        int v = t->tid + w->victim;
        if (take_from(t, w, v < t->nt ? v : v - t->nt, begin, n))
            return true;
        if (atomic_load_explicit(t->next, memory_order_relaxed) >= shares)
            return false;
    }
    return false;
}

void cpu_barrier(struct cpu_task *t) {
    struct kn_queue *q = t->queue;
    t->epoch++;
    if (t->nt == 1) {
        atomic_store_explicit(t->next, 0, memory_order_relaxed);
        return;
    }
    uint32_t phase = atomic_load_explicit(&q->phase.word, memory_order_relaxed);
    if (last_to_arrive(t->command)) {
        atomic_store_explicit(t->next, 0, memory_order_relaxed);
        gate_set(&q->phase, phase + 1);
    } else {
        gate_wait(&q->phase, phase, pool_spins(q->device->pool));
    }
}

// What comes after command i, decided by the last thread to leave it.
static uint32_t after(struct kn_queue *q, const struct cpu_command *c, uint32_t i) {
    if (atomic_load_explicit(&q->failed, memory_order_relaxed) == ERR_OK)
        return i + 1;
    q->failed_name = c->name;
    return (uint32_t)q->n;
}

static struct cpu_task make_task(struct kn_queue *q, int tid, int nt) {
    return (struct cpu_task){
        .tid = tid,
        .nt = nt,
        .device = q->device,
        .queue = q,
        .scratch = q->device->scratch + (size_t)tid * CPU_SCRATCH_BYTES,
        .failed = &q->failed,
        .shares = q->device->shares,
    };
}

// A place in the list of blocks that only moves on.
struct cursor {
    struct block *block;
    uint32_t first; // index of the block's first command
};

static struct cpu_command *command_at(struct cursor *c, uint32_t i) {
    while (i - c->first >= BLOCK_COMMANDS) {
        c->block = c->block->next;
        c->first += BLOCK_COMMANDS;
    }
    return &c->block->commands[i - c->first];
}

static void run_alone(struct kn_queue *q) {
    struct cpu_task t = make_task(q, 0, 1);
    struct cursor at = {q->first, 0};
    for (uint32_t i = 0; i < (uint32_t)q->n;) {
        struct cpu_command *c = command_at(&at, i);
        t.next = &c->next;
        c->fn(c->params, &t);
        i = after(q, c, i);
    }
}

static void run_commands(void *arg, int tid, int nt) {
    struct kn_queue *q = arg;
    if (nt == 1) {
        run_alone(q);
        return;
    }
    struct cpu_task t = make_task(q, tid, nt);
    struct cursor at = {q->first, 0};
    int spins = pool_spins(q->device->pool);
    for (;;) {
        uint32_t i = atomic_load_explicit(&q->current.word, memory_order_acquire);
        if (i >= (uint32_t)q->n)
            return;
        struct cpu_command *c = command_at(&at, i);
        bool last = false;
        if (come_to(c)) {
            t.command = c;
            t.next = &c->next;
            t.epoch = q->epoch + (uint64_t)i * COMMAND_PHASES;
            c->fn(c->params, &t);
            last = last_to_arrive(c);
        }
        if (last)
            gate_set(&q->current, after(q, c, i));
        else
            gate_wait(&q->current, i, spins);
    }
}

enum err cpu_queue_submit(struct kn_queue *q) {
    (void)q; // the waiting thread does a share of the work: nothing starts before it waits
    return ERR_OK;
}

// Runs all that was recorded; the first failure becomes the queue's error.
static void run_recorded(struct kn_queue *q) {
    if (q->n == 0)
        return;
    q->epoch = atomic_fetch_add_explicit(&q->device->epoch, (uint64_t)q->n * COMMAND_PHASES,
                                         memory_order_relaxed);
    atomic_store_explicit(&q->current.word, 0, memory_order_relaxed);
    atomic_store_explicit(&q->failed, ERR_OK, memory_order_relaxed);
    pool_share(q->device->pool, run_commands, q);
    int e = atomic_load_explicit(&q->failed, memory_order_relaxed);
    if (e) // it ran before anything that was refused while recording
        err_set(&q->error, (enum err)e, NULL, "operation '%s': %s", q->failed_name,
                err_text((enum err)e));
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
    struct copy c = {dst, (const void *)src, bytes};
    return cpu_record_op(q, "download", run_copy, &c, sizeof c, NULL);
}

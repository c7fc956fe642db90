// SPDX-License-Identifier: Apache-2.0
// Running commands: the waiting thread is thread 0 of the pool, the workers help. Invariants:
// 1. Commands run in the order of recording, one at a time: `current` is the one that threads may
//    come to.
// 2. A thread comes to a command (come_to) unless it is closed, and leaves it (last_to_arrive). The
//    last one to leave closes it; so does the last one to reach a barrier in it. Both are one word,
//    so that nobody can come to a command that is over.
// 3. Who closes a finished command decides alone how it goes on: with the next one, or, after an
//    error, not at all.
// 4. Words of the shares carry the epoch of their command, so that nobody has to reset them.
#include "kernels/cpu/queue_internal.h"

enum {
    COMMAND_PHASES = 8, // epochs of one command: one more than it may have barriers
    WARM_BYTES = 128 << 10,
    WARM_COMMANDS = 16, // how far a waiting thread looks for a stream
    LINE = 64,
};

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
        .shared = q->device->scratch + (size_t)q->device->threads * CPU_SCRATCH_BYTES,
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

// A thread that waits for command i to end fetches the begin of its share of the next stream, while
// memory has nothing else to do.
struct warm {
    uint32_t index; // the command whose stream is being fetched
    size_t at, end; // bytes of the stream
    const char *stream;
};

static void warm_start(struct warm *w, struct kn_queue *q, struct cursor at, uint32_t i, int tid,
                       int nt) {
    if (i < w->index)
        return; // still on the way to it
    *w = (struct warm){.index = i + 1};
    uint32_t last = (uint32_t)q->n - i > WARM_COMMANDS ? i + WARM_COMMANDS : (uint32_t)q->n - 1;
    for (uint32_t j = i + 1; j <= last; j++) {
        const struct cpu_command *c = command_at(&at, j);
        w->index = j;
        if (!c->stream)
            continue;
        w->stream = c->stream;
        w->at = c->stream_bytes / (size_t)nt * (size_t)tid & ~(size_t)(LINE - 1);
        w->end = c->stream_bytes / (size_t)nt * (size_t)(tid + 1);
        if (w->end - w->at > WARM_BYTES)
            w->end = w->at + WARM_BYTES;
        return;
    }
}

static void wait_warming(struct warm *w, struct kn_queue *q, uint32_t i, int spins) {
    enum { AT_ONCE = 4 * LINE };
    while (w->at < w->end) {
        if (atomic_load_explicit(&q->current.word, memory_order_acquire) != i)
            return;
        for (size_t o = 0; o < AT_ONCE; o += LINE)
            __builtin_prefetch(w->stream + w->at + o, 0, 2);
        w->at += AT_ONCE;
    }
    gate_wait(&q->current, i, spins);
}

static void run_commands(void *arg, int tid, int nt) {
    struct kn_queue *q = arg;
    if (nt == 1) {
        run_alone(q);
        return;
    }
    struct cpu_task t = make_task(q, tid, nt);
    struct cursor at = {q->first, 0};
    struct warm warm = {0};
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
        if (last) {
            gate_set(&q->current, after(q, c, i));
        } else {
            warm_start(&warm, q, at, i, tid, nt);
            wait_warming(&warm, q, i, spins);
        }
    }
}

enum err cpu_queue_run(struct kn_queue *q) {
    q->epoch = atomic_fetch_add_explicit(&q->device->epoch, (uint64_t)q->n * COMMAND_PHASES,
                                         memory_order_relaxed);
    atomic_store_explicit(&q->current.word, 0, memory_order_relaxed);
    atomic_store_explicit(&q->failed, ERR_OK, memory_order_relaxed);
    pool_share(q->device->pool, run_commands, q);
    return (enum err)atomic_load_explicit(&q->failed, memory_order_relaxed);
}

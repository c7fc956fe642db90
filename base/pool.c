// SPDX-License-Identifier: Apache-2.0
#include "base/pool.h"
#include "base/clock.h"
#include "base/mem.h"
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <unistd.h>

enum {
    SPIN_NS = 30000, // about what sleeping and waking cost together
    CACHE_LINE = 64,
};

// A word that others change and that threads wait for: spin, then sleep.
struct gate {
    _Alignas(CACHE_LINE) _Atomic uint32_t word;
    _Alignas(CACHE_LINE) _Atomic int sleepers;
};

struct worker {
    struct pool *pool;
    pthread_t thread;
    int tid;
};

struct pool {
    struct gate start; // counts runs; workers wait for it between runs
    struct gate meet;  // counts barriers
    _Alignas(CACHE_LINE) _Atomic int arrived;
    _Alignas(CACHE_LINE) int nt;
    int spins; // pauses before a waiter sleeps
    bool stop;
    pool_fn fn;
    void *arg;
    pthread_mutex_t lock; // one pool_run at a time
    int started;          // workers that exist
    struct worker workers[];
};

static inline void cpu_pause(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static long futex(_Atomic uint32_t *word, int op, uint32_t val) {
    return syscall(SYS_futex, word, op | FUTEX_PRIVATE_FLAG, val, NULL, NULL, 0);
}

static void gate_open(struct gate *g) {
    atomic_fetch_add(&g->word, 1);
    // A sleeper counts itself before the kernel compares the word, so either it is seen here or its
    // futex call returns at once.
    if (atomic_load(&g->sleepers))
        futex(&g->word, FUTEX_WAKE, INT_MAX);
}

// Waits until the word is no longer `old`.
static void gate_wait(struct gate *g, uint32_t old, int spins) {
    for (int i = 0; i < spins; i++) {
        if (atomic_load_explicit(&g->word, memory_order_acquire) != old)
            return;
        cpu_pause();
    }
    atomic_fetch_add(&g->sleepers, 1);
    while (atomic_load(&g->word) == old)
        futex(&g->word, FUTEX_WAIT, old);
    atomic_fetch_sub(&g->sleepers, 1);
}

bool pool_meet(struct pool *p) {
    if (p->nt == 1)
        return true;
    // The word cannot move before this thread has arrived.
    uint32_t old = atomic_load_explicit(&p->meet.word, memory_order_relaxed);
    if (atomic_fetch_add(&p->arrived, 1) == p->nt - 1)
        return true;
    gate_wait(&p->meet, old, p->spins);
    return false;
}

void pool_release(struct pool *p) {
    if (p->nt == 1)
        return;
    atomic_store_explicit(&p->arrived, 0, memory_order_relaxed);
    gate_open(&p->meet);
}

static void *worker_main(void *arg) {
    struct worker *w = arg;
    struct pool *p = w->pool;
    for (uint32_t run = 0;; run++) {
        gate_wait(&p->start, run, p->spins);
        if (p->stop)
            return NULL;
        p->fn(p->arg, w->tid, p->nt);
        pool_barrier(p);
    }
}

void pool_run(struct pool *p, pool_fn fn, void *arg) {
    pthread_mutex_lock(&p->lock);
    p->fn = fn;
    p->arg = arg;
    if (p->nt > 1)
        gate_open(&p->start);
    fn(arg, 0, p->nt);
    pool_barrier(p);
    pthread_mutex_unlock(&p->lock);
}

// Pauses that take about SPIN_NS. Their length differs by a factor of ten between CPUs.
static int spins_for(const struct pool_config *cfg) {
    cpu_set_t own;
    int cpus = cfg->cpus ? cfg->n_cpus : 0;
    if (!cfg->cpus)
        cpus = sched_getaffinity(0, sizeof own, &own) == 0 ? CPU_COUNT(&own) : cfg->threads;
    if (cfg->threads > cpus) // whoever spins holds up another of our own threads
        return 0;
    enum { SAMPLE = 200 };
    int64_t best = INT64_MAX;
    for (int round = 0; round < 3; round++) {
        int64_t t0 = clock_mono_ns(&clock_system);
        for (int i = 0; i < SAMPLE; i++)
            cpu_pause();
        int64_t t = clock_mono_ns(&clock_system) - t0;
        best = t < best ? t : best;
    }
    int64_t n = (int64_t)SPIN_NS * SAMPLE / (best > 0 ? best : 1);
    return n < 100 ? 100 : n > 30000 ? 30000 : (int)n;
}

static void set_cpus(pthread_attr_t *attr, const struct pool_config *cfg, int tid) {
    if (!cfg->cpus || cfg->n_cpus < 1)
        return;
    cpu_set_t set;
    CPU_ZERO(&set);
    for (int i = 0; i < cfg->n_cpus; i++) {
        int cpu = cfg->cpus[i];
        if ((!cfg->one_cpu_each || i == tid % cfg->n_cpus) && cpu >= 0 && cpu < CPU_SETSIZE)
            CPU_SET((size_t)cpu, &set);
    }
    // A CPU may have gone away since the list was made; the thread then runs where it may.
    if (CPU_COUNT(&set) > 0)
        (void)pthread_attr_setaffinity_np(attr, sizeof set, &set);
}

static int start_worker(struct pool *p, const struct pool_config *cfg, int tid) {
    struct worker *w = &p->workers[tid - 1];
    *w = (struct worker){.pool = p, .tid = tid};
    pthread_attr_t attr;
    if (pthread_attr_init(&attr) != 0)
        return -1;
    set_cpus(&attr, cfg, tid);
    int rc = pthread_create(&w->thread, &attr, worker_main, w);
    pthread_attr_destroy(&attr);
    if (rc != 0) // affinity that the kernel refuses fails the creation
        rc = pthread_create(&w->thread, NULL, worker_main, w);
    return rc;
}

enum err pool_create(const struct pool_config *cfg, struct pool **out, struct err_info *info) {
    *out = NULL;
    if (cfg->threads < 1 || cfg->threads > POOL_MAX_THREADS)
        return err_set(info, ERR_INVALID, "threads", "threads must be 1 to %d, not %d",
                       POOL_MAX_THREADS, cfg->threads);
    size_t bytes = sizeof(struct pool) + (size_t)(cfg->threads - 1) * sizeof(struct worker);
    struct pool *p = mem_aligned(CACHE_LINE, bytes);
    if (!p)
        return err_set(info, ERR_NOMEM, NULL, "no memory for the thread pool");
    *p = (struct pool){.nt = cfg->threads, .spins = cfg->threads > 1 ? spins_for(cfg) : 0};
    pthread_mutex_init(&p->lock, NULL);
    for (int tid = 1; tid < p->nt; tid++, p->started++) {
        if (start_worker(p, cfg, tid) != 0) {
            enum err e =
                err_set(info, ERR_NOMEM, NULL, "cannot start compute thread %d of %d", tid, p->nt);
            pool_destroy(p);
            return e;
        }
    }
    *out = p;
    return ERR_OK;
}

void pool_destroy(struct pool *p) {
    if (!p)
        return;
    p->stop = true;
    gate_open(&p->start);
    for (int i = 0; i < p->started; i++)
        pthread_join(p->workers[i].thread, NULL);
    pthread_mutex_destroy(&p->lock);
    mem_free(p);
}

int pool_threads(const struct pool *p) {
    return p->nt;
}

// SPDX-License-Identifier: Apache-2.0
// A run has a state word: its number, whether it is closed, and how many workers are in it. A
// worker enters the run that is open, once; thread 0 closes the run when it has returned from fn
// and waits until nobody is inside. fn and arg change only while the run is closed and empty.
#include "base/pool.h"
#include "base/gate.h"
#include "base/mem.h"
#include "base/thread.h"
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>

#define RUN_CLOSED ((uint64_t)1 << 31)
#define RUN_INSIDE (RUN_CLOSED - 1) // mask of the count
#define RUN_NUMBER(state) ((uint32_t)((state) >> 32))

struct worker {
    struct pool *pool;
    pthread_t thread;
    int tid;
};

struct pool {
    struct gate start; // the number of the last run; workers wait for it
    struct gate done;  // counts how often the last worker left a closed run
    struct gate came;  // workers that have left the run, for pool_run
    _Alignas(64) _Atomic uint64_t state;
    _Alignas(64) int nt;
    int spins; // pauses before a waiter sleeps
    _Atomic bool stop;
    pool_fn fn;
    void *arg;
    struct lock lock; // one run at a time
    uint32_t run;     // number of the last run
    int started;      // workers that exist
    struct worker workers[];
};

// Enters the open run unless it is number `last`. Its number, or `last`.
static uint32_t enter(struct pool *p, uint32_t last) {
    uint64_t s = atomic_load_explicit(&p->state, memory_order_relaxed);
    do {
        if ((s & RUN_CLOSED) || RUN_NUMBER(s) == last)
            return last;
    } while (!atomic_compare_exchange_weak_explicit(&p->state, &s, s + 1, memory_order_acquire,
                                                    memory_order_relaxed));
    return RUN_NUMBER(s);
}

static void leave(struct pool *p) {
    uint64_t s = atomic_fetch_sub(&p->state, 1) - 1;
    if ((s & RUN_CLOSED) && !(s & RUN_INSIDE))
        gate_set(&p->done, RUN_NUMBER(s));
}

static void *worker_main(void *arg) {
    struct worker *w = arg;
    struct pool *p = w->pool;
    uint32_t seen = 0, last = 0;
    for (;;) {
        gate_wait(&p->start, seen, p->spins);
        seen = atomic_load_explicit(&p->start.word, memory_order_acquire);
        if (atomic_load(&p->stop))
            return NULL;
        uint32_t run = enter(p, last);
        if (run == last)
            continue;
        last = run;
        p->fn(p->arg, w->tid, p->nt);
        leave(p);
    }
}

static void open_run(struct pool *p, pool_fn fn, void *arg) {
    p->fn = fn;
    p->arg = arg;
    if (++p->run == 0) // 0 is what workers start from
        p->run = 1;
    atomic_store(&p->state, (uint64_t)p->run << 32);
    gate_set(&p->start, p->run);
}

static void close_run(struct pool *p) {
    if (!(atomic_fetch_or(&p->state, RUN_CLOSED) & RUN_INSIDE))
        return;
    for (uint32_t done; (done = atomic_load(&p->done.word)) != p->run;)
        gate_wait(&p->done, done, p->spins);
}

void pool_share(struct pool *p, pool_fn fn, void *arg) {
    lock_take(&p->lock);
    atomic_store_explicit(&p->came.word, 0, memory_order_relaxed);
    if (p->nt == 1) {
        fn(arg, 0, 1);
    } else {
        open_run(p, fn, arg);
        fn(arg, 0, p->nt);
        close_run(p);
    }
    lock_drop(&p->lock);
}

struct every {
    struct pool *pool;
    pool_fn fn;
    void *arg;
};

static void run_every(void *arg, int tid, int nt) {
    struct every *e = arg;
    e->fn(e->arg, tid, nt);
    struct gate *came = &e->pool->came;
    gate_add(came, 1);
    if (tid != 0)
        return;
    // Thread 0 keeps the run open until all have been in it.
    for (uint32_t n; (n = atomic_load(&came->word)) != (uint32_t)nt;)
        gate_wait(came, n, e->pool->spins);
}

void pool_run(struct pool *p, pool_fn fn, void *arg) {
    struct every e = {p, fn, arg};
    if (p->nt == 1)
        pool_share(p, fn, arg); // nobody to count
    else
        pool_share(p, run_every, &e);
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

static bool start_worker(struct pool *p, const struct pool_config *cfg, int tid) {
    struct worker *w = &p->workers[tid - 1];
    *w = (struct worker){.pool = p, .tid = tid};
    pthread_attr_t attr;
    if (pthread_attr_init(&attr) != 0)
        return false;
    set_cpus(&attr, cfg, tid);
    int rc = pthread_create(&w->thread, &attr, worker_main, w);
    pthread_attr_destroy(&attr);
    if (rc != 0) // affinity that the kernel refuses fails the creation
        rc = pthread_create(&w->thread, NULL, worker_main, w);
    if (rc == 0)
        (void)pthread_setname_np(w->thread, "compute");
    return rc == 0;
}

// Spinning helps only where each thread has a CPU to itself; else it holds up another of ours.
static int spins_for(const struct pool_config *cfg) {
    cpu_set_t own;
    int cpus = cfg->n_cpus;
    if (!cfg->cpus)
        cpus = sched_getaffinity(0, sizeof own, &own) == 0 ? CPU_COUNT(&own) : cfg->threads;
    return cfg->threads > 1 && cfg->threads <= cpus ? gate_spins() : 0;
}

enum err pool_create(const struct pool_config *cfg, struct pool **out, struct err_info *info) {
    *out = NULL;
    if (cfg->threads < 1 || cfg->threads > POOL_MAX_THREADS)
        return err_set(info, ERR_INVALID, "threads", "threads must be 1 to %d, not %d",
                       POOL_MAX_THREADS, cfg->threads);
    size_t bytes = sizeof(struct pool) + (size_t)(cfg->threads - 1) * sizeof(struct worker);
    struct pool *p = mem_aligned(64, bytes);
    if (!p)
        return err_set(info, ERR_NOMEM, NULL, "no memory for the thread pool");
    *p = (struct pool){.nt = cfg->threads, .spins = spins_for(cfg), .state = RUN_CLOSED};
    lock_init(&p->lock);
    for (int tid = 1; tid < p->nt; tid++, p->started++) {
        if (!start_worker(p, cfg, tid)) {
            int n = p->nt;
            pool_destroy(p);
            return err_set(info, ERR_NOMEM, NULL, "cannot start compute thread %d of %d", tid, n);
        }
    }
    *out = p;
    return ERR_OK;
}

void pool_destroy(struct pool *p) {
    if (!p)
        return;
    atomic_store(&p->stop, true);
    gate_add(&p->start, 1);
    for (int i = 0; i < p->started; i++)
        pthread_join(p->workers[i].thread, NULL);
    lock_fini(&p->lock);
    mem_free(p);
}

int pool_threads(const struct pool *p) {
    return p->nt;
}

int pool_spins(const struct pool *p) {
    return p->spins;
}

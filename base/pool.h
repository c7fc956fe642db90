// SPDX-License-Identifier: Apache-2.0
// A persistent pool of compute threads. The caller of pool_run is thread 0, so that a pool of one
// costs nothing. Barriers spin for some tens of microseconds at most, then sleep on a futex: a
// sleeping thread leaves its core to one that was pushed off its own.
//
// Any thread may call pool_run; calls exclude each other. pool_meet and pool_release are for the
// function that pool_run runs.
#pragma once
#include "base/err.h"
#include <stdbool.h>
#include <stddef.h>

struct pool;
typedef void (*pool_fn)(void *arg, int tid, int nt);

enum { POOL_MAX_THREADS = 256 };

struct pool_config {
    int threads; // 1..POOL_MAX_THREADS, the caller's included
    // CPUs the workers may run on, in the order in which threads take them. NULL: where the
    // creating thread may run.
    const int *cpus;
    int n_cpus;
    bool one_cpu_each; // worker t on cpus[t % n_cpus] alone; else each on the whole set
};

enum err pool_create(const struct pool_config *cfg, struct pool **out, struct err_info *info);
void pool_destroy(struct pool *p); // NULL is legal
int pool_threads(const struct pool *p);

// Runs fn(arg, tid, nt) on every thread, tid 0 on the caller's; returns when all have returned.
void pool_run(struct pool *p, pool_fn fn, void *arg);

// A barrier in two halves. pool_meet returns in all threads once all have arrived: true in one of
// them, while the others still wait; that one may change what they share and must call
// pool_release.
bool pool_meet(struct pool *p);
void pool_release(struct pool *p);
static inline void pool_barrier(struct pool *p) {
    if (pool_meet(p))
        pool_release(p);
}

// SPDX-License-Identifier: Apache-2.0
// A persistent pool of compute threads. The caller of a run is thread 0, so that a pool of one
// costs nothing. Any thread may start a run; runs exclude each other.
//
// A thread that lost its core must not hold up the others where it can be helped: pool_share does
// not wait for workers that come too late, and between runs workers sleep after a short spin.
#pragma once
#include "base/err.h"
#include <stdbool.h>
#include <stddef.h>

struct pool;
typedef void (*pool_fn)(void *arg, int tid, int nt);

enum { POOL_MAX_THREADS = 256 };

struct pool_config {
    int threads; // 1..POOL_MAX_THREADS, the caller's included
    // CPUs the workers may run on. NULL: where the creating thread may run.
    const int *cpus;
    int n_cpus;
    bool one_cpu_each; // worker t on cpus[t % n_cpus] alone; else each on the whole set
};

enum err pool_create(const struct pool_config *cfg, struct pool **out, struct err_info *info);
void pool_destroy(struct pool *p); // NULL is legal
int pool_threads(const struct pool *p);
int pool_spins(const struct pool *p); // for gate_wait between the pool's threads

// fn(arg, tid, nt) exactly once on each thread; returns when all have returned.
void pool_run(struct pool *p, pool_fn fn, void *arg);
// fn on thread 0 and on those workers that come before thread 0 returns from it; returns when those
// have returned too. The work must be claimed, not divided by tid.
void pool_share(struct pool *p, pool_fn fn, void *arg);

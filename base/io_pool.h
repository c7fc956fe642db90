// SPDX-License-Identifier: Apache-2.0
// A few threads for work that waits on the disk, so that no event loop does. First come, first
// served. A job is the caller's memory until its `run` is called, and may be freed or submitted
// again inside it.
#pragma once
#include "base/err.h"
#include "base/pace.h"
#include <stddef.h>

struct io_pool;

struct io_job {
    void (*run)(struct io_job *job); // on one of the pool's threads
    struct pace *pace;               // set for `run`: that of a gentle pool's thread, else NULL
    struct io_job *next__;
};

// `waiting`: how many jobs io_pool_submit lets wait.
enum err io_pool_create(int threads, size_t waiting, struct io_pool **out);
// For work that computes, too, and that nobody waits for in earnest: its threads have a low
// priority, and each has a pace for its jobs, with bursts of `burst_ns` between which `rest` is
// called.
struct io_gentle {
    int64_t burst_ns;
    void (*rest)(void *arg); // on the pool's threads; NULL: they do not rest
    void *arg;
};
enum err io_pool_create_gentle(int threads, size_t waiting, const struct io_gentle *how,
                               struct io_pool **out);
// Everything that was submitted has run when this returns. Nobody submits any more, but for the
// jobs themselves.
void io_pool_destroy(struct io_pool *p); // NULL is legal

// Any thread; never blocks. ERR_AGAIN: too many wait.
enum err io_pool_submit(struct io_pool *p, struct io_job *job);
// For the next step of what was begun before: always accepted.
void io_pool_go_on(struct io_pool *p, struct io_job *job);

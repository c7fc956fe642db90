// SPDX-License-Identifier: Apache-2.0
// A request whose answer waits on the disk: its work runs in the I/O pool, its answer is given on
// the request's loop. A task begins on the loop, is handed to the pool, comes back with `done`, and
// so on until the loop ends it. The two sides never have it at the same time: while it is `busy`,
// it is the pool's.
//
// When the client goes away or the server stops, `done` does not come any more: `drop` does, once,
// in the pool, and frees what the task holds.
#pragma once
#include "base/buf.h"
#include "base/io_pool.h"
#include "gateway/http.h"
#include <stdatomic.h>
#include <stdbool.h>

struct api_task {
    struct io_job job__;
    struct io_pool *io;
    struct gw_loop *loop;
    struct gw_request *r;             // NULL once the client is gone; only the loop looks at it
    bool busy;                        // handed over; only the loop looks at it
    _Atomic bool gone;                // for the pool: the answer is not wanted any more
    void (*work)(struct api_task *t); // in the pool
    void (*done)(struct api_task *t); // on the loop, after each work
    void (*drop)(struct api_task *t); // any thread: frees what it holds and itself (mem_free)
};

// Begins a task of `size` bytes (zeroed) whose first member is a struct api_task, and sets the
// request's on_close. NULL: the request was answered with an error.
void *api_task_begin(struct gw_request *r, struct io_pool *io, size_t size);
// Hands it to the pool. The first time it may be refused: then the request was answered and the
// task dropped.
bool api_task_start(struct api_task *t);
void api_task_go_on(struct api_task *t);
// The request was answered. Calls drop here.
void api_task_end(struct api_task *t);

// What on_close does; a task with an on_close of its own calls it at its end.
void api_task_closed(struct gw_request *r);

// ---- the usual case: one work, then a JSON body or an error

struct api_answer {
    struct api_task task;
    // In the pool: writes the body of a 200.
    enum err (*make)(struct api_answer *a, struct err_info *info);
    void (*fini)(struct api_answer *a); // any thread; may be NULL
    struct buf body;
    struct err_info error;
};
// `size` as above, with a struct api_answer first. NULL: the request was answered.
void *api_answer_begin(struct gw_request *r, struct io_pool *io, size_t size,
                       enum err (*make)(struct api_answer *a, struct err_info *info));
void api_answer_start(struct api_answer *a); // and that is all

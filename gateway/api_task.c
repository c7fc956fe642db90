// SPDX-License-Identifier: Apache-2.0
#include "gateway/api_task.h"
#include "base/mem.h"
#include <time.h>

static void turn(void *arg) {
    struct api_task *t = arg;
    t->busy = false;
    if (t->r)
        t->done(t);
    else
        io_pool_go_on(t->io, &t->job__); // to be dropped there
}

// In the pool.
static void run(struct io_job *job) {
    struct api_task *t = (struct api_task *)(void *)job;
    if (atomic_load(&t->gone)) {
        t->drop(t);
        return;
    }
    t->work(t);
    // Refused without memory, or when the loop has ended: then on_close has been called, or will
    // be.
    while (!gw_loop_post(t->loop, turn, t)) {
        if (atomic_load(&t->gone)) {
            t->drop(t);
            return;
        }
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
}

void api_task_closed(struct gw_request *r) {
    struct api_task *t = r->handler;
    bool busy = t->busy;
    struct io_pool *io = t->io;
    struct io_job *job = &t->job__;
    t->r = NULL;
    atomic_store(&t->gone, true);
    // From here on a busy task may be freed at any time.
    if (!busy)
        io_pool_go_on(io, job);
}

void *api_task_begin(struct gw_request *r, struct io_pool *io, size_t size) {
    struct api_task *t = mem_zalloc(size);
    if (!t) {
        struct err_info info;
        err_set(&info, ERR_NOMEM, NULL, "out of memory");
        gw_reply_error(r, &info);
        return NULL;
    }
    t->job__.run = run;
    t->io = io;
    t->loop = r->loop;
    t->r = r;
    r->handler = t;
    r->on_close = api_task_closed;
    return t;
}

bool api_task_start(struct api_task *t) {
    t->busy = true;
    if (!io_pool_submit(t->io, &t->job__))
        return true;
    struct err_info info;
    t->busy = false;
    err_set(&info, ERR_AGAIN, NULL, "too many requests wait for the disk; try again");
    gw_reply_error(t->r, &info);
    api_task_end(t);
    return false;
}

void api_task_go_on(struct api_task *t) {
    t->busy = true;
    io_pool_go_on(t->io, &t->job__);
}

void api_task_end(struct api_task *t) {
    t->drop(t);
}

// ---- one work, one answer

static void answer_work(struct api_task *t) {
    struct api_answer *a = (struct api_answer *)t;
    a->error.code = a->make(a, &a->error);
    if (!a->error.code && buf_err(&a->body))
        err_set(&a->error, ERR_NOMEM, NULL, "out of memory while answering");
}

static void answer_done(struct api_task *t) {
    struct api_answer *a = (struct api_answer *)t;
    if (a->error.code)
        gw_reply_error(t->r, &a->error);
    else
        gw_reply(t->r, 200, "application/json", a->body.data, a->body.len);
    api_task_end(t);
}

static void answer_drop(struct api_task *t) {
    struct api_answer *a = (struct api_answer *)t;
    if (a->fini)
        a->fini(a);
    buf_fini(&a->body);
    mem_free(a);
}

void *api_answer_begin(struct gw_request *r, struct io_pool *io, size_t size,
                       enum err (*make)(struct api_answer *a, struct err_info *info)) {
    struct api_answer *a = api_task_begin(r, io, size);
    if (!a)
        return NULL;
    a->task.work = answer_work;
    a->task.done = answer_done;
    a->task.drop = answer_drop;
    a->make = make;
    return a;
}

void api_answer_start(struct api_answer *a) {
    (void)api_task_start(&a->task);
}

// SPDX-License-Identifier: Apache-2.0
#include "base/io_pool.h"
#include "base/mem.h"
#include "base/thread.h"
#include <signal.h>
#include <stdbool.h>
#include <sys/resource.h>

struct io_pool {
    struct lock lock;
    pthread_cond_t ready;
    struct io_job *head, **tail;
    size_t waiting, max_waiting;
    bool closing, gentle;
    struct io_gentle how;
    int n_threads, running; // started; in a job
    struct thread threads[];
};

static struct io_job *take(struct io_pool *p) {
    struct io_job *job = p->head;
    p->head = job->next__;
    if (!p->head)
        p->tail = &p->head;
    p->waiting--;
    return job;
}

static void *worker_main(void *arg) {
    enum { NICER = 12 }; // about a fifteenth of what a thread of the usual priority gets
    struct io_pool *p = arg;
    struct pace pace = {.burst_ns = p->how.burst_ns, .rest = p->how.rest, .arg = p->how.arg};
    if (p->gentle) // of this thread alone; refused: then it is as others are
        (void)setpriority(PRIO_PROCESS, 0, getpriority(PRIO_PROCESS, 0) + NICER);
    lock_take(&p->lock);
    for (;;) {
        // A running job may submit another one: the pool is done when none waits and none runs.
        while (!p->head && !(p->closing && p->running == 0))
            pthread_cond_wait(&p->ready, &p->lock.mutex);
        if (!p->head)
            break;
        struct io_job *job = take(p);
        p->running++;
        lock_drop(&p->lock);
        job->pace = pace.rest ? &pace : NULL;
        pace_begin(job->pace);
        job->run(job);
        lock_take(&p->lock);
        p->running--;
        if (p->closing && p->running == 0)
            pthread_cond_broadcast(&p->ready);
    }
    lock_drop(&p->lock);
    return NULL;
}

static enum err create(int threads, size_t waiting, const struct io_gentle *how,
                       struct io_pool **out) {
    *out = NULL;
    struct io_pool *p = mem_zalloc(sizeof *p + (size_t)threads * sizeof p->threads[0]);
    if (!p)
        return ERR_NOMEM;
    lock_init(&p->lock);
    pthread_cond_init(&p->ready, NULL);
    p->tail = &p->head;
    p->max_waiting = waiting;
    p->gentle = how;
    if (how)
        p->how = *how;
    // Signals are the main thread's.
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    enum err e = ERR_OK;
    while (!e && p->n_threads < threads) {
        e = thread_start(&p->threads[p->n_threads], "graft-io", worker_main, p);
        p->n_threads += !e;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (e) {
        io_pool_destroy(p);
        return e;
    }
    *out = p;
    return ERR_OK;
}

enum err io_pool_create(int threads, size_t waiting, struct io_pool **out) {
    return create(threads, waiting, NULL, out);
}

enum err io_pool_create_gentle(int threads, size_t waiting, const struct io_gentle *how,
                               struct io_pool **out) {
    return create(threads, waiting, how, out);
}

void io_pool_destroy(struct io_pool *p) {
    if (!p)
        return;
    lock_take(&p->lock);
    p->closing = true;
    pthread_cond_broadcast(&p->ready);
    lock_drop(&p->lock);
    for (int i = 0; i < p->n_threads; i++)
        thread_join(&p->threads[i]);
    pthread_cond_destroy(&p->ready);
    lock_fini(&p->lock);
    mem_free(p);
}

static enum err add(struct io_pool *p, struct io_job *job, size_t max) {
    enum err e = ERR_AGAIN;
    job->next__ = NULL;
    lock_take(&p->lock);
    if (p->waiting < max) {
        *p->tail = job;
        p->tail = &job->next__;
        p->waiting++;
        pthread_cond_signal(&p->ready);
        e = ERR_OK;
    }
    lock_drop(&p->lock);
    return e;
}

enum err io_pool_submit(struct io_pool *p, struct io_job *job) {
    return add(p, job, p->max_waiting);
}

void io_pool_go_on(struct io_pool *p, struct io_job *job) {
    (void)add(p, job, (size_t)-1);
}

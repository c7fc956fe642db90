// SPDX-License-Identifier: Apache-2.0
#include "base/thread.h"
#include <assert.h>
#include <errno.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { SLICE_NS = 100000 }; // the least that the kernel takes

void lock_init(struct lock *l) {
    int rc = pthread_mutex_init(&l->mutex, NULL);
    assert(rc == 0); // a default mutex needs no resources
    (void)rc;
}

void lock_fini(struct lock *l) {
    pthread_mutex_destroy(&l->mutex);
}

void lock_take(struct lock *l) {
    pthread_mutex_lock(&l->mutex);
}

void lock_drop(struct lock *l) {
    pthread_mutex_unlock(&l->mutex);
}

enum err thread_start(struct thread *t, const char *name, void *(*fn)(void *), void *arg) {
    int rc = pthread_create(&t->id, NULL, fn, arg);
    if (rc)
        return rc == EAGAIN ? ERR_NOMEM : ERR_INTERNAL;
    char cut[16]; // the kernel's limit
    snprintf(cut, sizeof cut, "%.15s", name);
    pthread_setname_np(t->id, cut);
    return ERR_OK;
}

void thread_wake_soon(void) {
    struct { // sched_setattr(2); the C library has no wrapper in all versions
        uint32_t size, policy;
        uint64_t flags;
        int32_t nice;
        uint32_t priority;
        uint64_t runtime, deadline, period;
    } a = {.size = sizeof a, .runtime = SLICE_NS};
    int was = sched_getscheduler(0);
    if (was != SCHED_OTHER) // somebody chose: leave it
        return;
    a.nice = getpriority(PRIO_PROCESS, 0);
    (void)syscall(SYS_sched_setattr, 0, &a, 0);
}

void thread_join(struct thread *t) {
    pthread_join(t->id, NULL);
}

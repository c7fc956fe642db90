// SPDX-License-Identifier: Apache-2.0
// Locks and threads. Mutexes are used in base/ and handed out from here only; everything else
// passes messages.
#pragma once
#include "base/err.h"
#include <pthread.h>

struct lock {
    pthread_mutex_t mutex;
};
void lock_init(struct lock *l);
void lock_fini(struct lock *l);
void lock_take(struct lock *l);
void lock_drop(struct lock *l);

struct thread {
    pthread_t id;
};
// `name` shows in ps and top (15 characters at most).
enum err thread_start(struct thread *t, const char *name, void *(*fn)(void *), void *arg);
void thread_join(struct thread *t);
// For a thread that does little each time it wakes: asks the kernel to run the calling thread soon
// after it has become ready, although threads that compute hold all CPUs. A shorter slice than
// theirs, which gives no more time in all (EEVDF, Linux 6.12 and later); elsewhere nothing changes.
void thread_wake_soon(void);

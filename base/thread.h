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

// SPDX-License-Identifier: Apache-2.0
// A ring under a mutex with a condition variable. The critical sections are a few instructions
// long, so that senders meet rarely; the receiver sleeps only when the ring is empty.
#include "base/mailbox.h"
#include "base/mem.h"
#include "base/thread.h"
#include <time.h>

struct mailbox {
    struct lock lock;
    pthread_cond_t ready;
    size_t cap, reserved; // cap counts the reserved places too
    size_t head, count;
    bool woken, waiting;
    void **ring;
};

enum err mailbox_create(size_t capacity, size_t reserved, struct mailbox **out) {
    size_t cap;
    if (!capacity || !mem_add(capacity, reserved, &cap))
        return ERR_INVALID;
    struct mailbox *m = mem_zalloc(sizeof *m);
    if (!m)
        return ERR_NOMEM;
    m->ring = mem_calloc(cap, sizeof *m->ring);
    pthread_condattr_t attr;
    if (!m->ring || pthread_condattr_init(&attr)) {
        mem_free(m->ring);
        mem_free(m);
        return ERR_NOMEM;
    }
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&m->ready, &attr);
    pthread_condattr_destroy(&attr);
    lock_init(&m->lock);
    m->cap = cap;
    m->reserved = reserved;
    *out = m;
    return ERR_OK;
}

void mailbox_destroy(struct mailbox *m) {
    if (!m)
        return;
    pthread_cond_destroy(&m->ready);
    lock_fini(&m->lock);
    mem_free(m->ring);
    mem_free(m);
}

static enum err send_within(struct mailbox *m, void *msg, size_t limit) {
    enum err rc = ERR_AGAIN;
    lock_take(&m->lock);
    if (m->count < limit) {
        m->ring[(m->head + m->count) % m->cap] = msg;
        m->count++;
        rc = ERR_OK;
        if (m->waiting)
            pthread_cond_signal(&m->ready);
    }
    lock_drop(&m->lock);
    return rc;
}

enum err mailbox_send(struct mailbox *m, void *msg) {
    return send_within(m, msg, m->cap - m->reserved);
}

enum err mailbox_send_urgent(struct mailbox *m, void *msg) {
    return send_within(m, msg, m->cap);
}

void *mailbox_take(struct mailbox *m) {
    void *msg = NULL;
    lock_take(&m->lock);
    if (m->count) {
        msg = m->ring[m->head];
        m->head = (m->head + 1) % m->cap;
        m->count--;
    }
    lock_drop(&m->lock);
    return msg;
}

static struct timespec deadline_after(int64_t ns) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    ns += t.tv_nsec;
    t.tv_sec += ns / 1000000000;
    t.tv_nsec = ns % 1000000000;
    return t;
}

bool mailbox_wait(struct mailbox *m, int64_t timeout_ns) {
    struct timespec until = {0};
    if (timeout_ns > 0)
        until = deadline_after(timeout_ns);
    lock_take(&m->lock);
    m->waiting = true;
    while (!m->count && !m->woken && timeout_ns != 0) {
        int rc = timeout_ns < 0 ? pthread_cond_wait(&m->ready, &m->lock.mutex)
                                : pthread_cond_timedwait(&m->ready, &m->lock.mutex, &until);
        if (rc)
            break;
    }
    m->waiting = false;
    m->woken = false;
    bool any = m->count > 0;
    lock_drop(&m->lock);
    return any;
}

void mailbox_wake(struct mailbox *m) {
    lock_take(&m->lock);
    m->woken = true;
    if (m->waiting)
        pthread_cond_signal(&m->ready);
    lock_drop(&m->lock);
}

size_t mailbox_count(const struct mailbox *m) {
    struct lock *l = (struct lock *)(uintptr_t)&m->lock; // the lock is not part of the value
    lock_take(l);
    size_t n = m->count;
    lock_drop(l);
    return n;
}

// SPDX-License-Identifier: Apache-2.0
// Waiting for what another thread does. The limit only ends a test that would hang: a loaded
// machine may take its time, so nothing is ever concluded from how long it took.
#pragma once
#include "tests/support/cmocka_all.h"
#include "tests/support/must.h"
#include <semaphore.h>
#include <stdbool.h>
#include <time.h>

enum { WAIT_MOST_S = 120 };

struct wait {
    int64_t until_s; // 0: not begun
};

static inline int64_t wait_now_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec;
}

static inline void wait_nap(void) {
    nanosleep(&(struct timespec){.tv_nsec = 500000}, NULL);
}

// Sleeps for a moment; false once WAIT_MOST_S have passed since the first call.
static inline bool wait_more(struct wait *w) {
    int64_t now = wait_now_s();
    w->until_s = w->until_s ? w->until_s : now + WAIT_MOST_S;
    wait_nap();
    return now < w->until_s;
}

// For any thread: a post that never comes ends the program.
static inline void wait_post(sem_t *s) {
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += WAIT_MOST_S;
    MUST(sem_timedwait(s, &until) == 0);
}

// Waits until the condition holds; fails the test with its text where it never does.
#define wait_until(cond)                                                                           \
    do {                                                                                           \
        struct wait wait_ = {0};                                                                   \
        while (!(cond))                                                                            \
            if (!wait_more(&wait_))                                                                \
                fail_msg("never came true: %s", #cond);                                            \
    } while (0)

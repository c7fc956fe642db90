// SPDX-License-Identifier: Apache-2.0
#include "base/pace.h"
#include <time.h>

static int64_t now(const struct pace *p) {
    return clock_mono_ns(p->clock ? p->clock : &clock_system);
}

void pace_begin(struct pace *p) {
    if (p)
        p->begun_ns = now(p);
}

void pace_point(struct pace *p) {
    if (!p || now(p) - p->begun_ns < p->burst_ns)
        return;
    p->rest(p->arg);
    p->begun_ns = now(p);
}

void pace_sleep(int64_t ns) {
    const struct timespec t = {.tv_sec = ns / 1000000000, .tv_nsec = ns % 1000000000};
    (void)nanosleep(&t, NULL);
}

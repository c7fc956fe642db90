// SPDX-License-Identifier: Apache-2.0
// Time, injectable. Deadlines and durations use the monotonic clock, in nanoseconds; wall time is
// for people and for `created` fields only.
#pragma once
#include <stdint.h>

struct clock {
    int64_t (*mono_ns)(void *arg); // CLOCK_MONOTONIC
    int64_t (*wall_ns)(void *arg); // Unix epoch
    void *arg;
};

extern const struct clock clock_system;

static inline int64_t clock_mono_ns(const struct clock *c) {
    return c->mono_ns(c->arg);
}
static inline int64_t clock_wall_ns(const struct clock *c) {
    return c->wall_ns(c->arg);
}

// A clock that tests move by hand; other threads may read it meanwhile.
struct clock_manual {
    struct clock clock; // pass &m->clock on
    _Atomic int64_t mono, wall;
};
void clock_manual_init(struct clock_manual *m, int64_t mono_ns, int64_t wall_ns);
void clock_manual_advance(struct clock_manual *m, int64_t ns);

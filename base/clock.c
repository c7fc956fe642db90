// SPDX-License-Identifier: Apache-2.0
#include "base/clock.h"
#include <time.h>

static int64_t read_ns(clockid_t id) {
    struct timespec t;
    clock_gettime(id, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static int64_t system_mono(void *arg) {
    (void)arg;
    return read_ns(CLOCK_MONOTONIC);
}

static int64_t system_wall(void *arg) {
    (void)arg;
    return read_ns(CLOCK_REALTIME);
}

const struct clock clock_system = {system_mono, system_wall, NULL};

static int64_t manual_mono(void *arg) {
    return ((struct clock_manual *)arg)->mono;
}

static int64_t manual_wall(void *arg) {
    return ((struct clock_manual *)arg)->wall;
}

void clock_manual_init(struct clock_manual *m, int64_t mono_ns, int64_t wall_ns) {
    *m = (struct clock_manual){{manual_mono, manual_wall, m}, mono_ns, wall_ns};
}

void clock_manual_advance(struct clock_manual *m, int64_t ns) {
    m->mono += ns;
    m->wall += ns;
}

// SPDX-License-Identifier: Apache-2.0
// Computing in short bursts, for threads that share the CPUs with others that somebody waits for. A
// low priority alone decides how much of a CPU such a thread gets in the long run, but the kernel
// hands that out in whole ticks, which is as long as a step of an engine takes.
//
// One thread per object. Work that may take longer than a burst takes a `struct pace *` (NULL: need
// not rest) and calls pace_point where it can be interrupted: at least after each 100 µs or so of
// work, and never with a lock held.
#pragma once
#include "base/clock.h"

struct pace {
    const struct clock *clock; // NULL: system
    int64_t burst_ns;          // how long it may go on without a rest
    void (*rest)(void *arg);   // sleeps, or returns at once if nobody is disturbed
    void *arg;
    int64_t begun_ns; // private: when this burst began
};
void pace_begin(struct pace *p); // a burst begins; NULL is legal
void pace_point(struct pace *p); // rests if the burst is over; NULL is legal
void pace_sleep(int64_t ns);     // for `rest`; this thread sleeps, a signal ends it early

// SPDX-License-Identifier: Apache-2.0
// Who used the engine's time: steps, slices of background work, neither. In all, and over the last
// minute. Written by the engine's thread, read by any.
//
// Durations are counted in buckets that are 2% apart, so a quantile is at most 2% too high.
#pragma once
#include "base/thread.h"
#include "serving/engine.h"
#include <stddef.h>
#include <stdint.h>

enum {
    ENG__DURATIONS = 840, // buckets, from 1 us to about 16 s
    ENG__PERIODS = 12,    // of 5 s: the recent time
};

struct eng__durations {
    uint64_t n;
    int64_t most_ns;
    uint32_t count[ENG__DURATIONS];
};

struct eng__period {
    int64_t number; // counted from the clock's zero
    int64_t serving_ns, background_ns;
    struct eng__durations slices, gaps;
};

struct eng__usage {
    struct lock lock;
    int64_t start_ns;
    int64_t margin_ns, slice_ns; // the governor's, for readers
    struct eng__period all, recent[ENG__PERIODS];
};

void eng__usage_init(struct eng__usage *u, int64_t now_ns);
void eng__usage_fini(struct eng__usage *u);
void eng__usage_step(struct eng__usage *u, int64_t now_ns, int64_t ns);
void eng__usage_slice(struct eng__usage *u, int64_t now_ns, int64_t ns);
// What the governor does now, for readers.
void eng__usage_governor(struct eng__usage *u, int64_t margin_ns, int64_t slice_ns);
void eng__usage_gap(struct eng__usage *u, int64_t now_ns, int64_t ns); // between two tokens
void eng__usage_read(struct eng__usage *u, int64_t now_ns, struct eng_shares *recent,
                     struct eng_shares *all);

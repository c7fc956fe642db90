// SPDX-License-Identifier: Apache-2.0
// How much time background work may have. Knows times and targets, no clock, no engine: the step
// loop says when its next step must begin at the latest, and tells afterwards what slices and steps
// took.
//
//   gov_allowance   how long background work may run now
//   gov_slice       a slice was run: its overrun bounds the next ones
//   gov_step        a step behind background work has ended: its error becomes the margin
//   gov_gap         time between two tokens: one behind background work and beyond its target
//                   widens the margin
//
// Invariants
// 1. Without a target nothing is allowed while a sequence can be stepped.
// 2. A slice is never allowed to be longer than `slice_ns`: whoever arrives waits for one. Of the
//    slices of late, 99 in 100 lasted GOV_SLICE_MOST_NS at most, overrun included, as far as
//    GOV_SLICE_LEAST_NS allows.
// 3. The margin is what 99.2% of the steps behind background work were late by, and up to an eighth
//    of the target more while more than 0.8% of the tokens behind it are late all the same.
//    Lateness of other steps says nothing about it. A margin that leaves nothing shrinks, so that
//    it is tried again.
//
// One owner, the engine's thread. No allocation.
#pragma once
#include <stdbool.h>
#include <stdint.h>

enum {
    GOV_WINDOW = 1000, // slices, and steps, that are remembered
    GOV_SLICE_MOST_NS =
        4500000, // a slice with its overrun: 5 ms, less what the next 1,000 may differ by
    GOV_SLICE_LONGEST_NS = 3000000, // asked for
    GOV_SLICE_LEAST_NS = 500000,    // asked for, whatever the overrun is
    GOV_WORTH_NS = 250000,          // less time than this is not handed out
    GOV_FIRST_MARGIN_NS = 2000000,  // while little is known
    GOV_LEAST_MARGIN_NS = 300000,
};

struct gov_config {
    int64_t itl_ns, ttft_ns; // targets; 0: none
};

// What a client sees of a target: a token is on its way to it for a while, not always for the same.
enum { GOV_WAY_PART = 16, GOV_WAY_MOST_NS = 2000000 };

struct gov_window { // the newest values, oldest overwritten
    int32_t n, at;
    int64_t value[GOV_WINDOW];
    int64_t top; // what all but few are at or below
};

struct governor {
    struct gov_config cfg; // targets of the engine: those of its clients less the way to them
    struct gov_window overrun, error;
    int64_t slice_ns;  // how long a slice may be
    int64_t margin_ns; // kept free in front of each step
    int64_t extra_ns;  // of the margin: for tokens that came too late
    bool behind;       // the newest step was behind background work
    bool refused;      // since the last step, because of the margin
    int32_t refusals;
};

struct gov_view {
    int64_t now_ns;
    bool can_step;    // some sequence can be stepped
    int64_t begin_ns; // when the next step must begin at the latest; INT64_MIN: at once
};

// cfg: targets as clients see them.
void gov_init(struct governor *g, const struct gov_config *cfg);
// Nanoseconds; 0: none.
int64_t gov_allowance(struct governor *g, const struct gov_view *v);
void gov_slice(struct governor *g, int64_t allowed_ns, int64_t used_ns);
// late_ns: the step's end, against the slice's begin + what it was allowed + what the step was
// expected to take. May be negative.
void gov_step(struct governor *g, int64_t late_ns);
// The longest time between two tokens of a choice that this step gave.
void gov_gap(struct governor *g, int64_t gap_ns);

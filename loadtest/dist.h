// SPDX-License-Identifier: Apache-2.0
// Random numbers and length distributions of a load test; the same seed gives the same load.
#pragma once
#include "base/err.h"
#include <stdint.h>

struct lt_rng {
    uint64_t state;
};
uint64_t lt_rng_next(struct lt_rng *r); // SplitMix64
double lt_rng_unit(struct lt_rng *r);   // in (0, 1]
double lt_rng_exponential(struct lt_rng *r, double mean);

enum lt_dist_kind { LT_FIXED, LT_UNIFORM, LT_NORMAL, LT_LOGNORMAL };

struct lt_dist {
    enum lt_dist_kind kind;
    double a,
        b; // fixed: a; uniform: a..b; normal: mean a, deviation b; lognormal: median a, sigma b
    int32_t min, max;
};

// "128", "uniform:16:512", "normal:200:50", "lognormal:150:0.8", each with an optional ":MIN:MAX"
// behind.
enum err lt_dist_parse(const char *text, int32_t min, struct lt_dist *out, struct err_info *info);
int32_t lt_dist_draw(const struct lt_dist *d, struct lt_rng *r);

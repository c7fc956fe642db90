// SPDX-License-Identifier: Apache-2.0
// Samples of a load test and what is reported of them. All samples are kept: percentiles are exact.
#pragma once
#include "base/err.h"
#include "loadtest/check.h"
#include <stddef.h>
#include <stdint.h>

struct lt_series {
    double *v;
    size_t n, cap;
};
enum err lt_series_add(struct lt_series *s, double v);
void lt_series_fini(struct lt_series *s);

struct lt_summary {
    size_t n;
    double mean, p50, p90, p99, max;
};
// Nearest-rank percentiles; sorts the series. Zeros if it is empty.
struct lt_summary lt_series_summary(struct lt_series *s);

struct lt_stats {
    struct lt_series ttft, itl, e2e; // seconds; ttft and e2e from the arrival
    int64_t sent, ok, faults[LT_FAULTS];
    char first_fault[224];
    int64_t prompt_tokens, completion_tokens,
        live_tokens; // live: content events so far, for the progress line
    double seconds;  // from the first send to the last answer
};
void lt_stats_fini(struct lt_stats *s);

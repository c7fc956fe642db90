// SPDX-License-Identifier: Apache-2.0
// Counters, gauges and histograms with Prometheus text exposition. Metrics are made at start
// (registry not shared yet); updates are atomic and may come from any thread; exposition runs
// beside them.
#pragma once
#include "base/buf.h"
#include <stddef.h>
#include <stdint.h>

struct metrics;   // the registry
struct metric;    // one series (a name and a fixed set of labels)
struct histogram; // one histogram series

struct metrics *metrics_create(void);
void metrics_destroy(struct metrics *m);

// `labels` as they stand between the braces (`reason="stop"`), or NULL. The same name may be made
// several times with other labels; help and type come from the first. NULL when out of memory;
// updates of NULL are legal and do nothing.
struct metric *metrics_counter(struct metrics *m, const char *name, const char *labels,
                               const char *help);
struct metric *metrics_gauge(struct metrics *m, const char *name, const char *labels,
                             const char *help);
// Upper bounds ascending, without +Inf; copied.
struct histogram *metrics_histogram(struct metrics *m, const char *name, const char *labels,
                                    const char *help, const double *bounds, size_t n);
// A second name (other labels) for the same numbers: vLLM's names for graft's metrics.
void metrics_alias(struct metrics *m, const struct metric *of, const char *name, const char *labels,
                   const char *help);
void metrics_alias_histogram(struct metrics *m, const struct histogram *of, const char *name,
                             const char *labels, const char *help);

// From the start on a series is left out of the exposition until it has counted something. Before
// the registry is shared; NULL is legal.
void metric_when_used(struct metric *c);
void histogram_when_used(struct histogram *h);

void metric_add(struct metric *c, double v); // counters: v >= 0
void metric_set(struct metric *g, double v);
double metric_get(const struct metric *g);
void histogram_observe(struct histogram *h, double v);
uint64_t histogram_count(const struct histogram *h);
double histogram_sum(const struct histogram *h);

// Escapes a label value into out (`name="value"` pieces are the caller's).
void metrics_escape_label(struct buf *out, const char *value);
// Text format 0.0.4, families in the order of their making.
void metrics_expose(const struct metrics *m, struct buf *out);

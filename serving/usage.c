// SPDX-License-Identifier: Apache-2.0
#include "serving/usage.h"
#include <math.h>
#include <string.h>

static const int64_t period_ns = 5000000000;
static const double first_ns = 1000, growth = 1.02;

static int32_t bucket_of(int64_t ns) {
    if ((double)ns <= first_ns)
        return 0;
    double b = ceil(log((double)ns / first_ns) / log(growth));
    return b < ENG__DURATIONS - 1 ? (int32_t)b : ENG__DURATIONS - 1;
}

static void count(struct eng__durations *d, int64_t ns, int32_t bucket) {
    d->n++;
    d->count[bucket]++;
    d->most_ns = ns > d->most_ns ? ns : d->most_ns;
}

// The period that now_ns is in, emptied if it held an older one.
static struct eng__period *period_at(struct eng__usage *u, int64_t now_ns) {
    int64_t number = now_ns / period_ns;
    struct eng__period *p = &u->recent[number % ENG__PERIODS];
    if (p->number != number) {
        memset(p, 0, sizeof *p);
        p->number = number;
    }
    return p;
}

void eng__usage_init(struct eng__usage *u, int64_t now_ns) {
    memset(u, 0, sizeof *u);
    lock_init(&u->lock);
    u->start_ns = now_ns;
}

void eng__usage_fini(struct eng__usage *u) {
    lock_fini(&u->lock);
}

void eng__usage_step(struct eng__usage *u, int64_t now_ns, int64_t ns) {
    lock_take(&u->lock);
    u->all.serving_ns += ns;
    period_at(u, now_ns)->serving_ns += ns;
    lock_drop(&u->lock);
}

void eng__usage_slice(struct eng__usage *u, int64_t now_ns, int64_t ns) {
    int32_t b = bucket_of(ns);
    lock_take(&u->lock);
    struct eng__period *p = period_at(u, now_ns);
    u->all.background_ns += ns;
    p->background_ns += ns;
    count(&u->all.slices, ns, b);
    count(&p->slices, ns, b);
    lock_drop(&u->lock);
}

void eng__usage_governor(struct eng__usage *u, int64_t margin_ns, int64_t slice_ns) {
    lock_take(&u->lock);
    u->margin_ns = margin_ns;
    u->slice_ns = slice_ns;
    lock_drop(&u->lock);
}

void eng__usage_gap(struct eng__usage *u, int64_t now_ns, int64_t ns) {
    int32_t b = bucket_of(ns);
    lock_take(&u->lock);
    count(&u->all.gaps, ns, b);
    count(&period_at(u, now_ns)->gaps, ns, b);
    lock_drop(&u->lock);
}

// ---- reading

static double quantile(const struct eng__durations *d, double q) {
    uint64_t below = (uint64_t)ceil(q * (double)d->n), seen = 0;
    for (int32_t b = 0; b < ENG__DURATIONS; b++) {
        seen += d->count[b];
        if (seen >= below) {
            double upper = first_ns * pow(growth, b);
            return fmin(upper, (double)d->most_ns) * 1e-9;
        }
    }
    return (double)d->most_ns * 1e-9;
}

static struct eng_durations read_durations(const struct eng__durations *d) {
    struct eng_durations r = {.n = d->n};
    if (d->n) {
        r.p50_s = quantile(d, 0.5);
        r.p99_s = quantile(d, 0.99);
        r.most_s = (double)d->most_ns * 1e-9;
    }
    return r;
}

static void read_period(const struct eng__period *p, int64_t wall_ns, struct eng_shares *out) {
    *out = (struct eng_shares){
        .wall_s = (double)wall_ns * 1e-9,
        .serving_s = (double)p->serving_ns * 1e-9,
        .background_s = (double)p->background_ns * 1e-9,
        .slices = read_durations(&p->slices),
        .gaps = read_durations(&p->gaps),
    };
}

static void merge_durations(struct eng__durations *to, const struct eng__durations *d) {
    to->n += d->n;
    to->most_ns = d->most_ns > to->most_ns ? d->most_ns : to->most_ns;
    for (int32_t b = 0; b < ENG__DURATIONS; b++)
        to->count[b] += d->count[b];
}

void eng__usage_read(struct eng__usage *u, int64_t now_ns, struct eng_shares *recent,
                     struct eng_shares *all) {
    struct eng__period sum = {0}, whole;
    int64_t first = now_ns / period_ns - ENG__PERIODS + 1, begin = first * period_ns;
    lock_take(&u->lock);
    whole = u->all;
    for (int32_t i = 0; i < ENG__PERIODS; i++) {
        const struct eng__period *p = &u->recent[i];
        if (p->number < first)
            continue;
        sum.serving_ns += p->serving_ns;
        sum.background_ns += p->background_ns;
        merge_durations(&sum.slices, &p->slices);
        merge_durations(&sum.gaps, &p->gaps);
    }
    lock_drop(&u->lock);
    read_period(&sum, now_ns - (begin > u->start_ns ? begin : u->start_ns), recent);
    read_period(&whole, now_ns - u->start_ns, all);
}

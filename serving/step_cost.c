// SPDX-License-Identifier: Apache-2.0
#include "serving/step_cost.h"

// Reads are scaled so that in a long context errors are put down to attention, in a short one to
// the products.
static const double read_unit = 512;
static const double rate = 0.3; // of each correction

static int32_t bucket_of(int32_t rows) {
    int32_t octave = 31 - __builtin_clz((uint32_t)rows);
    int32_t upper = octave > 0 && (rows >> (octave - 1) & 1);
    int32_t b = 2 * octave + upper;
    return b < ENG__COST_BUCKETS ? b : ENG__COST_BUCKETS - 1;
}

// The curve through the buckets' means. Beyond the last one it grows with the rows, before the
// first one it stays: both are upper bounds, for products cost no more than in proportion and never
// less with more rows.
static double products(const struct eng__cost *c, double rows) {
    int32_t lo = -1, hi = -1;
    for (int32_t b = 0; b < ENG__COST_BUCKETS && hi < 0; b++) {
        if (c->rows[b] <= 0)
            continue;
        if (c->rows[b] <= rows)
            lo = b;
        else
            hi = b;
    }
    if (lo < 0)
        return hi < 0 ? -1 : c->ns[hi];
    if (hi < 0)
        return c->ns[lo] * rows / c->rows[lo];
    double t = (rows - c->rows[lo]) / (c->rows[hi] - c->rows[lo]);
    return c->ns[lo] + t * (c->ns[hi] - c->ns[lo]);
}

static double attention(const struct eng__cost *c, const struct eng__shape *s) {
    return c->decode_read_ns * (double)s->decode_reads +
           c->prefill_read_ns * (double)s->prefill_reads;
}

double eng__cost_predict(const struct eng__cost *c, const struct eng__shape *s) {
    double p = products(c, s->rows);
    return p < 0 ? p : p + attention(c, s);
}

bool eng__cost_knows(const struct eng__cost *c, int32_t rows) {
    for (int32_t b = 0; b < ENG__COST_BUCKETS; b++)
        if (c->rows[b] > 0 && c->rows[b] * 1.5 >= rows && c->rows[b] <= rows * 1.5)
            return true;
    return false;
}

static double at_least_0(double x) {
    return x > 0 ? x : 0;
}

void eng__cost_observe(struct eng__cost *c, const struct eng__shape *s, int64_t ns) {
    if (s->rows < 1 || ns < 0)
        return;
    int32_t b = bucket_of(s->rows);
    double rest = at_least_0((double)ns - attention(c, s));
    if (c->rows[b] <= 0) {
        c->rows[b] = s->rows;
        c->ns[b] = rest;
        return;
    }
    double expected = eng__cost_predict(c, s), error = (double)ns - expected;
    // A single step that was disturbed must not count for many that were not.
    if (error > expected)
        error = expected;
    double xd = (double)s->decode_reads / read_unit, xp = (double)s->prefill_reads / read_unit;
    double gain = rate * error / (1 + xd * xd + xp * xp);
    c->decode_read_ns = at_least_0(c->decode_read_ns + gain * xd / read_unit);
    c->prefill_read_ns = at_least_0(c->prefill_read_ns + gain * xp / read_unit);
    c->rows[b] += rate * (s->rows - c->rows[b]);
    c->ns[b] = at_least_0(c->ns[b] + gain);
}

int32_t eng__cost_prefill(const struct eng__cost *c, const struct eng__shape *base, int32_t first,
                          double limit_ns, int32_t max) {
    int32_t lo = 0, hi = max;
    while (lo < hi) {
        int32_t n = lo + (hi - lo + 1) / 2;
        struct eng__shape s = *base;
        s.rows += n;
        s.prefill_reads += (int64_t)n * first + (int64_t)n * (n + 1) / 2;
        if (eng__cost_predict(c, &s) <= limit_ns)
            lo = n;
        else
            hi = n - 1;
    }
    return lo;
}

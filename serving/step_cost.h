// SPDX-License-Identifier: Apache-2.0
// What a step costs, measured while serving. The products of a step depend on its rows only, and
// attention on the cached positions that its tokens read, so
//   time(rows, reads) = products(rows) + a * decode reads + b * prefill reads.
// `products` is a curve through the running means of half-octave buckets of rows; a and b follow
// the remaining error (normalised least mean squares; Widrow and Hoff, 1960). No clock here, no
// allocation; one owner.
#pragma once
#include <stdbool.h>
#include <stdint.h>

enum { ENG__COST_BUCKETS = 40 };

struct eng__cost {
    double rows[ENG__COST_BUCKETS]; // mean rows of a bucket; 0: nothing seen yet
    double ns[ENG__COST_BUCKETS];   // mean time of the products
    double decode_read_ns, prefill_read_ns;
};

struct eng__shape { // of one step
    int32_t rows;
    int64_t decode_reads, prefill_reads;
};

void eng__cost_observe(struct eng__cost *c, const struct eng__shape *s, int64_t ns);
// Nanoseconds; where no step of about as many rows was seen, an upper bound. < 0: nothing known.
double eng__cost_predict(const struct eng__cost *c, const struct eng__shape *s);
// Whether a step of about this many rows was seen, so that its prediction can be a yardstick.
bool eng__cost_knows(const struct eng__cost *c, int32_t rows);
// The most prefill tokens, at most `max`, that can join a step of shape `base` within limit_ns, if
// they begin at position `first`.
int32_t eng__cost_prefill(const struct eng__cost *c, const struct eng__shape *base, int32_t first,
                          double limit_ns, int32_t max);

// SPDX-License-Identifier: Apache-2.0
// The batch of one step. The step loop adds sequences; the arrays are allocated once for the
// largest step. Beside each wanted row it keeps whom the result is for. Engine thread only.
#pragma once
#include "model/batch.h"
#include "model/forward.h"
#include "serving/sequence.h"
#include "serving/step_cost.h"

struct eng__entry { // a sequence in the batch
    struct eng__seq *seq;
    int32_t n; // tokens of this step
};

struct eng__row { // whom a wanted row is for
    struct eng__seq *seq;
    int32_t choice;   // the token of this choice; -1: a PROMPT event
    int32_t position; // of that event
};

struct eng__batch {
    struct mdl_forward_limits limits;
    struct mdl_batch b;         // complete after eng__batch_finish
    struct eng__entry *entries; // [b.n_seqs]
    struct eng__row *rows;      // [b.n_want]
    struct kv_copy *copies;     // copy-on-write, in order
    int32_t n_copies;
    struct eng__shape shape;
    int32_t n_prefill; // sequences that were not decoding
    // The arrays of b.
    int32_t *ids, *pos, *seq_start, *kv_len, *table, *slot;
    struct mdl_want *want;
};

enum err eng__batch_init(struct eng__batch *b, const struct mdl_forward_limits *limits);
void eng__batch_fini(struct eng__batch *b);
void eng__batch_clear(struct eng__batch *b);

// Rows that can still be wanted.
int32_t eng__batch_rows_left(const struct eng__batch *b);
// Rows that the next n tokens of a sequence make: events, if all goes well.
int32_t eng__batch_rows(const struct eng__seq *s, int32_t n);
// How many of the next `n` tokens of a prompt can be added, if at most `rows` rows may be wanted.
int32_t eng__batch_fit(const struct eng__seq *s, int32_t n, int32_t rows);
// Adds the next n tokens of a sequence whose blocks are reserved. `forward` is the number of the
// forward that ran last, whose samples may be named.
void eng__batch_add(struct eng__batch *b, struct eng__seq *s, int32_t n, uint64_t forward);
const struct mdl_batch *eng__batch_finish(struct eng__batch *b);

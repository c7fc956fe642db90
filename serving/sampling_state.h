// SPDX-License-Identifier: Apache-2.0
// What sampling remembers of one choice: how often each token was generated and whether it stands
// in the prompt, for the penalties. A list of distinct ids, as the sampler wants it, and a hash
// index over it. Memory is the caller's, sized for the request's length, so counting never
// allocates.
#pragma once
#include "kernels/sample.h"
#include <stddef.h>
#include <stdint.h>

struct eng__counts {
    struct kn_token_count *list;
    int32_t n;
    int32_t cap;
    int32_t *index; // open addressing, entries of list + 1; 0: empty
    uint32_t mask;
};

// Bytes for up to `cap` distinct ids; cap 0: none.
size_t eng__counts_bytes(int32_t cap);
void eng__counts_init(struct eng__counts *c, void *memory, int32_t cap);
void eng__counts_prompt(struct eng__counts *c, int32_t id);
void eng__counts_generated(struct eng__counts *c, int32_t id);
void eng__counts_copy(struct eng__counts *dst, const struct eng__counts *src); // of equal cap

// SPDX-License-Identifier: Apache-2.0
// What fuzz programs share.
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

// What must hold whatever the input was.
static inline void fuzz_require(bool ok) {
    if (!ok)
        abort();
}

// How many of the `left` bytes to give at once: all for seed 0, else mostly few, as the seed has
// it.
static inline size_t fuzz_cut(uint32_t *seed, size_t left) {
    if (!*seed)
        return left;
    *seed = *seed * 1664525U + 1013904223U;
    size_t cut = 1 + (*seed >> 24) % (*seed & 0x100000 ? 3 : 64);
    return cut < left ? cut : left;
}

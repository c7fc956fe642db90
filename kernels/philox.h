// SPDX-License-Identifier: Apache-2.0
// Philox4x32-10 (Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3",
// 2011): four random words for a counter and a key. Stateless, so noise depends on what it is for
// and not on when it is drawn.
#pragma once
#include <stdint.h>

static inline void philox4x32(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]) {
    uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3];
    uint32_t k0 = key[0], k1 = key[1];
    for (int round = 0; round < 10; round++) {
        uint64_t a = (uint64_t)0xd2511f53u * c0, b = (uint64_t)0xcd9e8d57u * c2;
        c0 = (uint32_t)(b >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)b;
        c2 = (uint32_t)(a >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)a;
        k0 += 0x9e3779b9u;
        k1 += 0xbb67ae85u;
    }
    out[0] = c0;
    out[1] = c1;
    out[2] = c2;
    out[3] = c3;
}

// Uniform in [0, 1) with 53 bits, from the first two words.
static inline double philox_uniform(const uint32_t counter[4], const uint32_t key[2]) {
    uint32_t r[4];
    philox4x32(counter, key, r);
    return ((double)(r[0] >> 5) * 67108864.0 + (double)(r[1] >> 6)) * 0x1p-53;
}

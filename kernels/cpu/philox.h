// SPDX-License-Identifier: Apache-2.0
// Philox4x32-10, the counter-based generator of Salmon et al., "Parallel random numbers: as easy as 1, 2, 3"
// (2011): the same (key, counter) gives the same numbers everywhere. Stateless.
#pragma once
#include <stdint.h>

static inline void philox4x32_10(const uint32_t key[2], const uint32_t counter[4],
                                 uint32_t out[4]) {
    uint32_t k0 = key[0], k1 = key[1];
    uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3];
    for (int round = 0; round < 10; round++) {
        uint64_t a = (uint64_t)0xd2511f53u * c0, b = (uint64_t)0xcd9e8d57u * c2;
        uint32_t n0 = (uint32_t)(b >> 32) ^ c1 ^ k0, n2 = (uint32_t)(a >> 32) ^ c3 ^ k1;
        c1 = (uint32_t)b;
        c3 = (uint32_t)a;
        c0 = n0;
        c2 = n2;
        k0 += 0x9e3779b9u;
        k1 += 0xbb67ae85u;
    }
    out[0] = c0;
    out[1] = c1;
    out[2] = c2;
    out[3] = c3;
}

// Uniform in [0, 1) with 53 bits, for one choice at one position.
static inline double philox_uniform(uint64_t seed, uint32_t choice, uint32_t position) {
    const uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    const uint32_t counter[4] = {position, choice, 0, 0};
    uint32_t r[4];
    philox4x32_10(key, counter, r);
    uint64_t bits = (uint64_t)r[0] << 21 ^ (uint64_t)r[1] >> 11;
    return (double)bits * 0x1p-53;
}

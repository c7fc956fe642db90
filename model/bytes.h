// SPDX-License-Identifier: Apache-2.0
// Little-endian loads from unaligned bytes. Stateless, thread-safe.
#pragma once
#include <stddef.h>
#include <stdint.h>

static inline uint32_t le32(const uint8_t *p) {
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static inline uint64_t le64(const uint8_t *p) {
    return le32(p) | (uint64_t)le32(p + 4) << 32;
}

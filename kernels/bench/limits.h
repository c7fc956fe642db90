// SPDX-License-Identifier: Apache-2.0
// What the machine can do at most, measured in some milliseconds: the limits that kernels are
// compared with. One caller at a time.
#pragma once
#include "base/err.h"
#include "base/pool.h"
#include <stdbool.h>
#include <stdint.h>

enum limit {
    LIMIT_READ, // bytes per second from memory, all threads
    LIMIT_FMA,  // f32 operations per second, a multiply-add is two
    LIMIT_DOT,  // 8-bit operations per second of the integer dot product
    LIMIT_BF16, // bf16 operations per second of the dot product of pairs
    LIMITS
};

struct limits;
// isa: "avx512bf16", "avx512", "avx2" or "portable"; the latter has a rough FMA limit.
// cpu_time: count the process's CPU time instead of the clock's, which only makes sense with one
// thread: it hides most of what other processes do to the machine.
enum err limits_create(struct limits **out, const char *isa, int threads, bool cpu_time);
void limits_destroy(struct limits *l);
bool limits_has(const struct limits *l, enum limit what); // the level has such instructions
// 0 for what it has not.
double limits_measure(struct limits *l, enum limit what);
int64_t limits_now_ns(const struct limits *l); // the clock that is used
const char *limit_name(enum limit what);

// SPDX-License-Identifier: Apache-2.0
// A stand-in for model/forward.c and a device, for tests of the engine. Its KV cache holds one hash
// per position, made from the token, the position and everything the cache holds before it, read
// through the block tables. So a wrong table, a missed copy-on-write or a wrong prefix-cache hit
// changes the tokens. fake_plain makes the same tokens without cache, batch or blocks.
//
// A batch that breaks a rule of the interface aborts the program with a message.
#pragma once
#include "base/clock.h"
#include "kernels/device.h"
#include "model/forward.h"
#include <stdatomic.h>
#include <stdbool.h>

enum { FAKE_VOCAB = 61, FAKE_EOS = 0, FAKE_NAN = 60 };

struct fake_step { // what a step looked like
    int32_t rows, decodes, prefill, sequences, from_device;
    int64_t decode_reads, prefill_reads;
};

struct kn_device { // the fake's own
    struct kn_ops ops;
    struct mdl_weights weights;
    struct clock_manual clock;
    int32_t blocks; // of the pool, to check tables against
    // Time of a step, added to the clock while it runs; NULL: none.
    int64_t (*cost)(const struct fake_step *s);
    void (*on_step)(void *arg, const struct fake_step *s);
    void *on_step_arg;
    // Faults: the Nth from now fails (1: the next one); 0: none.
    int32_t fail_begin, fail_run, fail_copy;
    int32_t sleep_us; // real time of a step, for tests with threads
    _Atomic int32_t steps, sliced;
    uint64_t *pool_at;
};

void fake_init(struct kn_device *d, int32_t blocks);
size_t fake_kv_bytes(const struct kn_device *d);

// One sequence without engine: positions are added one by one.
struct fake_plain {
    uint64_t acc;
    bool broken;
    int32_t n;
    uint64_t last; // state after the last token
};
void fake_plain_add(struct fake_plain *p, int32_t token, int32_t slot);
// What sampling gives after the last token.
void fake_plain_sample(const struct fake_plain *p, const struct mdl_want *want,
                       struct kn_sample_out *out);

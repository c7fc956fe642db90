// SPDX-License-Identifier: Apache-2.0
// Requests to an engine from a thread that may wait for them: the losses of given tokens, and
// greedy answers. They go the way of every other request and share the engine fairly with those of
// their tenant. Not for an event loop, nor the engine's thread.
#pragma once
#include "serving/engine.h"
#include <stdatomic.h>

struct ask {
    struct eng *engine;
    struct adp_version *adapter; // NULL: the base; held by the caller
    uint64_t tenant;
    const _Atomic bool *stop; // may be NULL
};

struct ask_item {
    const int32_t *ids; // the prompt; borrowed
    int32_t n;
    // Losses: those of the tokens that the mask names (never the first). NULL: an answer.
    const uint8_t *mask;
    float *losses; // [tokens of the mask]
    // An answer: up to max_tokens ids, without the one that ended it.
    int32_t max_tokens;
    int32_t *answer; // [max_tokens]
    int32_t n_answer;
    bool ended; // by itself
    // private
    struct eng_stream *stream;
    int32_t got;
};
// A few of them at a time. ERR_CANCELLED once *stop is set; errors of eng_submit; an engine that
// ends or drains gives ERR_DRAINING or ERR_ENGINE_DEAD.
enum err ask_all(const struct ask *a, struct ask_item *items, size_t n, struct err_info *info);

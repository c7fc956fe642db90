// SPDX-License-Identifier: Apache-2.0
// The request that tests of the engine begin with, and change where they want something else.
#pragma once
#include "serving/engine.h"

static inline void wake_nobody(void *arg, struct eng_stream *s) {
    (void)arg;
    (void)s;
}

// One greedy choice of exactly max_tokens (no token ends it) without log-probabilities, deadline or
// adapter, whose consumer looks by itself.
static inline struct eng_request greedy_request(const int32_t *prompt, int32_t n_prompt,
                                                int32_t max_tokens) {
    return (struct eng_request){
        .prompt = prompt,
        .n_prompt = n_prompt,
        .sampling = {.top_p = 1, .repetition = 1, .n_logprobs = -1},
        .n = 1,
        .max_tokens = max_tokens,
        .ignore_eos = true,
        .n_prompt_logprobs = -1,
        .deadline_ns = INT64_MAX,
        .adapter_slot = -1,
        .wake = wake_nobody,
    };
}

// SPDX-License-Identifier: Apache-2.0
// The fields that /v1/completions and /v1/chat/completions have in common, checked. Memory comes
// from the request's arena.
#pragma once
#include "base/arena.h"
#include "gateway/app.h"
#include "serving/assemble.h"
#include "serving/engine.h"
#include <jansson.h>

struct api_params {
    bool stream, include_usage;
    int32_t n;
    int32_t max_tokens; // -1: not given
    int32_t min_tokens;
    bool ignore_eos;
    bool include_stop, skip_special;
    bool tokens_as_ids;           // return_tokens_as_token_ids
    int32_t prompt_logprobs;      // -1: none
    int32_t truncate_prompt;      // 0: off; -1: to the context
    struct eng_sampling sampling; // n_logprobs is set by the API file
    int32_t *stop_ids;
    int32_t n_stop_ids;
    struct asm_config stops;
    int32_t priority;
    uint64_t cache_salt; // 0: not given
};

enum err api_params_read(const struct app *app, const json_t *body, struct arena *arena,
                         struct api_params *out, struct err_info *info);
// ERR_INVALID "not supported" unless the field is absent or holds its default (a JSON text).
enum err api_params_refuse(const json_t *body, const char *name, const char *dflt_json,
                           struct err_info *info);
// A seed for requests that gave none.
uint64_t api_params_random_seed(void);

// SPDX-License-Identifier: Apache-2.0
// One generation: the prompts of one HTTP request on their way through the engine, and their
// answers on the way back, streamed or whole. Lives on the request's event loop; the engine's wake
// is the only call from outside.
//
//   start -> [waiting] --first event or keep-alive--> [answering] --all choices ended--> done
//                \-- error --> HTTP error                  \-- error --> error event, no [DONE]
//   the client's close in any state -> everything is cancelled
#pragma once
#include "gateway/api_params.h"
#include "gateway/app.h"
#include "gateway/http.h"

struct gen_prompt {
    const int32_t *ids;
    int32_t n_ids;
    const char *text; // for echo and text offsets; raw bytes
    size_t text_len;
};

struct gen_spec { // what the API file made of the request; memory of the request's arena
    bool chat;
    const char *adapter; // its name as the request gave it; NULL: the base
    bool echo;
    int32_t logprobs; // -1: none; else how many alternatives
    const struct gen_prompt *prompts;
    int32_t n_prompts;
    const struct api_params *params;
    int32_t max_tokens; // per choice; -1: to the end of the context (each prompt's own)
};

// Answers the request in the end, whatever happens.
void generation_start(struct gw_request *r, struct app *app, const struct gen_spec *spec);

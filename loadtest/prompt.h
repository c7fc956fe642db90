// SPDX-License-Identifier: Apache-2.0
// Request bodies with random prompts.
#pragma once
#include "base/buf.h"
#include "loadtest/options.h"

// Appends the JSON body of one request; `model` from the options or the server's list.
void lt_prompt_body(const struct lt_options *o, const char *model, struct lt_rng *rng,
                    int32_t n_input, int32_t n_output, struct buf *out);

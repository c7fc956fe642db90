// SPDX-License-Identifier: Apache-2.0
// Options of `graft loadtest`.
#pragma once
#include "base/options.h"
#include "loadtest/dist.h"

struct lt_options {
    const char *url, *model, *endpoint, *api_key, *label;
    int64_t users, requests, warmup, max_connections, seed, vocab, shared_prefix;
    double rate, duration, timeout, temperature;
    const char *input_text, *output_text, *prompt;
    bool stream, ignore_eos, check_tokens, progress;
    const char *json_path;
    // made of the texts above
    struct lt_dist input, output;
};

extern const struct opt_table lt_option_table;
// Parses the distributions and checks what depends on one another.
enum err lt_options_check(struct lt_options *o, struct err_info *info);

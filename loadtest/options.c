// SPDX-License-Identifier: Apache-2.0
#include "loadtest/options.h"
#include <stddef.h>
#include <string.h>

#define AT(field) offsetof(struct lt_options, field)
#define HEADING(text)                                                                              \
    { .kind = OPT_HEADING, .help = text }

static const struct opt_def defs[] = {
    HEADING("Target"),
    {OPT_STRING, "url", AT(url), "URL", "http://127.0.0.1:8000/v1", 0, 0, NULL,
     "Base address of the API.", false},
    {OPT_STRING, "model", AT(model), "NAME", NULL, 0, 0, NULL,
     "Model to ask for. Default: the first that /models lists.", false},
    {OPT_ENUM, "endpoint", AT(endpoint), NULL, "completions", 0, 0, "completions|chat",
     "Which API to call.", false},
    {OPT_STRING, "bearer", AT(api_key), "KEY", NULL, 0, 0, NULL, "API key to present.", true},
    HEADING("Load"),
    {OPT_INT, "users", AT(users), "N", "8", 1, 100000, NULL,
     "Closed loop: so many users, each asks again when answered.", false},
    {OPT_FLOAT, "rate", AT(rate), "X", "0", 0, 1e6, NULL,
     "Open loop instead: Poisson arrivals per second. Latencies count from the arrival, so a slow "
     "server cannot hide its queue.",
     false},
    {OPT_INT, "requests", AT(requests), "N", "64", 1, 10000000, NULL, "Requests to send.", false},
    {OPT_SECONDS, "duration", AT(duration), "TIME", "0", 0, 86400, NULL,
     "Stop sending after this time, even if requests are left. 0: no limit.", false},
    {OPT_INT, "warmup", AT(warmup), "N", "0", 0, 100000, NULL,
     "Requests sent first, one by one, and not counted.", false},
    {OPT_INT, "max-connections", AT(max_connections), "N", "1024", 1, 100000, NULL,
     "Most requests under way at once in an open loop.", false},
    {OPT_SECONDS, "timeout", AT(timeout), "TIME", "600s", 0.01, 86400, NULL,
     "Time that one request may take.", false},
    HEADING("Requests"),
    {OPT_STRING, "input-tokens", AT(input_text), "DIST", "128", 0, 0, NULL,
     "Prompt length: N, uniform:A:B, normal:MEAN:SD, lognormal:MEDIAN:SIGMA, with :MIN:MAX.",
     false},
    {OPT_STRING, "output-tokens", AT(output_text), "DIST", "64", 0, 0, NULL,
     "max_tokens, in the same form.", false},
    {OPT_ENUM, "prompt", AT(prompt), NULL, "words", 0, 0, "words|ids",
     "Prompts of random words, or of random token ids (exact lengths; completions only).", false},
    {OPT_INT, "vocab", AT(vocab), "N", "32000", 2, 1 << 24, NULL,
     "With --prompt ids: ids are below this.", false},
    {OPT_INT, "shared-prefix", AT(shared_prefix), "N", "0", 0, 1 << 20, NULL,
     "So many tokens at the start are the same in all prompts.", false},
    {OPT_FLAG, "stream", AT(stream), NULL, "true", 0, 0, NULL, "Ask for streams.", false},
    {OPT_FLAG, "ignore-eos", AT(ignore_eos), NULL, "true", 0, 0, NULL,
     "Send ignore_eos, so that answers have their full length.", false},
    {OPT_FLAG, "check-tokens", AT(check_tokens), NULL, "false", 0, 0, NULL,
     "Ask for logprobs and compare their count with usage.completion_tokens.", false},
    {OPT_FLOAT, "temperature", AT(temperature), "X", "0", 0, 2, NULL, "Sampling temperature.",
     false},
    {OPT_INT, "seed", AT(seed), "N", "1", 0, 0, NULL, "Seed of prompts, lengths and arrivals.",
     false},
    HEADING("Output"),
    {OPT_STRING, "label", AT(label), "TEXT", NULL, 0, 0, NULL, "Name of this run in the JSON.",
     false},
    {OPT_STRING, "json", AT(json_path), "PATH", NULL, 0, 0, NULL,
     "Write the results as JSON; - is standard output.", false},
    {OPT_FLAG, "progress", AT(progress), NULL, "true", 0, 0, NULL,
     "Show a progress line on standard error.", false},
};

const struct opt_table lt_option_table = {
    .command = "graft loadtest",
    .usage = "graft loadtest [options]",
    .summary =
        "Sends load to an OpenAI-compatible server, checks the answers, and reports latencies "
        "and throughput.",
    .defs = defs,
    .n = sizeof defs / sizeof *defs,
    .max_positional = 0,
};

enum err lt_options_check(struct lt_options *o, struct err_info *info) {
    enum err rc = lt_dist_parse(o->input_text, 1, &o->input, info);
    if (rc) {
        err_prefix(info, "--input-tokens");
        return rc;
    }
    rc = lt_dist_parse(o->output_text, 1, &o->output, info);
    if (rc) {
        err_prefix(info, "--output-tokens");
        return rc;
    }
    if (!strcmp(o->prompt, "ids") && strcmp(o->endpoint, "completions") != 0)
        return err_set(info, ERR_INVALID, "prompt",
                       "--prompt ids works with --endpoint completions");
    return ERR_OK;
}

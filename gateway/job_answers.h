// SPDX-License-Identifier: Apache-2.0
// Prompts of a job's evaluation, and greedy answers to them by an engine. A prompt is rendered and
// tokenised as a request's is, with the date of the job. Text alone is asked in the way of the
// training data: as one user message, or, where the lines are completions, as the prompt of a
// completion.
#pragma once
#include "gateway/engine_ask.h"
#include "model/chat_template.h"
#include "model/tokenizer.h"
#include <jansson.h>

struct job_prompt {
    const json_t *item; // as the job has it; borrowed
    struct tok_ids ids;
    char *answer; // owned, and a NUL behind it; NULL: not asked yet
    size_t answer_len;
};

struct job_prompts {
    struct job_prompt *list;
    size_t n;
};

struct job_prompt_opts {
    const struct tokenizer *tokenizer;
    const struct chat_template *chat_template; // NULL: the model has none
    int64_t now;
    bool completion;    // text is the prompt of a completion
    int32_t max_prompt; // tokens
};

// `items`: a list of the job's (NULL: none); `field` is what errors call it. ERR_INVALID,
// ERR_TEMPLATE, ERR_CONTEXT name the field of the entry, in info->param, too.
enum err job_prompts_read(const json_t *items, const char *field, const struct job_prompt_opts *o,
                          struct job_prompts *out, struct err_info *info);
void job_prompts_fini(struct job_prompts *p); // also of zeros

// Fills in the answers, each of up to max_tokens tokens; temperature 0, no penalties. Blocks.
enum err job_prompts_ask(struct job_prompts *p, const struct ask *a, const struct tokenizer *t,
                         int32_t max_tokens, struct err_info *info);

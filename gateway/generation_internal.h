// SPDX-License-Identifier: Apache-2.0
// Shared by generation.c (life), gen_output.c (bodies and chunks) and gen_logprobs.c.
#pragma once
#include "base/buf.h"
#include "base/json_write.h"
#include "gateway/generation.h"
#include "serving/assemble.h"

struct gen_logprobs {  // comma-joined JSON values that have not been sent yet
    struct buf tokens; // chat: whole entries of content[]
    struct buf values; // completions only, like the two below
    struct buf tops;
    struct buf offsets;
};

struct gen_choice {
    struct assembler assembler;
    struct buf text; // whole answers: all of it; streams: what has not been sent
    struct gen_logprobs lp;
    size_t offset; // code points from the start of the prompt to the next token
    int32_t n_tokens;
    enum eng_finish finish;
    bool ended, sent_role, sent_end;
};

struct gen_item { // one prompt
    const struct gen_prompt *prompt;
    struct eng_stream *stream;
    struct eng_event *scored; // PROMPT events in order, kept where the answer needs them
    int32_t n_scored, cap_scored;
};

struct generation {
    struct app *app;
    struct gw_request *r;
    const struct gen_spec *spec;
    const struct api_params *params;
    struct adp_version *adapter;   // pinned; NULL: the base
    char model[ADP_NAME_MAX + 32]; // what answers name
    char fingerprint[ADP_NAME_MAX + 96];
    struct gen_item *items;     // [spec->n_prompts]
    struct gen_choice *choices; // [n_prompts * n]; choice c of prompt p is p * n + c
    int32_t n_choices, n_ended;
    int32_t next_item; // whose events are taken first in the next turn
    char id[48];
    int64_t created;
    int64_t first_token_ns, last_token_ns; // 0: none yet
    bool began;                            // the status line of a stream was written
    struct err_info error;
    struct gw_timer *keep_alive;
    _Atomic bool posted; // gen turn is on the loop's queue
    bool dead;           // closed while posted: the turn frees it
};

// gen_logprobs.c
void gen_logprobs_init(struct gen_logprobs *l);
void gen_logprobs_fini(struct gen_logprobs *l);
void gen_logprobs_clear(struct gen_logprobs *l);
// Appends one token's entry; `ev` NULL logprob: the first token of an echoed prompt.
void gen_logprobs_add(struct generation *g, struct gen_choice *c, const struct eng_event *ev,
                      bool first_of_prompt);
// The value of "logprobs" in a choice.
void gen_logprobs_write(const struct generation *g, const struct gen_logprobs *l, struct json_w *w);
void gen_prompt_logprobs_write(const struct generation *g, const struct gen_item *it,
                               struct json_w *w);

// gen_output.c
void gen_chunk_write(struct generation *g, int32_t choice,
                     struct buf *out); // what the choice has pending
void gen_usage_chunk_write(struct generation *g, struct buf *out);
void gen_error_chunk_write(const struct err_info *e, struct buf *out);
void gen_whole_write(struct generation *g, struct buf *out);
void gen_account(struct generation *g); // fills the access log's fields

// SPDX-License-Identifier: Apache-2.0
// Prompts of a request as token ids, checked against vocabulary and context. Memory of the
// request's arena.
#pragma once
#include "gateway/api_params.h"
#include "gateway/generation.h"
#include <jansson.h>

// Text or a list of token ids under the field's name ("prompt", "prompt[2]").
enum err api_prompt_read(const struct app *app, const json_t *v, const char *field,
                         const struct api_params *p, bool add_special, struct arena *arena,
                         struct gen_prompt *out, struct err_info *info);
// Copies ids into the arena, cut by truncate_prompt_tokens, and checks that they fit.
enum err api_prompt_take(const struct app *app, const struct tok_ids *ids, const char *field,
                         const struct api_params *p, struct arena *arena, struct gen_prompt *out,
                         struct err_info *info);
// max_tokens against the context: the error that clients know as context_length_exceeded.
enum err api_prompt_check_room(const struct app *app, const struct gen_prompt *prompt,
                               int32_t max_tokens, const char *field, struct err_info *info);
// Most ids that an encoder needs to make before the prompt is known not to fit; 0: all.
// Where the context does not bound how many tokens a text may become, its length is bounded:
// tokenizing runs on the event loop, and others wait for it.
enum { API_PROMPT_MAX_FREE_TEXT = 1 << 20 };
enum err api_prompt_check_text(size_t max_ids, size_t len, const char *field,
                               struct err_info *info);
size_t api_prompt_max_ids(const struct app *app, const struct api_params *p);
// The tokenizer's ERR_CONTEXT in words that name the limit.
enum err api_prompt_too_long(const struct app *app, const char *field, struct err_info *info);

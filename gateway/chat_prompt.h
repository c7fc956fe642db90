// SPDX-License-Identifier: Apache-2.0
// From the body of a chat request to token ids. What messages may be, what the template sees and
// how its text is tokenised is in model/chat_prompt.h, which training uses too.
#pragma once
#include "gateway/api_params.h"
#include "gateway/generation.h"
#include <jansson.h>

// Reads messages, add_generation_prompt, continue_final_message, chat_template_kwargs,
// add_special_tokens.
enum err chat_prompt_read(const struct app *app, const json_t *body, const struct api_params *p,
                          struct arena *arena, struct gen_prompt *out, struct err_info *info);

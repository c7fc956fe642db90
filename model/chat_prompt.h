// SPDX-License-Identifier: Apache-2.0
// From messages to token ids, for serving and for training alike: what a message may be, the
// variables that a template sees, and the tokens of what it wrote. The template alone decides about
// BOS, and special tokens in a message's text stay text. Stateless; any thread.
#pragma once
#include "base/err.h"
#include "model/chat_template.h"
#include "model/tokenizer.h"
#include <jansson.h>
#include <stdbool.h>

enum { CHAT_MAX_MESSAGES = 16384 };

// Checks one message in place; a list of text parts as content becomes one string. `field` is what
// errors call it ("messages[2]").
enum err chat_message_check(json_t *message, const char *field, struct err_info *info);
// A checked copy of a list of 1 to CHAT_MAX_MESSAGES messages; the list stays as it is. NULL or
// null is ERR_INVALID, "field is required". *out is owned.
enum err chat_messages_copy(const json_t *messages, const char *field, json_t **out,
                            struct err_info *info);

struct chat_prompt {
    const struct tokenizer *tokenizer;
    json_t
        *messages; // as chat_messages_copy made them; borrowed, a reference is kept in the result
    json_t *tools; // list, or NULL: the template is told that there are none
    bool add_generation_prompt;
    json_t *extra;           // more variables of the caller's, or NULL; must not replace any of the
                             // others, nor what is the operator's (pad_token ...)
    const char *extra_field; // what errors call it
};
// Every variable that the template sees. *out is owned.
enum err chat_prompt_vars(const struct chat_prompt *p, json_t **out, struct err_info *info);

// Appends the ids of a rendered text, with text from messages kept text.
enum err chat_prompt_encode(const struct tokenizer *t, const struct chat_output *o,
                            const struct tok_encode_opts *opts, struct tok_ids *out,
                            struct err_info *info);

// SPDX-License-Identifier: Apache-2.0
// Chat templates: a bounded interpreter of the Jinja2 subset that published templates use. A
// template is parsed once and is immutable; rendering is thread-safe, and bounded in steps, depth
// and output, since a template may come from a downloaded model. Oracle: jinja2 as transformers
// sets it up (trim_blocks, lstrip_blocks, ImmutableSandboxedEnvironment, loop controls, tojson,
// raise_exception, strftime_now).
#pragma once
#include "base/buf.h"
#include "base/err.h"
#include "base/hash.h"
#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct chat_template;

// Parses text[0..len). Errors name the line.
enum err chat_template_parse(const char *text, size_t len, struct chat_template **out,
                             struct err_info *info);
void chat_template_destroy(struct chat_template *t);
// The text that was parsed, and its SHA-256 in hex: what identifies a template in manifests.
const char *chat_template_text(const struct chat_template *t, size_t *len);
enum err chat_template_digest(const struct chat_template *t, char hex[2 * SHA256_BYTES + 1],
                              struct err_info *info);

struct chat_limits {    // 0: the default
    uint64_t max_steps; // evaluated nodes, default 2,000,000
    size_t max_output;  // bytes, default 16 MiB
    size_t max_memory;  // bytes of values, default 64 MiB
};

struct chat_render_opts {
    json_t *vars; // object with every variable: messages, tools, add_generation_prompt,
                  // bos_token, eos_token, template kwargs ...; borrowed, not changed
    int64_t now;  // seconds since the epoch (local = UTC), for strftime_now
    struct chat_limits limits;
};

// A run of the output. `literal` marks text that came from the variables' strings (user text), so
// that the tokenizer does not take a special token out of it; the template's own text has it unset.
// Text that a filter or operator made from both is literal. The texts of the variables bos_token,
// eos_token, pad_token and unk_token are the operator's and count as the template's own: a request
// must not be able to set those.
struct chat_span {
    size_t begin, end; // bytes in the output
    bool literal;
};
struct chat_output {
    struct buf text;
    struct chat_span
        *spans; // cover the text, in order, neighbours differ; freed by chat_output_fini
    size_t n_spans;
};
void chat_output_fini(struct chat_output *o);

// ERR_TEMPLATE for what goes wrong in the template ("line 3: ..."; for raise_exception the
// template's own message alone), ERR_LIMIT for what exceeds a limit. *out is then empty.
enum err chat_template_render(const struct chat_template *t, const struct chat_render_opts *opts,
                              struct chat_output *out, struct err_info *info);

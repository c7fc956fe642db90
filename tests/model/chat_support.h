// SPDX-License-Identifier: Apache-2.0
// What the tests of chat templates share: parse and render in one call.
#pragma once
#include "model/chat_template.h"

struct rendered {
    enum err e;
    struct err_info info;
    struct chat_output out; // if e is ERR_OK
};
// `vars` is JSON text or NULL. Free with rendered_fini.
struct rendered render(const char *text, const char *vars);
struct rendered render_json(const char *text, size_t len, json_t *vars, int64_t now,
                            const struct chat_limits *limits);
void rendered_fini(struct rendered *r);
// Fails the test unless the spans cover the text in order and neighbours differ.
void check_spans(const struct chat_output *o);

// SPDX-License-Identifier: Apache-2.0
// Reads the NAME.logits files of tests/golden/models/ (its README has the layout). Fails the
// running cmocka test where a file is missing or short.
#pragma once
#include <stddef.h>
#include <stdint.h>

enum { GL_MAX_PROMPTS = 8 };

struct gl_prompt {
    int32_t n_ids, n_positions;
    const int32_t *ids, *positions;
    const float *logits; // [n_positions][vocab]
};

struct golden_logits {
    void *bytes;
    int32_t vocab, n_prompts;
    struct gl_prompt prompts[GL_MAX_PROMPTS];
};

void golden_logits_load(struct golden_logits *g, const char *path);
void golden_logits_free(struct golden_logits *g);

// SPDX-License-Identifier: Apache-2.0
// Golden logits as tests/golden/models/README.md describes them. Functions fail the running cmocka
// test.
#pragma once
#include <stdint.h>

enum { LOGITS_PROMPTS = 4, LOGITS_IDS = 64, LOGITS_KEPT = 8 };

struct logits_prompt {
    int32_t n, kept;
    int32_t ids[LOGITS_IDS], pos[LOGITS_KEPT];
    float *logits; // [kept][vocab]
};

struct logits_file {
    int32_t vocab, n;
    struct logits_prompt prompts[LOGITS_PROMPTS];
};

// PATH.logits, or PATH.bf16.logits for the ISA level that multiplies bf16.
void logits_file_read(const char *path, const char *isa, struct logits_file *g);
void logits_file_free(struct logits_file *g);
// The largest difference of found[kept][vocab]; NaN counts as one.
double logits_difference(const struct logits_prompt *p, const float *found, int32_t vocab);

// SPDX-License-Identifier: Apache-2.0
#include "tests/model/golden_logits.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

// The next n 32-bit words of the file.
static const void *words(const char **at, const char *end, size_t n) {
    const char *p = *at;
    assert_true((size_t)(end - p) >= 4 * n);
    *at += 4 * n;
    return p;
}

void golden_logits_load(struct golden_logits *g, const char *path) {
    FILE *f = fopen(path, "rb");
    if (!f)
        fail_msg("%s is missing", path);
    assert_int_equal(fseek(f, 0, SEEK_END), 0);
    long n = ftell(f);
    rewind(f);
    *g = (struct golden_logits){.bytes = malloc((size_t)n)};
    assert_non_null(g->bytes);
    assert_int_equal(fread(g->bytes, 1, (size_t)n, f), n);
    fclose(f);
    const char *at = g->bytes, *end = at + n;
    const uint32_t *head = words(&at, end, 4);
    assert_memory_equal(head, "GLGT", 4);
    assert_int_equal(head[1], 1);
    g->vocab = (int32_t)head[2];
    g->n_prompts = (int32_t)head[3];
    assert_in_range(g->n_prompts, 1, GL_MAX_PROMPTS);
    for (int i = 0; i < g->n_prompts; i++) {
        struct gl_prompt *p = &g->prompts[i];
        const uint32_t *counts = words(&at, end, 2);
        p->n_ids = (int32_t)counts[0];
        p->n_positions = (int32_t)counts[1];
        p->ids = words(&at, end, counts[0]);
        p->positions = words(&at, end, counts[1]);
        p->logits = words(&at, end, (size_t)counts[1] * head[2]);
    }
    assert_ptr_equal(at, end);
}

void golden_logits_free(struct golden_logits *g) {
    free(g->bytes);
    *g = (struct golden_logits){0};
}

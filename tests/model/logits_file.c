// SPDX-License-Identifier: Apache-2.0
#include "tests/model/logits_file.h"
#include "base/mem.h"
#include "tests/support/cmocka_all.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

static void read_or_fail(FILE *f, void *to, size_t bytes) {
    if (fread(to, 1, bytes, f) != bytes)
        fail_msg("a file of logits is cut short");
}

void logits_file_read(const char *base, const char *isa, struct logits_file *g) {
    char path[256];
    bool bf16 = strcmp(isa, "avx512bf16") == 0;
    snprintf(path, sizeof path, "%s%s.logits", base, bf16 ? ".bf16" : "");
    FILE *f = fopen(path, "rb");
    if (!f)
        fail_msg("%s cannot be opened", path);
    uint32_t head[4], count[2];
    read_or_fail(f, head, sizeof head);
    assert_memory_equal(head, "GLGT", 4);
    assert_int_equal(head[1], 1);
    assert_true(head[3] <= LOGITS_PROMPTS);
    g->vocab = (int32_t)head[2];
    g->n = (int32_t)head[3];
    for (int32_t i = 0; i < g->n; i++) {
        struct logits_prompt *p = &g->prompts[i];
        read_or_fail(f, count, sizeof count);
        assert_true(count[0] <= LOGITS_IDS && count[1] <= LOGITS_KEPT);
        p->n = (int32_t)count[0];
        p->kept = (int32_t)count[1];
        read_or_fail(f, p->ids, count[0] * sizeof *p->ids);
        read_or_fail(f, p->pos, count[1] * sizeof *p->pos);
        size_t bytes = (size_t)count[1] * head[2] * sizeof(float);
        p->logits = mem_alloc(bytes);
        assert_non_null(p->logits);
        read_or_fail(f, p->logits, bytes);
    }
    fclose(f);
}

void logits_file_free(struct logits_file *g) {
    for (int32_t i = 0; i < g->n; i++)
        mem_free(g->prompts[i].logits);
}

double logits_difference(const struct logits_prompt *p, const float *found, int32_t vocab) {
    double worst = 0;
    for (size_t i = 0; i < (size_t)p->kept * (size_t)vocab; i++) {
        double d = fabs((double)found[i] - (double)p->logits[i]);
        worst = d > worst || isnan(d) ? d : worst;
    }
    return worst;
}

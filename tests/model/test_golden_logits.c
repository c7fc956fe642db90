// SPDX-License-Identifier: Apache-2.0
// Logits of tiny random models in every weight type and format against an independent reference
// (scripts/make-test-models.py, which rounds K, V and activations where we do). Each model also at
// every ISA level, and with its prompts together in one batch. The level that multiplies bf16 rounds
// more, and has logits of its own.
//
// The file: "GLGT", version, vocabulary, prompts; each prompt: n, kept, i32 ids[n], i32
// positions[kept], f32 logits[kept][vocab]. All little-endian u32.
#include "base/mem.h"
#include "model/source_internal.h"
#include "tests/model/model_fixture.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

enum { MAX_PROMPTS = 4, MAX_IDS = 64, MAX_KEPT = 8 };

struct prompt {
    int32_t n, kept;
    int32_t ids[MAX_IDS], pos[MAX_KEPT];
    float *logits;
};

struct golden {
    int32_t vocab, n;
    struct prompt prompts[MAX_PROMPTS];
};

static void read_or_fail(FILE *f, void *to, size_t bytes) {
    if (fread(to, 1, bytes, f) != bytes)
        fail_msg("golden file is cut short");
}

static void golden_read(const char *model, const char *isa, struct golden *g) {
    char path[256];
    bool bf16 = strcmp(isa, "avx512bf16") == 0;
    snprintf(path, sizeof path, "%s%s.logits", model, bf16 ? ".bf16" : "");
    FILE *f = fopen(path, "rb");
    if (!f)
        fail_msg("%s cannot be opened", path);
    uint32_t head[4], count[2];
    read_or_fail(f, head, sizeof head);
    assert_memory_equal(head, "GLGT", 4);
    assert_int_equal(head[1], 1);
    assert_true(head[3] <= MAX_PROMPTS);
    g->vocab = (int32_t)head[2];
    g->n = (int32_t)head[3];
    for (int32_t i = 0; i < g->n; i++) {
        struct prompt *p = &g->prompts[i];
        read_or_fail(f, count, sizeof count);
        assert_true(count[0] <= MAX_IDS && count[1] <= MAX_KEPT);
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

static void golden_free(struct golden *g) {
    for (int32_t i = 0; i < g->n; i++)
        mem_free(g->prompts[i].logits);
}

// Logits are a few units wide, and the rounding that is modelled moves them by a tenth. The prompts
// were chosen so that no rounding is a near tie, so f32 noise is what may differ.
static const double tolerance = 2e-4;

static void check_prompt(const char *what, const struct prompt *p, const float *found,
                         int32_t vocab) {
    double worst = 0;
    for (size_t i = 0; i < (size_t)p->kept * (size_t)vocab; i++) {
        double d = fabs((double)found[i] - (double)p->logits[i]);
        worst = d > worst || isnan(d) ? d : worst;
    }
    if (!(worst <= tolerance))
        fail_msg("%s, prompt of %d: logits differ by %g", what, p->n, worst);
}

// hf-walk has what Llama's config cannot say: the walk's parts for other families.
static void prepare(struct mdl_source *src) {
    src->config.qkv_bias = true;
    src->config.qk_norm = true;
    src->config.window = 20;
}

static void check_model(const char *model, const char *isa) {
    struct fx x;
    struct golden g;
    fx_open(&x, model,
            &(struct fx_options){.isa = isa, .prepare = strstr(model, "walk") ? prepare : NULL});
    golden_read(model, isa, &g);
    assert_int_equal(g.vocab, x.vocab);
    struct fx_batch b;
    struct fx_seq s;
    fx_batch_init(&b);
    for (int32_t i = 0, want = 0; i < g.n; i++) {
        const struct prompt *p = &g.prompts[i];
        fx_seq_init(&s, p->ids, p->n, 10 * i);
        int32_t first = b.b.n_tokens;
        fx_batch_add(&b, &s, p->n, FX_ALL, false);
        for (int32_t j = 0; j < p->kept; j++, want++)
            b.want[want].row = first + p->pos[j];
        b.b.n_want = want;
    }
    fx_run(&x, &b, NULL, NULL);
    const float *at = x.logits;
    for (int32_t i = 0; i < g.n; i++) {
        check_prompt(model, &g.prompts[i], at, x.vocab);
        at += (size_t)g.prompts[i].kept * (size_t)x.vocab;
    }
    golden_free(&g);
    fx_close(&x);
}

static void test_golden(void **state) {
    (void)state;
    static const char *const models[] = {
        "f32.gguf",   "f16.gguf",    "bf16.gguf", "q8_0.gguf", "q4_0.gguf", "q4_1.gguf",
        "mixed.gguf", "llama3.gguf", "hf-f32",    "hf-f16",    "hf-llama3", "hf-walk",
    };
    static const char *const isas[] = {"avx512bf16", "avx512", "avx2", "portable"};
    for (size_t j = 0; j < sizeof isas / sizeof *isas; j++) {
        struct kn_device_config cfg = {.threads = 1, .isa = isas[j]};
        struct kn_device *d;
        if (kn_ops_cpu.open(&cfg, &d, NULL)) {
            print_message("%s: not on this CPU\n", isas[j]);
            continue;
        }
        kn_ops_cpu.close(d);
        for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
            char path[128];
            snprintf(path, sizeof path, "tests/golden/models/%s", models[i]);
            check_model(path, isas[j]);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_golden)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

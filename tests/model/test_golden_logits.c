// SPDX-License-Identifier: Apache-2.0
// Logits of tiny random models in every weight type and format against an independent reference
// (scripts/make-test-models.py, which rounds K, V and activations where we do). Each model also at
// every ISA level, and with its prompts together in one batch. The level that multiplies bf16
// rounds more, and has logits of its own.
//
// The file: "GLGT", version, vocabulary, prompts; each prompt: n, kept, i32 ids[n], i32
// positions[kept], f32 logits[kept][vocab]. All little-endian u32.
#include "model/source_internal.h"
#include "tests/model/logits_file.h"
#include "tests/model/model_fixture.h"
#include "tests/support/cmocka_all.h"
#include "tests/support/tolerances.h"
#include <stdio.h>
#include <string.h>

// Logits are a few units wide, and the rounding that is modelled moves them by a tenth. The prompts
// were chosen so that no rounding is a near tie, so f32 noise is what may differ.
static void check_prompt(const char *what, const struct logits_prompt *p, const float *found,
                         int32_t vocab) {
    double worst = logits_difference(p, found, vocab);
    if (!(worst <= TOL_LOGITS))
        fail_msg("%s, prompt of %d: logits differ by %g", what, p->n, worst);
}

// What Llama's config cannot say: the walk's parts for other families.
static void prepare_walk(struct mdl_source *src) {
    src->config.qkv_bias = true;
    src->config.qk_norm = true;
    src->config.window = 20;
}

static void prepare_qwen3(struct mdl_source *src) {
    src->config.qk_norm = true;
}

static void check_model(const char *model, const char *isa) {
    struct fx x;
    struct logits_file g;
    fx_open(&x, model,
            &(struct fx_options){.isa = isa,
                                 .prepare = strstr(model, "walk")    ? prepare_walk
                                            : strstr(model, "qwen3") ? prepare_qwen3
                                                                     : NULL});
    logits_file_read(model, isa, &g);
    assert_int_equal(g.vocab, x.vocab);
    struct fx_batch b;
    struct fx_seq s;
    fx_batch_init(&b);
    for (int32_t i = 0, want = 0; i < g.n; i++) {
        const struct logits_prompt *p = &g.prompts[i];
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
    logits_file_free(&g);
    fx_close(&x);
}

static void test_golden(void **state) {
    (void)state;
    static const char *const models[] = {
        "f32.gguf",  "f16.gguf",   "bf16.gguf",   "q8_0.gguf",       "q4_0.gguf",
        "q4_1.gguf", "mixed.gguf", "llama3.gguf", "hf-f32",          "hf-f16",
        "hf-llama3", "hf-walk",    "hf-qwen3",    "qwen3-bf16.gguf", "qwen3-q8_0.gguf",
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

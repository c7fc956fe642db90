// SPDX-License-Identifier: Apache-2.0
// The executor: twenty steps against PyTorch; order of rows; stopping. test_exec_memory.c lends it
// memory.
#include "base/mem.h"
#include "base/thread.h"
#include "finetune/executor.h"
#include "tests/finetune/exec_support.h"
#include "tests/support/assert_ok.h"
#include "tests/support/tolerances.h"
#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

// ---- twenty steps

// A K, V or activation that falls to the other side of its rounding moves the loss of so few
// tokens, and the steps behind it go apart: the golden file says how far.
static void check_curve(const char *file, const char *model, const char *isa) {
    struct fx x;
    struct tf_golden g;
    struct err_info info;
    tf_open_model(&x, model, &(struct fx_options){.isa = isa});
    tf_golden_read(&g, &x.weights->config, file);
    struct ft_exec_config cfg = exec_config(&x, true);
    struct walk w = {.g = &g, .first = g.n_rows - 1};
    assert_ok(ft_exec_create(&cfg, &w.x, &info), &info);
    assert_ok(ft_exec_set(w.x, g.start, NULL, NULL, &info), &info);
    for (int32_t i = 0; i < g.steps; i++) {
        double loss, norm;
        exec_step(&w, i, &loss, &norm);
        if (fabs(loss - g.loss[i]) > TOL_CURVE_RTOL * g.loss[i] + TOL_SPREADS * g.loss_spread[i] ||
            fabs(norm - g.norm[i]) >
                TOL_CURVE_NORM_RTOL * g.norm[i] + TOL_SPREADS * g.norm_spread[i])
            fail_msg("%s, %s, step %d: loss %.9g, norm %.7g where %.9g +- %.1g, %.7g +- %.1g were "
                     "expected",
                     file, isa, i + 1, loss, norm, g.loss[i], g.loss_spread[i], g.norm[i],
                     g.norm_spread[i]);
    }
    ft_exec_destroy(w.x);
    tf_golden_fini(&g);
    fx_close(&x);
}

static bool there(const char *isa) {
    struct kn_device_config cfg = {.threads = 1, .isa = isa};
    struct kn_device *d;
    if (kn_ops_cpu.open(&cfg, &d, NULL)) {
        print_message("%s: not on this CPU\n", isa);
        return false;
    }
    kn_ops_cpu.close(d);
    return true;
}

static void test_curves(void **state) {
    (void)state;
    static const char *const models[] = {"f32",   "f16",        "bf16",      "q8_0", "q4_0",
                                         "q4_1",  "mixed",      "llama3",    "walk", "walk-norm",
                                         "qwen3", "qwen3-bf16", "qwen3-q8_0"};
    static const char *const isas[] = {"avx512", "avx2", "portable"};
    for (size_t j = 0; j < sizeof isas / sizeof *isas; j++)
        for (size_t i = 0; i < sizeof models / sizeof *models && there(isas[j]); i++)
            check_curve(models[i], models[i], isas[j]);
}

// The level that multiplies bf16 rounds more, and has numbers of its own.
static void test_curves_bf16(void **state) {
    (void)state;
    static const char *const models[] = {"f32", "bf16", "q8_0", "llama3", "qwen3-bf16"};
    for (size_t i = 0; i < sizeof models / sizeof *models && there("avx512bf16"); i++) {
        char file[32];
        snprintf(file, sizeof file, "%s.bf16", models[i]);
        check_curve(file, models[i], "avx512bf16");
    }
}

// ---- order

static void test_order(void **state) {
    (void)state;
    struct fx x;
    struct tf_golden g;
    struct err_info info;
    struct outcome a, b;
    fx_open(&x, "tests/golden/models/q8_0.gguf", &(struct fx_options){0});
    tf_golden_read(&g, &x.weights->config, "q8_0");
    struct ft_exec_config cfg = exec_config(&x, true);
    struct walk w = {.g = &g};
    assert_ok(ft_exec_create(&cfg, &w.x, &info), &info);
    exec_three_steps(&w, &x.weights->config, &a);
    w.backwards = true;
    exec_three_steps(&w, &x.weights->config, &b);
    exec_assert_same(&a, &b);
    exec_drop(&a);
    exec_drop(&b);
    // What is set is what one gets.
    struct mdl_adapter *back;
    assert_ok(mdl_adapter_create(&x.weights->config, ALL_TARGETS, 4, 8, false, &back, &info),
              &info);
    assert_ok(ft_exec_set(w.x, g.start, g.gradient, g.start, &info), &info);
    assert_ok(ft_exec_get(w.x, NULL, back, NULL, &info), &info);
    assert_memory_equal(back->memory, g.gradient->memory, back->values * sizeof(float));
    mdl_adapter_destroy(back);
    ft_exec_destroy(w.x);
    tf_golden_fini(&g);
    fx_close(&x);
}

// ---- stop

static void *stop_soon(void *arg) {
    usleep(3000);
    ft_exec_stop(arg);
    return NULL;
}

static void test_stop(void **state) {
    (void)state;
    struct fx x;
    struct tf_golden g;
    struct err_info info;
    fx_open(&x, "tests/golden/models/f32.gguf", &(struct fx_options){0});
    tf_golden_read(&g, &x.weights->config, "f32");
    struct ft_exec_config cfg = exec_config(&x, false);
    struct ft_exec *exec;
    assert_ok(ft_exec_create(&cfg, &exec, &info), &info);
    struct thread t;
    assert_int_equal(thread_start(&t, "stop", stop_soon, exec), ERR_OK);
    struct lora_row row = tf_lora_row(&g.rows[0], EXPONENT);
    struct lora_row_result res;
    enum err e;
    while (!(e = ft_exec_unit(exec, &row, &res, &info)))
        ;
    assert_int_equal(e, ERR_CANCELLED);
    assert_int_equal(ft_exec_clear(exec, &info), ERR_CANCELLED);
    thread_join(&t);
    ft_exec_destroy(exec);
    tf_golden_fini(&g);
    fx_close(&x);
}

// A row that the unit refuses ends its command alone.
static void test_errors(void **state) {
    (void)state;
    struct fx x;
    struct tf_golden g;
    struct err_info info = {0};
    fx_open(&x, "tests/golden/models/f32.gguf", &(struct fx_options){0});
    tf_golden_read(&g, &x.weights->config, "f32");
    struct ft_exec_config cfg = exec_config(&x, true);
    struct ft_exec *exec;
    assert_ok(ft_exec_create(&cfg, &exec, &info), &info);
    struct lora_row row = tf_lora_row(&g.rows[0], EXPONENT);
    struct lora_row_result res;
    row.n_tokens = TF_TOKENS + 1;
    assert_int_equal(ft_exec_unit(exec, &row, &res, &info), ERR_LIMIT);
    assert_non_null(strstr(info.message, "a row of"));
    row = tf_lora_row(&g.rows[0], EXPONENT);
    assert_ok(ft_exec_unit(exec, &row, &res, &info), &info);
    cfg.lora.targets = 0;
    struct ft_exec *none;
    assert_int_not_equal(ft_exec_create(&cfg, &none, &info), ERR_OK);
    ft_exec_destroy(exec);
    tf_golden_fini(&g);
    fx_close(&x);
}

// Each allocation of its making fails once: nothing is left behind.
static void test_no_memory(void **state) {
    (void)state;
    struct fx x;
    struct err_info info;
    struct ft_exec *exec;
    fx_open(&x, "tests/golden/models/f32.gguf", &(struct fx_options){0});
    struct ft_exec_config cfg = exec_config(&x, true);
    int64_t live = mem_live_blocks();
    for (uint64_t n = 1;; n++) {
        mem_fail_after(n, false);
        enum err e = ft_exec_create(&cfg, &exec, &info);
        mem_fail_after(0, false);
        if (!e)
            break;
        assert_int_equal(e, ERR_NOMEM);
        assert_int_equal(mem_live_blocks(), live);
        assert_true(n < 1000);
    }
    ft_exec_destroy(exec);
    assert_int_equal(mem_live_blocks(), live);
    fx_close(&x);
}

// ---- a device beside the one that holds the weights

static struct {
    const struct kn_ops *real;
    const struct kn_device *weights;
    int used, wrong; // calls, and those on the weights' device
} spied;

static void spy(const struct kn_device *d) {
    spied.used++;
    spied.wrong += d == spied.weights;
}

static enum err spy_queue(struct kn_device *d, struct kn_queue **out) {
    spy(d);
    return spied.real->queue_create(d, out);
}

static enum err spy_alloc(struct kn_device *d, size_t bytes, kn_addr *out) {
    spy(d);
    return spied.real->alloc(d, bytes, out);
}

static void spy_free(struct kn_device *d, kn_addr a, size_t bytes) {
    spy(d);
    spied.real->free(d, a, bytes);
}

static void spy_discard(struct kn_device *d, kn_addr a, size_t bytes) {
    spy(d);
    spied.real->discard(d, a, bytes);
}

// Training runs on the threads of one replica; of the device that made the weights it only reads
// these.
static void test_other_device(void **state) {
    (void)state;
    struct fx x;
    struct tf_golden g;
    struct err_info info;
    struct kn_device *other;
    double loss[2], norm[2];
    tf_open_model(&x, "f32", &(struct fx_options){0});
    tf_golden_read(&g, &x.weights->config, "f32");
    spied.real = x.ops;
    spied.weights = x.weights->device;
    spied.used = spied.wrong = 0;
    struct kn_ops ops = *x.ops;
    ops.queue_create = spy_queue;
    ops.alloc = spy_alloc;
    ops.free = spy_free;
    ops.discard = spy_discard;
    assert_ok(x.ops->open(&(struct kn_device_config){.threads = 1}, &other, &info), &info);
    for (int i = 0; i < 2; i++) {
        struct ft_exec_config cfg = exec_config(&x, true);
        struct walk w = {.g = &g, .first = g.n_rows - 1};
        x.weights->ops = i ? &ops : x.ops;
        cfg.device = i ? other : NULL;
        assert_ok(ft_exec_create(&cfg, &w.x, &info), &info);
        assert_ok(ft_exec_set(w.x, g.start, NULL, NULL, &info), &info);
        exec_step(&w, 0, &loss[i], &norm[i]);
        assert_ok(ft_exec_clear(w.x, &info), &info);
        ft_exec_destroy(w.x);
    }
    x.weights->ops = x.ops;
    assert_true(spied.used > 10);
    assert_int_equal(spied.wrong, 0);
    assert_memory_equal(&loss[0], &loss[1], sizeof loss[0]);
    assert_memory_equal(&norm[0], &norm[1], sizeof norm[0]);
    x.ops->close(other);
    tf_golden_fini(&g);
    fx_close(&x);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_curves),       cmocka_unit_test(test_curves_bf16),
        cmocka_unit_test(test_order),        cmocka_unit_test(test_stop),
        cmocka_unit_test(test_errors),       cmocka_unit_test(test_no_memory),
        cmocka_unit_test(test_other_device),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

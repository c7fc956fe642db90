// SPDX-License-Identifier: Apache-2.0
// The executor: twenty steps against PyTorch; the same bits by its own thread and by one that lends
// time and memory and takes them back; order of rows; stopping.
#include "base/mem.h"
#include "base/thread.h"
#include "finetune/executor.h"
#include "tests/finetune/train_fixture.h"
#include "tests/support/assert_ok.h"
#include "tests/support/tolerances.h"
#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { EXPONENT = 40, ALL_TARGETS = (1 << MDL_TARGETS) - 1 };

static struct ft_exec_config config_of(const struct fx *x, bool keep) {
    return (struct ft_exec_config){.weights = x->weights,
                                   .lora = {.targets = ALL_TARGETS, .r = 4, .alpha = 8},
                                   .limits = {TF_TOKENS, TF_SEQS, keep},
                                   .clock = &clock_system};
}

// ---- twenty steps

struct walk {
    struct ft_exec *x;
    const struct tf_golden *g;
    int32_t first;  // row
    bool backwards; // rows in the other order
};

static int64_t one_step(const struct walk *w, int32_t step, double *loss, double *norm) {
    const struct tf_golden *g = w->g;
    struct err_info info = {0};
    double sum = 0;
    int64_t targets = 0;
    for (int32_t i = w->first; i < g->n_rows; i++) {
        struct lora_row row = tf_lora_row(&g->rows[w->backwards ? g->n_rows - 1 - i : i], EXPONENT);
        struct lora_row_result res;
        assert_ok(ft_exec_unit(w->x, &row, &res, &info), &info);
        assert_true(res.finite && !res.overflow);
        sum += res.loss;
        targets += res.targets;
    }
    struct ft_step s = {.divisor = (double)targets,
                        .max_grad_norm = g->max_norm,
                        .lr = g->lr,
                        .beta1 = g->beta1,
                        .beta2 = g->beta2,
                        .eps = g->eps,
                        .decay = g->decay,
                        .t = step + 1,
                        .exponent = EXPONENT};
    struct ft_step_result res;
    assert_ok(ft_exec_step(w->x, &s, &res, &info), &info);
    assert_true(res.clip <= 1 && res.largest > 0);
    *loss = sum / (double)targets;
    *norm = res.grad_norm;
    return targets;
}

// A K, V or activation that falls to the other side of its rounding moves the loss of so few tokens,
// and the steps behind it go apart: the golden file says how far.
static void check_curve(const char *file, const char *model, const char *isa) {
    struct fx x;
    struct tf_golden g;
    struct err_info info;
    tf_open_model(&x, model, &(struct fx_options){.isa = isa});
    tf_golden_read(&g, &x.weights->config, file);
    struct ft_exec_config cfg = config_of(&x, true);
    struct walk w = {.g = &g, .first = g.n_rows - 1};
    assert_ok(ft_exec_create(&cfg, &w.x, &info), &info);
    assert_ok(ft_exec_set(w.x, g.start, NULL, NULL, &info), &info);
    for (int32_t i = 0; i < g.steps; i++) {
        double loss, norm;
        one_step(&w, i, &loss, &norm);
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

// ---- results of one way to run, to be compared

struct outcome {
    float *w, *m, *v;
    size_t n;
    double loss[3], norm[3];
};

static void take(struct ft_exec *x, const struct mdl_config *c, struct outcome *o) {
    struct mdl_adapter *a[3];
    struct err_info info;
    for (int i = 0; i < 3; i++)
        assert_ok(mdl_adapter_create(c, ALL_TARGETS, 4, 8, false, &a[i], &info), &info);
    assert_ok(ft_exec_get(x, a[0], a[1], a[2], &info), &info);
    float **const to[3] = {&o->w, &o->m, &o->v};
    o->n = a[0]->values * sizeof(float);
    for (int i = 0; i < 3; i++) {
        *to[i] = mem_dup(a[i]->memory, o->n);
        assert_non_null(*to[i]);
        mdl_adapter_destroy(a[i]);
    }
}

static void assert_same(const struct outcome *a, const struct outcome *b) {
    assert_int_equal(a->n, b->n);
    assert_memory_equal(a->w, b->w, a->n);
    assert_memory_equal(a->m, b->m, a->n);
    assert_memory_equal(a->v, b->v, a->n);
    assert_memory_equal(a->norm, b->norm, sizeof a->norm);
}

static void drop(struct outcome *o) {
    mem_free(o->w);
    mem_free(o->m);
    mem_free(o->v);
}

static void three_steps(const struct walk *w, const struct mdl_config *c, struct outcome *o) {
    struct err_info info;
    assert_ok(ft_exec_set(w->x, w->g->start, NULL, NULL, &info), &info);
    assert_ok(ft_exec_clear(w->x, &info), &info);
    for (int32_t i = 0; i < 3; i++)
        one_step(w, i, &o->loss[i], &o->norm[i]);
    take(w->x, c, o);
}

static void test_order(void **state) {
    (void)state;
    struct fx x;
    struct tf_golden g;
    struct err_info info;
    struct outcome a, b;
    fx_open(&x, "tests/golden/models/q8_0.gguf", &(struct fx_options){0});
    tf_golden_read(&g, &x.weights->config, "q8_0");
    struct ft_exec_config cfg = config_of(&x, true);
    struct walk w = {.g = &g};
    assert_ok(ft_exec_create(&cfg, &w.x, &info), &info);
    three_steps(&w, &x.weights->config, &a);
    w.backwards = true;
    three_steps(&w, &x.weights->config, &b);
    assert_same(&a, &b);
    drop(&a);
    drop(&b);
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

// ---- a thread that owns the queue, lends a range and takes it back as it likes

struct lender {
    struct fx *x;
    struct ft_exec *exec;
    kn_addr range;
    size_t bytes, lent;
    uint64_t seed;
    _Atomic bool quit, work;
    int refused, taken_back;
};

static uint64_t draw(struct lender *l) {
    l->seed = l->seed * 6364136223846793005u + 1442695040888963407u;
    return l->seed >> 33;
}

static size_t borrow(void *arg, size_t need, size_t want, kn_addr *at) {
    struct lender *l = arg;
    if (draw(l) % 3 == 0)
        l->refused++;
    else if (draw(l) % 2 && need > l->lent) // a part of what is needed
        l->lent += (need - l->lent) / 2;
    else if (want > l->lent)
        l->lent = want < l->bytes ? want : l->bytes;
    *at = l->range + (l->bytes - l->lent);
    return l->lent;
}

static void give(void *arg, size_t keep) {
    struct lender *l = arg;
    keep = (keep + 4095) & ~(size_t)4095;
    if (keep >= l->lent)
        return;
    // Serving writes its own numbers there; here each of them is NaN.
    memset((void *)(l->range + (l->bytes - l->lent)), 0xff, l->lent - keep);
    l->lent = keep;
}

static void wake(void *arg) {
    atomic_store(&((struct lender *)arg)->work, true);
}

static void *lend(void *arg) {
    struct lender *l = arg;
    while (!atomic_load(&l->quit)) {
        if (!ft_exec_run(l->exec, (int64_t)(draw(l) % 60)) && !atomic_exchange(&l->work, false))
            usleep(200);
        if (draw(l) % 8 == 0) {
            l->taken_back++;
            ft_exec_give_back(l->exec, draw(l) % 2 ? l->lent : l->lent / 8);
        }
    }
    return NULL;
}

static void test_lender(void **state) {
    (void)state;
    struct fx x;
    struct tf_golden g;
    struct err_info info;
    struct outcome a, b;
    fx_open(&x, "tests/golden/models/bf16.gguf", &(struct fx_options){0});
    tf_golden_read(&g, &x.weights->config, "bf16");
    struct ft_exec_config cfg = config_of(&x, true);
    struct walk w = {.g = &g};
    assert_ok(ft_exec_create(&cfg, &w.x, &info), &info);
    three_steps(&w, &x.weights->config, &a);
    ft_exec_destroy(w.x);

    struct lender l = {.x = &x, .bytes = 1 << 20, .seed = 5};
    assert_int_equal(x.ops->alloc(x.device, l.bytes, &l.range), ERR_OK);
    cfg.queue = x.queue;
    cfg.memory = (struct ft_memory){borrow, give, &l};
    cfg.wake = wake;
    cfg.wake_arg = &l;
    assert_ok(ft_exec_create(&cfg, &w.x, &info), &info);
    l.exec = w.x;
    struct thread t;
    assert_int_equal(thread_start(&t, "lender", lend, &l), ERR_OK);
    three_steps(&w, &x.weights->config, &b);
    atomic_store(&l.quit, true);
    thread_join(&t);
    assert_same(&a, &b);
    assert_true(l.refused > 0 && l.taken_back > 0);
    drop(&a);
    drop(&b);
    ft_exec_destroy(w.x);
    x.ops->free(x.device, l.range, l.bytes);
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
    struct ft_exec_config cfg = config_of(&x, false);
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
    struct ft_exec_config cfg = config_of(&x, true);
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
    struct ft_exec_config cfg = config_of(&x, true);
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

// Training runs on the threads of one replica; of the device that made the weights it only reads these.
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
        struct ft_exec_config cfg = config_of(&x, true);
        struct walk w = {.g = &g, .first = g.n_rows - 1};
        x.weights->ops = i ? &ops : x.ops;
        cfg.device = i ? other : NULL;
        assert_ok(ft_exec_create(&cfg, &w.x, &info), &info);
        assert_ok(ft_exec_set(w.x, g.start, NULL, NULL, &info), &info);
        one_step(&w, 0, &loss[i], &norm[i]);
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
        cmocka_unit_test(test_curves),    cmocka_unit_test(test_curves_bf16),
        cmocka_unit_test(test_order),     cmocka_unit_test(test_lender),
        cmocka_unit_test(test_stop),      cmocka_unit_test(test_errors),
        cmocka_unit_test(test_no_memory), cmocka_unit_test(test_other_device),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

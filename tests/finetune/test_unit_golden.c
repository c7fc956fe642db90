// SPDX-License-Identifier: Apache-2.0
// Losses and gradients against PyTorch (tests/golden/finetune/make.py), for each family and type of
// weights, at each ISA level, and against finite differences of our own losses.
#include "base/mem.h"
#include "tests/finetune/train_fixture.h"
#include "tests/support/cmocka_all.h"
#include "tests/support/tolerances.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { EXPONENT = 36 };

static void assert_close(const float *found, const float *expected, size_t n, double rtol,
                         const char *what, int32_t layer, int target) {
    for (size_t i = 0; i < n; i++) {
        double f = (double)found[i], e = (double)expected[i];
        if (!(fabs(f - e) <= TOL_GRAD_ATOL + rtol * fabs(e)))
            fail_msg("layer %d %s %s[%zu]: %.9g where %.9g was expected", layer,
                     mdl_target_name((enum mdl_target)target), what, i, f, e);
    }
}

// f32 sums have noise of the size of what was added, which single small elements do not show: the
// tolerance is relative to the matrix's largest element. Backward's own rounding to bf16 has no
// margins in the golden files: a gradient that falls to the other side moves some elements.
static void assert_matrix(const float *found, const float *expected, size_t n, double noise,
                          const char *what, int32_t layer, int target) {
    double largest = 0;
    for (size_t i = 0; i < n; i++)
        largest = fmax(largest, fabs((double)expected[i]));
    assert_true(largest > 0);
    for (size_t i = 0; i < n; i++) {
        double f = (double)found[i], e = (double)expected[i];
        if (!(fabs(f - e) <= TOL_GRAD_ATOL + TOL_GRAD_RTOL * fabs(e) + noise * largest))
            fail_msg("layer %d %s %s[%zu]: %.9g where %.9g was expected (largest %g)", layer,
                     mdl_target_name((enum mdl_target)target), what, i, f, e, largest);
    }
}

struct golden_case {
    const char *file;
    const char *model;   // NULL: of the same name
    struct tf_options o; // the adapter's shape, where it is not the usual one
};

static void check_gradient(struct tf *t, const struct tf_golden *g, double noise) {
    struct mdl_adapter *found = tf_gradient(t, EXPONENT);
    for (int32_t l = 0; l < g->layers; l++)
        for (int k = 0; k < MDL_TARGETS; k++) {
            const struct mdl_adapter_module *f = &found->modules[l][k],
                                            *e = &g->gradient->modules[l][k];
            int32_t n, width;
            assert_int_equal(f->r, e->r);
            if (!f->r)
                continue;
            mdl_target_shape(&t->fx.weights->config, (enum mdl_target)k, &n, &width);
            assert_matrix(f->a, e->a, (size_t)(g->r * width), noise, "A", l, k);
            assert_matrix(f->b, e->b, (size_t)(g->r * n), noise, "B", l, k);
        }
    mdl_adapter_destroy(found);
}

static void check_model(const struct golden_case *c, const char *isa, bool forget, bool sliced) {
    struct tf t;
    struct tf_golden g;
    struct tf_options o = c->o;
    o.fx.isa = isa;
    o.forget = forget;
    tf_open(&t, c->model ? c->model : c->file, &o);
    tf_golden_read(&g, &t.fx.weights->config, c->file);
    tf_set(&t, g.start);
    for (int32_t i = 0; i < g.n_rows; i++) {
        const struct tf_row *row = &g.rows[i];
        struct lora_row lr = tf_lora_row(row, EXPONENT);
        struct lora_row_result res;
        tf_unit(&t, &lr, sliced, &res);
        assert_true(res.finite && !res.overflow);
        assert_int_equal(res.targets, row->n_targets);
        assert_close(res.losses, row->losses, (size_t)row->n_targets, TOL_ROW_LOSS_RTOL, c->file, i,
                     0);
    }
    check_gradient(&t, &g, strcmp(isa, "avx512bf16") == 0 ? TOL_GRAD_NOISE_BF16 : TOL_GRAD_NOISE);
    tf_golden_fini(&g);
    tf_close(&t);
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

static void check_all(const struct golden_case *cases, size_t n, const char *isa) {
    for (size_t i = 0; i < n && there(isa); i++) {
        check_model(&cases[i], isa, false, false);
        check_model(&cases[i], isa, true, true);
    }
}

static void test_gradients(void **state) {
    (void)state;
    static const struct golden_case cases[] = {
        {.file = "f32"},
        {.file = "f16"},
        {.file = "bf16"},
        {.file = "q8_0"},
        {.file = "q4_0"},
        {.file = "q4_1"},
        {.file = "mixed"},
        {.file = "llama3"},
        {.file = "walk"},
        {.file = "walk-norm"},
        {.file = "qwen3"},
        {.file = "qwen3-bf16"},
        {.file = "qwen3-q8_0"},
        {.file = "f32-rslora",
         .model = "f32",
         .o = {.r = 5,
               .alpha = 3,
               .rslora = true,
               .targets = 1U << MDL_TARGET_Q | 1U << MDL_TARGET_V | 1U << MDL_TARGET_O |
                          1U << MDL_TARGET_DOWN}},
    };
    static const char *const isas[] = {"avx512", "avx2", "portable"};
    for (size_t i = 0; i < sizeof isas / sizeof *isas; i++)
        check_all(cases, sizeof cases / sizeof *cases, isas[i]);
}

// The level that multiplies bf16 rounds more, and has numbers of its own.
static void test_gradients_bf16(void **state) {
    (void)state;
    static const struct golden_case cases[] = {{.file = "f32.bf16", .model = "f32"},
                                               {.file = "bf16.bf16", .model = "bf16"},
                                               {.file = "q8_0.bf16", .model = "q8_0"},
                                               {.file = "llama3.bf16", .model = "llama3"},
                                               {.file = "qwen3-bf16.bf16", .model = "qwen3-bf16"}};
    check_all(cases, sizeof cases / sizeof *cases, "avx512bf16");
}

// ---- finite differences on the f32 base

static double total_loss(struct tf *t, const struct tf_golden *g) {
    double sum = 0;
    for (int32_t i = 0; i < g->n_rows; i++) {
        struct lora_row row = tf_lora_row(&g->rows[i], EXPONENT);
        struct lora_row_result res;
        row.backward = false;
        tf_unit(t, &row, false, &res);
        sum += res.loss;
    }
    return sum;
}

struct direction { // of one matrix: w + s dw / |dw|
    float *w;
    const float *dw;
    size_t n;
    double norm;
};

static double loss_at(struct tf *t, const struct tf_golden *g, const struct direction *d,
                      const float *before, double s) {
    for (size_t i = 0; i < d->n; i++)
        d->w[i] = (float)((double)before[i] + s / d->norm * (double)d->dw[i]);
    tf_set(t, g->start);
    return total_loss(t, g);
}

// The loss along the gradient. Rounding K and V makes it a staircase, so its slope at 0 is that of
// the best a s + b s^3 through the odd part of many points.
static double slope(struct tf *t, const struct tf_golden *g, const struct direction *d) {
    enum { POINTS = 24 };
    double m[2][2] = {{0}}, v[2] = {0};
    float *before = mem_dup(d->w, d->n * sizeof *before);
    assert_non_null(before);
    for (int i = 1; i <= POINTS; i++) {
        double s = 0.03 * i / POINTS;
        double odd = (loss_at(t, g, d, before, s) - loss_at(t, g, d, before, -s)) / 2;
        const double term[2] = {s, s * s * s};
        for (int j = 0; j < 2; j++) {
            v[j] += term[j] * odd;
            for (int k = 0; k < 2; k++)
                m[j][k] += term[j] * term[k];
        }
    }
    memcpy(d->w, before, d->n * sizeof *before);
    mem_free(before);
    return (v[0] * m[1][1] - v[1] * m[0][1]) / (m[0][0] * m[1][1] - m[0][1] * m[1][0]);
}

static void check_slope(struct tf *t, const struct tf_golden *g, const struct mdl_adapter *grad,
                        int32_t layer, int target, int side) {
    int32_t n, width;
    mdl_target_shape(&t->fx.weights->config, (enum mdl_target)target, &n, &width);
    const struct mdl_adapter_module *m = &g->start->modules[layer][target];
    const struct mdl_adapter_module *dm = &grad->modules[layer][target];
    struct direction d = {side ? m->b : m->a, side ? dm->b : dm->a,
                          (size_t)(g->r * (side ? n : width)), 0};
    for (size_t i = 0; i < d.n; i++)
        d.norm += (double)d.dw[i] * (double)d.dw[i];
    d.norm = sqrt(d.norm);
    double found = slope(t, g, &d);
    bool smooth = layer == g->layers - 1 && target >= MDL_TARGET_O; // behind all that is rounded
    if (fabs(found - d.norm) > (smooth ? 2e-4 : 0.2) * d.norm)
        fail_msg("layer %d %s %c: slope %g, gradient %g", layer,
                 mdl_target_name((enum mdl_target)target), side ? 'B' : 'A', found, d.norm);
}

static void check_slopes(const char *model) {
    struct tf t;
    struct tf_golden g;
    tf_open(&t, model, &(struct tf_options){0});
    tf_golden_read(&g, &t.fx.weights->config, model);
    tf_set(&t, g.start);
    for (int32_t i = 0; i < g.n_rows; i++) {
        struct lora_row row = tf_lora_row(&g.rows[i], EXPONENT);
        struct lora_row_result res;
        tf_unit(&t, &row, false, &res);
    }
    struct mdl_adapter *grad = tf_gradient(&t, EXPONENT);
    for (int32_t l = 0; l < g.layers; l++)
        for (int k = 0; k < MDL_TARGETS; k++)
            for (int side = 0; side < 2; side++)
                check_slope(&t, &g, grad, l, k, side);
    mdl_adapter_destroy(grad);
    tf_golden_fini(&g);
    tf_close(&t);
}

static void test_finite_differences(void **state) {
    (void)state;
    check_slopes("f32");
    check_slopes("qwen3");
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_gradients),
                                       cmocka_unit_test(test_gradients_bf16),
                                       cmocka_unit_test(test_finite_differences)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

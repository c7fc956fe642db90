// SPDX-License-Identifier: Apache-2.0
// The loss and its gradient, on every ISA level: against formulas in double precision (which
// central differences check), against PyTorch (tests/golden/train), and bit by bit between threads
// and with sampling's log-probability.
#include "base/mem.h"
#include "golden_text.h"
#include "kn_fixture.h"
#include "tests/support/tolerances.h"
#include <math.h>
#include <string.h>

static const int all_threads[] = {1, 2, 4};

struct loss_case {
    int32_t rows, vocab;
    const float *logits, *weight;
    const int32_t *target;
};

struct loss_result {
    float *grad, *loss; // grad: the logits if it was not asked for
    int32_t *hit;
};

static struct loss_result run_loss(const char *isa, int threads, const struct loss_case *c,
                                   bool grad) {
    size_t n = (size_t)c->rows * (size_t)(c->vocab + 3);
    struct loss_result r = {kn_zeros(n, 4), kn_zeros((size_t)c->rows, 4),
                            kn_zeros((size_t)c->rows, 4)};
    for (int32_t i = 0; i < c->rows; i++)
        memcpy(r.grad + i * (c->vocab + 3), c->logits + (size_t)i * (size_t)c->vocab,
               (size_t)c->vocab * 4);
    struct kn_fixture f;
    struct kn_xent p = {.logits = (kn_addr)r.grad,
                        .ld = c->vocab + 3,
                        .rows = c->rows,
                        .vocab = c->vocab,
                        .target = (kn_addr)c->target,
                        .weight = (kn_addr)c->weight,
                        .loss = (kn_addr)r.loss,
                        .hit = (kn_addr)r.hit,
                        .grad = grad};
    kn_fixture_open(&f, isa, threads);
    assert_int_equal(f.ops->xent(f.q, &p), ERR_OK);
    kn_test_wait(&f);
    kn_fixture_close(&f);
    return r;
}

static void loss_free(struct loss_result *r) {
    mem_free(r->grad);
    mem_free(r->loss);
    mem_free(r->hit);
}

// -log softmax(x)[target] in double, and its gradient times weight.
static double loss_reference(const double *x, int32_t n, int32_t target, double weight,
                             double *grad) {
    double top = x[0], sum = 0;
    for (int32_t i = 0; i < n; i++)
        top = x[i] > top ? x[i] : top;
    for (int32_t i = 0; i < n; i++)
        sum += exp(x[i] - top);
    for (int32_t i = 0; grad && i < n; i++)
        grad[i] = (exp(x[i] - top) / sum - (i == target)) * weight;
    return log(sum) + top - x[target];
}

// The same bits as the log-probability that sampling reports for the token.
static void check_sampling(const char *isa, const struct loss_case *c, const float *loss) {
    struct kn_fixture f;
    kn_fixture_open(&f, isa, 2);
    struct kn_sample_row *rows = kn_zeros((size_t)c->rows, sizeof *rows);
    struct kn_sample_out *out = kn_zeros((size_t)c->rows, sizeof *out);
    for (int32_t i = 0; i < c->rows; i++)
        rows[i] = (struct kn_sample_row){
            .top_p = 1, .repetition = 1, .target = c->target[i], .n_logprobs = 0};
    struct kn_sample p = {.logits = (kn_addr)c->logits,
                          .ld = c->vocab,
                          .rows = c->rows,
                          .vocab = c->vocab,
                          .params = (kn_addr)rows,
                          .out = (kn_addr)out};
    assert_int_equal(f.ops->sample(f.q, &p), ERR_OK);
    kn_test_wait(&f);
    for (int32_t i = 0; i < c->rows; i++) {
        float want = -out[i].logprob;
        kn_assert_same(&loss[i], &want, sizeof want);
    }
    mem_free(rows);
    mem_free(out);
    kn_fixture_close(&f);
}

static void check_loss(const char *isa, int32_t rows, int32_t vocab) {
    struct kn_rng r = {(uint64_t)vocab};
    size_t n = (size_t)rows * (size_t)vocab;
    float *logits = kn_zeros(n, 4), *weight = kn_zeros((size_t)rows, 4);
    int32_t *target = kn_zeros((size_t)rows, 4);
    double *grad = kn_zeros((size_t)vocab, sizeof *grad);
    kn_rng_fill(&r, logits, n, 3);
    for (int32_t i = 0; i < rows; i++) {
        weight[i] = 0.5f + (float)kn_rng_uniform(&r);
        target[i] = kn_rng_below(&r, vocab);
        if (i % 2) // the greedy choice
            logits[(size_t)i * (size_t)vocab + (size_t)target[i]] = 15;
    }
    struct loss_case c = {rows, vocab, logits, weight, target};
    struct loss_result a = run_loss(isa, 1, &c, true), plain = run_loss(isa, 2, &c, false);
    for (int32_t i = 0; i < rows; i++) {
        double *x = kn_doubles(logits + (size_t)i * (size_t)vocab, (size_t)vocab);
        double loss = loss_reference(x, vocab, target[i], (double)weight[i], grad);
        kn_assert_close(&a.loss[i], &loss, 1, TOL_LOSS_RTOL, TOL_GRAD_ATOL);
        kn_assert_close(a.grad + i * (vocab + 3), grad, (size_t)vocab, TOL_GRAD_RTOL,
                        TOL_XENT_ATOL);
        assert_true(a.hit[i] == (i % 2 || vocab == 1));
        for (int32_t j = 0; j < 3; j++)
            assert_true(a.grad[i * (vocab + 3) + vocab + j] == 0);
        kn_assert_same(plain.grad + i * (vocab + 3), logits + (size_t)i * (size_t)vocab,
                       (size_t)vocab * 4);
        mem_free(x);
    }
    kn_assert_same(plain.loss, a.loss, (size_t)rows * 4);
    check_sampling(isa, &c, a.loss);
    for (int t = 1; t < 3; t++) {
        struct loss_result b = run_loss(isa, all_threads[t], &c, true);
        kn_assert_same(b.grad, a.grad, (size_t)rows * (size_t)(vocab + 3) * 4);
        kn_assert_same(b.loss, a.loss, (size_t)rows * 4);
        kn_assert_same(b.hit, a.hit, (size_t)rows * 4);
        loss_free(&b);
    }
    loss_free(&a);
    loss_free(&plain);
    mem_free(logits);
    mem_free(weight);
    mem_free(target);
    mem_free(grad);
}

static void loss_levels(const char *isa) {
    check_loss(isa, 3, 1);
    check_loss(isa, 2, 17);
    check_loss(isa, 9, 1000);
    check_loss(isa, 4, 49152);
}
static void test_loss(void **state) {
    (void)state;
    kn_for_levels(loss_levels);
}

static void test_loss_differences(void **state) {
    (void)state;
    enum { N = 11 };
    struct kn_rng r = {4};
    float f[N];
    kn_rng_fill(&r, f, N, 2);
    double *x = kn_doubles(f, N), grad[N], h = 1e-5;
    loss_reference(x, N, 5, 0.75, grad);
    for (int i = 0; i < N; i++) {
        double at = x[i];
        x[i] = at + h;
        double up = loss_reference(x, N, 5, 0, NULL);
        x[i] = at - h;
        double diff = 0.75 * (up - loss_reference(x, N, 5, 0, NULL)) / (2 * h);
        x[i] = at;
        assert_true(fabs(diff - grad[i]) < 1e-9);
    }
    mem_free(x);
}

static void golden_loss(const char *isa) {
    struct golden_text *g = golden_open("tests/golden/train/golden.txt");
    int32_t n, rows = 0, vocab = 0;
    const double *shape = golden_array(g, "xent.shape", &n);
    rows = (int32_t)shape[0];
    vocab = (int32_t)shape[1];
    float *logits = golden_f32(g, "xent.logits", &n), *weight = golden_f32(g, "xent.weight", &n);
    const double *t = golden_array(g, "xent.target", &n), *hit = golden_array(g, "xent.hit", &n);
    int32_t target[16];
    assert_true(n == rows && rows <= 16);
    for (int32_t i = 0; i < rows; i++)
        target[i] = (int32_t)t[i];
    struct loss_case c = {rows, vocab, logits, weight, target};
    struct loss_result r = run_loss(isa, 1, &c, true);
    const double *loss = golden_array(g, "xent.loss", &n), *grad = golden_array(g, "xent.grad", &n);
    kn_assert_close(r.loss, loss, (size_t)rows, TOL_GRAD_RTOL, TOL_GRAD_ATOL);
    for (int32_t i = 0; i < rows; i++) {
        kn_assert_close(r.grad + i * (vocab + 3), grad + i * vocab, (size_t)vocab, TOL_GRAD_RTOL,
                        TOL_GRAD_ATOL);
        assert_int_equal(r.hit[i], (int32_t)hit[i]);
    }
    loss_free(&r);
    mem_free(logits);
    mem_free(weight);
    golden_close(g);
}
static void test_golden_loss(void **state) {
    (void)state;
    kn_for_levels(golden_loss);
}

// A row that is not finite says so and leaves the others alone; a target that there is not is an
// error.
static void loss_bad(const char *isa) {
    float x[3 * 20] = {0}, weight[3] = {1, 1, 1};
    int32_t target[3] = {2, 3, 4};
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    struct loss_case c = {3, 20, x, weight, target};
    for (int i = 0; i < 3; i++) {
        x[20 + 7] = bad[i];
        struct loss_result r = run_loss(isa, 2, &c, true);
        assert_true(isnan(r.loss[1]) && r.hit[1] == 0 && isnan(r.grad[23]) && isnan(r.grad[42]));
        assert_true(fabsf(r.loss[0] - logf(20)) < 1e-6f && r.grad[2] == r.grad[50]);
        loss_free(&r);
    }
    struct kn_fixture f;
    kn_fixture_open(&f, isa, 1);
    for (int i = 0; i < 2; i++) {
        target[0] = i ? 20 : -1;
        float loss[3];
        struct kn_xent p = {.logits = (kn_addr)x,
                            .ld = 20,
                            .rows = 3,
                            .vocab = 20,
                            .target = (kn_addr)target,
                            .loss = (kn_addr)loss};
        assert_int_equal(f.ops->xent(f.q, &p), ERR_OK);
        struct err_info info;
        assert_int_equal(f.ops->queue_wait(f.q, &info), ERR_INTERNAL);
    }
    kn_fixture_close(&f);
}
static void test_loss_bad(void **state) {
    (void)state;
    kn_for_levels(loss_bad);
}

static void test_refused(void **state) {
    (void)state;
    struct kn_fixture f;
    struct err_info info;
    float x[8] = {0};
    int32_t target = 0;
    const struct kn_xent good = {.logits = (kn_addr)x,
                                 .ld = 8,
                                 .rows = 1,
                                 .vocab = 8,
                                 .target = (kn_addr)&target,
                                 .loss = (kn_addr)x};
    kn_fixture_open(&f, NULL, 1);
    for (int i = 0; i < 4; i++) {
        struct kn_xent p = good;
        p.ld -= i == 0;
        p.loss = i == 1 ? 0 : p.loss;
        p.grad = i == 2; // without weights
        p.rows = i == 3 ? -1 : 1;
        assert_int_equal(f.ops->xent(f.q, &p), ERR_OK);
        assert_int_equal(f.ops->queue_wait(f.q, &info), ERR_INVALID);
        assert_non_null(strstr(info.message, "xent"));
    }
    kn_fixture_close(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_loss),        cmocka_unit_test(test_loss_differences),
        cmocka_unit_test(test_golden_loss), cmocka_unit_test(test_loss_bad),
        cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

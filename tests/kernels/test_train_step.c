// SPDX-License-Identifier: Apache-2.0
// Sums of gradients in int64, their norm and AdamW, on every ISA level: exact where they are exact,
// against double precision and against torch.optim.AdamW (tests/golden/train), and bit by bit
// between ranges and threads.
#include "base/mem.h"
#include "golden_text.h"
#include "kn_fixture.h"
#include "tests/support/tolerances.h"
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

// ---- sums

static void sum_mode(struct kn_fixture *f, enum kn_grad_mode mode, const float *g, int64_t *acc,
                     int64_t n, int32_t exponent, int32_t *flag) {
    struct kn_grad_add p = {(kn_addr)g, (kn_addr)acc, n, exponent, (kn_addr)flag, mode, 0, 0};
    assert_int_equal(f->ops->grad_add(f->q, &p), ERR_OK);
    kn_test_wait(f);
}

static void add(struct kn_fixture *f, const float *g, int64_t *acc, int64_t n, int32_t exponent,
                int32_t *flag, int64_t begin, int64_t end) {
    struct kn_grad_add p = {(kn_addr)g,    (kn_addr)acc, n,     exponent,
                            (kn_addr)flag, KN_GRAD_ADD,  begin, end};
    assert_int_equal(f->ops->grad_add(f->q, &p), ERR_OK);
    kn_test_wait(f);
}

// round(g * 2^e) to nearest even, exactly; false where it must be refused.
static bool rounded(float g, int32_t e, int64_t *out) {
    double x = ldexp((double)g, e);
    *out = 0;
    if (!(fabs(x) < 0x1p52))
        return false;
    double down = floor(x), rest = x - down; // exact
    bool up = rest > 0.5 || (rest == 0.5 && fmod(down, 2) != 0);
    *out = (int64_t)down + up;
    return true;
}

static void sums(const char *isa) {
    enum { N = 20011 };
    static const int32_t exponents[] = {20, 0, -3, 40, 160, -140};
    float *g = kn_zeros(N, sizeof *g);
    int64_t *acc = kn_zeros(N, sizeof *acc), *want = kn_zeros(N, sizeof *want);
    int64_t *start = kn_zeros(N, sizeof *start);
    struct kn_rng r = {12};
    for (int e = 0; e < 6; e++) {
        bool fits = true;
        for (int i = 0; i < N; i++) {
            float edge[] = {0.5f, -0.5f, 1.5f, 2.5f, -2.5f, 0.0f, -0.0f, 1e-45f, 0.49999997f};
            g[i] = i < 9   ? ldexpf(edge[i], -exponents[e])
                   : i % 5 ? ldexpf(kn_rng_normal(&r), 12 - exponents[e])
                           : ldexpf((float)kn_rng_uniform(&r), 52 - exponents[e]);
            want[i] = acc[i] = start[i] = (int64_t)kn_rng_u64(&r) >> 8;
            int64_t x;
            fits &= rounded(g[i], exponents[e], &x);
            want[i] += x;
        }
        struct kn_fixture f;
        int32_t flag = 0;
        kn_fixture_open(&f, isa, 1 << e % 3);
        add(&f, g, acc, N, exponents[e], &flag, 0, 7);
        add(&f, g, acc, N, exponents[e], &flag, 7, 9001);
        add(&f, g, acc, N, exponents[e], &flag, 9001, N);
        kn_assert_same(acc, want, N * sizeof *acc);
        assert_int_equal(flag, !fits);
        flag = 0;
        sum_mode(&f, KN_GRAD_CHECK, g, NULL, N, exponents[e], &flag);
        assert_int_equal(flag, !fits);
        sum_mode(&f, KN_GRAD_SUBTRACT, g, acc, N, exponents[e], &flag);
        kn_assert_same(acc, start, N * sizeof *acc);
        kn_fixture_close(&f);
    }
    mem_free(g);
    mem_free(acc);
    mem_free(want);
    mem_free(start);
}
static void test_sums(void **state) {
    (void)state;
    kn_for_levels(sums);
}

// What does not fit is left out and flagged, wherever it stands; its neighbours are added.
static void overflow(const char *isa) {
    enum { N = 40 };
    const float most = 0x1.fffffep51f;
    const float bad[] = {NAN, INFINITY, -INFINITY, 0x1p52f, -0x1p52f, FLT_MAX};
    struct kn_fixture f;
    kn_fixture_open(&f, isa, 2);
    for (int b = 0; b < 6; b++)
        for (int at = 0; at < N; at += 13) {
            float g[N];
            int64_t acc[N];
            int32_t flag = 0;
            for (int i = 0; i < N; i++) {
                g[i] = i % 2 ? most : -most;
                acc[i] = 5;
            }
            add(&f, g, acc, N, 0, &flag, 0, 0);
            assert_int_equal(flag, 0);
            g[at] = bad[b];
            add(&f, g, acc, N, 0, &flag, 0, 0);
            assert_int_equal(flag, 1);
            for (int i = 0; i < N; i++)
                assert_true(acc[i] == 5 + (int64_t)(i % 2 ? most : -most) * (i == at ? 1 : 2));
        }
    kn_fixture_close(&f);
}
static void test_overflow(void **state) {
    (void)state;
    kn_for_levels(overflow);
}

// ---- norm

static void norms(const char *isa) {
    enum { N = 5 * KN_SUMSQ_CHUNK + 1237, CHUNKS = 6 };
    int64_t *acc = kn_zeros(N, sizeof *acc);
    struct kn_rng r = {3};
    for (int i = 0; i < N; i++)
        acc[i] = (int64_t)kn_rng_u64(&r) >> (10 + i % 40);
    acc[7777] = INT64_MIN / 4;
    double factor = 0x1p-30 / 3, out[3][CHUNKS], largest[3][CHUNKS];
    memset(out, 0, sizeof out);
    for (int t = 0; t < 3; t++) {
        struct kn_fixture f;
        kn_fixture_open(&f, isa, 1 << t);
        int64_t cut = t * 2 * KN_SUMSQ_CHUNK;
        struct kn_sumsq p = {(kn_addr)acc, N, factor, (kn_addr)out[t], (kn_addr)largest[t], 0, cut};
        assert_int_equal(f.ops->sumsq(f.q, &p), ERR_OK);
        p.begin = cut;
        p.end = cut ? N : 0;
        assert_int_equal(f.ops->sumsq(f.q, &p), ERR_OK);
        kn_test_wait(&f);
        kn_fixture_close(&f);
    }
    for (int c = 0; c < CHUNKS; c++) {
        long double sum = 0, top = 0;
        for (int i = c * KN_SUMSQ_CHUNK; i < N && i < (c + 1) * KN_SUMSQ_CHUNK; i++) {
            long double x = (long double)acc[i] * (long double)factor;
            sum += x * x;
            top = fabsl(x) > top ? fabsl(x) : top;
        }
        assert_true(fabs(out[0][c] - (double)sum) <= 1e-12 * (double)sum);
        assert_true(fabs(largest[0][c] - (double)top) <= 1e-15 * (double)top);
    }
    kn_assert_same(out[1], out[0], sizeof out[0]);
    kn_assert_same(out[2], out[0], sizeof out[0]);
    kn_assert_same(largest[1], largest[0], sizeof out[0]);
    kn_assert_same(largest[2], largest[0], sizeof out[0]);
    mem_free(acc);
}
static void test_norms(void **state) {
    (void)state;
    kn_for_levels(norms);
}

// ---- AdamW

static struct kn_adamw adam_params(float *w, float *m, float *v, int64_t *acc, int64_t n, int t) {
    return (struct kn_adamw){.w = (kn_addr)w,
                             .m = (kn_addr)m,
                             .v = (kn_addr)v,
                             .acc = (kn_addr)acc,
                             .n = n,
                             .factor = 0x1p-20,
                             .lr = 1e-2 / t,
                             .beta1 = 0.9,
                             .beta2 = 0.999,
                             .eps = 1e-8,
                             .decay = 0.1,
                             .c1 = 1 - pow(0.9, t),
                             .c2 = 1 - pow(0.999, t)};
}

static void golden_adam(const char *isa) {
    struct golden_text *g = golden_open("tests/golden/train/golden.txt");
    int32_t n, k;
    const double *shape = golden_array(g, "adamw.shape", &n);
    int steps = (int)shape[1];
    float *w = golden_f32(g, "adamw.w", &n), *m = kn_zeros((size_t)n, 4),
          *v = kn_zeros((size_t)n, 4);
    int64_t *acc = kn_zeros((size_t)n, sizeof *acc);
    struct kn_fixture f;
    kn_fixture_open(&f, isa, 1);
    for (int t = 1; t <= steps; t++) {
        char name[32];
        snprintf(name, sizeof name, "adamw.g%d", t - 1);
        const double *grad = golden_array(g, name, &k);
        for (int32_t i = 0; i < n; i++)
            acc[i] = (int64_t)(grad[i] * 0x1p20);
        struct kn_adamw p = adam_params(w, m, v, acc, n, t);
        assert_int_equal(f.ops->adamw(f.q, &p), ERR_OK);
        kn_test_wait(&f);
        const char *names[] = {"adamw.w%d", "adamw.m%d", "adamw.v%d"};
        const float *got[] = {w, m, v};
        for (int i = 0; i < 3; i++) {
            char format[32];
            snprintf(format, sizeof format, "adamw.%c%d", names[i][6], t - 1);
            kn_assert_close(got[i], golden_array(g, format, &k), (size_t)n, TOL_ADAMW_RTOL,
                            TOL_ADAMW_ATOL);
        }
        for (int32_t i = 0; i < n; i++)
            assert_true(acc[i] == 0);
    }
    kn_fixture_close(&f);
    mem_free(w);
    mem_free(m);
    mem_free(v);
    mem_free(acc);
    golden_close(g);
}
static void test_golden_adam(void **state) {
    (void)state;
    kn_for_levels(golden_adam);
}

// Larger, against double precision; cut and shared in different ways.
static void adam_cuts(const char *isa) {
    enum { N = 20021 };
    float *w = kn_zeros(3 * N, 4), *m = kn_zeros(3 * N, 4), *v = kn_zeros(3 * N, 4);
    int64_t *acc = kn_zeros(3 * N, sizeof *acc);
    double *dw = kn_zeros(N, 8);
    struct kn_rng r = {31};
    for (int i = 0; i < N; i++) {
        w[i] = kn_rng_normal(&r);
        m[i] = 0.1f * kn_rng_normal(&r);
        v[i] = 0.01f * (float)kn_rng_uniform(&r);
        acc[i] = (int64_t)(0x1p20 * (double)kn_rng_normal(&r));
        for (int t = 1; t < 3; t++) {
            w[t * N + i] = w[i];
            m[t * N + i] = m[i];
            v[t * N + i] = v[i];
            acc[t * N + i] = acc[i];
        }
        double g = (double)acc[i] * 0x1p-20, lr = 1e-2 / 3;
        double mi = 0.9 * (double)m[i] + 0.1 * g, vi = 0.999 * (double)v[i] + 0.001 * g * g;
        dw[i] = (double)w[i] * (1 - lr * 0.1) -
                lr * (mi / (1 - pow(0.9, 3))) / (sqrt(vi / (1 - pow(0.999, 3))) + 1e-8);
    }
    for (int t = 0; t < 3; t++) {
        struct kn_fixture f;
        kn_fixture_open(&f, isa, 1 << t);
        struct kn_adamw p = adam_params(w + t * N, m + t * N, v + t * N, acc + t * N, N, 3);
        for (int64_t at = 0; at < N; at = p.end) {
            p.begin = at;
            p.end = t == 0 ? N : at + 5003 * t < N ? at + 5003 * t : N;
            assert_int_equal(f.ops->adamw(f.q, &p), ERR_OK);
        }
        kn_test_wait(&f);
        kn_fixture_close(&f);
        kn_assert_close(w + t * N, dw, N, TOL_ADAMW_RTOL, 1e-6);
        kn_assert_same(w + t * N, w, N * 4);
        kn_assert_same(m + t * N, m, N * 4);
        kn_assert_same(v + t * N, v, N * 4);
        for (int i = 0; i < N; i++)
            assert_true(acc[t * N + i] == 0);
    }
    mem_free(w);
    mem_free(m);
    mem_free(v);
    mem_free(acc);
    mem_free(dw);
}
static void test_adam_cuts(void **state) {
    (void)state;
    kn_for_levels(adam_cuts);
}

// Padding (weight, moments and gradient 0) stays exactly zero.
static void padding(const char *isa) {
    enum { N = 33 };
    float w[N] = {0}, m[N] = {0}, v[N] = {0}, zero[N] = {0};
    int64_t acc[N] = {0};
    struct kn_fixture f;
    kn_fixture_open(&f, isa, 1);
    for (int t = 1; t < 4; t++) {
        struct kn_adamw p = adam_params(w, m, v, acc, N, t);
        assert_int_equal(f.ops->adamw(f.q, &p), ERR_OK);
        kn_test_wait(&f);
    }
    for (int i = 0; i < N; i++)
        assert_true(w[i] == zero[i] && m[i] == 0 && v[i] == 0);
    kn_fixture_close(&f);
}
static void test_padding(void **state) {
    (void)state;
    kn_for_levels(padding);
}

static void test_refused(void **state) {
    (void)state;
    struct kn_fixture f;
    struct err_info info;
    double x[64] = {0};
    kn_addr a = (kn_addr)x;
    kn_fixture_open(&f, NULL, 1);
#define REFUSED(op, ...)                                                                           \
    do {                                                                                           \
        struct kn_##op p_ = {__VA_ARGS__};                                                         \
        assert_int_equal(f.ops->op(f.q, &p_), ERR_OK);                                             \
        assert_int_equal(f.ops->queue_wait(f.q, &info), ERR_INVALID);                              \
        assert_non_null(strstr(info.message, #op));                                                \
    } while (0)
    REFUSED(grad_add, .g = a, .acc = a, .n = 8, .exponent = 901, .flag = a);
    REFUSED(grad_add, .g = a, .acc = a, .n = 8);
    REFUSED(grad_add, .g = a, .n = 8, .flag = a);
    REFUSED(grad_add, .g = a, .acc = a, .n = 8, .flag = a, .mode = (enum kn_grad_mode)7);
    REFUSED(grad_add, .g = a, .acc = a, .n = 8, .flag = a, .begin = 4, .end = 9);
    REFUSED(sumsq, .acc = a, .n = 5000, .out = a, .largest = a, .begin = 100, .end = 5000);
    REFUSED(sumsq, .acc = a, .n = 5000, .out = a);
    REFUSED(adamw, .w = a, .m = a, .v = a, .acc = a, .n = 8, .c2 = 1);
    REFUSED(adamw, .w = a, .m = a, .acc = a, .n = 8, .c1 = 1, .c2 = 1);
#undef REFUSED
    kn_fixture_close(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sums),      cmocka_unit_test(test_overflow),
        cmocka_unit_test(test_norms),     cmocka_unit_test(test_golden_adam),
        cmocka_unit_test(test_adam_cuts), cmocka_unit_test(test_padding),
        cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

// SPDX-License-Identifier: Apache-2.0
// The transposed product against sums in double precision (of rounded factors where the level
// multiplies pairs of bf16); the same bits for any number of rows and
// of threads, and any cut into calls, along the rows of W, too.
#include "base/mem.h"
#include "matrix_fixture.h"
#include <math.h>
#include <string.h>

static const enum kn_dtype all_types[] = {KN_F32, KN_F16, KN_BF16, KN_Q8_0, KN_Q4_0, KN_Q4_1};
enum { N_TYPES = sizeof all_types / sizeof *all_types, GUARD = 40 };
static const float guard_value = 12345.0f;

static float *guarded(size_t n) {
    float *y = mem_alloc((n + 2 * GUARD) * sizeof *y);
    assert_non_null(y);
    for (size_t i = 0; i < n + 2 * GUARD; i++)
        y[i] = guard_value;
    return y;
}

struct product {
    struct kn_weight *w;
    const float *dy;
    int32_t rows, n, k;
    int64_t lddy, lddx;
};

// dx holds `before` where the product is added to it.
static float *run(struct kn_fixture *f, const struct product *x, bool add, float before) {
    float *dx = guarded((size_t)x->rows * (size_t)x->lddx);
    for (int32_t r = 0; r < x->rows && add; r++)
        for (int32_t c = 0; c < x->k; c++)
            dx[GUARD + r * x->lddx + c] = before;
    struct kn_gemm_t p = {.w = x->w,
                          .dy = (kn_addr)x->dy,
                          .lddy = x->lddy,
                          .dx = (kn_addr)(dx + GUARD),
                          .lddx = x->lddx,
                          .rows = x->rows,
                          .add = add};
    assert_int_equal(f->ops->gemm_t(f->q, &p), ERR_OK);
    kn_test_wait(f);
    return dx;
}

static void check_pieces(struct kn_fixture *f, struct kn_rng *r, const struct product *x,
                         const float *whole) {
    float *dx = guarded((size_t)x->rows * (size_t)x->lddx);
    for (int32_t row = 0, take; row < x->rows; row += take) {
        take = 1 + kn_rng_below(r, 20);
        take = take < x->rows - row ? take : x->rows - row;
        int32_t cut = (kn_rng_below(r, x->k) + 31) / 32 * 32;
        int32_t most = kn_rng_below(r, 2) ? 3 * KN_GEMM_T_RUN : 40; // of W's rows in a range
        for (int part = 0; part < 2; part++) {
            struct kn_gemm_t p = {.w = x->w,
                                  .dy = (kn_addr)(x->dy + row * x->lddy),
                                  .lddy = x->lddy,
                                  .dx = (kn_addr)(dx + GUARD + row * x->lddx),
                                  .lddx = x->lddx,
                                  .rows = take,
                                  .k_begin = part ? cut : 0,
                                  .k_end = part         ? x->k
                                           : cut < x->k ? cut
                                                        : x->k};
            for (; p.k_begin < p.k_end && p.n_end < x->n; p.add = true) {
                p.n_begin = p.n_end;
                p.n_end += 1 + kn_rng_below(r, most);
                p.n_end = p.n_end < x->n ? p.n_end : x->n;
                assert_int_equal(f->ops->gemm_t(f->q, &p), ERR_OK);
            }
        }
    }
    kn_test_wait(f);
    kn_assert_same(dx, whole, ((size_t)x->rows * (size_t)x->lddx + 2 * GUARD) * sizeof *dx);
    mem_free(dx);
}

// To nearest even; no denormal numbers or infinities here.
static double round_bf16(float f) {
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    u = (u + 0x7fff + (u >> 16 & 1)) & 0xffff0000u;
    memcpy(&f, &u, sizeof f);
    return (double)f;
}

// `rounded`: both factors are, to bf16. `before`: what dx held.
static void check_values(const struct product *x, const struct test_matrix *m, int parts,
                         const float *dx, bool rounded, double before) {
    for (int32_t r = 0; r<x->rows; r += x->rows> 6 ? x->rows / 3 : 1)
        for (int32_t c = 0; c < x->k; c++) {
            double sum = before, size = fabs(before);
            int64_t col = 0;
            for (int i = 0; i < parts; col += m[i++].n)
                for (int64_t o = 0; o < m[i].n; o++) {
                    float dy = x->dy[r * x->lddy + col + o], w = m[i].value[o * m[i].k + c];
                    double t = rounded ? round_bf16(dy) * round_bf16(w) : (double)dy * (double)w;
                    sum += t;
                    size += fabs(t);
                }
            double got = (double)dx[GUARD + r * x->lddx + c];
            if (!(fabs(got - sum) <= 2e-6 * size))
                fail_msg("%s row %d column %d: %.9g, not %.9g", kn_dtype_name(m->dtype), r, c, got,
                         sum);
        }
}

static void check_guards(const struct product *x, const float *dx) {
    for (int i = 0; i < GUARD; i++) {
        assert_true(dx[i] == guard_value);
        assert_true(dx[GUARD + x->rows * x->lddx + i] == guard_value);
    }
    for (int32_t r = 0; r < x->rows; r++)
        for (int64_t c = x->k; c < x->lddx; c++)
            assert_true(dx[GUARD + r * x->lddx + c] == guard_value);
}

static void check(const char *level, const struct test_matrix *m, int parts, enum kn_stack stack,
                  int32_t rows) {
    float *first = NULL, *dy = NULL;
    for (int threads = 1; threads <= 4; threads *= 2) {
        struct kn_rng r = {77};
        struct kn_fixture f;
        kn_fixture_open(&f, level, threads);
        struct product x = {.w = test_weight(&f, m, parts, stack), .rows = rows};
        x.k = (int32_t)m->k;
        for (int i = 0; i < parts; i++)
            x.n += (int32_t)m[i].n;
        x.lddy = x.n + 3;
        x.lddx = x.k + 2;
        size_t bytes = ((size_t)rows * (size_t)x.lddx + 2 * GUARD) * sizeof(float);
        if (!dy) {
            dy = mem_alloc((size_t)rows * (size_t)x.lddy * sizeof *dy);
            assert_non_null(dy);
            for (int32_t i = 0; i < rows; i++)
                for (int64_t c = 0; c < x.lddy; c++)
                    dy[i * x.lddy + c] = c < x.n ? kn_rng_normal(&r) : NAN;
        }
        x.dy = dy;
        float *dx = run(&f, &x, false, 0), *sum = run(&f, &x, true, 0.75f);
        check_guards(&x, dx);
        check_guards(&x, sum);
        bool rounded = strcmp(level, "avx512bf16") == 0 && m->dtype != KN_F32;
        check_values(&x, m, parts, dx, rounded, 0);
        check_values(&x, m, parts, sum, rounded, 0.75);
        check_pieces(&f, &r, &x, dx);
        if (first) {
            kn_assert_same(dx, first, bytes);
            mem_free(dx);
        } else {
            first = dx;
        }
        mem_free(sum);
        f.ops->weight_destroy(x.w);
        kn_fixture_close(&f);
    }
    mem_free(first);
    mem_free(dy);
}

static void test_types(void **state) {
    (void)state;
    static const int64_t shapes[][2] = {{1, 32}, {33, 96}, {300, 160}, {70, 544}};
    static const int32_t rows[] = {1, 7, 29, 200};
    for (const char *const *level = kn_test_levels(); *level; level++)
        for (int t = 0; t < N_TYPES; t++)
            for (int s = 0; s < 4; s++) {
                struct kn_rng r = {(uint64_t)(t + s)};
                struct test_matrix m =
                    test_matrix_make(&r, all_types[t], shapes[s][0], shapes[s][1]);
                check(*level, &m, 1, KN_STACK, rows[(s + t) % 4]);
                test_matrix_free(&m);
            }
}

static void test_odd_columns(void **state) {
    (void)state;
    static const int64_t ks[] = {1, 15, 17, 47, 257};
    for (const char *const *level = kn_test_levels(); *level; level++)
        for (int t = 0; t < 3; t++) // plain types
            for (int i = 0; i < 5; i++) {
                struct kn_rng r = {3};
                struct test_matrix m = test_matrix_make(&r, all_types[t], 21, ks[i]);
                check(*level, &m, 1, KN_STACK, 10);
                test_matrix_free(&m);
            }
}

static void test_stacks(void **state) {
    (void)state;
    for (const char *const *level = kn_test_levels(); *level; level++) {
        struct kn_rng r = {8};
        struct test_matrix m[3] = {test_matrix_make(&r, KN_Q4_0, 96, 64),
                                   test_matrix_make(&r, KN_Q8_0, 7, 64),
                                   test_matrix_make(&r, KN_Q4_1, 40, 64)};
        check(*level, m, 3, KN_STACK, 11);
        for (int i = 0; i < 3; i++)
            test_matrix_free(&m[i]);
        for (int t = 0; t < N_TYPES; t++) {
            struct test_matrix g[2] = {test_matrix_make(&r, all_types[t], 290, 96),
                                       test_matrix_make(&r, all_types[t], 290, 96)};
            check(*level, g, 2, KN_STACK_GATE_UP, 9);
            test_matrix_free(&g[0]);
            test_matrix_free(&g[1]);
        }
    }
}

// Blocks of rows, and more columns of dy than one block of them keeps packed.
static void test_large(void **state) {
    (void)state;
    static const int32_t shapes[][3] = {{4100, 96, 150}, {600, 64, 600}, {2500, 32, 170}};
    static const enum kn_dtype types[] = {KN_BF16, KN_Q8_0, KN_F32};
    const char *level = kn_test_levels()[0];
    for (int i = 0; i < 3; i++) {
        struct kn_rng r = {(uint64_t)i};
        struct test_matrix m = test_matrix_make(&r, types[i], shapes[i][0], shapes[i][1]);
        check(level, &m, 1, KN_STACK, shapes[i][2]);
        test_matrix_free(&m);
        m = test_matrix_make(&r, KN_BF16, shapes[i][0], shapes[i][1]);
        check(level, &m, 1, KN_STACK, shapes[i][2]);
        test_matrix_free(&m);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_types),
        cmocka_unit_test(test_odd_columns),
        cmocka_unit_test(test_stacks),
        cmocka_unit_test(test_large),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

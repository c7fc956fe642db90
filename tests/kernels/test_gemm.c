// SPDX-License-Identifier: Apache-2.0
// Products against sums in double precision, and their promise: the same bits for any number of
// rows, of threads, and any cut into calls. The sums are those of the activations that a level
// multiplies: of quantised ones, or of ones rounded to bf16, so that one narrow bound holds for
// all.
#include "base/mem.h"
#include "matrix_fixture.h"
#include "tests/support/tolerances.h"
#include <math.h>
#include <string.h>

static const enum kn_dtype all_types[] = {KN_F32, KN_F16, KN_BF16, KN_Q8_0, KN_Q4_0, KN_Q4_1};
enum { N_TYPES = sizeof all_types / sizeof *all_types, GUARD = 40 };
static const float guard_value = 12345.0f;

static bool quantised(enum kn_dtype t) {
    return kn_dtype_block(t) > 1;
}

// x in device memory in the form that the weight wants, and its exact values.
struct input {
    int32_t rows, k;
    int64_t ldx;
    kn_addr x;     // what gemm gets
    double *value; // [rows, k]
    size_t row_bytes;
    bool rounds; // this level rounds it to bf16 where weights are BF16
};

static struct input make_input(struct kn_fixture *f, struct kn_rng *r, bool q8, int32_t rows,
                               int32_t k) {
    struct input in = {.rows = rows, .k = k, .ldx = k + 5};
    in.rounds = strcmp(cpu_device_isa(f->d)->name, "avx512bf16") == 0;
    size_t count = (size_t)rows * (size_t)in.ldx;
    float *x = mem_alloc(count * sizeof *x);
    in.value = mem_alloc((size_t)rows * (size_t)k * sizeof *in.value);
    assert_non_null(x);
    assert_non_null(in.value);
    kn_rng_fill(r, x, count, 1.0f);
    for (size_t i = 0; q8 && i < count;
         i += 32) // many blocks with a value that stands out, or several
        for (int32_t n = kn_rng_below(r, 4) - 1; n > 0; n--) {
            size_t at = i + (size_t)kn_rng_below(r, 32);
            if (at < count)
                x[at] *= ldexpf(1, kn_rng_below(r, 13));
        }
    for (int32_t i = 0; i < rows; i++) // what lies between rows must not matter
        for (int64_t c = k; c < in.ldx; c++)
            x[i * in.ldx + c] = NAN;
    kn_addr plain = kn_test_put(f, x, count * sizeof *x);
    in.x = plain;
    in.row_bytes = (size_t)in.ldx * sizeof(float);
    if (q8) {
        in.row_bytes = f->ops->form_row_bytes(KN_FORM_Q8, k);
        in.x = kn_test_alloc(f, in.row_bytes * (size_t)rows);
        struct kn_quantize p = {.x = plain, .ldx = in.ldx, .yq = in.x, .rows = rows, .k = k};
        assert_int_equal(f->ops->quantize(f->q, &p), ERR_OK);
        kn_test_wait(f);
    }
    for (int32_t i = 0; i < rows; i++)
        for (int32_t c = 0; c < k; c++) {
            double v = (double)x[i * in.ldx + c];
            if (q8) {
                const struct cpu_q8_block *b =
                    (const struct cpu_q8_block *)in.x + (int64_t)i * (k / 32) + c / 32;
                v = (double)b->d * kn_test_q8_steps(b, c % 32);
            }
            in.value[(int64_t)i * k + c] = v;
        }
    mem_free(x);
    return in;
}

// Row r of the output, columns of `m`, plus the size of its terms.
static void exact_row(const struct input *in, int32_t r, const struct test_matrix *m, double *sum,
                      double *size) {
    bool rounds = in->rounds && m->dtype == KN_BF16;
    for (int64_t o = 0; o < m->n; o++) {
        sum[o] = size[o] = 0;
        for (int32_t c = 0; c < in->k; c++) {
            double t = in->value[(int64_t)r * in->k + c];
            if (rounds)
                t = (double)kn_bf16_to_f32(kn_f32_to_bf16((float)t));
            t *= (double)m->value[o * m->k + c];
            sum[o] += t;
            size[o] += fabs(t);
        }
    }
}

static float *guarded(size_t n) {
    float *y = mem_alloc((n + 2 * GUARD) * sizeof *y);
    assert_non_null(y);
    for (size_t i = 0; i < n + 2 * GUARD; i++)
        y[i] = guard_value;
    return y;
}

// All of y[rows, n] in one call; y has GUARD values before, after, and ldy - n between rows.
static float *run_whole(struct kn_fixture *f, const struct kn_weight *w, const struct input *in,
                        int64_t ldy, kn_addr bias, enum kn_epilogue e) {
    float *y = guarded((size_t)in->rows * (size_t)ldy);
    struct kn_gemm p = {.w = w,
                        .x = in->x,
                        .ldx = in->ldx,
                        .y = (kn_addr)(y + GUARD),
                        .ldy = ldy,
                        .bias = bias,
                        .rows = in->rows,
                        .epilogue = e};
    assert_int_equal(f->ops->gemm(f->q, &p), ERR_OK);
    kn_test_wait(f);
    return y;
}

static void check_guards(const float *y, int32_t rows, int32_t n, int64_t ldy) {
    for (int i = 0; i < GUARD; i++) {
        assert_true(y[i] == guard_value);
        assert_true(y[GUARD + rows * ldy + i] == guard_value);
    }
    for (int32_t r = 0; r < rows; r++)
        for (int64_t c = n; c < ldy; c++)
            assert_true(y[GUARD + r * ldy + c] == guard_value);
}

// The same product in pieces: random blocks of rows, random ranges of columns, of which there are n
// (as ranges count).
static void check_pieces(struct kn_fixture *f, struct kn_rng *r, const struct kn_weight *w,
                         const struct input *in, int32_t n, int64_t ldy, kn_addr bias,
                         const float *whole) {
    float *y = guarded((size_t)in->rows * (size_t)ldy);
    for (int32_t row = 0, take; row < in->rows; row += take) {
        static const int32_t sizes[] = {1, 2, 3, 4, 5, 7, 12, 13, 29, 65};
        take = sizes[kn_rng_below(r, 10)];
        take = take < in->rows - row ? take : in->rows - row;
        int32_t cut = (kn_rng_below(r, n) + 31) / 32 * 32;
        for (int part = 0; part < 2; part++) {
            struct kn_gemm p = {.w = w,
                                .x = in->x + (size_t)row * in->row_bytes,
                                .ldx = in->ldx,
                                .y = (kn_addr)(y + GUARD + row * ldy),
                                .ldy = ldy,
                                .bias = bias,
                                .rows = take,
                                .n_begin = part ? cut : 0,
                                .n_end = part      ? n
                                         : cut < n ? cut
                                                   : n};
            if (p.n_begin < p.n_end)
                assert_int_equal(f->ops->gemm(f->q, &p), ERR_OK);
        }
    }
    kn_test_wait(f);
    kn_assert_same(y, whole, ((size_t)in->rows * (size_t)ldy + 2 * GUARD) * sizeof *y);
    mem_free(y);
}

// A range of columns makes these and leaves all others alone. `parts`: 2 for gate and up, of n
// columns each.
static void check_range(struct kn_fixture *f, struct kn_rng *r, const struct kn_weight *w,
                        const struct input *in, int parts, int32_t n, int64_t ldy, kn_addr bias,
                        const float *whole) {
    float *y = guarded((size_t)in->rows * (size_t)ldy);
    int32_t begin = kn_rng_below(r, n) / 32 * 32, end = begin + 32 * (1 + kn_rng_below(r, 3));
    end = end < n ? end : n;
    struct kn_gemm p = {.w = w,
                        .x = in->x,
                        .ldx = in->ldx,
                        .y = (kn_addr)(y + GUARD),
                        .ldy = ldy,
                        .bias = bias,
                        .rows = in->rows,
                        .n_begin = begin,
                        .n_end = end};
    assert_int_equal(f->ops->gemm(f->q, &p), ERR_OK);
    kn_test_wait(f);
    check_guards(y, in->rows, parts * n, ldy);
    for (int32_t i = 0; i < in->rows; i++)
        for (int32_t c = 0; c < parts * n; c++) {
            size_t at = (size_t)(GUARD + i * ldy + c);
            bool inside = c % n >= begin && c % n < end;
            kn_assert_same(&y[at], inside ? &whole[at] : &guard_value, 4);
        }
    mem_free(y);
}

static void check_values(const float *y, const struct input *in, const struct test_matrix *parts,
                         int n_parts, int64_t ldy) {
    enum { MOST = 1200 };
    double sum[MOST], size[MOST];
    int32_t step = in->rows > 8 ? in->rows / 5 : 1;
    for (int32_t r = 0; r < in->rows; r += step) {
        int64_t col = 0;
        for (int i = 0; i < n_parts; i++) {
            assert_true(parts[i].n <= MOST);
            exact_row(in, r, &parts[i], sum, size);
            for (int64_t o = 0; o < parts[i].n; o++) {
                double got = (double)y[GUARD + r * ldy + col + o];
                if (!(fabs(got - sum[o]) <= TOL_GEMM * size[o] + 1e-30))
                    fail_msg("%s row %d column %d: %.9g, not %.9g", kn_dtype_name(parts[i].dtype),
                             r, (int)(col + o), got, sum[o]);
            }
            col += parts[i].n;
        }
    }
}

static void check_stack(struct kn_fixture *f, struct kn_rng *r, const struct test_matrix *parts,
                        int n_parts, int32_t rows) {
    struct kn_weight *w = test_weight(f, parts, n_parts, KN_STACK);
    int32_t n = 0, k = (int32_t)parts[0].k;
    for (int i = 0; i < n_parts; i++)
        n += (int32_t)parts[i].n;
    int64_t ldy = n + 3;
    struct input in = make_input(f, r, f->ops->weight_form(w) == KN_FORM_Q8, rows, k);
    float *y = run_whole(f, w, &in, ldy, 0, KN_GEMM_STORE);
    check_guards(y, rows, n, ldy);
    check_values(y, &in, parts, n_parts, ldy);
    check_pieces(f, r, w, &in, n, ldy, 0, y);
    check_range(f, r, w, &in, 1, n, ldy, 0, y);
    mem_free(y);
    mem_free(in.value);
    f->ops->weight_destroy(w);
    kn_test_free_all(f);
}

// ---- tests

static void test_values_and_pieces(void **state) {
    (void)state;
    static const int64_t shapes[][2] = {{1, 32},   {16, 64},   {17, 288}, {40, 96},
                                        {95, 544}, {200, 320}, {64, 1056}};
    static const int32_t rows[] = {1, 2, 3, 6, 7, 12, 13, 37, 70, 150, 300};
    for (const char *const *level = kn_test_levels(); *level; level++)
        for (int t = 0; t < N_TYPES; t++)
            for (int threads = 1; threads <= 4; threads *= 2) {
                struct kn_rng r = {(uint64_t)t + 1};
                struct kn_fixture f;
                kn_fixture_open(&f, *level, threads);
                for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
                    struct test_matrix m =
                        test_matrix_make(&r, all_types[t], shapes[s][0], shapes[s][1]);
                    size_t pick = s + (size_t)threads;
                    for (size_t i = pick % 3; i < sizeof rows / sizeof *rows; i += 3)
                        check_stack(&f, &r, &m, 1, rows[i]);
                    test_matrix_free(&m);
                }
                kn_fixture_close(&f);
            }
}

// So many columns that they are done in several goes, for blocks of rows.
static void test_many_columns(void **state) {
    (void)state;
    for (const char *const *level = kn_test_levels(); *level; level++)
        for (int t = 0; t < N_TYPES; t++) {
            struct kn_rng r = {(uint64_t)t + 50};
            struct kn_fixture f;
            kn_fixture_open(&f, *level, 2);
            struct test_matrix m = test_matrix_make(&r, all_types[t], 40, 3104);
            check_stack(&f, &r, &m, 1, 200);
            check_stack(&f, &r, &m, 1, 5);
            test_matrix_free(&m);
            kn_fixture_close(&f);
        }
}

static void test_odd_columns(void **state) {
    (void)state;
    static const int64_t ks[] = {1, 2, 15, 33, 255, 257, 515};
    for (const char *const *level = kn_test_levels(); *level; level++)
        for (int t = 0; t < 3; t++) { // plain types
            struct kn_rng r = {7};
            struct kn_fixture f;
            kn_fixture_open(&f, *level, 2);
            for (size_t i = 0; i < sizeof ks / sizeof *ks; i++) {
                struct test_matrix m = test_matrix_make(&r, all_types[t], 50, ks[i]);
                check_stack(&f, &r, &m, 1, 5);
                check_stack(&f, &r, &m, 1, 90);
                test_matrix_free(&m);
            }
            kn_fixture_close(&f);
        }
}

// q, k and v of different types, with sizes that do not fill panels.
static void test_stacks(void **state) {
    (void)state;
    static const enum kn_dtype stacks[][3] = {
        {KN_Q4_0, KN_Q8_0, KN_Q4_1}, {KN_F32, KN_BF16, KN_F16}, {KN_Q8_0, KN_Q8_0, KN_Q8_0}};
    static const int64_t sizes[][3] = {{96, 32, 32}, {40, 24, 7}, {1, 65, 16}};
    for (const char *const *level = kn_test_levels(); *level; level++)
        for (size_t s = 0; s < 3; s++)
            for (size_t z = 0; z < 3; z++) {
                struct kn_rng r = {99 + s};
                struct kn_fixture f;
                kn_fixture_open(&f, *level, 2);
                struct test_matrix m[3];
                for (int i = 0; i < 3; i++)
                    m[i] = test_matrix_make(&r, stacks[s][i], sizes[z][i], 160);
                check_stack(&f, &r, m, 3, 1);
                check_stack(&f, &r, m, 3, 33);
                for (int i = 0; i < 3; i++)
                    test_matrix_free(&m[i]);
                kn_fixture_close(&f);
            }
}

// One element is the same for any number of threads and for any ISA-independent cut.
static void test_threads_agree(void **state) {
    (void)state;
    enum { ROWS = 161, N = 330, K = 608, LDY = 336 };
    for (const char *const *level = kn_test_levels(); *level; level++)
        for (int t = 0; t < N_TYPES; t++) {
            float *first = NULL;
            for (int threads = 1; threads <= 4; threads++) {
                struct kn_rng r = {5};
                struct kn_fixture f;
                kn_fixture_open(&f, *level, threads);
                struct test_matrix m = test_matrix_make(&r, all_types[t], N, K);
                struct kn_weight *w = test_weight(&f, &m, 1, KN_STACK);
                struct input in = make_input(&f, &r, quantised(all_types[t]), ROWS, K);
                float *y = run_whole(&f, w, &in, LDY, 0, KN_GEMM_STORE);
                if (first)
                    kn_assert_same(y, first, (ROWS * LDY + 2 * GUARD) * sizeof *y);
                if (first)
                    mem_free(y);
                else
                    first = y;
                mem_free(in.value);
                f.ops->weight_destroy(w);
                test_matrix_free(&m);
                kn_fixture_close(&f);
            }
            mem_free(first);
        }
}

static void test_bias_and_add(void **state) {
    (void)state;
    enum { ROWS = 9, N = 75, K = 96, LDY = 80 };
    for (const char *const *level = kn_test_levels(); *level; level++)
        for (int t = 0; t < N_TYPES; t++) {
            struct kn_rng r = {11};
            struct kn_fixture f;
            kn_fixture_open(&f, *level, 2);
            struct test_matrix m = test_matrix_make(&r, all_types[t], N, K);
            struct kn_weight *w = test_weight(&f, &m, 1, KN_STACK);
            struct input in = make_input(&f, &r, quantised(all_types[t]), ROWS, K);
            float bias[N];
            kn_rng_fill(&r, bias, N, 1.0f);
            kn_addr b = kn_test_put(&f, bias, sizeof bias);
            float *plain = run_whole(&f, w, &in, LDY, 0, KN_GEMM_STORE);
            float *biased = run_whole(&f, w, &in, LDY, b, KN_GEMM_STORE);
            float *added = run_whole(&f, w, &in, LDY, b, KN_GEMM_ADD);
            check_guards(added, ROWS, N, LDY);
            for (int i = 0; i < ROWS; i++)
                for (int c = 0; c < N; c++) {
                    size_t at = (size_t)(GUARD + i * LDY + c);
                    assert_true(biased[at] == plain[at] + bias[c]);
                    assert_true(added[at] == guard_value + biased[at]);
                }
            check_pieces(&f, &r, w, &in, N, LDY, b, biased);
            mem_free(plain);
            mem_free(biased);
            mem_free(added);
            mem_free(in.value);
            f.ops->weight_destroy(w);
            test_matrix_free(&m);
            kn_fixture_close(&f);
        }
}

// The fused epilogue has the bits of the two operations that it stands for.
static void check_swiglu(struct kn_fixture *f, struct kn_rng *r, enum kn_dtype t, int32_t ff,
                         int32_t rows, bool with_bias) {
    enum { K = 128 };
    struct test_matrix m[2] = {test_matrix_make(r, t, ff, K), test_matrix_make(r, t, ff, K)};
    struct kn_weight *w = test_weight(f, m, 2, KN_STACK_GATE_UP);
    struct input in = make_input(f, r, quantised(t), rows, K);
    kn_addr bias = 0;
    if (with_bias) {
        float *b = mem_alloc((size_t)ff * 2 * sizeof *b);
        assert_non_null(b);
        kn_rng_fill(r, b, (size_t)ff * 2, 1.0f);
        bias = kn_test_put(f, b, (size_t)ff * 2 * sizeof *b);
        mem_free(b);
    }
    int64_t ld = 2 * ff, ldy = ff + 4;
    float *both = run_whole(f, w, &in, ld, bias, KN_GEMM_STORE);
    if (!with_bias)
        check_values(both, &in, m, 2, ld);
    check_pieces(f, r, w, &in, ff, ld, bias, both);
    for (int i = 0; i < 4; i++)
        check_range(f, r, w, &in, 2, ff, ld, bias, both);
    float *want = guarded((size_t)rows * (size_t)ldy);
    struct kn_swiglu s = {.x = (kn_addr)(both + GUARD),
                          .ldx = ld,
                          .y = (kn_addr)(want + GUARD),
                          .ldy = ldy,
                          .rows = rows,
                          .k = ff};
    assert_int_equal(f->ops->swiglu(f->q, &s), ERR_OK);
    kn_test_wait(f);
    float *fused = run_whole(f, w, &in, ldy, bias, KN_GEMM_SWIGLU);
    size_t bytes = ((size_t)rows * (size_t)ldy + 2 * GUARD) * sizeof *fused;
    kn_assert_same(fused, want, bytes);
    float *cut = guarded((size_t)rows * (size_t)ldy);
    for (int32_t c = 0; c < ff; c += 32) {
        struct kn_gemm p = {.w = w,
                            .x = in.x,
                            .ldx = in.ldx,
                            .y = (kn_addr)(cut + GUARD),
                            .ldy = ldy,
                            .bias = bias,
                            .rows = rows,
                            .n_begin = c,
                            .n_end = c + 32 < ff ? c + 32 : ff,
                            .epilogue = KN_GEMM_SWIGLU};
        assert_int_equal(f->ops->gemm(f->q, &p), ERR_OK);
    }
    kn_test_wait(f);
    kn_assert_same(cut, want, bytes);
    mem_free(both);
    mem_free(want);
    mem_free(fused);
    mem_free(cut);
    mem_free(in.value);
    f->ops->weight_destroy(w);
    kn_test_free_all(f);
    test_matrix_free(&m[0]);
    test_matrix_free(&m[1]);
}

static void test_swiglu(void **state) {
    (void)state;
    for (const char *const *level = kn_test_levels(); *level; level++)
        for (int t = 0; t < N_TYPES; t++) {
            struct kn_rng r = {21};
            struct kn_fixture f;
            kn_fixture_open(&f, *level, 2);
            check_swiglu(&f, &r, all_types[t], 96, 1, false);
            check_swiglu(&f, &r, all_types[t], 41, 27, false);
            check_swiglu(&f, &r, all_types[t], 150, 70, true);
            kn_fixture_close(&f);
        }
}

// Parameters that are refused, and that the queue works again afterwards.
static void test_refusals(void **state) {
    (void)state;
    struct kn_rng r = {31};
    struct kn_fixture f;
    kn_fixture_open(&f, NULL, 2);
    struct test_matrix m = test_matrix_make(&r, KN_F32, 64, 32);
    struct kn_weight *w = test_weight(&f, &m, 1, KN_STACK);
    kn_addr x = kn_test_alloc(&f, 4096), y = kn_test_alloc(&f, 4096);
    const struct kn_gemm good = {.w = w, .x = x, .ldx = 32, .y = y, .ldy = 64, .rows = 2};
    struct kn_gemm bad[10];
    for (size_t i = 0; i < 10; i++)
        bad[i] = good;
    bad[0].w = NULL;
    bad[1].x = 0;
    bad[2].y = 0;
    bad[3].ldx = 31;
    bad[4].ldy = 63;
    bad[5].rows = -1;
    bad[6].n_begin = 16, bad[6].n_end = 64;
    bad[7].n_begin = 32, bad[7].n_end = 96;
    bad[8].n_begin = 32, bad[8].n_end = 32;
    bad[9].epilogue = KN_GEMM_SWIGLU;
    for (size_t i = 0; i < 10; i++) {
        struct err_info info = {0};
        assert_int_equal(f.ops->gemm(f.q, &bad[i]), ERR_OK);
        assert_int_equal(f.ops->queue_wait(f.q, &info), ERR_INVALID);
        assert_non_null(strstr(info.message, "'gemm'"));
        assert_int_equal(f.ops->gemm(f.q, &good), ERR_OK);
        kn_test_wait(&f);
    }
    f.ops->weight_destroy(w);
    test_matrix_free(&m);
    kn_fixture_close(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_values_and_pieces),
        cmocka_unit_test(test_odd_columns),
        cmocka_unit_test(test_many_columns),
        cmocka_unit_test(test_stacks),
        cmocka_unit_test(test_threads_agree),
        cmocka_unit_test(test_bias_and_add),
        cmocka_unit_test(test_swiglu),
        cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

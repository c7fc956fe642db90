// SPDX-License-Identifier: Apache-2.0
// Operations on whole rows, for every ISA level: against plain loops in double precision, and bit
// by bit for any split of the rows over calls and threads.
#include "base/mem.h"
#include "kn_fixture.h"
#include "tests/support/tolerances.h"
#include <math.h>
#include <string.h>

enum { MAX_K = 1600, ROWS = 40 };

// How far apart two blocks with and without an outlier are for sure. In between either is right.
static bool has_outlier(const double *x, int *at, double *top, double *second) {
    *at = 0;
    *top = *second = 0;
    for (int i = 0; i < 32; i++)
        if (fabs(x[i]) > *top) {
            *second = *top;
            *top = fabs(x[i]);
            *at = i;
        } else {
            *second = fmax(*second, fabs(x[i]));
        }
    return 3 * *second < *top;
}

// A quantised block says what 32 values are, to half a step, and its sums are its values'. The step
// is a 127th of the largest, or, where that one is more than three times as large as any other, of
// the second, but no less than a 16256th of the largest.
static void check_block(const struct cpu_q8_block *b, const double *x, double tolerance) {
    int at;
    double top, second;
    bool outlier = has_outlier(x, &at, &top, &second);
    if (fabs(3 * second - top) <= tolerance * 10 * top)
        outlier = b->high != 0;
    double step = outlier ? fmax(second / 127, top / 16256) : top / 127;
    assert_true(fabs((double)b->d - step) <= 127 * tolerance * step);
    int32_t sum = 0;
    for (int i = 0; i < 32; i++) {
        int32_t n = kn_test_q8_steps(b, i);
        double most = outlier && i != at ? second : top;
        assert_true(fabs((double)b->d * n - x[i]) <=
                    0.5 * (double)b->d + (tolerance * 2 + 1e-6) * most);
        assert_in_range(n + (outlier && i == at ? 16256 : 127), 0,
                        outlier && i == at ? 2 * 16256 : 254);
        sum += n;
    }
    assert_true(outlier == (b->high != 0));
    assert_true(b->high_word == (outlier ? at / 4 : 0));
    assert_int_equal(b->sum, sum);
    assert_int_equal(b->off8, -128 * sum);
    assert_int_equal(b->off4, -8 * sum);
    assert_true(b->dsum == b->d * (float)sum);
    assert_int_equal(b->pad, 0);
}

// ---- rmsnorm

struct rows {
    int32_t k, ldx;
    float *x, *w;
    float *y;
    struct cpu_q8_block *q;
};

static void rows_init(struct rows *r, int32_t k, float scale) {
    struct kn_rng rng = {(uint64_t)k};
    *r = (struct rows){.k = k, .ldx = k + 5};
    r->x = mem_calloc((size_t)(ROWS * r->ldx), sizeof *r->x);
    r->w = mem_calloc((size_t)k, sizeof *r->w);
    r->y = mem_calloc((size_t)(ROWS * k), sizeof *r->y);
    r->q = mem_calloc((size_t)(ROWS * (k / 32 + 1)), sizeof *r->q);
    assert_true(r->x && r->w && r->y && r->q);
    kn_rng_fill(&rng, r->x, (size_t)(ROWS * r->ldx), scale);
    kn_rng_fill(&rng, r->w, (size_t)k, 1.0f);
}
static void rows_free(struct rows *r) {
    mem_free(r->x);
    mem_free(r->w);
    mem_free(r->y);
    mem_free(r->q);
}

// Norms rows [begin, begin + n) of r; what: 1 plain, 2 quantised.
static void run_norm(struct kn_fixture *f, struct rows *r, int32_t begin, int32_t n,
                     unsigned what) {
    size_t blocks = (size_t)(r->k / 32);
    struct kn_rmsnorm p = {
        .x = kn_test_put(f, r->x + begin * r->ldx, (size_t)(n * r->ldx) * sizeof *r->x),
        .ldx = r->ldx,
        .weight = kn_test_put(f, r->w, (size_t)r->k * sizeof *r->w),
        .eps = 1e-5f,
        .rows = n,
        .k = r->k,
        .y = what & 1 ? kn_test_alloc(f, (size_t)(n * (r->k + 3)) * sizeof *r->y) : 0,
        .ldy = r->k + 3,
        .yq = what & 2 ? kn_test_alloc(f, (size_t)n * blocks * sizeof *r->q) : 0,
    };
    assert_int_equal(f->ops->rmsnorm(f->q, &p), ERR_OK);
    for (int32_t i = 0; i < n && p.y; i++)
        f->ops->download(f->q, r->y + (begin + i) * r->k,
                         p.y + (size_t)(i * (r->k + 3)) * sizeof *r->y,
                         (size_t)r->k * sizeof *r->y);
    if (p.yq)
        f->ops->download(f->q, r->q + (size_t)begin * blocks, p.yq,
                         (size_t)n * blocks * sizeof *r->q);
    kn_test_wait(f);
    kn_test_free_all(f);
}

static void check_norm(const struct rows *r, bool quantised) {
    for (int32_t i = 0; i < ROWS; i++) {
        double sum = 0, y[MAX_K];
        for (int32_t j = 0; j < r->k; j++)
            sum += (double)r->x[i * r->ldx + j] * (double)r->x[i * r->ldx + j];
        double s = 1 / sqrt(sum / r->k + 1e-5);
        for (int32_t j = 0; j < r->k; j++)
            y[j] = (double)r->x[i * r->ldx + j] * s * (double)r->w[j];
        kn_assert_close(r->y + i * r->k, y, (size_t)r->k, TOL_NORM_RTOL, TOL_NORM_ATOL);
        for (int32_t b = 0; quantised && b < r->k / 32; b++)
            check_block(&r->q[i * (r->k / 32) + b], y + b * 32, 1e-6);
    }
}

static void rmsnorm(const char *isa) {
    static const int32_t sizes[] = {8, 31, 32, 64, 70, 96, 575, 576, 1600};
    static const int threads[] = {1, 2, 4};
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        struct rows r;
        rows_init(&r, sizes[s], s % 2 ? 1.0f : 300.0f);
        bool q = sizes[s] % 32 == 0;
        size_t y_bytes = (size_t)(ROWS * r.k) * sizeof *r.y;
        size_t q_bytes = (size_t)(ROWS * (r.k / 32)) * sizeof *r.q;
        float *y = NULL;
        struct cpu_q8_block *yq = NULL;
        for (int t = 0; t < 3; t++) {
            struct kn_fixture f;
            kn_fixture_open(&f, isa, threads[t]);
            if (t == 0) {
                run_norm(&f, &r, 0, ROWS, q ? 3 : 1);
                check_norm(&r, q);
                y = mem_dup(r.y, y_bytes);
                yq = mem_dup(r.q, q_bytes + 1);
                assert_true(y && yq);
            }
            memset(r.y, 0, y_bytes);
            memset(r.q, 0, q_bytes);
            for (int32_t i = 0, n; i < ROWS; i += n) {
                n = i % 3 ? 1 : ROWS - i < 17 ? ROWS - i : 17;
                run_norm(&f, &r, i, n, 1);
                if (q)
                    run_norm(&f, &r, i, n, 2);
            }
            kn_assert_same(r.y, y, y_bytes);
            kn_assert_same(r.q, yq, q_bytes);
            kn_fixture_close(&f);
        }
        mem_free(y);
        mem_free(yq);
        rows_free(&r);
    }
}
static void test_rmsnorm(void **state) {
    (void)state;
    kn_for_levels(rmsnorm);
}

// ---- quantize

static void quantize(const char *isa) {
    enum { K = 96, N = 200, LD = 100 };
    struct kn_rng rng = {21};
    static float x[N * LD];
    static struct cpu_q8_block q[N * K / 32], one[N * K / 32], row[K / 32];
    for (int i = 0; i < N; i++) // from all zero over tiny to large
        kn_rng_fill(&rng, x + i * LD, LD, i == 0 ? 0.0f : ldexpf(1.0f, i - 150));
    x[3 * LD] = 0; // a block with one value
    memset(x + 5 * LD, 0, K * sizeof *x);
    x[5 * LD + 40] = -3.5f;
    x[7 * LD] = 127 * 4.0f; // halves: to even
    x[7 * LD + 1] = -127 * 4.0f;
    for (int j = 2; j < 32; j++)
        x[7 * LD + j] = 4 * (0.5f + (float)j);
    static const int threads[] = {1, 3};
    for (int t = 0; t < 2; t++) {
        struct kn_fixture f;
        kn_fixture_open(&f, isa, threads[t]);
        struct kn_quantize p = {.x = kn_test_put(&f, x, sizeof x),
                                .ldx = LD,
                                .yq = kn_test_alloc(&f, sizeof q),
                                .rows = N,
                                .k = K};
        f.ops->quantize(f.q, &p);
        f.ops->download(f.q, t ? one : q, p.yq, sizeof q);
        kn_test_wait(&f);
        const struct cpu_isa *table = cpu_device_isa(f.d);
        for (int i = 0; i < N; i++) {
            table->quantize_row(x + i * LD, K, row);
            kn_assert_same(row, &q[i * (K / 32)], sizeof row);
        }
        kn_fixture_close(&f);
    }
    kn_assert_same(one, q, sizeof q);
    for (int i = 0; i < N; i++)
        for (int b = 0; b < K / 32; b++) {
            double want[32], most = 0;
            for (int j = 0; j < 32; j++) {
                want[j] = (double)x[i * LD + b * 32 + j];
                most = fmax(most, fabs(want[j]));
            }
            if (most < 0x1p-99) // too small for a scale: zero
                memset(want, 0, sizeof want);
            check_block(&q[i * (K / 32) + b], want, 1e-7);
        }
    for (int j = 2; j < 32; j++) // 0.5 + j to even
        assert_int_equal(q[7 * (K / 32)].q[j], (j + 1) / 2 * 2);
}
static void test_quantize(void **state) {
    (void)state;
    kn_for_levels(quantize);
}

// Each place, both signs, from just no outlier to one that is all there is.
static void quantize_outliers(const char *isa) {
    static const float ratios[] = {2.99f, 3.01f, 5, 127, 128, 129, 1000, 1e6f, INFINITY};
    struct kn_rng rng = {22};
    struct kn_fixture f;
    kn_fixture_open(&f, isa, 1);
    for (size_t i = 0; i < sizeof ratios / sizeof *ratios; i++)
        for (int at = 0; at < 32; at++)
            for (int sign = -1; sign <= 1; sign += 2)
                for (int exponent = -60; exponent <= 60; exponent += 40) {
                    float x[32], scale = ldexpf(1, exponent);
                    double want[32];
                    for (int j = 0; j < 32; j++)
                        x[j] = ((float)kn_rng_uniform(&rng) - 0.5f) * scale;
                    x[(at + 5) % 32] = 0.5f * scale; // the second
                    x[at] = (float)sign * 0.5f * scale * ratios[i];
                    if (isinf(ratios[i])) {
                        memset(x, 0, sizeof x);
                        x[at] = (float)sign * scale;
                    }
                    for (int j = 0; j < 32; j++)
                        want[j] = (double)x[j];
                    struct cpu_q8_block q;
                    cpu_device_isa(f.d)->quantize_row(x, 32, &q);
                    check_block(&q, want, 1e-7);
                    assert_true((q.high != 0) == (ratios[i] > 3));
                }
    kn_fixture_close(&f);
}
static void test_quantize_outliers(void **state) {
    (void)state;
    kn_for_levels(quantize_outliers);
}

// NaN and infinity must not come out as numbers.
static void quantize_nonfinite(const char *isa) {
    static const float bad[] = {NAN, -NAN, INFINITY, -INFINITY};
    struct kn_fixture f;
    kn_fixture_open(&f, isa, 1);
    for (int i = 0; i < 4; i++)
        for (int at = 0; at < 32; at += 5) {
            float x[32];
            struct cpu_q8_block q;
            for (int j = 0; j < 32; j++)
                x[j] = (float)j - 7;
            x[at] = bad[i];
            cpu_device_isa(f.d)->quantize_row(x, 32, &q);
            assert_true(!isfinite(q.d));
            for (int j = 0; j < 32; j++)
                assert_in_range(q.q[j] + 127, 0, 254);
            struct kn_rmsnorm p = {.x = kn_test_put(&f, x, sizeof x),
                                   .ldx = 32,
                                   .weight = kn_test_put(&f, x, sizeof x),
                                   .rows = 1,
                                   .k = 32,
                                   .yq = kn_test_alloc(&f, sizeof q)};
            f.ops->rmsnorm(f.q, &p);
            f.ops->download(f.q, &q, p.yq, sizeof q);
            kn_test_wait(&f);
            assert_true(!isfinite(q.d));
            kn_test_free_all(&f);
        }
    kn_fixture_close(&f);
}
static void test_quantize_nonfinite(void **state) {
    (void)state;
    kn_for_levels(quantize_nonfinite);
}

// ---- swiglu

static void swiglu(const char *isa) {
    enum { N = 30 };
    static const int32_t sizes[] = {1, 15, 16, 100, 1536};
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        int32_t k = sizes[s], ldx = 2 * k + 3;
        struct kn_rng rng = {31};
        float *x = mem_calloc((size_t)(N * ldx), sizeof *x);
        float *y = mem_calloc((size_t)(2 * N * k), sizeof *y);
        assert_true(x && y);
        kn_rng_fill(&rng, x, (size_t)(N * ldx), 8.0f);
        for (int t = 0; t < 2; t++) {
            struct kn_fixture f;
            kn_fixture_open(&f, isa, t ? 4 : 1);
            struct kn_swiglu p = {
                .x = kn_test_put(&f, x, (size_t)(N * ldx) * sizeof *x),
                .ldx = ldx,
                .y = kn_test_alloc(&f, (size_t)(N * k) * sizeof *y),
                .ldy = k,
                .rows = N,
                .k = k,
            };
            f.ops->swiglu(f.q, &p);
            f.ops->download(f.q, y + t * N * k, p.y, (size_t)(N * k) * sizeof *y);
            kn_test_wait(&f);
            kn_fixture_close(&f);
        }
        kn_assert_same(y, y + N * k, (size_t)(N * k) * sizeof *y);
        for (int i = 0; i < N; i++)
            for (int32_t j = 0; j < k; j++) {
                double g = (double)x[i * ldx + j], u = (double)x[i * ldx + k + j];
                double want = g / (1 + exp(-g)) * u;
                kn_assert_close(y + i * k + j, &want, 1, TOL_SWIGLU_RTOL, TOL_SWIGLU_ATOL);
            }
        mem_free(x);
        mem_free(y);
    }
}
static void test_swiglu(void **state) {
    (void)state;
    kn_for_levels(swiglu);
}

// ---- embed and gather

static void embed(const char *isa) {
    enum { N = 70, K = 64, TOKENS = 9 };
    static const enum kn_dtype types[] = {KN_F32, KN_F16, KN_BF16, KN_Q8_0, KN_Q4_0, KN_Q4_1};
    static const int32_t ids[TOKENS] = {0, 69, 16, ~0, 33, ~2, ~1, 70, 15};
    static const int32_t prev[3] = {5, -1, 68};
    static const int32_t want[TOKENS] = {0, 69, 16, 5, 33, 68, -1, -1, 15};
    struct kn_rng rng = {41};
    static float src[N * K], plain[N * K], x[TOKENS * (K + 1)];
    kn_rng_fill(&rng, src, N * K, 1.0f);
    for (size_t t = 0; t < sizeof types / sizeof *types; t++) {
        static uint8_t file[N * K * 4];
        size_t row;
        assert_true(kn_row_bytes(types[t], K, &row));
        kn_quantize(types[t], src, file, N * K);
        kn_dequantize(types[t], file, plain, N * K);
        struct kn_fixture f;
        kn_fixture_open(&f, isa, 2);
        struct kn_weight_src part = {.dtype = types[t], .n = N, .k = K, .data = file};
        struct kn_weight_spec spec = {
            .parts = &part, .n_parts = 1, .world = 1, .name = "embedding"};
        struct kn_weight *w;
        struct err_info info = {0};
        if (f.ops->weight_create(f.d, &spec, &w, &info))
            fail_msg("%s", info.message);
        int32_t block = 0;
        struct kn_test_seq seq = {0, TOKENS, &block, 1};
        struct kn_batch b;
        kn_test_batch(&f, &seq, 1, ids, &b);
        struct kn_embed p = {.w = w,
                             .batch = &b,
                             .prev_tokens = kn_test_put(&f, prev, sizeof prev),
                             .x = kn_test_alloc(&f, sizeof x),
                             .ldx = K + 1};
        assert_int_equal(f.ops->embed(f.q, &p), ERR_OK);
        f.ops->download(f.q, x, p.x, sizeof x);
        kn_test_wait(&f);
        static const float zero[K];
        for (int i = 0; i < TOKENS; i++)
            kn_assert_same(x + i * (K + 1), want[i] < 0 ? zero : plain + want[i] * K,
                           K * sizeof *x);
        // A range makes its rows and leaves the others alone.
        p.x = kn_test_alloc(&f, sizeof x);
        p.token_begin = 2;
        p.token_end = 5;
        assert_int_equal(f.ops->embed(f.q, &p), ERR_OK);
        static float some[TOKENS * (K + 1)];
        f.ops->download(f.q, some, p.x, sizeof some);
        kn_test_wait(&f);
        for (int i = 0; i < TOKENS; i++)
            kn_assert_same(some + i * (K + 1), i >= 2 && i < 5 ? x + i * (K + 1) : zero,
                           K * sizeof *x);
        static const int32_t bad[][2] = {{-1, 5}, {3, 3}, {0, TOKENS + 1}, {2, 0}};
        for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
            p.token_begin = bad[i][0];
            p.token_end = bad[i][1];
            assert_int_equal(f.ops->embed(f.q, &p), ERR_OK);
            assert_int_equal(f.ops->queue_wait(f.q, &info), ERR_INVALID);
        }
        f.ops->weight_destroy(w);
        kn_fixture_close(&f);
    }
}
static void test_embed(void **state) {
    (void)state;
    kn_for_levels(embed);
}

static void gather(const char *isa) {
    enum { N = 50, K = 37 };
    static float src[N * K], dst[2 * N * K];
    static int32_t rows[2 * N];
    struct kn_rng rng = {51};
    kn_rng_fill(&rng, src, N * K, 1.0f);
    for (int i = 0; i < 2 * N; i++)
        rows[i] = kn_rng_below(&rng, N);
    struct kn_fixture f;
    kn_fixture_open(&f, isa, 2);
    struct kn_gather p = {.src = kn_test_put(&f, src, sizeof src),
                          .dst = kn_test_alloc(&f, sizeof dst),
                          .ld_src = K,
                          .ld_dst = K,
                          .rows = kn_test_put(&f, rows, sizeof rows),
                          .n = 2 * N,
                          .k = K};
    f.ops->gather(f.q, &p);
    f.ops->download(f.q, dst, p.dst, sizeof dst);
    kn_test_wait(&f);
    for (int i = 0; i < 2 * N; i++)
        kn_assert_same(dst + i * K, src + rows[i] * K, K * sizeof *src);
    kn_fixture_close(&f);
}
static void test_gather(void **state) {
    (void)state;
    kn_for_levels(gather);
}

// ---- kv_copy: whole blocks, in order

static void kv_copy(const char *isa) {
    enum { BLOCKS = 6 };
    struct kn_fixture f;
    kn_fixture_open(&f, isa, 2);
    struct kn_kv_shape shape = {3, 2, 80};
    size_t bytes = f.ops->kv_block_bytes(&shape);
    assert_int_equal(bytes, 3 * 2 * 80 * 2 * 2 * KN_KV_BLOCK);
    uint8_t *a = mem_alloc(BLOCKS * bytes), *b = mem_alloc(BLOCKS * bytes);
    assert_true(a && b);
    struct kn_rng rng = {61};
    for (size_t i = 0; i < BLOCKS * bytes; i++)
        a[i] = (uint8_t)kn_rng_u64(&rng);
    int32_t src[] = {0, 4, 1}, dst[] = {1, 2, 5};
    struct kn_kv_copy p = {
        .pool = kn_test_put(&f, a, BLOCKS * bytes), .shape = shape, .src = src, .dst = dst, .n = 3};
    assert_int_equal(f.ops->kv_copy(f.q, &p), ERR_OK);
    src[0] = 3; // was copied
    f.ops->download(f.q, b, p.pool, BLOCKS * bytes);
    kn_test_wait(&f);
    static const int from[BLOCKS] = {0, 0, 4, 3, 4, 0};
    for (int i = 0; i < BLOCKS; i++)
        kn_assert_same(b + (size_t)i * bytes, a + (size_t)from[i] * bytes, bytes);
    static const struct kn_kv_shape bad[] = {{0, 1, 64},  {1, 0, 64},  {1, 1, 0},       {1, 1, 12},
                                             {1, 1, 264}, {-1, 1, 64}, {1 << 20, 1, 64}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_int_equal(f.ops->kv_block_bytes(&bad[i]), 0);
    mem_free(a);
    mem_free(b);
    kn_fixture_close(&f);
}
static void test_kv_copy(void **state) {
    (void)state;
    kn_for_levels(kv_copy);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rmsnorm),
        cmocka_unit_test(test_quantize),
        cmocka_unit_test(test_quantize_outliers),
        cmocka_unit_test(test_quantize_nonfinite),
        cmocka_unit_test(test_swiglu),
        cmocka_unit_test(test_embed),
        cmocka_unit_test(test_gather),
        cmocka_unit_test(test_kv_copy),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

// SPDX-License-Identifier: Apache-2.0
// Resident weights: read-back, shards, stacks, the order of rows, refusals, failing allocations.
#include "base/mem.h"
#include "kernels/cpu/weight.h"
#include "matrix_fixture.h"
#include "tests/support/tolerances.h"
#include <stdio.h>
#include <string.h>

static const enum kn_dtype all_types[] = {KN_F32, KN_F16, KN_BF16, KN_Q8_0, KN_Q4_0, KN_Q4_1};
enum { N_TYPES = sizeof all_types / sizeof *all_types };

static struct kn_weight *create(struct kn_fixture *f, const struct kn_weight_spec *spec) {
    struct kn_weight *w;
    struct err_info info = {0};
    if (f->ops->weight_create(f->d, spec, &w, &info))
        fail_msg("weight_create: %s", info.message);
    return w;
}

// All of w against `rows` rows of `value`, columns [c, c + k) of them, from row `first`.
static void check_rows(struct kn_fixture *f, const struct kn_weight *w, int64_t at,
                       const struct test_matrix *m, int64_t first, int64_t rows, int64_t c,
                       int64_t k) {
    float *got = mem_alloc((size_t)(rows * k) * sizeof *got);
    assert_non_null(got);
    assert_int_equal(f->ops->weight_read(w, at, rows, got), ERR_OK);
    for (int64_t r = 0; r < rows; r++)
        kn_assert_same(got + r * k, m->value + (first + r) * m->k + c, (size_t)k * sizeof *got);
    mem_free(got);
}

static void test_read_back(void **state) {
    (void)state;
    static const int64_t shapes[][2] = {{1, 32}, {31, 64}, {33, 96}, {200, 288}};
    struct kn_rng r = {1};
    struct kn_fixture f;
    kn_fixture_open(&f, NULL, 2);
    for (int t = 0; t < N_TYPES; t++)
        for (int s = 0; s < 4; s++) {
            struct test_matrix m = test_matrix_make(&r, all_types[t], shapes[s][0], shapes[s][1]);
            struct kn_weight *w = test_weight(&f, &m, 1, KN_STACK);
            check_rows(&f, w, 0, &m, 0, m.n, 0, m.k);
            // Not much larger than the file: rows are padded to pairs of panels.
            size_t row;
            assert_true(kn_row_bytes(m.dtype, (uint64_t)m.k, &row));
            int64_t padded = (m.n + 31) / 32 * 32;
            assert_int_equal(f.ops->weight_bytes(w), (size_t)padded * row);
            assert_int_equal(f.ops->weight_read(w, m.n, 1, m.value), ERR_INVALID);
            assert_int_equal(f.ops->weight_read(w, -1, 1, m.value), ERR_INVALID);
            f.ops->weight_destroy(w);
            test_matrix_free(&m);
        }
    kn_fixture_close(&f);
}

static void test_odd_columns(void **state) {
    (void)state;
    struct kn_rng r = {2};
    struct kn_fixture f;
    kn_fixture_open(&f, NULL, 2);
    for (int t = 0; t < 3; t++)
        for (int64_t k = 1; k < 40; k += 6) {
            struct test_matrix m = test_matrix_make(&r, all_types[t], 35, k);
            struct kn_weight *w = test_weight(&f, &m, 1, KN_STACK);
            check_rows(&f, w, 0, &m, 0, m.n, 0, k);
            f.ops->weight_destroy(w);
            test_matrix_free(&m);
        }
    kn_fixture_close(&f);
}

static void test_stacks(void **state) {
    (void)state;
    struct kn_rng r = {3};
    struct kn_fixture f;
    kn_fixture_open(&f, NULL, 2);
    struct test_matrix m[3] = {test_matrix_make(&r, KN_Q8_0, 40, 64),
                               test_matrix_make(&r, KN_Q4_0, 7, 64),
                               test_matrix_make(&r, KN_Q4_1, 33, 64)};
    struct kn_weight *w = test_weight(&f, m, 3, KN_STACK);
    assert_int_equal(f.ops->weight_form(w), KN_FORM_Q8);
    check_rows(&f, w, 0, &m[0], 0, 40, 0, 64);
    check_rows(&f, w, 40, &m[1], 0, 7, 0, 64);
    check_rows(&f, w, 47, &m[2], 0, 33, 0, 64);
    f.ops->weight_destroy(w);
    for (int i = 0; i < 3; i++)
        test_matrix_free(&m[i]);
    for (int t = 0; t < N_TYPES; t++) {
        struct test_matrix g[2] = {test_matrix_make(&r, all_types[t], 50, 32),
                                   test_matrix_make(&r, all_types[t], 50, 32)};
        w = test_weight(&f, g, 2, KN_STACK_GATE_UP);
        check_rows(&f, w, 0, &g[0], 0, 50, 0, 32);
        check_rows(&f, w, 50, &g[1], 0, 50, 0, 32);
        f.ops->weight_destroy(w);
        test_matrix_free(&g[0]);
        test_matrix_free(&g[1]);
    }
    kn_fixture_close(&f);
}

// Rows of q and k in the file's order: row 2i + j of a head is row j * half + i of ours.
static void test_unpermute(void **state) {
    (void)state;
    enum { HEADS = 3, DIM = 10, K = 32 };
    struct kn_rng r = {4};
    struct kn_fixture f;
    kn_fixture_open(&f, NULL, 2);
    struct test_matrix m = test_matrix_make(&r, KN_Q4_1, HEADS * DIM, K);
    for (int world = 1; world <= 3; world++)
        for (int rank = 0; rank < world; rank++) {
            struct kn_weight_src src = test_matrix_src(&m);
            src.unpermute_heads = HEADS;
            struct kn_weight_spec spec = {
                .parts = &src, .n_parts = 1, .axis = KN_SHARD_N, .rank = rank, .world = world};
            struct kn_weight *w = create(&f, &spec);
            int first = HEADS * DIM * rank / world, end = HEADS * DIM * (rank + 1) / world;
            for (int row = first; row < end; row++) {
                int head = row / DIM, j = row % DIM / (DIM / 2), i = row % (DIM / 2);
                check_rows(&f, w, row - first, &m, head * DIM + 2 * i + j, 1, 0, K);
            }
            f.ops->weight_destroy(w);
        }
    test_matrix_free(&m);
    kn_fixture_close(&f);
}

static void test_shards(void **state) {
    (void)state;
    struct kn_rng r = {5};
    struct kn_fixture f;
    kn_fixture_open(&f, NULL, 2);
    for (int t = 0; t < N_TYPES; t++) {
        struct test_matrix m[2] = {test_matrix_make(&r, all_types[t], 50, 192),
                                   test_matrix_make(&r, all_types[t], 7, 192)};
        struct kn_weight_src src[2] = {test_matrix_src(&m[0]), test_matrix_src(&m[1])};
        for (int rank = 0; rank < 3; rank++) {
            struct kn_weight_spec spec = {
                .parts = src, .n_parts = 2, .axis = KN_SHARD_N, .rank = rank, .world = 3};
            struct kn_weight *w = create(&f, &spec);
            int64_t n = 0;
            for (int i = 0; i < 2; i++) { // each part is cut by itself
                int64_t a = m[i].n * rank / 3, b = m[i].n * (rank + 1) / 3;
                check_rows(&f, w, n, &m[i], a, b - a, 0, 192);
                n += b - a;
            }
            assert_int_equal(f.ops->weight_read(w, n, 1, m[0].value), ERR_INVALID);
            f.ops->weight_destroy(w);
            spec.axis = KN_SHARD_K;
            w = create(&f, &spec);
            check_rows(&f, w, 0, &m[0], 0, 50, 64 * rank, 64);
            check_rows(&f, w, 50, &m[1], 0, 7, 64 * rank, 64);
            f.ops->weight_destroy(w);
        }
        test_matrix_free(&m[0]);
        test_matrix_free(&m[1]);
    }
    kn_fixture_close(&f);
}

// ---- products of shards

static float *product(struct kn_fixture *f, struct kn_weight *w, kn_addr x, int64_t ldx,
                      int32_t rows, int32_t n) {
    float *y = mem_alloc((size_t)rows * (size_t)n * sizeof *y);
    assert_non_null(y);
    struct kn_gemm p = {.w = w, .x = x, .ldx = ldx, .y = (kn_addr)y, .ldy = n, .rows = rows};
    assert_int_equal(f->ops->gemm(f->q, &p), ERR_OK);
    kn_test_wait(f);
    return y;
}

static kn_addr quantized(struct kn_fixture *f, kn_addr x, int64_t ldx, int32_t rows, int32_t k) {
    kn_addr q = kn_test_alloc(f, f->ops->form_row_bytes(KN_FORM_Q8, k) * (size_t)rows);
    struct kn_quantize p = {.x = x, .ldx = ldx, .yq = q, .rows = rows, .k = k};
    assert_int_equal(f->ops->quantize(f->q, &p), ERR_OK);
    kn_test_wait(f);
    return q;
}

// Shards along N make the columns of the whole product, bit by bit; shards along K add up to it.
static void test_shard_products(void **state) {
    (void)state;
    enum { N = 70, K = 384, ROWS = 5, WORLD = 3 };
    struct kn_rng r = {6};
    for (int t = 0; t < N_TYPES; t++) {
        struct kn_fixture f;
        kn_fixture_open(&f, NULL, 2);
        struct test_matrix m = test_matrix_make(&r, all_types[t], N, K);
        struct kn_weight_src src = test_matrix_src(&m);
        float x[ROWS * K];
        kn_rng_fill(&r, x, ROWS * K, 1);
        kn_addr plain = kn_test_put(&f, x, sizeof x);
        bool q8 = kn_dtype_block(all_types[t]) > 1;
        kn_addr in = q8 ? quantized(&f, plain, K, ROWS, K) : plain;
        struct kn_weight *w = test_weight(&f, &m, 1, KN_STACK);
        float *whole = product(&f, w, in, K, ROWS, N);
        double sum[ROWS * N] = {0};
        for (int rank = 0; rank < WORLD; rank++) {
            struct kn_weight_spec spec = {
                .parts = &src, .n_parts = 1, .axis = KN_SHARD_N, .rank = rank, .world = WORLD};
            struct kn_weight *part = create(&f, &spec);
            int32_t a = N * rank / WORLD, n = N * (rank + 1) / WORLD - a;
            float *y = product(&f, part, in, K, ROWS, n);
            for (int i = 0; i < ROWS; i++)
                kn_assert_same(y + i * n, whole + i * N + a, (size_t)n * sizeof *y);
            mem_free(y);
            f.ops->weight_destroy(part);
            spec.axis = KN_SHARD_K;
            part = create(&f, &spec);
            kn_addr cut = plain + (size_t)rank * (K / WORLD) * sizeof(float);
            y = product(&f, part, q8 ? quantized(&f, cut, K, ROWS, K / WORLD) : cut, K, ROWS, N);
            for (int i = 0; i < ROWS * N; i++)
                sum[i] += (double)y[i];
            mem_free(y);
            f.ops->weight_destroy(part);
        }
        kn_assert_close(whole, sum, ROWS * N, TOL_PARTS, TOL_PARTS);
        mem_free(whole);
        f.ops->weight_destroy(w);
        test_matrix_free(&m);
        kn_fixture_close(&f);
    }
}

// ---- refusals

struct refusal {
    enum err code;
    const char *says; // part of the message
    struct kn_weight_src parts[2];
    struct kn_weight_spec spec;
};

static void test_refusals(void **state) {
    (void)state;
    static float data[64 * 64];
    const struct kn_weight_src good = {.dtype = KN_F32, .n = 64, .k = 64, .data = data};
    struct kn_weight_src i32 = good, q33 = good, none = good, no_rows = good, huge = good,
                         narrow = good, q8 = good, heads = good, q4 = good, few = good;
    i32.dtype = KN_I32;
    q33.dtype = KN_Q8_0, q33.k = 33;
    none.data = NULL;
    no_rows.n = 0;
    huge.n = INT64_MAX;
    narrow.k = 32;
    q8.dtype = KN_Q8_0;
    q4.dtype = KN_Q4_0;
    heads.unpermute_heads = 5;
    few.n = 32;
    const struct refusal cases[] = {
        {ERR_UNSUPPORTED, "I32", {i32}, {.n_parts = 1, .world = 1}},
        {ERR_INVALID, "blocks of 32 (Q8_0)", {q33}, {.n_parts = 1, .world = 1}},
        {ERR_INVALID, "shape", {none}, {.n_parts = 1, .world = 1}},
        {ERR_INVALID, "shape [0, 64]", {no_rows}, {.n_parts = 1, .world = 1}},
        {ERR_INVALID, "shape", {huge}, {.n_parts = 1, .world = 1}},
        {ERR_INVALID, "part 1 has 32 columns", {good, narrow}, {.n_parts = 2, .world = 1}},
        {ERR_UNSUPPORTED, "F32 and Q8_0", {good, q8}, {.n_parts = 2, .world = 1}},
        {ERR_INVALID, "5 heads", {heads}, {.n_parts = 1, .world = 1}},
        {ERR_INVALID, "0 parts", {good}, {.n_parts = 0, .world = 1}},
        {ERR_INVALID, "9 parts", {good}, {.n_parts = 9, .world = 1}},
        {ERR_INVALID, "rank 0 of 0", {good}, {.n_parts = 1, .world = 0}},
        {ERR_INVALID, "rank 2 of 2", {good}, {.n_parts = 1, .rank = 2, .world = 2}},
        {ERR_INVALID, "rank -1", {good}, {.n_parts = 1, .rank = -1, .world = 2}},
        {ERR_INVALID, "one shape", {good}, {.n_parts = 1, .stack = KN_STACK_GATE_UP, .world = 1}},
        {ERR_INVALID,
         "one shape",
         {good, few},
         {.n_parts = 2, .stack = KN_STACK_GATE_UP, .world = 1}},
        {ERR_UNSUPPORTED,
         "gate is Q8_0 and up is Q4_0",
         {q8, q4},
         {.n_parts = 2, .stack = KN_STACK_GATE_UP, .world = 1}},
        {ERR_INVALID,
         "not on blocks of 32",
         {q8},
         {.n_parts = 1, .axis = KN_SHARD_K, .rank = 1, .world = 3}},
        {ERR_INVALID,
         "cannot be cut into 65",
         {good},
         {.n_parts = 1, .axis = KN_SHARD_N, .rank = 0, .world = 65}},
    };
    struct kn_fixture f;
    kn_fixture_open(&f, NULL, 2);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct kn_weight_spec spec = cases[i].spec;
        spec.parts = cases[i].parts;
        spec.name = "blk.3.attn_q.weight";
        struct kn_weight *w = (struct kn_weight *)&f;
        struct err_info info = {0};
        enum err e = f.ops->weight_create(f.d, &spec, &w, &info);
        if (e != cases[i].code || !strstr(info.message, cases[i].says) ||
            !strstr(info.message, "blk.3.attn_q.weight: "))
            fail_msg("case %zu: %s, \"%s\"", i, err_name(e), info.message);
        assert_null(w);
    }
    kn_fixture_close(&f);
}

// ---- memory

static void test_failing_allocations(void **state) {
    (void)state;
    struct kn_rng r = {9};
    struct kn_fixture f;
    kn_fixture_open(&f, NULL, 2);
    struct test_matrix m = test_matrix_make(&r, KN_Q8_0, 64, 64);
    struct kn_weight_src src = test_matrix_src(&m);
    struct kn_weight_spec spec = {.parts = &src, .n_parts = 1, .world = 1};
    int64_t live = mem_live_blocks();
    int failures = 0;
    for (uint64_t nth = 1;; nth++) {
        struct kn_weight *w;
        mem_fail_after(nth, false);
        enum err e = f.ops->weight_create(f.d, &spec, &w, NULL);
        mem_fail_after(0, false);
        if (e == ERR_OK) {
            check_rows(&f, w, 0, &m, 0, m.n, 0, m.k);
            f.ops->weight_destroy(w);
            break;
        }
        assert_int_equal(e, ERR_NOMEM);
        assert_null(w);
        assert_int_equal(mem_live_blocks(), live);
        failures++;
    }
    assert_true(failures >= 3); // the handle, the slab, its memory
    assert_int_equal(mem_live_blocks(), live);
    test_matrix_free(&m);
    kn_fixture_close(&f);
}

// Small weights share a mapping: many of them cost little more than their bytes.
static size_t resident_bytes(void) {
    long total, resident;
    FILE *f = fopen("/proc/self/statm", "r");
    assert_non_null(f);
    assert_int_equal(fscanf(f, "%ld %ld", &total, &resident), 2);
    fclose(f);
    return (size_t)resident * 4096;
}

static bool sanitized(void) {
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
    return true;
#elif defined(__has_feature)
    return __has_feature(thread_sanitizer) || __has_feature(address_sanitizer);
#else
    return false;
#endif
}

static void test_resident_size(void **state) {
    (void)state;
    if (sanitized()) // its shadow memory would be counted
        skip();
    enum { MANY = 200 };
    struct kn_rng r = {10};
    struct kn_fixture f;
    kn_fixture_open(&f, NULL, 2);
    struct test_matrix m = test_matrix_make(&r, KN_Q8_0, 320, 576);
    struct kn_weight *w[MANY];
    size_t before = resident_bytes(), bytes = 0;
    for (int i = 0; i < MANY; i++) {
        w[i] = test_weight(&f, &m, 1, KN_STACK);
        bytes += f.ops->weight_bytes(w[i]);
    }
    size_t grown = resident_bytes() - before;
    assert_true(grown <= bytes + (8u << 20));
    for (int i = 0; i < MANY; i += 2) // in any order
        f.ops->weight_destroy(w[i]);
    check_rows(&f, w[1], 0, &m, 0, m.n, 0, m.k);
    for (int i = 1; i < MANY; i += 2)
        f.ops->weight_destroy(w[i]);
    assert_true(resident_bytes() < before + (8u << 20));
    test_matrix_free(&m);
    kn_fixture_close(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_read_back),     cmocka_unit_test(test_odd_columns),
        cmocka_unit_test(test_stacks),        cmocka_unit_test(test_unpermute),
        cmocka_unit_test(test_shards),        cmocka_unit_test(test_shard_products),
        cmocka_unit_test(test_refusals),      cmocka_unit_test(test_failing_allocations),
        cmocka_unit_test(test_resident_size),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

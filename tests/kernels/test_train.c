// SPDX-License-Identifier: Apache-2.0
// Backward of row operations, on every ISA level: against formulas in double precision (which
// central differences of the forward check), against PyTorch (tests/golden/train), and bit by bit
// between ranges and threads.
#include "base/mem.h"
#include "golden_text.h"
#include "kn_fixture.h"
#include "tests/support/tolerances.h"
#include <math.h>
#include <string.h>

static const char *const golden_path = "tests/golden/train/golden.txt";
static const int all_threads[] = {1, 2, 4};

static void *get(size_t n, size_t size) {
    void *p = mem_calloc(n, size);
    assert_non_null(p);
    return p;
}

static double *to_double(const float *x, size_t n) {
    double *d = get(n, sizeof *d);
    for (size_t i = 0; i < n; i++)
        d[i] = (double)x[i];
    return d;
}

static void for_levels(void (*fn)(const char *isa)) {
    for (const char *const *isa = kn_test_levels(); *isa; isa++)
        fn(*isa);
}

// ---- rows: RMS norm and SwiGLU have the same form

struct rows_case {
    const struct rows_op *op;
    int32_t rows, k;
    const float *x, *w, *dy; // [rows][wide k], [k], [rows][k]
    int32_t heads;           // of the norm: a row is so many of k / heads values
};

struct rows_op {
    int32_t wide; // values of x for one of y
    double (*forward)(const struct rows_case *c, int32_t row, const double *x, int32_t i);
    void (*backward)(const struct rows_case *c, int32_t row, double *dx);
    enum err (*record)(struct kn_fixture *f, const struct rows_case *c, kn_addr dx, int64_t lddx,
                       bool add, int32_t begin, int32_t end);
};

static const double eps = (double)1e-5f;

static double mean_square(const double *x, int32_t k) {
    double s = 0;
    for (int32_t i = 0; i < k; i++)
        s += x[i] * x[i];
    return s / k;
}

static double norm_forward(const struct rows_case *c, int32_t row, const double *x, int32_t i) {
    int32_t k = c->k / c->heads;
    (void)row;
    return x[i] / sqrt(mean_square(x + i / k * k, k) + eps) * (double)c->w[i % k];
}

static void norm_backward(const struct rows_case *c, int32_t row, double *dx) {
    int32_t k = c->k / c->heads;
    double *all = to_double(c->x + row * c->k, (size_t)c->k);
    for (int32_t h = 0; h < c->heads; h++) {
        const float *dy = c->dy + row * c->k + h * k;
        const double *x = all + h * k;
        double rms = sqrt(mean_square(x, k) + eps), dot = 0;
        for (int32_t i = 0; i < k; i++)
            dot += (double)c->w[i] * (double)dy[i] * x[i];
        for (int32_t i = 0; i < k; i++)
            dx[h * k + i] =
                (double)c->w[i] * (double)dy[i] / rms - x[i] * dot / k / (rms * rms * rms);
    }
    mem_free(all);
}

static enum err norm_record(struct kn_fixture *f, const struct rows_case *c, kn_addr dx,
                            int64_t lddx, bool add, int32_t begin, int32_t end) {
    struct kn_rmsnorm_back p = {.x = (kn_addr)c->x,
                                .dy = (kn_addr)c->dy,
                                .dx = dx,
                                .ldx = c->k,
                                .lddy = c->k,
                                .lddx = lddx,
                                .weight = (kn_addr)c->w,
                                .eps = 1e-5f,
                                .rows = c->rows,
                                .k = c->k / c->heads,
                                .heads = c->heads > 1 ? c->heads : 0,
                                .add = add,
                                .row_begin = begin,
                                .row_end = end};
    return f->ops->rmsnorm_back(f->q, &p);
}

static double swiglu_forward(const struct rows_case *c, int32_t row, const double *x, int32_t i) {
    (void)row;
    return x[i] / (1 + exp(-x[i])) * x[c->k + i];
}

static void swiglu_backward(const struct rows_case *c, int32_t row, double *dx) {
    for (int32_t i = 0; i < c->k; i++) {
        double g = (double)c->x[row * 2 * c->k + i], u = (double)c->x[row * 2 * c->k + c->k + i];
        double s = 1 / (1 + exp(-g)), dy = (double)c->dy[row * c->k + i];
        dx[i] = dy * u * (s + g * s * (1 - s));
        dx[c->k + i] = dy * g * s;
    }
}

static enum err swiglu_record(struct kn_fixture *f, const struct rows_case *c, kn_addr dx,
                              int64_t lddx, bool add, int32_t begin, int32_t end) {
    (void)add;
    struct kn_swiglu_back p = {.x = (kn_addr)c->x,
                               .dy = (kn_addr)c->dy,
                               .dx = dx,
                               .ldx = 2 * c->k,
                               .lddy = c->k,
                               .lddx = lddx,
                               .rows = c->rows,
                               .k = c->k,
                               .row_begin = begin,
                               .row_end = end};
    return f->ops->swiglu_back(f->q, &p);
}

static const struct rows_op norm_op = {1, norm_forward, norm_backward, norm_record};
static const struct rows_op swiglu_op = {2, swiglu_forward, swiglu_backward, swiglu_record};

static void case_init(struct rows_case *c, const struct rows_op *op, int32_t rows, int32_t k,
                      int32_t heads) {
    struct kn_rng r = {(uint64_t)(rows * 1000 + k)};
    size_t nx = (size_t)(rows * k * op->wide), ny = (size_t)(rows * k);
    float *x = get(nx, 4), *w = get((size_t)k, 4), *dy = get(ny, 4);
    kn_rng_fill(&r, x, nx, 1.5f);
    kn_rng_fill(&r, w, (size_t)k, 1);
    kn_rng_fill(&r, dy, ny, 1);
    *c = (struct rows_case){op, rows, k, x, w, dy, heads};
}

static void case_free(struct rows_case *c) {
    mem_free((void *)(uintptr_t)c->x);
    mem_free((void *)(uintptr_t)c->w);
    mem_free((void *)(uintptr_t)c->dy);
}

// dx through the device in ranges of `step` rows (0: all at once), with two values behind each row
// that must stay.
static float *run_rows(const char *isa, int threads, const struct rows_case *c, int32_t step,
                       bool add) {
    struct kn_fixture f;
    int32_t wide = c->k * c->op->wide, ld = wide + 2;
    float *dx = get((size_t)(c->rows * ld), sizeof *dx);
    for (int32_t i = 0; i < c->rows * ld; i++)
        dx[i] = 3;
    kn_fixture_open(&f, isa, threads);
    for (int32_t r = 0; r < c->rows; r += step ? step : c->rows) {
        int32_t end = step ? (r + step < c->rows ? r + step : c->rows) : 0;
        assert_int_equal(c->op->record(&f, c, (kn_addr)dx, ld, add, r, end), ERR_OK);
    }
    kn_test_wait(&f);
    kn_fixture_close(&f);
    for (int32_t r = 0; r < c->rows; r++)
        assert_true(dx[r * ld + wide] == 3 && dx[r * ld + wide + 1] == 3);
    return dx;
}

// A norm of heads in place has the same bits.
static void check_in_place(const char *isa, const struct rows_case *c, const float *want) {
    struct rows_case own = *c;
    struct kn_fixture f;
    size_t n = (size_t)(c->rows * c->k);
    float *dx = get(n, sizeof *dx);
    memcpy(dx, c->dy, n * sizeof *dx);
    own.dy = dx;
    kn_fixture_open(&f, isa, 2);
    assert_int_equal(norm_record(&f, &own, (kn_addr)dx, c->k, false, 0, 0), ERR_OK);
    kn_test_wait(&f);
    kn_fixture_close(&f);
    for (int32_t r = 0; r < c->rows; r++)
        kn_assert_same(dx + r * c->k, want + r * (c->k + 2), (size_t)c->k * sizeof *dx);
    mem_free(dx);
}

static void check_rows(const char *isa, const struct rows_op *op, int32_t rows, int32_t k,
                       int32_t heads) {
    struct rows_case c;
    case_init(&c, op, rows, k, heads);
    int32_t wide = k * op->wide, ld = wide + 2;
    float *dx = run_rows(isa, 1, &c, 0, false);
    double *want = get((size_t)wide, sizeof *want);
    for (int32_t r = 0; r < rows; r++) {
        op->backward(&c, r, want);
        kn_assert_close(dx + r * ld, want, (size_t)wide, TOL_GRAD_RTOL, TOL_GRAD_ATOL);
    }
    mem_free(want);
    size_t bytes = (size_t)(rows * ld) * sizeof *dx;
    for (int t = 0; t < 3; t++)
        for (int32_t step = 0; step < 4; step += 3) {
            float *again = run_rows(isa, all_threads[t], &c, step, false);
            kn_assert_same(again, dx, bytes);
            mem_free(again);
        }
    if (op == &norm_op) {
        float *sum = run_rows(isa, 2, &c, 2, true);
        for (int32_t i = 0; i < rows * ld; i++)
            assert_true(sum[i] == (i % ld < wide ? 3 + dx[i] : 3));
        mem_free(sum);
        check_in_place(isa, &c, dx);
    }
    mem_free(dx);
    case_free(&c);
}

static void rows_levels(const char *isa) {
    static const int32_t shapes[][2] = {{1, 1}, {3, 15}, {5, 64}, {2, 77}, {40, 576}};
    for (int i = 0; i < 5; i++) {
        check_rows(isa, &norm_op, shapes[i][0], shapes[i][1], 1);
        check_rows(isa, &swiglu_op, shapes[i][0], shapes[i][1], 1);
    }
    check_rows(isa, &norm_op, 7, 4 * 128, 4);
    check_rows(isa, &norm_op, 30, 3 * 40, 3);
}
static void test_rows(void **state) {
    (void)state;
    for_levels(rows_levels);
}

// The formulas above against central differences of the forward.
static void check_differences(const struct rows_op *op, int32_t heads) {
    struct rows_case c;
    case_init(&c, op, 2, 24, heads);
    int32_t wide = c.k * op->wide;
    double *want = get((size_t)wide, sizeof *want);
    for (int32_t r = 0; r < c.rows; r++) {
        double *x = to_double(c.x + r * wide, (size_t)wide), h = 1e-5;
        op->backward(&c, r, want);
        for (int32_t j = 0; j < wide; j++) {
            double at = x[j], diff = 0;
            for (int32_t i = 0; i < c.k; i++) {
                x[j] = at + h;
                double up = op->forward(&c, r, x, i);
                x[j] = at - h;
                diff += (double)c.dy[r * c.k + i] * (up - op->forward(&c, r, x, i)) / (2 * h);
            }
            x[j] = at;
            assert_true(fabs(diff - want[j]) <= 1e-8 + 1e-7 * fabs(want[j]));
        }
        mem_free(x);
    }
    mem_free(want);
    case_free(&c);
}
static void test_differences(void **state) {
    (void)state;
    check_differences(&norm_op, 1);
    check_differences(&norm_op, 3);
    check_differences(&swiglu_op, 1);
}

static void golden_rows(const char *isa) {
    struct golden_text *g = golden_open(golden_path);
    int32_t n, nx, nw, ny;
    for (int i = 0; i < 2; i++) {
        const struct rows_op *op = i ? &swiglu_op : &norm_op;
        const double *shape = golden_array(g, i ? "swiglu.shape" : "rmsnorm.shape", &n);
        struct rows_case c = {
            .op = op, .rows = (int32_t)shape[0], .k = (int32_t)shape[1], .heads = 1};
        float *x = golden_f32(g, i ? "swiglu.x" : "rmsnorm.x", &nx);
        float *w = golden_f32(g, "rmsnorm.w", &nw),
              *dy = golden_f32(g, i ? "swiglu.dy" : "rmsnorm.dy", &ny);
        const double *want = golden_array(g, i ? "swiglu.dx" : "rmsnorm.dx", &n);
        assert_true(n == nx && nx == c.rows * c.k * op->wide && ny == c.rows * c.k && nw == 50);
        c.x = x;
        c.w = w;
        c.dy = dy;
        float *dx = run_rows(isa, 1, &c, 0, false);
        int32_t wide = c.k * op->wide;
        for (int32_t r = 0; r < c.rows; r++)
            kn_assert_close(dx + r * (wide + 2), want + r * wide, (size_t)wide, TOL_GRAD_RTOL,
                            TOL_GRAD_ATOL);
        mem_free(dx);
        mem_free(x);
        mem_free(w);
        mem_free(dy);
    }
    golden_close(g);
}
static void test_golden_rows(void **state) {
    (void)state;
    for_levels(golden_rows);
}

// The saturated ends of SwiGLU, in place.
static void swiglu_ends(const char *isa) {
    static const float gate[] = {-200, -100, -88.5f, -30, 0, 30, 88.5f, 100, 200};
    enum { K = sizeof gate / sizeof *gate };
    float x[2 * K], dy[K];
    struct rows_case c = {&swiglu_op, 1, K, x, NULL, dy, 1};
    double want[2 * K];
    for (int i = 0; i < K; i++) {
        x[i] = gate[i];
        x[K + i] = 2;
        dy[i] = 0.5f;
    }
    swiglu_backward(&c, 0, want);
    struct kn_fixture f;
    kn_fixture_open(&f, isa, 1);
    assert_int_equal(swiglu_record(&f, &c, (kn_addr)x, 2 * K, false, 0, 0), ERR_OK);
    kn_test_wait(&f);
    kn_assert_close(x, want, 2 * K, TOL_GRAD_RTOL, TOL_GRAD_ATOL);
    kn_fixture_close(&f);
}
static void test_swiglu_ends(void **state) {
    (void)state;
    for_levels(swiglu_ends);
}

// ---- rotation

static void check_rope(const char *isa, int threads, int32_t rows, int32_t heads, int32_t kv,
                       int32_t dim, const float *table, const float *dy, const double *want) {
    struct kn_fixture f;
    struct kn_batch b = {.n_tokens = rows, .n_seqs = 1};
    int32_t width = (heads + kv) * dim, ld = width + dim;
    float *x = get((size_t)(rows * ld), sizeof *x);
    for (int32_t r = 0; r < rows; r++) {
        memcpy(x + r * ld, dy + r * width, (size_t)width * sizeof *x);
        for (int32_t i = width; i < ld; i++) // v's part
            x[r * ld + i] = 7;
    }
    struct kn_rope_back p = {.batch = &b,
                             .dqkv = (kn_addr)x,
                             .lddqkv = ld,
                             .table = (kn_addr)table,
                             .heads = heads,
                             .kv_heads = kv,
                             .head_dim = dim};
    kn_fixture_open(&f, isa, threads);
    assert_int_equal(f.ops->rope_back(f.q, &p), ERR_OK);
    kn_test_wait(&f);
    kn_fixture_close(&f);
    for (int32_t r = 0; r < rows; r++) {
        kn_assert_close(x + r * ld, want + r * width, (size_t)width, TOL_GRAD_RTOL, TOL_GRAD_ATOL);
        for (int32_t i = width; i < ld; i++)
            assert_true(x[r * ld + i] == 7);
    }
    mem_free(x);
}

static void rope_levels(const char *isa) {
    struct golden_text *g = golden_open(golden_path);
    int32_t n, nt, ny;
    const double *s = golden_array(g, "rope.shape", &n);
    float *table = golden_f32(g, "rope.table", &nt), *dy = golden_f32(g, "rope.dy", &ny);
    const double *want = golden_array(g, "rope.dx", &n);
    assert_true(n == ny && nt == (int32_t)(s[0] * s[3]));
    for (int t = 0; t < 3; t++)
        check_rope(isa, all_threads[t], (int32_t)s[0], (int32_t)s[1], (int32_t)s[2], (int32_t)s[3],
                   table, dy, want);
    mem_free(table);
    mem_free(dy);
    golden_close(g);
}
static void test_rope(void **state) {
    (void)state;
    for_levels(rope_levels);
}

// ---- scatter

static void scatter_levels(const char *isa) {
    enum { N = 37, DST = 300, K = 45 };
    static float src[N * K], dst[DST * (K + 1)];
    int32_t rows[N];
    struct kn_rng r = {9};
    kn_rng_fill(&r, src, N * K, 1);
    for (int i = 0; i < N; i++) // different, not in order
        rows[i] = (i * 101 + 5) % DST;
    for (int t = 0; t < 3; t++) {
        struct kn_fixture f;
        kn_fixture_open(&f, isa, all_threads[t]);
        for (int i = 0; i < DST * (K + 1); i++)
            dst[i] = 9;
        struct kn_scatter p = {(kn_addr)src, (kn_addr)dst, K, K + 1, (kn_addr)rows, N, DST, K};
        assert_int_equal(f.ops->scatter(f.q, &p), ERR_OK);
        kn_test_wait(&f);
        for (int i = 0; i < DST; i++) {
            const float *want = NULL;
            for (int j = 0; j < N; j++)
                want = rows[j] == i ? src + j * K : want;
            for (int j = 0; j < K; j++)
                assert_true(dst[i * (K + 1) + j] == (want ? want[j] : 0));
            assert_true(dst[i * (K + 1) + K] == 9);
        }
        p.n = 0;
        assert_int_equal(f.ops->scatter(f.q, &p), ERR_OK);
        kn_test_wait(&f);
        for (int i = 0; i < DST * (K + 1); i++)
            assert_true(dst[i] == (i % (K + 1) < K ? 0 : 9));
        rows[3] += DST;
        p.n = N;
        assert_int_equal(f.ops->scatter(f.q, &p), ERR_OK);
        struct err_info info;
        assert_int_equal(f.ops->queue_wait(f.q, &info), ERR_INTERNAL);
        rows[3] -= DST;
        kn_fixture_close(&f);
    }
}
static void test_scatter(void **state) {
    (void)state;
    for_levels(scatter_levels);
}

// ---- what recording refuses

static void test_refused(void **state) {
    (void)state;
    struct kn_fixture f;
    struct err_info info;
    float x[64] = {0};
    int32_t n[4] = {0};
    kn_addr a = (kn_addr)x, i = (kn_addr)n;
    struct kn_batch b = {.n_tokens = 1, .n_seqs = 1};
    kn_fixture_open(&f, NULL, 1);
#define REFUSED(op, ...)                                                                           \
    do {                                                                                           \
        struct kn_##op p_ = {__VA_ARGS__};                                                         \
        assert_int_equal(f.ops->op(f.q, &p_), ERR_OK);                                             \
        assert_int_equal(f.ops->queue_wait(f.q, &info), ERR_INVALID);                              \
        assert_non_null(strstr(info.message, #op));                                                \
    } while (0)
    struct kn_rmsnorm_back norm = {
        .x = a, .dy = a, .dx = a, .ldx = 8, .lddy = 8, .lddx = 8, .weight = a, .rows = 1, .k = 8};
    for (int j = 0; j < 5; j++) {
        struct kn_rmsnorm_back p = norm;
        p.lddx -= j == 0;
        p.row_end = j == 1 ? 2 : 0;
        p.weight = j == 2 ? 0 : a;
        p.heads = j == 3 ? 2 : j == 4 ? -1 : 0;
        assert_int_equal(f.ops->rmsnorm_back(f.q, &p), ERR_OK);
        assert_int_equal(f.ops->queue_wait(f.q, &info), ERR_INVALID);
    }
    REFUSED(swiglu_back, .x = a, .dy = a, .dx = a, .ldx = 15, .lddy = 8, .lddx = 16, .rows = 1,
            .k = 8);
    REFUSED(swiglu_back, .x = a, .dy = a, .dx = a, .ldx = 16, .lddy = 8, .lddx = 16, .rows = 3,
            .k = 8, .row_begin = 2, .row_end = 2);
    REFUSED(rope_back, &b, a, 15, a, 1, 1, 8);
    REFUSED(rope_back, &b, a, 16, 0, 1, 1, 8);
    REFUSED(scatter, a, a, 8, 8, i, 3, 2, 8);
    REFUSED(scatter, a, a, 8, 8, 0, 1, 2, 8);
#undef REFUSED
    kn_fixture_close(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows),        cmocka_unit_test(test_differences),
        cmocka_unit_test(test_golden_rows), cmocka_unit_test(test_swiglu_ends),
        cmocka_unit_test(test_rope),        cmocka_unit_test(test_scatter),
        cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

// SPDX-License-Identifier: Apache-2.0
// Attention's backward, on every ISA level: against formulas in double precision (which central
// differences of the forward check), against PyTorch's autograd (tests/golden/train), and bit by
// bit between ranges of tokens, threads and company in the batch.
#include "base/mem.h"
#include "golden_text.h"
#include "kn_fixture.h"
#include "tests/support/tolerances.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { MAX_SEQS = 6, LAYERS = 2, LAYER = 1 };

struct world {
    int32_t heads, kv_heads, dim, window;
    int n;
    int32_t len[MAX_SEQS], rows;
    float *qkv, *out, *dout; // [rows][...]; k and v are bf16 values
    double *want;            // dqkv
};

static int32_t width(const struct world *w) {
    return (w->heads + 2 * w->kv_heads) * w->dim;
}
static int32_t out_width(const struct world *w) {
    return w->heads * w->dim;
}
static double scale_of(const struct world *w) {
    return 1 / sqrt((double)w->dim);
}

// ---- formulas in double: one sequence, one head

struct head {
    int32_t n, dim, window;
    double scale;
    double *q, *k, *v, *dout; // [n][dim]
    double *out, *p;          // p: [n][n]
    double *dq, *dk, *dv;     // dk and dv are added to
};

// Whether anything comes back to a row; the others are left out.
static bool wanted(const struct head *h, int32_t row) {
    for (int32_t c = 0; c < h->dim; c++)
        if (h->dout[row * h->dim + c] != 0)
            return true;
    return false;
}

static void forward(const struct head *h) {
    int32_t d = h->dim;
    for (int32_t i = 0; i < h->n; i++) {
        if (!wanted(h, i))
            continue;
        int32_t lo = h->window && i >= h->window ? i - h->window + 1 : 0;
        double *p = h->p + (size_t)i * (size_t)h->n, top = -(double)INFINITY, sum = 0;
        for (int32_t j = lo; j <= i; j++) {
            p[j] = 0;
            for (int32_t c = 0; c < d; c++)
                p[j] += h->q[i * d + c] * h->k[j * d + c];
            p[j] *= h->scale;
            top = p[j] > top ? p[j] : top;
        }
        for (int32_t j = lo; j <= i; j++)
            sum += p[j] = exp(p[j] - top);
        for (int32_t c = 0; c < d; c++)
            h->out[i * d + c] = 0;
        for (int32_t j = 0; j < h->n; j++) {
            p[j] = j < lo || j > i ? 0 : p[j] / sum;
            for (int32_t c = 0; p[j] != 0 && c < d; c++)
                h->out[i * d + c] += p[j] * h->v[j * d + c];
        }
    }
}

static void backward(const struct head *h) {
    int32_t d = h->dim;
    for (int32_t i = 0; i < h->n; i++) {
        if (!wanted(h, i))
            continue;
        double delta = 0;
        for (int32_t c = 0; c < d; c++)
            delta += h->dout[i * d + c] * h->out[i * d + c];
        for (int32_t j = 0; j <= i; j++) {
            double p = h->p[(size_t)i * (size_t)h->n + (size_t)j], dp = 0;
            for (int32_t c = 0; c < d; c++)
                dp += h->dout[i * d + c] * h->v[j * d + c];
            double ds = p * (dp - delta) * h->scale;
            for (int32_t c = 0; c < d; c++) {
                h->dv[j * d + c] += p * h->dout[i * d + c];
                h->dq[i * d + c] += ds * h->k[j * d + c];
                h->dk[j * d + c] += ds * h->q[i * d + c];
            }
        }
    }
}

static void head_alloc(struct head *h) {
    double **part[] = {&h->q, &h->k, &h->v, &h->dout, &h->out, &h->dq, &h->dk, &h->dv};
    for (int i = 0; i < 8; i++)
        *part[i] = kn_zeros((size_t)(h->n * h->dim), sizeof(double));
    h->p = kn_zeros((size_t)h->n * (size_t)h->n, sizeof(double));
}
static void head_free(struct head *h) {
    double *part[] = {h->q, h->k, h->v, h->dout, h->out, h->dq, h->dk, h->dv, h->p};
    for (int i = 0; i < 9; i++)
        mem_free(part[i]);
}

static void copy_in(const float *src, int32_t ld, int32_t n, int32_t d, double *dst) {
    for (int32_t i = 0; i < n; i++)
        for (int32_t c = 0; c < d; c++)
            dst[i * d + c] = (double)src[i * ld + c];
}

// out (rounded) and the wanted dqkv of everything.
static void solve(struct world *w) {
    int32_t start = 0, d = w->dim, wide = width(w), group = w->heads / w->kv_heads;
    for (int s = 0; s < w->n; start += w->len[s++])
        for (int32_t head = 0; head < w->heads; head++) {
            struct head h = {.n = w->len[s], .dim = d, .window = w->window, .scale = scale_of(w)};
            const float *row = w->qkv + start * wide;
            int32_t at_k = (w->heads + head / group) * d, at_v = at_k + w->kv_heads * d;
            head_alloc(&h);
            copy_in(row + head * d, wide, h.n, d, h.q);
            copy_in(row + at_k, wide, h.n, d, h.k);
            copy_in(row + at_v, wide, h.n, d, h.v);
            copy_in(w->dout + start * out_width(w) + head * d, out_width(w), h.n, d, h.dout);
            forward(&h);
            backward(&h);
            for (int32_t i = 0; i < h.n; i++)
                for (int32_t c = 0; c < d; c++) {
                    double *at = w->want + (start + i) * wide + c;
                    w->out[(start + i) * out_width(w) + head * d + c] = (float)h.out[i * d + c];
                    at[head * d] = h.dq[i * d + c];
                    at[at_k] += h.dk[i * d + c];
                    at[at_v] += h.dv[i * d + c];
                }
            head_free(&h);
        }
}

static void world_alloc(struct world *w) {
    w->rows = 0;
    for (w->n = 0; w->n < MAX_SEQS && w->len[w->n] > 0; w->n++)
        w->rows += w->len[w->n];
    w->qkv = kn_zeros((size_t)(w->rows * width(w)), 4);
    w->out = kn_zeros((size_t)(w->rows * out_width(w)), 4);
    w->dout = kn_zeros((size_t)(w->rows * out_width(w)), 4);
    w->want = kn_zeros((size_t)(w->rows * width(w)), sizeof(double));
}

static void world_init(struct world *w) {
    struct kn_rng r = {(uint64_t)(w->heads * 100 + w->dim)};
    world_alloc(w);
    kn_rng_fill(&r, w->qkv, (size_t)(w->rows * width(w)), 1.2f);
    kn_rng_fill(&r, w->dout, (size_t)(w->rows * out_width(w)), 1);
    for (int32_t i = 0; i < w->rows * width(w); i++)
        if (i % width(w) >= out_width(w))
            w->qkv[i] = kn_bf16_to_f32(kn_f32_to_bf16(w->qkv[i]));
}

static void world_free(struct world *w) {
    mem_free(w->qkv);
    mem_free(w->out);
    mem_free(w->dout);
    mem_free(w->want);
}

// ---- through the device

// Ranges of `step` tokens (0: all at once). The blocks are in reverse order, the pool is full of
// NaN otherwise.
static float *run(const char *isa, int threads, const struct world *w, int32_t step) {
    struct kn_fixture f;
    int32_t blocks = 0, wide = width(w), ld = wide + 4;
    struct kn_test_seq seqs[MAX_SEQS];
    kn_fixture_open(&f, isa, threads);
    for (int s = 0; s < w->n; s++)
        blocks += (w->len[s] - 1) / KN_KV_BLOCK + 1;
    int32_t *table = kn_zeros((size_t)blocks, sizeof *table), at = 0;
    for (int32_t i = 0; i < blocks; i++)
        table[i] = blocks - 1 - i;
    for (int s = 0; s < w->n; at += seqs[s++].n_blocks)
        seqs[s] = (struct kn_test_seq){0, w->len[s], table + at, (w->len[s] - 1) / KN_KV_BLOCK + 1};
    struct kn_batch b;
    kn_test_batch(&f, seqs, w->n, NULL, &b);
    struct kn_kv_shape shape = {LAYERS, w->kv_heads, w->dim};
    size_t pool_bytes = (size_t)blocks * f.ops->kv_block_bytes(&shape);
    kn_addr pool = kn_test_alloc(&f, pool_bytes);
    memset((void *)pool, 0xff, pool_bytes);
    float *turn = kn_zeros((size_t)(w->rows * w->dim), 4); // no rotation
    for (int32_t i = 0; i < w->rows * w->dim; i++)
        turn[i] = i % w->dim < w->dim / 2;
    struct kn_rope_kv rope = {.batch = &b,
                              .qkv = kn_test_put(&f, w->qkv, (size_t)(w->rows * wide) * 4),
                              .ldqkv = wide,
                              .table = (kn_addr)turn,
                              .pool = pool,
                              .shape = shape,
                              .layer = LAYER,
                              .heads = w->heads};
    assert_int_equal(f.ops->rope_kv(f.q, &rope), ERR_OK);
    float *d = kn_zeros((size_t)(w->rows * ld), sizeof *d);
    for (int32_t i = 0; i < w->rows * ld; i++)
        d[i] = i % ld < wide ? NAN : 5;
    struct kn_attn_back p = {.batch = &b,
                             .q = rope.qkv,
                             .ldq = wide,
                             .pool = pool,
                             .shape = shape,
                             .layer = LAYER,
                             .heads = w->heads,
                             .window = w->window,
                             .scale = (float)scale_of(w),
                             .out = (kn_addr)w->out,
                             .dout = (kn_addr)w->dout,
                             .ldout = out_width(w),
                             .lddout = out_width(w),
                             .dqkv = (kn_addr)d,
                             .lddqkv = ld};
    for (int32_t i = 0; i < w->rows; i += step ? step : w->rows) {
        p.token_begin = step ? i : 0;
        p.token_end = step ? (i + step < w->rows ? i + step : w->rows) : 0;
        assert_int_equal(f.ops->attn_back(f.q, &p), ERR_OK);
    }
    kn_test_wait(&f);
    for (int32_t i = 0; i < w->rows * ld; i++)
        assert_true(i % ld < wide || d[i] == 5);
    mem_free(table);
    mem_free(turn);
    kn_fixture_close(&f);
    return d;
}

static void check_close(const struct world *w, const float *d) {
    for (int32_t i = 0; i < w->rows; i++)
        kn_assert_close(d + i * (width(w) + 4), w->want + i * width(w), (size_t)width(w),
                        TOL_GRAD_RTOL, TOL_ATTN_BACK_ATOL);
}

// In ranges of `step` tokens and at once, on 1, 2 and 4 threads.
static void check_world(const char *isa, struct world w, int32_t step) {
    world_init(&w);
    solve(&w);
    size_t bytes = (size_t)(w.rows * (width(&w) + 4)) * sizeof(float);
    float *d = run(isa, 1, &w, 0);
    check_close(&w, d);
    for (int threads = 1; threads <= 4; threads *= 2)
        for (int cut = 0; cut < 2; cut++) {
            float *again = run(isa, threads, &w, cut ? step : 0);
            kn_assert_same(again, d, bytes);
            mem_free(again);
        }
    mem_free(d);
    world_free(&w);
}

static void shapes(const char *isa) {
    check_world(isa, (struct world){.heads = 9, .kv_heads = 3, .dim = 64, .len = {150, 1, 67}}, 23);
    check_world(isa, (struct world){.heads = 4, .kv_heads = 4, .dim = 72, .len = {65, 40}}, 16);
    check_world(isa, (struct world){.heads = 3, .kv_heads = 1, .dim = 80, .len = {130}}, 64);
    check_world(isa, (struct world){.heads = 2, .kv_heads = 2, .dim = 8, .len = {1, 2, 200}}, 1);
    check_world(isa, (struct world){.heads = 2, .kv_heads = 1, .dim = 256, .len = {33}}, 7);
    check_world(isa, (struct world){.heads = 130, .kv_heads = 1, .dim = 8, .len = {20}}, 3);
}
static void test_shapes(void **state) {
    (void)state;
    kn_for_levels(shapes);
}

static void windows(const char *isa) {
    check_world(
        isa,
        (struct world){.heads = 6, .kv_heads = 2, .dim = 16, .window = 50, .len = {300, 20, 51}},
        70);
    check_world(isa, (struct world){.heads = 3, .kv_heads = 3, .dim = 24, .window = 1, .len = {90}},
                11);
    check_world(
        isa, (struct world){.heads = 1, .kv_heads = 1, .dim = 8, .window = 129, .len = {400}}, 100);
}
static void test_windows(void **state) {
    (void)state;
    kn_for_levels(windows);
}

// So long that fewer rows fit into a tile's scratch memory, which depends on no ISA level.
// Gradients come back to the last rows only.
static void test_long(void **state) {
    (void)state;
    enum { LEN = 3700, DIM = 8 };
    const char *isa = kn_test_levels()[0];
    struct world w = {.heads = 1, .kv_heads = 1, .dim = DIM, .len = {LEN}};
    world_init(&w);
    memset(w.dout, 0, (LEN - 60) * DIM * sizeof *w.dout);
    solve(&w);
    float *whole = run(isa, 1, &w, 0), *shared = run(isa, 2, &w, 1900);
    check_close(&w, whole);
    kn_assert_same(shared, whole, (size_t)(w.rows * (width(&w) + 4)) * sizeof(float));
    mem_free(whole);
    mem_free(shared);
    world_free(&w);
}

// The formulas above against central differences of the forward.
static void test_differences(void **state) {
    (void)state;
    struct head h = {.n = 9, .dim = 5, .window = 4, .scale = 0.6};
    struct kn_rng r = {6};
    head_alloc(&h);
    double *in[] = {h.q, h.k, h.v, h.dout}, *grad[] = {h.dq, h.dk, h.dv}, step = 1e-5;
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < 45; j++)
            in[i][j] = (double)kn_rng_normal(&r);
    forward(&h);
    backward(&h);
    for (int i = 0; i < 3; i++)
        for (int j = 0; j < 45; j++) {
            double at = in[i][j], sum[2] = {0, 0};
            for (int s = 0; s < 2; s++) {
                in[i][j] = at + (s ? -step : step);
                forward(&h);
                for (int c = 0; c < 45; c++)
                    sum[s] += h.out[c] * h.dout[c];
            }
            in[i][j] = at;
            assert_true(fabs((sum[0] - sum[1]) / (2 * step) - grad[i][j]) < 1e-8);
        }
    head_free(&h);
}

static void golden(const char *isa) {
    struct golden_text *g = golden_open("tests/golden/train/golden.txt");
    for (int c = 'a'; c <= 'c'; c++) {
        char name[32];
        int32_t n, m;
        snprintf(name, sizeof name, "attn.%c.shape", c);
        const double *s = golden_array(g, name, &n);
        struct world w = {.heads = (int32_t)s[0],
                          .kv_heads = (int32_t)s[1],
                          .dim = (int32_t)s[2],
                          .window = (int32_t)s[3]};
        for (int32_t i = 4; i < n; i++)
            w.len[i - 4] = (int32_t)s[i];
        world_alloc(&w);
        const char *parts[] = {"qkv", "dout", "out"};
        float *to[] = {w.qkv, w.dout, w.out};
        for (int i = 0; i < 3; i++) {
            snprintf(name, sizeof name, "attn.%c.%s", c, parts[i]);
            const double *v = golden_array(g, name, &m);
            assert_int_equal(m, w.rows * (i ? out_width(&w) : width(&w)));
            for (int32_t j = 0; j < m; j++)
                to[i][j] = (float)v[j];
        }
        snprintf(name, sizeof name, "attn.%c.dqkv", c);
        memcpy(w.want, golden_array(g, name, &m), (size_t)(w.rows * width(&w)) * sizeof(double));
        float *d = run(isa, 2, &w, 0);
        check_close(&w, d);
        mem_free(d);
        world_free(&w);
    }
    golden_close(g);
}
static void test_golden(void **state) {
    (void)state;
    kn_for_levels(golden);
}

// A sequence that is alone in the batch has the bits it has in company.
static void company(const char *isa) {
    struct world a = {.heads = 6, .kv_heads = 2, .dim = 32, .len = {77, 130, 45}}, b = a;
    world_init(&a);
    solve(&a);
    b.len[0] = 130;
    b.len[1] = 0;
    world_alloc(&b);
    memcpy(b.qkv, a.qkv + 77 * width(&a), (size_t)(130 * width(&a)) * 4);
    memcpy(b.out, a.out + 77 * out_width(&a), (size_t)(130 * out_width(&a)) * 4);
    memcpy(b.dout, a.dout + 77 * out_width(&a), (size_t)(130 * out_width(&a)) * 4);
    float *x = run(isa, 2, &a, 0), *y = run(isa, 4, &b, 50);
    kn_assert_same(y, x + 77 * (width(&a) + 4), (size_t)(130 * (width(&a) + 4)) * 4);
    mem_free(x);
    mem_free(y);
    world_free(&a);
    world_free(&b);
}
static void test_company(void **state) {
    (void)state;
    kn_for_levels(company);
}

static void test_refused(void **state) {
    (void)state;
    struct kn_fixture f;
    struct err_info info;
    int32_t start[2] = {0, 40}, len[1] = {40}, table[3] = {0, -1, 1};
    struct kn_batch b = {.n_tokens = 40,
                         .n_seqs = 1,
                         .seq_start = (kn_addr)start,
                         .kv_len = (kn_addr)len,
                         .block_table = (kn_addr)table,
                         .max_blocks = 3};
    kn_fixture_open(&f, NULL, 2);
    struct kn_kv_shape shape = {1, 1, 8};
    kn_addr pool = kn_test_alloc(&f, 2 * f.ops->kv_block_bytes(&shape));
    kn_addr big = kn_test_alloc(&f, 40 * 24 * 4);
    struct kn_attn_back good = {.batch = &b,
                                .q = big,
                                .ldq = 8,
                                .pool = pool,
                                .shape = shape,
                                .heads = 1,
                                .scale = 1,
                                .out = big,
                                .dout = big,
                                .ldout = 8,
                                .lddout = 8,
                                .dqkv = big,
                                .lddqkv = 24},
                        p;
    struct { // what is wrong, and what is said
        size_t at;
        int32_t value;
        enum err e;
    } bad[] = {
        {offsetof(struct kn_attn_back, heads), 0, ERR_INVALID},
        {offsetof(struct kn_attn_back, layer), 1, ERR_INVALID},
        {offsetof(struct kn_attn_back, window), -1, ERR_INVALID},
        {offsetof(struct kn_attn_back, token_begin), 3, ERR_INVALID},
        {offsetof(struct kn_attn_back, token_end), 41, ERR_INVALID},
        {offsetof(struct kn_attn_back, window), 0, ERR_INTERNAL}, // the block that is missing
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        p = good;
        memcpy((char *)&p + bad[i].at, &bad[i].value, sizeof bad[i].value);
        assert_int_equal(f.ops->attn_back(f.q, &p), ERR_OK);
        assert_int_equal(f.ops->queue_wait(f.q, &info), bad[i].e);
    }
    p = good;
    p.lddqkv = 23;
    assert_int_equal(f.ops->attn_back(f.q, &p), ERR_OK);
    assert_int_equal(f.ops->queue_wait(f.q, &info), ERR_INVALID);
    p = good;
    p.dout = 0;
    assert_int_equal(f.ops->attn_back(f.q, &p), ERR_OK);
    assert_int_equal(f.ops->queue_wait(f.q, &info), ERR_INVALID);
    len[0] = 39; // the cache is shorter than the sequence
    assert_int_equal(f.ops->attn_back(f.q, &good), ERR_OK);
    assert_int_equal(f.ops->queue_wait(f.q, &info), ERR_INTERNAL);
    kn_fixture_close(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_differences), cmocka_unit_test(test_golden),
        cmocka_unit_test(test_shapes),      cmocka_unit_test(test_windows),
        cmocka_unit_test(test_long),        cmocka_unit_test(test_company),
        cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

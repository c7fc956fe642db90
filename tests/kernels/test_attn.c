// SPDX-License-Identifier: Apache-2.0
// Paged attention through the device's operations, for every ISA level: against a plain softmax in
// double precision, and bit by bit between ways to serve the same sequences.
#include "attn_world.h"
#include "base/mem.h"
#include "tests/support/tolerances.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

static double bf16(float x) {
    return (double)kn_bf16_to_f32(kn_f32_to_bf16(x));
}

// Plain softmax attention of one query, in double.
struct model {
    bool round_q; // q * scale * log2(e) to bf16, as the level avx512bf16 says it does
    double out[256];
    // What rounding to bf16 may change. With weights w * (1 + e) that are used and added up alike,
    // a value changes by the sum of w e (v - out), over 1 + the mean of e.
    double most[256];  // at most so much: weights are rounded, and q if it is not rounded above
    double sigma[256]; // root of the sum of w^2 (v - out)^2
};

static const double bf16_half_ulp = 0x1p-8; // relative, at most

// Scores of positions lo..pos -> p, and the sum of the terms' magnitudes -> mag.
static void model_scores(const struct attn_world *w, const struct attn_sequence *s, int32_t pos,
                         int32_t head, int32_t lo, bool round_q, double *p, double *mag) {
    int32_t d = w->s.dim, kvh = head / (w->s.heads / w->s.kv_heads);
    size_t row = (size_t)attn_width(&w->s);
    const float *src = s->qkv + (size_t)pos * row + head * d;
    float scale = (float)(1.0 / sqrt((double)d));
    double q[256];
    for (int32_t i = 0; i < d; i++)
        q[i] = round_q ? bf16(src[i] * (scale * 1.44269504f)) / 1.4426950408889634
                       : (double)src[i] / sqrt((double)d);
    for (int32_t j = lo; j <= pos; j++) {
        const float *k = s->qkv + (size_t)j * row + (w->s.heads + kvh) * d;
        p[j] = mag[j] = 0;
        for (int32_t i = 0; i < d; i++) {
            p[j] += q[i] * bf16(k[i]);
            mag[j] += fabs(q[i] * bf16(k[i]));
        }
    }
}

static void model_run(const struct attn_world *w, const struct attn_sequence *s, int32_t pos,
                      int32_t head, struct model *m) {
    int32_t d = w->s.dim, kvh = head / (w->s.heads / w->s.kv_heads);
    int32_t lo = w->s.window && pos >= w->s.window ? pos - w->s.window + 1 : 0;
    size_t row = (size_t)attn_width(&w->s);
    double *p = mem_alloc((size_t)(pos + 1) * 2 * sizeof *p), *mag = p + pos + 1;
    assert_non_null(p);
    model_scores(w, s, pos, head, lo, m->round_q, p, mag);
    double top = -(double)INFINITY, sum = 0, worst = 0;
    for (int32_t j = lo; j <= pos; j++)
        top = p[j] > top ? p[j] : top;
    for (int32_t j = lo; j <= pos; j++) {
        sum += p[j] = exp(p[j] - top);
        // relative error of a weight: of its score, of 2^x, of rounding it
        double score = (m->round_q ? 1e-6 : bf16_half_ulp) * mag[j];
        mag[j] = exp(score + 1e-5) * (1 + bf16_half_ulp) - 1;
        worst = mag[j] > worst ? mag[j] : worst;
    }
    const float *v = s->qkv + (w->s.heads + w->s.kv_heads + kvh) * d;
    for (int32_t i = 0; i < d; i++) {
        double out = 0, most = 0, square = 0;
        for (int32_t j = lo; j <= pos; j++)
            out += p[j] / sum * bf16(v[(size_t)j * row + (size_t)i]);
        for (int32_t j = lo; j <= pos; j++) {
            double x = p[j] / sum * fabs(bf16(v[(size_t)j * row + (size_t)i]) - out);
            most += x * mag[j];
            square += x * x;
        }
        m->out[i] = out;
        m->most[i] = most / (1 - worst);
        m->sigma[i] = sqrt(square);
    }
    mem_free(p);
}

// Errors of a level that rounds, over their expected spread.
struct errors {
    double square;
    size_t n;
};

// One row and head against the model. rtol and atol: what f32 may be off.
static void check_row(const struct attn_world *w, const char *isa, int seq, int32_t pos,
                      int32_t head, const float *got, double rtol, double atol, struct errors *e) {
    struct model m = {false};
    model_run(w, &w->seq[seq], pos, head, &m);
    if (!kn_test_attn_rounds(isa)) {
        kn_assert_close(got, m.out, (size_t)w->s.dim, rtol, atol);
        return;
    }
    for (int round_q = 0; round_q < 2; round_q++) {
        if (round_q) {
            m.round_q = true;
            model_run(w, &w->seq[seq], pos, head, &m);
        }
        for (int32_t i = 0; i < w->s.dim; i++) {
            double f32 = rtol * fabs(m.out[i]) + atol;
            assert_true(fabs((double)got[i] - m.out[i]) <= m.most[i] + f32);
            if (round_q) {
                double x = ((double)got[i] - m.out[i]) / (m.sigma[i] * bf16_half_ulp + f32);
                e->square += x * x;
                e->n++;
            }
        }
    }
}

// A rounding error is spread evenly over half a step in either direction; where all places within a
// binade are equally likely, the root of its mean square is 0.425 of the largest relative error.
static void check_errors(const char *isa, const struct errors *e) {
    if (kn_test_attn_rounds(isa))
        assert_true(sqrt(e->square / (double)e->n) < 0.5);
}

static void check_reference(const struct attn_world *w, const char *isa) {
    struct errors e = {0};
    for (int i = 0; i < w->n; i++)
        for (int32_t pos = 0; pos < w->seq[i].len; pos += pos < 80 || pos > 1020 ? 1 + pos / 60 : 9)
            for (int32_t h = 0; h < w->s.heads; h++)
                check_row(w, isa, i, pos, h,
                          w->seq[i].out + (size_t)pos * (size_t)attn_out_width(&w->s) +
                              h * w->s.dim,
                          TOL_ATTN_RTOL, TOL_ATTN_ATOL, &e);
    check_errors(isa, &e);
}

// Each Q8 block says what its 32 values say, to half a step.
static void check_q8(const struct attn_world *w) {
    size_t q8 = attn_q8_bytes(&w->s);
    for (int i = 0; q8 && i < w->n; i++)
        for (int32_t pos = 0; pos < w->seq[i].len; pos++) {
            const float *x = w->seq[i].out + (size_t)pos * (size_t)attn_out_width(&w->s);
            for (int32_t b = 0; b < attn_out_width(&w->s) / 32; b++) {
                struct cpu_q8_block blk;
                memcpy(&blk, w->seq[i].q8 + (size_t)pos * q8 + (size_t)b * sizeof blk, sizeof blk);
                for (int32_t j = 0; j < 32; j++)
                    assert_true(fabsf(blk.d * (float)kn_test_q8_steps(&blk, j) - x[b * 32 + j]) <=
                                0.51f * blk.d);
            }
        }
}

static void keep(const struct attn_world *w, float **out, uint8_t **q8) {
    for (int i = 0; i < w->n; i++) {
        size_t n = (size_t)w->seq[i].len;
        out[i] = mem_dup(w->seq[i].out, n * (size_t)attn_out_width(&w->s) * sizeof(float));
        q8[i] = mem_dup(w->seq[i].q8, n * attn_q8_bytes(&w->s) + 1);
        assert_true(out[i] && q8[i]);
    }
}

static void check_same(const struct attn_world *w, float *const *out, uint8_t *const *q8) {
    for (int i = 0; i < w->n; i++) {
        size_t n = (size_t)w->seq[i].len;
        kn_assert_same(w->seq[i].out, out[i], n * (size_t)attn_out_width(&w->s) * sizeof(float));
        kn_assert_same(w->seq[i].q8, q8[i], n * attn_q8_bytes(&w->s));
    }
}

static void check_shape(const char *isa, struct attn_shape s, const int32_t *lens) {
    struct attn_world w;
    float *out[ATTN_SEQS];
    uint8_t *q8[ATTN_SEQS];
    attn_world_init(&w, s, lens, (uint64_t)s.dim * 1000 + (uint64_t)s.heads);
    attn_serve_alone(&w, isa, 1);
    check_reference(&w, isa);
    check_q8(&w);
    keep(&w, out, q8);
    static const int threads[] = {1, 2, 4};
    for (int t = 0; t < 3; t++) {
        attn_serve_mixed(&w, isa, threads[t], 77 + (uint64_t)t);
        check_same(&w, out, q8);
    }
    attn_serve_alone(&w, isa, 4);
    check_same(&w, out, q8);
    for (int i = 0; i < w.n; i++) {
        mem_free(out[i]);
        mem_free(q8[i]);
    }
    attn_world_free(&w);
}

static void shapes(const char *isa) {
    static const struct attn_shape all[] = {
        {9, 3, 64, 0},  {4, 4, 80, 0},   {8, 1, 128, 0}, {6, 2, 96, 0}, {2, 1, 256, 0},
        {3, 1, 72, 0},  {14, 2, 64, 0},  {50, 1, 16, 0}, {4, 2, 8, 0},  {1, 1, 24, 0},
        {9, 3, 64, 40}, {4, 1, 80, 100}, {2, 2, 64, 1},
    };
    static const int32_t lens[] = {1, 17, 64, 131, 0};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        check_shape(isa, all[i], lens);
}
static void test_shapes(void **state) {
    (void)state;
    kn_for_levels(shapes);
}

// Longer than a span, so that spans are added; with few units also span by span on all threads.
static void spans(const char *isa) {
    static const int32_t lens[] = {2200, 30, 1025, 0};
    check_shape(isa, (struct attn_shape){3, 1, 64, 0}, lens);
    check_shape(isa, (struct attn_shape){2, 1, 40, 1100}, lens);
}
static void test_spans(void **state) {
    (void)state;
    kn_for_levels(spans);
}

// A key or value that a query does not see must not reach it, even if it is NaN: neither a later
// one nor one that has left the window, whichever half of a pair of positions it is.
static void unseen(const char *isa) {
    enum { LEN = 100, WINDOW = 21 };
    static const int32_t lens[] = {LEN, 0};
    for (int32_t bad = 68; bad < 72; bad++)
        for (int32_t window = 0; window <= WINDOW; window += WINDOW) {
            struct attn_world w;
            attn_world_init(&w, (struct attn_shape){4, 2, 64, window}, lens, 5);
            attn_serve_alone(&w, isa, 1);
            size_t row = (size_t)attn_out_width(&w.s);
            float *before = mem_dup(w.seq[0].out, LEN * row * sizeof(float));
            assert_non_null(before);
            for (int32_t i = w.s.heads * w.s.dim; i < attn_width(&w.s); i++)
                w.seq[0].qkv[bad * attn_width(&w.s) + i] = NAN;
            attn_serve_alone(&w, isa, 2);
            int32_t after = window ? bad + window : LEN;
            for (int32_t pos = 0; pos < LEN; pos++) {
                const float *out = w.seq[0].out + (size_t)pos * row;
                if (pos < bad || pos >= after)
                    kn_assert_same(out, before + (size_t)pos * row, row * sizeof(float));
                for (size_t i = 0; pos >= bad && pos < after && i < row; i++)
                    assert_true(isnan(out[i]));
            }
            mem_free(before);
            attn_world_free(&w);
        }
}
static void test_unseen(void **state) {
    (void)state;
    kn_for_levels(unseen);
}

// Blocks that have left the window may be gone from the table; a missing one inside is an error.
static void missing_block(const char *isa) {
    static const int32_t lens[] = {200, 0};
    struct attn_world w;
    struct attn_device d;
    attn_world_init(&w, (struct attn_shape){2, 1, 64, 50}, lens, 6);
    attn_serve_alone(&w, isa, 1);
    float *before = mem_dup(w.seq[0].out, 200 * 128 * sizeof(float));
    assert_non_null(before);
    attn_device_open(&d, &w, isa, 2, 0);
    int seq = 0;
    int32_t pos = 0, n = 199;
    attn_step(&d, &w, 1, &seq, &pos, &n);
    int32_t whole[13];
    memcpy(whole, d.blocks, sizeof whole);
    for (int i = 0; i < 9; i++) // position 199 sees 150..199
        d.blocks[i] = -1;
    pos = 199;
    n = 1;
    attn_step(&d, &w, 1, &seq, &pos, &n);
    kn_assert_same(w.seq[0].out, before, 200 * 128 * sizeof(float));
    memcpy(d.blocks, whole, sizeof whole);
    d.blocks[10] = -1;
    struct kn_test_seq ts = {199, 1, d.blocks, 13};
    struct kn_batch b;
    kn_test_batch(&d.f, &ts, 1, NULL, &b);
    kn_addr buf = kn_test_alloc(&d.f, 4096);
    struct kn_attn p = {.batch = &b,
                        .q = buf,
                        .ldq = 128,
                        .pool = d.pool,
                        .shape = d.kv,
                        .layer = ATTN_LAYER,
                        .heads = 2,
                        .window = 50,
                        .scale = 1,
                        .out = buf + 2048,
                        .ldout = 128};
    assert_int_equal(d.f.ops->attn(d.f.q, &p), ERR_OK);
    assert_int_equal(d.f.ops->queue_wait(d.f.q, NULL), ERR_INTERNAL);
    assert_int_equal(d.f.ops->queue_wait(d.f.q, NULL), ERR_OK);
    attn_device_close(&d);
    mem_free(before);
    attn_world_free(&w);
}
static void test_missing_block(void **state) {
    (void)state;
    kn_for_levels(missing_block);
}

// The last token of a context of 131072, one thread and four.
static void long_context(const char *isa) {
    enum { LEN = 131072, CHUNK = 8192 };
    static const int32_t lens[] = {LEN, 0};
    struct attn_world w;
    attn_world_init(&w, (struct attn_shape){2, 1, 8, 0}, lens, 7);
    float out[2][16];
    for (int t = 0; t < 2; t++) {
        struct attn_device d;
        attn_device_open(&d, &w, isa, t ? 4 : 1, 9);
        const struct kn_ops *ops = d.f.ops;
        struct kn_test_seq ts = {0, CHUNK, d.blocks, LEN / KN_KV_BLOCK};
        size_t row = (size_t)attn_width(&w.s);
        kn_addr qkv = kn_test_alloc(&d.f, CHUNK * row * sizeof(float));
        kn_addr table = kn_test_alloc(&d.f, CHUNK * 8 * sizeof(float));
        kn_addr res = kn_test_alloc(&d.f, CHUNK * 16 * sizeof(float));
        for (; ts.pos < LEN; ts.pos += CHUNK) {
            struct kn_batch b;
            kn_test_batch(&d.f, &ts, 1, NULL, &b);
            ops->upload(d.f.q, qkv, w.seq[0].qkv + (size_t)ts.pos * row,
                        CHUNK * row * sizeof(float));
            struct kn_rope_table rt = {
                .batch = &b, .inv_freq = d.freq, .scale = 1.0f, .dim = 8, .table = table};
            struct kn_rope_kv rk = {.batch = &b,
                                    .qkv = qkv,
                                    .ldqkv = (int64_t)row,
                                    .table = table,
                                    .pool = d.pool,
                                    .shape = d.kv,
                                    .layer = ATTN_LAYER,
                                    .heads = 2};
            ops->rope_table(d.f.q, &rt);
            ops->rope_kv(d.f.q, &rk);
            kn_test_wait(&d.f);
        }
        struct kn_batch b;
        ts.pos = LEN - 1;
        ts.n = 1;
        kn_test_batch(&d.f, &ts, 1, NULL, &b);
        struct kn_attn p = {.batch = &b,
                            .q = qkv + (CHUNK - 1) * row * sizeof(float),
                            .ldq = (int64_t)row,
                            .pool = d.pool,
                            .shape = d.kv,
                            .layer = ATTN_LAYER,
                            .heads = 2,
                            .scale = (float)(1 / sqrt(8.0)),
                            .out = res,
                            .ldout = 16};
        ops->attn(d.f.q, &p);
        ops->download(d.f.q, out[t], res, sizeof out[t]);
        kn_test_wait(&d.f);
        attn_device_close(&d);
    }
    kn_assert_same(out[0], out[1], sizeof out[0]);
    struct errors e = {0};
    for (int32_t h = 0; h < 2; h++)
        check_row(&w, isa, 0, LEN - 1, h, out[0] + h * 8, TOL_ATTN_LONG_RTOL, TOL_ATTN_LONG_ATOL,
                  &e);
    attn_world_free(&w);
}
static void test_long_context(void **state) {
    (void)state;
    kn_for_levels(long_context);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shapes),       cmocka_unit_test(test_spans),
        cmocka_unit_test(test_unseen),       cmocka_unit_test(test_missing_block),
        cmocka_unit_test(test_long_context),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

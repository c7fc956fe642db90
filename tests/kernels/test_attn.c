// SPDX-License-Identifier: Apache-2.0
// Paged attention through the device's operations, for every ISA level: against a plain softmax in
// double precision, and bit by bit between ways to serve the same sequences.
#include "base/mem.h"
#include "kn_fixture.h"
#include "tests/support/tolerances.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { LAYERS = 2, LAYER = 1, MAX_SEQS = 5 };

struct shape {
    int32_t heads, kv_heads, dim, window;
};

struct sequence {
    int32_t len;
    float *qkv; // [len][(heads + 2 kv_heads) * dim]
    float *out; // [len][heads * dim], what the last run made
    uint8_t *q8;
};

struct world {
    struct shape s;
    int n;
    struct sequence seq[MAX_SEQS];
};

static int32_t width(const struct shape *s) {
    return (s->heads + 2 * s->kv_heads) * s->dim;
}
static int32_t out_width(const struct shape *s) {
    return s->heads * s->dim;
}
static size_t q8_bytes(const struct shape *s) {
    return out_width(s) % 32 ? 0 : (size_t)out_width(s) / 32 * sizeof(struct cpu_q8_block);
}

static void world_init(struct world *w, struct shape s, const int32_t *lens, uint64_t seed) {
    struct kn_rng rng = {seed};
    memset(w, 0, sizeof *w);
    w->s = s;
    for (; lens[w->n]; w->n++) {
        struct sequence *q = &w->seq[w->n];
        q->len = lens[w->n];
        size_t n = (size_t)q->len * (size_t)width(&s);
        q->qkv = mem_alloc(n * sizeof(float));
        q->out = mem_alloc((size_t)q->len * (size_t)out_width(&s) * sizeof(float));
        q->q8 = mem_alloc((size_t)q->len * q8_bytes(&s) + 1);
        assert_true(q->qkv && q->out && q->q8);
        kn_rng_fill(&rng, q->qkv, n, 1.0f);
    }
}

static void world_free(struct world *w) {
    for (int i = 0; i < w->n; i++) {
        mem_free(w->seq[i].qkv);
        mem_free(w->seq[i].out);
        mem_free(w->seq[i].q8);
    }
}

struct device {
    struct kn_fixture f;
    struct kn_kv_shape kv;
    kn_addr pool, freq;
    int32_t *blocks; // block table of all sequences, one after the other
    int32_t n_blocks;
};

static int32_t blocks_for(int32_t len) {
    return (len + KN_KV_BLOCK - 1) / KN_KV_BLOCK;
}

// A pool full of NaN and a table of blocks in random order (in order for seed 0).
static void device_open(struct device *d, const struct world *w, const char *isa, int threads,
                        uint64_t seed) {
    kn_fixture_open(&d->f, isa, threads);
    d->kv = (struct kn_kv_shape){LAYERS, w->s.kv_heads, w->s.dim};
    d->n_blocks = 0;
    for (int i = 0; i < w->n; i++)
        d->n_blocks += blocks_for(w->seq[i].len);
    size_t bytes = (size_t)d->n_blocks * d->f.ops->kv_block_bytes(&d->kv);
    assert_true(bytes > 0);
    d->pool = kn_test_alloc(&d->f, bytes);
    void *junk = mem_alloc(bytes);
    d->blocks = mem_calloc((size_t)d->n_blocks, sizeof *d->blocks);
    assert_true(junk && d->blocks);
    memset(junk, 0xff, bytes);
    assert_int_equal(d->f.ops->upload(d->f.q, d->pool, junk, bytes), ERR_OK);
    mem_free(junk);
    float *freq = mem_calloc((size_t)w->s.dim / 2, sizeof *freq); // 0: no rotation
    assert_non_null(freq);
    d->freq = kn_test_put(&d->f, freq, (size_t)w->s.dim / 2 * sizeof *freq);
    mem_free(freq);
    struct kn_rng rng = {seed};
    for (int32_t i = 0; i < d->n_blocks; i++) {
        int32_t j = seed ? kn_rng_below(&rng, i + 1) : i;
        d->blocks[i] = d->blocks[j];
        d->blocks[j] = i;
    }
}

static void device_close(struct device *d) {
    mem_free(d->blocks);
    kn_fixture_close(&d->f);
}

static const int32_t *seq_blocks(const struct device *d, const struct world *w, int seq) {
    const int32_t *b = d->blocks;
    for (int i = 0; i < seq; i++)
        b += blocks_for(w->seq[i].len);
    return b;
}

// One step: seqs[i] of the world gets n[i] tokens from position pos[i]. Results go to the world.
// Attention is asked for `slice` tokens at a time, or for all at once.
static void step_sliced(struct device *d, struct world *w, int count, const int *seqs,
                        const int32_t *pos, const int32_t *n, int32_t slice) {
    const struct kn_ops *ops = d->f.ops;
    int mark = d->f.n_mem;
    struct kn_test_seq ts[MAX_SEQS];
    size_t rows = 0, row = (size_t)width(&w->s), orow = (size_t)out_width(&w->s);
    for (int i = 0; i < count; i++) {
        ts[i] = (struct kn_test_seq){pos[i], n[i], seq_blocks(d, w, seqs[i]),
                                     blocks_for(w->seq[seqs[i]].len)};
        rows += (size_t)n[i];
    }
    struct kn_batch batch;
    kn_test_batch(&d->f, ts, count, NULL, &batch);
    kn_addr qkv = kn_test_alloc(&d->f, rows * row * sizeof(float));
    kn_addr out = kn_test_alloc(&d->f, rows * orow * sizeof(float));
    kn_addr table = kn_test_alloc(&d->f, rows * (size_t)w->s.dim * sizeof(float));
    size_t q8 = q8_bytes(&w->s);
    kn_addr outq = q8 ? kn_test_alloc(&d->f, rows * q8) : 0;
    size_t at = 0;
    for (int i = 0; i < count; i++) {
        size_t len = (size_t)n[i];
        ops->upload(d->f.q, qkv + at * row * sizeof(float),
                    w->seq[seqs[i]].qkv + (size_t)pos[i] * row, len * row * sizeof(float));
        at += len;
    }
    struct kn_rope_table rt = {
        .batch = &batch, .inv_freq = d->freq, .scale = 1.0f, .dim = w->s.dim, .table = table};
    struct kn_rope_kv rk = {.batch = &batch,
                            .qkv = qkv,
                            .ldqkv = (int64_t)row,
                            .table = table,
                            .pool = d->pool,
                            .shape = d->kv,
                            .layer = LAYER,
                            .heads = w->s.heads};
    struct kn_attn at_p = {.batch = &batch,
                           .q = qkv,
                           .ldq = (int64_t)row,
                           .pool = d->pool,
                           .shape = d->kv,
                           .layer = LAYER,
                           .heads = w->s.heads,
                           .window = w->s.window,
                           .scale = (float)(1.0 / sqrt((double)w->s.dim)),
                           .out = out,
                           .ldout = (int64_t)orow,
                           .outq = outq};
    assert_int_equal(ops->rope_table(d->f.q, &rt), ERR_OK);
    assert_int_equal(ops->rope_kv(d->f.q, &rk), ERR_OK);
    if (slice == 0)
        assert_int_equal(ops->attn(d->f.q, &at_p), ERR_OK);
    for (int32_t i = 0; slice && i < (int32_t)rows; i = at_p.token_end) {
        at_p.token_begin = i;
        at_p.token_end = i + slice < (int32_t)rows ? i + slice : (int32_t)rows;
        assert_int_equal(ops->attn(d->f.q, &at_p), ERR_OK);
    }
    at = 0;
    for (int i = 0; i < count; i++) {
        struct sequence *s = &w->seq[seqs[i]];
        size_t len = (size_t)n[i];
        ops->download(d->f.q, s->out + (size_t)pos[i] * orow, out + at * orow * sizeof(float),
                      len * orow * sizeof(float));
        if (q8)
            ops->download(d->f.q, s->q8 + (size_t)pos[i] * q8, outq + at * q8, len * q8);
        at += len;
    }
    kn_test_wait(&d->f);
    while (d->f.n_mem > mark) {
        d->f.n_mem--;
        ops->free(d->f.d, d->f.mem[d->f.n_mem].a, d->f.mem[d->f.n_mem].bytes);
    }
}

static void step(struct device *d, struct world *w, int count, const int *seqs, const int32_t *pos,
                 const int32_t *n) {
    step_sliced(d, w, count, seqs, pos, n, 0);
}

// Each sequence alone, its whole length in one chunk.
static void serve_alone(struct world *w, const char *isa, int threads) {
    struct device d;
    device_open(&d, w, isa, threads, 0);
    for (int i = 0; i < w->n; i++) {
        int32_t zero = 0;
        step(&d, w, 1, &i, &zero, &w->seq[i].len);
    }
    device_close(&d);
}

// All sequences mixed, chunks of random length, blocks in random order.
static void serve_mixed(struct world *w, const char *isa, int threads, uint64_t seed) {
    struct device d;
    struct kn_rng rng = {seed};
    device_open(&d, w, isa, threads, seed);
    int32_t done[MAX_SEQS] = {0};
    for (bool more = true; more;) {
        int count = 0, seqs[MAX_SEQS];
        int32_t pos[MAX_SEQS], n[MAX_SEQS];
        more = false;
        for (int i = 0; i < w->n; i++) {
            int32_t left = w->seq[i].len - done[i];
            if (left == 0)
                continue;
            more = true;
            if (kn_rng_below(&rng, 4) == 0)
                continue;
            static const int32_t most[] = {1, 7, 70, 700};
            int32_t want = 1 + kn_rng_below(&rng, most[kn_rng_below(&rng, 4)]);
            seqs[count] = i;
            pos[count] = done[i];
            n[count] = want < left ? want : left;
            done[i] += n[count++];
        }
        if (count)
            step_sliced(&d, w, count, seqs, pos, n, kn_rng_below(&rng, 3) ? 0 : 23);
    }
    device_close(&d);
}

static double bf16(float x) {
    return (double)kn_bf16_to_f32(kn_f32_to_bf16(x));
}

// Plain softmax attention of one query, in double.
struct model {
    bool round_q; // q * scale * log2(e) to bf16, as the level avx512bf16 says it does
    double out[256];
    // What rounding to bf16 may change. With weights w * (1 + e) that are used and added up alike, a
    // value changes by the sum of w e (v - out), over 1 + the mean of e.
    double most[256];  // at most so much: weights are rounded, and q if it is not rounded above
    double sigma[256]; // root of the sum of w^2 (v - out)^2
};

static const double bf16_half_ulp = 0x1p-8; // relative, at most

// Scores of positions lo..pos -> p, and the sum of the terms' magnitudes -> mag.
static void model_scores(const struct world *w, const struct sequence *s, int32_t pos, int32_t head,
                         int32_t lo, bool round_q, double *p, double *mag) {
    int32_t d = w->s.dim, kvh = head / (w->s.heads / w->s.kv_heads);
    size_t row = (size_t)width(&w->s);
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

static void model_run(const struct world *w, const struct sequence *s, int32_t pos, int32_t head,
                      struct model *m) {
    int32_t d = w->s.dim, kvh = head / (w->s.heads / w->s.kv_heads);
    int32_t lo = w->s.window && pos >= w->s.window ? pos - w->s.window + 1 : 0;
    size_t row = (size_t)width(&w->s);
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
static void check_row(const struct world *w, const char *isa, int seq, int32_t pos, int32_t head,
                      const float *got, double rtol, double atol, struct errors *e) {
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

static void check_reference(const struct world *w, const char *isa) {
    struct errors e = {0};
    for (int i = 0; i < w->n; i++)
        for (int32_t pos = 0; pos < w->seq[i].len; pos += pos < 80 || pos > 1020 ? 1 + pos / 60 : 9)
            for (int32_t h = 0; h < w->s.heads; h++)
                check_row(w, isa, i, pos, h,
                          w->seq[i].out + (size_t)pos * (size_t)out_width(&w->s) + h * w->s.dim,
                          TOL_ATTN_RTOL, TOL_ATTN_ATOL, &e);
    check_errors(isa, &e);
}

// Each Q8 block says what its 32 values say, to half a step.
static void check_q8(const struct world *w) {
    size_t q8 = q8_bytes(&w->s);
    for (int i = 0; q8 && i < w->n; i++)
        for (int32_t pos = 0; pos < w->seq[i].len; pos++) {
            const float *x = w->seq[i].out + (size_t)pos * (size_t)out_width(&w->s);
            for (int32_t b = 0; b < out_width(&w->s) / 32; b++) {
                struct cpu_q8_block blk;
                memcpy(&blk, w->seq[i].q8 + (size_t)pos * q8 + (size_t)b * sizeof blk, sizeof blk);
                for (int32_t j = 0; j < 32; j++)
                    assert_true(fabsf(blk.d * (float)kn_test_q8_steps(&blk, j) - x[b * 32 + j]) <=
                                0.51f * blk.d);
            }
        }
}

static void keep(const struct world *w, float **out, uint8_t **q8) {
    for (int i = 0; i < w->n; i++) {
        size_t n = (size_t)w->seq[i].len;
        out[i] = mem_dup(w->seq[i].out, n * (size_t)out_width(&w->s) * sizeof(float));
        q8[i] = mem_dup(w->seq[i].q8, n * q8_bytes(&w->s) + 1);
        assert_true(out[i] && q8[i]);
    }
}

static void check_same(const struct world *w, float *const *out, uint8_t *const *q8) {
    for (int i = 0; i < w->n; i++) {
        size_t n = (size_t)w->seq[i].len;
        kn_assert_same(w->seq[i].out, out[i], n * (size_t)out_width(&w->s) * sizeof(float));
        kn_assert_same(w->seq[i].q8, q8[i], n * q8_bytes(&w->s));
    }
}

static void check_shape(const char *isa, struct shape s, const int32_t *lens) {
    struct world w;
    float *out[MAX_SEQS];
    uint8_t *q8[MAX_SEQS];
    world_init(&w, s, lens, (uint64_t)s.dim * 1000 + (uint64_t)s.heads);
    serve_alone(&w, isa, 1);
    check_reference(&w, isa);
    check_q8(&w);
    keep(&w, out, q8);
    static const int threads[] = {1, 2, 4};
    for (int t = 0; t < 3; t++) {
        serve_mixed(&w, isa, threads[t], 77 + (uint64_t)t);
        check_same(&w, out, q8);
    }
    serve_alone(&w, isa, 4);
    check_same(&w, out, q8);
    for (int i = 0; i < w.n; i++) {
        mem_free(out[i]);
        mem_free(q8[i]);
    }
    world_free(&w);
}

static void shapes(const char *isa) {
    static const struct shape all[] = {
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
    check_shape(isa, (struct shape){3, 1, 64, 0}, lens);
    check_shape(isa, (struct shape){2, 1, 40, 1100}, lens);
}
static void test_spans(void **state) {
    (void)state;
    kn_for_levels(spans);
}

// A key or value that a query does not see must not reach it, even if it is NaN: neither a later one
// nor one that has left the window, whichever half of a pair of positions it is.
static void unseen(const char *isa) {
    enum { LEN = 100, WINDOW = 21 };
    static const int32_t lens[] = {LEN, 0};
    for (int32_t bad = 68; bad < 72; bad++)
        for (int32_t window = 0; window <= WINDOW; window += WINDOW) {
            struct world w;
            world_init(&w, (struct shape){4, 2, 64, window}, lens, 5);
            serve_alone(&w, isa, 1);
            size_t row = (size_t)out_width(&w.s);
            float *before = mem_dup(w.seq[0].out, LEN * row * sizeof(float));
            assert_non_null(before);
            for (int32_t i = w.s.heads * w.s.dim; i < width(&w.s); i++)
                w.seq[0].qkv[bad * width(&w.s) + i] = NAN;
            serve_alone(&w, isa, 2);
            int32_t after = window ? bad + window : LEN;
            for (int32_t pos = 0; pos < LEN; pos++) {
                const float *out = w.seq[0].out + (size_t)pos * row;
                if (pos < bad || pos >= after)
                    kn_assert_same(out, before + (size_t)pos * row, row * sizeof(float));
                for (size_t i = 0; pos >= bad && pos < after && i < row; i++)
                    assert_true(isnan(out[i]));
            }
            mem_free(before);
            world_free(&w);
        }
}
static void test_unseen(void **state) {
    (void)state;
    kn_for_levels(unseen);
}

// Blocks that have left the window may be gone from the table; a missing one inside is an error.
static void missing_block(const char *isa) {
    static const int32_t lens[] = {200, 0};
    struct world w;
    struct device d;
    world_init(&w, (struct shape){2, 1, 64, 50}, lens, 6);
    serve_alone(&w, isa, 1);
    float *before = mem_dup(w.seq[0].out, 200 * 128 * sizeof(float));
    assert_non_null(before);
    device_open(&d, &w, isa, 2, 0);
    int seq = 0;
    int32_t pos = 0, n = 199;
    step(&d, &w, 1, &seq, &pos, &n);
    int32_t whole[13];
    memcpy(whole, d.blocks, sizeof whole);
    for (int i = 0; i < 9; i++) // position 199 sees 150..199
        d.blocks[i] = -1;
    pos = 199;
    n = 1;
    step(&d, &w, 1, &seq, &pos, &n);
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
                        .layer = LAYER,
                        .heads = 2,
                        .window = 50,
                        .scale = 1,
                        .out = buf + 2048,
                        .ldout = 128};
    assert_int_equal(d.f.ops->attn(d.f.q, &p), ERR_OK);
    assert_int_equal(d.f.ops->queue_wait(d.f.q, NULL), ERR_INTERNAL);
    assert_int_equal(d.f.ops->queue_wait(d.f.q, NULL), ERR_OK);
    device_close(&d);
    mem_free(before);
    world_free(&w);
}
static void test_missing_block(void **state) {
    (void)state;
    kn_for_levels(missing_block);
}

// The last token of a context of 131072, one thread and four.
static void long_context(const char *isa) {
    enum { LEN = 131072, CHUNK = 8192 };
    static const int32_t lens[] = {LEN, 0};
    struct world w;
    world_init(&w, (struct shape){2, 1, 8, 0}, lens, 7);
    float out[2][16];
    for (int t = 0; t < 2; t++) {
        struct device d;
        device_open(&d, &w, isa, t ? 4 : 1, 9);
        const struct kn_ops *ops = d.f.ops;
        struct kn_test_seq ts = {0, CHUNK, d.blocks, LEN / KN_KV_BLOCK};
        size_t row = (size_t)width(&w.s);
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
                                    .layer = LAYER,
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
                            .layer = LAYER,
                            .heads = 2,
                            .scale = (float)(1 / sqrt(8.0)),
                            .out = res,
                            .ldout = 16};
        ops->attn(d.f.q, &p);
        ops->download(d.f.q, out[t], res, sizeof out[t]);
        kn_test_wait(&d.f);
        device_close(&d);
    }
    kn_assert_same(out[0], out[1], sizeof out[0]);
    struct errors e = {0};
    for (int32_t h = 0; h < 2; h++)
        check_row(&w, isa, 0, LEN - 1, h, out[0] + h * 8, TOL_ATTN_LONG_RTOL, TOL_ATTN_LONG_ATOL,
                  &e);
    world_free(&w);
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

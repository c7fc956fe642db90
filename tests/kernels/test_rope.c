// SPDX-License-Identifier: Apache-2.0
// RoPE, for every ISA level: against transformers (tests/golden/rope), the angles against the C
// library, and what lands in the KV cache through attention over one position.
#include "base/mem.h"
#include "kn_fixture.h"
#include "tests/support/tolerances.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_DIM = 256, MAX_TOKENS = 8, MAX_HEADS = 4 };

static void for_levels(void (*fn)(const char *isa)) {
    for (const char *const *isa = kn_test_levels(); *isa; isa++)
        fn(*isa);
}

struct golden {
    int32_t dim, heads, kv_heads, n;
    bool normalised;
    float freq[MAX_DIM / 2], q_norm[MAX_DIM], k_norm[MAX_DIM];
    int32_t pos[MAX_TOKENS];
    float q[MAX_TOKENS][MAX_HEADS * MAX_DIM], k[MAX_TOKENS][MAX_HEADS * MAX_DIM];
    double q_out[MAX_TOKENS][MAX_HEADS * MAX_DIM], k_out[MAX_TOKENS][MAX_HEADS * MAX_DIM];
};

static double number(FILE *in) {
    double v;
    assert_int_equal(fscanf(in, "%lf", &v), 1);
    return v;
}
static void floats(FILE *in, float *x, int32_t n) {
    for (int32_t i = 0; i < n; i++)
        x[i] = (float)number(in);
}
static void doubles(FILE *in, double *x, int32_t n) {
    for (int32_t i = 0; i < n; i++)
        x[i] = number(in);
}

static bool read_case(FILE *in, struct golden *g) {
    if (fscanf(in, "%d", &g->dim) != 1)
        return false;
    g->heads = (int32_t)number(in);
    g->kv_heads = (int32_t)number(in);
    g->normalised = number(in) > 0;
    g->n = (int32_t)number(in);
    assert_true(g->dim <= MAX_DIM && g->heads <= MAX_HEADS && g->n <= MAX_TOKENS);
    floats(in, g->freq, g->dim / 2);
    if (g->normalised) {
        floats(in, g->q_norm, g->dim);
        floats(in, g->k_norm, g->dim);
    }
    for (int32_t i = 0; i < g->n; i++) {
        g->pos[i] = (int32_t)number(in);
        floats(in, g->q[i], g->heads * g->dim);
        floats(in, g->k[i], g->kv_heads * g->dim);
        doubles(in, g->q_out[i], g->heads * g->dim);
        doubles(in, g->k_out[i], g->kv_heads * g->dim);
    }
    return true;
}

// One token, rotated as the only one of its batch. Its block holds nothing but NaN before.
struct rotated {
    float q[MAX_HEADS * MAX_DIM], q_in[MAX_HEADS * MAX_DIM];
    float table[MAX_DIM];
    float v_out[MAX_HEADS * MAX_DIM]; // attention over its own position: v as the cache has it
};

static void rotate(struct kn_fixture *f, const struct golden *g, int32_t token,
                   struct rotated *out) {
    struct kn_kv_shape shape = {3, g->kv_heads, g->dim};
    int32_t width = (g->heads + 2 * g->kv_heads) * g->dim, out_width = g->heads * g->dim;
    int32_t n_blocks = g->pos[token] / KN_KV_BLOCK + 1, *blocks = mem_calloc((size_t)n_blocks, 4);
    float *row = mem_calloc((size_t)width, sizeof *row);
    size_t pool_bytes = 2 * f->ops->kv_block_bytes(&shape);
    void *junk = mem_alloc(pool_bytes);
    assert_true(blocks && row && junk);
    memset(junk, 0xff, pool_bytes);
    blocks[n_blocks - 1] = 1;
    memcpy(row, g->q[token], (size_t)out_width * sizeof *row);
    memcpy(row + out_width, g->k[token], (size_t)(g->kv_heads * g->dim) * sizeof *row);
    for (int32_t i = 0; i < g->kv_heads * g->dim; i++)
        row[out_width + g->kv_heads * g->dim + i] = (float)i * 0.37f - 3;
    struct kn_batch batch;
    struct kn_test_seq seq = {g->pos[token], 1, blocks, n_blocks};
    kn_test_batch(f, &seq, 1, NULL, &batch);
    struct kn_rope_table rt = {
        .batch = &batch,
        .inv_freq = kn_test_put(f, g->freq, (size_t)g->dim / 2 * sizeof(float)),
        .scale = 1.0f,
        .dim = g->dim,
        .table = kn_test_alloc(f, (size_t)g->dim * sizeof(float)),
    };
    struct kn_rope_kv rk = {
        .batch = &batch,
        .qkv = kn_test_put(f, row, (size_t)width * sizeof *row),
        .ldqkv = width,
        .table = rt.table,
        .q_norm = g->normalised ? kn_test_put(f, g->q_norm, (size_t)g->dim * sizeof(float)) : 0,
        .k_norm = g->normalised ? kn_test_put(f, g->k_norm, (size_t)g->dim * sizeof(float)) : 0,
        .eps = 1e-6f,
        .pool = kn_test_put(f, junk, pool_bytes),
        .shape = shape,
        .layer = 2,
        .heads = g->heads,
        .q_in = kn_test_alloc(f, (size_t)out_width * sizeof(float)),
    };
    struct kn_attn at = {
        .batch = &batch,
        .q = rk.qkv,
        .ldq = width,
        .pool = rk.pool,
        .shape = shape,
        .layer = 2,
        .heads = g->heads,
        .window = 1,
        .scale = 1.0f,
        .out = kn_test_alloc(f, (size_t)out_width * sizeof(float)),
        .ldout = out_width,
    };
    assert_int_equal(f->ops->rope_table(f->q, &rt), ERR_OK);
    assert_int_equal(f->ops->rope_kv(f->q, &rk), ERR_OK);
    assert_int_equal(f->ops->attn(f->q, &at), ERR_OK);
    f->ops->download(f->q, out->q, rk.qkv, (size_t)out_width * sizeof(float));
    f->ops->download(f->q, out->q_in, rk.q_in, (size_t)out_width * sizeof(float));
    f->ops->download(f->q, out->table, rt.table, (size_t)g->dim * sizeof(float));
    f->ops->download(f->q, out->v_out, at.out, (size_t)out_width * sizeof(float));
    kn_test_wait(f);
    kn_test_free_all(f);
    mem_free(blocks);
    mem_free(row);
    mem_free(junk);
}

static void check_token(const struct golden *g, int32_t token, const struct rotated *r) {
    kn_assert_same(r->q_in, g->q[token], (size_t)(g->heads * g->dim) * sizeof(float));
    kn_assert_close(r->q, g->q_out[token], (size_t)(g->heads * g->dim), TOL_ROPE, TOL_ROPE);
    int32_t half = g->dim / 2;
    for (int32_t i = 0; i < half; i++) {
        double a = (double)g->pos[token] * (double)g->freq[i];
        assert_true(fabs((double)r->table[i] - cos(a)) < 3.1e-8);
        assert_true(fabs((double)r->table[half + i] - sin(a)) < 3.1e-8);
    }
    for (int32_t h = 0; h < g->heads; h++)
        for (int32_t i = 0; i < g->dim; i++) {
            int32_t at = h / (g->heads / g->kv_heads) * g->dim + i;
            float v = kn_bf16_to_f32(kn_f32_to_bf16((float)at * 0.37f - 3));
            assert_true(r->v_out[h * g->dim + i] == v);
        }
}

static void golden_cases(const char *isa) {
    struct kn_fixture f;
    kn_fixture_open(&f, isa, 1);
    FILE *in = fopen("tests/golden/rope/rope.txt", "r");
    struct golden *g = mem_zalloc(sizeof *g);
    struct rotated *r = mem_zalloc(sizeof *r);
    assert_true(in && g && r);
    int n = 0;
    for (; read_case(in, g); n++)
        for (int32_t t = 0; t < g->n; t++) {
            rotate(&f, g, t, r);
            check_token(g, t, r);
        }
    assert_int_equal(n, 4);
    mem_free(g);
    mem_free(r);
    fclose(in);
    kn_fixture_close(&f);
}
static void test_golden(void **state) {
    (void)state;
    for_levels(golden_cases);
}

static double bf16(double x) {
    return (double)kn_bf16_to_f32(kn_f32_to_bf16((float)x));
}

// Keys: two positions, equal values but for v, so that the weights show q . k of each.
static void keys(const char *isa) {
    struct kn_fixture f;
    bool rounds = kn_test_attn_rounds(isa);
    kn_fixture_open(&f, isa, 1);
    FILE *in = fopen("tests/golden/rope/rope.txt", "r");
    struct golden *g = mem_zalloc(sizeof *g);
    assert_true(in && g);
    while (read_case(in, g)) {
        int32_t d = g->dim, heads = g->heads, kvh = g->kv_heads, width = (heads + 2 * kvh) * d;
        struct kn_kv_shape shape = {1, kvh, d};
        // Token 0 of the batch gets golden token 0's q and k, token 1 golden token 1's; they are
        // two positions of one sequence only for attention, which knows nothing of rotation.
        float *qkv = mem_calloc((size_t)(2 * width), sizeof *qkv), *out = mem_calloc(2048, 4);
        assert_true(qkv && out);
        for (int32_t t = 0; t < 2; t++) {
            memcpy(qkv + t * width, g->q[t], (size_t)(heads * d) * sizeof *qkv);
            memcpy(qkv + t * width + heads * d, g->k[t], (size_t)(kvh * d) * sizeof *qkv);
            for (int32_t h = 0; h < kvh; h++)
                qkv[t * width + (heads + kvh + h) * d + t] = 1; // v: weight t in dimension t
        }
        int32_t block = 0;
        struct kn_test_seq seq = {0, 2, &block, 1};
        struct kn_batch batch;
        kn_test_batch(&f, &seq, 1, NULL, &batch);
        struct kn_rope_table rt = {
            .batch = &batch,
            .inv_freq = kn_test_put(&f, g->freq, (size_t)d / 2 * sizeof(float)),
            .scale = 1.0f,
            .dim = d,
            .table = kn_test_alloc(&f, (size_t)(2 * d) * sizeof(float)),
        };
        struct kn_batch real = batch; // rotated at the golden positions
        real.pos = kn_test_put(&f, g->pos, 2 * sizeof(int32_t));
        rt.batch = &real;
        struct kn_rope_kv rk = {
            .batch = &batch,
            .qkv = kn_test_put(&f, qkv, (size_t)(2 * width) * sizeof *qkv),
            .ldqkv = width,
            .table = rt.table,
            .q_norm = g->normalised ? kn_test_put(&f, g->q_norm, (size_t)d * sizeof(float)) : 0,
            .k_norm = g->normalised ? kn_test_put(&f, g->k_norm, (size_t)d * sizeof(float)) : 0,
            .eps = 1e-6f,
            .pool = kn_test_alloc(&f, f.ops->kv_block_bytes(&shape)),
            .shape = shape,
            .heads = heads,
        };
        float scale = 0.05f;
        struct kn_attn at = {
            .batch = &batch,
            .q = rk.qkv,
            .ldq = width,
            .pool = rk.pool,
            .shape = shape,
            .heads = heads,
            .scale = scale,
            .out = kn_test_alloc(&f, (size_t)(2 * heads * d) * sizeof(float)),
            .ldout = heads * d,
        };
        f.ops->rope_table(f.q, &rt);
        f.ops->rope_kv(f.q, &rk);
        f.ops->attn(f.q, &at);
        f.ops->download(f.q, out, at.out, (size_t)(2 * heads * d) * sizeof(float));
        kn_test_wait(&f);
        for (int32_t h = 0; h < heads; h++) {
            double dot[2] = {0, 0}; // in powers of two
            for (int32_t t = 0; t < 2; t++)
                for (int32_t i = 0; i < d; i++) {
                    double q = g->q_out[1][h * d + i] * (double)scale * 1.4426950408889634;
                    dot[t] += (rounds ? bf16(q) : q) * bf16(g->k_out[t][h / (heads / kvh) * d + i]);
                }
            double w = 1 / (1 + exp2(dot[0] - dot[1]));
            double got = (double)out[(heads + h) * d + 1];
            // A value at the edge between two of bf16 may go either way. The smaller weight may be
            // rounded by 1/256 of it.
            double tolerance = 2e-4 + (rounds ? w * (1 - w) / 256 : 0);
            assert_true(fabs(got - w) < tolerance);
        }
        kn_test_free_all(&f);
        mem_free(qkv);
        mem_free(out);
    }
    mem_free(g);
    fclose(in);
    kn_fixture_close(&f);
}
static void test_keys(void **state) {
    (void)state;
    for_levels(keys);
}

// Rows of a batch, bit by bit the same alone and together, for any threads; scale is a factor.
static void invariance(const char *isa) {
    enum { N = 150, D = 40, HEADS = 3, WIDTH = 5 * D };
    struct kn_rng rng = {9};
    float *x = mem_alloc(N * WIDTH * sizeof *x), *y = mem_alloc(N * WIDTH * sizeof *y);
    float *first = mem_alloc(N * WIDTH * sizeof *x), table[2][N * D], freq[D / 2];
    int32_t blocks[N / KN_KV_BLOCK + 1];
    assert_true(x && y && first);
    kn_rng_fill(&rng, x, N * WIDTH, 1.0f);
    for (int i = 0; i < D / 2; i++)
        freq[i] = (float)pow(10000, -2.0 * i / D);
    for (int i = 0; i <= N / KN_KV_BLOCK; i++)
        blocks[i] = N / KN_KV_BLOCK - i;
    struct kn_kv_shape shape = {1, 1, D};
    static const int threads[] = {1, 2, 4};
    static const int32_t chunks[] = {1, N, 37};
    for (int t = 0; t < 3; t++) {
        struct kn_fixture f;
        kn_fixture_open(&f, isa, threads[t]);
        kn_addr fr = kn_test_put(&f, freq, sizeof freq);
        kn_addr pool = kn_test_alloc(&f, 10 * f.ops->kv_block_bytes(&shape));
        int mark = f.n_mem;
        for (int32_t at = 0; at < N; at += chunks[t]) {
            int32_t n = N - at < chunks[t] ? N - at : chunks[t];
            struct kn_test_seq seq = {at, n, blocks, N / KN_KV_BLOCK + 1};
            struct kn_batch b;
            kn_test_batch(&f, &seq, 1, NULL, &b);
            size_t bytes = (size_t)(n * WIDTH) * sizeof *x;
            kn_addr tab = kn_test_alloc(&f, (size_t)(n * D) * sizeof(float));
            kn_addr qkv = kn_test_put(&f, x + at * WIDTH, bytes);
            struct kn_rope_table rt = {
                .batch = &b, .inv_freq = fr, .scale = 1.5f, .dim = D, .table = tab};
            struct kn_rope_kv rk = {.batch = &b,
                                    .qkv = qkv,
                                    .ldqkv = WIDTH,
                                    .table = tab,
                                    .pool = pool,
                                    .shape = shape,
                                    .heads = HEADS};
            f.ops->rope_table(f.q, &rt);
            f.ops->rope_kv(f.q, &rk);
            f.ops->download(f.q, y + at * WIDTH, qkv, bytes);
            f.ops->download(f.q, table[t > 0] + at * D, tab, (size_t)(n * D) * sizeof(float));
            kn_test_wait(&f);
            while (f.n_mem > mark) {
                f.n_mem--;
                f.ops->free(f.d, f.mem[f.n_mem].a, f.mem[f.n_mem].bytes);
            }
        }
        if (t == 0)
            memcpy(first, y, N * WIDTH * sizeof *x);
        kn_assert_same(y, first, N * WIDTH * sizeof *x);
        kn_assert_same(table[t > 0], table[0], sizeof table[0]);
        kn_fixture_close(&f);
    }
    assert_true(table[0][0] == 1.5f);
    for (int i = 0; i < N; i++) // v and k stay in the buffer as they were
        kn_assert_same(first + i * WIDTH + HEADS * D, x + i * WIDTH + HEADS * D, 2 * D * sizeof *x);
    mem_free(x);
    mem_free(y);
    mem_free(first);
}
static void test_invariance(void **state) {
    (void)state;
    for_levels(invariance);
}

// Positions and blocks that do not exist fail the step, and nothing else.
static void refusals(const char *isa) {
    struct kn_fixture f;
    kn_fixture_open(&f, isa, 2);
    struct kn_kv_shape shape = {1, 1, 8};
    for (int i = 0; i < 3; i++) {
        int32_t block = i == 0 ? -1 : 0;
        struct kn_test_seq seq = {i == 1 ? 16 : 0, 1, &block, 1};
        struct kn_batch b;
        kn_test_batch(&f, &seq, 1, NULL, &b);
        struct kn_rope_kv rk = {.batch = &b,
                                .qkv = kn_test_alloc(&f, 24 * sizeof(float)),
                                .ldqkv = 24,
                                .table = kn_test_alloc(&f, 8 * sizeof(float)),
                                .pool = kn_test_alloc(&f, f.ops->kv_block_bytes(&shape)),
                                .shape = shape,
                                .heads = 1};
        assert_int_equal(f.ops->rope_kv(f.q, &rk), ERR_OK);
        assert_int_equal(f.ops->queue_wait(f.q, NULL), i < 2 ? ERR_INTERNAL : ERR_OK);
    }
    kn_fixture_close(&f);
}
static void test_refusals(void **state) {
    (void)state;
    for_levels(refusals);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_golden),
        cmocka_unit_test(test_keys),
        cmocka_unit_test(test_invariance),
        cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

// SPDX-License-Identifier: Apache-2.0
// Sampling, for every ISA level: exact choices, log-probabilities and distributions of the golden
// cases (tests/golden/sample), large rows against a plain sampler here, and the noise itself.
#include "base/mem.h"
#include "kernels/philox.h"
#include "kn_fixture.h"
#include "tests/support/tolerances.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_VOCAB = 1024, ROWS = 512, BATCHES = 40 };

// Random123's known answers for philox4x32-10.
static void test_philox(void **state) {
    (void)state;
    static const uint32_t kat[3][10] = {
        {0, 0, 0, 0, 0, 0, 0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8},
        {~0u, ~0u, ~0u, ~0u, ~0u, ~0u, 0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd},
        {0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344, 0xa4093822, 0x299f31d0, 0xd16cfe09,
         0x94fdcceb, 0x5001e420, 0x24126ea1},
    };
    for (int i = 0; i < 3; i++) {
        uint32_t out[4];
        philox4x32(kat[i], kat[i] + 4, out);
        assert_memory_equal(out, kat[i] + 6, sizeof out);
    }
}

static struct kn_sample_row plain_row(void) {
    return (struct kn_sample_row){
        .temperature = 1.0f, .top_p = 1.0f, .repetition = 1.0f, .target = -1, .n_logprobs = -1};
}

// Samples `rows` rows of logits[rows][vocab] with params[rows].
static void sample(struct kn_fixture *f, const float *logits, int32_t rows, int32_t vocab,
                   const struct kn_sample_row *params, struct kn_sample_out *out) {
    int mark = f->n_mem;
    struct kn_sample p = {
        .logits = kn_test_put(f, logits, (size_t)rows * (size_t)vocab * sizeof *logits),
        .ld = vocab,
        .rows = rows,
        .vocab = vocab,
        .params = kn_test_put(f, params, (size_t)rows * sizeof *params),
        .out = kn_test_alloc(f, (size_t)rows * sizeof *out),
        .tokens = kn_test_alloc(f, (size_t)rows * sizeof(int32_t)),
    };
    int32_t *tokens = mem_calloc((size_t)rows, sizeof *tokens);
    assert_non_null(tokens);
    assert_int_equal(f->ops->sample(f->q, &p), ERR_OK);
    f->ops->download(f->q, out, p.out, (size_t)rows * sizeof *out);
    f->ops->download(f->q, tokens, p.tokens, (size_t)rows * sizeof *tokens);
    kn_test_wait(f);
    for (int32_t i = 0; i < rows; i++)
        assert_int_equal(tokens[i], out[i].token);
    mem_free(tokens);
    while (f->n_mem > mark) {
        f->n_mem--;
        f->ops->free(f->d, f->mem[f->n_mem].a, f->mem[f->n_mem].bytes);
    }
}

// ---- golden cases

struct golden {
    int32_t vocab, greedy, n;
    struct kn_sample_row row;
    float logits[MAX_VOCAB];
    struct kn_token_bias bias[64];
    struct kn_token_count counts[64];
    uint32_t mask[MAX_VOCAB / 32];
    double p[MAX_VOCAB]; // by id; 0: cannot be drawn
    double logprob[MAX_VOCAB];
};

static double number(FILE *in) {
    char word[64];
    assert_int_equal(fscanf(in, "%63s", word), 1);
    return strtod(word, NULL);
}

static bool read_case(FILE *in, struct golden *g) {
    char word[64];
    if (fscanf(in, "%63s", word) != 1)
        return false;
    assert_string_equal(word, "case");
    memset(g, 0, sizeof *g);
    g->row = plain_row();
    g->vocab = (int32_t)number(in);
    g->row.n_bias = (int32_t)number(in);
    g->row.n_counts = (int32_t)number(in);
    bool masked = number(in) > 0;
    assert_true(g->vocab <= MAX_VOCAB && g->row.n_bias <= 64 && g->row.n_counts <= 64);
    float *const f[] = {&g->row.temperature, NULL,
                        &g->row.top_p,       &g->row.min_p,
                        &g->row.presence,    &g->row.frequency,
                        &g->row.repetition};
    for (int i = 0; i < 7; i++) {
        double v = number(in);
        if (f[i])
            *f[i] = (float)v;
        else
            g->row.top_k = (int32_t)v;
    }
    for (int32_t i = 0; i < g->vocab; i++)
        g->logits[i] = (float)number(in);
    for (int32_t i = 0; i < g->row.n_bias; i++) {
        g->bias[i].id = (int32_t)number(in);
        g->bias[i].bias = (float)number(in);
    }
    for (int32_t i = 0; i < g->row.n_counts; i++) {
        g->counts[i].id = (int32_t)number(in);
        g->counts[i].out = (int32_t)number(in);
        g->counts[i].prompt = (int32_t)number(in);
    }
    if (masked)
        for (int32_t id; (id = (int32_t)number(in)) >= 0;)
            g->mask[id / 32] |= 1u << (id % 32);
    // The addresses of device memory that is host memory; only the CPU backend takes these.
    g->row.mask = masked ? (kn_addr)g->mask : 0;
    g->row.bias = (kn_addr)g->bias;
    g->row.counts = (kn_addr)g->counts;
    g->greedy = (int32_t)number(in);
    g->n = (int32_t)number(in);
    for (int32_t i = 0; i < g->n; i++) {
        int32_t id = (int32_t)number(in);
        g->p[id] = number(in);
    }
    for (int32_t i = 0; i < g->vocab; i++)
        g->logprob[i] = number(in);
    return true;
}

static void check_logprobs(const struct golden *g, const struct kn_sample_out *o, int32_t n_top) {
    assert_true(fabs((double)o->logprob - g->logprob[o->token]) < TOL_LOGPROB);
    int32_t rank = 1;
    for (int32_t i = 0; i < g->vocab; i++)
        rank += g->logits[i] > g->logits[o->token];
    assert_int_equal(o->rank, rank);
    assert_int_equal(o->n_top, n_top);
    for (int32_t j = 0; j < n_top; j++) { // how many stand before it in the order
        int32_t id = o->top_id[j], before = 0;
        for (int32_t i = 0; i < g->vocab; i++)
            before += g->logits[i] > g->logits[id] || (g->logits[i] == g->logits[id] && i < id);
        assert_int_equal(before, j);
        assert_true(fabs((double)o->top_logprob[j] - g->logprob[id]) < TOL_LOGPROB);
    }
}

// Greedy and scored tokens with their log-probabilities.
static void check_exact(struct kn_fixture *f, const struct golden *g) {
    struct kn_sample_row row[MAX_VOCAB + 1];
    struct kn_sample_out out[MAX_VOCAB + 1];
    int32_t step = 1 + g->vocab / 60, n = 0;
    float *x = mem_calloc((size_t)g->vocab * 64, sizeof *x);
    assert_non_null(x);
    for (; n < 60 && n * step < g->vocab; n++) {
        memcpy(x + n * g->vocab, g->logits, (size_t)g->vocab * sizeof *x);
        row[n] = g->row;
        row[n].target = n * step;
        row[n].n_logprobs = n % 21;
    }
    for (int i = 0; i < 2; i++, n++) {
        memcpy(x + n * g->vocab, g->logits, (size_t)g->vocab * sizeof *x);
        row[n] = g->row;
        row[n].temperature = 0;
        row[n].n_logprobs = i ? 5 : -1;
    }
    sample(f, x, n, g->vocab, row, out);
    for (int32_t i = 0; i < n; i++) {
        assert_int_equal(out[i].flags, 0);
        assert_int_equal(out[i].token, i < n - 2 ? i * step : g->greedy);
        if (i != n - 2)
            check_logprobs(g, &out[i], row[i].n_logprobs);
    }
    mem_free(x);
}

// Draws many times: only tokens that can be drawn, as often as they should (chi-square).
static void check_draws(struct kn_fixture *f, const struct golden *g) {
    float *x = mem_calloc((size_t)g->vocab * ROWS, sizeof *x);
    struct kn_sample_row *row = mem_calloc(ROWS, sizeof *row);
    struct kn_sample_out *out = mem_calloc(ROWS, sizeof *out);
    assert_true(x && row && out);
    int32_t seen[MAX_VOCAB] = {0};
    for (int b = 0; b < BATCHES; b++) {
        for (int i = 0; i < ROWS; i++) {
            memcpy(x + i * g->vocab, g->logits, (size_t)g->vocab * sizeof *x);
            row[i] = g->row;
            row[i].seed = 0x123456789abcdefu + (uint64_t)(b % 2) * 0x100000000u;
            row[i].choice = (uint32_t)(i % 3);
            row[i].position = (uint32_t)(b * ROWS + i);
            row[i].n_logprobs = i == 0 ? 3 : -1;
        }
        sample(f, x, ROWS, g->vocab, row, out);
        check_logprobs(g, &out[0], 3);
        for (int i = 0; i < ROWS; i++) {
            assert_int_equal(out[i].flags, 0);
            assert_in_range(out[i].token, 0, g->vocab - 1);
            assert_true(g->p[out[i].token] > 0);
            seen[out[i].token]++;
        }
    }
    double chi2 = 0, rest = 0, total = (double)ROWS * BATCHES;
    int32_t rest_seen = 0, cells = 0;
    for (int32_t i = 0; i < g->vocab; i++) {
        double want = g->p[i] * total;
        if (want >= 10) {
            chi2 += (seen[i] - want) * (seen[i] - want) / want;
            cells++;
        } else {
            rest += want;
            rest_seen += seen[i];
        }
    }
    if (rest >= 10) {
        chi2 += (rest_seen - rest) * (rest_seen - rest) / rest;
        cells++;
    }
    // Wilson and Hilferty: the cube root is nearly normal; 5 sigma.
    double k = cells - 1;
    if (k > 0) {
        double z = (cbrt(chi2 / k) - (1 - 2 / (9 * k))) / sqrt(2 / (9 * k));
        if (z > 5)
            fail_msg("chi-square %g with %g degrees of freedom", chi2, k);
    }
    mem_free(x);
    mem_free(row);
    mem_free(out);
}

static void golden_cases(const char *isa) {
    struct kn_fixture f;
    kn_fixture_open(&f, isa, 2);
    FILE *in = fopen("tests/golden/sample/cases.txt", "r");
    assert_non_null(in);
    struct golden *g = mem_alloc(sizeof *g);
    assert_non_null(g);
    int n = 0;
    for (; read_case(in, g); n++) {
        check_exact(&f, g);
        check_draws(&f, g);
    }
    assert_int_equal(n, 29);
    mem_free(g);
    fclose(in);
    kn_fixture_close(&f);
}
static void test_golden(void **state) {
    (void)state;
    kn_for_levels(golden_cases);
}

// ---- large rows against a plain sampler

static const float *sort_by;
static int by_logit(const void *a, const void *b) {
    int32_t i = *(const int32_t *)a, j = *(const int32_t *)b;
    if (sort_by[i] != sort_by[j])
        return sort_by[i] > sort_by[j] ? -1 : 1;
    return i < j ? -1 : 1;
}
static int by_id(const void *a, const void *b) {
    int32_t i = *(const int32_t *)a, j = *(const int32_t *)b;
    return i < j ? -1 : i > j;
}

// Sorts everything, adds everything up in double. *near: the choice hangs on rounding.
static int32_t plain_sample(const float *x, int32_t n, const struct kn_sample_row *p,
                            int32_t *order, double *w, bool *near) {
    for (int32_t i = 0; i < n; i++)
        order[i] = i;
    sort_by = x;
    qsort(order, (size_t)n, sizeof *order, by_logit);
    double top = (double)x[order[0]], total = 0;
    int32_t keep = p->top_k > 0 && p->top_k < n ? p->top_k : n;
    *near = false;
    for (int32_t i = 0; i < keep; i++)
        total += exp(((double)x[order[i]] - top) / (double)p->temperature);
    if (p->top_p < 1) {
        double before = 0, goal = (double)p->top_p * total;
        int32_t i = 0;
        for (; i < keep && (i == 0 || before < goal); i++)
            before += exp(((double)x[order[i]] - top) / (double)p->temperature);
        keep = i;
    }
    for (int32_t i = 0; p->min_p > 0 && i < keep; i++) {
        double e = exp(((double)x[order[i]] - top) / (double)p->temperature);
        if (e < (double)p->min_p)
            keep = i;
    }
    qsort(order, (size_t)keep, sizeof *order, by_id);
    total = 0;
    for (int32_t i = 0; i < keep; i++)
        total += w[i] = exp(((double)x[order[i]] - top) / (double)p->temperature);
    const uint32_t counter[4] = {p->position, p->choice, 0, 0};
    const uint32_t key[2] = {(uint32_t)p->seed, (uint32_t)(p->seed >> 32)};
    double goal = philox_uniform(counter, key) * total, at = 0;
    for (int32_t i = 0; i < keep; i++) {
        at += w[i];
        *near |= fabs(at - goal) < 3e-5 * total;
        if (at > goal)
            return order[i];
    }
    return order[keep - 1];
}

static void fill_row(struct kn_rng *rng, float *x, int32_t n, int kind) {
    for (int32_t i = 0; i < n; i++)
        x[i] = kind == 0   ? 3 * kn_rng_normal(rng)
               : kind == 1 ? 0.01f * kn_rng_normal(rng)                         // flat
               : kind == 2 ? (float)kn_rng_below(rng, 7)                        // many ties
                           : -200 + kn_rng_normal(rng) - (float)(40 * (i % 2)); // far from 0
    if (kind == 3)
        x[n - 1] = -190;
}

static void large_rows(const char *isa) {
    static const int32_t vocabs[] = {128256, 49152, 8209};
    static const struct {
        float t;
        int32_t top_k;
        float top_p, min_p;
    } with[] = {
        {1, 0, 1, 0},         {0.6f, 0, 0.9f, 0},
        {1.5f, 0, 0.999f, 0}, {1, 50, 1, 0},
        {1, 30000, 1, 0},     {1, 20000, 0.7f, 0},
        {0.8f, 0, 1, 0.05f},  {1.2f, 40, 0.95f, 0.01f},
        {2, 0, 0.5f, 1e-6f},  {0.3f, 100000, 0.99f, 0.1f},
    };
    enum { N = sizeof with / sizeof *with, KINDS = 4 };
    struct kn_fixture f;
    kn_fixture_open(&f, isa, 2);
    struct kn_rng rng = {42};
    int far = 0;
    for (size_t v = 0; v < sizeof vocabs / sizeof *vocabs; v++) {
        int32_t n = vocabs[v], *order = mem_calloc((size_t)n, sizeof *order);
        float *x = mem_calloc((size_t)n * N * KINDS, sizeof *x);
        double *w = mem_calloc((size_t)n, sizeof *w);
        assert_true(order && x && w);
        struct kn_sample_row row[N * KINDS];
        struct kn_sample_out out[N * KINDS];
        for (int i = 0; i < N * KINDS; i++) {
            fill_row(&rng, x + (size_t)i * (size_t)n, n, i % KINDS);
            row[i] = plain_row();
            row[i].temperature = with[i / KINDS].t;
            row[i].top_k = with[i / KINDS].top_k;
            row[i].top_p = with[i / KINDS].top_p;
            row[i].min_p = with[i / KINDS].min_p;
            row[i].seed = kn_rng_u64(&rng);
            row[i].position = (uint32_t)i;
        }
        sample(&f, x, N * KINDS, n, row, out);
        for (int i = 0; i < N * KINDS; i++) {
            bool near;
            int32_t want = plain_sample(x + (size_t)i * (size_t)n, n, &row[i], order, w, &near);
            assert_int_equal(out[i].flags, 0);
            if (near)
                continue;
            far++;
            if (out[i].token != want)
                fail_msg("vocabulary %d, row %d: token %d, not %d", n, i, out[i].token, want);
        }
        mem_free(order);
        mem_free(x);
        mem_free(w);
    }
    assert_true(far > 60); // most rows do not hang on rounding
    kn_fixture_close(&f);
}
static void test_large_rows(void **state) {
    (void)state;
    kn_for_levels(large_rows);
}

// ---- what cannot be sampled

static void refusals(const char *isa) {
    enum { V = 77, N = 10 };
    struct kn_fixture f;
    kn_fixture_open(&f, isa, 1);
    float x[N][V];
    struct kn_sample_row row[N];
    struct kn_sample_out out[N];
    uint32_t none[3] = {0};
    struct kn_token_bias ban[V], inf = {5, INFINITY}, nan_bias = {5, NAN},
                                 outside[2] = {{-1, 1}, {V, 1}};
    for (int i = 0; i < N; i++) {
        for (int j = 0; j < V; j++)
            x[i][j] = (float)j * 0.01f;
        row[i] = plain_row();
        row[i].temperature = i % 2 ? 1.0f : 0.0f;
    }
    for (int j = 0; j < V; j++)
        ban[j] = (struct kn_token_bias){j, -INFINITY};
    x[0][76] = NAN;
    x[1][3] = INFINITY;
    x[2][64] = -INFINITY;
    row[2].target = 5;
    row[3].mask = (kn_addr)none;
    row[4].bias = (kn_addr)ban;
    row[4].n_bias = V;
    row[5].bias = (kn_addr)&inf;
    row[5].n_bias = 1;
    row[6].bias = (kn_addr)&nan_bias;
    row[6].n_bias = 1;
    row[7].target = V;
    row[8].bias = (kn_addr)outside;
    row[8].n_bias = 2;
    row[9].bias = (kn_addr)ban; // all but one banned
    row[9].n_bias = V - 1;
    row[9].n_logprobs = 2;
    sample(&f, &x[0][0], N, V, row, out);
    static const uint32_t flags[N] = {1, 1, 1, 2, 2, 1, 1, 2, 0, 0};
    for (int i = 0; i < N; i++) {
        assert_int_equal(out[i].flags, flags[i]);
        if (flags[i])
            assert_int_equal(out[i].token, -1);
        else
            assert_int_equal(out[i].token, V - 1);
    }
    assert_int_equal(out[9].rank, 1); // bans do not touch log-probabilities
    assert_int_equal(out[9].n_top, 2);
    assert_int_equal(out[9].top_id[1], V - 2);
    double sum = 0;
    for (int j = 0; j < V; j++)
        sum += exp((double)((float)j * 0.01f - 0.76f));
    assert_true(fabs((double)out[9].logprob + log(sum)) < TOL_LOGPROB);
    kn_fixture_close(&f);
}
static void test_refusals(void **state) {
    (void)state;
    kn_for_levels(refusals);
}

// Token 0 starts at `logit` and token 1 stands at `other`: which one is larger after the penalties?
struct penalty {
    float logit, other;
    int32_t out, prompt;
    float repetition, frequency, presence;
    int32_t wins;
};

static void penalties(const char *isa) {
    static const struct penalty all[] = {
        {1, 0.51f, 1, 0, 2, 0, 0, 1},      {1, 0.49f, 1, 0, 2, 0, 0, 0},      // divided above 0
        {-0.5f, -0.99f, 0, 1, 2, 0, 0, 1}, {-0.5f, -1.01f, 0, 1, 2, 0, 0, 0}, // else multiplied
        {3, 1.51f, 3, 0, 1, 0.5f, 0, 1},   {3, 1.49f, 3, 0, 1, 0.5f, 0, 0},   // per time
        {3, 2.24f, 3, 1, 1, 0, 0.75f, 0},  {3, 2.26f, 3, 1, 1, 0, 0.75f, 1},  // once
        {3, 2.9f, 0, 1, 1, 5, 5, 0},       {3, 2.9f, 0, 0, 9, 5, 5, 0},       // not for the prompt
        {4, 0.49f, 1, 0, 2, 0.5f, 1, 0},   {4, 0.51f, 1, 0, 2, 0.5f, 1, 1},   // all, in order
    };
    enum { N = sizeof all / sizeof *all, V = 40 };
    struct kn_fixture f;
    kn_fixture_open(&f, isa, 1);
    float x[N][V];
    struct kn_sample_row row[N];
    struct kn_sample_out out[N];
    struct kn_token_count count[N];
    for (int i = 0; i < N; i++) {
        for (int j = 0; j < V; j++)
            x[i][j] = j == 0 ? all[i].logit : j == 1 ? all[i].other : -30;
        count[i] = (struct kn_token_count){0, all[i].out, all[i].prompt};
        row[i] = plain_row();
        row[i].temperature = 0;
        row[i].counts = (kn_addr)&count[i];
        row[i].n_counts = 1;
        row[i].repetition = all[i].repetition;
        row[i].frequency = all[i].frequency;
        row[i].presence = all[i].presence;
    }
    sample(&f, &x[0][0], N, V, row, out);
    for (int i = 0; i < N; i++)
        assert_int_equal(out[i].token, all[i].wins);
    // Minus zero is zero: the lower id wins the tie.
    for (int j = 0; j < V; j++)
        x[0][j] = j % 2 ? 0.0f : -0.0f;
    for (int i = 0; i < 2; i++) {
        row[0] = plain_row();
        row[0].top_k = i;
        row[0].temperature = (float)i;
        sample(&f, &x[0][0], 1, V, row, out);
        assert_int_equal(out[0].token, 0);
    }
    kn_fixture_close(&f);
}
static void test_penalties(void **state) {
    (void)state;
    kn_for_levels(penalties);
}

// A row's result is the same alone and among others, whatever the threads.
static void invariance(const char *isa) {
    enum { V = 5000, N = 24 };
    struct kn_rng rng = {3};
    float *x = mem_calloc(V * N, sizeof *x);
    assert_non_null(x);
    struct kn_sample_row row[N];
    struct kn_sample_out one[N], all[N];
    kn_rng_fill(&rng, x, V * N, 2.0f);
    for (int i = 0; i < N; i++) {
        row[i] = plain_row();
        row[i].temperature = 0.5f * (float)(i % 4);
        row[i].top_p = i % 3 ? 0.9f : 1.0f;
        row[i].top_k = i % 5 ? 0 : 20;
        row[i].n_logprobs = i % 7;
        row[i].seed = (uint64_t)i * 77;
    }
    static const int threads[] = {1, 2, 4};
    for (int t = 0; t < 3; t++) {
        struct kn_fixture f;
        kn_fixture_open(&f, isa, threads[t]);
        if (t == 0)
            for (int i = 0; i < N; i++)
                sample(&f, x + i * V, 1, V, &row[i], &one[i]);
        sample(&f, x, N, V, row, all);
        kn_assert_same(all, one, sizeof all);
        kn_fixture_close(&f);
    }
    mem_free(x);
}
static void test_invariance(void **state) {
    (void)state;
    kn_for_levels(invariance);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_philox),     cmocka_unit_test(test_golden),
        cmocka_unit_test(test_large_rows), cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_penalties),  cmocka_unit_test(test_invariance),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

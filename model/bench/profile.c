// SPDX-License-Identifier: Apache-2.0
#include "model/bench/profile.h"
#include "base/clock.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

// Operations with parameters of their own, and what they are called here.
#define OPERATIONS(X)                                                                              \
    X(embed, "embed")                                                                              \
    X(rmsnorm, "rmsnorm")                                                                          \
    X(quantize, "quantize")                                                                        \
    X(swiglu, "swiglu")                                                                            \
    X(rope_table, "rope table")                                                                    \
    X(rope_kv, "rope + kv")                                                                        \
    X(attn, "attention")                                                                           \
    X(gather, "gather")                                                                            \
    X(sample, "sample")                                                                            \
    X(lora, "adapter")                                                                             \
    X(lora_shrink_back, "adapter u, du")                                                           \
    X(lora_grad, "adapter grad")                                                                   \
    X(lora_dx, "adapter dx")                                                                       \
    X(xent, "loss")                                                                                \
    X(rmsnorm_back, "norm back")                                                                   \
    X(swiglu_back, "swiglu back")                                                                  \
    X(attn_back, "attn back")                                                                      \
    X(rope_back, "rope back")                                                                      \
    X(scatter, "scatter")                                                                          \
    X(grad_add, "add to sums")                                                                     \
    X(sumsq, "norm of sums")                                                                       \
    X(adamw, "AdamW")

#define KIND(name, text) OP_##name,
enum kind { OPERATIONS(KIND) OP_UPLOAD, OP_DOWNLOAD, OP_GEMM, OP_GEMM_T, KINDS };
#define NAME(name, text) [OP_##name] = text,
static const char *const names[KINDS] = {OPERATIONS(NAME)[OP_UPLOAD] = "upload", [OP_DOWNLOAD] =
                                                                                     "download"};

enum {
    MAX_WEIGHTS = 2048,
    STEPS = 8, // of an octave of durations
    BUCKETS = 24 * STEPS,
    FIRST_NS = 250, // the first bucket's end
};

struct account {
    int64_t ns, calls, most_ns;
    int32_t durations[BUCKETS];
};

// The program has one thread and one queue.
static struct {
    const struct kn_ops *inner;
    struct kn_ops ops;
    struct account kinds[KINDS];
    const struct kn_weight *weights[MAX_WEIGHTS];
    struct account products[MAX_WEIGHTS], products_t[MAX_WEIGHTS];
    int n_weights;
    int64_t start;
} p;

static void begin(void) {
    p.start = clock_mono_ns(&clock_system);
}

static void count(struct account *a, int64_t ns) {
    double step = ns > FIRST_NS ? STEPS * log2((double)ns / FIRST_NS) : 0;
    a->ns += ns;
    a->calls++;
    a->most_ns = ns > a->most_ns ? ns : a->most_ns;
    a->durations[step < BUCKETS - 1 ? (int)step : BUCKETS - 1]++;
}

static enum err end(enum kind k, struct kn_queue *q, enum err e) {
    if (!e)
        e = p.inner->queue_wait(q, NULL);
    count(&p.kinds[k], clock_mono_ns(&clock_system) - p.start);
    return e;
}

#define PASS(name, text)                                                                           \
    static enum err do_##name(struct kn_queue *q, const struct kn_##name *a) {                     \
        begin();                                                                                   \
        return end(OP_##name, q, p.inner->name(q, a));                                             \
    }
OPERATIONS(PASS)

static enum err end_product(enum kind k, struct account *products, const struct kn_weight *w,
                            struct kn_queue *q, enum err e) {
    int i = 0;
    while (i < p.n_weights && p.weights[i] != w)
        i++;
    if (i == p.n_weights && i < MAX_WEIGHTS)
        p.weights[p.n_weights++] = w;
    int64_t before = p.kinds[k].ns;
    e = end(k, q, e);
    if (i < MAX_WEIGHTS)
        count(&products[i], p.kinds[k].ns - before);
    return e;
}

static enum err do_gemm(struct kn_queue *q, const struct kn_gemm *a) {
    begin();
    return end_product(OP_GEMM, p.products, a->w, q, p.inner->gemm(q, a));
}

static enum err do_gemm_t(struct kn_queue *q, const struct kn_gemm_t *a) {
    begin();
    return end_product(OP_GEMM_T, p.products_t, a->w, q, p.inner->gemm_t(q, a));
}

static enum err do_upload(struct kn_queue *q, kn_addr dst, const void *src, size_t bytes) {
    begin();
    return end(OP_UPLOAD, q, p.inner->upload(q, dst, src, bytes));
}

static enum err do_download(struct kn_queue *q, void *dst, kn_addr src, size_t bytes) {
    begin();
    return end(OP_DOWNLOAD, q, p.inner->download(q, dst, src, bytes));
}

const struct kn_ops *profile_ops(const struct kn_ops *inner) {
    p.inner = inner;
    p.ops = *inner;
#define SET(name, text) p.ops.name = inner->name ? do_##name : NULL;
    OPERATIONS(SET)
    p.ops.gemm = do_gemm;
    p.ops.gemm_t = inner->gemm_t ? do_gemm_t : NULL;
    p.ops.upload = do_upload;
    p.ops.download = do_download;
    return &p.ops;
}

void profile_reset(void) {
    memset(p.kinds, 0, sizeof p.kinds);
    memset(p.products, 0, sizeof p.products);
    memset(p.products_t, 0, sizeof p.products_t);
}

// The duration that a share of the calls does not exceed, in microseconds, to a step of the
// buckets.
static double quantile_us(const struct account *a, double share) {
    int64_t below = 0;
    for (int i = 0; i < BUCKETS; i++)
        if ((double)(below += a->durations[i]) >= share * (double)a->calls) {
            double us = FIRST_NS * exp2((i + 1.0) / STEPS) * 1e-3;
            return fmin(us, (double)a->most_ns * 1e-3);
        }
    return (double)a->most_ns * 1e-3;
}

static void line(const char *name, const struct account *a, double total, double tokens) {
    if (a->calls)
        printf("  %-14s %6lld calls %9.3f ms %5.1f%%  %8.2f us a token; a call %6.0f, %6.0f, %6.0f "
               "us\n",
               name, (long long)a->calls, (double)a->ns * 1e-6, 100 * (double)a->ns / total,
               (double)a->ns * 1e-3 / tokens, quantile_us(a, 0.5), quantile_us(a, 0.99),
               (double)a->most_ns * 1e-3);
}

static void add_account(const struct account *a, struct account *to) {
    to->ns += a->ns;
    to->calls += a->calls;
    to->most_ns = a->most_ns > to->most_ns ? a->most_ns : to->most_ns;
    for (int i = 0; i < BUCKETS; i++)
        to->durations[i] += a->durations[i];
}

static void add_matrix(const struct mdl_matrix *m, const struct account *products,
                       struct account *to) {
    for (int i = 0; i < m->n_parts; i++)
        for (int j = 0; j < p.n_weights; j++)
            if (p.weights[j] == m->part[i])
                add_account(&products[j], to);
}

static void print_products(const struct mdl_weights *w, const struct account *products, bool back,
                           double total, double tokens) {
    enum { QKV, O, GATE_UP, DOWN, HEAD, PRODUCTS };
    static const char *const product_names[2][PRODUCTS] = {
        {"qkv", "o", "gate + up", "down", "head"},
        {"qkv back", "o back", "gate + up back", "down back", "head back"}};
    struct account a[PRODUCTS];
    memset(a, 0, sizeof a);
    for (int32_t i = 0; i < w->config.n_layers; i++) {
        add_matrix(&w->layers[i].qkv, products, &a[QKV]);
        add_matrix(&w->layers[i].o, products, &a[O]);
        add_matrix(&w->layers[i].gate_up, products, &a[GATE_UP]);
        add_matrix(&w->layers[i].down, products, &a[DOWN]);
    }
    add_matrix(&w->head, products, &a[HEAD]);
    for (int i = 0; i < PRODUCTS; i++)
        line(product_names[back][i], &a[i], total, tokens);
}

void profile_print(const struct mdl_weights *w, double tokens) {
    double total = 0;
    for (int i = 0; i < KINDS; i++)
        total += (double)p.kinds[i].ns;
    printf("  (of the calls: median, p99, longest)\n");
    print_products(w, p.products, false, total, tokens);
    print_products(w, p.products_t, true, total, tokens);
    for (int i = 0; i < KINDS; i++)
        if (i != OP_GEMM && i != OP_GEMM_T)
            line(names[i], &p.kinds[i], total, tokens);
    printf("  %-14s              %9.3f ms\n", "sum", total * 1e-6);
}

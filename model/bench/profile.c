// SPDX-License-Identifier: Apache-2.0
#include "model/bench/profile.h"
#include "base/clock.h"
#include <stdio.h>
#include <string.h>

enum kind {
    EMBED,
    RMSNORM,
    QUANTIZE,
    GEMM,
    SWIGLU,
    ROPE_TABLE,
    ROPE_KV,
    ATTN,
    GATHER,
    SAMPLE,
    UPLOAD,
    DOWNLOAD,
    KINDS
};
static const char *const names[KINDS] = {"embed",  "rmsnorm",    "quantize",  "gemm",
                                         "swiglu", "rope table", "rope + kv", "attention",
                                         "gather", "sample",     "upload",    "download"};

enum { MAX_WEIGHTS = 2048 };

struct account {
    int64_t ns, calls;
};

// The program has one thread and one queue.
static struct {
    const struct kn_ops *inner;
    struct kn_ops ops;
    struct account kinds[KINDS];
    const struct kn_weight *weights[MAX_WEIGHTS];
    struct account products[MAX_WEIGHTS];
    int n_weights;
    int64_t start;
} p;

static void begin(void) {
    p.start = clock_mono_ns(&clock_system);
}

static enum err end(enum kind k, struct kn_queue *q, enum err e) {
    if (!e)
        e = p.inner->queue_wait(q, NULL);
    p.kinds[k].ns += clock_mono_ns(&clock_system) - p.start;
    p.kinds[k].calls++;
    return e;
}

#define PASS(name, kind)                                                                           \
    static enum err do_##name(struct kn_queue *q, const struct kn_##name *a) {                     \
        begin();                                                                                   \
        return end(kind, q, p.inner->name(q, a));                                                  \
    }
PASS(embed, EMBED)
PASS(rmsnorm, RMSNORM)
PASS(quantize, QUANTIZE)
PASS(swiglu, SWIGLU)
PASS(rope_table, ROPE_TABLE)
PASS(rope_kv, ROPE_KV)
PASS(attn, ATTN)
PASS(gather, GATHER)
PASS(sample, SAMPLE)

static enum err do_gemm(struct kn_queue *q, const struct kn_gemm *a) {
    int i = 0;
    while (i < p.n_weights && p.weights[i] != a->w)
        i++;
    if (i == p.n_weights && i < MAX_WEIGHTS)
        p.weights[p.n_weights++] = a->w;
    int64_t before = p.kinds[GEMM].ns;
    begin();
    enum err e = end(GEMM, q, p.inner->gemm(q, a));
    if (i < MAX_WEIGHTS) {
        p.products[i].ns += p.kinds[GEMM].ns - before;
        p.products[i].calls++;
    }
    return e;
}

static enum err do_upload(struct kn_queue *q, kn_addr dst, const void *src, size_t bytes) {
    begin();
    return end(UPLOAD, q, p.inner->upload(q, dst, src, bytes));
}

static enum err do_download(struct kn_queue *q, void *dst, kn_addr src, size_t bytes) {
    begin();
    return end(DOWNLOAD, q, p.inner->download(q, dst, src, bytes));
}

const struct kn_ops *profile_ops(const struct kn_ops *inner) {
    p.inner = inner;
    p.ops = *inner;
    p.ops.embed = do_embed;
    p.ops.rmsnorm = do_rmsnorm;
    p.ops.quantize = do_quantize;
    p.ops.gemm = do_gemm;
    p.ops.swiglu = do_swiglu;
    p.ops.rope_table = do_rope_table;
    p.ops.rope_kv = do_rope_kv;
    p.ops.attn = do_attn;
    p.ops.gather = do_gather;
    p.ops.sample = do_sample;
    p.ops.upload = do_upload;
    p.ops.download = do_download;
    return &p.ops;
}

void profile_reset(void) {
    memset(p.kinds, 0, sizeof p.kinds);
    memset(p.products, 0, sizeof p.products);
}

static void line(const char *name, const struct account *a, double total, double tokens) {
    if (a->calls)
        printf("  %-12s %6lld calls %9.3f ms %5.1f%%  %8.2f us a token\n", name,
               (long long)a->calls, (double)a->ns * 1e-6, 100 * (double)a->ns / total,
               (double)a->ns * 1e-3 / tokens);
}

static void add_matrix(const struct mdl_matrix *m, struct account *to) {
    for (int i = 0; i < m->n_parts; i++)
        for (int j = 0; j < p.n_weights; j++)
            if (p.weights[j] == m->part[i]) {
                to->ns += p.products[j].ns;
                to->calls += p.products[j].calls;
            }
}

void profile_print(const struct mdl_weights *w, double tokens) {
    enum { QKV, O, GATE_UP, DOWN, HEAD, PRODUCTS };
    static const char *const products[PRODUCTS] = {"qkv", "o", "gate + up", "down", "head"};
    struct account a[PRODUCTS] = {{0, 0}};
    double total = 0;
    for (int i = 0; i < KINDS; i++)
        total += (double)p.kinds[i].ns;
    for (int32_t i = 0; i < w->config.n_layers; i++) {
        add_matrix(&w->layers[i].qkv, &a[QKV]);
        add_matrix(&w->layers[i].o, &a[O]);
        add_matrix(&w->layers[i].gate_up, &a[GATE_UP]);
        add_matrix(&w->layers[i].down, &a[DOWN]);
    }
    add_matrix(&w->head, &a[HEAD]);
    for (int i = 0; i < PRODUCTS; i++)
        line(products[i], &a[i], total, tokens);
    for (int i = 0; i < KINDS; i++)
        if (i != GEMM)
            line(names[i], &p.kinds[i], total, tokens);
    printf("  %-12s              %9.3f ms\n", "sum", total * 1e-6);
}

// SPDX-License-Identifier: Apache-2.0
// What adapters cost in a step: the same batch with and without them, turn by turn, so that a
// machine whose speed changes does not matter.
//   graft_bench_lora MODEL [streams 32] [rounds 30] [only kind]
// Prints the median of each step's time and the median over rounds of the base's time over it (1:
// free); where each row reads matrices of its own, also what the added time makes of the read
// bandwidth, which is measured in each round.
#include "base/clock.h"
#include "base/mem.h"
#include "kernels/bench/limits.h"
#include "model/lora.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_STREAMS = 64, MAX_ROUNDS = 400, CONTEXT = 128, PROMPT = 512, STEPS = 2, KINDS = 8 };

enum { // bits of enum mdl_target
    QV = 1 << MDL_TARGET_Q | 1 << MDL_TARGET_V,
    ALL = (1 << MDL_TARGETS) - 1
};

// One kind of load: which adapters its rows have.
struct kind {
    const char *name;
    unsigned targets; // 0: hooks, but no adapter
    int32_t r;
    bool one;     // all rows the same adapter
    bool sixteen; // values that bf16 holds
};
static const struct kind kinds[KINDS] = {
    {"hook without adapters", 0, 0, false, false},
    {"q, v; r = 8; each its own", QV, 8, false, false},
    {"all; r = 8; each its own", ALL, 8, false, false},
    {"all; r = 16; each its own", ALL, 16, false, false},
    {"all; r = 16; one for all", ALL, 16, true, false},
    {"q, v; r = 16; bf16", QV, 16, false, true},
    {"all; r = 8; bf16", ALL, 8, false, true},
    {"all; r = 16; bf16", ALL, 16, false, true},
};

struct bench {
    const struct kn_ops *ops;
    struct kn_device *device;
    struct kn_queue *queue;
    struct mdl_weights *weights;
    struct mdl_forward *forward;
    struct mdl_kv kv;
    struct mdl_lora_slots *slots;
    struct mdl_lora *loras[MAX_STREAMS];
    int32_t streams, blocks;
    struct mdl_batch batch;
    int32_t ids[PROMPT], pos[PROMPT], seq_start[MAX_STREAMS + 1], kv_len[MAX_STREAMS];
    int32_t slot[MAX_STREAMS], *table;
    struct mdl_want want[MAX_STREAMS];
    struct limits *limits;
};

static void must(enum err e, const struct err_info *info) {
    if (e) {
        fprintf(stderr, "graft_bench_lora: %s\n", info->message);
        exit(1);
    }
}

static void set_up(struct bench *b, const char *path) {
    struct err_info info = {.code = ERR_OK};
    struct kn_device_config cfg = {.pin = true};
    struct mdl_source *src;
    b->ops = &kn_ops_cpu;
    must(b->ops->open(&cfg, &b->device, &info), &info);
    must(b->ops->queue_create(b->device, &b->queue), &info);
    struct kn_device_info dev;
    b->ops->info(b->device, &dev);
    must(limits_create(&b->limits, strstr(dev.kernel_set, "avx512") ? "avx512" : "avx2",
                       dev.threads, false),
         &info);
    must(mdl_source_open(path, &src, &info), &info);
    must(mdl_weights_load(src, b->ops, b->device, 0, 1, NULL, &b->weights, &info), &info);
    mdl_source_close(src);
    const struct mdl_config *c = &b->weights->config;
    b->blocks = (PROMPT + KN_KV_BLOCK) / KN_KV_BLOCK;
    b->kv.shape = (struct kn_kv_shape){c->n_layers, c->n_kv_heads, c->head_dim};
    size_t n = (size_t)b->blocks * MAX_STREAMS;
    b->table = mem_calloc(n, sizeof *b->table);
    for (size_t i = 0; b->table && i < n; i++)
        b->table[i] = (int32_t)i;
    must(b->table ? ERR_OK : ERR_NOMEM, &info);
    must(b->ops->alloc(b->device, n * b->ops->kv_block_bytes(&b->kv.shape), &b->kv.pool), &info);
    struct mdl_forward_limits limits = {PROMPT, MAX_STREAMS, MAX_STREAMS, b->blocks};
    must(mdl_forward_create(b->weights, b->queue, &limits, &clock_system, &b->forward, &info),
         &info);
    must(mdl_lora_slots_create(b->weights, b->queue, MAX_STREAMS, &b->slots, &info), &info);
    b->batch = (struct mdl_batch){.ids = b->ids,
                                  .pos = b->pos,
                                  .seq_start = b->seq_start,
                                  .kv_len = b->kv_len,
                                  .block_table = b->table,
                                  .max_blocks = b->blocks,
                                  .slot = b->slot,
                                  .want = b->want};
}

static float value(uint32_t *s, bool sixteen) {
    *s = *s * 1664525u + 1013904223u;
    return (float)(sixteen ? *s >> 24 << 16 : *s >> 8) * 0x1p-30f;
}

static void fill(const struct bench *b, struct mdl_adapter *a, bool sixteen) {
    uint32_t s = 12345;
    for (int32_t i = 0; i < a->n_layers; i++)
        for (int t = 0; t < MDL_TARGETS; t++) {
            const struct mdl_adapter_module *m = &a->modules[i][t];
            int32_t n, k;
            mdl_target_shape(&b->weights->config, (enum mdl_target)t, &n, &k);
            for (int32_t j = 0; j < m->r * k; j++)
                m->a[j] = value(&s, sixteen);
            for (int32_t j = 0; j < m->r * n; j++)
                m->b[j] = value(&s, sixteen);
        }
}

static void load_adapters(struct bench *b, const struct kind *kind) {
    struct err_info info = {.code = ERR_OK};
    for (int32_t i = 0; i < b->streams; i++) {
        must(mdl_lora_set(b->slots, i, NULL), &info);
        mdl_lora_destroy(b->loras[i]);
        b->loras[i] = NULL;
        b->slot[i] = kind->one ? 0 : i;
        if (!kind->targets || (kind->one && i))
            continue;
        struct mdl_adapter *a;
        must(mdl_adapter_create(&b->weights->config, kind->targets, kind->r, 1, false, &a, &info),
             &info);
        fill(b, a, kind->sixteen);
        must(mdl_lora_create(b->weights, b->queue, a, &b->loras[i], &info), &info);
        must(mdl_lora_set(b->slots, i, b->loras[i]), &info);
        mdl_adapter_destroy(a);
    }
}

// Milliseconds of a batch of n sequences with `each` tokens from position `at` on.
static double run(struct bench *b, bool adapters, int32_t n, int32_t each, int32_t at) {
    struct err_info info = {.code = ERR_OK};
    bool done = false;
    b->batch.n_tokens = n * each;
    b->batch.n_seqs = b->batch.n_want = n;
    for (int32_t s = 0; s < n; s++) {
        for (int32_t i = 0; i < each; i++) {
            b->ids[s * each + i] = (s * 31 + i * 7919) % b->weights->config.vocab;
            b->pos[s * each + i] = at + i;
        }
        b->seq_start[s + 1] = (s + 1) * each;
        b->kv_len[s] = at + each;
        b->want[s] = (struct mdl_want){.row = (s + 1) * each - 1,
                                       .params = {.position = (uint32_t)(at + each - 1),
                                                  .top_p = 1,
                                                  .repetition = 1,
                                                  .target = -1,
                                                  .n_logprobs = -1}};
    }
    int64_t start = clock_mono_ns(&clock_system);
    must(mdl_forward_begin(b->forward, &b->batch, &b->kv,
                           adapters ? mdl_lora_hooks(b->slots) : NULL, NULL, &info),
         &info);
    must(mdl_forward_run(b->forward, INT64_MAX, &done, &info), &info);
    return (double)(clock_mono_ns(&clock_system) - start) * 1e-6;
}

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static double median(double *v, int n) {
    qsort(v, (size_t)n, sizeof *v, compare);
    return v[n / 2];
}

static void measure(struct bench *b, const char *what, const char *name, int rounds, int32_t n,
                    int32_t each, int32_t at) {
    static double base[MAX_ROUNDS], with[MAX_ROUNDS], ratio[MAX_ROUNDS], share[MAX_ROUNDS];
    double bytes = 0;
    for (int32_t i = 0; i < b->streams && each == 1; i++)
        bytes += b->loras[i] ? (double)mdl_lora_bytes(b->loras[i]) : 0;
    for (int i = -2; i < rounds; i++) {
        double t[2] = {0};
        for (int j = 0; j < 2 * STEPS; j++)
            t[j % 2] += run(b, j % 2, n, each, at) / STEPS;
        if (i >= 0) {
            base[i] = t[0];
            with[i] = t[1];
            ratio[i] = t[0] / t[1];
            share[i] = bytes / ((t[1] - t[0]) * 1e-3) / limits_measure(b->limits, LIMIT_READ);
        }
    }
    double r = median(ratio, rounds);
    printf("%-14s %-28s base %7.2f ms, with %7.2f ms, ratio %.3f [%.3f-%.3f]", what, name,
           median(base, rounds), median(with, rounds), r, ratio[rounds / 4], ratio[rounds * 3 / 4]);
    if (bytes > 0)
        printf(", %.0f MB, %.0f%% of read", bytes * 1e-6, median(share, rounds) * 100);
    printf("\n");
    fflush(stdout);
}

int main(int argc, char **argv) {
    static struct bench b; // large
    char what[32];
    int rounds = argc > 3 ? atoi(argv[3]) : 30;
    b.streams = argc > 2 ? atoi(argv[2]) : 32;
    if (argc < 2 || b.streams < 1 || b.streams > MAX_STREAMS || rounds < 1 || rounds > MAX_ROUNDS) {
        fprintf(stderr, "usage: graft_bench_lora MODEL [streams] [rounds] [only kind]\n");
        return 1;
    }
    set_up(&b, argv[1]);
    snprintf(what, sizeof what, "%d streams", b.streams);
    int only = argc > 4 ? atoi(argv[4]) : -1;
    for (int k = 0; k < KINDS; k++) {
        if (only >= 0 && k != only)
            continue;
        load_adapters(&b, &kinds[k]);
        measure(&b, what, kinds[k].name, rounds, b.streams, 1, CONTEXT);
        if (kinds[k].one || !kinds[k].targets)
            measure(&b, "prompt of 512", kinds[k].name, rounds / 4 + 1, 1, PROMPT, 0);
    }
    return 0;
}

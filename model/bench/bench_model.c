// SPDX-License-Identifier: Apache-2.0
// Times the layer walk on a real model as shares of what the machine can do:
//   graft_bench_model MODEL [--prompt 512] [--generate 128] [--streams 32] [--context 128] ...
// Three things are measured: one prompt in one batch, one stream token by token, many streams in
// one batch. Each repetition stands between two measurements of the machine's limits; one during
// which the machine changed by more than a tenth is thrown away and repeated.
//
// FLOPs = 2 * (non-embedding weights * tokens + head rows computed) + attention. Bytes = weights
// that a step reads, once, and the cache. --profile waits after each operation and prints where the
// time goes instead; the sum is more than an undisturbed step takes.
#include "base/mem.h"
#include "base/options.h"
#include "kernels/bench/limits.h"
#include "kernels/cpu/cpu_internal.h"
#include "kernels/cpu/weight.h"
#include "model/bench/profile.h"
#include "model/forward.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    MAX_REPS = 100,
    BATCH_STEPS = 16,
    MAX_TOKENS = 4096,
    MAX_STREAMS = 256,
    MAX_SLICES = 1 << 20
};

struct options {
    int64_t prompt, generate, streams, context, reps, threads, slice_us;
    const char *isa, *only;
    bool json, profile, keep_all;
};

struct bench {
    struct options o;
    const struct kn_ops *ops;
    struct kn_device *device;
    struct kn_queue *queue;
    struct kn_device_info info;
    struct limits *limits;
    enum limit peak; // what products are compared with
    struct mdl_weights *weights;
    struct mdl_forward *forward;
    struct mdl_kv kv;
    size_t kv_bytes, layer_bytes, head_bytes; // of one layer's weights times layers; the head's
    int32_t blocks_per_seq;
    // a batch
    struct mdl_batch batch;
    int32_t ids[MAX_TOKENS], pos[MAX_TOKENS];
    int32_t seq_start[MAX_STREAMS + 1], kv_len[MAX_STREAMS], *table;
    struct mdl_want want[MAX_STREAMS];
    double slices[MAX_SLICES]; // ms, with --slice-us
    int n_slices;
};

struct work {
    const char *name;
    void (*run)(struct bench *b);
    double tokens, bytes, flops;
};

static void die(const struct err_info *info) {
    fprintf(stderr, "graft_bench_model: %s\n", info->message);
    exit(1);
}

static void die_text(const char *text) {
    fprintf(stderr, "graft_bench_model: %s\n", text);
    exit(1);
}

// ---- steps

static void run_batch(struct bench *b) {
    struct err_info info = {.code = ERR_OK};
    bool done = false;
    if (mdl_forward_begin(b->forward, &b->batch, &b->kv, NULL, NULL, &info))
        die(&info);
    while (!done) {
        int64_t start = clock_mono_ns(&clock_system), slice = b->o.slice_us * 1000;
        if (mdl_forward_run(b->forward, slice ? start + slice : INT64_MAX, &done, &info))
            die(&info);
        if (slice && b->n_slices < MAX_SLICES)
            b->slices[b->n_slices++] = (double)(clock_mono_ns(&clock_system) - start) * 1e-6;
    }
}

static void set_want(struct bench *b, int32_t i, int32_t row, int32_t pos) {
    b->want[i] = (struct mdl_want){.row = row,
                                   .params = {.position = (uint32_t)pos,
                                              .top_p = 1,
                                              .repetition = 1,
                                              .target = -1,
                                              .n_logprobs = -1}};
}

// Sequence `seq`'s tokens [begin, end) alone, the last one wanted.
static void chunk(struct bench *b, int32_t seq, int32_t begin, int32_t end) {
    int32_t n = end - begin;
    b->batch.n_tokens = n;
    b->batch.n_seqs = b->batch.n_want = 1;
    for (int32_t i = 0; i < n; i++) {
        b->ids[i] = (begin + i) * 7919 % b->weights->config.vocab;
        b->pos[i] = begin + i;
    }
    b->seq_start[1] = n;
    b->kv_len[0] = end;
    b->batch.block_table = b->table + (size_t)seq * (size_t)b->blocks_per_seq;
    set_want(b, 0, n - 1, end - 1);
    run_batch(b);
}

static void run_prompt(struct bench *b) {
    chunk(b, 0, 0, (int32_t)b->o.prompt);
}

// Each token is the sample of the step before, taken on the device.
static void run_generate(struct bench *b) {
    chunk(b, 0, 0, 1);
    for (int32_t i = 1; i < (int32_t)b->o.generate; i++) {
        b->ids[0] = -1; // ~0
        b->pos[0] = i;
        b->kv_len[0] = i + 1;
        set_want(b, 0, 0, i);
        run_batch(b);
    }
}

static void fill_streams(struct bench *b) {
    for (int32_t s = 0; s < (int32_t)b->o.streams; s++)
        for (int32_t at = 0; at < (int32_t)b->o.context; at += 512) {
            int32_t end = at + 512 < (int32_t)b->o.context ? at + 512 : (int32_t)b->o.context;
            chunk(b, s, at, end);
        }
}

static void run_streams(struct bench *b) {
    int32_t n = (int32_t)b->o.streams;
    b->batch.n_tokens = b->batch.n_seqs = b->batch.n_want = n;
    b->batch.block_table = b->table;
    for (int32_t step = 0; step < BATCH_STEPS; step++) {
        int32_t pos = (int32_t)b->o.context + step;
        for (int32_t s = 0; s < n; s++) {
            b->ids[s] = step ? ~s : s * 31 % b->weights->config.vocab;
            b->pos[s] = pos;
            b->seq_start[s + 1] = s + 1;
            b->kv_len[s] = pos + 1;
            set_want(b, s, s, pos);
        }
        run_batch(b);
    }
}

// ---- what a piece of work costs at least

static double params_of_layers(const struct mdl_config *c) {
    double h = c->hidden, q = (double)c->n_heads * c->head_dim;
    double kv = (double)c->n_kv_heads * c->head_dim;
    return c->n_layers * (h * (2 * q + 2 * kv) + 3 * h * c->intermediate);
}

// `pairs`: query-key pairs of one layer and head.
static double flops_of(const struct bench *b, double tokens, double head_rows, double pairs) {
    const struct mdl_config *c = &b->weights->config;
    return 2 * (params_of_layers(c) * tokens + head_rows * c->vocab * c->hidden) +
           4 * pairs * c->n_heads * c->head_dim * c->n_layers;
}

static double kv_bytes_of(const struct bench *b, double positions) {
    const struct mdl_config *c = &b->weights->config;
    return positions * 2 * 2 * c->n_kv_heads * c->head_dim * c->n_layers;
}

static double weights_of(const struct bench *b) {
    return (double)(b->layer_bytes + b->head_bytes);
}

static struct work prompt_work(const struct bench *b, char name[32]) {
    double n = (double)b->o.prompt;
    snprintf(name, 32, "pp%d", (int)n);
    return (struct work){name, run_prompt, n, weights_of(b) + kv_bytes_of(b, n),
                         flops_of(b, n, 1, n * (n + 1) / 2)};
}

static struct work generate_work(const struct bench *b, char name[32]) {
    double n = (double)b->o.generate, pairs = n * (n + 1) / 2;
    snprintf(name, 32, "tg%d", (int)n);
    return (struct work){name, run_generate, n, n * weights_of(b) + kv_bytes_of(b, pairs),
                         flops_of(b, n, n, pairs)};
}

static struct work streams_work(const struct bench *b, char name[32]) {
    double s = (double)b->o.streams, c = (double)b->o.context, n = BATCH_STEPS;
    double pairs = s * (n * c + n * (n + 1) / 2);
    snprintf(name, 32, "%d streams @ %d", (int)s, (int)c);
    return (struct work){name, run_streams, s * n, n * weights_of(b) + kv_bytes_of(b, pairs),
                         flops_of(b, s * n, s * n, pairs)};
}

// ---- measuring

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static double median(double *v, int n) {
    qsort(v, (size_t)n, sizeof *v, compare);
    return v[n / 2];
}

static bool steady(double before, double after) {
    return fabs(before - after) <= 0.1 * fmax(before, after);
}

static void print_result(const struct bench *b, const struct work *k, double *tps, double *read,
                         double *peak, int n, int dropped) {
    double t = median(tps, n), r = median(read, n), p = median(peak, n);
    if (b->o.json)
        printf("{\"what\":\"%s\",\"tok_s\":%.2f,\"min\":%.2f,\"max\":%.2f,\"of_read\":%.3f,"
               "\"of_peak\":%.3f,\"peak\":\"%s\",\"reps\":%d,\"dropped\":%d}\n",
               k->name, t, tps[0], tps[n - 1], r, p, limit_name(b->peak), n, dropped);
    else
        printf("%-16s %8.1f tok/s [%.1f-%.1f]  %3.0f%% of read, %3.0f%% of %s; %d rounds, %d "
               "dropped\n",
               k->name, t, tps[0], tps[n - 1], 100 * r, 100 * p, limit_name(b->peak), n, dropped);
    fflush(stdout);
}

static void measure(struct bench *b, const struct work *k) {
    double tps[MAX_REPS], of_read[MAX_REPS], of_peak[MAX_REPS];
    int n = 0, dropped = 0;
    k->run(b);
    while (n < (int)b->o.reps) {
        double read = limits_measure(b->limits, LIMIT_READ);
        double peak = limits_measure(b->limits, b->peak);
        int64_t start = clock_mono_ns(&clock_system);
        k->run(b);
        double s = (double)(clock_mono_ns(&clock_system) - start) * 1e-9;
        double read2 = limits_measure(b->limits, LIMIT_READ);
        double peak2 = limits_measure(b->limits, b->peak);
        // A machine that is never steady must not keep us for ever.
        if (!b->o.keep_all && dropped < 3 * (int)b->o.reps &&
            !(steady(read, read2) && steady(peak, peak2))) {
            dropped++;
            continue;
        }
        tps[n] = k->tokens / s;
        of_read[n] = k->bytes / s / ((read + read2) / 2);
        of_peak[n] = k->flops / s / ((peak + peak2) / 2);
        n++;
    }
    print_result(b, k, tps, of_read, of_peak, n, dropped);
}

static void print_slices(struct bench *b) {
    int n = b->n_slices;
    if (!n)
        return;
    double mid = median(b->slices, n);
    printf("%d slices of %.3f ms: median %.3f, p99 %.3f, longest %.3f ms\n", n,
           (double)b->o.slice_us * 1e-3, mid, b->slices[(int)(0.99 * n)], b->slices[n - 1]);
    b->n_slices = 0;
}

static bool wanted(const struct bench *b, const char *what) {
    return !b->o.only || strcmp(b->o.only, what) == 0;
}

static void bench(struct bench *b, const char *what, struct work k) {
    if (!wanted(b, what))
        return;
    if (strcmp(what, "streams") == 0)
        fill_streams(b);
    if (!b->o.profile) {
        b->n_slices = 0;
        measure(b, &k);
        print_slices(b);
        return;
    }
    k.run(b);
    profile_reset();
    k.run(b);
    printf("%s\n", k.name);
    profile_print(b->weights, k.tokens);
}

// ---- setting up

static void matrix_size(const struct bench *b, const struct mdl_matrix *m, size_t *bytes) {
    for (int i = 0; i < m->n_parts; i++)
        *bytes += b->ops->weight_bytes(m->part[i]);
}

static void load(struct bench *b, const char *path) {
    struct err_info info = {.code = ERR_OK};
    struct mdl_source *src;
    int64_t start = clock_mono_ns(&clock_system);
    if (mdl_source_open(path, &src, &info))
        die(&info);
    int64_t opened = clock_mono_ns(&clock_system);
    if (mdl_weights_load(src, b->ops, b->device, 0, 1, NULL, &b->weights, &info))
        die(&info);
    int64_t end = clock_mono_ns(&clock_system);
    if (!b->o.json)
        printf("%s: opened in %.0f ms, loaded in %.0f ms, %.1f MB; %s, %d threads\n",
               mdl_source_name(src), (double)(opened - start) * 1e-6, (double)(end - opened) * 1e-6,
               (double)b->weights->bytes * 1e-6, b->info.kernel_set, b->info.threads);
    mdl_source_close(src);
    for (int32_t i = 0; i < b->weights->config.n_layers; i++) {
        const struct mdl_layer *y = &b->weights->layers[i];
        matrix_size(b, &y->qkv, &b->layer_bytes);
        matrix_size(b, &y->o, &b->layer_bytes);
        matrix_size(b, &y->gate_up, &b->layer_bytes);
        matrix_size(b, &y->down, &b->layer_bytes);
    }
    matrix_size(b, &b->weights->head, &b->head_bytes);
    if (b->o.profile)
        b->weights->ops = profile_ops(b->ops);
}

// What most products are made of.
static enum limit products_limit(const struct bench *b) {
    const struct mdl_matrix *m = &b->weights->layers[0].down;
    if (m->forms & 1u << KN_FORM_Q8)
        return LIMIT_DOT;
    bool bf16 = m->part[0]->segments[0].dtype == KN_BF16;
    return bf16 && limits_has(b->limits, LIMIT_BF16) ? LIMIT_BF16 : LIMIT_FMA;
}

static int32_t blocks_for(int64_t positions) {
    return (int32_t)((positions + KN_KV_BLOCK - 1) / KN_KV_BLOCK);
}

static int64_t largest(int64_t a, int64_t b) {
    return a > b ? a : b;
}

static void set_up(struct bench *b) {
    struct err_info info = {.code = ERR_OK};
    const struct mdl_config *c = &b->weights->config;
    int64_t longest = largest(largest(b->o.prompt, b->o.generate), b->o.context + BATCH_STEPS);
    if (longest > c->context)
        die_text("longer than the model's context");
    b->blocks_per_seq = blocks_for(longest);
    int32_t n_blocks = b->blocks_per_seq * (int32_t)b->o.streams;
    b->kv.shape = (struct kn_kv_shape){c->n_layers, c->n_kv_heads, c->head_dim};
    b->kv_bytes = (size_t)n_blocks * b->ops->kv_block_bytes(&b->kv.shape);
    b->table = mem_calloc((size_t)n_blocks, sizeof *b->table);
    if (!b->table || b->ops->alloc(b->device, b->kv_bytes, &b->kv.pool))
        die_text("no memory for the KV pool");
    for (int32_t i = 0; i < n_blocks; i++)
        b->table[i] = i;
    struct mdl_forward_limits limits = {
        .max_tokens = (int32_t)largest(largest(b->o.prompt, b->o.streams), 512),
        .max_seqs = MAX_STREAMS,
        .max_want = MAX_STREAMS,
        .max_blocks = b->blocks_per_seq};
    if (mdl_forward_create(b->weights, b->queue, &limits, &clock_system, &b->forward, &info))
        die(&info);
    b->batch = (struct mdl_batch){.ids = b->ids,
                                  .pos = b->pos,
                                  .seq_start = b->seq_start,
                                  .kv_len = b->kv_len,
                                  .max_blocks = b->blocks_per_seq,
                                  .want = b->want};
    if (b->o.profile)
        return;
    if (limits_create(&b->limits, cpu_device_isa(b->device)->name, b->info.threads, false))
        die_text("no memory");
    b->peak = products_limit(b);
}

static const struct opt_def defs[] = {
    {OPT_INT, "prompt", offsetof(struct options, prompt), "N", "512", 1, MAX_TOKENS, NULL,
     "tokens of the prompt", false},
    {OPT_INT, "generate", offsetof(struct options, generate), "N", "128", 2, MAX_TOKENS, NULL,
     "tokens of the one stream", false},
    {OPT_INT, "streams", offsetof(struct options, streams), "N", "32", 1, MAX_STREAMS, NULL,
     "streams in one batch", false},
    {OPT_INT, "context", offsetof(struct options, context), "N", "128", 1, MAX_TOKENS, NULL,
     "positions each of them has behind it", false},
    {OPT_INT, "reps", offsetof(struct options, reps), "N", "7", 1, MAX_REPS, NULL, "rounds", false},
    {OPT_INT, "threads", offsetof(struct options, threads), "N", "0", 0, 256, NULL,
     "0: as the server", false},
    {OPT_INT, "slice-us", offsetof(struct options, slice_us), "N", "0", 0, 1e6, NULL,
     "run with a deadline this far away, again and again", false},
    {OPT_STRING, "isa", offsetof(struct options, isa), "NAME", NULL, 0, 0, NULL,
     "avx512bf16, avx512, avx2 or portable", false},
    {OPT_ENUM, "only", offsetof(struct options, only), "WHAT", NULL, 0, 0,
     "prompt|generate|streams", "one of the three", false},
    {OPT_FLAG, "keep-all", offsetof(struct options, keep_all), NULL, NULL, 0, 0, NULL,
     "keep rounds during which the machine changed", false},
    {OPT_FLAG, "json", offsetof(struct options, json), NULL, NULL, 0, 0, NULL, "one object a line",
     false},
    {OPT_FLAG, "profile", offsetof(struct options, profile), NULL, NULL, 0, 0, NULL,
     "time of each kind of operation", false},
};

static const struct opt_table table = {
    "graft_bench_model",        "graft_bench_model MODEL [options]",
    "Times the layer walk.",    defs,
    sizeof defs / sizeof *defs, 1};

static int help(void) {
    struct buf out;
    buf_init(&out, 0);
    opt_print_help(&table, &out, 100);
    fwrite(out.data, 1, out.len, stdout);
    buf_fini(&out);
    return 0;
}

int main(int argc, char **argv) {
    static struct bench b; // large
    struct err_info info = {.code = ERR_OK};
    struct opt_result res;
    if (opt_parse(&table, argc, argv, &b.o, &res, &info))
        die(&info);
    if (res.help || res.n_positional != 1)
        return help();
    b.ops = &kn_ops_cpu;
    struct kn_device_config cfg = {.threads = (int)b.o.threads, .isa = b.o.isa};
    if (b.ops->open(&cfg, &b.device, &info) || b.ops->queue_create(b.device, &b.queue))
        die(&info);
    b.ops->info(b.device, &b.info);
    load(&b, res.positional[0]);
    set_up(&b);
    char names[3][32];
    bench(&b, "prompt", prompt_work(&b, names[0]));
    bench(&b, "generate", generate_work(&b, names[1]));
    bench(&b, "streams", streams_work(&b, names[2]));
    if (b.limits)
        limits_destroy(b.limits);
    mdl_forward_destroy(b.forward);
    b.ops->free(b.device, b.kv.pool, b.kv_bytes);
    b.weights->ops = b.ops;
    mdl_weights_destroy(b.weights);
    b.ops->queue_destroy(b.queue);
    b.ops->close(b.device);
    mem_free(b.table);
    opt_result_fini(&res);
    return 0;
}

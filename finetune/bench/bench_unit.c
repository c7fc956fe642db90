// SPDX-License-Identifier: Apache-2.0
// Times gradient units on a real model:
//   graft_bench_unit MODEL [--tokens 512] [--r 16] [--reps 5] [--threads N] [--forget] [--cpu-time]
//                    [--slice-us N] [--dropout P] [--json]
// A repetition is a training step: a unit, the norm of the sums and AdamW. It stands between two
// measurements of the machine's FMA limit. FLOPs are those that are executed: 2 * (weights * tokens
// forward, and again for backward's dx, and once more where a layer is not kept; head rows twice;
// the adapter's seven products) + attention. With --slice-us the unit runs in calls with such a
// deadline, and how long they took is shown. --json prints one line: medians, and what the
// process's memory grew by after the model was loaded.
#include "base/mem.h"
#include "base/options.h"
#include "finetune/lora/unit.h"
#include "kernels/bench/limits.h"
#include "model/bench/profile.h"
#include "model/source.h"
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_SLICES = 1 << 20 };

struct options {
    int64_t tokens, r, reps, threads, slice_us;
    const char *isa;
    double dropout;
    bool forget, cpu_time, json, profile;
};

#define AT(f) offsetof(struct options, f)
static const struct opt_def defs[] = {
    {OPT_INT, "tokens", AT(tokens), "N", "512", 2, 8192, NULL, "Tokens of the row.", false},
    {OPT_INT, "r", AT(r), "N", "16", 1, 256, NULL, "Rank, on all targets.", false},
    {OPT_INT, "reps", AT(reps), "N", "5", 1, 100, NULL, "Units.", false},
    {OPT_INT, "threads", AT(threads), "N", "0", 0, 256, NULL, "Threads.", false},
    {OPT_INT, "slice-us", AT(slice_us), "N", "0", 0, 1000000, NULL, "Deadline of a call.", false},
    {OPT_STRING, "isa", AT(isa), "NAME", NULL, 0, 0, NULL, "Instruction set.", false},
    {OPT_FLOAT, "dropout", AT(dropout), "P", "0", 0, 0.9, NULL, "Of what adapters see.", false},
    {OPT_FLAG, "forget", AT(forget), NULL, "false", 0, 0, NULL, "Keep no activations.", false},
    {OPT_FLAG, "cpu-time", AT(cpu_time), NULL, "false", 0, 0, NULL,
     "Count CPU time; with --threads 1 on a busy machine.", false},
    {OPT_FLAG, "profile", AT(profile), NULL, "false", 0, 0, NULL,
     "Wait after each operation and print where the time goes.", false},
    {OPT_FLAG, "json", AT(json), NULL, "false", 0, 0, NULL, "One line of JSON.", false},
};
static const struct opt_table table = {
    "graft_bench_unit", "graft_bench_unit MODEL", "", defs, sizeof defs / sizeof *defs, 1};

struct bench {
    struct options o;
    const struct kn_ops *ops;
    struct kn_device *device;
    struct kn_queue *queue;
    struct mdl_weights *w;
    struct lora_params *params;
    struct lora_unit *unit;
    struct limits *limits;
    kn_addr range;
    size_t bytes;
    int32_t *ids;
    uint8_t *mask;
    uint64_t *keys;
    int64_t *slices; // ns
    int64_t n_slices;
    kn_addr norms; // of the sums' chunks
    long loaded;   // KiB of the process with the model alone
};

struct rep {
    double tok_s, of_fma, before, after; // FMA limits
};

static void check(enum err e, const struct err_info *info) {
    if (!e)
        return;
    fprintf(stderr, "graft_bench_unit: %s: %s\n", err_name(e), info ? info->message : "");
    exit(1);
}

static void open_model(struct bench *b, const char *path) {
    struct err_info info = {0};
    struct mdl_source *src;
    struct kn_device_config cfg = {.threads = (int)b->o.threads, .isa = b->o.isa, .pin = true};
    b->ops = &kn_ops_cpu;
    check(b->ops->open(&cfg, &b->device, &info), &info);
    check(b->ops->queue_create(b->device, &b->queue), &info);
    check(mdl_source_open(path, &src, &info), &info);
    check(mdl_weights_load(src, b->ops, b->device, 0, 1, NULL, &b->w, &info), &info);
    mdl_source_close(src);
    if (b->o.profile)
        b->w->ops = b->ops = profile_ops(b->ops);
    struct kn_device_info dev;
    b->ops->info(b->device, &dev);
    if (!b->o.json)
        printf("kernel set %s, %d threads\n", dev.kernel_set, dev.threads);
    const char *isa = strstr(dev.kernel_set, "avx512bf16") ? "avx512bf16"
                      : strstr(dev.kernel_set, "avx512")   ? "avx512"
                      : strstr(dev.kernel_set, "avx2")     ? "avx2"
                                                           : "portable";
    check(limits_create(&b->limits, isa, dev.threads, b->o.cpu_time), &info);
}

// KiB of a line of /proc/self/status; 0 where there is none.
static long memory(const char *name) {
    FILE *f = fopen("/proc/self/status", "r");
    char line[128];
    long kib = 0;
    while (f && fgets(line, sizeof line, f))
        if (strncmp(line, name, strlen(name)) == 0)
            kib = strtol(line + strlen(name) + 1, NULL, 10);
    if (f)
        fclose(f);
    return kib;
}

static void forget_peak(void) {
    FILE *f = fopen("/proc/self/clear_refs", "w");
    if (!f)
        return;
    fputs("5", f);
    fclose(f);
}

static void open_unit(struct bench *b) {
    struct err_info info = {0};
    int32_t n = (int32_t)b->o.tokens;
    struct lora_config cfg = {.targets = (1U << MDL_TARGETS) - 1,
                              .r = (int32_t)b->o.r,
                              .alpha = 32,
                              .dropout = (float)b->o.dropout,
                              .seed = 1};
    struct lora_unit_limits limits = {n, 1, !b->o.forget};
    check(lora_params_create(b->w, b->queue, &cfg, &b->params, &info), &info);
    check(lora_unit_create(b->w, b->queue, b->params, &limits, &clock_system, &b->unit, &info),
          &info);
    b->bytes = lora_unit_bytes(b->w, b->params, &limits, NULL);
    check(b->ops->alloc(b->device, b->bytes, &b->range), NULL);
    b->ids = mem_calloc((size_t)n, sizeof *b->ids);
    b->mask = mem_calloc((size_t)n, 1);
    b->keys = mem_calloc((size_t)n, sizeof *b->keys);
    b->slices = mem_calloc(MAX_SLICES, sizeof *b->slices);
    if (!b->ids || !b->mask || !b->keys || !b->slices)
        check(ERR_NOMEM, NULL);
    struct lora_ranges r;
    lora_params_ranges(b->params, &r);
    size_t chunks = ((size_t)r.n + KN_SUMSQ_CHUNK - 1) / KN_SUMSQ_CHUNK;
    check(b->ops->alloc(b->device, 2 * chunks * sizeof(double), &b->norms), NULL);
    for (int32_t i = 0; i < n; i++) {
        b->keys[i] = (uint64_t)i * 0x9e3779b97f4a7c15U;
        b->ids[i] = (int32_t)((int64_t)i * 7919 % b->w->config.vocab);
        b->mask[i] = i > 0;
    }
}

static double flops(const struct bench *b) {
    const struct mdl_config *c = &b->w->config;
    double n = (double)b->o.tokens, weights = 0, adapter = 0;
    for (int t = 0; t < MDL_TARGETS; t++) {
        int32_t rows, cols;
        mdl_target_shape(c, (enum mdl_target)t, &rows, &cols);
        weights += (double)rows * cols;
        // forward: A x, B u; backward: A x, dy B, du A, dA, dB
        adapter += (double)b->o.r * (4.0 * cols + 3.0 * rows);
    }
    double attn = n * n / 2 * c->n_heads * c->head_dim * 2; // a product of scores
    double passes = b->o.forget ? 3 : 2;
    return c->n_layers * (2 * n * (passes * weights + adapter) + attn * (2 * (passes - 1) + 5)) +
           2 * 2 * n * (double)c->vocab * c->hidden;
}

static void run_unit(struct bench *b) {
    struct err_info info = {0};
    int32_t start[2] = {0, (int32_t)b->o.tokens};
    struct lora_row row = {.n_tokens = start[1],
                           .n_seqs = 1,
                           .ids = b->ids,
                           .seq_start = start,
                           .mask = b->mask,
                           .keys = b->o.dropout > 0 ? b->keys : NULL,
                           .weight = 1,
                           .exponent = 30,
                           .backward = true};
    check(lora_unit_begin(b->unit, &row, b->range, b->bytes, &info), &info);
    for (bool done = false; !done;) {
        int64_t t0 = clock_mono_ns(&clock_system), c0 = limits_now_ns(b->limits);
        int64_t deadline = b->o.slice_us ? t0 + b->o.slice_us * 1000 : INT64_MAX;
        check(lora_unit_run(b->unit, deadline, &done, &info), &info);
        if (b->n_slices < MAX_SLICES)
            b->slices[b->n_slices++] = limits_now_ns(b->limits) - c0;
    }
}

static void run_optimizer(struct bench *b) {
    struct err_info info = {0};
    struct lora_ranges r;
    lora_params_ranges(b->params, &r);
    double factor = 0x1p-30 / (double)b->o.tokens;
    size_t chunks = ((size_t)r.n + KN_SUMSQ_CHUNK - 1) / KN_SUMSQ_CHUNK;
    struct kn_sumsq norm = {.acc = r.acc,
                            .n = r.n,
                            .factor = factor,
                            .out = b->norms,
                            .largest = b->norms + chunks * sizeof(double)};
    struct kn_adamw step = {.w = r.w,
                            .m = r.m,
                            .v = r.v,
                            .acc = r.acc,
                            .n = r.n,
                            .factor = factor,
                            .lr = 1e-5,
                            .beta1 = 0.9,
                            .beta2 = 0.999,
                            .eps = 1e-8,
                            .c1 = 0.1,
                            .c2 = 0.001};
    check(b->ops->sumsq(b->queue, &norm), NULL);
    check(b->ops->adamw(b->queue, &step), NULL);
    check(b->ops->queue_wait(b->queue, &info), &info);
}

static struct rep run_rep(struct bench *b) {
    struct rep r = {.before = limits_measure(b->limits, LIMIT_FMA)};
    int64_t begin = limits_now_ns(b->limits);
    run_unit(b);
    run_optimizer(b);
    double s = (double)(limits_now_ns(b->limits) - begin) * 1e-9;
    r.after = limits_measure(b->limits, LIMIT_FMA);
    r.tok_s = (double)b->o.tokens / s;
    r.of_fma = flops(b) / s / ((r.before + r.after) / 2);
    return r;
}

static int slower(const void *a, const void *b) {
    const struct rep *x = a, *y = b;
    return (x->tok_s > y->tok_s) - (x->tok_s < y->tok_s);
}

static int ascending(const void *a, const void *b) {
    const int64_t *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}

int main(int argc, char **argv) {
    struct bench b = {0};
    struct opt_result res;
    struct err_info info = {0};
    check(opt_parse(&table, argc, argv, &b.o, &res, &info), &info);
    if (res.n_positional != 1) {
        fprintf(stderr, "usage: %s\n", table.usage);
        return 2;
    }
    open_model(&b, res.positional[0]);
    b.loaded = memory("VmRSS");
    forget_peak();
    open_unit(&b);
    run_rep(&b); // touches the memory
    b.n_slices = 0;
    profile_reset();
    struct rep reps[100], first = {0}, last = {0};
    for (int64_t i = 0; i < b.o.reps; i++) {
        reps[i] = last = run_rep(&b);
        first = i > 0 ? first : last;
        if (!b.o.json)
            printf("%.1f tokens/s, %.0f%% of %.0f GFLOP/s\n", last.tok_s, last.of_fma * 100,
                   (last.before + last.after) / 2 * 1e-9);
    }
    qsort(reps, (size_t)b.o.reps, sizeof *reps, slower);
    const struct rep *middle = &reps[b.o.reps / 2];
    long over = memory("VmHWM") - b.loaded;
    if (b.o.json)
        printf("{\"tok_s\": %.1f, \"of_fma\": %.3f, \"fma_before\": %.4g, \"fma_after\": %.4g, "
               "\"loaded_mib\": %ld, \"over_mib\": %ld}\n",
               middle->tok_s, middle->of_fma, first.before, last.after, b.loaded >> 10, over >> 10);
    else
        printf("median %.1f tokens/s, %.0f%% of the FMA limit; range %zu MiB, adapter %zu MiB, %ld "
               "MiB over the loaded model\n",
               middle->tok_s, middle->of_fma * 100, b.bytes >> 20,
               lora_params_bytes(b.params) >> 20, over >> 10);
    if (b.o.slice_us) {
        qsort(b.slices, (size_t)b.n_slices, sizeof *b.slices, ascending);
        long long half = b.n_slices / 2, p99 = b.n_slices * 99 / 100;
        printf("%lld calls: median %.0f us, p99 %.0f us, longest %.0f us\n", (long long)b.n_slices,
               (double)b.slices[half] * 1e-3, (double)b.slices[p99] * 1e-3,
               (double)b.slices[b.n_slices - 1] * 1e-3);
    }
    if (b.o.profile)
        profile_print(b.w, (double)(b.o.reps * b.o.tokens));
    opt_result_fini(&res);
    return 0;
}

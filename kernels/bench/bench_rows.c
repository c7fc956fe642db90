// SPDX-License-Identifier: Apache-2.0
// Times what is not a product: attention, row operations, sampling.
//   graft_bench_rows [attn] [rows] [sample] [options]      (default: all three)
//   --threads N (default: as the server)   --isa NAME (default: the best)   --reps N (15)
//   --case TEXT  only attention cases whose name has it
//   --cpu-time  with --threads 1: count CPU time, which other processes disturb least
// Attention is given as a share of the FMA peak and of the read bandwidth, both measured right
// before each repetition; shares are medians of ratios. FLOPs count visible positions only. The
// time of an empty command is printed first: it is part of every other time.
#include "base/mem.h"
#include "kernels/cpu/cpu_internal.h"
#include "kernels/device.h"
#include "limits.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_REPS = 200, LAYERS = 30 };

struct bench {
    const struct kn_ops *ops;
    struct kn_device *d;
    struct kn_queue *q;
    struct limits *limits;
    struct kn_device_info info;
    int reps;
    uint64_t rng;
};

static void die(const char *what) {
    fprintf(stderr, "graft_bench_rows: %s\n", what);
    exit(1);
}

static float random_value(struct bench *b) {
    b->rng ^= b->rng << 13;
    b->rng ^= b->rng >> 7;
    b->rng ^= b->rng << 17;
    return (float)(int64_t)b->rng * 0x1p-62f;
}

static kn_addr alloc(struct bench *b, size_t bytes) {
    kn_addr a;
    if (b->ops->alloc(b->d, bytes, &a))
        die("out of memory");
    return a;
}

static kn_addr alloc_random(struct bench *b, size_t n) {
    kn_addr a = alloc(b, n * sizeof(float));
    float *x = (float *)a; // this backend's addresses are plain pointers
    for (size_t i = 0; i < n; i++)
        x[i] = random_value(b);
    return a;
}

static kn_addr put(struct bench *b, const void *src, size_t bytes) {
    kn_addr a = alloc(b, bytes);
    b->ops->upload(b->q, a, src, bytes);
    return a;
}

static void wait_for(struct bench *b) {
    struct err_info info = {0};
    if (b->ops->queue_wait(b->q, &info))
        die(info.message);
}

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static double median(double *v, int n) {
    qsort(v, (size_t)n, sizeof *v, compare);
    return v[n / 2];
}

typedef void (*record_fn)(struct bench *b, const void *arg, int32_t i);

// Records `n` commands and waits for them, `reps` times. flops and bytes are those of one command.
static void measure(struct bench *b, const char *name, record_fn fn, const void *arg, int32_t n,
                    double flops, double bytes) {
    double t[MAX_REPS], fma[MAX_REPS], read[MAX_REPS];
    for (int r = -1; r < b->reps; r++) {
        double peak = flops > 0 ? limits_measure(b->limits, LIMIT_FMA) : 1;
        double bw = bytes > 0 ? limits_measure(b->limits, LIMIT_READ) : 1;
        for (int32_t i = 0; i < n; i++)
            fn(b, arg, i);
        int64_t t0 = limits_now_ns(b->limits);
        wait_for(b);
        double s = (double)(limits_now_ns(b->limits) - t0) * 1e-9 / n;
        if (r < 0)
            continue;
        t[r] = s;
        fma[r] = flops / s / peak;
        read[r] = bytes / s / bw;
    }
    double mid = median(t, b->reps);
    printf("%-44s %9.2f us (best %9.2f)", name, mid * 1e6, t[0] * 1e6);
    if (flops > 0)
        printf("  %5.1f%% of the FMA peak", median(fma, b->reps) * 100);
    if (bytes > 0)
        printf("  %5.1f%% of the bandwidth", median(read, b->reps) * 100);
    printf("\n");
    fflush(stdout);
}

// ---- attention

struct attn_case {
    const char *name;
    int32_t heads, kv_heads, dim, seqs, pos, n; // each sequence: n tokens from pos
};

struct attn_run {
    struct kn_batch batch;
    struct kn_attn attn;
    struct kn_rope_kv rope;
    struct kn_rope_table table;
};

static void record_attn(struct bench *b, const void *arg, int32_t i) {
    struct kn_attn p = ((const struct attn_run *)arg)->attn;
    p.layer = i;
    b->ops->attn(b->q, &p);
}

static void record_rope(struct bench *b, const void *arg, int32_t i) {
    struct kn_rope_kv p = ((const struct attn_run *)arg)->rope;
    p.layer = i;
    b->ops->rope_kv(b->q, &p);
}

static void record_table(struct bench *b, const void *arg, int32_t i) {
    (void)i;
    b->ops->rope_table(b->q, &((const struct attn_run *)arg)->table);
}

static void make_batch(struct bench *b, const struct attn_case *c, struct kn_batch *out) {
    int32_t total = c->seqs * c->n, len = c->pos + c->n;
    int32_t per = (len + KN_KV_BLOCK - 1) / KN_KV_BLOCK;
    int32_t *pos = mem_calloc((size_t)total, 4), *seq = mem_calloc((size_t)total, 4);
    int32_t *start = mem_calloc((size_t)c->seqs + 1, 4), *lens = mem_calloc((size_t)c->seqs, 4);
    int32_t *table = mem_calloc((size_t)(c->seqs * per), 4);
    if (!pos || !seq || !start || !lens || !table)
        die("out of memory");
    for (int32_t s = 0; s < c->seqs; s++) {
        start[s + 1] = (s + 1) * c->n;
        lens[s] = len;
        for (int32_t i = 0; i < c->n; i++) {
            pos[s * c->n + i] = c->pos + i;
            seq[s * c->n + i] = s;
        }
        for (int32_t i = 0; i < per; i++) // blocks of the sequences alternate
            table[s * per + i] = i * c->seqs + s;
    }
    *out = (struct kn_batch){
        .n_tokens = total,
        .n_seqs = c->seqs,
        .pos = put(b, pos, (size_t)total * 4),
        .seq = put(b, seq, (size_t)total * 4),
        .seq_start = put(b, start, ((size_t)c->seqs + 1) * 4),
        .kv_len = put(b, lens, (size_t)c->seqs * 4),
        .block_table = put(b, table, (size_t)(c->seqs * per) * 4),
        .max_blocks = per,
    };
    mem_free(pos);
    mem_free(seq);
    mem_free(start);
    mem_free(lens);
    mem_free(table);
}

static void bench_attn_case(struct bench *b, const struct attn_case *c) {
    struct attn_run r;
    make_batch(b, c, &r.batch);
    struct kn_kv_shape shape = {LAYERS, c->kv_heads, c->dim};
    int32_t width = (c->heads + 2 * c->kv_heads) * c->dim, rows = c->seqs * c->n;
    size_t blocks = (size_t)r.batch.max_blocks * (size_t)c->seqs;
    size_t pool_bytes = blocks * b->ops->kv_block_bytes(&shape);
    size_t q_bytes = (size_t)rows * (size_t)width * 4, out = (size_t)(rows * c->heads * c->dim) * 4;
    kn_addr pool = alloc(b, pool_bytes), freq = alloc_random(b, (size_t)c->dim);
    kn_addr qkv = alloc_random(b, q_bytes / 4), table = alloc(b, (size_t)(rows * c->dim) * 4);
    uint16_t *kv = (uint16_t *)pool;
    for (size_t i = 0; i < pool_bytes / 2; i++)
        kv[i] = kn_f32_to_bf16(random_value(b));
    kn_addr y = alloc(b, out), yq = alloc(b, out);
    r.attn = (struct kn_attn){.batch = &r.batch,
                              .q = qkv,
                              .ldq = width,
                              .pool = pool,
                              .shape = shape,
                              .heads = c->heads,
                              .scale = 0.125f,
                              .out = y,
                              .ldout = c->heads * c->dim,
                              .outq = yq};
    r.rope = (struct kn_rope_kv){.batch = &r.batch,
                                 .qkv = qkv,
                                 .ldqkv = width,
                                 .table = table,
                                 .pool = pool,
                                 .shape = shape,
                                 .heads = c->heads};
    r.table = (struct kn_rope_table){
        .batch = &r.batch, .inv_freq = freq, .scale = 1.0f, .dim = c->dim, .table = table};
    double seen = (double)c->n * (c->pos + (c->n + 1) * 0.5) * c->seqs;
    double flops = seen * c->heads * c->dim * 4;
    double bytes = (double)(c->pos + c->n) * c->seqs * c->kv_heads * c->dim * 4;
    char name[128];
    snprintf(name, sizeof name, "attn %s", c->name);
    measure(b, name, record_attn, &r, LAYERS, flops, bytes);
    snprintf(name, sizeof name, "rope_kv %s", c->name);
    measure(b, name, record_rope, &r, LAYERS, 0, 0);
    snprintf(name, sizeof name, "rope_table %s", c->name);
    measure(b, name, record_table, &r, 1, 0, 0);
    b->ops->free(b->d, pool, pool_bytes);
    b->ops->free(b->d, qkv, q_bytes);
    b->ops->free(b->d, y, out);
    b->ops->free(b->d, yq, out);
}

static void bench_attn(struct bench *b, const char *part) {
    static const struct attn_case cases[] = {
        {"9/3x64 prefill 512", 9, 3, 64, 1, 0, 512},
        {"9/3x64 prefill 512 at 3500", 9, 3, 64, 1, 3500, 512},
        {"32/8x128 prefill 512", 32, 8, 128, 1, 0, 512},
        {"8/8x80 prefill 512", 8, 8, 80, 1, 0, 512},
        {"9/3x64 decode at 1", 9, 3, 64, 1, 1, 1},
        {"9/3x64 decode at 200", 9, 3, 64, 1, 199, 1},
        {"9/3x64 decode at 2000", 9, 3, 64, 1, 1999, 1},
        {"9/3x64 decode at 16000", 9, 3, 64, 1, 15999, 1},
        {"32/8x128 decode at 8000", 32, 8, 128, 1, 7999, 1},
        {"9/3x64 decode 32 at 256", 9, 3, 64, 32, 255, 1},
        {"9/3x64 decode 256 at 256", 9, 3, 64, 256, 255, 1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        if (strstr(cases[i].name, part))
            bench_attn_case(b, &cases[i]);
}

// ---- rows

static void record_rmsnorm(struct bench *b, const void *arg, int32_t i) {
    (void)i;
    b->ops->rmsnorm(b->q, arg);
}
static void record_quantize(struct bench *b, const void *arg, int32_t i) {
    (void)i;
    b->ops->quantize(b->q, arg);
}
static void record_swiglu(struct bench *b, const void *arg, int32_t i) {
    (void)i;
    b->ops->swiglu(b->q, arg);
}
static void record_nothing(struct bench *b, const void *arg, int32_t i) {
    (void)i;
    struct kn_gather p = {0};
    memcpy(&p, arg, sizeof p);
    b->ops->gather(b->q, &p);
}

static void record_embed(struct bench *b, const void *arg, int32_t i) {
    (void)i;
    b->ops->embed(b->q, arg);
}

static void bench_embed(struct bench *b) {
    enum { N = 8192, K = 576, ROWS = 512 };
    static const enum kn_dtype types[] = {KN_BF16, KN_Q8_0, KN_Q4_0};
    float *src = mem_alloc(N * K * sizeof *src);
    void *file = mem_alloc(N * K * sizeof *src);
    int32_t ids[ROWS];
    if (!src || !file)
        die("out of memory");
    for (int32_t i = 0; i < N * K; i++)
        src[i] = random_value(b);
    for (int32_t i = 0; i < ROWS; i++)
        ids[i] = i * 7919 % N;
    kn_addr x = alloc(b, ROWS * K * sizeof(float)), id = put(b, ids, sizeof ids);
    for (size_t t = 0; t < sizeof types / sizeof *types; t++) {
        kn_quantize(types[t], src, file, N * K);
        struct kn_weight_src part = {.dtype = types[t], .n = N, .k = K, .data = file};
        struct kn_weight_spec spec = {.parts = &part, .n_parts = 1, .world = 1, .name = "x"};
        struct kn_weight *w;
        if (b->ops->weight_create(b->d, &spec, &w, NULL))
            die("no weight");
        struct kn_batch batch = {.n_seqs = 1, .ids = id};
        struct kn_embed p = {.w = w, .batch = &batch, .x = x, .ldx = K};
        for (int i = 0; i < 2; i++) {
            batch.n_tokens = i ? ROWS : 1;
            char name[64];
            snprintf(name, sizeof name, "embed %s, %d x %d", kn_dtype_name(types[t]),
                     batch.n_tokens, K);
            measure(b, name, record_embed, &p, 20, 0, 0);
        }
        b->ops->weight_destroy(w);
    }
    mem_free(src);
    mem_free(file);
}

static void bench_empty(struct bench *b) {
    int32_t zero = 0;
    kn_addr x = alloc_random(b, 64), rows = put(b, &zero, sizeof zero);
    struct kn_gather g = {x, x + 64, 1, 1, rows, 1, 1};
    measure(b, "empty command (one value gathered)", record_nothing, &g, 1000, 0, 0);
}

static void bench_rows(struct bench *b) {
    enum { K = 576, INNER = 1536, MOST = 512 };
    kn_addr x = alloc_random(b, MOST * 2 * INNER), w = alloc_random(b, K);
    kn_addr y = alloc(b, (size_t)MOST * INNER * 4), q = alloc(b, (size_t)MOST * INNER * 4);
    static const int32_t rows[] = {1, 32, 512};
    for (int i = 0; i < 3; i++) {
        char name[64];
        struct kn_rmsnorm n = {x, K, w, 1e-5f, rows[i], K, 0, 0, q};
        snprintf(name, sizeof name, "rmsnorm + quantise, %d x %d", rows[i], K);
        measure(b, name, record_rmsnorm, &n, 100, 0, 0);
        struct kn_quantize z = {x, INNER, q, rows[i], INNER};
        snprintf(name, sizeof name, "quantise, %d x %d", rows[i], INNER);
        measure(b, name, record_quantize, &z, 100, 0, 0);
        struct kn_swiglu s = {x, 2 * INNER, y, INNER, rows[i], INNER};
        snprintf(name, sizeof name, "swiglu, %d x %d", rows[i], INNER);
        measure(b, name, record_swiglu, &s, 100, 0, 0);
    }
}

// ---- sampling

static void record_sample(struct bench *b, const void *arg, int32_t i) {
    (void)i;
    b->ops->sample(b->q, arg);
}

static void bench_sample(struct bench *b) {
    enum { VOCAB = 49152, ROWS = 32 };
    static const struct {
        const char *name;
        float t;
        int32_t top_k;
        float top_p, min_p;
        int32_t n_logprobs;
        float spread;
    } cases[] = {
        {"greedy", 0, 0, 1, 0, -1, 3},
        {"greedy + 5 logprobs", 0, 0, 1, 0, 5, 3},
        {"temperature 1", 1, 0, 1, 0, -1, 3},
        {"top-p 0.9", 1, 0, 0.9f, 0, -1, 3},
        {"top-k 50", 1, 50, 1, 0, -1, 3},
        {"all filters", 0.7f, 40, 0.9f, 0.05f, -1, 3},
        {"top-p 0.99, flat", 1, 0, 0.99f, 0, -1, 0.1f},
    };
    kn_addr logits = alloc_random(b, (size_t)ROWS * VOCAB);
    struct kn_sample_row row[ROWS];
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        float *x = (float *)logits;
        for (size_t i = 0; i < (size_t)ROWS * VOCAB; i++) // nearly normal
            x[i] = cases[c].spread * (random_value(b) + random_value(b) + random_value(b));
        for (int i = 0; i < ROWS; i++)
            row[i] = (struct kn_sample_row){.seed = (uint64_t)i,
                                            .temperature = cases[c].t,
                                            .top_p = cases[c].top_p,
                                            .min_p = cases[c].min_p,
                                            .top_k = cases[c].top_k,
                                            .repetition = 1,
                                            .target = -1,
                                            .n_logprobs = cases[c].n_logprobs};
        struct kn_sample p = {.logits = logits,
                              .ld = VOCAB,
                              .vocab = VOCAB,
                              .params = put(b, row, sizeof row),
                              .out = alloc(b, ROWS * sizeof(struct kn_sample_out))};
        for (p.rows = 1; p.rows <= ROWS; p.rows += ROWS - 1) {
            char name[96];
            snprintf(name, sizeof name, "sample %s, %d x %d", cases[c].name, p.rows, VOCAB);
            measure(b, name, record_sample, &p, 10, 0, 0);
        }
    }
}

int main(int argc, char **argv) {
    struct bench b = {.ops = &kn_ops_cpu, .reps = 15, .rng = 88172645463325252u};
    struct kn_device_config cfg = {0};
    unsigned what = 0;
    bool cpu_time = false;
    const char *part = "";
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "attn"))
            what |= 1;
        else if (!strcmp(argv[i], "rows"))
            what |= 2;
        else if (!strcmp(argv[i], "sample"))
            what |= 4;
        else if (!strcmp(argv[i], "--cpu-time"))
            cpu_time = true;
        else if (i + 1 < argc && !strcmp(argv[i], "--threads"))
            cfg.threads = (int)strtol(argv[++i], NULL, 10);
        else if (i + 1 < argc && !strcmp(argv[i], "--isa"))
            cfg.isa = argv[++i];
        else if (i + 1 < argc && !strcmp(argv[i], "--reps"))
            b.reps = (int)strtol(argv[++i], NULL, 10);
        else if (i + 1 < argc && !strcmp(argv[i], "--case"))
            part = argv[++i];
        else
            die("usage: graft_bench_rows [attn] [rows] [sample] [--threads N] [--isa NAME] "
                "[--reps N] [--case PART OF AN ATTENTION CASE'S NAME]");
    }
    if (b.reps < 1 || b.reps > MAX_REPS)
        die("--reps must be 1 to 200");
    struct err_info info = {0};
    if (b.ops->open(&cfg, &b.d, &info))
        die(info.message);
    b.ops->info(b.d, &b.info);
    if (b.ops->queue_create(b.d, &b.q))
        die("out of memory");
    if (limits_create(&b.limits, cpu_device_isa(b.d)->name, b.info.threads, cpu_time))
        die("out of memory");
    printf("%s, %d threads\n", b.info.kernel_set, b.info.threads);
    bench_empty(&b);
    if (!what || what & 1)
        bench_attn(&b, part);
    if (!what || what & 2)
        bench_rows(&b);
    if (!what || what & 2)
        bench_embed(&b);
    if (!what || what & 4)
        bench_sample(&b);
    limits_destroy(b.limits);
    b.ops->queue_destroy(b.q);
    b.ops->close(b.d);
    return 0;
}

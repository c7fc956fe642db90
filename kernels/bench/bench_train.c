// SPDX-License-Identifier: Apache-2.0
// Times training's operations at a small Llama's shape (SmolLM2-135M: hidden 576, inner 1536, 9 / 3
// heads of 64, vocabulary 49152, rank 16) for 512 rows, and a layer's whole backward.
//   graft_bench_train [attn] [lora] [rows] [step] [layer] [options]      (default: all)
//   --threads N (default: as the server)   --isa NAME (default: the best)   --reps N (15)
//   --cpu-time  with --threads 1: count CPU time, which other processes disturb least
// Shares of the FMA peak and of the read bandwidth, both measured right before each repetition, are
// medians of ratios. FLOPs count what the formulas need: visible pairs, five products of attention.
#include "base/mem.h"
#include "kernels/cpu/cpu_internal.h"
#include "kernels/device.h"
#include "limits.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    MAX_REPS = 200,
    ROWS = 512,
    HIDDEN = 576,
    INNER = 1536,
    HEADS = 9,
    KV_HEADS = 3,
    DIM = 64,
    QKV = (HEADS + 2 * KV_HEADS) * DIM,
    VOCAB = 49152,
    RANK = 16,
    VALUES = 4884480, // trained by RANK on all linear layers of 30
};

struct bench {
    const struct kn_ops *ops;
    struct kn_device *d;
    struct kn_queue *q;
    struct limits *limits;
    int reps;
    uint64_t rng;
};

static void die(const char *what) {
    fprintf(stderr, "graft_bench_train: %s\n", what);
    exit(1);
}

static float random_value(struct bench *b) {
    b->rng ^= b->rng << 13;
    b->rng ^= b->rng >> 7;
    b->rng ^= b->rng << 17;
    return (float)(int64_t)b->rng * 0x1p-63f;
}

static kn_addr alloc(struct bench *b, size_t bytes) {
    kn_addr a;
    if (b->ops->alloc(b->d, bytes, &a))
        die("out of memory");
    return a;
}

static kn_addr fill(struct bench *b, size_t n) {
    kn_addr a = alloc(b, n * sizeof(float));
    float *x = (float *)a; // this backend's addresses are plain pointers
    for (size_t i = 0; i < n; i++)
        x[i] = random_value(b);
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

typedef void (*record_fn)(struct bench *b, const void *arg);

// Records `n` times and waits, `reps` times. flops and bytes are those of one.
static void measure(struct bench *b, const char *name, record_fn fn, const void *arg, int n,
                    double flops, double bytes) {
    double t[MAX_REPS], fma[MAX_REPS], read[MAX_REPS];
    for (int r = -1; r < b->reps; r++) {
        double peak = flops > 0 ? limits_measure(b->limits, LIMIT_FMA) : 1;
        double bw = bytes > 0 ? limits_measure(b->limits, LIMIT_READ) : 1;
        for (int i = 0; i < n; i++)
            fn(b, arg);
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
    printf("%-34s %9.1f us (best %9.1f)", name, mid * 1e6, t[0] * 1e6);
    if (flops > 0)
        printf("  %5.1f%% of the FMA peak", median(fma, b->reps) * 100);
    if (bytes > 0)
        printf("  %5.1f%% of the bandwidth", median(read, b->reps) * 100);
    printf("\n");
    fflush(stdout);
}

#define RECORD(op)                                                                                 \
    static void record_##op(struct bench *b, const void *arg) {                                    \
        b->ops->op(b->q, arg);                                                                     \
    }
RECORD(xent)
RECORD(rmsnorm_back)
RECORD(swiglu_back)
RECORD(attn_back)
RECORD(rope_back)
RECORD(scatter)
RECORD(grad_add)
RECORD(sumsq)
RECORD(adamw)
RECORD(lora_shrink_back)
RECORD(lora_dx)
RECORD(lora_grad)

// ---- attention

static void make_batch(struct bench *b, int32_t seqs, struct kn_batch *out) {
    int32_t n = ROWS / seqs, per = (n + KN_KV_BLOCK - 1) / KN_KV_BLOCK;
    int32_t *start = (int32_t *)alloc(b, ((size_t)seqs + 1) * 4);
    int32_t *len = (int32_t *)alloc(b, (size_t)seqs * 4);
    int32_t *table = (int32_t *)alloc(b, (size_t)(seqs * per) * 4);
    for (int32_t s = 0; s < seqs; s++) {
        start[s + 1] = (s + 1) * n;
        len[s] = n;
        for (int32_t i = 0; i < per; i++)
            table[s * per + i] = s * per + i;
    }
    *out = (struct kn_batch){.n_tokens = ROWS,
                             .n_seqs = seqs,
                             .seq_start = (kn_addr)start,
                             .kv_len = (kn_addr)len,
                             .block_table = (kn_addr)table,
                             .max_blocks = per};
}

static struct kn_attn_back make_attn(struct bench *b, const struct kn_batch *batch) {
    struct kn_kv_shape shape = {1, KV_HEADS, DIM};
    size_t bytes =
        (size_t)batch->n_seqs * (size_t)batch->max_blocks * b->ops->kv_block_bytes(&shape);
    kn_addr pool = alloc(b, bytes);
    for (size_t i = 0; i < bytes / 2; i++)
        ((uint16_t *)pool)[i] = kn_f32_to_bf16(random_value(b));
    return (struct kn_attn_back){.batch = batch,
                                 .q = fill(b, ROWS * QKV),
                                 .ldq = QKV,
                                 .pool = pool,
                                 .shape = shape,
                                 .heads = HEADS,
                                 .scale = 0.125f,
                                 .out = fill(b, ROWS * HIDDEN),
                                 .dout = fill(b, ROWS * HIDDEN),
                                 .ldout = HIDDEN,
                                 .lddout = HIDDEN,
                                 .dqkv = alloc(b, ROWS * QKV * 4),
                                 .lddqkv = QKV};
}

static double attn_flops(int32_t seqs) {
    int32_t rows = ROWS / seqs;
    double n = rows;
    return 5 * 2 * DIM * HEADS * seqs * n * (n + 1) / 2;
}

struct sliced {
    struct kn_attn_back p;
    int32_t tokens;
};

static void record_sliced(struct bench *b, const void *arg) {
    const struct sliced *s = arg;
    struct kn_attn_back p = s->p;
    for (p.token_begin = 0; p.token_begin < ROWS; p.token_begin = p.token_end) {
        p.token_end = p.token_begin + s->tokens;
        b->ops->attn_back(b->q, &p);
    }
}

static void bench_attn(struct bench *b) {
    for (int32_t seqs = 1; seqs <= 8; seqs *= 8) {
        struct kn_batch batch;
        char name[64];
        make_batch(b, seqs, &batch);
        struct sliced s = {.p = make_attn(b, &batch)};
        snprintf(name, sizeof name, "attn_back, %d x %d", seqs, ROWS / seqs);
        measure(b, name, record_attn_back, &s.p, 4, attn_flops(seqs), 0);
        for (s.tokens = 64; seqs == 1 && s.tokens >= 16; s.tokens /= 4) {
            snprintf(name, sizeof name, "attn_back, 1 x %d by %d tokens", ROWS, s.tokens);
            measure(b, name, record_sliced, &s, 4, attn_flops(1), 0);
        }
    }
}

// ---- adapters

struct module {
    struct kn_lora_shrink_back shrink;
    struct kn_lora_dx dx;
    struct kn_lora_grad grad_a, grad_b;
};

static struct module make_module(struct bench *b, kn_addr x, kn_addr dy, kn_addr dx, int32_t k,
                                 int32_t n, int64_t lddy) {
    kn_addr a = fill(b, b->ops->lora_bytes(KN_LORA_A, RANK, k) / 4);
    kn_addr m = fill(b, b->ops->lora_bytes(KN_LORA_B, n, RANK) / 4);
    kn_addr u = fill(b, ROWS * RANK), du = fill(b, ROWS * RANK);
    return (struct module){
        .shrink = {.x = x,
                   .dy = dy,
                   .ldx = k,
                   .lddy = lddy,
                   .a = a,
                   .b = m,
                   .rows = ROWS,
                   .k = k,
                   .n = n,
                   .r = RANK,
                   .scale = 2,
                   .u = u,
                   .du = du},
        .dx = {.du = du, .a = a, .dx = dx, .lddx = k, .rows = ROWS, .k = k, .r = RANK},
        .grad_a = {.side = KN_LORA_A,
                   .left = du,
                   .right = x,
                   .ld_right = k,
                   .rows = ROWS,
                   .width = k,
                   .r = RANK,
                   .grad = alloc(b, b->ops->lora_bytes(KN_LORA_A, RANK, k))},
        .grad_b = {.side = KN_LORA_B,
                   .left = u,
                   .right = dy,
                   .ld_right = lddy,
                   .rows = ROWS,
                   .width = n,
                   .r = RANK,
                   .scale = 2,
                   .grad = alloc(b, b->ops->lora_bytes(KN_LORA_B, n, RANK))},
    };
}

static void bench_lora(struct bench *b) {
    static const int32_t shapes[][2] = {{HIDDEN, HIDDEN}, {HIDDEN, INNER}, {INNER, HIDDEN}};
    kn_addr keys = alloc(b, ROWS * 8), x = fill(b, ROWS * INNER), y = fill(b, ROWS * INNER);
    kn_addr z = fill(b, ROWS * INNER);
    for (int i = 0; i < 4; i++) {
        int32_t k = shapes[i % 3][0], n = shapes[i % 3][1];
        struct module m = make_module(b, x, y, z, k, n, n);
        double f = 2.0 * ROWS * RANK;
        if (i == 3) {
            struct kn_dropout d = {0.1f, 3, keys};
            m.shrink.dropout = m.dx.dropout = m.grad_a.dropout = d;
        }
        printf("module %d -> %d%s\n", k, n, i == 3 ? ", dropout 0.1" : "");
        measure(b, "  lora_shrink_back", record_lora_shrink_back, &m.shrink, 10, f * (k + n), 0);
        measure(b, "  lora_dx", record_lora_dx, &m.dx, 10, f * k, 0);
        measure(b, "  lora_grad A", record_lora_grad, &m.grad_a, 10, f * k, 0);
        measure(b, "  lora_grad B", record_lora_grad, &m.grad_b, 10, f * n, 0);
    }
}

// ---- rows

static void bench_rows(struct bench *b) {
    kn_addr x = fill(b, ROWS * 2 * INNER), dy = fill(b, ROWS * INNER);
    kn_addr dx = fill(b, ROWS * 2 * INNER), w = fill(b, INNER);
    struct kn_rmsnorm_back norm = {.x = x,
                                   .dy = dy,
                                   .dx = dx,
                                   .ldx = HIDDEN,
                                   .lddy = HIDDEN,
                                   .lddx = HIDDEN,
                                   .weight = w,
                                   .eps = 1e-5f,
                                   .rows = ROWS,
                                   .k = HIDDEN,
                                   .add = true};
    measure(b, "rmsnorm_back 512 x 576", record_rmsnorm_back, &norm, 20, 0, 16.0 * ROWS * HIDDEN);
    struct kn_swiglu_back glu = {.x = x,
                                 .dy = dy,
                                 .dx = dx,
                                 .ldx = 2 * INNER,
                                 .lddy = INNER,
                                 .lddx = 2 * INNER,
                                 .rows = ROWS,
                                 .k = INNER};
    measure(b, "swiglu_back 512 x 1536", record_swiglu_back, &glu, 10, 0, 20.0 * ROWS * INNER);
    struct kn_batch batch = {.n_tokens = ROWS, .n_seqs = 1};
    struct kn_rope_back rope = {&batch, dx, QKV, x, HEADS, KV_HEADS, DIM};
    measure(b, "rope_back", record_rope_back, &rope, 20, 0, 8.0 * ROWS * (QKV - KV_HEADS * DIM));
    int32_t *rows = (int32_t *)alloc(b, ROWS * 4);
    for (int32_t i = 0; i < ROWS / 2; i++)
        rows[i] = 2 * i;
    struct kn_scatter s = {dy, dx, HIDDEN, HIDDEN, (kn_addr)rows, ROWS / 2, ROWS, HIDDEN};
    measure(b, "scatter 256 of 512 x 576", record_scatter, &s, 20, 0, 6.0 * ROWS * HIDDEN);
    enum { LOSS_ROWS = 64 }; // in pieces, as training has them
    int32_t *target = (int32_t *)alloc(b, LOSS_ROWS * 4);
    struct kn_xent loss = {.logits = fill(b, (size_t)LOSS_ROWS * VOCAB),
                           .ld = VOCAB,
                           .rows = LOSS_ROWS,
                           .vocab = VOCAB,
                           .target = (kn_addr)target,
                           .weight = w,
                           .loss = alloc(b, LOSS_ROWS * 4),
                           .hit = alloc(b, LOSS_ROWS * 4)};
    measure(b, "xent, loss, 64 x 49152", record_xent, &loss, 1, 0, 4.0 * LOSS_ROWS * VOCAB);
    loss.grad = true;
    measure(b, "xent, gradient, 64 x 49152", record_xent, &loss, 1, 0, 8.0 * LOSS_ROWS * VOCAB);
}

// ---- the optimizer

static void bench_step(struct bench *b) {
    kn_addr g = fill(b, VALUES), acc = alloc(b, (size_t)VALUES * 8), flag = alloc(b, 4);
    kn_addr sums = alloc(b, VALUES / KN_SUMSQ_CHUNK * 16 + 64), m = fill(b, VALUES);
    kn_addr v = alloc(b, (size_t)VALUES * 4);
    struct kn_grad_add add = {.g = g, .acc = acc, .n = VALUES, .exponent = 30, .flag = flag};
    measure(b, "grad_add, 4.9 million", record_grad_add, &add, 1, 0, 20.0 * VALUES);
    struct kn_sumsq sq = {.acc = acc,
                          .n = VALUES,
                          .factor = 0x1p-30,
                          .out = sums,
                          .largest = sums + VALUES / KN_SUMSQ_CHUNK * 8 + 16};
    measure(b, "sumsq, 4.9 million", record_sumsq, &sq, 1, 0, 8.0 * VALUES);
    struct kn_adamw adam = {.w = g,
                            .m = m,
                            .v = v,
                            .acc = acc,
                            .n = VALUES,
                            .factor = 0x1p-30,
                            .lr = 1e-4,
                            .beta1 = 0.9,
                            .beta2 = 0.999,
                            .eps = 1e-8,
                            .c1 = 0.1,
                            .c2 = 0.001};
    measure(b, "adamw, 4.9 million", record_adamw, &adam, 1, 0, 40.0 * VALUES);
}

// ---- a layer's backward without recomputation

struct layer {
    struct kn_gemm_t gemm[4]; // qkv, o, gate_up, down
    struct module lora[7];
    struct kn_rmsnorm_back norm;
    struct kn_swiglu_back glu;
    struct kn_attn_back attn;
    struct kn_rope_back rope;
    struct kn_batch batch;
};

static void record_module(struct bench *b, const struct module *m) {
    b->ops->lora_shrink_back(b->q, &m->shrink);
    b->ops->lora_dx(b->q, &m->dx);
    b->ops->lora_grad(b->q, &m->grad_a);
    b->ops->lora_grad(b->q, &m->grad_b);
}

static void record_layer(struct bench *b, const void *arg) {
    const struct layer *l = arg;
    static const int modules[4] = {3, 1, 2, 1};
    for (int i = 3, m = 7; i >= 0; i--) {
        b->ops->gemm_t(b->q, &l->gemm[i]);
        for (int j = 0; j < modules[i]; j++)
            record_module(b, &l->lora[--m]);
        if (i == 3)
            b->ops->swiglu_back(b->q, &l->glu);
        if (i == 1)
            b->ops->attn_back(b->q, &l->attn);
        if (i == 1)
            b->ops->rope_back(b->q, &l->rope);
        if (i % 2 == 0)
            b->ops->rmsnorm_back(b->q, &l->norm);
    }
}

static struct kn_weight *make_weight(struct bench *b, enum kn_dtype t, int32_t n, int32_t k,
                                     enum kn_stack stack) {
    int parts = stack == KN_STACK_GATE_UP ? 2 : 1;
    float *x = mem_calloc((size_t)n * (size_t)k, 4);
    void *data = mem_calloc((size_t)n * (size_t)k, 4);
    if (!x || !data)
        die("out of memory");
    for (int64_t i = 0; i < (int64_t)n * k; i++)
        x[i] = random_value(b);
    kn_quantize(t, x, data, (size_t)n * (size_t)k);
    size_t row = 0;
    if (!kn_row_bytes(t, (uint64_t)k, &row))
        die("no such weight");
    struct kn_weight_src src[2];
    for (int i = 0; i < parts; i++)
        src[i] = (struct kn_weight_src){.dtype = t,
                                        .n = n / parts,
                                        .k = k,
                                        .data = (const char *)data + (size_t)(i * n / parts) * row};
    struct kn_weight_spec spec = {
        .parts = src, .n_parts = parts, .stack = stack, .world = 1, .name = "w"};
    struct kn_weight *w;
    struct err_info info;
    if (b->ops->weight_create(b->d, &spec, &w, &info))
        die(info.message);
    mem_free(x);
    mem_free(data);
    return w;
}

static void bench_layer_type(struct bench *b, enum kn_dtype t) {
    static const int32_t shapes[4][2] = {
        {QKV, HIDDEN}, {HIDDEN, HIDDEN}, {2 * INNER, HIDDEN}, {HIDDEN, INNER}};
    static const int32_t modules[7][3] = {// which product, first column, columns
                                          {0, 0, HIDDEN}, {0, HIDDEN, 192}, {0, 768, 192},
                                          {1, 0, HIDDEN}, {2, 0, INNER},    {2, INNER, INNER},
                                          {3, 0, HIDDEN}};
    struct layer l = {0};
    kn_addr in[4], dx[4], dy[4];
    double flops = attn_flops(1), gemm = 0;
    char name[64];
    for (int i = 0; i < 4; i++) {
        int32_t n = shapes[i][0], k = shapes[i][1];
        in[i] = fill(b, (size_t)ROWS * (size_t)k);
        dx[i] = fill(b, (size_t)ROWS * (size_t)k);
        dy[i] = fill(b, (size_t)ROWS * (size_t)n);
        l.gemm[i] =
            (struct kn_gemm_t){.w = make_weight(b, t, n, k, i == 2 ? KN_STACK_GATE_UP : KN_STACK),
                               .dy = dy[i],
                               .lddy = n,
                               .dx = dx[i],
                               .lddx = k,
                               .rows = ROWS};
        gemm += 2.0 * ROWS * n * k;
    }
    for (int i = 0; i < 7; i++) {
        int32_t g = modules[i][0], n = modules[i][2], k = shapes[g][1];
        l.lora[i] =
            make_module(b, in[g], dy[g] + (kn_addr)modules[i][1] * 4, dx[g], k, n, shapes[g][0]);
        flops += 2.0 * ROWS * RANK * (3.0 * k + 2.0 * n);
    }
    kn_addr w = fill(b, INNER);
    l.norm = (struct kn_rmsnorm_back){.x = in[0],
                                      .dy = dx[0],
                                      .dx = in[1],
                                      .ldx = HIDDEN,
                                      .lddy = HIDDEN,
                                      .lddx = HIDDEN,
                                      .weight = w,
                                      .eps = 1e-5f,
                                      .rows = ROWS,
                                      .k = HIDDEN,
                                      .add = true};
    l.glu = (struct kn_swiglu_back){.x = fill(b, ROWS * 2 * INNER),
                                    .dy = dx[3],
                                    .dx = dy[2],
                                    .ldx = 2 * INNER,
                                    .lddy = INNER,
                                    .lddx = 2 * INNER,
                                    .rows = ROWS,
                                    .k = INNER};
    make_batch(b, 1, &l.batch);
    l.attn = make_attn(b, &l.batch);
    l.rope = (struct kn_rope_back){&l.batch, l.attn.dqkv, QKV, fill(b, ROWS * DIM),
                                   HEADS,    KV_HEADS,    DIM};
    snprintf(name, sizeof name, "layer's backward, %s", kn_dtype_name(t));
    measure(b, name, record_layer, &l, 2, flops + gemm, 0);
    for (int i = 0; i < 4; i++)
        b->ops->weight_destroy((struct kn_weight *)(uintptr_t)l.gemm[i].w);
}

static void bench_layer(struct bench *b) {
    bench_layer_type(b, KN_BF16);
    bench_layer_type(b, KN_Q8_0);
    bench_layer_type(b, KN_Q4_1);
}

int main(int argc, char **argv) {
    static const struct {
        const char *name;
        void (*run)(struct bench *b);
    } groups[] = {{"attn", bench_attn},
                  {"lora", bench_lora},
                  {"rows", bench_rows},
                  {"step", bench_step},
                  {"layer", bench_layer}};
    enum { GROUPS = sizeof groups / sizeof *groups };
    struct bench b = {.ops = &kn_ops_cpu, .reps = 15, .rng = 88172645463325252u};
    struct kn_device_config cfg = {0};
    unsigned what = 0;
    bool cpu_time = false;
    for (int i = 1; i < argc; i++) {
        unsigned known = what;
        for (int g = 0; g < GROUPS; g++)
            if (!strcmp(argv[i], groups[g].name))
                what |= 1u << g;
        if (what != known)
            continue;
        if (!strcmp(argv[i], "--cpu-time"))
            cpu_time = true;
        else if (i + 1 < argc && !strcmp(argv[i], "--threads"))
            cfg.threads = (int)strtol(argv[++i], NULL, 10);
        else if (i + 1 < argc && !strcmp(argv[i], "--isa"))
            cfg.isa = argv[++i];
        else if (i + 1 < argc && !strcmp(argv[i], "--reps"))
            b.reps = (int)strtol(argv[++i], NULL, 10);
        else
            die("usage: graft_bench_train [attn] [lora] [rows] [step] [layer] [--threads N] "
                "[--isa NAME] [--reps N] [--cpu-time]");
    }
    if (b.reps < 1 || b.reps > MAX_REPS)
        die("--reps must be 1 to 200");
    struct err_info info = {0};
    struct kn_device_info about;
    if (b.ops->open(&cfg, &b.d, &info))
        die(info.message);
    b.ops->info(b.d, &about);
    if (b.ops->queue_create(b.d, &b.q) ||
        limits_create(&b.limits, cpu_device_isa(b.d)->name, about.threads, cpu_time))
        die("out of memory");
    printf("%s, %d threads\n", about.kernel_set, about.threads);
    for (int g = 0; g < GROUPS; g++)
        if (!what || what & 1u << g)
            groups[g].run(&b);
    limits_destroy(b.limits);
    b.ops->queue_destroy(b.q);
    b.ops->close(b.d);
    return 0;
}

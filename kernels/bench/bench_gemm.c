// SPDX-License-Identifier: Apache-2.0
// Times the products as shares of what the machine can do:
//   graft_bench_gemm limits | overhead | load | step | shapes | sustain [options]
//   --type f32|f16|bf16|q8_0|q4_0|q4_1   one weight type (default: bf16, q8_0, q4_0, q4_1)
//   --rows N        only this number of rows     --reps N      repetitions (15)
//   --threads N     (default: as the server)     --isa NAME    (default: the best)
//   --pin           pool on the process's CPUs   --json        one object a line
//   --transposed    dx = dy W instead            --cpu-time    with --threads 1: count CPU time
// `step` is every product of one step of SmolLM2-135M: 30 layers, and the head where few rows want
// logits. `shapes` takes single matrices in turn from more memory than the caches hold. `overhead`
// is what an empty command costs. `load` is the time to pack a model's weights. `sustain` repeats
// the step with its small operations for two seconds and counts: what is left when others use the
// CPUs.
//
// The speed of a shared machine changes from one second to the next, so both limits are measured
// right before each repetition, and the shares are medians of ratios.
#include "base/mem.h"
#include "kernels/cpu/cpu_internal.h"
#include "limits.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    MAX_STEPS = 20000,
    MAX_REPS = 200,
    LAYERS = 30,
    SHAPE_BYTES = 160 << 20,
    MAX_WEIGHTS = 4096
};

struct shape {
    int64_t n, k;
    enum kn_epilogue epilogue; // SWIGLU: gate and up
};

static const struct shape layer_shapes[] = {
    {960, 576, KN_GEMM_STORE},
    {576, 576, KN_GEMM_ADD},
    {3072, 576, KN_GEMM_SWIGLU},
    {576, 1536, KN_GEMM_ADD},
};
static const struct shape head_shape = {49152, 576, KN_GEMM_STORE};
static const struct shape single_shapes[] = {
    {576, 576, KN_GEMM_STORE},   {192, 576, KN_GEMM_STORE},   {3072, 576, KN_GEMM_SWIGLU},
    {576, 1536, KN_GEMM_STORE},  {49152, 576, KN_GEMM_STORE}, {2048, 2048, KN_GEMM_STORE},
    {8192, 2048, KN_GEMM_STORE}, {2048, 8192, KN_GEMM_STORE}};
static const int32_t all_rows[] = {1, 2, 4, 8, 16, 32, 64, 128, 512};
enum { N_LAYER = 4, N_SINGLE = 8, N_ROWS = 9, MAX_ROWS = 512, MAX_N = 49152, MAX_K = 8192 };

struct bench {
    const struct kn_ops *ops;
    struct kn_device *d;
    struct kn_queue *q;
    struct limits *limits;
    struct kn_device_info info;
    int reps;
    int32_t only_rows;
    bool json, transposed;
    int type;      // -1: the usual four
    uint8_t *file; // weights as a file has them, random
    kn_addr x, xq, y;
    size_t x_bytes, y_bytes;
    struct kn_weight *w[MAX_WEIGHTS];
    struct shape shape[MAX_WEIGHTS];
    int n_weights, next; // next: of the weights that are used in turn
    size_t bytes;        // of all weights in use
};

static uint64_t next_random(uint64_t *s) {
    *s ^= *s << 13;
    *s ^= *s >> 7;
    return *s ^= *s << 17;
}

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static double median(double *v, int n) {
    qsort(v, (size_t)n, sizeof *v, compare);
    return v[n / 2];
}

static void die(const char *what) {
    fprintf(stderr, "graft_bench_gemm: %s\n", what);
    exit(1);
}

// ---- weights and inputs

static struct kn_weight *make_weight(struct bench *b, enum kn_dtype t, const struct shape *s) {
    bool gate_up = s->epilogue == KN_GEMM_SWIGLU;
    struct kn_weight_src src[2];
    for (int i = 0; i < 2; i++)
        src[i] = (struct kn_weight_src){
            .dtype = t, .n = gate_up ? s->n / 2 : s->n, .k = s->k, .data = b->file};
    struct kn_weight_spec spec = {.parts = src,
                                  .n_parts = gate_up ? 2 : 1,
                                  .stack = gate_up ? KN_STACK_GATE_UP : KN_STACK,
                                  .world = 1,
                                  .name = "bench"};
    struct kn_weight *w;
    struct err_info info;
    if (b->ops->weight_create(b->d, &spec, &w, &info))
        die(info.message);
    return w;
}

static void add_weight(struct bench *b, enum kn_dtype t, const struct shape *s) {
    if (b->n_weights == MAX_WEIGHTS)
        die("too many weights");
    b->shape[b->n_weights] = *s;
    b->w[b->n_weights] = make_weight(b, t, s);
    b->bytes += b->ops->weight_bytes(b->w[b->n_weights++]);
}

static void drop_weights(struct bench *b) {
    for (int i = 0; i < b->n_weights; i++)
        b->ops->weight_destroy(b->w[i]);
    b->n_weights = b->next = 0;
    b->bytes = 0;
}

// Scales near 0.01 and random quants; plain types small values.
static void fill_file(struct bench *b, enum kn_dtype t) {
    uint64_t s = 88172645463325252u;
    size_t values = (size_t)MAX_N * 576, block = kn_dtype_block_bytes(t);
    size_t blocks = values / kn_dtype_block(t);
    uint16_t scale = kn_f32_to_f16(0.01f);
    for (size_t i = 0; i < blocks; i++) {
        uint8_t *p = b->file + i * block;
        uint64_t r[5];
        for (int j = 0; j < 5; j++)
            r[j] = next_random(&s);
        if (kn_dtype_block(t) > 1) {
            memcpy(p, r, block < sizeof r ? block : sizeof r);
            memcpy(p, &scale, 2);
            if (t == KN_Q4_1)
                memcpy(p + 2, &scale, 2);
        } else {
            float v = ((float)(r[0] >> 40) * 0x1p-24f - 0.5f) * 0.1f;
            kn_quantize(t, &v, p, 1);
        }
    }
}

static void make_inputs(struct bench *b) {
    uint64_t s = 1;
    b->x_bytes = (size_t)MAX_ROWS * (MAX_K + 16) * sizeof(float);
    b->y_bytes = (size_t)MAX_ROWS * (MAX_N + 16) * sizeof(float);
    b->file = mem_map((size_t)MAX_N * 576 * sizeof(float));
    if (!b->file || b->ops->alloc(b->d, b->x_bytes, &b->x) ||
        b->ops->alloc(b->d, b->x_bytes, &b->xq) || b->ops->alloc(b->d, b->y_bytes, &b->y))
        die("no memory");
    float *x = (float *)b->x;
    for (size_t i = 0; i < b->x_bytes / sizeof *x; i++)
        x[i] = (float)(next_random(&s) >> 40) * 0x1p-23f - 1;
    struct cpu_q8_block *q = (struct cpu_q8_block *)b->xq;
    for (size_t i = 0; i < b->x_bytes / sizeof *q; i++)
        cpu_device_isa(b->d)->quantize_row(x + i * 16 % 4096, 32, &q[i]);
}

static void record_product(struct bench *b, int i, int32_t rows) {
    const struct shape *s = &b->shape[i];
    const struct kn_weight *w = b->w[i];
    if (b->transposed) {
        struct kn_gemm_t p = {
            .w = w, .dy = b->y, .lddy = s->n + 16, .dx = b->x, .lddx = s->k + 16, .rows = rows};
        (void)b->ops->gemm_t(b->q, &p);
        return;
    }
    bool q8 = b->ops->weight_form(w) == KN_FORM_Q8;
    struct kn_gemm p = {.w = w,
                        .x = q8 ? b->xq : b->x,
                        .ldx = s->k,
                        .y = b->y,
                        .ldy = s->n + 16,
                        .rows = rows,
                        .epilogue = s->epilogue};
    (void)b->ops->gemm(b->q, &p);
}

// ---- measuring

struct work {
    int first, count;  // weights in use, taken in turn
    int32_t rows;      // rows of each product but the head's
    double bytes, ops; // moved and computed by one repetition
    enum limit peak;   // that ops are compared with
    const char *type, *label;
};

static double run_once(struct bench *b, const struct work *k) {
    int64_t t = limits_now_ns(b->limits);
    for (int i = 0; i < k->count; i++)
        record_product(b, k->first + (b->next + i) % b->n_weights, k->rows);
    struct err_info info;
    if (b->ops->queue_wait(b->q, &info))
        die(info.message);
    b->next = (b->next + k->count) % b->n_weights;
    return (double)(limits_now_ns(b->limits) - t) * 1e-9;
}

static void measure(struct bench *b, const struct work *k) {
    double time[MAX_REPS], of_read[MAX_REPS], of_peak[MAX_REPS], read[MAX_REPS], peak[MAX_REPS];
    run_once(b, k);
    for (int r = 0; r < b->reps; r++) {
        read[r] = limits_measure(b->limits, LIMIT_READ);
        peak[r] = limits_measure(b->limits, k->peak);
        time[r] = run_once(b, k);
        of_read[r] = k->bytes / time[r] / read[r];
        of_peak[r] = peak[r] > 0 ? k->ops / time[r] / peak[r] : 0;
    }
    double t = median(time, b->reps), a = median(of_read, b->reps), c = median(of_peak, b->reps);
    double gbs = k->bytes / t * 1e-9, gops = k->ops / t * 1e-9;
    double lr = median(read, b->reps) * 1e-9, lp = median(peak, b->reps) * 1e-9;
    if (b->json)
        printf("{\"type\":\"%s\",\"what\":\"%s\",\"rows\":%d,\"ms\":%.4f,\"min_ms\":%.4f,"
               "\"max_ms\":%.4f,\"gb_s\":%.2f,\"of_read\":%.3f,\"read_gb_s\":%.2f,\"gop_s\":%.1f,"
               "\"of_peak\":%.3f,\"peak\":\"%s\",\"peak_gop_s\":%.1f}\n",
               k->type, k->label, k->rows, t * 1e3, time[0] * 1e3, time[b->reps - 1] * 1e3, gbs, a,
               lr, gops, c, limit_name(k->peak), lp);
    else
        printf("%-5s %-12s M=%-4d %9.3f ms [%.3f-%.3f]  %6.1f GB/s %3.0f%% [%.0f-%.0f] of %.1f   "
               "%7.1f Gop/s %3.0f%% [%.0f-%.0f] of %.0f\n",
               k->type, k->label, k->rows, t * 1e3, time[0] * 1e3, time[b->reps - 1] * 1e3, gbs,
               100 * a, 100 * of_read[0], 100 * of_read[b->reps - 1], lr, gops, 100 * c,
               100 * of_peak[0], 100 * of_peak[b->reps - 1], lp);
    fflush(stdout);
}

static enum limit peak_of(const struct bench *b, enum kn_dtype t) {
    if (b->transposed)
        return LIMIT_FMA;
    if (t == KN_BF16 && limits_has(b->limits, LIMIT_BF16))
        return LIMIT_BF16;
    return kn_dtype_block(t) > 1 ? LIMIT_DOT : LIMIT_FMA;
}

static void bench_step(struct bench *b, enum kn_dtype t) {
    for (int l = 0; l < LAYERS; l++)
        for (int i = 0; i < N_LAYER; i++)
            add_weight(b, t, &layer_shapes[i]);
    add_weight(b, t, &head_shape);
    for (int i = 0; i < N_ROWS; i++) {
        if (b->only_rows && all_rows[i] != b->only_rows)
            continue;
        bool head = all_rows[i] <= 64;
        struct work k = {.count = b->n_weights - !head,
                         .rows = all_rows[i],
                         .peak = peak_of(b, t),
                         .type = kn_dtype_name(t),
                         .label = head ? "step" : "step-no-head"};
        for (int j = 0; j < k.count; j++) {
            k.bytes += (double)b->ops->weight_bytes(b->w[j]);
            k.ops += 2.0 * (double)(b->shape[j].n * b->shape[j].k) * k.rows;
        }
        b->next = 0;
        struct work once = k;
        if (!head) // the head is the last weight: leave it out by starting over each time
            b->n_weights--;
        measure(b, &once);
        if (!head)
            b->n_weights++;
    }
    drop_weights(b);
}

static void bench_shapes(struct bench *b, enum kn_dtype t) {
    for (int s = 0; s < N_SINGLE; s++) {
        const struct shape *shape = &single_shapes[s];
        while (b->bytes < SHAPE_BYTES && b->n_weights < MAX_WEIGHTS)
            add_weight(b, t, shape);
        for (int i = 0; i < N_ROWS; i++) {
            if (b->only_rows && all_rows[i] != b->only_rows)
                continue;
            double ops = 2.0 * (double)(shape->n * shape->k) * all_rows[i];
            int count = (int)(4e9 / ops) + 1; // some milliseconds
            count = count < b->n_weights ? count : b->n_weights;
            char label[32];
            snprintf(label, sizeof label, "%lldx%lld", (long long)shape->n, (long long)shape->k);
            struct work k = {.count = count,
                             .rows = all_rows[i],
                             .bytes = (double)b->bytes / b->n_weights * count,
                             .ops = ops * count,
                             .peak = peak_of(b, t),
                             .type = kn_dtype_name(t),
                             .label = label};
            measure(b, &k);
        }
        drop_weights(b);
    }
}

// As a decode step has them: a norm before qkv and gate + up, a quantisation before the others.
static void record_small(struct bench *b, int i, int32_t rows) {
    int32_t k = (int32_t)b->shape[i].k;
    struct kn_rmsnorm norm = {
        .x = b->x, .ldx = k, .weight = b->x, .eps = 1e-5f, .rows = rows, .k = k, .yq = b->xq};
    struct kn_quantize quantize = {.x = b->x, .ldx = k, .yq = b->xq, .rows = rows, .k = k};
    if (i % 2 == 0)
        (void)b->ops->rmsnorm(b->q, &norm);
    else
        (void)b->ops->quantize(b->q, &quantize);
}

static void bench_sustain(struct bench *b, enum kn_dtype t) {
    for (int l = 0; l < LAYERS; l++)
        for (int i = 0; i < N_LAYER; i++)
            add_weight(b, t, &layer_shapes[i]);
    add_weight(b, t, &head_shape);
    int32_t rows = b->only_rows ? b->only_rows : 1;
    static double time[MAX_STEPS];
    int64_t start = limits_now_ns(b->limits), now = start;
    int steps = 0;
    for (; now - start < 2000000000 && steps < MAX_STEPS; steps++) {
        for (int i = 0; i < b->n_weights; i++) {
            record_small(b, i, rows);
            record_product(b, i, rows);
        }
        (void)b->ops->queue_wait(b->q, NULL);
        int64_t end = limits_now_ns(b->limits);
        time[steps] = (double)(end - now) * 1e-6;
        now = end;
    }
    double s = (double)(now - start) * 1e-9;
    double p50 = median(time, steps); // sorts
    printf("%-5s sustain M=%-4d %.1f steps/s, mean %.3f ms, p1 %.3f, p50 %.3f, p90 %.3f, p99 %.3f, "
           "slowest %.3f\n",
           kn_dtype_name(t), rows, steps / s, s * 1e3 / steps, time[steps / 100], p50,
           time[steps * 9 / 10], time[steps * 99 / 100], time[steps - 1]);
    drop_weights(b);
}

static void bench_load(struct bench *b, enum kn_dtype t) {
    double time[MAX_REPS];
    size_t bytes = 0;
    for (int r = 0; r < b->reps; r++) {
        int64_t start = limits_now_ns(b->limits);
        for (int l = 0; l < LAYERS; l++)
            for (int i = 0; i < N_LAYER; i++)
                add_weight(b, t, &layer_shapes[i]);
        add_weight(b, t, &head_shape);
        time[r] = (double)(limits_now_ns(b->limits) - start) * 1e-9;
        bytes = b->bytes;
        drop_weights(b);
    }
    double s = median(time, b->reps);
    printf("%-5s load %.1f ms [%.1f-%.1f], %.1f MB, %.2f GB/s\n", kn_dtype_name(t), s * 1e3,
           time[0] * 1e3, time[b->reps - 1] * 1e3, (double)bytes * 1e-6, (double)bytes / s * 1e-9);
}

static void bench_limits(struct bench *b) {
    for (int what = 0; what < LIMITS; what++) {
        double v[MAX_REPS];
        if (!limits_has(b->limits, (enum limit)what))
            continue;
        for (int r = 0; r < b->reps; r++)
            v[r] = limits_measure(b->limits, (enum limit)what);
        double m = median(v, b->reps) * 1e-9;
        printf("%-8s %8.1f G/s [%.1f-%.1f], %d threads\n", limit_name((enum limit)what), m,
               v[0] * 1e-9, v[b->reps - 1] * 1e-9, b->info.threads);
    }
}

static void run_nothing(const void *params, struct cpu_task *t) {
    (void)params;
    for (int32_t i; cpu_claim(t, 2 * t->nt, &i);)
        ;
}

static void bench_overhead(struct bench *b) {
    static const int counts[] = {1, 250, 2000};
    for (int c = 0; c < 3; c++) {
        double v[MAX_REPS];
        for (int r = 0; r < b->reps; r++) {
            int64_t t = limits_now_ns(b->limits);
            for (int i = 0; i < counts[c]; i++)
                (void)cpu_record(b->q, run_nothing, NULL, 0);
            (void)b->ops->queue_wait(b->q, NULL);
            v[r] = (double)(limits_now_ns(b->limits) - t);
        }
        double m = median(v, b->reps);
        printf("%d empty commands: %.1f us [%.1f-%.1f], %.0f ns each\n", counts[c], m * 1e-3,
               v[0] * 1e-3, v[b->reps - 1] * 1e-3, m / counts[c]);
    }
}

// ---- command line

static int number(const char *s) {
    char *end;
    long v = s ? strtol(s, &end, 10) : -1;
    if (!s || *end || v < 0 || v > 1 << 20)
        die("a number is missing");
    return (int)v;
}

static int type_named(const char *s) {
    for (int t = 0; s && t < KN_I32; t++) {
        const char *name = kn_dtype_name((enum kn_dtype)t);
        size_t i = 0;
        while (name[i] && (name[i] == s[i] || (name[i] | 32) == s[i]))
            i++;
        if (!name[i] && !s[i])
            return t;
    }
    die("--type wants f32, f16, bf16, q8_0, q4_0 or q4_1");
    return 0;
}

int main(int argc, char **argv) {
    static struct bench b; // large
    struct kn_device_config cfg = {0};
    bool cpu_time = false;
    const char *what = argc > 1 ? argv[1] : "step";
    b.ops = &kn_ops_cpu;
    b.reps = 15;
    b.type = -1;
    for (int i = 2; i < argc; i++) {
        const char *next = i + 1 < argc ? argv[i + 1] : NULL;
        if (strcmp(argv[i], "--json") == 0)
            b.json = true;
        else if (strcmp(argv[i], "--pin") == 0)
            cfg.pin = true;
        else if (strcmp(argv[i], "--transposed") == 0)
            b.transposed = true;
        else if (strcmp(argv[i], "--cpu-time") == 0)
            cpu_time = true;
        else if (strcmp(argv[i], "--type") == 0 && ++i)
            b.type = type_named(next);
        else if (strcmp(argv[i], "--rows") == 0 && ++i)
            b.only_rows = number(next);
        else if (strcmp(argv[i], "--reps") == 0 && ++i)
            b.reps = number(next);
        else if (strcmp(argv[i], "--threads") == 0 && ++i)
            cfg.threads = number(next);
        else if (strcmp(argv[i], "--isa") == 0 && ++i)
            cfg.isa = next;
        else
            die("unknown option; the head of bench_gemm.c lists them");
    }
    if (b.reps < 1 || b.reps > MAX_REPS)
        die("--reps wants 1 to 200");
    struct err_info info = {0};
    if (b.ops->open(&cfg, &b.d, &info) || b.ops->queue_create(b.d, &b.q))
        die(info.message);
    b.ops->info(b.d, &b.info);
    if (limits_create(&b.limits, cpu_device_isa(b.d)->name, b.info.threads, cpu_time))
        die("no memory");
    make_inputs(&b);
    static const enum kn_dtype usual[] = {KN_BF16, KN_Q8_0, KN_Q4_0, KN_Q4_1};
    int n_types = b.type >= 0 ? 1 : 4;
    if (strcmp(what, "limits") == 0)
        bench_limits(&b);
    else if (strcmp(what, "overhead") == 0)
        bench_overhead(&b);
    else
        for (int i = 0; i < n_types; i++) {
            enum kn_dtype t = b.type >= 0 ? (enum kn_dtype)b.type : usual[i];
            fill_file(&b, t);
            if (strcmp(what, "step") == 0)
                bench_step(&b, t);
            else if (strcmp(what, "shapes") == 0)
                bench_shapes(&b, t);
            else if (strcmp(what, "load") == 0)
                bench_load(&b, t);
            else if (strcmp(what, "sustain") == 0)
                bench_sustain(&b, t);
            else
                die("limits, overhead, load, step, shapes or sustain");
        }
    limits_destroy(b.limits);
    b.ops->queue_destroy(b.q);
    b.ops->free(b.d, b.x, b.x_bytes);
    b.ops->free(b.d, b.xq, b.x_bytes);
    b.ops->free(b.d, b.y, b.y_bytes);
    mem_unmap(b.file, (size_t)MAX_N * 576 * sizeof(float));
    b.ops->close(b.d);
    return 0;
}

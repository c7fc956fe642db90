// SPDX-License-Identifier: Apache-2.0
// Not a test: prints what the engine makes of a model, without a gateway.
//   graft_bench_engine MODEL [THREADS]
//   one     one stream: prefill of 512 tokens, then 128 tokens
//   batch   32 streams decoding
//   users   32 users with 128 + 64 tokens each, asking again at once
//   long    8 streams while a prompt of 4,000 tokens arrives
// Prompts are distinct random tokens, so prefix caches are cold.
#include "base/hash.h"
#include "base/mem.h"
#include "serving/engine.h"
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_USERS = 40, MAX_TOKENS = 4096, LONG = 4000 };

struct user {
    struct eng_stream *stream;
    int64_t sent_ns, token_ns[MAX_TOKENS];
    int32_t n;
    bool ended;
};

struct bench {
    struct mdl_weights *weights;
    struct kn_device *device;
    struct eng *e;
    sem_t news;
    struct user users[MAX_USERS];
    int64_t values[1 << 18];
    uint64_t made;
};

static int64_t now_ns(void) {
    return clock_mono_ns(&clock_system);
}

static void wake(void *arg, struct eng_stream *s) {
    (void)s;
    sem_post(arg);
}

static bool ask(struct bench *b, int32_t who, int32_t n_prompt, int32_t n) {
    static int32_t prompt[LONG];
    struct user *u = &b->users[who];
    if (u->stream)
        eng_stream_release(u->stream);
    memset(u, 0, sizeof *u);
    b->made++;
    for (int32_t i = 0; i < n_prompt; i++)
        prompt[i] = (int32_t)(hash_mix64(b->made * 100003 + (uint64_t)i) %
                              (uint64_t)b->weights->config.vocab);
    struct eng_request r = {
        .prompt = prompt,
        .n_prompt = n_prompt,
        .sampling = {.top_p = 1, .repetition = 1, .n_logprobs = -1},
        .n = 1,
        .max_tokens = n,
        .ignore_eos = true,
        .n_prompt_logprobs = -1,
        .deadline_ns = INT64_MAX,
        .adapter_slot = -1,
        .wake = wake,
        .wake_arg = &b->news,
    };
    u->sent_ns = now_ns();
    struct err_info info;
    if (!eng_submit(b->e, &r, &u->stream, &info))
        return true;
    fprintf(stderr, "submit: %s\n", info.message);
    return false;
}

// Waits for news and takes it.
static void listen(struct bench *b) {
    sem_wait(&b->news);
    for (int32_t i = 0; i < MAX_USERS; i++) {
        struct user *u = &b->users[i];
        struct eng_event ev;
        while (u->stream && eng_stream_next(u->stream, &ev)) {
            if (ev.type == ENG_EVENT_TOKEN && u->n < MAX_TOKENS)
                u->token_ns[u->n++] = now_ns();
            u->ended = u->ended || ev.type == ENG_EVENT_END;
        }
    }
}

static void quiet(struct bench *b) {
    for (int32_t i = 0; i < MAX_USERS; i++) {
        if (b->users[i].stream)
            eng_stream_release(b->users[i].stream);
        b->users[i].stream = NULL;
    }
    while (eng_in_flight(b->e))
        sem_timedwait(&b->news, &(struct timespec){0});
}

static int compare(const void *a, const void *b) {
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

static double quantile_ms(int64_t *v, int32_t n, double q) {
    if (n == 0)
        return 0;
    qsort(v, (size_t)n, sizeof *v, compare);
    return (double)v[(int32_t)(q * (n - 1))] / 1e6;
}

static int32_t gaps(struct bench *b, int32_t users, int64_t from, int64_t to) {
    int32_t k = 0;
    for (int32_t i = 0; i < users; i++)
        for (int32_t t = 1; t < b->users[i].n; t++)
            if (b->users[i].token_ns[t] >= from && b->users[i].token_ns[t - 1] <= to)
                b->values[k++] = b->users[i].token_ns[t] - b->users[i].token_ns[t - 1];
    return k;
}

static void one(struct bench *b) {
    for (int round = 0; round < 3; round++) {
        if (!ask(b, 0, 512, 128))
            return;
        while (!b->users[0].ended)
            listen(b);
        const struct user *u = &b->users[0];
        double prefill = (double)(u->token_ns[0] - u->sent_ns) / 1e9;
        double decode = (double)(u->token_ns[127] - u->token_ns[0]) / 1e9;
        printf("one: prefill %.0f tok/s, decode %.1f tok/s\n", 512 / prefill, 127 / decode);
    }
    quiet(b);
}

static void batch(struct bench *b) {
    enum { STREAMS = 32, WARM = 20, COUNTED = 100 };
    for (int32_t i = 0; i < STREAMS; i++)
        if (!ask(b, i, 32, WARM + COUNTED + 40))
            return;
    while (b->users[STREAMS - 1].n < WARM)
        listen(b);
    int64_t begin = now_ns();
    int32_t had = b->users[STREAMS - 1].n;
    while (b->users[STREAMS - 1].n < had + COUNTED)
        listen(b);
    double s = (double)(now_ns() - begin) / 1e9;
    printf("batch: %d streams, %.0f tok/s in all\n", (int)STREAMS, STREAMS * COUNTED / s);
    quiet(b);
}

static void users(struct bench *b) {
    enum { USERS = 32, ASKED = 128, NEW = 64 };
    static int64_t ttft[ASKED];
    int32_t asked = USERS, done = 0, k = 0;
    int64_t begin = now_ns();
    for (int32_t i = 0; i < USERS; i++)
        if (!ask(b, i, 128, NEW))
            return;
    while (done < ASKED) {
        listen(b);
        for (int32_t i = 0; i < USERS; i++) {
            struct user *u = &b->users[i];
            if (!u->ended)
                continue;
            u->ended = false;
            ttft[done++] = u->token_ns[0] - u->sent_ns;
            for (int32_t t = 1; t < u->n; t++)
                b->values[k++] = u->token_ns[t] - u->token_ns[t - 1];
            if (asked < ASKED && ask(b, i, 128, NEW))
                asked++;
        }
    }
    double s = (double)(now_ns() - begin) / 1e9;
    printf("users: %.0f tok/s in all; first token p50 %.0f ms, p99 %.0f ms; gaps p50 %.1f ms, p99 "
           "%.1f ms\n",
           ASKED * NEW / s, quantile_ms(ttft, done, 0.5), quantile_ms(ttft, done, 0.99),
           quantile_ms(b->values, k, 0.5), quantile_ms(b->values, k, 0.99));
    quiet(b);
}

static void long_prompt(struct bench *b) {
    enum { STREAMS = 8 };
    double solo = 0;
    for (int round = 0; round < 2; round++) {
        if (!ask(b, 8, LONG, 2))
            return;
        while (!b->users[8].ended)
            listen(b);
        solo = (double)(b->users[8].token_ns[0] - b->users[8].sent_ns) / 1e9;
    }
    for (int32_t i = 0; i < STREAMS; i++)
        if (!ask(b, i, 64, 3000))
            return;
    while (b->users[STREAMS - 1].n < 30)
        listen(b);
    int64_t begin = now_ns();
    while (now_ns() - begin < 3000000000)
        listen(b);
    double calm = quantile_ms(b->values, gaps(b, STREAMS, begin, now_ns()), 0.99);
    begin = now_ns();
    if (!ask(b, 8, LONG, 4))
        return;
    while (!b->users[8].n)
        listen(b);
    double ttft = (double)(b->users[8].token_ns[0] - b->users[8].sent_ns) / 1e9;
    double busy = quantile_ms(b->values, gaps(b, STREAMS, begin, now_ns()), 0.99);
    begin = now_ns();
    while (now_ns() - begin < 3000000000)
        listen(b);
    double after = quantile_ms(b->values, gaps(b, STREAMS, begin, now_ns()), 0.99);
    printf("long: gaps p99 %.1f ms before, %.1f ms with the prompt, %.1f ms after (%.2fx, %.2fx); "
           "its first token %.2f s, alone %.2f s (%.2fx)\n",
           calm, busy, after, busy / calm, busy / after, ttft, solo, ttft / solo);
    quiet(b);
}

static enum err open_model(struct bench *b, const char *path, int threads, struct err_info *info) {
    struct kn_device_config dev = {.threads = threads, .pin = true};
    enum err e = kn_ops_cpu.open(&dev, &b->device, info);
    struct mdl_source *src = NULL;
    if (!e)
        e = mdl_source_open(path, &src, info);
    if (!e)
        e = mdl_weights_load(src, &kn_ops_cpu, b->device, 0, 1, NULL, &b->weights, info);
    if (src)
        mdl_source_close(src);
    if (e)
        return e;
    struct eng_config cfg = {
        .weights = b->weights,
        .ops = &kn_ops_cpu,
        .device = b->device,
        .kv_bytes = (size_t)1 << 30,
        .max_num_seqs = 64,
        .max_num_batched_tokens = 2048,
        .max_model_len = b->weights->config.context < 8192 ? b->weights->config.context : 8192,
        .max_queue = 256,
        .prefix_cache = true,
    };
    const char *stretch = getenv("GRAFT_BENCH_STRETCH");
    cfg.prefill_stretch = stretch ? strtod(stretch, NULL) : 0;
    e = eng_create(&cfg, &b->e, info);
    return e ? e : eng_start(b->e, info);
}

int main(int argc, char **argv) {
    static struct bench b;
    struct err_info info = {0};
    if (argc < 2) {
        fprintf(stderr, "usage: graft_bench_engine MODEL [THREADS [one|batch|users|long]]\n");
        return 2;
    }
    sem_init(&b.news, 0, 0);
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (open_model(&b, argv[1], argc > 2 ? atoi(argv[2]) : 0, &info)) {
        fprintf(stderr, "%s\n", info.message);
        return 1;
    }
    const char *only = argc > 3 ? argv[3] : NULL;
    static const struct {
        const char *name;
        void (*run)(struct bench *b);
    } all[] = {{"one", one}, {"batch", batch}, {"users", users}, {"long", long_prompt}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (!only || !strcmp(only, all[i].name))
            all[i].run(&b);
    eng_destroy(b.e);
    mdl_weights_destroy(b.weights);
    kn_ops_cpu.close(b.device);
    return 0;
}

// SPDX-License-Identifier: Apache-2.0
// Not a test: decoding on many adapters against decoding on the base, in alternating rounds.
//   graft_bench_adapters MODEL [THREADS [STREAMS [RANK]]]
// STREAMS (32) streams with an adapter each, of RANK (16) on all linears with random values,
// against as many on the base. Prints tokens per second of each round, the ratio of each pair, and
// their median.
#include "base/hash.h"
#include "base/io_pool.h"
#include "base/mem.h"
#include "serving/adapter_registry.h"
#include "serving/engine.h"
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MAX_STREAMS = 64, ROUNDS = 7, WARM = 10, COUNTED = 60, PROMPT = 32 };

struct bench {
    struct kn_device *device;
    struct mdl_weights *weights;
    struct adp_registry *registry;
    struct io_pool *io;
    struct eng *e;
    int32_t streams, rank;
    sem_t news;
    struct eng_stream *stream[MAX_STREAMS];
    int32_t n[MAX_STREAMS];
    uint64_t made;
};

static void wake(void *arg, struct eng_stream *s) {
    (void)s;
    sem_post(arg);
}

static enum err ask(struct bench *b, int32_t who, bool adapter, struct err_info *info) {
    int32_t prompt[PROMPT];
    char name[16];
    b->made++;
    for (int32_t i = 0; i < PROMPT; i++)
        prompt[i] = (int32_t)(hash_mix64(b->made * 100003 + (uint64_t)i) %
                              (uint64_t)b->weights->config.vocab);
    struct eng_request r = {
        .prompt = prompt,
        .n_prompt = PROMPT,
        .sampling = {.top_p = 1, .repetition = 1, .n_logprobs = -1},
        .n = 1,
        .max_tokens = WARM + COUNTED + 40,
        .ignore_eos = true,
        .n_prompt_logprobs = -1,
        .deadline_ns = INT64_MAX,
        .adapter_slot = -1,
        .wake = wake,
        .wake_arg = &b->news,
    };
    snprintf(name, sizeof name, "a%d", (int)who);
    enum err e = adapter ? adp_resolve(b->registry, name, &r.adapter, info) : ERR_OK;
    if (e)
        return e;
    b->n[who] = 0;
    e = eng_submit(b->e, &r, &b->stream[who], info);
    if (r.adapter)
        adp_unpin(r.adapter);
    return e;
}

// Waits until each stream has at least `least` tokens; the tokens that all have by then.
static int64_t listen(struct bench *b, int32_t least) {
    for (;;) {
        int64_t sum = 0;
        bool all = true;
        for (int32_t i = 0; i < b->streams; i++) {
            struct eng_event ev;
            while (eng_stream_next(b->stream[i], &ev))
                b->n[i] += ev.type == ENG_EVENT_TOKEN;
            sum += b->n[i];
            all = all && b->n[i] >= least;
        }
        if (all)
            return sum;
        sem_wait(&b->news);
    }
}

static enum err measure(struct bench *b, bool adapters, double *rate, struct err_info *info) {
    for (int32_t i = 0; i < b->streams; i++) {
        enum err e = ask(b, i, adapters, info);
        if (e)
            return e;
    }
    int64_t had = listen(b, WARM), begin = clock_mono_ns(&clock_system);
    int64_t got = listen(b, WARM + COUNTED) - had;
    *rate = (double)got / ((double)(clock_mono_ns(&clock_system) - begin) / 1e9);
    for (int32_t i = 0; i < b->streams; i++)
        eng_stream_release(b->stream[i]);
    while (eng_in_flight(b->e))
        usleep(1000);
    return ERR_OK;
}

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static enum err rounds(struct bench *b, struct err_info *info) {
    double ratio[ROUNDS], base, adapters;
    for (int i = -1; i < ROUNDS; i++) { // the first fills the slots and does not count
        enum err e = measure(b, false, &base, info);
        if (!e)
            e = measure(b, true, &adapters, info);
        if (e)
            return e;
        if (i < 0)
            continue;
        ratio[i] = adapters / base;
        printf("base %.0f tok/s, adapters %.0f tok/s, ratio %.3f\n", base, adapters, ratio[i]);
    }
    qsort(ratio, ROUNDS, sizeof *ratio, compare);
    printf("%d streams, rank %d: median ratio %.3f (from %.3f to %.3f)\n", (int)b->streams,
           (int)b->rank, ratio[ROUNDS / 2], ratio[0], ratio[ROUNDS - 1]);
    return ERR_OK;
}

static enum err write_random(const struct bench *b, const char *path, int32_t which,
                             struct err_info *info) {
    const struct mdl_config *c = &b->weights->config;
    struct mdl_adapter *a;
    enum err e = mdl_adapter_create(c, (1u << MDL_TARGETS) - 1, b->rank, 1, false, &a, info);
    if (e)
        return e;
    uint64_t seed = (uint64_t)which << 32;
    for (int32_t i = 0; i < a->n_layers; i++)
        for (int t = 0; t < MDL_TARGETS; t++) {
            int32_t n, k;
            mdl_target_shape(c, (enum mdl_target)t, &n, &k);
            for (int32_t j = 0; j < b->rank * k; j++)
                a->modules[i][t].a[j] = (float)(hash_mix64(seed++) >> 40) / (float)(1 << 28);
            for (int32_t j = 0; j < b->rank * n; j++)
                a->modules[i][t].b[j] = (float)(hash_mix64(seed++) >> 40) / (float)(1 << 28);
        }
    e = mdl_adapter_write(path, c, a, "bench", NULL, info);
    mdl_adapter_destroy(a);
    return e;
}

static enum err load_adapters(struct bench *b, struct err_info *info) {
    char folder[] = "/tmp/graft-bench-XXXXXX", file[64];
    if (!mkdtemp(folder))
        return err_set(info, ERR_IO, NULL, "no temporary folder");
    enum err e = ERR_OK;
    for (int32_t i = 0; i < b->streams && !e; i++) {
        char name[16];
        struct adp_version *v;
        const struct adp_origin from = {.path = folder};
        snprintf(name, sizeof name, "a%d", (int)i);
        if (!(e = write_random(b, folder, i, info)) &&
            !(e = adp_load(b->registry, name, &from, &v, info))) {
            e = adp_promote(b->registry, name, adp_number(v), info);
            adp_release(v);
        }
    }
    snprintf(file, sizeof file, "%s/adapter_config.json", folder);
    unlink(file);
    snprintf(file, sizeof file, "%s/adapter_model.safetensors", folder);
    unlink(file);
    rmdir(folder);
    return e;
}

static enum err open_all(struct bench *b, const char *path, int threads, struct err_info *info) {
    struct kn_device_config dev = {.threads = threads, .pin = true};
    struct mdl_source *src = NULL;
    enum err e = kn_ops_cpu.open(&dev, &b->device, info);
    if (!e && !(e = mdl_source_open(path, &src, info)))
        e = mdl_weights_load(src, &kn_ops_cpu, b->device, 0, 1, NULL, &b->weights, info);
    if (src)
        mdl_source_close(src);
    if (e)
        return e;
    struct adp_config ac = {.model = &b->weights->config, .max_host = MAX_STREAMS};
    if ((e = adp_create(&ac, &b->registry, info)) || (e = io_pool_create(2, 64, &b->io)) ||
        (e = load_adapters(b, info)))
        return e;
    struct eng_config cfg = {
        .weights = b->weights,
        .ops = &kn_ops_cpu,
        .device = b->device,
        .kv_bytes = (size_t)1 << 30,
        .max_num_seqs = MAX_STREAMS,
        .max_num_batched_tokens = 2048,
        .max_model_len = b->weights->config.context < 8192 ? b->weights->config.context : 8192,
        .max_queue = 256,
        .adapters = b->registry,
        .io = b->io,
        .max_loras = b->streams,
    };
    e = eng_create(&cfg, &b->e, info);
    return e ? e : eng_start(b->e, info);
}

int main(int argc, char **argv) {
    static struct bench b;
    struct err_info info = {0};
    b.streams = argc > 3 ? atoi(argv[3]) : 32;
    b.rank = argc > 4 ? atoi(argv[4]) : 16;
    if (argc < 2 || b.streams < 1 || b.streams > MAX_STREAMS) {
        fprintf(stderr, "usage: graft_bench_adapters MODEL [THREADS [STREAMS (1..%d) [RANK]]]\n",
                MAX_STREAMS);
        return 2;
    }
    sem_init(&b.news, 0, 0);
    setvbuf(stdout, NULL, _IOLBF, 0);
    enum err e = open_all(&b, argv[1], argc > 2 ? atoi(argv[2]) : 0, &info);
    if (!e)
        e = rounds(&b, &info);
    if (e)
        fprintf(stderr, "%s\n", info.message[0] ? info.message : err_text(e));
    eng_destroy(b.e);
    io_pool_destroy(b.io);
    adp_destroy(b.registry);
    mdl_weights_destroy(b.weights);
    if (b.device)
        kn_ops_cpu.close(b.device);
    return e ? 1 : 0;
}

// SPDX-License-Identifier: Apache-2.0
#include "gateway/model_host.h"
#include "base/cpus.h"
#include "base/hash.h"
#include "base/mem.h"
#include "gateway/model_files.h"
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { WORKSPACE_RESERVE = 64 << 20 };

// ---- progress bar

struct progress {
    bool terminal;
    int shown; // percent
    bool (*cancelled)(void *arg);
    void *cancelled_arg;
};

static bool show_progress(void *arg, size_t done, size_t total) {
    struct progress *p = arg;
    int percent = total ? (int)((double)done * 100 / (double)total) : 100;
    if (!p->terminal || percent == p->shown)
        return !p->cancelled(p->cancelled_arg);
    p->shown = percent;
    char bar[41];
    int full = percent * 40 / 100;
    memset(bar, '#', (size_t)full);
    memset(bar + full, '.', (size_t)(40 - full));
    bar[40] = '\0';
    fprintf(stderr, "\rloading [%s] %3d%%%s", bar, percent, percent == 100 ? "\n" : "");
    fflush(stderr);
    return !p->cancelled(p->cancelled_arg);
}

// ---- parts

// Each replica has its part of the threads. Where there are several, the weights are made by all of
// them on a device of their own, whose threads sleep from then on.
static enum err open_devices(struct model_host *h, const struct serve_options *o,
                             struct err_info *info) {
    struct cpus cpus;
    cpus_read(&cpus, "");
    int threads = o->threads ? (int)o->threads : cpus_threads(&cpus), n = (int)o->replicas;
    h->threads = threads;
    if (n > threads)
        return err_set(info, ERR_INVALID, "replicas",
                       "--replicas %d needs as many compute threads, and there are %d (--threads)",
                       n, threads);
    struct kn_device_config cfg = {
        .threads = threads,
        .isa = strcmp(o->isa, "auto") != 0 ? o->isa : NULL,
        .pin = true,
    };
    enum err rc = kn_require(&kn_ops_cpu, KN_NEED_SERVE, info);
    if (!rc)
        rc = kn_ops_cpu.open(&cfg, &h->device, info);
    h->devices[0] = h->device;
    for (int i = 0; n > 1 && i < n && !rc; i++) {
        cfg.part = i;
        cfg.parts = n;
        cfg.threads = threads * (i + 1) / n - threads * i / n;
        rc = kn_ops_cpu.open(&cfg, &h->devices[i], info);
    }
    return rc;
}

static enum err open_template(struct model_host *h, const struct serve_options *o,
                              const struct log *log, struct err_info *info) {
    if (o->chat_template)
        return model_files_template(o->chat_template, &h->template, info);
    const char *text;
    size_t len;
    mdl_source_chat_template(h->source, &text, &len);
    if (!text)
        return ERR_OK;
    struct err_info why;
    enum err rc = chat_template_parse(text, len, &h->template, &why);
    if (rc == ERR_NOMEM)
        return err_set(info, rc, NULL, "out of memory");
    if (rc) // completions still work; chat says why not
        log_write(log, LOG_WARN, "the model's chat template is not usable: %s", why.message);
    return ERR_OK;
}

static void neutral_sampling(struct mdl_config *c) {
    c->gen_temperature = c->gen_top_p = c->gen_min_p = c->gen_repetition_penalty = -1;
    c->gen_top_k = -1;
}

// Of each replica. As much as the wanted sequences can use, but together no more than half of what
// is left beside the weights.
static enum err size_kv(struct model_host *h, const struct serve_options *o, int32_t context,
                        struct err_info *info) {
    struct kn_device_info dev;
    kn_ops_cpu.info(h->device, &dev);
    struct kn_kv_shape shape = {h->config.n_layers, h->config.n_kv_heads, h->config.head_dim};
    size_t block = kn_ops_cpu.kv_block_bytes(&shape);
    size_t per_seq = ((size_t)context + KN_KV_BLOCK - 1) / KN_KV_BLOCK * block;
    size_t n = (size_t)o->replicas;
    if ((size_t)o->kv_cache_bytes > dev.memory_bytes)
        return err_set(info, ERR_LIMIT, "kv-cache-memory-bytes",
                       "--kv-cache-memory-bytes %zu MiB is more than the %zu MiB of memory here",
                       (size_t)o->kv_cache_bytes >> 20, dev.memory_bytes >> 20);
    if (o->kv_cache_bytes) {
        h->kv_bytes = (size_t)o->kv_cache_bytes / n;
    } else {
        size_t taken = h->weights->bytes + n * WORKSPACE_RESERVE;
        size_t room = dev.memory_bytes > taken ? (dev.memory_bytes - taken) / 2 / n : 0;
        size_t need = per_seq * (size_t)o->max_num_seqs;
        h->kv_bytes = need < room ? need : room;
    }
    if (h->kv_bytes < per_seq)
        return err_set(
            info, ERR_LIMIT, "kv-cache-memory-bytes",
            "the KV cache of a replica has %zu MiB, but one sequence of %d tokens needs %zu MiB; "
            "lower --max-model-len or raise --kv-cache-memory-bytes",
            h->kv_bytes >> 20, context, (per_seq >> 20) + 1);
    return ERR_OK;
}

static enum err set_names(struct model_host *h, const struct serve_options *o, struct app *app,
                          struct err_info *info) {
    size_t n = o->served_names.n ? o->served_names.n : 1;
    h->name = mem_strdup(mdl_source_name(h->source));
    h->names = mem_calloc(n, sizeof *h->names);
    if (!h->name || !h->names)
        return err_set(info, ERR_NOMEM, NULL, "out of memory");
    h->names[0] = h->name;
    for (size_t i = 0; i < o->served_names.n; i++) {
        h->names[i] = o->served_names.items[i];
        if (!h->names[i][0])
            return err_set(info, ERR_INVALID, "served-model-name",
                           "--served-model-name must not be empty");
    }
    app->names = h->names;
    app->n_names = n;
    return ERR_OK;
}

static enum err start_engines(struct model_host *h, const struct serve_options *o,
                              const struct log *log, struct metrics *metrics, struct app *app,
                              struct err_info *info) {
    struct eng_config cfg = {
        .weights = h->weights,
        .ops = &kn_ops_cpu,
        .kv_bytes = h->kv_bytes,
        .max_num_seqs = (int32_t)o->max_num_seqs,
        .max_num_batched_tokens = (int32_t)o->max_num_batched_tokens,
        .max_model_len = app->max_model_len,
        .max_queue = (int32_t)o->max_waiting,
        .prefix_cache = o->prefix_caching,
        .prefill_stretch = o->prefill_stretch,
        .slo_itl_ns = (int64_t)(o->slo_itl_ms * 1e6),
        .slo_ttft_ns = (int64_t)(o->slo_ttft_ms * 1e6),
        .clock = app->clock,
        .log = log,
        .metrics = metrics,
        .vllm_metrics = o->vllm_metrics,
        .model_label = app->names[0],
        .adapters = h->adapters.registry,
        .io = h->adapters.fetch,
        .io_gentle = h->adapters.gentle,
        .max_loras = (int32_t)o->max_loras,
    };
    h->replicas.stall_ns = app->stall_ns;
    h->replicas.clock = app->clock;
    enum err rc = ERR_OK;
    for (int32_t i = 0, n = (int32_t)o->replicas; i < n && !rc; i++) {
        cfg.device = h->devices[i];
        cfg.replica = i;
        if (i == n - 1) // training is beside the last one alone
            cfg.background = h->background;
        struct eng **e = &h->replicas.engine[i];
        rc = eng_create(&cfg, e, info);
        h->replicas.n += !rc;
        if (!rc)
            rc = eng_start(*e, info);
    }
    return rc;
}

// What answers name as their system: build, kernel set and model. The content's digest follows in
// /version.
static enum err set_fingerprint(struct model_host *h, struct app *app) {
    struct kn_device_info dev;
    kn_ops_cpu.info(h->device, &dev);
    snprintf(app->kernel_set, sizeof app->kernel_set, "%s", dev.kernel_set);
    struct buf text;
    buf_init(&text, 0);
    buf_printf(&text, "%s|%s|%s|%zu|%d|%d", GRAFT_VERSION, dev.kernel_set, h->name,
               mdl_source_bytes(h->source), h->config.n_layers, h->config.hidden);
    uint8_t digest[SHA256_BYTES];
    enum err rc = buf_err(&text);
    if (!rc)
        rc = sha256(text.data, text.len, digest);
    buf_fini(&text);
    if (rc)
        return rc;
    char hex[2 * SHA256_BYTES + 1];
    hex_encode(digest, sizeof digest, hex);
    snprintf(app->fingerprint, sizeof app->fingerprint, "graft-%s-%.12s", GRAFT_VERSION, hex);
    return ERR_OK;
}

static enum err set_context(struct model_host *h, const struct serve_options *o, struct app *app,
                            struct err_info *info) {
    app->max_model_len = h->config.context;
    if (!o->max_model_len)
        return ERR_OK;
    if (o->max_model_len > h->config.context)
        return err_set(info, ERR_INVALID, "max-model-len",
                       "--max-model-len %lld is more than the model's context of %d tokens",
                       (long long)o->max_model_len, h->config.context);
    app->max_model_len = (int32_t)o->max_model_len;
    return ERR_OK;
}

enum err model_host_open(struct model_host *h, const char *path, const struct serve_options *o,
                         const struct log *log, struct metrics *metrics, struct app *app,
                         struct err_info *info) {
    struct progress bar = {isatty(STDERR_FILENO) != 0, -1, h->cancelled, h->cancelled_arg};
    struct mdl_progress progress = {show_progress, &bar};
    enum err rc = mdl_source_open(path, &h->source, info);
    if (rc)
        return rc;
    h->config = *mdl_source_config(h->source);
    if (!strcmp(o->generation_config, "none"))
        neutral_sampling(&h->config);
    if ((rc = set_context(h, o, app, info)) || (rc = set_names(h, o, app, info)) ||
        (rc = mdl_source_tokenizer(h->source, &h->tokenizer, info)) ||
        (rc = open_template(h, o, log, info)) || (rc = open_devices(h, o, info)) ||
        (rc = mdl_weights_load(h->source, &kn_ops_cpu, h->device, 0, 1, &progress, &h->weights,
                               info)) ||
        (rc = size_kv(h, o, app->max_model_len, info)) || (rc = set_fingerprint(h, app)))
        return rc;
    app->config = &h->config;
    app->tokenizer = h->tokenizer;
    app->template = h->template;
    app->model_path = path;
    rc = adapter_host_open(&h->adapters, o, h->data_dir, &h->config, app, log, info);
    if (!rc)
        rc = start_engines(h, o, log, metrics, app, info);
    app->replicas = &h->replicas;
    return rc ? rc : adapter_host_start(&h->adapters, &h->replicas, info);
}

struct eng *model_host_trainer(const struct model_host *h, struct kn_device **device) {
    int32_t last = h->replicas.n - 1;
    *device = h->devices[last];
    return h->replicas.engine[last];
}

void model_host_close(struct model_host *h) {
    adapter_host_stop(&h->adapters);
    for (int32_t i = 0; i < h->replicas.n; i++)
        eng_stop(h->replicas.engine[i]);
    for (int32_t i = 0; i < h->replicas.n; i++)
        eng_destroy(h->replicas.engine[i]);
    adapter_host_close(&h->adapters);
    mdl_weights_destroy(h->weights);
    for (int i = 0; i < REPLICAS_MAX; i++)
        if (h->devices[i] && h->devices[i] != h->device)
            kn_ops_cpu.close(h->devices[i]);
    if (h->device)
        kn_ops_cpu.close(h->device);
    chat_template_destroy(h->template);
    tokenizer_destroy(h->tokenizer);
    if (h->source)
        mdl_source_close(h->source);
    mem_free(h->names);
    mem_free(h->name);
    *h = (struct model_host){0};
}

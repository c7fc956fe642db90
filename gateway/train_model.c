// SPDX-License-Identifier: Apache-2.0
// `graft train`: the model and the data.
#include "base/durable.h"
#include "base/hash.h"
#include "base/mem.h"
#include "finetune/dataset.h"
#include "finetune/job_validate.h"
#include "gateway/model_files.h"
#include "gateway/train_job.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { DIGEST_STEP = 8 << 20, DEFAULT_SEQ_LENGTH = 2048 };

static bool stopped(const struct train_job *j) {
    return atomic_load(&j->stop);
}

static bool show_loading(void *arg, size_t done, size_t total) {
    struct train_job *j = arg;
    if (j->report.terminal)
        fprintf(stderr, "\r\033[Kloading %3d%%%s",
                (int)((double)done * 100 / (double)(total ? total : 1)),
                done == total ? "\r\033[K" : "");
    return !stopped(j);
}

static enum err open_template(struct train_job *j, struct err_info *info) {
    const char *text;
    size_t len;
    if (j->o.chat_template)
        return model_files_template(j->o.chat_template, &j->chat_template, info);
    mdl_source_chat_template(j->source, &text, &len);
    enum err e = text ? chat_template_parse(text, len, &j->chat_template, info) : ERR_OK;
    if (e)
        err_prefix(info, "the model's chat template");
    return e;
}

enum err train_job_digests(struct train_job *j, struct err_info *info) {
    enum err e = tokenizer_digest(j->tokenizer, j->tokenizer_digest, info);
    return !e && j->chat_template ? chat_template_digest(j->chat_template, j->template_digest, info)
                                  : e;
}

static enum err find_digest(struct train_job *j, struct err_info *info) {
    char buf[TRAIN_PATH];
    struct mdl_digest *d;
    bool done = false;
    enum err e =
        mdl_digest_create(j->source, model_files_cache(j->o.cache_dir, buf, sizeof buf), &d, info);
    if (e)
        return e;
    while (!e && !done) {
        e = mdl_digest_step(d, DIGEST_STEP, &done, info);
        if (!e && stopped(j))
            e = err_set(info, ERR_CANCELLED, NULL, "stopped");
    }
    if (!e)
        snprintf(j->base_digest, sizeof j->base_digest, "%s", mdl_digest_hex(d));
    mdl_digest_destroy(d);
    return e;
}

// Before the weights are loaded: a run goes on with its own model alone.
static enum err check_base(const struct train_job *j, struct err_info *info) {
    const struct {
        const char *key, *is, *what;
    } all[] = {{"base_digest", j->base_digest, "the content of --model"},
               {"tokenizer_digest", j->tokenizer_digest, "the tokenizer of --model"},
               {"template_digest", j->template_digest, "the chat template"}};
    for (size_t i = 0; i < sizeof all / sizeof *all && j->run; i++) {
        const char *was = json_string_value(json_object_get(j->run, all[i].key));
        const char *name = json_string_value(json_object_get(j->run, "base_model"));
        was = was ? was : "";
        if (strcmp(was, all[i].is) != 0)
            return err_set(info, ERR_INVALID, i < 2 ? "model" : "chat-template",
                           "%s is not the run's: SHA-256 %.16s... here, %.16s... in run.json "
                           "(base model %.64s)",
                           all[i].what, *all[i].is ? all[i].is : "none", *was ? was : "none",
                           name ? name : "?");
    }
    return ERR_OK;
}

enum err train_job_identify(struct train_job *j, struct err_info *info) {
    enum err e;
    if ((e = mdl_source_open(j->o.model, &j->source, info)) ||
        (e = mdl_source_tokenizer(j->source, &j->tokenizer, info)) ||
        (e = open_template(j, info)) || (e = train_job_digests(j, info)) ||
        (e = find_digest(j, info)))
        return e;
    j->config = *mdl_source_config(j->source);
    j->base_name = mdl_source_name(j->source);
    return ERR_OK;
}

enum err train_job_open_model(struct train_job *j, struct err_info *info) {
    struct kn_device_config cfg = {.threads = (int)j->o.threads,
                                   .isa = strcmp(j->o.isa, "auto") ? j->o.isa : NULL,
                                   .pin = true};
    struct mdl_progress progress = {show_loading, j};
    enum err e;
    if ((e = kn_require(&kn_ops_cpu, KN_NEED_SERVE | KN_NEED_TRAIN, info)) ||
        (e = train_job_identify(j, info)) || (e = check_base(j, info)) ||
        (e = kn_ops_cpu.open(&cfg, &j->device, info)) ||
        (e = mdl_weights_load(j->source, &kn_ops_cpu, j->device, 0, 1, &progress, &j->weights,
                              info)))
        return e;
    kn_ops_cpu.info(j->device, &j->device_info);
    return ERR_OK;
}

// ---- data

static enum err check_length(struct train_job *j, struct err_info *info) {
    int64_t want = j->o.max_seq_length, context = j->config.context;
    if (want > context)
        return err_set(info, ERR_INVALID, "max-seq-length",
                       "--max-seq-length %lld is more than the model's context of %lld tokens",
                       (long long)want, (long long)context);
    if (!want)
        want = context < DEFAULT_SEQ_LENGTH ? context : DEFAULT_SEQ_LENGTH;
    j->row_tokens = (int32_t)want;
    return ERR_OK;
}

static bool data_cancelled(void *arg) {
    return stopped(arg);
}

static void print_report(const struct train_job *j, const char *name,
                         const struct ft_dataset_report *r) {
    train_report_clear_line(&j->report);
    fprintf(stderr, "%s: %lld samples, %lld tokens, %lld of them supervised, longest %lld", name,
            (long long)r->samples, (long long)r->tokens, (long long)r->supervised,
            (long long)r->longest);
    if (r->truncated || r->dropped || r->duplicates)
        fprintf(stderr, "; %lld truncated, %lld dropped, %lld duplicates", (long long)r->truncated,
                (long long)r->dropped, (long long)r->duplicates);
    fputc('\n', stderr);
    for (int64_t i = 0; i < r->n_told; i++) {
        char text[FT_ERROR_TEXT];
        ft_line_error_text(&r->errors[i], text, sizeof text);
        fprintf(stderr, "  %s\n", text);
    }
}

static enum ft_truncation truncation_of(const char *name) {
    return !strcmp(name, "drop")       ? FT_TRUNC_DROP
           : !strcmp(name, "truncate") ? FT_TRUNC_TRUNCATE
                                       : FT_TRUNC_ERROR;
}

// What the run made of its file, without the file. The cache has checksums; that its tokens are of
// this model's vocabulary is checked here, since it may come from elsewhere.
static enum err open_tokens(const struct train_job *j, const char *cache, struct ft_dataset **out,
                            char digest[TRAIN_HEX], struct err_info *info) {
    enum err e = ft_dataset_open(cache, out, info);
    if (e)
        return e;
    const struct ft_dataset_report *r = ft_dataset_report(*out);
    hex_encode(r->digest, sizeof r->digest, digest);
    if ((r->kind == FT_PREFERENCE) != !strcmp(j->o.method, "dpo"))
        return err_set(info, ERR_FORMAT, NULL, "%.200s is not of lines for method %s", cache,
                       j->o.method);
    if (ft_dataset_vocab(*out) > (int64_t)tokenizer_vocab_size(j->tokenizer))
        return err_set(info, ERR_FORMAT, NULL, "%.200s is of another vocabulary", cache);
    fprintf(stderr, "%s: %lld samples, %lld tokens, %lld of them supervised, longest %lld\n", cache,
            (long long)r->samples, (long long)r->tokens, (long long)r->supervised,
            (long long)r->longest);
    return ERR_OK;
}

static enum err open_file(struct train_job *j, const char *path, const char *what,
                          struct ft_dataset **out, char digest[TRAIN_HEX], struct err_info *info) {
    char cache[TRAIN_PATH];
    if ((size_t)snprintf(cache, sizeof cache, "%s/%s.tokens", j->o.output, what) >= sizeof cache)
        return err_set(info, ERR_INVALID, "output", "--output is too long");
    if (!path)
        return open_tokens(j, cache, out, digest, info);
    struct ft_dataset_opts opts = {.tokenizer = j->tokenizer,
                                   .chat_template = j->chat_template,
                                   .eos = -1,
                                   .ends = j->config.eos,
                                   .n_ends = j->config.n_eos,
                                   .now = j->started_at,
                                   .max_seq_len = j->row_tokens,
                                   .truncation = truncation_of(j->o.truncation),
                                   .preference = !strcmp(j->o.method, "dpo"),
                                   .min_examples = 1,
                                   .file_name = path,
                                   .cancelled = data_cancelled,
                                   .cancelled_arg = j};
    if (ft_dataset_renderer(j->tokenizer_digest, j->template_digest, opts.renderer))
        return err_set(info, ERR_NOMEM, NULL, "out of memory");
    struct ft_dataset_report *report = mem_zalloc(sizeof *report);
    if (!report)
        return err_set(info, ERR_NOMEM, NULL, "out of memory");
    enum err e = ft_dataset_build(path, cache, &opts, report, info);
    if (!e || report->n_errors)
        print_report(j, path, report);
    if (e && report->n_errors)
        err_set(info, e, NULL, "%.200s has %lld %s; nothing was trained", path,
                (long long)report->n_errors, report->n_errors == 1 ? "error" : "errors");
    if (!e)
        hex_encode(report->digest, sizeof report->digest, digest);
    mem_free(report);
    return e ? e : ft_dataset_open(cache, out, info);
}

enum err train_job_open_data(struct train_job *j, struct err_info *info) {
    enum err e = check_length(j, info);
    if (!e)
        e = open_file(j, j->o.data, "training", &j->data, j->data_digest, info);
    if (!e && ft_dataset_samples(j->data) < FT_MIN_EXAMPLES)
        fprintf(stderr, "note: %lld examples; a job in a server must have at least %d\n",
                (long long)ft_dataset_samples(j->data), FT_MIN_EXAMPLES);
    bool validates =
        j->o.validation || json_is_string(json_object_get(j->run, "validation_digest"));
    if (!e && validates)
        e = open_file(j, j->o.validation, "validation", &j->validation, j->validation_digest, info);
    if (e || !j->validation)
        return e;
    int64_t overlap;
    e = ft_dataset_overlap(j->data, j->validation, &overlap);
    if (e)
        return err_set(info, e, NULL, "comparing the data files: %s", err_text(e));
    if (overlap)
        fprintf(stderr, "warning: %lld samples of the validation file stand in the training file\n",
                (long long)overlap);
    return ERR_OK;
}

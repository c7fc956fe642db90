// SPDX-License-Identifier: Apache-2.0
// What a job asks for, as a training run.
#include "base/diskio.h"
#include "base/hash.h"
#include "base/json_load.h"
#include "base/mem.h"
#include "gateway/job_check.h"
#include "gateway/job_runner_internal.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { KEEP_CHECKPOINTS = 3 };

static int64_t auto_batch(int64_t samples) {
    int64_t n = samples / 16;
    return n < 1 ? 1 : n > 8 ? 8 : n;
}

static void fill_options(struct job_run *run, int64_t seed, int64_t samples) {
    struct ft_job_spec *s = &run->spec;
    s->n_epochs = s->n_epochs ? s->n_epochs : 3;
    s->batch_size = s->batch_size ? s->batch_size : auto_batch(samples);
    s->learning_rate_multiplier = s->learning_rate_multiplier > 0 ? s->learning_rate_multiplier : 1;
    s->beta = s->beta > 0 ? s->beta : 0.1;
    double lr = s->learning_rate > 0 ? s->learning_rate : s->dpo ? 2e-5 : 2e-4;
    run->train.targets = s->lora_targets;
    run->train.o = (struct train_options){
        .output = run->path,
        .resume = "",
        .r = s->lora_r,
        .alpha = s->lora_alpha,
        .dropout = s->lora_dropout,
        .rslora = s->lora_rslora,
        .method = s->dpo ? "dpo" : "supervised",
        .schedule = s->lr_scheduler,
        .truncation = s->truncation,
        .beta_dpo = s->beta,
        .lr = lr * s->learning_rate_multiplier,
        .warmup_ratio = s->warmup_ratio,
        .weight_decay = s->weight_decay,
        .beta1 = 0.9,
        .beta2 = 0.999,
        .eps = 1e-8,
        .max_grad_norm = s->max_grad_norm,
        .epochs = s->n_epochs,
        .batch_size = s->batch_size,
        .seed = seed,
        .packing = s->packing,
        .save_steps = s->save_steps,
        .save_limit = KEEP_CHECKPOINTS,
        .eval_steps = s->eval_steps,
        .eval_samples = (int64_t)json_number_value(json_object_get(s->evaluation, "eval_samples")),
    };
}

// A server that was started anew with another tokenizer or chat template must not train on what the
// one before made of the file.
static enum err fresh_tokens(struct job_runner *r, const char *file, const char *path,
                             const struct ft_dataset_opts *opts, struct ft_dataset **out,
                             struct err_info *info) {
    uint8_t key[32];
    char from[TRAIN_PATH];
    struct ft_dataset_report *report = NULL;
    if (ft_dataset_key(opts, key))
        return err_set(info, ERR_NOMEM, NULL, "out of memory");
    enum err e = ft_dataset_open(path, out, info);
    if (e == ERR_IO || e == ERR_NOT_FOUND) // as one that is damaged: it can be made again
        info->code = e = ERR_FORMAT;
    if (e || !memcmp(key, ft_dataset_key_of(*out), sizeof key))
        return e;
    ft_dataset_close(*out);
    *out = NULL;
    report = mem_zalloc(sizeof *report);
    if (!report)
        return err_set(info, ERR_NOMEM, NULL, "out of memory");
    struct ft_dataset_opts named = *opts;
    named.file_name = file; // not its path, which clients would see
    snprintf(from, sizeof from, "%s/files/%s", job__home(r)->path, file);
    e = ft_dataset_build(from, path, &named, report, info);
    mem_free(report);
    return e ? e : ft_dataset_open(path, out, info);
}

void job__drop_tokens(const struct job_run *run) {
    int dir = open(run->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (dir < 0)
        return;
    (void)diskio_unlink(dir, "training.tokens");
    (void)diskio_unlink(dir, "validation.tokens");
    close(dir);
}

static enum err open_data(struct job_runner *r, const char *file, const char *name,
                          const struct ft_dataset_opts *opts, struct ft_dataset **out,
                          char digest[TRAIN_HEX], struct err_info *info) {
    char path[TRAIN_PATH + 32];
    snprintf(path, sizeof path, "%s/%s", r->run->path, name);
    enum err e = fresh_tokens(r, file, path, opts, out, info);
    if (!e)
        hex_encode(ft_dataset_report(*out)->digest, SHA256_BYTES, digest);
    return e;
}

static enum err make_folder(struct job_run *run, struct err_info *info) {
    int fd = -1, dir = open(run->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (dir < 0)
        return durable_errno(info, errno, "open", run->path);
    enum err e = durable_clean(dir, info);
    if (!e)
        e = durable_folder(dir, "checkpoints", &fd, info);
    if (fd >= 0)
        close(fd);
    close(dir);
    return e;
}

static enum err open_files(struct job_runner *r, const struct ft_job *job, struct err_info *info) {
    struct job_run *run = r->run;
    struct train_job *t = &run->train;
    enum err e = ft_job_dataset_opts(r->validator, job, &run->spec, &run->opts, info);
    if (e)
        return e;
    t->row_tokens = run->opts.max_seq_len;
    t->started_at = run->opts.now;
    snprintf(run->path, sizeof run->path, "%s/jobs/%s", job__home(r)->path, run->id);
    snprintf(t->checkpoints, sizeof t->checkpoints, "%s/checkpoints", run->path);
    run->opts.min_examples = FT_MIN_EXAMPLES;
    e = open_data(r, job->training_file, "training.tokens", &run->opts, &t->data, t->data_digest,
                  info);
    run->opts.min_examples = 1;
    if (!e && job->validation_file[0])
        e = open_data(r, job->validation_file, "validation.tokens", &run->opts, &t->validation,
                      t->validation_digest, info);
    if (e)
        return e;
    // Rows are as long as the data needs, so that little memory is borrowed.
    int64_t longest = ft_dataset_report(t->data)->longest;
    if (t->validation && ft_dataset_report(t->validation)->longest > longest)
        longest = ft_dataset_report(t->validation)->longest;
    if (!run->spec.packing && longest > 0 && longest < t->row_tokens)
        t->row_tokens = (int32_t)longest;
    fill_options(run, job->seed, ft_dataset_samples(t->data));
    return make_folder(run, info);
}

static enum err open_model(struct job_runner *r, struct err_info *info) {
    struct train_job *t = &r->run->train;
    const struct model_host *h = r->host;
    t->hooks = &r->hooks;
    t->config = h->config;
    t->device = h->device;
    t->weights = h->weights;
    t->base_name = r->app->names[0]; // what clients know it by
    t->tokenizer = h->tokenizer;
    t->chat_template = h->template;
    t->retention_class = r->run->spec.retention_class;
    kn_ops_cpu.info(h->device, &t->device_info);
    const char *digest = atomic_load_explicit(&r->app->digest, memory_order_acquire);
    const char *none = atomic_load_explicit(&r->app->digest_error, memory_order_acquire);
    if (!digest)
        return err_set(
            info, ERR_UNSUPPORTED, "model",
            "the digest of the model's files could not be made (%s), so no adapter could "
            "say what it belongs to; start the server anew",
            none ? none : "it is not known yet");
    snprintf(t->base_digest, sizeof t->base_digest, "%s", digest);
    snprintf(t->run_id, sizeof t->run_id, "%s", r->run->id);
    enum err e = job_check(r->app, r->options, &r->run->spec, info);
    if (!e)
        e = train_job_digests(t, info);
    return e ? e : adp_check_name(h->adapters.registry, r->run->name, info);
}

enum err job__prepare(struct job_runner *r, const struct ft_job *job, struct err_info *info) {
    struct job_run *run = r->run;
    memcpy(run->id, job->id, sizeof run->id);
    run->tenant = job->tenant;
    run->told_step = job->step;
    run->attempts = job->attempts;
    run->request = json_load_text(job->request, strlen(job->request), 0, NULL);
    if (!run->request)
        return err_set(info, ERR_NOMEM, NULL, "out of memory");
    enum err e = ft_job_spec_read(run->request, &run->spec, info);
    if (e)
        return e;
    ft_job_model_name(job, run->spec.suffix, run->name, sizeof run->name);
    e = open_model(r, info);
    if (!e)
        e = open_files(r, job, info);
    if (!e)
        e = job__find_published(r, job, info);
    if (!e)
        e = job__choose_probe(r, job, info);
    return e ? e : job__read_prompts(r, info);
}

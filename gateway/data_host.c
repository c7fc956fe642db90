// SPDX-License-Identifier: Apache-2.0
#include "gateway/data_host.h"
#include "base/hash.h"
#include "finetune/checkpoint.h"
#include "finetune/job_models.h"
#include "gateway/job_check.h"
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { IO_WAITING = 1024 }; // requests that may wait for an I/O thread

// ---- what jobs ask of the model

static enum err check_job(void *arg, const struct ft_job_spec *s, struct err_info *info) {
    const struct data_host *h = arg;
    enum err e = job_check(h->app, h->runner.options, s, info);
    return e ? e : job_check_prompts(h->app, s, info);
}

static enum err describe_model(void *arg, struct ft_dataset_opts *o, int32_t *context,
                               struct err_info *info) {
    const struct data_host *h = arg;
    const struct app *a = h->app;
    if (app_state(a) == APP_LOADING)
        return app_check_ready(a, info);
    char tokenizer[2 * SHA256_BYTES + 1], template[2 * SHA256_BYTES + 1] = "";
    enum err e = tokenizer_digest(a->tokenizer, tokenizer, info);
    if (!e && a->template)
        e = chat_template_digest(a->template, template, info);
    if (!e && ft_dataset_renderer(tokenizer, template, o->renderer))
        e = err_set(info, ERR_NOMEM, NULL, "out of memory");
    if (e)
        return e;
    o->tokenizer = a->tokenizer;
    o->chat_template = a->template;
    o->ends = a->config->eos;
    o->n_ends = a->config->n_eos;
    *context = a->config->context;
    return ERR_OK;
}

// What keeps every job waiting for a moment.
static const char *jobs_wait(void *arg) {
    const struct data_host *h = arg;
    switch (app_state(h->app)) {
    case APP_LOADING:
        return "the model is loading";
    case APP_DRAINING:
        return "the server is shutting down";
    case APP_READY:
        break;
    }
    return app_digest_ended(h->app) ? NULL : "the model's digest is not known yet";
}

// ---- what is asked of models

static bool is_complete(const char *path) {
    char mark[ADP_PATH_MAX + 16];
    snprintf(mark, sizeof mark, "%s/COMPLETE", path);
    return !access(mark, F_OK);
}

// Once its job has ended well, what a checkpoint is of must still be served, under its name or as
// the version that the job has made: who deletes the model deletes its checkpoints' names.
static enum err check_of(struct data_host *h, const char *name, struct err_info *info) {
    char model[ADP_NAME_MAX + 1], which[ADP_NAME_MAX + 32];
    const char *mark = strstr(name, ":ckpt-step-");
    struct ft_job j;
    size_t n = mark ? (size_t)(mark - name) : 0;
    if (!n || n >= sizeof model)
        return ERR_OK;
    memcpy(model, name, n);
    model[n] = '\0';
    enum err e = ft_job_of_model(&h->home, model, &j, info);
    if (e)
        return e;
    snprintf(which, sizeof which, "%s@%lld", model, (long long)j.version);
    bool over = j.state == FT_JOB_SUCCEEDED && j.version;
    ft_job_fini(&j);
    if (!over || adp_knows(h->app->adapters, model) || adp_knows(h->app->adapters, which))
        return ERR_OK;
    return err_set(
        info, ERR_NO_MODEL, "model",
        "The model `%.128s` does not exist: `%s`, which it is a checkpoint of, was deleted", name,
        model);
}

enum err data_host_checkpoint(void *arg, const char *name, char path[ADP_PATH_MAX],
                              struct err_info *info) {
    struct data_host *h = arg;
    char job[FT_ID_MAX];
    int64_t step;
    enum err e = ft_checkpoint_of_model(&h->home, name, job, &step, info);
    if (!e)
        e = check_of(h, name, info);
    if (e)
        return e;
    int n = snprintf(path, ADP_PATH_MAX, "%s/jobs/%s/checkpoints/step-%lld", h->home.path, job,
                     (long long)step);
    if (n < 0 || n >= ADP_PATH_MAX)
        return err_set(info, ERR_INVALID, "model", "the data folder's path is too long");
    e = ft_checkpoint_verify(path, info);
    // Its row was made once it was complete, so one that is not any more is being taken away.
    if (e == ERR_NOT_FOUND || (e == ERR_FORMAT && !is_complete(path)))
        return err_set(info, ERR_NO_MODEL, "model",
                       "The model `%.128s` does not exist: %s does not keep the checkpoint of step "
                       "%lld any more",
                       name, job, (long long)step);
    if (e == ERR_FORMAT)
        err_prefix(info, "the checkpoint of step %lld of %s is damaged", (long long)step, job);
    return e;
}

bool data_host_owner(void *arg, const char *name, uint64_t *tenant) {
    struct data_host *h = arg;
    struct ft_job j;
    if (ft_job_of_model(&h->home, name, &j, NULL))
        return false;
    *tenant = j.tenant;
    ft_job_fini(&j);
    return true;
}

// ---- what others ask of training

static void read_training(void *arg, struct app_training *out) {
    struct train_place_state s;
    train_place_read(arg, &s);
    snprintf(out->job, sizeof out->job, "%s", s.job);
    snprintf(out->reason, sizeof out->reason, "%s", s.reason);
    out->state_bytes = s.memory.state_resident;
    out->state_in_file_bytes = s.memory.state_bytes - s.memory.state_resident;
    out->activation_bytes = s.memory.activation_bytes;
    out->taken = s.taken;
}

static void why_stalls(void *arg, const char *job, char *reason, size_t cap) {
    struct train_place_state s;
    train_place_read(arg, &s);
    if (s.reason[0] && !strcmp(s.job, job))
        snprintf(reason, cap, "%s", s.reason);
}

// ---- life

static enum err validate(void *arg, const struct ft_job *job, bool (*cancelled)(void *arg),
                         void *cancelled_arg, struct ft_job_failure *why, struct err_info *info) {
    const struct job_runner *r = arg;
    return ft_job_validate(r->validator, job, cancelled, cancelled_arg, why, info);
}

static enum err open_control(struct data_host *h, struct err_info *info) {
    h->validator = (struct ft_validator){&h->home, describe_model, h};
    struct ft_job_runner runner = {
        .validate = validate,
        .no_trainer = "this server trains no jobs; it was started without --enable-lora",
        .arg = &h->runner};
    if (h->runner.options->enable_lora) {
        enum err e = job_runner_init(&h->runner, info);
        if (e)
            return e;
        runner.ready = job_runner_ready;
        runner.start = job_runner_start;
        runner.stop = job_runner_stop;
        h->runner.host->background = train_place_background(&h->runner.place);
        h->app->training = read_training;
        h->app->training_arg = &h->runner.place;
        runner.stalls = why_stalls;
        runner.stalls_arg = &h->runner.place;
        h->api.stalls = why_stalls;
        h->api.stalls_arg = &h->runner.place;
    }
    return ft_control_start(&h->home, &runner, &h->api.control, info);
}

enum err data_host_open(struct data_host *h, const struct serve_options *o, struct app *app,
                        struct model_host *model, const struct log *log, struct err_info *info) {
    h->app = app;
    h->runner.validator = &h->validator;
    h->runner.control = &h->api.control;
    h->runner.app = app;
    h->runner.host = model;
    h->runner.options = o;
    h->api.clock = &clock_system;
    h->api.max_file_bytes = (uint64_t)o->max_file;
    h->api.check_job = check_job;
    h->api.jobs_wait = jobs_wait;
    h->api.arg = h;
    if (!o->data_dir)
        return ERR_OK;
    const struct ft_home_config cfg = {
        .path = o->data_dir,
        .clock = &clock_system,
        .log = log,
        .metrics = app->metrics,
        .max_file_bytes = (uint64_t)o->max_file,
        .max_bytes = (uint64_t)o->max_data,
        .max_waiting = o->max_waiting_jobs,
        .keep_jobs_s = o->keep_jobs_days * 86400,
    };
    enum err e = ft_home_open(&h->home, &cfg, info);
    if (e)
        return e;
    model->adapters.reserve = &h->home.reserve;
    h->manifest = (struct adapter_manifest){app, log};
    model->adapters.seal = adapter_manifest_write;
    model->adapters.seal_arg = &h->manifest;
    e = io_pool_create((int)o->io_threads, IO_WAITING, &h->api.io);
    if (e)
        return err_set(info, e, NULL, "cannot start the I/O threads");
    e = open_control(h, info);
    if (!e && !o->enable_lora)
        log_write(log, LOG_WARN,
                  "--data-dir without --enable-lora: fine-tuning jobs wait in the queue");
    if (!e)
        h->api.home = &h->home;
    return e;
}

void data_host_stop(struct data_host *h) {
    io_pool_destroy(h->api.io); // its last tasks may still wake the control thread
    h->api.io = NULL;
    ft_control_stop(h->api.control);
    h->api.control = NULL;
    job_runner_fini(&h->runner);
}

void data_host_close(struct data_host *h) {
    data_host_stop(h);
    ft_home_close(&h->home);
}

void data_host_fini(struct data_host *h) {
    train_place_fini(&h->runner.place);
}

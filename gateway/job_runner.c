// SPDX-License-Identifier: Apache-2.0
#include "gateway/job_runner.h"
#include "base/buf.h"
#include "base/hash.h"
#include "base/json_write.h"
#include "base/mem.h"
#include "finetune/evaluate.h"
#include "finetune/files.h"
#include "finetune/job_log.h"
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { KEEP_CHECKPOINTS = 3, SAVES = 10, MOST_BETWEEN_SAVES = 100, COPY_BYTES = 65536 };

#define BIT(s) (1u << FT_JOB_##s)

static struct ft_home *home_of(const struct job_runner *r) {
    return r->validator->home;
}

static void tell_job(const struct job_runner *r, const char *level, const char *type,
                     const char *message, const char *data) {
    struct err_info info = {0};
    if (ft_event_add(home_of(r), r->run->id, level, type, message, data, &info))
        log_write(home_of(r)->log, LOG_WARN, "%s: an event is lost: %s", r->run->id, info.message);
}

// ---- hooks of the run

static enum err create_exec(void *arg, const struct ft_exec_config *cfg, struct ft_exec **out,
                            struct err_info *info) {
    struct job_runner *r = arg;
    return train_place_create(&r->place, cfg, out, info);
}

static void destroy_exec(void *arg, struct ft_exec *x) {
    struct job_runner *r = arg;
    train_place_destroy(&r->place, x);
}

static void on_tell(void *arg, const char *message) {
    tell_job(arg, "info", "message", message, NULL);
}

static void write_metrics(struct json_w *w, const struct ft_state *s, bool evaluated, bool whole) {
    jw_kint(w, "step", s->step);
    jw_knum(w, "train_loss", s->train_loss);
    jw_knum(w, "train_mean_token_accuracy", s->train_accuracy);
    if (evaluated) {
        jw_knum(w, whole ? "full_valid_loss" : "valid_loss", s->valid_loss);
        jw_knum(w, whole ? "full_valid_mean_token_accuracy" : "valid_mean_token_accuracy",
                s->valid_accuracy);
    }
}

static void tell_step(const struct job_runner *r, const struct ft_progress *p) {
    const struct ft_state *s = p->state;
    char message[160];
    struct buf data;
    buf_init(&data, 0);
    struct json_w w = json_w_begin(&data);
    jw_obj(&w);
    write_metrics(&w, s, p->evaluated, s->step == p->steps);
    jw_kint(&w, "total_steps", p->steps);
    jw_knum(&w, "learning_rate", p->lr);
    jw_knum(&w, "grad_norm", s->grad_norm);
    jw_knum(&w, "tokens_per_second", p->tokens_per_s);
    jw_kint(&w, "trained_tokens", s->trained_tokens);
    jw_obj_end(&w);
    int n = snprintf(message, sizeof message, "Step %lld/%lld: training loss=%.4f",
                     (long long)s->step, (long long)p->steps, s->train_loss);
    if (p->evaluated)
        snprintf(message + n, sizeof message - (size_t)n, ", validation loss=%.4f", s->valid_loss);
    tell_job(r, "info", "metrics", message, buf_err(&data) ? NULL : data.data);
    buf_fini(&data);
}

static enum err on_step(void *arg, const struct ft_progress *p, struct err_info *info) {
    struct job_runner *r = arg;
    struct job_run *run = r->run;
    int64_t step = p->state->step;
    // Steps behind the checkpoint are done again with the same bits; they were told of.
    if (step > run->told_step) {
        tell_step(r, p);
        run->told_step = step;
    }
    const struct ft_job_progress now = {.step = step,
                                        .steps = p->steps,
                                        .trained_tokens = p->state->trained_tokens,
                                        .estimated_finish =
                                            ft_now(home_of(r)) + (int64_t)ceil(p->eta_s),
                                        .first_step = step == 1};
    return ft_job_progress(home_of(r), run->id, &now, info);
}

static enum err on_saved(void *arg, const struct ft_state *s, struct err_info *info) {
    struct job_runner *r = arg;
    struct job_run *run = r->run;
    struct buf data;
    buf_init(&data, 0);
    struct json_w w = json_w_begin(&data);
    jw_obj(&w);
    write_metrics(&w, s, isfinite(s->valid_loss), s->step == ft_plan_steps(run->train.plan));
    jw_obj_end(&w);
    enum err e = buf_err(&data)
                     ? err_set(info, buf_err(&data), NULL, "out of memory")
                     : ft_checkpoint_add(home_of(r), run->id, s->step, run->name, data.data, info);
    buf_fini(&data);
    const struct ft_job_progress now = {
        .step = -1, .steps = -1, .trained_tokens = -1, .estimated_finish = -1, .checkpoint = true};
    return e ? e : ft_job_progress(home_of(r), run->id, &now, info);
}

// ---- what the job asks for

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
        .resume = true,
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

static enum err open_data(struct job_run *run, const char *name, struct ft_dataset **out,
                          char digest[TRAIN_HEX], struct err_info *info) {
    char path[TRAIN_PATH + 32];
    snprintf(path, sizeof path, "%s/%s", run->path, name);
    enum err e = ft_dataset_open(path, out, info);
    if (!e)
        hex_encode(ft_dataset_report(*out)->digest, SHA256_BYTES, digest);
    return e;
}

static enum err make_folder(struct job_run *run, struct err_info *info) {
    int fd = -1, dir = open(run->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (dir < 0)
        return durable_errno(info, errno, "open", run->path);
    enum err e = durable_folder(dir, "checkpoints", &fd, info);
    if (fd >= 0)
        close(fd);
    close(dir);
    return e;
}

static enum err open_files(struct job_runner *r, const struct ft_job *job, struct err_info *info) {
    struct job_run *run = r->run;
    struct train_job *t = &run->train;
    struct ft_dataset_opts opts;
    enum err e = ft_job_dataset_opts(r->validator, job, &run->spec, &opts, info);
    if (e)
        return e;
    t->row_tokens = opts.max_seq_len;
    snprintf(run->path, sizeof run->path, "%s/jobs/%s", home_of(r)->path, run->id);
    snprintf(t->checkpoints, sizeof t->checkpoints, "%s/checkpoints", run->path);
    e = open_data(run, "training.tokens", &t->data, t->data_digest, info);
    if (!e && job->validation_file[0])
        e = open_data(run, "validation.tokens", &t->validation, t->validation_digest, info);
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
    t->base_name = h->name;
    kn_ops_cpu.info(h->device, &t->device_info);
    const char *digest = atomic_load_explicit(&r->app->digest, memory_order_acquire);
    snprintf(t->base_digest, sizeof t->base_digest, "%s", digest ? digest : "");
    snprintf(t->run_id, sizeof t->run_id, "%s", r->run->id);
    if (r->run->spec.lora_r > r->options->max_lora_rank)
        return err_set(info, ERR_INVALID, "graft.lora.r",
                       "graft.lora.r is %lld, and this server serves adapters of rank %lld at most "
                       "(--max-lora-rank)",
                       (long long)r->run->spec.lora_r, (long long)r->options->max_lora_rank);
    return adp_check_name(h->adapters.registry, r->run->name, info);
}

// ---- the run

static enum err tell_resolved(struct job_runner *r, struct err_info *info) {
    const struct job_run *run = r->run;
    const struct ft_job_spec *s = &run->spec;
    struct buf b;
    buf_init(&b, 0);
    struct json_w w = json_w_begin(&b);
    jw_obj(&w);
    jw_kint(&w, "batch_size", s->batch_size);
    jw_knum(&w, "learning_rate_multiplier", s->learning_rate_multiplier);
    jw_kint(&w, "n_epochs", s->n_epochs);
    if (s->dpo)
        jw_knum(&w, "beta", s->beta);
    jw_obj_end(&w);
    const struct ft_job_progress now = {.step = run->train.state.step,
                                        .steps = ft_plan_steps(run->train.plan),
                                        .trained_tokens = -1,
                                        .estimated_finish = -1,
                                        .hyper = b.data,
                                        .prepared = true};
    enum err e = buf_err(&b) ? err_set(info, buf_err(&b), NULL, "out of memory")
                             : ft_job_progress(home_of(r), run->id, &now, info);
    buf_fini(&b);
    return e;
}

static void choose_saves(struct train_job *t) {
    int64_t n = ft_plan_steps(t->plan) / SAVES;
    if (!t->o.save_steps)
        t->o.save_steps = n < 1 ? 1 : n > MOST_BETWEEN_SAVES ? MOST_BETWEEN_SAVES : n;
}

// The job may have been paused or cancelled meanwhile: then it stays so, and the end tells.
static void enter(const struct job_runner *r, enum ft_job_state to, const char *message) {
    struct err_info info = {0};
    bool moved;
    const struct ft_job_move m = {
        .from = BIT(RUNNING) | BIT(EVALUATING), .to = to, .level = "info", .message = message};
    if (ft_job_move(home_of(r), r->run->id, &m, &moved, &info))
        log_write(home_of(r)->log, LOG_WARN, "%s: %s", r->run->id, info.message);
}

static enum err copy_result(int fd, struct ft_upload *u, struct err_info *info) {
    char chunk[COPY_BYTES];
    enum err e = ERR_OK;
    ssize_t n;
    while (!e && (n = read(fd, chunk, sizeof chunk)) > 0)
        e = ft_upload_write(u, chunk, (size_t)n, info);
    return e || !n ? e : durable_errno(info, errno, "read", "metrics.csv");
}

static enum err store_result(struct job_runner *r, struct err_info *info) {
    struct ft_upload u = {0};
    struct ft_file f = {.tenant = r->run->tenant, .purpose = "fine-tune-results"};
    char path[TRAIN_PATH + 32];
    snprintf(f.filename, sizeof f.filename, "step_metrics.csv");
    snprintf(path, sizeof path, "%s/metrics.csv", r->run->path);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return durable_errno(info, errno, "open", path);
    enum err e = ft_upload_begin(home_of(r), &u, info);
    if (!e)
        e = copy_result(fd, &u, info);
    close(fd);
    if (!e)
        e = ft_upload_commit(&u, &f, info);
    else
        ft_upload_abort(&u);
    return e ? e : ft_job_add_result(home_of(r), r->run->id, f.id, info);
}

// ---- release gates

static enum err base_loss(struct job_runner *r, double *loss, struct err_info *info) {
    struct train_job *t = &r->run->train;
    const struct ft_evaluate_config cfg = {.exec = t->exec,
                                           .data = t->validation,
                                           .row_tokens = t->row_tokens,
                                           .row_seqs = t->row_seqs,
                                           .base = true,
                                           .stop = &t->stop};
    struct ft_evaluation v;
    enum err e = ft_evaluate(&cfg, &v, info);
    if (!e)
        *loss = v.loss / (double)(v.targets ? v.targets : 1);
    return e;
}

static enum err refuse(struct job_run *run, const char *gate, double want, double found,
                       struct err_info *info) {
    run->code = "release_gate";
    return err_set(info, ERR_INVALID, gate,
                   "the model is not released: %s is %g, and %g was found; the adapter is kept "
                   "with the job",
                   gate, want, found);
}

static enum err check_gates(struct job_runner *r, struct err_info *info) {
    struct job_run *run = r->run;
    const json_t *most = json_object_get(run->spec.evaluation, "max_valid_loss");
    const json_t *least = json_object_get(run->spec.evaluation, "min_improvement");
    double after = run->train.state.valid_loss, before = 0;
    if (most && !(after <= json_number_value(most)))
        return refuse(run, "max_valid_loss", json_number_value(most), after, info);
    enum err e = least ? base_loss(r, &before, info) : ERR_OK;
    if (!e && least && !(before - after >= json_number_value(least)))
        return refuse(run, "min_improvement", json_number_value(least), before - after, info);
    return e;
}

// A gate that nobody would look at must not seem to have been passed.
static enum err know_gates(const struct ft_job_spec *s, struct err_info *info) {
    static const char *const unknown[] = {"required", "forbidden", "sample_prompts"};
    static const char *const loss[] = {"max_valid_loss", "min_improvement"};
    for (size_t i = 0; i < sizeof unknown / sizeof *unknown; i++)
        if (json_array_size(json_object_get(s->evaluation, unknown[i])))
            return err_set(info, ERR_UNSUPPORTED, "graft.evaluation",
                           "graft.evaluation.%s is not supported yet", unknown[i]);
    for (size_t i = 0; i < sizeof loss / sizeof *loss; i++)
        if (json_object_get(s->evaluation, loss[i]) && !s->validation_file)
            return err_set(info, ERR_INVALID, "validation_file",
                           "graft.evaluation.%s needs a validation file", loss[i]);
    return ERR_OK;
}

// ---- publishing: changes of adapters are made on their own thread

struct publication {
    struct io_job io;
    struct adapter_host *host;
    struct adapter_load load;
    struct mailbox *done;
    _Atomic bool ended;
    enum err result;
    struct err_info info;
};

static void load_adapter(struct io_job *io) {
    struct publication *p = (struct publication *)((char *)io - offsetof(struct publication, io));
    uint64_t version;
    p->result = adapter_host_load(p->host, &p->load, &version, &p->info);
    atomic_store(&p->ended, true);
    mailbox_wake(p->done);
}

static enum err publish(struct job_runner *r, struct err_info *info) {
    char path[TRAIN_PATH + 16];
    snprintf(path, sizeof path, "%s/adapter", r->run->path);
    struct publication p = {
        .io = {.run = load_adapter},
        .host = &r->host->adapters,
        .load = {
            .name = r->run->name, .path = path, .in_place = true, .promote = true, .own = true}};
    if (mailbox_create(1, 0, &p.done))
        return err_set(info, ERR_NOMEM, NULL, "out of memory");
    enum err e = io_pool_submit(p.host->admin, &p.io);
    if (e)
        err_set(info, e, NULL, "too many changes of adapters wait");
    while (!e && !atomic_load(&p.ended))
        (void)mailbox_wait(p.done, -1);
    mailbox_destroy(p.done);
    if (!e && p.result)
        *info = p.info;
    return e ? e : p.result;
}

static enum err train(struct job_runner *r, struct err_info *info) {
    struct train_job *t = &r->run->train;
    enum err e = train_job_open_run(t, info);
    if (!e)
        e = tell_resolved(r, info);
    if (e)
        return e;
    choose_saves(t);
    if ((e = train_job_run(t, info)))
        return e;
    enter(r, FT_JOB_EVALUATING, "Training has ended, evaluating the result");
    if ((e = train_job_finish(t, info)) || (e = check_gates(r, info)))
        return e;
    enter(r, FT_JOB_PUBLISHING, "Publishing the fine-tuned model");
    if (atomic_load(&r->discard))
        return err_set(info, ERR_CANCELLED, NULL, "the job was cancelled");
    if ((e = publish(r, info)))
        return e;
    char message[480];
    snprintf(message, sizeof message, "New fine-tuned model created: %s", r->run->name);
    tell_job(r, "info", "message", message, NULL);
    return store_result(r, info);
}

static const char *code_of(enum err e) {
    return e == ERR_NONFINITE   ? "non_finite_loss"
           : e == ERR_DISK_FULL ? "disk_full"
           : e == ERR_NOMEM     ? "out_of_memory"
           : e == ERR_LIMIT     ? "out_of_memory"
                                : "training_failed";
}

static bool may_pass(enum err e) {
    return e == ERR_NOMEM || e == ERR_DISK_FULL || e == ERR_IO || e == ERR_AGAIN;
}

static void *run_job(void *arg) {
    struct job_runner *r = arg;
    struct err_info info = {0};
    struct ft_job_end end = {.how = FT_END_SUCCEEDED};
    enum err e = train(r, &info);
    train_job_close_run(&r->run->train);
    if (e && (e == ERR_CANCELLED || atomic_load(&r->discard))) {
        end.how = FT_END_STOPPED;
    } else if (e) {
        end.how = FT_END_FAILED;
        end.retry = may_pass(e);
        snprintf(end.error_code, sizeof end.error_code, "%s",
                 r->run->code ? r->run->code : code_of(e));
        snprintf(end.error_message, sizeof end.error_message, "%s", info.message);
    } else {
        snprintf(end.fine_tuned_model, sizeof end.fine_tuned_model, "%s", r->run->name);
    }
    ft_control_ended(*r->control, &end);
    return NULL;
}

// ---- what the control thread calls

static void drop_run(struct job_runner *r) {
    if (!r->run)
        return;
    json_decref(r->run->request);
    mem_free(r->run);
    r->run = NULL;
}

bool job_runner_ready(void *arg) {
    const struct job_runner *r = arg;
    return app_state(r->app) == APP_READY && r->app->adapters &&
           atomic_load_explicit(&r->app->digest, memory_order_acquire);
}

static enum err prepare(struct job_runner *r, const struct ft_job *job, struct err_info *info) {
    struct job_run *run = r->run;
    memcpy(run->id, job->id, sizeof run->id);
    run->tenant = job->tenant;
    run->told_step = job->step;
    run->request = json_loads(job->request, 0, NULL);
    if (!run->request)
        return err_set(info, ERR_NOMEM, NULL, "out of memory");
    enum err e = ft_job_spec_read(run->request, &run->spec, info);
    if (e)
        return e;
    if ((e = know_gates(&run->spec, info)))
        return e;
    ft_job_model_name(job, run->spec.suffix, run->name, sizeof run->name);
    e = open_model(r, info);
    return e ? e : open_files(r, job, info);
}

enum err job_runner_start(void *arg, const struct ft_job *job, struct err_info *info) {
    struct job_runner *r = arg;
    if (r->run)
        thread_join(&r->run->thread);
    drop_run(r);
    r->run = mem_zalloc(sizeof *r->run);
    if (!r->run)
        return err_set(info, ERR_NOMEM, NULL, "out of memory");
    atomic_store(&r->discard, false);
    r->place.engine = r->host->engine;
    r->place.memory = r->host->kv_bytes;
    enum err e = prepare(r, job, info);
    if (!e && (e = thread_start(&r->run->thread, "graft-trainer", run_job, r)))
        err_set(info, e, NULL, "cannot start a thread");
    if (e) {
        train_job_close_run(&r->run->train);
        drop_run(r);
    }
    return e;
}

void job_runner_stop(void *arg, enum ft_stop why) {
    struct job_runner *r = arg;
    if (!r->run)
        return;
    if (why == FT_STOP_CANCEL)
        atomic_store(&r->discard, true);
    atomic_store(&r->run->train.stop, true);
    if (why == FT_STOP_CANCEL)
        train_place_stop(&r->place);
}

enum err job_runner_init(struct job_runner *r, struct err_info *info) {
    r->hooks = (struct train_hooks){create_exec, destroy_exec, on_tell, on_step, on_saved, r};
    return train_place_init(&r->place, info);
}

void job_runner_fini(struct job_runner *r) {
    if (r->run)
        thread_join(&r->run->thread);
    drop_run(r);
}

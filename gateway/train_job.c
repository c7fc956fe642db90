// SPDX-License-Identifier: Apache-2.0
// `graft train`: plan, executor, checkpoints, and what is left at the end.
#include "gateway/train_job.h"
#include "base/durable.h"
#include "base/hash.h"
#include "base/json_write.h"
#include "base/mem.h"
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

enum { KERNEL_SETS_BYTES = 1 << 16, MIN_SEQ_TOKENS = 8, MAX_ROW_SEQS = 256, PLOT_ROWS = 12 };

static struct ft_manifest manifest_of(const struct train_job *j) {
    return (struct ft_manifest){
        .run_id = j->run_id,
        .base_model = j->base_name,
        .base_digest = j->base_digest,
        .tokenizer_digest = *j->tokenizer_digest ? j->tokenizer_digest : NULL,
        .template_digest = *j->template_digest ? j->template_digest : NULL,
        .dataset_digest = j->data_digest,
        .validation_digest = *j->validation_digest ? j->validation_digest : NULL,
        .code_version = GRAFT_VERSION,
        .kernel_set = j->device_info.kernel_set,
        .method = j->o.method,
        .precision = "f32 adapter and optimizer, base as stored",
        .parent = *j->parent ? j->parent : NULL,
        .retention_class = j->retention_class,
        .hyperparameters = j->hyperparameters,
        .kernel_sets = j->kernel_sets,
        .seed = (uint64_t)j->o.seed,
        .created_at = clock_wall_ns(&clock_system) / 1000000000,
    };
}

// ---- open

static enum err create_plan(struct train_job *j, struct err_info *info) {
    j->row_seqs = j->row_tokens / MIN_SEQ_TOKENS;
    j->row_seqs = j->row_seqs < 2 ? 2 : j->row_seqs > MAX_ROW_SEQS ? MAX_ROW_SEQS : j->row_seqs;
    bool pairs = !strcmp(j->o.method, "dpo"); // two sequences a sample
    struct ft_plan_config cfg = {.data = ft_dataset_lengths(j->data),
                                 .epochs = (int32_t)j->o.epochs,
                                 .batch_size = (int32_t)j->o.batch_size,
                                 .row_tokens = pairs ? 2 * j->row_tokens : j->row_tokens,
                                 .row_samples = pairs ? j->row_seqs / 2 : j->row_seqs,
                                 .packing = j->o.packing,
                                 .shuffle = true,
                                 .seed = (uint64_t)j->o.seed};
    j->row_tokens = cfg.row_tokens;
    return ft_plan_create(&cfg, &j->plan, info);
}

static bool fits_memory(const struct train_job *j, size_t bytes) {
    size_t room = j->device_info.memory_bytes;
    if (j->o.activation_bytes)
        return bytes <= (size_t)j->o.activation_bytes;
    return j->weights->bytes < room && bytes <= (room - j->weights->bytes) / 2;
}

static enum err create_exec(struct train_job *j, struct err_info *info) {
    struct ft_exec_config cfg = {.weights = j->weights,
                                 .lora = {.targets = j->targets,
                                          .r = (int32_t)j->o.r,
                                          .alpha = (float)j->o.alpha,
                                          .rslora = j->o.rslora,
                                          .dropout = (float)j->o.dropout,
                                          .seed = (uint64_t)j->o.seed},
                                 .limits = {j->row_tokens, j->row_seqs, true},
                                 .clock = &clock_system};
    struct ft_exec_sizes n;
    if (j->hooks)
        return j->hooks->create_exec(j->hooks->arg, &cfg, &j->exec, info);
    enum err e = ft_exec_measure(&cfg, &n, info);
    if (e)
        return e;
    cfg.limits.keep = fits_memory(j, n.most);
    return ft_exec_create(&cfg, &j->exec, info);
}

// On the host, while something is written: as long as the job runs they lie in the executor's
// memory alone.
static enum err create_moments(struct train_job *j, int kinds, struct err_info *info) {
    struct mdl_adapter **const all[] = {&j->moments.w, &j->moments.m, &j->moments.v};
    enum err e = ERR_OK;
    for (int i = 0; i < kinds && !e; i++)
        e = mdl_adapter_create(&j->config, j->targets, (int32_t)j->o.r, (float)j->o.alpha,
                               j->o.rslora, all[i], info);
    if (!e)
        j->moments.w->dropout = (float)j->o.dropout;
    return e;
}

static void tell(const struct train_job *j, const char *message) {
    if (j->hooks)
        j->hooks->tell(j->hooks->arg, message);
    else
        fprintf(stderr, "%s\n", message);
}

static void tell_skipped(void *arg, const char *name, const char *why) {
    char message[700];
    snprintf(message, sizeof message, "skipping %s: %s", name, why);
    tell(arg, message);
}

// ---- kernel sets: each that the run had, with the step from which on it had it

static void put_kernel_set(struct json_w *w, int64_t from_step, const char *name) {
    jw_obj(w);
    jw_kint(w, "from_step", from_step);
    jw_kstr(w, "kernel_set", name);
    jw_obj_end(w);
}

// `before`: the list of the checkpoint that the run goes on from, NULL at the begin.
static enum err note_kernel_set(struct train_job *j, const json_t *before, struct err_info *info) {
    const char *mine = j->device_info.kernel_set, *last = NULL;
    struct buf b;
    size_t i;
    const json_t *v;
    buf_init(&b, KERNEL_SETS_BYTES);
    struct json_w w = json_w_begin(&b);
    jw_arr(&w);
    json_array_foreach(before, i, v) {
        const char *name = json_string_value(json_object_get(v, "kernel_set"));
        if (!name)
            continue;
        put_kernel_set(&w, json_integer_value(json_object_get(v, "from_step")), name);
        last = name;
    }
    if (!last || strcmp(last, mine) != 0)
        put_kernel_set(&w, j->state.step, mine);
    jw_arr_end(&w);
    enum err e = buf_err(&b);
    size_t len;
    if (!e)
        j->kernel_sets = buf_take(&b, &len);
    buf_fini(&b);
    return e ? err_set(info, e, NULL, "the list of kernel sets: %s", err_text(e)) : ERR_OK;
}

static void warn_of_kernel_set(struct train_job *j, const json_t *manifest) {
    const char *was = json_string_value(json_object_get(manifest, "kernel_set"));
    char message[400];
    if (was && !strcmp(was, j->device_info.kernel_set))
        return;
    snprintf(message, sizeof message,
             "warning: %s was made by the kernel set %.100s, this one is %.100s: results will not "
             "have the same bits",
             j->parent, was ? was : "(none)", j->device_info.kernel_set);
    tell(j, message);
}

// ---- going on

static enum err take_up(struct train_job *j, const char *path, json_t **manifest,
                        struct err_info *info) {
    struct ft_moments x;
    enum err e;
    if ((e = ft_checkpoint_manifest(path, manifest, info)) ||
        (e = ft_checkpoint_read(path, &j->config, &j->state, &x, info)))
        return e;
    e = ft_exec_set(j->exec, x.w, x.m, x.v, info);
    ft_moments_fini(&x);
    return e;
}

// *found false: a job that is started for the first time.
static enum err find_parent(struct train_job *j, bool *found, struct err_info *info) {
    struct ft_manifest m = manifest_of(j);
    struct ft_skip skip = {tell_skipped, j};
    enum err e = ft_checkpoint_newest(j->checkpoints, &m, &skip, j->parent, info);
    *found = !e;
    if (e != ERR_NOT_FOUND || !j->hooks)
        return e;
    j->parent[0] = '\0';
    return ERR_OK;
}

static enum err resume(struct train_job *j, struct err_info *info) {
    char path[TRAIN_PATH + FT_CHECKPOINT_NAME + 1], message[FT_CHECKPOINT_NAME + 32];
    json_t *manifest = NULL;
    bool found;
    enum err e = find_parent(j, &found, info);
    if (e)
        return e;
    if (!found)
        return note_kernel_set(j, NULL, info);
    snprintf(path, sizeof path, "%s/%s", j->checkpoints, j->parent);
    e = take_up(j, path, &manifest, info);
    if (e == ERR_IO) { // it was whole a moment ago: this may have passed
        json_decref(manifest);
        manifest = NULL;
        e = take_up(j, path, &manifest, info);
    }
    if (!e) {
        warn_of_kernel_set(j, manifest);
        snprintf(message, sizeof message, "going on from %s", j->parent);
        tell(j, message);
        e = note_kernel_set(j, json_object_get(manifest, "kernel_sets"), info);
    }
    json_decref(manifest);
    // Whoever saved it may have died while it removed older ones.
    if (!e)
        e = ft_checkpoint_prune(j->checkpoints, j->o.save_limit, info);
    // Whoever saved it may have died before it could tell.
    return !e && j->hooks ? j->hooks->saved(j->hooks->arg, &j->state, info) : e;
}

// What the run is, for whoever goes on with it elsewhere.
static enum err write_run(const struct train_job *j, struct err_info *info) {
    const struct ft_manifest m = manifest_of(j);
    int dir = open(j->o.output, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (dir < 0)
        return durable_errno(info, errno, "open", j->o.output);
    size_t len = 0;
    const char *text = j->chat_template ? chat_template_text(j->chat_template, &len) : NULL;
    enum err e = text ? durable_put(dir, "chat_template.jinja", text, len, info) : ERR_OK;
    if (!e)
        e = train_run_write(dir, &m, &j->o, j->started_at, info);
    close(dir);
    return e;
}

enum err train_job_open_run(struct train_job *j, struct err_info *info) {
    enum err e;
    ft_state_init(&j->state);
    if (!j->targets && (e = train_targets(&j->o.targets, &j->targets, info)))
        return e;
    if ((e = train_run_hyperparameters(&j->o, j->targets, j->row_tokens, &j->hyperparameters,
                                       info)) ||
        (e = create_plan(j, info)) || (e = create_exec(j, info)) ||
        (e = j->o.resume ? resume(j, info) : note_kernel_set(j, NULL, info)))
        return e;
    struct ft_exec_sizes n;
    ft_exec_sizes(j->exec, &n);
    if (!j->hooks)
        fprintf(
            stderr,
            "%lld trainable values; %zu MiB for the adapter, %zu MiB for activations; %lld steps\n",
            (long long)ft_exec_trainable(j->exec), n.state >> 20, n.most >> 20,
            (long long)ft_plan_steps(j->plan));
    if ((e = write_run(j, info)))
        return e;
    e = train_report_open(&j->report, j->o.output, j->state.step, &clock_system, info);
    j->report.quiet = j->hooks != NULL;
    return e;
}

// ---- run

static enum err on_progress(void *arg, const struct ft_progress *p, struct err_info *info) {
    struct train_job *j = arg;
    enum err e = train_report_step(&j->report, p, info);
    return !e && j->hooks ? j->hooks->step(j->hooks->arg, p, info) : e;
}

static enum err on_save(void *arg, const struct ft_state *s, bool stopping, struct err_info *info) {
    struct train_job *j = arg;
    (void)stopping;
    struct ft_manifest m = manifest_of(j);
    char name[FT_CHECKPOINT_NAME];
    enum err e = j->hooks ? j->hooks->room(j->hooks->arg, info) : ERR_OK;
    if (!e)
        e = train_report_sync(&j->report, info);
    if (!e)
        e = create_moments(j, 3, info);
    if (!e)
        e = ft_exec_get(j->exec, j->moments.w, j->moments.m, j->moments.v, info);
    if (!e)
        e = ft_checkpoint_write(j->checkpoints, &j->config, s, &j->moments, &m, name, info);
    ft_moments_fini(&j->moments);
    if (e)
        return e;
    memcpy(j->parent, name, sizeof j->parent);
    e = ft_checkpoint_prune(j->checkpoints, j->o.save_limit, info);
    return !e && j->hooks ? j->hooks->saved(j->hooks->arg, s, info) : e;
}

enum err train_job_run(struct train_job *j, struct err_info *info) {
    int64_t steps = ft_plan_steps(j->plan);
    struct ft_trainer t = {
        .exec = j->exec,
        .data = j->data,
        .validation = j->validation,
        .plan = j->plan,
        .hyper = {.method = !strcmp(j->o.method, "dpo") ? FT_DPO : FT_SUPERVISED,
                  .beta_dpo = j->o.beta_dpo,
                  .schedule = {.lr = j->o.lr,
                               .warmup = ft_schedule_warmup(j->o.warmup_ratio, steps),
                               .steps = steps},
                  .beta1 = j->o.beta1,
                  .beta2 = j->o.beta2,
                  .eps = j->o.eps,
                  .weight_decay = j->o.weight_decay,
                  .max_grad_norm = j->o.max_grad_norm,
                  .dropout = j->o.dropout > 0,
                  .seed = (uint64_t)j->o.seed,
                  .row_tokens = j->row_tokens,
                  .row_seqs = j->row_seqs,
                  .eval_steps = j->o.eval_steps,
                  .save_steps = j->o.save_steps,
                  .eval_samples = j->o.eval_samples},
        .clock = &clock_system,
        .progress = on_progress,
        .save = on_save,
        .arg = j,
        .stop = &j->stop,
    };
    enum err e = ft_schedule_parse(j->o.schedule, &t.hyper.schedule.kind);
    return e ? err_set(info, e, "lr-scheduler", "unknown schedule") : ft_train(&t, &j->state, info);
}

// ---- end

static int terminal_columns(void) {
    struct winsize w;
    return ioctl(STDERR_FILENO, TIOCGWINSZ, &w) || w.ws_col < 40 ? 80 : w.ws_col;
}

static enum err write_plots(struct train_job *j, int dir, struct err_info *info) {
    struct buf plot, svg;
    buf_init(&plot, 0);
    buf_init(&svg, 0);
    train_report_plot(&j->report, &plot, terminal_columns(), PLOT_ROWS);
    train_report_svg(&j->report, &svg);
    enum err e = buf_err(&plot) ? buf_err(&plot) : buf_err(&svg);
    if (!e && plot.len && !j->hooks)
        fwrite(plot.data, 1, plot.len, stderr);
    if (e)
        err_set(info, e, NULL, "out of memory");
    else if (svg.len)
        e = durable_put(dir, "loss.svg", svg.data, svg.len, info);
    buf_fini(&plot);
    buf_fini(&svg);
    return e;
}

static enum err write_adapter(struct train_job *j, int dir, const char *path,
                              struct err_info *info) {
    static const char *const files[] = {"adapter_config.json", "adapter_model.safetensors"};
    struct ft_manifest m = manifest_of(j);
    // A run that had ended before writes the same again; until that is whole it must not seem so.
    enum err e = durable_remove(dir, "COMPLETE", info);
    if (e && e != ERR_NOT_FOUND)
        return e;
    e = create_moments(j, 1, info);
    if (!e)
        e = ft_exec_get(j->exec, j->moments.w, NULL, NULL, info);
    if (!e)
        e = mdl_adapter_write(path, &j->config, j->moments.w, j->base_name, NULL, info);
    return e ? e
             : ft_manifest_write(dir, FT_MANIFEST_ADAPTER, &m, &j->state, files,
                                 sizeof files / sizeof *files, info);
}

enum err train_job_finish(struct train_job *j, struct err_info *info) {
    char path[TRAIN_PATH + 16];
    int dir, adapter = -1;
    snprintf(path, sizeof path, "%s/adapter", j->o.output);
    dir = open(j->o.output, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (dir < 0)
        return durable_errno(info, errno, "open", j->o.output);
    enum err e = durable_folder(dir, "adapter", &adapter, info);
    if (!e)
        e = write_adapter(j, adapter, path, info);
    if (!e)
        e = write_plots(j, dir, info);
    if (!e && !j->hooks)
        fprintf(stderr, "the adapter is in %s\n", path);
    if (adapter >= 0)
        close(adapter);
    close(dir);
    return e;
}

void train_job_end_exec(struct train_job *j) {
    if (j->hooks && j->exec)
        j->hooks->destroy_exec(j->hooks->arg, j->exec);
    else
        ft_exec_destroy(j->exec);
    j->exec = NULL;
}

void train_job_close_run(struct train_job *j) {
    train_report_close(&j->report);
    train_job_end_exec(j);
    ft_plan_destroy(j->plan);
    ft_moments_fini(&j->moments);
    ft_dataset_close(j->data);
    ft_dataset_close(j->validation);
    mem_free(j->hyperparameters);
    mem_free(j->kernel_sets);
    json_decref(j->run);
}

void train_job_close(struct train_job *j) {
    train_job_close_run(j);
    mdl_weights_destroy(j->weights);
    if (j->device)
        kn_ops_cpu.close(j->device);
    chat_template_destroy(j->chat_template);
    tokenizer_destroy(j->tokenizer);
    if (j->source)
        mdl_source_close(j->source);
}

// SPDX-License-Identifier: Apache-2.0
#include "finetune/job_validate.h"
#include "base/buf.h"
#include "base/hash.h"
#include "base/json_load.h"
#include "base/json_write.h"
#include "finetune/files.h"
#include "finetune/job_log.h"
#include <stdio.h>
#include <string.h>
#include <unistd.h>

struct check {
    const struct ft_validator *v;
    const struct ft_job *job;
    struct ft_dataset_opts opts;
    struct ft_dataset_report report;
    struct ft_job_failure *why;
    char folder[700];
};

enum err ft_job_dataset_opts(const struct ft_validator *v, const struct ft_job *job,
                             const struct ft_job_spec *spec, struct ft_dataset_opts *out,
                             struct err_info *info) {
    int32_t context = 0;
    *out = (struct ft_dataset_opts){.eos = -1};
    enum err e = v->model(v->arg, out, &context, info);
    if (e)
        return e;
    if (spec->max_seq_length > context)
        return err_set(info, ERR_INVALID, "graft.max_seq_length",
                       "graft.max_seq_length is %lld; the model's context has %d tokens",
                       (long long)spec->max_seq_length, context);
    int32_t usual = context < FT_SEQ_LEN_DEFAULT ? context : FT_SEQ_LEN_DEFAULT;
    out->now = job->created_at; // the same for the job's whole life, however often it is read
    out->max_seq_len = spec->max_seq_length ? (int32_t)spec->max_seq_length : usual;
    out->truncation = !strcmp(spec->truncation, "truncate") ? FT_TRUNC_TRUNCATE
                      : !strcmp(spec->truncation, "drop")   ? FT_TRUNC_DROP
                                                            : FT_TRUNC_ERROR;
    out->preference = spec->dpo;
    return ERR_OK;
}

static void tell(const struct check *c, const char *level, const char *message, const char *data) {
    struct err_info info = {0};
    if (ft_event_add(c->v->home, c->job->id, level, "message", message, data, &info))
        log_write(c->v->home->log, LOG_WARN, "%s: an event is lost: %s", c->job->id, info.message);
}

static void tell_report(const struct check *c, const char *file) {
    const struct ft_dataset_report *r = &c->report;
    static const char *const kinds[] = {"chat", "completion", "preference"};
    char digest[2 * sizeof r->digest + 1], message[160];
    struct buf data;
    buf_init(&data, 0);
    struct json_w w = json_w_begin(&data);
    hex_encode(r->digest, sizeof r->digest, digest);
    jw_obj(&w);
    jw_kstr(&w, "file", file);
    jw_kstr(&w, "sha256", digest);
    jw_kstr(&w, "kind", kinds[r->kind]);
    jw_kint(&w, "lines", r->lines);
    jw_kint(&w, "samples", r->samples);
    jw_kint(&w, "tokens", r->tokens);
    jw_kint(&w, "supervised_tokens", r->supervised);
    jw_kint(&w, "longest", r->longest);
    jw_kint(&w, "truncated", r->truncated);
    jw_kint(&w, "dropped", r->dropped);
    jw_kint(&w, "duplicates", r->duplicates);
    jw_kint(&w, "in_training_file", r->overlap);
    jw_obj_end(&w);
    snprintf(message, sizeof message, "%s: %lld samples, %lld tokens, %lld of them supervised",
             file, (long long)r->samples, (long long)r->tokens, (long long)r->supervised);
    tell(c, "info", message, buf_err(&data) ? NULL : data.data);
    buf_fini(&data);
    if (r->truncated || r->dropped) {
        snprintf(message, sizeof message, "%s: %lld samples were too long and cut, %lld left out",
                 file, (long long)r->truncated, (long long)r->dropped);
        tell(c, "warn", message, NULL);
    }
    if (r->overlap) {
        snprintf(message, sizeof message, "%s: %lld samples stand in the training file, too", file,
                 (long long)r->overlap);
        tell(c, "warn", message, NULL);
    }
}

static void tell_errors(const struct check *c, const char *name) {
    const struct ft_dataset_report *r = &c->report;
    char text[FT_ERROR_TEXT], message[FT_ERROR_TEXT + 32];
    int64_t told = 0;
    c->why->told = r->n_errors;
    for (int64_t i = 0; i < r->n_told; i++) {
        const struct ft_line_error *e = &r->errors[i];
        ft_line_error_text(e, text, sizeof text);
        snprintf(message, sizeof message, "%.24s: %s", name, text);
        tell(c, "error", e->line ? message : text, NULL);
        told += e->last - e->line + 1;
    }
    if (r->n_errors > told) {
        snprintf(message, sizeof message, "%s: %lld more errors", name,
                 (long long)(r->n_errors - told));
        tell(c, "error", message, NULL);
    }
}

static enum err check_file(struct check *c, const char *id, const char *name, const char *param,
                           const char *cache, struct err_info *info) {
    char path[700], into[740];
    snprintf(path, sizeof path, "%s/files/%s", c->v->home->path, id);
    snprintf(into, sizeof into, "%s/%s", c->folder, cache);
    c->opts.file_name = name;
    memset(&c->report, 0, sizeof c->report);
    enum err e = ft_dataset_build(path, into, &c->opts, &c->report, info);
    if (e != ERR_INVALID && e != ERR_TEMPLATE && e != ERR_IO && e != ERR_NOT_FOUND)
        return e;
    if (!c->report.n_errors && (e == ERR_IO || e == ERR_NOT_FOUND))
        err_prefix(info, "%s", id);
    snprintf(c->why->param, sizeof c->why->param, "%s", param);
    snprintf(c->why->code, sizeof c->why->code, "%s",
             c->report.n_errors ? c->report.errors[0].code : "file_unreadable");
    tell_errors(c, name);
    return e;
}

// What was read is what was uploaded? Bad lines of a file that the disk has damaged are no client's
// fault, and good ones are not what the job was made for.
static enum err check_content(struct check *c, enum err e, const char *id, const char *name,
                              const char *param, struct err_info *info) {
    static const uint8_t unread[SHA256_BYTES] = {0};
    struct err_info own;
    char damaged[FT_DAMAGE_MAX] = "";
    bool read = memcmp(c->report.digest, unread, sizeof unread) != 0;
    if (!read && e != ERR_NOT_FOUND && e != ERR_IO && e != ERR_FORMAT)
        return e;
    enum err f =
        ft_file_compare(c->v->home, id, read ? c->report.digest : NULL, damaged, e ? &own : info);
    if (!damaged[0])
        return e ? e : f;
    snprintf(c->why->param, sizeof c->why->param, "%s", param);
    snprintf(c->why->code, sizeof c->why->code, "%s",
             e == ERR_NOT_FOUND ? "file_missing" : "file_damaged");
    return err_set(info, ERR_INVALID, param, "%s %s: %s; upload it again", name, id, damaged);
}

static enum err overlap(struct check *c, struct err_info *info) {
    char path[740];
    struct ft_dataset *training = NULL, *validation = NULL;
    snprintf(path, sizeof path, "%s/training.tokens", c->folder);
    enum err e = ft_dataset_open(path, &training, info);
    snprintf(path, sizeof path, "%s/validation.tokens", c->folder);
    if (!e)
        e = ft_dataset_open(path, &validation, info);
    if (!e) {
        e = ft_dataset_overlap(training, validation, &c->report.overlap);
        if (e)
            err_set(info, e, NULL, "%s", err_text(e));
    }
    if (validation)
        ft_dataset_close(validation);
    if (training)
        ft_dataset_close(training);
    return e;
}

static enum err check_files(struct check *c, struct err_info *info) {
    const struct ft_job *j = c->job;
    int folder;
    enum err e = durable_folder(c->v->home->jobs, j->id, &folder, info);
    if (e)
        return e;
    e = durable_clean(folder, info);
    close(folder);
    if (e)
        return e;
    snprintf(c->folder, sizeof c->folder, "%s/jobs/%s", c->v->home->path, j->id);
    c->opts.min_examples = FT_MIN_EXAMPLES;
    e = check_file(c, j->training_file, "Training file", "training_file", "training.tokens", info);
    e = check_content(c, e, j->training_file, "Training file", "training_file", info);
    if (e)
        return e;
    tell_report(c, j->training_file);
    if (!j->validation_file[0])
        return ERR_OK;
    c->opts.min_examples = 1;
    e = check_file(c, j->validation_file, "Validation file", "validation_file", "validation.tokens",
                   info);
    e = check_content(c, e, j->validation_file, "Validation file", "validation_file", info);
    if (!e)
        e = overlap(c, info);
    if (!e)
        tell_report(c, j->validation_file);
    return e;
}

enum err ft_job_validate(void *arg, const struct ft_job *job, bool (*cancelled)(void *arg),
                         void *cancelled_arg, struct ft_job_failure *why, struct err_info *info) {
    struct check c = {.v = arg, .job = job, .why = why};
    struct ft_job_spec spec;
    json_t *request = json_load_text(job->request, strlen(job->request), 0, NULL);
    if (!request)
        return err_set(info, ERR_NOMEM, NULL, "out of memory");
    enum err e = ft_job_spec_read(request, &spec, info);
    if (!e)
        e = ft_job_dataset_opts(c.v, job, &spec, &c.opts, info);
    if (e == ERR_INVALID) {
        snprintf(why->code, sizeof why->code, "invalid_value");
        snprintf(why->param, sizeof why->param, "%s", info->param);
    }
    c.opts.cancelled = cancelled;
    c.opts.cancelled_arg = cancelled_arg;
    if (!e)
        e = check_files(&c, info);
    json_decref(request);
    return e;
}

// SPDX-License-Identifier: Apache-2.0
// Fine-tuning objects as the API gives them.
#include "base/json_load.h"
#include "base/json_value.h"
#include "base/mem.h"
#include "gateway/api_jobs.h"
#include <jansson.h>
#include <stdio.h>
#include <string.h>

enum { REASON = FT_ID_MAX + 64 }; // bytes of a reason that is made up here

// A value of the stored request, or null.
static void write_json(struct json_w *w, const char *key, const json_t *v) {
    jw_key(w, key);
    jw_value(w, v);
}

static void write_time(struct json_w *w, const char *key, int64_t t) {
    if (t)
        jw_kint(w, key, t);
    else
        jw_knull(w, key);
}

static const char *or_null(const char *s) {
    return s[0] ? s : NULL;
}

static void write_error(const struct ft_job *j, struct json_w *w) {
    jw_key(w, "error");
    if (!j->error_code[0]) {
        jw_null(w);
        return;
    }
    jw_obj(w);
    jw_kstr(w, "code", j->error_code);
    jw_kstr(w, "message", j->error_message);
    jw_kstr(w, "param", or_null(j->error_param));
    jw_obj_end(w);
}

static void write_method(const struct ft_job *j, struct json_w *w) {
    const char *type = j->dpo ? "dpo" : "supervised";
    jw_key(w, "method");
    jw_obj(w);
    jw_kstr(w, "type", type);
    jw_key(w, type);
    jw_obj(w);
    jw_key(w, "hyperparameters");
    jw_raw(w, j->hyper, strlen(j->hyper));
    jw_obj_end(w);
    jw_obj_end(w);
}

static void write_position(const struct ft_job *j, struct json_w *w) {
    jw_key(w, "queue_position"); // how many run before it
    if (j->ahead >= 0)
        jw_int(w, j->ahead);
    else
        jw_null(w);
}

// Why the job waits, or NULL. `text` is memory for it. Whose the job is that runs is an
// administrator's to know.
static const char *reason_of(const struct ft_job *j, const char *wait, bool admin,
                             char text[REASON]) {
    bool queued = j->state == FT_JOB_QUEUED;
    bool runs = j->state == FT_JOB_RUNNING || j->state == FT_JOB_EVALUATING;
    text[0] = '\0';
    if (j->reason[0])
        wait = j->reason;
    else if (!queued && !runs && j->state != FT_JOB_VALIDATING)
        wait = NULL;
    if (!wait && queued && j->ahead > 0)
        snprintf(text, REASON, "jobs that run before it: %lld", (long long)j->ahead);
    else if (!wait && queued && j->at_work[0])
        snprintf(text, REASON, "%s runs, and one job runs at a time",
                 admin ? j->at_work : "another job");
    return wait ? wait : or_null(text);
}

// What was asked for; in the tenant's view of a job that waits, with why and where in the queue.
static void write_graft(const struct ft_job *j, json_t *asked, const char *wait, struct json_w *w) {
    char text[REASON];
    const char *reason = ft_job_state_final(j->state) ? NULL : reason_of(j, wait, false, text);
    if (!reason && j->ahead < 0) {
        write_json(w, "graft", asked);
        return;
    }
    jw_key(w, "graft");
    jw_obj(w);
    const char *key;
    json_t *v;
    json_object_foreach(asked, key, v) {
        write_json(w, key, v);
    }
    jw_kstr(w, "reason", reason);
    write_position(j, w);
    jw_obj_end(w);
}

static void write_body(const struct ft_job *j, const json_t *request, const char *wait,
                       struct json_w *w) {
    bool goes_on = (j->state == FT_JOB_RUNNING || j->state == FT_JOB_EVALUATING ||
                    j->state == FT_JOB_PUBLISHING) &&
                   !wait && !j->reason[0];
    jw_kstr(w, "id", j->id);
    jw_kstr(w, "object", "fine_tuning.job");
    jw_kint(w, "created_at", j->created_at);
    write_time(w, "finished_at", j->finished_at);
    jw_kstr(w, "model", j->model);
    jw_kstr(w, "fine_tuned_model", or_null(j->fine_tuned_model));
    jw_kstr(w, "organization_id", "graft");
    jw_key(w, "result_files");
    jw_arr(w);
    for (int i = 0; i < j->n_results; i++)
        jw_str(w, j->results[i]);
    jw_arr_end(w);
    jw_kstr(w, "status", ft_job_state_status(j->state));
    if (j->trained_tokens >= 0)
        jw_kint(w, "trained_tokens", j->trained_tokens);
    else
        jw_knull(w, "trained_tokens");
    jw_kstr(w, "training_file", j->training_file);
    jw_kstr(w, "validation_file", or_null(j->validation_file));
    jw_key(w, "hyperparameters");
    jw_raw(w, j->hyper, strlen(j->hyper));
    jw_kint(w, "seed", j->seed);
    write_error(j, w);
    write_time(w, "estimated_finish", goes_on ? j->estimated_finish : 0); // else nobody knows
    jw_key(w, "integrations");
    jw_arr(w);
    jw_arr_end(w);
    write_json(w, "metadata", json_object_get(request, "metadata"));
    write_method(j, w);
}

static json_t *request_of(const struct ft_job *j, struct json_w *w) {
    json_t *o = json_load_text(j->request, strlen(j->request), 0, NULL);
    if (!o) // it was written by us, and read before
        w->out->failed = ERR_NOMEM;
    return o;
}

void api_job_write(const struct ft_job *j, const char *wait, struct json_w *w) {
    json_t *request = request_of(j, w);
    jw_obj(w);
    write_body(j, request, wait, w);
    write_graft(j, json_object_get(request, "graft"), wait, w);
    jw_obj_end(w);
    json_decref(request);
}

void api_job_admin_write(const struct ft_job *j, const char *tenant, const char *wait,
                         const json_t *samples, struct json_w *w) {
    char id[17], text[REASON];
    json_t *request = request_of(j, w);
    jw_obj(w);
    write_body(j, request, wait, w);
    write_json(w, "graft", json_object_get(request, "graft"));
    json_decref(request);
    snprintf(id, sizeof id, "%016llx", (unsigned long long)j->tenant); // as in the access log
    jw_kstr(w, "tenant", tenant);
    jw_kstr(w, "tenant_id", id);
    jw_kstr(w, "state", ft_job_state_text(j->state));
    jw_kstr(w, "reason", reason_of(j, wait, true, text));
    jw_kint(w, "priority", j->priority);
    write_position(j, w);
    jw_kint(w, "attempts", j->attempts);
    jw_kint(w, "step", j->step);
    jw_kint(w, "steps", j->steps);
    jw_key(w, "times");
    jw_obj(w);
    write_time(w, "accepted", j->created_at);
    write_time(w, "queued", j->queued_at);
    write_time(w, "assigned", j->started_at);
    write_time(w, "prepared", j->prepared_at);
    write_time(w, "first_step", j->first_step_at);
    write_time(w, "last_checkpoint", j->checkpoint_at);
    write_time(w, "finished", j->finished_at);
    jw_obj_end(w);
    if (j->version)
        jw_kint(w, "version", (int64_t)j->version);
    else
        jw_knull(w, "version");
    write_json(w, "samples", samples);
    jw_obj_end(w);
}

void api_event_write(const struct ft_event *e, struct json_w *w) {
    jw_obj(w);
    jw_kstr(w, "object", "fine_tuning.job.event");
    jw_kstr(w, "id", e->id);
    jw_kint(w, "created_at", e->created_at);
    jw_kstr(w, "level", e->level);
    jw_kstr(w, "message", e->message);
    jw_kstr(w, "type", e->type);
    jw_key(w, "data");
    if (e->data)
        jw_raw(w, e->data, strlen(e->data));
    else
        jw_null(w);
    jw_obj_end(w);
}

void api_checkpoint_write(const struct ft_checkpoint_row *c, struct json_w *w) {
    jw_obj(w);
    jw_kstr(w, "object", "fine_tuning.job.checkpoint");
    jw_kstr(w, "id", c->id);
    jw_kint(w, "created_at", c->created_at);
    jw_kstr(w, "fine_tuning_job_id", c->job);
    jw_kstr(w, "fine_tuned_model_checkpoint", c->model);
    jw_kint(w, "step_number", c->step);
    jw_key(w, "metrics");
    jw_raw(w, c->metrics, strlen(c->metrics));
    jw_obj_end(w);
}

// SPDX-License-Identifier: Apache-2.0
// What is told of a job while it runs.
#include "base/buf.h"
#include "base/json_write.h"
#include "finetune/job_log.h"
#include "finetune/job_models.h"
#include "gateway/adapter_demand.h"
#include "gateway/job_runner_internal.h"
#include <math.h>
#include <stdio.h>

#define BIT(s) (1u << FT_JOB_##s)

void job__tell(const struct job_runner *r, const char *level, const char *type, const char *message,
               const char *data) {
    struct err_info info = {0};
    if (ft_event_add(job__home(r), r->run->id, level, type, message, data, &info))
        log_write(job__home(r)->log, LOG_WARN, "%s: an event is lost: %s", r->run->id,
                  info.message);
}

void job__log(const struct job_runner *r, enum log_level level, const char *text) {
    log_write(job__home(r)->log, level, "%s: %s", r->run->id, text);
}

void job__enter(const struct job_runner *r, enum ft_job_state to, const char *message) {
    struct err_info info = {0};
    bool moved;
    const struct ft_job_move m = {
        .from = BIT(RUNNING) | BIT(EVALUATING), .to = to, .level = "info", .message = message};
    if (ft_job_move(job__home(r), r->run->id, &m, &moved, &info))
        log_write(job__home(r)->log, LOG_WARN, "%s: %s", r->run->id, info.message);
}

// ---- hooks of the run

void job__on_tell(void *arg, const char *message) {
    job__tell(arg, "info", "message", message, NULL);
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

// The step with its event, in one transaction: whatever a kill leaves, each step is told of once.
enum err job__on_step(void *arg, const struct ft_progress *p, struct err_info *info) {
    struct job_runner *r = arg;
    struct job_run *run = r->run;
    const struct ft_state *s = p->state;
    bool told =
        s->step > run->told_step && ft_step_is_told(s->step, p->steps, run->train.o.eval_steps);
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
    const struct ft_job_record now = {
        .progress = {.step = s->step,
                     .steps = p->steps,
                     .trained_tokens = s->trained_tokens,
                     .estimated_finish = ft_now(job__home(r)) + (int64_t)ceil(p->eta_s),
                     .first_step = s->step == 1},
        // Steps behind the checkpoint are done again with the same bits; they were told of.
        .level = told ? "info" : NULL,
        .type = "metrics",
        .message = message,
        .data = data.data};
    metric_add(r->steps, 1);
    metric_add(r->tokens, (double)(s->trained_tokens - run->counted_tokens));
    run->counted_tokens = s->trained_tokens;
    enum err e = buf_err(&data) ? err_set(info, buf_err(&data), NULL, "out of memory")
                                : ft_job_record(job__home(r), run->id, &now, info);
    if (!e && s->step > run->told_step)
        run->told_step = s->step;
    buf_fini(&data);
    return e;
}

void job__on_taken(void *arg, bool taken) {
    job__log(arg, LOG_INFO,
             taken ? "preempted: serving needs the memory of its state"
                   : "its state is back in memory");
    job__tell(arg, "info", "message",
              taken
                  ? "Preempted: serving needs the memory of the job's state; the job goes on when "
                    "there is room for it"
                  : "The job's state is back in memory, the job goes on",
              NULL);
}

// What the reserve has given up is for changes of states, not for checkpoints.
enum err job__room(void *arg, struct err_info *info) {
    return ft_home_room(job__home(arg), info);
}

enum err job__on_saved(void *arg, const struct ft_state *s, struct err_info *info) {
    struct job_runner *r = arg;
    struct job_run *run = r->run;
    struct buf data;
    buf_init(&data, 0);
    struct json_w w = json_w_begin(&data);
    jw_obj(&w);
    write_metrics(&w, s, isfinite(s->valid_loss), s->step == ft_plan_steps(run->train.plan));
    jw_obj_end(&w);
    enum err e = buf_err(&data) ? err_set(info, buf_err(&data), NULL, "out of memory")
                                : ft_checkpoint_add(job__home(r), run->id, s->step, run->name,
                                                    data.data, info);
    buf_fini(&data);
    // The folders of older ones are gone: their names must be, too.
    if (!e)
        e = ft_checkpoints_keep(job__home(r), run->id, run->train.o.save_limit, info);
    if (!e && r->app->demand)
        adapter_demand_sweep(r->app->demand);
    return e;
}

enum err job__tell_resolved(struct job_runner *r, struct err_info *info) {
    struct job_run *run = r->run;
    const struct ft_job_spec *s = &run->spec;
    struct buf b;
    run->counted_tokens = run->train.state.trained_tokens;
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
                             : ft_job_progress(job__home(r), run->id, &now, info);
    buf_fini(&b);
    return e;
}

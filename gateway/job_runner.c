// SPDX-License-Identifier: Apache-2.0
#include "gateway/job_runner.h"
#include "base/mem.h"
#include "gateway/job_runner_internal.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

enum { SAVES = 10, MOST_BETWEEN_SAVES = 100 };

// ---- where the device work runs

static enum err create_exec(void *arg, const struct ft_exec_config *cfg, struct ft_exec **out,
                            struct err_info *info) {
    struct job_runner *r = arg;
    struct ft_exec_config c = *cfg;
    int dir = open(r->run->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (dir < 0)
        return durable_errno(info, errno, "open", r->run->path);
    c.spill = (struct ft_spill){.dir = dir, .room = job__room, .taken = job__on_taken, .arg = r};
    train_place_name(&r->place, r->run->id);
    enum err e = train_place_create(&r->place, &c, out, info);
    close(dir);
    return e;
}

static void destroy_exec(void *arg, struct ft_exec *x) {
    struct job_runner *r = arg;
    train_place_destroy(&r->place, x);
}

// ---- the run

static void choose_saves(struct train_job *t) {
    int64_t n = ft_plan_steps(t->plan) / SAVES;
    if (!t->o.save_steps)
        t->o.save_steps = n < 1 ? 1 : n > MOST_BETWEEN_SAVES ? MOST_BETWEEN_SAVES : n;
}

static enum err train(struct job_runner *r, struct err_info *info) {
    struct train_job *t = &r->run->train;
    if (r->run->version) // by a process that died then
        return job__finish(r, info);
    enum err e = train_job_open_run(t, info);
    if (!e)
        e = job__tell_resolved(r, info);
    if (!e)
        e = job__samples_before(r, info);
    if (e)
        return e;
    choose_saves(t);
    if ((e = train_job_run(t, info)))
        return e;
    job__enter(r, FT_JOB_EVALUATING, "Training has ended, evaluating the result");
    if ((e = train_job_finish(t, info)) || (e = job__find_losses(r, info)) ||
        (e = job__score_probe(r, info)))
        return e;
    train_job_end_exec(t);
    if (atomic_load(&t->stop))
        return err_set(info, ERR_CANCELLED, NULL, "the job was stopped");
    job__enter(r, FT_JOB_PUBLISHING, "Publishing the fine-tuned model");
    e = job__publish(r, info);
    return e ? e : job__finish(r, info);
}

static const char *code_of(enum err e) {
    return e == ERR_NONFINITE   ? "non_finite_loss"
           : e == ERR_DISK_FULL ? "disk_full"
           : e == ERR_NOMEM     ? "out_of_memory"
           : e == ERR_LIMIT     ? "out_of_memory"
           : e == ERR_DEADLINE  ? "no_adapter_slot"
                                : "training_failed";
}

// Not the job's fault: the server drains, and the next start goes on.
static bool was_stopped(enum err e) {
    return e == ERR_CANCELLED || e == ERR_DRAINING || e == ERR_ENGINE_DEAD;
}

static bool may_pass(enum err e) {
    return e == ERR_NOMEM || e == ERR_DISK_FULL || e == ERR_IO || e == ERR_AGAIN ||
           e == ERR_DEADLINE || e == ERR_QUEUE_FULL;
}

static void *run_job(void *arg) {
    struct job_runner *r = arg;
    struct err_info info = {0};
    struct ft_job_end end = {.how = FT_END_SUCCEEDED};
    enum err e = train(r, &info);
    train_job_close_run(&r->run->train);
    if (e && (was_stopped(e) || atomic_load(&r->discard))) {
        end.how = FT_END_STOPPED;
    } else if (e) {
        end.how = FT_END_FAILED;
        bool damaged = e == ERR_FORMAT && !r->run->code; // the cache of tokens
        end.retry = may_pass(e) || damaged;
        if (damaged)
            job__drop_tokens(r->run);
        snprintf(end.error_code, sizeof end.error_code, "%s",
                 r->run->code ? r->run->code : code_of(e));
        snprintf(end.error_message, sizeof end.error_message, "%s", info.message);
        if (r->run->code) // else it is a field of what failed below, not of the job
            snprintf(end.error_param, sizeof end.error_param, "%s", info.param);
    } else {
        job__served_name(r->run, end.fine_tuned_model, sizeof end.fine_tuned_model);
    }
    ft_control_ended(*r->control, &end);
    return NULL;
}

// ---- what the control thread calls

static void drop_run(struct job_runner *r) {
    if (!r->run)
        return;
    json_decref(r->run->request);
    ft_probe_fini(&r->run->trained);
    ft_probe_fini(&r->run->served);
    job_prompts_fini(&r->run->required);
    job_prompts_fini(&r->run->forbidden);
    job__samples_fini(r->run);
    mem_free(r->run);
    r->run = NULL;
}

bool job_runner_ready(void *arg) {
    const struct job_runner *r = arg;
    return app_state(r->app) == APP_READY && r->app->adapters &&
           app_digest_ended(r->app); // without one the start says why not
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
    if (!r->place.engine) { // once: others read it while a job runs
        r->place.engine = model_host_trainer(r->host, &r->place.device);
        r->place.memory = r->host->kv_bytes;
    }
    enum err e = job__prepare(r, job, info);
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
    else
        train_place_leave(&r->place);
}

enum err job_runner_init(struct job_runner *r, struct err_info *info) {
    struct metrics *m = r->app->metrics;
    r->steps = m ? metrics_counter(m, "graft_training_steps_total", NULL,
                                   "Optimizer steps of fine-tuning jobs, done since the start.")
                 : NULL;
    r->tokens = m ? metrics_counter(m, "graft_training_tokens_total", NULL,
                                    "Tokens that fine-tuning jobs trained on since the start.")
                  : NULL;
    if (m && (!r->steps || !r->tokens))
        return err_set(info, ERR_NOMEM, NULL, "out of memory");
    r->hooks = (struct train_hooks){
        create_exec, destroy_exec, job__on_tell, job__on_step, job__room, job__on_saved, r};
    return train_place_init(&r->place, info);
}

void job_runner_fini(struct job_runner *r) {
    if (r->run)
        thread_join(&r->run->thread);
    drop_run(r);
}

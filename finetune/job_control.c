// SPDX-License-Identifier: Apache-2.0
#include "finetune/job_control.h"
#include "base/diskio.h"
#include "base/mailbox.h"
#include "base/mem.h"
#include "base/thread.h"
#include "finetune/cleanup.h"
#include "finetune/files.h"
#include "finetune/job_log.h"
#include "finetune/job_watch.h"
#include <signal.h>
#include <stdio.h>
#include <string.h>

#define BIT(s) (1u << FT_JOB_##s)
#define AT_WORK (BIT(RUNNING) | BIT(EVALUATING) | BIT(PUBLISHING))

static const int64_t second = 1000000000, minute = 60 * 1000000000LL;
enum {
    ROOM_MADE = 8 << 20,
    STALLS_TOLD = 16, // events of one run that say why it makes no progress
};

struct ft_control {
    struct ft_home *home;
    struct ft_job_runner runner;
    struct mailbox *wakes; // only ever woken
    struct thread thread;
    _Atomic bool quit, changed;
    // The runner's end: written by it before `ended`, read by the thread after it.
    struct ft_job_end end;
    _Atomic bool ended;
    // the thread's
    char running[FT_ID_MAX]; // the job that the runner has, or empty
    int64_t priority, attempts;
    bool stopping, discarding;     // the runner was told to stop; to keep nothing
    char urgent[FT_ID_MAX];        // the job that it was preempted for, or empty
    char stall[FT_JOB_REASON_MAX]; // why it made no progress, as it was told last
    int stalls;                    // told of this run
    int64_t sweep_at;
    // nothing is begun before hold_until, unless the disk was full and has more room than it had
    int64_t hold_until, hold_wait;
    bool full;
    uint64_t room;
    char said[640]; // the last complaint
    int64_t say_at, say_wait;
};

void ft_control_wake(struct ft_control *c) {
    if (!c)
        return;
    atomic_store(&c->changed, true);
    mailbox_wake(c->wakes);
}

void ft_control_ended(struct ft_control *c, const struct ft_job_end *end) {
    c->end = *end;
    atomic_store_explicit(&c->ended, true, memory_order_release);
    mailbox_wake(c->wakes);
}

// What is said again and again is logged ever more rarely.
static void complain(struct ft_control *c, const char *what, const struct err_info *info) {
    char text[sizeof c->said];
    int64_t now = clock_mono_ns(c->home->clock);
    snprintf(text, sizeof text, "%s: %s", what, info->message);
    bool again = !strcmp(text, c->said);
    if (again && now < c->say_at)
        return;
    c->say_wait = again && c->say_wait < 64 * minute ? 2 * c->say_wait : minute;
    c->say_at = now + c->say_wait;
    memcpy(c->said, text, sizeof text);
    log_write(c->home->log, LOG_ERROR, "jobs: %s", text);
}

// ---- failures of the moment

static void tell_waiting(struct ft_control *c, bool full) {
    struct err_info info;
    // Where there is no trainer, the queue waits for that.
    unsigned states = BIT(VALIDATING) | (c->runner.start ? BIT(QUEUED) : 0);
    if (full ? ft_jobs_wait(c->home, states, FT_JOB_WAITS_DISK, &info)
             : ft_jobs_wait_over(c->home, FT_JOB_WAITS_DISK, &info))
        complain(c, "cannot say why they wait", &info);
}

// Nothing is begun for a while, longer each time; jobs are told why.
static void hold_off(struct ft_control *c, const struct err_info *info) {
    bool full = info->code == ERR_DISK_FULL;
    c->hold_wait = !c->hold_wait ? second : c->hold_wait < minute ? 2 * c->hold_wait : minute;
    c->hold_until = clock_mono_ns(c->home->clock) + c->hold_wait;
    c->room = diskio_room(c->home->dir.fd);
    char what[256] = "they wait";
    if (full) // whether or not anything else has found it full
        snprintf(what, sizeof what, "they wait for room on the disk of %.200s", c->home->path);
    complain(c, what, info);
    if (full || c->full)
        tell_waiting(c, full);
    c->full = full;
}

static bool held_off(const struct ft_control *c) {
    if (!c->hold_wait || clock_mono_ns(c->home->clock) >= c->hold_until)
        return false;
    return !c->full || diskio_room(c->home->dir.fd) < c->room + ROOM_MADE;
}

// Something went well.
static void go_on(struct ft_control *c) {
    if (c->full)
        tell_waiting(c, false);
    c->full = false;
    c->hold_wait = 0;
}

// Whether there is room for what a job writes.
static bool has_room(struct ft_control *c) {
    struct err_info info = {0};
    if (!ft_home_room(c->home, &info))
        return true;
    hold_off(c, &info);
    return false;
}

// False: try again later.
static bool move(struct ft_control *c, const char *id, const struct ft_job_move *m, bool *moved) {
    struct err_info info = {0};
    if (!ft_job_move(c->home, id, m, moved, &info))
        return true;
    complain(c, id, &info);
    return false;
}

static enum ft_job_state state_of(struct ft_control *c, const char *id, enum ft_job_state dflt) {
    struct ft_job j;
    struct err_info info;
    if (ft_job_get(c->home, (struct ft_job_owner){.any = true}, id, &j, &info))
        return dflt;
    enum ft_job_state s = j.state;
    ft_job_fini(&j);
    return s;
}

// ---- running

static bool passes(enum err e) {
    return e == ERR_LOADING || e == ERR_NOMEM || e == ERR_AGAIN || e == ERR_DISK_FULL;
}

static void fail(struct ft_control *c, const char *id, const struct err_info *info) {
    bool moved;
    const struct ft_job_move m = {.from = AT_WORK | BIT(QUEUED),
                                  .to = FT_JOB_FAILED,
                                  .level = "error",
                                  .message = info->message,
                                  .error_code = "cannot_start",
                                  .error_message = info->message,
                                  .error_param = info->param[0] ? info->param : NULL};
    (void)move(c, id, &m, &moved);
}

static void validate_again(struct ft_control *c, const char *id, const struct err_info *info) {
    bool moved;
    char message[400];
    snprintf(message, sizeof message, "The job's files are read again: %.300s", info->message);
    const struct ft_job_move m = {.from = BIT(RUNNING),
                                  .to = FT_JOB_VALIDATING,
                                  .level = "warn",
                                  .message = message,
                                  .tried = true};
    (void)move(c, id, &m, &moved);
}

static void start(struct ft_control *c, const struct ft_job *j) {
    struct err_info info = {0};
    bool moved = false;
    const struct ft_job_move run = {.from = BIT(QUEUED),
                                    .to = FT_JOB_RUNNING,
                                    .level = "info",
                                    .message = j->started_at ? "Fine-tuning job goes on"
                                                             : "Fine-tuning job started"};
    if (!move(c, j->id, &run, &moved) || !moved)
        return;
    memcpy(c->running, j->id, sizeof c->running);
    c->priority = j->priority;
    c->attempts = j->attempts;
    c->stopping = c->discarding = false;
    c->urgent[0] = c->stall[0] = '\0';
    c->stalls = 0;
    atomic_store(&c->ended, false);
    enum err e = c->runner.start(c->runner.arg, j, &info);
    if (!e)
        return;
    c->running[0] = '\0';
    if (e == ERR_FORMAT && j->attempts + 1 < FT_JOB_ATTEMPTS_MAX) {
        validate_again(c, j->id, &info);
        return;
    }
    if (!passes(e)) {
        fail(c, j->id, &info);
        return;
    }
    if (e != ERR_LOADING)
        hold_off(c, &info);
    const struct ft_job_move back = {.from = BIT(RUNNING),
                                     .to = FT_JOB_QUEUED,
                                     .reason =
                                         e == ERR_DISK_FULL ? FT_JOB_WAITS_DISK : info.message,
                                     .level = "warn",
                                     .message = info.message};
    (void)move(c, j->id, &back, &moved);
}

static bool start_next(struct ft_control *c) {
    struct ft_job j;
    struct err_info info = {0};
    if (!c->runner.start || c->running[0] || held_off(c) || atomic_load(&c->quit))
        return false;
    if (c->runner.ready && !c->runner.ready(c->runner.arg))
        return false;
    if (ft_job_next(c->home, FT_JOB_QUEUED, &j, &info)) {
        complain(c, "cannot look for the next one", &info);
        return false;
    }
    if (j.id[0] && has_room(c))
        start(c, &j);
    ft_job_fini(&j);
    return c->running[0] != '\0';
}

static void stop(struct ft_control *c, enum ft_stop why) {
    c->stopping = true;
    c->runner.stop(c->runner.arg, why);
}

// Does the job in hand have to make way?
static void look_at_running(struct ft_control *c) {
    struct ft_job next;
    struct err_info info;
    if (!c->running[0] || c->discarding)
        return;
    enum ft_job_state s = state_of(c, c->running, FT_JOB_RUNNING);
    if (s == FT_JOB_CANCELLED) {
        c->discarding = true;
        stop(c, FT_STOP_CANCEL);
    } else if (c->stopping) {
        return;
    } else if (!(AT_WORK & 1u << s)) { // paused, perhaps resumed since
        stop(c, FT_STOP_PAUSE);
    } else if (!ft_job_next(c->home, FT_JOB_QUEUED, &next, &info)) {
        if (next.id[0] && next.priority < c->priority) {
            memcpy(c->urgent, next.id, sizeof c->urgent);
            stop(c, FT_STOP_PREEMPT);
        }
        ft_job_fini(&next);
    }
}

// Its owner is told when the kind of reason changes, which its details do all the time.
static void tell_stall(struct ft_control *c) {
    char reason[FT_JOB_REASON_MAX] = "", message[FT_JOB_REASON_MAX + 16];
    struct err_info info;
    if (!c->running[0] || !c->runner.stalls || c->stalls == STALLS_TOLD)
        return;
    c->runner.stalls(c->runner.stalls_arg, c->running, reason, sizeof reason);
    size_t kind = strcspn(reason, ":");
    if (!kind || (kind == strcspn(c->stall, ":") && !memcmp(c->stall, reason, kind)))
        return;
    snprintf(message, sizeof message, "The job %s", reason);
    if (ft_event_add(c->home, c->running, "info", "message", message, NULL, &info)) {
        complain(c, c->running, &info);
        return;
    }
    memcpy(c->stall, reason, sizeof reason);
    c->stalls++;
}

// ---- the end of a run

// detail: for the event alone; or empty.
static bool back_to_queue(struct ft_control *c, const char *reason, const char *detail,
                          bool tried) {
    bool moved;
    char message[2 * FT_JOB_REASON_MAX + 64];
    snprintf(message, sizeof message, "Fine-tuning job goes back to the queue: %s%s%.160s%s",
             reason, *detail ? " (" : "", detail, *detail ? ")" : "");
    const struct ft_job_move m = {.from = AT_WORK,
                                  .to = FT_JOB_QUEUED,
                                  .reason = reason,
                                  .level = tried ? "warn" : "info",
                                  .message = message,
                                  .tried = tried};
    return move(c, c->running, &m, &moved);
}

static bool stopped(struct ft_control *c) {
    char reason[FT_JOB_REASON_MAX] = "its run was stopped";
    if (atomic_load(&c->quit))
        snprintf(reason, sizeof reason, "the server is stopping");
    else if (c->urgent[0])
        snprintf(reason, sizeof reason, "preempted by %s, which is more urgent", c->urgent);
    return back_to_queue(c, reason, "", false);
}

// What was paused meanwhile has ended all the same; what was cancelled stays so.
static bool finished(struct ft_control *c) {
    const struct ft_job_end *end = &c->end;
    const unsigned from = AT_WORK | BIT(PAUSED) | BIT(QUEUED);
    bool moved;
    if (end->how == FT_END_SUCCEEDED) {
        const struct ft_job_move m = {.from = from,
                                      .to = FT_JOB_SUCCEEDED,
                                      .level = "info",
                                      .message = "The job has successfully completed",
                                      .fine_tuned_model = end->fine_tuned_model};
        return move(c, c->running, &m, &moved);
    }
    const struct ft_job_move m = {.from = from,
                                  .to = FT_JOB_FAILED,
                                  .level = "error",
                                  .message = end->error_message,
                                  .error_code = end->error_code,
                                  .error_message = end->error_message,
                                  .error_param = end->error_param[0] ? end->error_param : NULL};
    return move(c, c->running, &m, &moved);
}

static bool has_ended(const struct ft_control *c) {
    return c->running[0] && atomic_load_explicit(&c->ended, memory_order_acquire);
}

// False: nothing has ended, or it could not be recorded yet.
static bool take_end(struct ft_control *c) {
    if (!has_ended(c))
        return false;
    const struct ft_job_end *end = &c->end;
    // A full disk is not the job's fault: it counts as no try.
    bool done, full = end->how == FT_END_FAILED && !strcmp(end->error_code, "disk_full");
    if (end->how == FT_END_STOPPED) {
        done = stopped(c);
    } else if (full) {
        struct err_info info;
        err_set(&info, ERR_DISK_FULL, NULL, "%s", end->error_message);
        done = back_to_queue(c, FT_JOB_WAITS_DISK, end->error_message, false);
        if (done)
            hold_off(c, &info);
    } else if (end->how == FT_END_FAILED && end->retry && c->attempts + 1 < FT_JOB_ATTEMPTS_MAX) {
        char reason[FT_JOB_REASON_MAX];
        snprintf(reason, sizeof reason, "try %lld of %d failed: %.120s", (long long)c->attempts + 1,
                 FT_JOB_ATTEMPTS_MAX, end->error_message);
        done = back_to_queue(c, reason, "", true);
    } else {
        done = finished(c);
    }
    if (done)
        c->running[0] = '\0';
    if (done && !full)
        go_on(c);
    return done;
}

// What the job in hand needs, and the next one where it is none. True: there may be more to do.
static bool tend(struct ft_control *c) {
    bool more = take_end(c);
    look_at_running(c);
    return start_next(c) || more;
}

// ---- validating

struct validating {
    struct ft_control *c;
    const char *id;
    int64_t tend_at; // the end of the job in hand is not looked at again before
};

static bool no_longer_wanted(void *arg) {
    struct validating *v = arg;
    struct ft_control *c = v->c;
    if (atomic_load(&c->quit))
        return true;
    bool changed = atomic_exchange(&c->changed, false);
    // Files may take minutes to read; the job in hand must not wait for that.
    if (changed || (has_ended(c) && clock_mono_ns(c->home->clock) >= v->tend_at)) {
        v->tend_at = clock_mono_ns(c->home->clock) + second;
        (void)tend(c);
    }
    return changed && state_of(c, v->id, FT_JOB_VALIDATING) != FT_JOB_VALIDATING;
}

// The disk failed at reading: that may pass.
static void try_again(struct ft_control *c, const struct ft_job *j, const struct err_info *info) {
    bool moved;
    char message[400];
    snprintf(message, sizeof message,
             "The job's files are read again: try %lld of %d failed: %.300s",
             (long long)j->attempts + 1, FT_JOB_ATTEMPTS_MAX, info->message);
    const struct ft_job_move m = {.from = BIT(VALIDATING),
                                  .to = FT_JOB_VALIDATING,
                                  .level = "warn",
                                  .message = message,
                                  .tried = true};
    (void)move(c, j->id, &m, &moved);
}

// A job that comes to the queue and does not run at once says behind how many it waits.
static void tell_place(struct ft_control *c, const char *id) {
    struct ft_job j;
    struct err_info info;
    char message[96];
    if (ft_job_get(c->home, (struct ft_job_owner){.any = true}, id, &j, &info))
        return;
    int64_t n = j.state == FT_JOB_QUEUED ? j.ahead + (j.at_work[0] != '\0') : 0;
    ft_job_fini(&j);
    snprintf(message, sizeof message, "The job waits behind %lld other %s", (long long)n,
             n == 1 ? "job" : "jobs");
    if (n > 0 && ft_event_add(c->home, id, "info", "message", message, NULL, &info))
        complain(c, id, &info);
}

// False: nothing to do now, or later again.
static bool validate_one(struct ft_control *c) {
    struct ft_job j;
    struct err_info info = {0};
    struct ft_job_failure why = {0};
    bool moved = false;
    if (!c->runner.validate || held_off(c))
        return false;
    if (ft_job_next(c->home, FT_JOB_VALIDATING, &j, &info)) {
        complain(c, "cannot look for the next one", &info);
        return false;
    }
    if (!j.id[0] || !has_room(c)) {
        ft_job_fini(&j);
        return false;
    }
    struct validating v = {.c = c, .id = j.id, .tend_at = INT64_MIN};
    enum err e = c->runner.validate(c->runner.arg, &j, no_longer_wanted, &v, &why, &info);
    bool again = e == ERR_IO && j.attempts + 1 < FT_JOB_ATTEMPTS_MAX;
    bool done = !passes(e) && !again;
    if (again)
        try_again(c, &j, &info);
    if (e == ERR_OK) {
        const struct ft_job_move m = {.from = BIT(VALIDATING),
                                      .to = FT_JOB_QUEUED,
                                      .level = "info",
                                      .message = "Files validated, moving job to queued state"};
        done = move(c, j.id, &m, &moved);
        if (moved)
            tell_place(c, j.id);
    } else if (done && e != ERR_CANCELLED) {
        char message[96];
        snprintf(message, sizeof message, "The job has failed: its files have %lld %s",
                 (long long)why.told, why.told == 1 ? "error" : "errors");
        const struct ft_job_move m = {.from = BIT(VALIDATING),
                                      .to = FT_JOB_FAILED,
                                      .level = "error",
                                      .message = why.told ? message : info.message,
                                      .error_code = why.code[0] ? why.code : "invalid_file",
                                      .error_message = info.message,
                                      .error_param = why.param[0] ? why.param : NULL};
        done = move(c, j.id, &m, &moved);
    }
    if (e && !done && e != ERR_LOADING)
        hold_off(c, &info);
    else if (!e)
        go_on(c);
    ft_job_fini(&j);
    return done && !atomic_load(&c->quit);
}

// Jobs that nobody will run are told so.
static void explain(struct ft_control *c) {
    struct err_info info = {0};
    if (!c->runner.start && c->runner.no_trainer &&
        ft_jobs_wait(c->home, BIT(QUEUED), c->runner.no_trainer, &info))
        complain(c, "cannot say why they wait", &info);
}

static void sweep(struct ft_control *c) {
    struct err_info info;
    int64_t now = clock_mono_ns(c->home->clock);
    if (now < c->sweep_at)
        return;
    c->sweep_at = now + minute;
    if (ft_files_expire(c->home, &info))
        complain(c, "expired files", &info);
    if (ft_jobs_clean(c->home, &info))
        complain(c, "what ended jobs have left", &info);
    ft_usage_measure(c->home);
}

static void *control_main(void *arg) {
    struct ft_control *c = arg;
    while (!atomic_load(&c->quit)) {
        atomic_store(&c->changed, false);
        bool more = tend(c);
        more = validate_one(c) || more;
        tell_stall(c);
        explain(c);
        sweep(c);
        // A second at most: what could not be done for want of disk or model is tried again.
        if (!more && !atomic_load(&c->changed))
            (void)mailbox_wait(c->wakes, second);
    }
    if (c->running[0]) {
        bool trains = state_of(c, c->running, FT_JOB_RUNNING) == FT_JOB_RUNNING;
        log_write(c->home->log, LOG_INFO, "stopping: %s %s",
                  trains ? "writing the checkpoint of" : "waiting for", c->running);
        stop(c, FT_STOP_SHUTDOWN);
    }
    while (c->running[0] && !has_ended(c))
        (void)mailbox_wait(c->wakes, second);
    (void)take_end(c); // what cannot be recorded now is found at the next start
    return NULL;
}

enum err ft_control_start(struct ft_home *home, const struct ft_job_runner *runner,
                          struct ft_control **out, struct err_info *info) {
    int64_t n = 0;
    *out = NULL;
    enum err e = ft_jobs_recover(home, &n, info);
    if (!e && runner->start && runner->no_trainer)
        e = ft_jobs_wait_over(home, runner->no_trainer, info);
    if (!e)
        e = ft_jobs_wait_over(home, FT_JOB_WAITS_DISK, info); // it is told again where it is so
    if (!e)
        e = ft__watch_count(home, info);
    if (e)
        return e;
    if (n)
        log_write(home->log, LOG_INFO, "jobs: %lld that ran before go back to the queue",
                  (long long)n);
    struct ft_control *c = mem_zalloc(sizeof *c);
    if (!c || mailbox_create(1, 0, &c->wakes)) {
        mem_free(c);
        return err_set(info, ERR_NOMEM, NULL, "out of memory");
    }
    c->home = home;
    c->runner = *runner;
    sigset_t all, before; // signals are the main thread's
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    e = thread_start(&c->thread, "graft-jobs", control_main, c);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (e) {
        mailbox_destroy(c->wakes);
        mem_free(c);
        return err_set(info, e, NULL, "cannot start a thread");
    }
    *out = c;
    return ERR_OK;
}

void ft_control_stop(struct ft_control *c) {
    if (!c)
        return;
    atomic_store(&c->quit, true);
    mailbox_wake(c->wakes);
    thread_join(&c->thread);
    mailbox_destroy(c->wakes);
    mem_free(c);
}

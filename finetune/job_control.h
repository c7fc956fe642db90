// SPDX-License-Identifier: Apache-2.0
// The thread that moves jobs along: it checks files, starts the job whose turn it is, stops it when
// a client or a more urgent job wants that, and records how it ended. One job runs at a time. The
// work itself is the runner's.
//
// Whatever is asked of a job is first written to the database (ft_job_act); this thread then looks
// there, so that a wake that is lost costs time and nothing else. Rules:
//   1. A job that was cancelled stays so, whatever its runner says later.
//   2. A job whose run ended well is succeeded although it was paused meanwhile.
//   3. A job that was stopped for any other reason goes back to the queue, with the reason.
//   4. A failure that may pass is tried again, FT_JOB_ATTEMPTS_MAX times in all.
//   5. A full disk is no failure of the job: it waits with FT_JOB_WAITS_DISK as its reason, without
//      counting a try, until there is room. Other failures of the moment hold the queue off for a
//      while, longer each time.
//   6. Files of a job may take minutes to read; the job that runs is looked after meanwhile.
#pragma once
#include "finetune/jobs.h"

#define FT_JOB_WAITS_DISK                                                                          \
    "disk_full: the disk of the data folder is full; the job goes on when there is room"

struct ft_control;

enum ft_stop { FT_STOP_PAUSE, FT_STOP_CANCEL, FT_STOP_PREEMPT, FT_STOP_SHUTDOWN };

struct ft_job_failure {
    char code[48], param[96]; // for the job's error; param may be empty
    int64_t told;             // errors that have an event of their own already
};

struct ft_job_runner {
    // Control thread; may block. Checks and prepares the job's files and tells the findings as
    // events. `cancelled`, to be called often, says that the job is no longer wanted: ERR_CANCELLED
    // then. It also looks after the job that runs: `start` and `stop` may be called from within it.
    // ERR_LOADING, and other errors of the moment (memory, disk): it is called again later. Any
    // other error fails the job, with *why and the message.
    enum err (*validate)(void *arg, const struct ft_job *job, bool (*cancelled)(void *arg),
                         void *cancelled_arg, struct ft_job_failure *why, struct err_info *info);
    // Whether a job could be started now; NULL: always.
    bool (*ready)(void *arg);
    // Control thread; begins and returns at once. After ERR_OK the runner calls ft_control_ended
    // exactly once, from any thread. ERR_LOADING: later. ERR_FORMAT: what `validate` made is
    // damaged or gone, so the job goes back to it. NULL: there is no trainer, and jobs stay in
    // the queue.
    enum err (*start)(void *arg, const struct ft_job *job, struct err_info *info);
    const char *no_trainer; // the reason that such jobs are given, or were by an earlier process
    // Control thread; returns at once. The job in hand shall end soon, with a checkpoint unless it
    // was cancelled. May come more than once for a job, and after its end.
    void (*stop)(void *arg, enum ft_stop why);
    void *arg;
    // Control thread; NULL: never. Why the job in hand makes no progress, "kind: details"; nothing
    // is written if it makes some.
    void (*stalls)(void *arg, const char *id, char *reason, size_t cap);
    void *stalls_arg;
};

struct ft_job_end {
    enum { FT_END_SUCCEEDED, FT_END_FAILED, FT_END_STOPPED } how;
    bool retry;                                               // failed, but may pass
    char fine_tuned_model[400];                               // succeeded
    char error_code[48], error_message[512], error_param[96]; // failed
};

// Takes over what an earlier process has left running (ft_jobs_recover) and starts the thread.
// `home` and `runner` outlive it.
enum err ft_control_start(struct ft_home *home, const struct ft_job_runner *runner,
                          struct ft_control **out, struct err_info *info);
// Stops the job in hand, waits for its end, and ends the thread. NULL is legal.
void ft_control_stop(struct ft_control *c);

// Any thread, never blocks.
void ft_control_wake(struct ft_control *c); // a job was made or changed; NULL is legal
void ft_control_ended(struct ft_control *c, const struct ft_job_end *end); // the runner's

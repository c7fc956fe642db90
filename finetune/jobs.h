// SPDX-License-Identifier: Apache-2.0
// Fine-tuning jobs in the state database. A job's state changes in one transaction that also writes
// the event telling of it; a change that the table below does not have is refused. What these calls
// have answered with ERR_OK survives a power loss.
//
//   validating_files -> queued -> running -> evaluating -> publishing -> succeeded
//   validating_files .. evaluating -> paused -> validating_files, queued
//   running -> validating_files                 what was made of its files is damaged
//   running .. publishing -> queued             preempted, restarted, tried again
//   any of them -> failed, cancelled (not cancelled once ft_job_publish has named a version)
//
// Each job belongs to a tenant; another's is not found. Any thread; calls block on the disk. Errors
// beside those named: ERR_NOMEM, ERR_IO, ERR_DISK_FULL, ERR_AGAIN.
#pragma once
#include "finetune/home.h"
#include "finetune/job_spec.h"
#include <stdbool.h>

// X(name, text, OpenAI's status)
#define FT_JOB_STATES(X)                                                                           \
    X(VALIDATING, "validating_files", "validating_files")                                          \
    X(QUEUED, "queued", "queued")                                                                  \
    X(RUNNING, "running", "running")                                                               \
    X(EVALUATING, "evaluating", "running")                                                         \
    X(PUBLISHING, "publishing", "running")                                                         \
    X(PAUSED, "paused", "paused")                                                                  \
    X(SUCCEEDED, "succeeded", "succeeded")                                                         \
    X(FAILED, "failed", "failed")                                                                  \
    X(CANCELLED, "cancelled", "cancelled")
enum ft_job_state {
#define X(name, text, status) FT_JOB_##name,
    FT_JOB_STATES(X)
#undef X
        FT_JOB_STATE_COUNT
};
const char *ft_job_state_text(enum ft_job_state s);
const char *ft_job_state_status(enum ft_job_state s);
bool ft_job_state_final(enum ft_job_state s);
bool ft_job_state_parse(const char *text, enum ft_job_state *out);

enum {
    FT_MODEL_ID = 12, // characters of a job's id in its model's name
    FT_JOB_RESULTS_MAX = 8,
    FT_JOB_REASON_MAX = 200,
    FT_JOB_ATTEMPTS_MAX = 3,
    FT_SAMPLES_BYTES = 8 << 20 // bytes of FT_SAMPLES_FILE
};
#define FT_SAMPLES_FILE "samples.json" // of a job's folder: sample prompts and their answers

struct ft_job {
    int64_t seq; // order of creation
    char id[FT_ID_MAX];
    uint64_t tenant;
    enum ft_job_state state;
    char reason[FT_JOB_REASON_MAX]; // why it waits, or why it is where it is; or empty
    char *request;                  // JSON: what ft_job_spec_read reads; owned
    char *hyper;                    // JSON: hyperparameters, "auto" until they are known; owned
    char training_file[FT_ID_MAX], validation_file[FT_ID_MAX]; // or empty
    char model[256], fine_tuned_model[400];                    // or empty
    bool dpo;
    int64_t seed, priority, attempts;
    int64_t trained_tokens; // -1: not known
    int64_t step, steps;    // of steps; 0: not known
    uint64_t version;       // of the adapter that it publishes (ft_job_publish); 0: not so far
    // Unix seconds; 0: not yet
    int64_t created_at, queued_at, started_at, prepared_at, first_step_at, checkpoint_at,
        finished_at, estimated_finish;
    char error_code[48], error_message[512], error_param[96]; // of a failed one
    char results[FT_JOB_RESULTS_MAX][FT_ID_MAX];
    int n_results;
    int64_t ahead;           // jobs of the queue that run before it; -1: it is not in the queue
    char at_work[FT_ID_MAX]; // the job that runs now, or empty
};
void ft_job_fini(struct ft_job *j); // also of zeros

// ERR_INVALID with the param: a file that is not there, not of purpose fine-tune, or damaged.
// `request` is ft_job_spec_store's. *out is the new job, in state validating_files. ERR_QUEUE_FULL:
// as many wait as the home's max_waiting. ERR_LIMIT: beyond its max_bytes.
enum err ft_job_create(struct ft_home *h, uint64_t tenant, const struct ft_job_spec *spec,
                       int64_t seed, const char *request, struct ft_job *out,
                       struct err_info *info);
// any: an administrator asks, and the tenant does not matter.
struct ft_job_owner {
    uint64_t tenant;
    bool any;
};
// ERR_NOT_FOUND. *out is the caller's (ft_job_fini), after ERR_OK alone.
enum err ft_job_get(struct ft_home *h, struct ft_job_owner owner, const char *id,
                    struct ft_job *out, struct err_info *info);

// What a client may ask of its job, or an administrator of anybody's; its event says which.
// ERR_INVALID: not in its present state. *out: the job afterwards.
enum ft_job_action { FT_JOB_CANCEL, FT_JOB_PAUSE, FT_JOB_RESUME };
enum err ft_job_act(struct ft_home *h, struct ft_job_owner owner, const char *id,
                    enum ft_job_action action, struct ft_job *out, struct err_info *info);

struct ft_job_query {
    struct ft_job_owner owner;
    const char *after; // an id, or NULL. ERR_NOT_FOUND (param "after")
    int64_t limit;
    struct {
        const char *key, *value;
    } metadata[FT_METADATA_MAX]; // all must be equal
    size_t n_metadata;
    bool no_metadata; // jobs that have none
};
// Newest first. Calls `each` with a job that is valid during the call.
enum err ft_job_list(struct ft_home *h, const struct ft_job_query *q,
                     void (*each)(void *arg, const struct ft_job *j), void *arg, bool *more,
                     struct err_info *info);

// ---- for the control thread and the runner

// From one of `from` (bits 1 << state) to `to`. *moved false: the job is in another state, and
// nothing was done; that is no error (a client was faster).
struct ft_job_move {
    unsigned from;
    enum ft_job_state to;
    const char *reason;                                   // NULL: none
    const char *level;                                    // of the event: "info", "warn", "error"
    const char *message;                                  // of the event
    const char *error_code, *error_message, *error_param; // for failed
    const char *fine_tuned_model;                         // for succeeded
    bool tried;                                           // counts as an attempt
};
enum err ft_job_move(struct ft_home *h, const char *id, const struct ft_job_move *m, bool *moved,
                     struct err_info *info);
// The next job: the oldest that is to be validated, or the queued one that runs first. *out's id is
// empty if there is none.
enum err ft_job_next(struct ft_home *h, enum ft_job_state state, struct ft_job *out,
                     struct err_info *info);
// At start: what ran goes back to the queue, with the reason. *n: how many.
enum err ft_jobs_recover(struct ft_home *h, int64_t *n, struct err_info *info);

// Jobs in these states (bits 1 << state: queued, validating_files) wait for `reason`: those that
// have another get it, with an event. Until _over.
enum err ft_jobs_wait(struct ft_home *h, unsigned states, const char *reason,
                      struct err_info *info);
enum err ft_jobs_wait_over(struct ft_home *h, const char *reason, struct err_info *info);

// What the runner learns while it works; no event.
struct ft_job_progress {
    int64_t step, steps, trained_tokens, estimated_finish; // < 0: unchanged
    const char *hyper;                                     // NULL: unchanged
    bool prepared, first_step, checkpoint;                 // sets the time
};
enum err ft_job_progress(struct ft_home *h, const char *id, const struct ft_job_progress *p,
                         struct err_info *info);
// The same with what belongs to it, all or nothing: a process that dies never leaves a step without
// its event, nor one that is told twice, nor a checkpoint's time without its row.
struct ft_job_record {
    struct ft_job_progress progress;
    const char *level, *type, *message, *data; // an event (job_log.h); level NULL: none
    // A checkpoint that is whole on the disk; model NULL: none (ft_checkpoint_add).
    int64_t checkpoint_step;
    const char *model, *metrics;
};
enum err ft_job_record(struct ft_home *h, const char *id, const struct ft_job_record *r,
                       struct err_info *info);
// The point of no return: from here on the adapter version is the job's model, and nobody can
// cancel or pause the job. Written before the version is promoted, so that a process that dies in
// between finds out which one it was. *moved false: the job is not in state publishing (a client
// was faster), and nothing was done. version 0: it was not published after all.
enum err ft_job_publish(struct ft_home *h, const char *id, uint64_t version, bool *moved,
                        struct err_info *info);
// "ft:base:graft:suffix:id", which adapters may be called, whatever the base's name: what it has
// beside letters, digits and "._-/" becomes '-'.
void ft_job_model_name(const struct ft_job *j, const char *suffix, char *out, size_t cap);

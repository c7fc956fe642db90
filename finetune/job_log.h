// SPDX-License-Identifier: Apache-2.0
// What is kept beside a job: its events and its checkpoints. Any thread; calls block on the disk.
#pragma once
#include "finetune/jobs.h"

struct ft_event {
    int64_t seq;
    char id[FT_ID_MAX];
    int64_t created_at;
    const char *level, *type;   // "info", "warn", "error"; "message", "metrics"
    const char *message, *data; // data: a JSON object, or NULL
};
// What a job keeps of them is bounded: of a long run every step and every evaluation is told of as
// long as there are FT_STEPS_TOLD at most, then every second, and so on; the first and the last
// step always are. Of other events the newest FT_MESSAGES_MAX stay whenever the job's state
// changes.
enum { FT_STEPS_TOLD = 10000, FT_MESSAGES_MAX = 5000 };
bool ft_step_is_told(int64_t step, int64_t steps, int64_t eval_steps); // eval_steps 0: none

// Bumped by each new event and each change of a job; any thread may read it: those who follow
// events look into the database only when it has changed.
uint64_t ft_events_count(const struct ft_home *h);

enum err ft_event_add(struct ft_home *h, const char *job, const char *level, const char *type,
                      const char *message, const char *data, struct err_info *info);

struct ft_page { // of a job's events or checkpoints
    struct ft_job_owner owner;
    const char *job;
    const char *after; // an id, or NULL. ERR_NOT_FOUND (param "after")
    int64_t after_seq; // oldest first, those behind this one (or `after`); -1: newest first
    int64_t limit;
};
// The event is valid during the call. *final (may be NULL): the job has ended; read in the same
// transaction.
enum err ft_event_list(struct ft_home *h, const struct ft_page *p,
                       void (*each)(void *arg, const struct ft_event *e), void *arg, bool *more,
                       bool *final, struct err_info *info);

struct ft_checkpoint_row {
    char id[FT_ID_MAX]; // "ftckpt_..."
    int64_t created_at, step;
    const char *job, *model; // model: the name that serves it
    const char *metrics;     // a JSON object
};
// Adds the checkpoint of a step, or replaces it. `model` is the fine-tuned model's name; the
// checkpoint is named model:ckpt-step-N.
enum err ft_checkpoint_add(struct ft_home *h, const char *job, int64_t step, const char *model,
                           const char *metrics, struct err_info *info);
enum err ft_checkpoint_list(struct ft_home *h, const struct ft_page *p,
                            void (*each)(void *arg, const struct ft_checkpoint_row *c), void *arg,
                            bool *more, struct err_info *info);

// Inside an open transaction.
enum err ft__checkpoint_insert(struct ft_home *h, int64_t job_seq, int64_t step, const char *model,
                               const char *metrics, struct err_info *info);
enum err ft__event_insert(struct ft_home *h, int64_t job_seq, const char *level, const char *type,
                          const char *message, const char *data, struct err_info *info);
// Drops what a job has beyond FT_MESSAGES_MAX.
enum err ft__messages_trim(struct ft_home *h, int64_t job_seq, struct err_info *info);
enum err ft__job_seq(struct ft_home *h, struct ft_job_owner owner, const char *id, int64_t *seq,
                     enum ft_job_state *state, struct err_info *info);

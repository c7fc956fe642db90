// SPDX-License-Identifier: Apache-2.0
// What the files of jobs share. Everything here runs inside an open transaction.
#pragma once
#include "finetune/job_log.h"
#include "finetune/jobs.h"

// The columns of `jobs` that ft__job_read reads, in its order; the last two are its place in the
// queue.
#define FT_JOB_COLUMNS                                                                             \
    "seq, id, tenant, state, reason, request, hyper, model, training_file, validation_file, dpo, " \
    "seed, priority, attempts, fine_tuned_model, trained_tokens, step, steps, created_at, "        \
    "queued_at, started_at, prepared_at, first_step_at, checkpoint_at, finished_at, "              \
    "estimated_finish, error_code, error_message, error_param, version, "                          \
    "CASE WHEN state = 'queued' THEN (SELECT count(*) FROM jobs w WHERE w.state = 'queued' AND"    \
    " (w.priority < jobs.priority OR (w.priority = jobs.priority AND w.seq < jobs.seq))) ELSE -1"  \
    " END, (SELECT r.id FROM jobs r WHERE r.state IN ('running', 'evaluating', 'publishing')"      \
    " LIMIT 1)"

// Fills *j from a row; it is owned then, also after an error. ERR_NOMEM; ERR_IO: a state that is
// none.
enum err ft__job_read(struct db_rows *q, struct ft_job *j, struct err_info *info);
enum err ft__job_results(struct ft_home *h, struct ft_job *j, struct err_info *info);
// ERR_NOT_FOUND (param).
enum err ft__job_find(struct ft_home *h, struct ft_job_owner owner, const char *id,
                      const char *param, struct ft_job *out, struct err_info *info);
// The change itself with its event.
enum err ft__job_change(struct ft_home *h, int64_t seq, const struct ft_job_move *m,
                        struct err_info *info);
void ft__events_bump(struct ft_home *h);

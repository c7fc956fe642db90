// SPDX-License-Identifier: Apache-2.0
// What operators see of jobs: a log line for each change of a job's state, and metrics.
//
//   graft_jobs{state}                    gauge: jobs in the database
//   graft_jobs_waiting                   gauge: those that --max-waiting-jobs counts
//   graft_jobs_finished_total{outcome}   counter, of this process
//
// Any thread; nothing blocks but the count. Invariant: each change is told of once, after it has
// been committed. What users wrote, and what a model answered, is never in a line.
#pragma once
#include "base/metrics.h"
#include "finetune/jobs.h"

// Makes the metrics; `m` NULL: none. Before the home is used by several threads. ERR_NOMEM.
enum err ft__watch_init(struct ft_home *h, struct metrics *m);
// Counts the jobs that are in the database. Before any of them can change.
enum err ft__watch_count(struct ft_home *h, struct err_info *info);
void ft__watch_created(struct ft_home *h, const char *id);
void ft__watch_moved(struct ft_home *h, const char *id, enum ft_job_state from,
                     const struct ft_job_move *m);

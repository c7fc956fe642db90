// SPDX-License-Identifier: Apache-2.0
// The set of a job, for elsewhere: what `graft verify` checks and `graft train --resume` goes on
// with.
//
//   run.json, chat_template.jinja   parameters and template of the run
//   data/training.jsonl, validation.jsonl
//   adapter/                        once the job has one
//   checkpoints/step-<n>/
//   metrics.csv, and whatever else the job's folder holds (plots, samples)
//   job.json, events.jsonl          what the state database knows
//   manifest.json, COMPLETE         SHA-256 and size of all of it; last
//
// Blocks on files; one thread.
#pragma once
#include "finetune/home.h"

enum export_checkpoints { EXPORT_NEWEST, EXPORT_ALL, EXPORT_NONE };

struct export_set {
    struct ft_home *home; // only read
    const char *job, *output;
    enum export_checkpoints checkpoints;
    void (*tell)(void *arg, const char *message); // what the set lacks
    void *arg;
};

// The output folder is made, or must be empty. On failure nothing of the set is left. *files: how
// many. ERR_NOT_FOUND: no such job; ERR_INVALID: the folder is not empty.
enum err export_set_write(const struct export_set *s, size_t *files, struct err_info *info);

// ---- inside: export_log.c

enum err export__log(const struct export_set *s, int dir, struct err_info *info);

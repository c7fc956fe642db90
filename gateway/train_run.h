// SPDX-License-Identifier: Apache-2.0
// run.json of a run's folder: what the run is. Whoever goes on with it, in place or on another
// machine, takes every parameter from here; `graft train` and a server's jobs write the same file.
#pragma once
#include "finetune/manifest.h"
#include "gateway/train_options.h"

enum { TRAIN_RUN_ID = 40, TRAIN_RUN_BYTES = 1 << 20 };

// Into the folder `dir`; durable. started_at: Unix seconds, the date that templates see.
enum err train_run_write(int dir, const struct ft_manifest *m, const struct train_options *o,
                         int64_t started_at, struct err_info *info);

// Checked: run_id is a plain name of less than TRAIN_RUN_ID bytes, started_at a time, digests are
// digests. *out is the caller's. ERR_NOT_FOUND: the folder has no run.json.
enum err train_run_read(int dir, json_t **out, struct err_info *info);
enum err train_run_parse(const char *text, size_t len, json_t **out, struct err_info *info);

// The run's parameters into *o, whose strings res owns from then on. What was given on the command
// line must be the same where it decides the result; how often is saved and evaluated may change.
// ERR_INVALID names the option. *targets: bits of enum mdl_target.
enum err train_run_apply(const json_t *run, struct opt_result *res, struct train_options *o,
                         unsigned *targets, struct err_info *info);

// --target-modules as bits; none: all. "all-linear" is all of them.
enum err train_targets(const struct opt_list *names, unsigned *out, struct err_info *info);
// All that decides what comes out, as a JSON object (mem_free): a resumed run must have the same.
enum err train_run_hyperparameters(const struct train_options *o, unsigned targets,
                                   int32_t row_tokens, char **out, struct err_info *info);

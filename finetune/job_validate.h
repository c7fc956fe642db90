// SPDX-License-Identifier: Apache-2.0
// The files of a job, checked and tokenised: jobs/<id>/training.tokens and validation.tokens, from
// which the trainer reads. What is found is told in the job's events: each bad line (the first
// FT_MAX_ERRORS), or a report of what the files hold. Control thread; blocks.
#pragma once
#include "finetune/dataset.h"
#include "finetune/job_control.h"

struct ft_validator {
    struct ft_home *home;
    // What the base model brings: tokenizer, template, ends, digest of both; and its context in
    // tokens. ERR_LOADING: later.
    enum err (*model)(void *arg, struct ft_dataset_opts *opts, int32_t *context,
                      struct err_info *info);
    void *arg;
};

enum { FT_MIN_EXAMPLES = 10, FT_SEQ_LEN_DEFAULT = 2048 };

// struct ft_job_runner's validate; arg is the struct ft_validator.
enum err ft_job_validate(void *arg, const struct ft_job *job, bool (*cancelled)(void *arg),
                         void *cancelled_arg, struct ft_job_failure *why, struct err_info *info);
// The options that a job's files are read with, for whoever opens the caches later. `request` is
// kept by the caller while they are used.
enum err ft_job_dataset_opts(const struct ft_validator *v, const struct ft_job *job,
                             const struct ft_job_spec *spec, struct ft_dataset_opts *out,
                             struct err_info *info);

// SPDX-License-Identifier: Apache-2.0
// What can be known about a job without looking into its files: asked when it is made, so that a
// job which could never be trained here is not taken, and again when it starts, since the server
// may have been started with another model or other options meanwhile. Any thread.
#pragma once
#include "finetune/job_spec.h"
#include "gateway/app.h"
#include "gateway/serve_options.h"

// ERR_LOADING: not known yet. ERR_NO_MODEL, or ERR_INVALID with the field.
enum err job_check(const struct app *a, const struct serve_options *o, const struct ft_job_spec *s,
                   struct err_info *info);

// The prompts of the evaluation, rendered as they will be: after job_check, when the job is made.
// Whether text alone becomes a user message is in the files; it is taken here for a completion's
// prompt, which needs less, so that what is refused would be refused by the start. ERR_INVALID,
// ERR_TEMPLATE, ERR_CONTEXT with the field.
enum err job_check_prompts(const struct app *a, const struct ft_job_spec *s, struct err_info *info);

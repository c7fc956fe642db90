// SPDX-License-Identifier: Apache-2.0
// What can be known about a job without looking into its files: asked when it is made, so that a job
// which could never be trained here is not taken, and again when it starts, since the server may have
// been started with another model or other options meanwhile. Any thread.
#pragma once
#include "finetune/job_spec.h"
#include "gateway/app.h"
#include "gateway/serve_options.h"

// ERR_LOADING: not known yet. ERR_NO_MODEL, or ERR_INVALID with the field.
enum err job_check(const struct app *a, const struct serve_options *o, const struct ft_job_spec *s,
                   struct err_info *info);

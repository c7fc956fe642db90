// SPDX-License-Identifier: Apache-2.0
// From the names of models to the jobs that made them, and to their checkpoints. Any thread; calls
// block on the disk. Errors beside those named: ERR_NOMEM, ERR_IO, ERR_AGAIN.
#pragma once
#include "finetune/jobs.h"

// The job whose model is called so, whether or not it has ended. ERR_NO_MODEL: there is none.
enum err ft_job_of_model(struct ft_home *h, const char *name, struct ft_job *out,
                         struct err_info *info);

// The checkpoint that a name of the list of checkpoints stands for:
// jobs/<job>/checkpoints/step-<step>. ERR_NO_MODEL says if there was one that is not kept any more.
enum err ft_checkpoint_of_model(struct ft_home *h, const char *name, char job[FT_ID_MAX],
                                int64_t *step, struct err_info *info);
// The same as ft_checkpoint_prune for the rows: all but the newest `keep` go (0: all stay).
enum err ft_checkpoints_keep(struct ft_home *h, const char *job, int64_t keep,
                             struct err_info *info);

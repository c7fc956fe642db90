// SPDX-License-Identifier: Apache-2.0
// What the routes of fine-tuning jobs share. Any thread.
#pragma once
#include "base/json_write.h"
#include "finetune/job_log.h"
#include "finetune/jobs.h"
#include "gateway/api_data.h"
#include "gateway/api_query.h"
#include <jansson.h>

// The API's objects. Sticky failure in the writer's buffer. `wait`: why no job is looked at just
// now, or why this one makes no progress, or NULL. A job that waits says so in `graft`.
void api_job_write(const struct ft_job *j, const char *wait, struct json_w *w);
// With the finer state. `tenant`: its name, or NULL. `samples`: prompts and answers, or NULL.
void api_job_admin_write(const struct ft_job *j, const char *tenant, const char *wait,
                         const json_t *samples, struct json_w *w);
void api_event_write(const struct ft_event *e, struct json_w *w);
void api_checkpoint_write(const struct ft_checkpoint_row *c, struct json_w *w);

// `limit` (1 to 100) and `after` of a page; *after is copied, "" if there is none.
enum err api_page_read(const struct api_query *q, int64_t dflt, int64_t *limit,
                       char after[FT_ID_MAX], struct err_info *info);

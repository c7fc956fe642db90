// SPDX-License-Identifier: Apache-2.0
// The routes that keep something in the data folder: files and fine-tuning jobs. They know
// training's side only, no engine; their handlers' arg is the struct api_data. Handlers run on the
// request's loop and do nothing there that waits on the disk (api_task.h).
#pragma once
#include "base/clock.h"
#include "base/io_pool.h"
#include "base/log.h"
#include "finetune/home.h"
#include "finetune/job_control.h"
#include "gateway/http.h"
#include <stdbool.h>

struct api_data {
    struct ft_home *home; // NULL: there is no data folder, and every route says so
    struct io_pool *io;
    const struct clock *clock;
    uint64_t max_file_bytes;
    struct ft_control *control; // NULL: jobs are kept, and nobody works on them
    // ERR_OK if such a job could be trained here; ERR_NO_MODEL, ERR_LOADING, ERR_INVALID with the
    // field. NULL: any.
    enum err (*check_job)(void *arg, const struct ft_job_spec *spec, struct err_info *info);
    // Why no job is looked at just now, or NULL. The hook may be NULL.
    const char *(*jobs_wait)(void *arg);
    void *arg;
    // Why a job that runs makes no progress; leaves `reason` alone where it does. Any thread. NULL:
    // never told.
    void (*stalls)(void *arg, const char *job, char *reason, size_t cap);
    void *stalls_arg;
    const struct gw_keys *keys; // what tenants are called; may be NULL
    const struct log *log;      // what administrators do to jobs; may be NULL
};

// The routes; `d` outlives the server. Returns how many, 0 if `cap` is too small.
size_t api_data_routes(struct api_data *d, struct gw_route *out, size_t cap);

void api_files_create(struct gw_request *r, void *arg);
void api_files_list(struct gw_request *r, void *arg);
void api_files_get(struct gw_request *r, void *arg);
void api_files_delete(struct gw_request *r, void *arg);
void api_files_content(struct gw_request *r, void *arg);

void api_jobs_create(struct gw_request *r, void *arg);
void api_jobs_list(struct gw_request *r, void *arg);
void api_jobs_get(struct gw_request *r, void *arg);
void api_jobs_cancel(struct gw_request *r, void *arg);
void api_jobs_pause(struct gw_request *r, void *arg);
void api_jobs_resume(struct gw_request *r, void *arg);
void api_jobs_events(struct gw_request *r, void *arg);
void api_jobs_checkpoints(struct gw_request *r, void *arg);
void api_admin_jobs_list(struct gw_request *r, void *arg);
void api_admin_jobs_get(struct gw_request *r, void *arg);
void api_admin_jobs_cancel(struct gw_request *r, void *arg);
void api_admin_jobs_pause(struct gw_request *r, void *arg);
void api_admin_jobs_resume(struct gw_request *r, void *arg);
void api_admin_jobs_events(struct gw_request *r, void *arg);
void api_admin_jobs_checkpoints(struct gw_request *r, void *arg);

// True if there is no data folder: then the request was answered.
bool api_data_missing(struct gw_request *r, const struct api_data *d);

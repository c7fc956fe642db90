// SPDX-License-Identifier: Apache-2.0
#include "gateway/api_data.h"
#include <string.h>

enum { FRAMING_MAX = 1 << 20 }; // of an upload's body, beside the file

bool api_data_missing(struct gw_request *r, const struct api_data *d) {
    if (d->home)
        return false;
    struct err_info info;
    err_set(&info, ERR_UNSUPPORTED, NULL,
            "this server keeps no files and no jobs; it needs a folder for them (--data-dir)");
    gw_reply_error(r, &info);
    return true;
}

#define ROUTE(m, path, key, json, fn)                                                              \
    { .methods = m, .pattern = path, .auth = key, .json_body = json, .handle = fn, .arg = d }

#define JOBS "/v1/fine_tuning/jobs"
#define ADMIN_JOBS "/admin/v1/jobs"

size_t api_data_routes(struct api_data *d, struct gw_route *out, size_t cap) {
    const struct gw_route routes[] = {
        {.methods = GW_POST,
         .pattern = "/v1/files",
         .auth = GW_AUTH_TRAIN,
         .handle = api_files_create,
         .arg = d,
         .body_pieces = true,
         .max_body_bytes = d->max_file_bytes + FRAMING_MAX},
        ROUTE(GW_GET, "/v1/files", GW_AUTH_TRAIN, false, api_files_list),
        ROUTE(GW_GET, "/v1/files/{id}/content", GW_AUTH_TRAIN, false, api_files_content),
        ROUTE(GW_GET, "/v1/files/{id}", GW_AUTH_TRAIN, false, api_files_get),
        ROUTE(GW_DELETE, "/v1/files/{id}", GW_AUTH_TRAIN, false, api_files_delete),
        ROUTE(GW_POST, JOBS, GW_AUTH_TRAIN, true, api_jobs_create),
        ROUTE(GW_GET, JOBS, GW_AUTH_TRAIN, false, api_jobs_list),
        ROUTE(GW_POST, JOBS "/{id}/cancel", GW_AUTH_TRAIN, false, api_jobs_cancel),
        ROUTE(GW_POST, JOBS "/{id}/pause", GW_AUTH_TRAIN, false, api_jobs_pause),
        ROUTE(GW_POST, JOBS "/{id}/resume", GW_AUTH_TRAIN, false, api_jobs_resume),
        ROUTE(GW_GET, JOBS "/{id}/events", GW_AUTH_TRAIN, false, api_jobs_events),
        ROUTE(GW_GET, JOBS "/{id}/checkpoints", GW_AUTH_TRAIN, false, api_jobs_checkpoints),
        ROUTE(GW_GET, JOBS "/{id}", GW_AUTH_TRAIN, false, api_jobs_get),
        ROUTE(GW_GET, ADMIN_JOBS, GW_AUTH_ADMIN, false, api_admin_jobs_list),
        ROUTE(GW_POST, ADMIN_JOBS "/{id}/cancel", GW_AUTH_ADMIN, false, api_admin_jobs_cancel),
        ROUTE(GW_POST, ADMIN_JOBS "/{id}/pause", GW_AUTH_ADMIN, false, api_admin_jobs_pause),
        ROUTE(GW_POST, ADMIN_JOBS "/{id}/resume", GW_AUTH_ADMIN, false, api_admin_jobs_resume),
        ROUTE(GW_GET, ADMIN_JOBS "/{id}/events", GW_AUTH_ADMIN, false, api_admin_jobs_events),
        ROUTE(GW_GET, ADMIN_JOBS "/{id}/checkpoints", GW_AUTH_ADMIN, false,
              api_admin_jobs_checkpoints),
        ROUTE(GW_GET, ADMIN_JOBS "/{id}", GW_AUTH_ADMIN, false, api_admin_jobs_get),
    };
    size_t n = sizeof routes / sizeof *routes;
    if (n > cap)
        return 0;
    memcpy(out, routes, sizeof routes);
    return n;
}

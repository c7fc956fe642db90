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

size_t api_data_routes(struct api_data *d, struct gw_route *out, size_t cap) {
    const struct gw_route routes[] = {
        {.methods = GW_POST,
         .pattern = "/v1/files",
         .auth = GW_AUTH_KEY,
         .handle = api_files_create,
         .arg = d,
         .body_pieces = true,
         .max_body_bytes = d->max_file_bytes + FRAMING_MAX},
        ROUTE(GW_GET, "/v1/files", GW_AUTH_KEY, false, api_files_list),
        ROUTE(GW_GET, "/v1/files/{id}/content", GW_AUTH_KEY, false, api_files_content),
        ROUTE(GW_GET, "/v1/files/{id}", GW_AUTH_KEY, false, api_files_get),
        ROUTE(GW_DELETE, "/v1/files/{id}", GW_AUTH_KEY, false, api_files_delete),
    };
    size_t n = sizeof routes / sizeof *routes;
    if (n > cap)
        return 0;
    memcpy(out, routes, sizeof routes);
    return n;
}

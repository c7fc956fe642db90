// SPDX-License-Identifier: Apache-2.0
// A running server with the routes of the data folder, in a folder of its own under /tmp. Failures
// end the test (cmocka).
#pragma once
#include "gateway/api_data.h"
#include "tests/gateway/http_fixture.h"
#include "tests/support/temp_folder.h"

struct df {
    char folder[TEMP_PATH];
    struct clock_manual clock; // wall time of files and jobs
    struct ft_home home;
    struct api_data api;
    struct gw_route routes[64];
    struct metrics *metrics;
    struct gw_keys *keys;
    struct gw_server *server;
    int port;
    char file[FT_ID_MAX]; // for tests that need one
};

// `keys`: two tenants, "key-of-one" and "key-of-two".
void df_start(struct df *d, uint64_t max_file_bytes, bool keys);
void df_stop(struct df *d);    // the folder stays
void df_restart(struct df *d); // stops and starts again on the same folder
void df_remove(struct df *d);  // after df_stop: deletes the folder

// One request on its own connection: method, target, extra head lines (or ""), body. cl_free it.
void df_ask(const struct df *d, const char *method, const char *target, const char *fields,
            const char *body, size_t len, struct cl_response *out);

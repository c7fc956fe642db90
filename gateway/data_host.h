// SPDX-License-Identifier: Apache-2.0
// Everything that files and jobs need beside HTTP: the data folder, the I/O pool, the thread that
// moves jobs along. Wires jobs to the model that is served. Main thread.
#pragma once
#include "finetune/job_validate.h"
#include "gateway/api_data.h"
#include "gateway/app.h"
#include "gateway/serve_options.h"

struct data_host {
    struct ft_home home;
    struct api_data api; // the routes' argument; works without a data folder, too
    struct ft_validator validator;
    const struct app *app;
};

// Before the server is opened: afterwards the routes may be asked. `app` may still be loading.
enum err data_host_open(struct data_host *h, const struct serve_options *o, const struct app *app,
                        const struct log *log, struct err_info *info);
// After the server's loops have ended, before it is destroyed and before the model goes.
void data_host_close(struct data_host *h);

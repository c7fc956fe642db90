// SPDX-License-Identifier: Apache-2.0
// Everything that files and jobs need beside HTTP: the data folder, the I/O pool, the thread that
// moves jobs along. Wires jobs to the model that is served. Main thread.
#pragma once
#include "finetune/job_validate.h"
#include "gateway/adapter_manifest.h"
#include "gateway/api_data.h"
#include "gateway/app.h"
#include "gateway/job_runner.h"
#include "gateway/serve_options.h"

struct data_host {
    struct ft_home home;
    struct api_data api; // the routes' argument; works without a data folder, too
    struct ft_validator validator;
    struct job_runner runner;
    struct adapter_manifest manifest;
    struct app *app;
};

// Before the server is opened: afterwards the routes may be asked. `app` may still be loading, and
// so may `model`, whose engine then gets training as its background. Jobs are trained where
// adapters are served.
enum err data_host_open(struct data_host *h, const struct serve_options *o, struct app *app,
                        struct model_host *model, const struct log *log, struct err_info *info);
// What a server's data folder knows of models; arg is the struct data_host. Adapters' thread; they
// block. Of struct adapter_demand: the checked folder of a job's checkpoint. Of struct
// api_adapters: whose job made it.
enum err data_host_checkpoint(void *arg, const char *name, char path[ADP_PATH_MAX],
                              struct err_info *info);
bool data_host_owner(void *arg, const char *name, uint64_t *tenant);
// No job runs any more. After the server's loops have ended, before the adapters' thread does.
void data_host_stop(struct data_host *h);
void data_host_close(struct data_host *h); // before the server is destroyed
void data_host_fini(struct data_host *h);  // after the engine has ended

// SPDX-License-Identifier: Apache-2.0
// Everything that files and jobs need beside HTTP: the data folder and the I/O pool. Main thread.
#pragma once
#include "gateway/api_data.h"
#include "gateway/serve_options.h"

struct data_host {
    struct ft_home home;
    struct api_data api; // the routes' argument; works without a data folder, too
};

// Before the server is opened: afterwards the routes may be asked.
enum err data_host_open(struct data_host *h, const struct serve_options *o, const struct log *log,
                        struct err_info *info);
// After the server's loops have ended, and before it is destroyed.
void data_host_close(struct data_host *h);

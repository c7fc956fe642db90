// SPDX-License-Identifier: Apache-2.0
#include "gateway/data_host.h"

enum { IO_WAITING = 1024 }; // requests that may wait for an I/O thread

enum err data_host_open(struct data_host *h, const struct serve_options *o, const struct log *log,
                        struct err_info *info) {
    h->api.clock = &clock_system;
    h->api.max_file_bytes = (uint64_t)o->max_file;
    if (!o->data_dir)
        return ERR_OK;
    const struct ft_home_config cfg = {
        .path = o->data_dir,
        .clock = &clock_system,
        .log = log,
        .max_file_bytes = (uint64_t)o->max_file,
    };
    enum err e = ft_home_open(&h->home, &cfg, info);
    if (e)
        return e;
    e = io_pool_create((int)o->io_threads, IO_WAITING, &h->api.io);
    if (e)
        return err_set(info, e, NULL, "cannot start the I/O threads");
    h->api.home = &h->home;
    return ERR_OK;
}

void data_host_close(struct data_host *h) {
    io_pool_destroy(h->api.io);
    h->api.io = NULL;
    ft_home_close(&h->home);
}

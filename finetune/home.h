// SPDX-License-Identifier: Apache-2.0
// The data folder: its lock, the state database with its schema, the folders for files and jobs.
// What files.h and jobs.h keep is kept here. After ft_home_open any thread; calls block on the disk,
// so that no event loop may make them.
//
//   lock                who owns the folder
//   graft.db            the state database (base/db.h)
//   files/<id>          content of uploaded and result files
//   jobs/<id>/          what a job keeps
#pragma once
#include "base/clock.h"
#include "base/db.h"
#include "base/durable.h"
#include "base/log.h"
#include <stdatomic.h>

enum { FT_ID_MAX = 40 }; // with the NUL

struct ft_home {
    struct data_dir dir;
    int files, jobs; // folders
    struct db *db;
    const struct clock *clock;
    const struct log *log;
    char path[512];
    uint64_t max_file_bytes;
    _Atomic uint64_t events; // ft_events_count
};

struct ft_home_config {
    const char *path;
    const struct clock *clock;
    const struct log *log; // NULL: silent
    uint64_t max_file_bytes;
};

// Takes the folder, brings the schema up to date, and cleans up what a process that died has left:
// half-written files, and content that no record names.
enum err ft_home_open(struct ft_home *h, const struct ft_home_config *cfg, struct err_info *info);
void ft_home_close(struct ft_home *h); // also of zeros

// "file-" and random digits. ERR_IO: no random numbers.
enum err ft_id_make(const char *prefix, char out[FT_ID_MAX], struct err_info *info);
static inline int64_t ft_now(const struct ft_home *h) { // Unix seconds
    return clock_wall_ns(h->clock) / 1000000000;
}

// SPDX-License-Identifier: Apache-2.0
// The data folder: its lock, the state database with its schema, the folders for files and jobs.
// What files.h and jobs.h keep is kept here. After ft_home_open any thread; calls block on the
// disk, so that no event loop may make them.
//
//   lock                who owns the folder
//   reserve             room that is given up when the disk is full (base/reserve.h)
//   graft.db            the state database (base/db.h)
//   files/<id>          content of uploaded and result files
//   jobs/<id>/          what a job keeps
#pragma once
#include "base/clock.h"
#include "base/db.h"
#include "base/durable.h"
#include "base/log.h"
#include "base/metrics.h"
#include "base/reserve.h"
#include <stdatomic.h>

enum {
    FT_ID_MAX = 40,     // with the NUL
    FT_WATCH_STATES = 9 // enum ft_job_state
};

struct ft_watch { // job_watch.h; NULL: nobody looks
    struct metric *jobs[FT_WATCH_STATES], *finished[FT_WATCH_STATES], *waiting;
};

struct ft_home {
    struct data_dir dir;
    struct reserve reserve;
    int files, jobs; // folders
    struct db *db;
    const struct clock *clock;
    const struct log *log;
    char path[512];
    uint64_t max_file_bytes;
    uint64_t max_bytes;      // of content and database; 0: no bound (cleanup.h)
    int64_t max_waiting;     // jobs; 0: no bound
    int64_t keep_jobs_s;     // after its end; 0: for ever
    _Atomic int64_t used;    // bytes of content
    _Atomic uint64_t events; // ft_events_count
    struct ft_watch watch;
};

struct ft_home_config {
    const char *path;
    const struct clock *clock;
    const struct log *log;   // NULL: silent
    struct metrics *metrics; // NULL: none. Not shared yet, where the home is opened
    uint64_t max_file_bytes;
    uint64_t max_bytes;
    int64_t max_waiting; // jobs that validate, are queued or paused; 0: no bound
    int64_t keep_jobs_s;
};

// Takes the folder, brings the schema up to date, and cleans up what a process that died has left:
// half-written files, and content that no record names.
enum err ft_home_open(struct ft_home *h, const struct ft_home_config *cfg, struct err_info *info);
// For reading alone: without the lock, which another process may have, and without any change. Only
// calls that read may follow. ERR_NOT_FOUND: it is no data folder.
enum err ft_home_view(struct ft_home *h, const struct ft_home_config *cfg, struct err_info *info);
void ft_home_close(struct ft_home *h); // also of zeros

// Whether new content may be written. ERR_DISK_FULL: the reserve was given up, and there is no room
// to make it again. Changes of states and deletes go on without it: each call that makes one gives
// the reserve up when it finds the disk full, and tries once more.
enum err ft_home_room(struct ft_home *h, struct err_info *info);

// For what changes a state or deletes: whether to try it again after *e, at first at once, since
// the reserve was given up, then a little later, since somebody may just have written there.
// *tries: 0.
bool ft__again(enum err e, int *tries);

// "file-" and random digits. ERR_IO: no random numbers.
enum err ft_id_make(const char *prefix, char out[FT_ID_MAX], struct err_info *info);
static inline int64_t ft_now(const struct ft_home *h) { // Unix seconds
    return clock_wall_ns(h->clock) / 1000000000;
}

// SPDX-License-Identifier: Apache-2.0
#include "finetune/home.h"
#include "base/hash.h"
#include "finetune/cleanup.h"
#include "finetune/files.h"
#include "finetune/job_watch.h"
#include "finetune/schema.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum err ft_id_make(const char *prefix, char out[FT_ID_MAX], struct err_info *info) {
    uint8_t random[12];
    char hex[2 * sizeof random + 1];
    if (random_bytes(random, sizeof random))
        return err_set(info, ERR_IO, NULL, "no random numbers");
    hex_encode(random, sizeof random, hex);
    snprintf(out, FT_ID_MAX, "%.12s%s", prefix, hex);
    return ERR_OK;
}

static void give_room(void *arg) {
    struct ft_home *h = arg;
    if (reserve_give(&h->reserve))
        log_write(
            h->log, LOG_ERROR,
            "the disk of %s is full: the reserve is given up for deletes and changes of states; "
            "uploads and jobs wait until there is room again",
            h->path);
}

enum err ft_home_room(struct ft_home *h, struct err_info *info) {
    bool held = atomic_load(&h->reserve.held);
    if (!held && reserve_take(&h->reserve) && atomic_load(&h->reserve.given))
        log_write(h->log, LOG_INFO, "the disk of %s has room again", h->path);
    return atomic_load(&h->reserve.held)
               ? ERR_OK
               : err_set(info, ERR_DISK_FULL, NULL,
                         "the disk of the data folder is full; delete files, or make room there");
}

bool ft__again(enum err e, int *tries) {
    static const int64_t waits[] = {0, 50 * 1000000, 200 * 1000000};
    if (e != ERR_DISK_FULL || *tries == sizeof waits / sizeof *waits)
        return false;
    int64_t wait = waits[(*tries)++];
    if (wait)
        nanosleep(&(struct timespec){.tv_nsec = wait}, NULL);
    return true;
}

// What needs a little room at start finds it, too: the database's index file, cleaning up.
static enum err open_parts(struct ft_home *h, struct err_info *info) {
    char path[sizeof h->path + 16];
    snprintf(path, sizeof path, "%s/graft.db", h->path);
    enum err e = ERR_OK;
    if (h->files < 0)
        e = durable_folder(h->dir.fd, "files", &h->files, info);
    if (!e && h->jobs < 0)
        e = durable_folder(h->dir.fd, "jobs", &h->jobs, info);
    if (!e && !h->db)
        e = db_open(path, ft_schema, ft_schema_len, &h->db, info);
    if (!e)
        e = ft_files_recover(h, info);
    return e;
}

static enum err begin(struct ft_home *h, const struct ft_home_config *cfg, struct err_info *info) {
    memset(h, 0, sizeof *h);
    h->dir = (struct data_dir){-1, -1};
    h->files = h->jobs = -1;
    h->clock = cfg->clock;
    h->log = cfg->log;
    h->max_file_bytes = cfg->max_file_bytes;
    h->max_bytes = cfg->max_bytes;
    h->max_waiting = cfg->max_waiting;
    h->keep_jobs_s = cfg->keep_jobs_s;
    if (strlen(cfg->path) >= sizeof h->path)
        return err_set(info, ERR_INVALID, "data-dir", "the data folder's name is too long");
    strcpy(h->path, cfg->path);
    return ft__watch_init(h, cfg->metrics) ? err_set(info, ERR_NOMEM, NULL, "out of memory")
                                           : ERR_OK;
}

enum err ft_home_open(struct ft_home *h, const struct ft_home_config *cfg, struct err_info *info) {
    enum err e = begin(h, cfg, info);
    if (!e)
        e = data_dir_open(cfg->path, &h->dir, info);
    if (!e) {
        reserve_open(&h->reserve, h->dir.fd);
        e = open_parts(h, info);
    }
    if (e == ERR_DISK_FULL) {
        give_room(h);
        e = open_parts(h, info);
    }
    if (e) {
        ft_home_close(h);
        return e;
    }
    db_on_full(h->db, give_room, h);
    ft_usage_measure(h);
    struct err_info full;
    if (ft_home_room(h, &full) || db_make_room(h->db, &full))
        log_write(h->log, LOG_WARN, "%s: %s", h->path, full.message);
    return ERR_OK;
}

static enum err open_folder(int parent, const char *path, int *out, struct err_info *info) {
    *out = openat(parent, path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    return *out < 0 ? durable_errno(info, errno, "open", path) : ERR_OK;
}

enum err ft_home_view(struct ft_home *h, const struct ft_home_config *cfg, struct err_info *info) {
    char path[sizeof h->path + 16];
    enum err e = begin(h, cfg, info);
    snprintf(path, sizeof path, "%s/graft.db", h->path);
    if (!e)
        e = open_folder(AT_FDCWD, cfg->path, &h->dir.fd, info);
    if (!e && faccessat(h->dir.fd, "graft.db", F_OK, 0))
        e = err_set(info, ERR_NOT_FOUND, "data-dir", "%s is no data folder: it has no graft.db",
                    cfg->path);
    if (!e)
        e = open_folder(h->dir.fd, "files", &h->files, info);
    if (!e)
        e = open_folder(h->dir.fd, "jobs", &h->jobs, info);
    if (!e)
        e = db_open_read(path, ft_schema, ft_schema_len, &h->db, info);
    if (e)
        ft_home_close(h);
    return e;
}

void ft_home_close(struct ft_home *h) {
    if (!h->clock) // zeros
        return;
    db_close(h->db);
    if (h->files >= 0)
        close(h->files);
    if (h->jobs >= 0)
        close(h->jobs);
    reserve_close(&h->reserve);
    data_dir_close(&h->dir);
    memset(h, 0, sizeof *h);
}

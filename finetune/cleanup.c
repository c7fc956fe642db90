// SPDX-License-Identifier: Apache-2.0
#include "finetune/cleanup.h"
#include "base/diskio.h"
#include "base/json_load.h"
#include "finetune/jobs.h"
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { DEPTH = 6 }; // jobs/<id>/checkpoints/step-<n>/<file>, and a little

static struct dirent *next(DIR *list) {
    struct dirent *x;
    do
        x = readdir(list);
    while (x && (!strcmp(x->d_name, ".") || !strcmp(x->d_name, "..")));
    return x;
}

// ---- usage

static int64_t measure(int dir, const char *name, int depth) {
    DIR *list = depth ? durable_list(dir, name) : NULL;
    int64_t bytes = 0;
    for (const struct dirent *x; list && (x = next(list));) {
        struct stat st;
        if (fstatat(dirfd(list), x->d_name, &st, AT_SYMLINK_NOFOLLOW))
            continue; // gone meanwhile
        bytes += S_ISDIR(st.st_mode) ? measure(dirfd(list), x->d_name, depth - 1) : st.st_size;
    }
    if (list)
        closedir(list);
    return bytes;
}

void ft_usage_measure(struct ft_home *h) {
    int64_t bytes = measure(h->dir.fd, "files", DEPTH) + measure(h->dir.fd, "jobs", DEPTH) +
                    measure(h->dir.fd, "adapters", DEPTH);
    atomic_store_explicit(&h->used, bytes, memory_order_relaxed);
}

// Looked at each time: what writes rows does not know how many pages they take.
static uint64_t database_bytes(const struct ft_home *h) {
    static const char *const names[] = {"graft.db", "graft.db-wal"};
    uint64_t bytes = 0;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        struct stat st;
        if (!fstatat(h->dir.fd, names[i], &st, AT_SYMLINK_NOFOLLOW) && st.st_size > 0)
            bytes += (uint64_t)st.st_size;
    }
    return bytes;
}

uint64_t ft_usage(const struct ft_home *h) {
    int64_t used = atomic_load_explicit(&h->used, memory_order_relaxed);
    return (used > 0 ? (uint64_t)used : 0) + database_bytes(h);
}

enum err ft_usage_check(const struct ft_home *h, uint64_t more, struct err_info *info) {
    uint64_t is = h->max_bytes ? ft_usage(h) : 0;
    if (!h->max_bytes || (is <= h->max_bytes && more <= h->max_bytes - is))
        return ERR_OK;
    return err_set(info, ERR_LIMIT, "file",
                   "the data folder holds %llu bytes and may hold %llu (--max-data-bytes); delete "
                   "files or adapters first",
                   (unsigned long long)is, (unsigned long long)h->max_bytes);
}

// ---- jobs

static enum err remove_tree(int dir, const char *name, int depth, struct err_info *info) {
    DIR *list = durable_list(dir, name);
    if (!list)
        return errno == ENOENT ? ERR_OK : durable_errno(info, errno, "read", name);
    enum err e = ERR_OK;
    for (const struct dirent *x; !e && (x = next(list));)
        if (diskio_unlink(dirfd(list), x->d_name) == 0 || errno == ENOENT)
            continue;
        else if (errno == EISDIR && depth)
            e = remove_tree(dirfd(list), x->d_name, depth - 1, info);
        else
            e = durable_errno(info, errno, "remove", x->d_name);
    closedir(list);
    return e || !diskio_rmdir(dir, name) ? e : durable_errno(info, errno, "remove", name);
}

static bool is_kept(const struct ft_home *h, const struct ft_job *j) {
    if (!h->keep_jobs_s || ft_now(h) - j->finished_at < h->keep_jobs_s)
        return true;
    json_t *request = json_load_text(j->request, strlen(j->request), 0, NULL);
    const char *class =
        json_string_value(json_object_get(json_object_get(request, "graft"), "retention_class"));
    bool keep = !request || (class && !strcmp(class, "keep"));
    json_decref(request);
    return keep;
}

static enum err drop_checkpoints(struct ft_home *h, int64_t seq, struct err_info *info) {
    enum err e;
    int tries = 0;
    do {
        if (!(e = db_begin(h->db, info))) {
            e = db_run(h->db, NULL, info, "DELETE FROM job_checkpoints WHERE job = ?",
                       DB_ARGS(db_i(seq)));
            e = db_end(h->db, e, info);
        }
    } while (ft__again(e, &tries));
    return e;
}

static enum err clean_ended(struct ft_home *h, const struct ft_job *j, int folder,
                            struct err_info *info) {
    static const char *const caches[] = {"training.tokens", "validation.tokens"};
    if (!is_kept(h, j)) {
        enum err e = drop_checkpoints(h, j->seq, info);
        if (!e)
            e = remove_tree(h->jobs, j->id, DEPTH, info);
        if (!e)
            log_write(h->log, LOG_INFO, "%s ended long ago: its checkpoints are removed", j->id);
        return e;
    }
    for (size_t i = 0; i < sizeof caches / sizeof *caches; i++)
        if (diskio_unlink(folder, caches[i]) && errno != ENOENT)
            return durable_errno(info, errno, "remove", caches[i]);
    return durable_clean(folder, info);
}

static enum err clean_one(struct ft_home *h, const char *id, struct err_info *info) {
    struct ft_job j;
    int folder = openat(h->jobs, id, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    if (folder < 0)
        return ERR_OK;
    enum err e = ERR_OK;
    // Without an age at which jobs go, only those that have a cache are of interest.
    if (h->keep_jobs_s || !faccessat(folder, "training.tokens", F_OK, 0)) {
        e = ft_job_get(h, (struct ft_job_owner){.any = true}, id, &j, info);
        if (!e) {
            e = ft_job_state_final(j.state) ? clean_ended(h, &j, folder, info) : ERR_OK;
            ft_job_fini(&j);
        } else if (e == ERR_NOT_FOUND) {
            e = ERR_OK; // not ours
        }
    }
    close(folder);
    return e;
}

enum err ft_jobs_clean(struct ft_home *h, struct err_info *info) {
    DIR *list = durable_list(h->jobs, ".");
    enum err e = list ? ERR_OK : durable_errno(info, errno, "read", "the folder of jobs");
    for (const struct dirent *x; !e && (x = next(list));)
        if (!strncmp(x->d_name, "ftjob-", 6))
            e = clean_one(h, x->d_name, info);
    if (list)
        closedir(list);
    return e;
}

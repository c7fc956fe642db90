// SPDX-License-Identifier: Apache-2.0
// A job that runs goes on while its set is written: a checkpoint that is removed meanwhile is
// missed and the next one taken; what is copied is compared with its manifest; all else is replaced
// whole by those who write it.
#include "gateway/export_set.h"
#include "base/diskio.h"
#include "base/mem.h"
#include "finetune/checkpoint.h"
#include "finetune/jobs.h"
#include "gateway/train_run.h"
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { TRIES = 8, DEPTH = 3 };

struct writing {
    const struct export_set *s;
    struct ft_job job;
    int from, to; // the job's folder (-1: it has none), the set
    struct err_info *info;
};

static void tell(const struct writing *w, const char *message) {
    w->s->tell(w->s->arg, message);
}

// ---- parts

static bool ends_in(const char *name, const char *end) {
    size_t n = strlen(name), m = strlen(end);
    return n >= m && !strcmp(name + n - m, end);
}

// Tokens can be made again from the data.
static enum err copy_plain(const struct writing *w) {
    struct ft_names names = {0};
    enum err e = ft_names_read(w->from, "", false, &names, w->info);
    for (size_t i = 0; i < names.n && !e; i++)
        if (!ends_in(names.items[i], ".tokens") && ft_path_ok(names.items[i])) {
            e = ft_file_copy(w->from, names.items[i], w->to, names.items[i], w->info);
            e = e == ERR_NOT_FOUND ? ERR_OK : e;
        }
    ft_names_fini(&names);
    return e;
}

static enum err copy_data(const struct writing *w, int data, const char *id, const char *what) {
    char name[64], tokens[64], message[200];
    snprintf(name, sizeof name, "%s.jsonl", what);
    snprintf(tokens, sizeof tokens, "%s.tokens", what);
    if (!*id)
        return ERR_OK;
    enum err e = ft_file_copy(w->s->home->files, id, data, name, w->info);
    if (e != ERR_NOT_FOUND)
        return e;
    e = w->from < 0 ? ERR_NOT_FOUND : ft_file_copy(w->from, tokens, w->to, tokens, w->info);
    snprintf(message, sizeof message, "%s was deleted; %s", id,
             e ? "the set lacks it" : "the set has the tokens that were made of it");
    if (!e || e == ERR_NOT_FOUND)
        tell(w, message);
    return e == ERR_NOT_FOUND ? ERR_OK : e;
}

static enum err copy_files(const struct writing *w) {
    int data;
    enum err e = durable_folder(w->to, "data", &data, w->info);
    if (e)
        return e;
    e = copy_data(w, data, w->job.training_file, "training");
    if (!e)
        e = copy_data(w, data, w->job.validation_file, "validation");
    close(data);
    return e;
}

static enum err copy_adapter(const struct writing *w) {
    struct err_info why;
    enum err e = ft_checkpoint_copy(w->from, w->to, "adapter", &why);
    if (!e)
        return e;
    bool ended = w->job.state == FT_JOB_SUCCEEDED;
    if (e != ERR_NOT_FOUND && (ended || e != ERR_FORMAT)) {
        err_prefix(&why, "adapter");
        *w->info = why;
        return e;
    }
    tell(w, "the job has no finished adapter; the set holds none");
    return ERR_OK;
}

static void tell_skipped(void *arg, const char *name, const char *why) {
    char message[600];
    snprintf(message, sizeof message, "left out %s: %.500s", name, why);
    tell(arg, message);
}

// The newest may be removed before it is copied, if the job has a newer one by then.
static enum err copy_newest(struct writing *w, int from, int to) {
    char path[sizeof w->s->home->path + FT_ID_MAX + 32], name[FT_CHECKPOINT_NAME];
    struct ft_skip skip = {tell_skipped, w};
    snprintf(path, sizeof path, "%s/jobs/%s/checkpoints", w->s->home->path, w->job.id);
    enum err e = ERR_NOT_FOUND;
    for (int i = 0; i < TRIES && e == ERR_NOT_FOUND; i++) {
        e = ft_checkpoint_newest(path, NULL, &skip, name, w->info);
        if (e == ERR_NOT_FOUND) {
            tell(w, "the job has no checkpoint; the set holds none");
            return ERR_OK;
        }
        if (!e)
            e = ft_checkpoint_copy(from, to, name, w->info);
    }
    return e;
}

static enum err copy_all(struct writing *w, int from, int to) {
    struct ft_names names = {0};
    struct err_info why;
    enum err e = ft_names_read(from, "", true, &names, w->info);
    for (size_t i = 0; i < names.n && !e; i++) {
        e = ft_checkpoint_copy(from, to, names.items[i], &why);
        if (e == ERR_FORMAT) { // not whole: nothing would go on from it either
            tell_skipped(w, names.items[i], why.message);
            e = ERR_OK;
        }
        if (e)
            *w->info = why;
        e = e == ERR_NOT_FOUND ? ERR_OK : e;
    }
    ft_names_fini(&names);
    return e;
}

static enum err copy_checkpoints(struct writing *w) {
    if (w->s->checkpoints == EXPORT_NONE)
        return ERR_OK;
    int from = openat(w->from, "checkpoints", O_RDONLY | O_DIRECTORY | O_CLOEXEC), to;
    if (from < 0) {
        tell(w, "the job has no checkpoint; the set holds none");
        return ERR_OK;
    }
    enum err e = durable_folder(w->to, "checkpoints", &to, w->info);
    if (!e) {
        e = w->s->checkpoints == EXPORT_ALL ? copy_all(w, from, to) : copy_newest(w, from, to);
        close(to);
    }
    close(from);
    return e;
}

// ---- the manifest

static enum err list_files(int dir, const char *prefix, int depth, struct ft_names *out,
                           struct err_info *info) {
    struct ft_names folders = {0};
    char below[FT_PATH_MAX];
    enum err e = ft_names_read(dir, prefix, false, out, info);
    if (!e && depth)
        e = ft_names_read(dir, "", true, &folders, info);
    for (size_t i = 0; i < folders.n && !e; i++) {
        int fd = openat(dir, folders.items[i], O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (fd < 0 || (size_t)snprintf(below, sizeof below, "%s%s/", prefix, folders.items[i]) >=
                          sizeof below)
            e = durable_errno(info, errno, "open", folders.items[i]);
        if (!e)
            e = list_files(fd, below, depth - 1, out, info);
        if (fd >= 0)
            close(fd);
    }
    ft_names_fini(&folders);
    return e;
}

// What the run says of itself; a job that never ran has said nothing.
static enum err write_manifest(const struct writing *w, const json_t *run,
                               const struct ft_names *x) {
    struct ft_manifest m;
    struct ft_manifest_json own;
    enum err e = ft_manifest_take(run, &m, &own, w->info);
    m.run_id = w->job.id;
    m.code_version = GRAFT_VERSION;
    m.parent = NULL;
    m.seed = (uint64_t)w->job.seed;
    m.no_seed = false;
    m.created_at = ft_now(w->s->home);
    if (!e)
        e = ft_manifest_write(w->to, FT_MANIFEST_EXPORT, &m, NULL, (const char *const *)x->items,
                              x->n, w->info);
    ft_manifest_drop(&own);
    return e;
}

static enum err close_set(const struct writing *w, size_t *files) {
    struct ft_names names = {0};
    json_t *run = NULL;
    enum err e = train_run_read(w->to, &run, w->info);
    if (e == ERR_NOT_FOUND) {
        tell(w,
             "the job has not begun: there are no parameters of a run, and nothing to go on with");
        e = ERR_OK;
    }
    if (!e)
        e = list_files(w->to, "", DEPTH, &names, w->info);
    if (!e)
        e = write_manifest(w, run, &names);
    *files = names.n + 2;
    ft_names_fini(&names);
    json_decref(run);
    return e;
}

// ---- entry

static enum err write_parts(struct writing *w, size_t *files) {
    enum err e = copy_files(w);
    if (!e && w->from >= 0)
        e = copy_plain(w);
    if (!e && w->from >= 0)
        e = copy_adapter(w);
    if (!e && w->from >= 0)
        e = copy_checkpoints(w);
    if (!e)
        e = export__log(w->s, w->to, w->info);
    return e ? e : close_set(w, files);
}

// What this export has written: all that is there.
static void remove_below(int dir, int depth) {
    struct ft_names names = {0};
    if (!ft_names_read(dir, "", false, &names, NULL))
        for (size_t i = 0; i < names.n; i++)
            (void)diskio_unlink(dir, names.items[i]);
    ft_names_fini(&names);
    if (depth && !ft_names_read(dir, "", true, &names, NULL))
        for (size_t i = 0; i < names.n; i++) {
            int fd = openat(dir, names.items[i], O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
            if (fd >= 0) {
                remove_below(fd, depth - 1);
                close(fd);
            }
            (void)diskio_rmdir(dir, names.items[i]);
        }
    ft_names_fini(&names);
}

// The output may not be there yet; then its folder is what counts.
static bool below_home(const struct export_set *s) {
    char home[PATH_MAX], output[PATH_MAX], above[PATH_MAX];
    const char *path = s->output;
    if (!realpath(s->home->path, home))
        return false;
    if (!realpath(path, output)) {
        size_t n = strlen(path);
        while (n && path[n - 1] == '/')
            n--;
        while (n && path[n - 1] != '/')
            n--;
        if (n >= sizeof above)
            return false; // no such folder can be made
        snprintf(above, sizeof above, "%.*s", n ? (int)n : 1, n ? path : ".");
        if (!realpath(above, output))
            return false;
    }
    size_t n = strlen(home);
    return !strncmp(output, home, n) && (!output[n] || output[n] == '/' || home[n - 1] == '/');
}

static enum err open_output(const struct export_set *s, int *dir, struct err_info *info) {
    struct ft_names names = {0};
    *dir = -1;
    if (below_home(s))
        return err_set(
            info, ERR_INVALID, "output",
            "--output %.200s is inside the data folder, which is only read; name a folder "
            "outside of it",
            s->output);
    enum err e = durable_make(s->output, 0755, dir, info);
    if (!e)
        e = ft_names_read(*dir, "", false, &names, info);
    if (!e && !names.n)
        e = ft_names_read(*dir, "", true, &names, info);
    if (!e && names.n)
        e = err_set(info, ERR_INVALID, "output",
                    "%.200s is not empty: it holds %.100s; name a folder that is not there yet",
                    s->output, names.items[0]);
    ft_names_fini(&names);
    if (e && *dir >= 0)
        close(*dir);
    return e;
}

enum err export_set_write(const struct export_set *s, size_t *files, struct err_info *info) {
    struct writing w = {.s = s, .info = info};
    enum err e = ft_job_get(s->home, (struct ft_job_owner){.any = true}, s->job, &w.job, info);
    if (e == ERR_NOT_FOUND)
        return err_set(info, e, "job", "%.200s has no job %.64s", s->home->path, s->job);
    if (!e)
        e = open_output(s, &w.to, info);
    if (e) {
        ft_job_fini(&w.job);
        return e;
    }
    w.from = openat(s->home->jobs, w.job.id, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    e = write_parts(&w, files);
    if (e)
        remove_below(w.to, DEPTH);
    if (w.from >= 0)
        close(w.from);
    close(w.to);
    ft_job_fini(&w.job);
    return e;
}

// SPDX-License-Identifier: Apache-2.0
#include "base/durable.h"
#include "base/json_load.h"
#include "base/mem.h"
#include "finetune/checkpoint_internal.h"
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define PREFIX "step-"

const char *const ft__files[FT__FILES] = {"adapter_model.safetensors", "adapter_config.json",
                                          "optimizer.safetensors", "trainer_state.json"};

// ---- files

enum err ft__open_folder(int parent, const char *path, int *fd, struct err_info *info) {
    *fd = openat(parent, path, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    return *fd < 0 ? durable_errno(info, errno, "open", path) : ERR_OK;
}

// ---- verify

enum err ft__verify(int dir, json_t **manifest, struct err_info *info) {
    json_t *m = NULL;
    enum err e = ft_manifest_read(dir, &m, info);
    if (e == ERR_NOT_FOUND)
        e = err_set(info, ERR_FORMAT, NULL, "it was not completed (no manifest.json)");
    if (e)
        return e;
    if (ft_manifest_kind_of(m) != FT_MANIFEST_CHECKPOINT)
        e = err_set(info, ERR_FORMAT, NULL, "its manifest is not of a checkpoint");
    for (int i = 0; i < FT__FILES && !e; i++)
        e = ft_manifest_check(dir, m, ft__files[i], info);
    if (e || !manifest)
        json_decref(m);
    else
        *manifest = m;
    return e;
}

enum err ft_checkpoint_verify(const char *path, struct err_info *info) {
    int dir;
    enum err e = ft__open_folder(AT_FDCWD, path, &dir, info);
    if (e)
        return e;
    e = ft__verify(dir, NULL, info);
    close(dir);
    return e;
}

// ---- the list

// n of step-<n>, -1 for other names.
static int64_t step_of(const char *name) {
    if (strncmp(name, PREFIX, strlen(PREFIX)) != 0)
        return -1;
    const char *at = name + strlen(PREFIX);
    if (*at < '0' || *at > '9' || (*at == '0' && at[1]) || strlen(at) > 18)
        return -1;
    char *end;
    int64_t n = strtoll(at, &end, 10);
    return *end ? -1 : n;
}

struct list {
    int64_t *steps;
    size_t n, cap;
};

static int newest_first(const void *a, const void *b) {
    const int64_t *x = a, *y = b;
    return (*x < *y) - (*x > *y);
}

static enum err push(struct list *l, int64_t step) {
    if (l->n == l->cap) {
        size_t cap = l->cap ? 2 * l->cap : 64;
        int64_t *grown = mem_realloc(l->steps, cap * sizeof *grown);
        if (!grown)
            return ERR_NOMEM;
        l->steps = grown;
        l->cap = cap;
    }
    l->steps[l->n++] = step;
    return ERR_OK;
}

// Steps of the folder, newest first; to be freed.
static enum err list_steps(int dir, struct list *l, struct err_info *info) {
    DIR *d = durable_list(dir, ".");
    if (!d)
        return durable_errno(info, errno, "read", "the folder of checkpoints");
    enum err e = ERR_OK;
    for (struct dirent *x; !e && (x = readdir(d));)
        if (step_of(x->d_name) >= 0)
            e = push(l, step_of(x->d_name));
    closedir(d);
    if (e)
        return err_set(info, e, NULL, "out of memory");
    if (l->n)
        qsort(l->steps, l->n, sizeof *l->steps, newest_first);
    return ERR_OK;
}

static void step_name(int64_t step, char name[FT_CHECKPOINT_NAME]) {
    snprintf(name, FT_CHECKPOINT_NAME, PREFIX "%lld", (long long)step);
}

// ---- newest

enum { SHOWN = 80 };

// A value as a message shows it.
static const char *shown(const json_t *v, char out[SHOWN]) {
    char text[SHOWN + 1];
    size_t n = v ? json_dumpb(v, text, SHOWN, JSON_COMPACT | JSON_ENCODE_ANY) : 0;
    if (!v || json_is_null(v))
        snprintf(out, SHOWN, "none");
    else if (json_is_string(v))
        snprintf(out, SHOWN, "%.64s", json_string_value(v));
    else if (json_is_real(v))
        snprintf(out, SHOWN, "%.10g", json_real_value(v));
    else
        snprintf(out, SHOWN, "%.*s", n < SHOWN ? (int)n : SHOWN - 1, text);
    return out;
}

static enum err differs(struct err_info *info, const char *key, const json_t *is,
                        const json_t *was) {
    char now[SHOWN], before[SHOWN];
    return err_set(info, ERR_INVALID, NULL,
                   "it belongs to another run: %s is %s here, and %s in that run", key,
                   shown(is, now), shown(was, before));
}

static enum err check_text(const json_t *was, const char *key, const char *is,
                           struct err_info *info) {
    const json_t *before = json_object_get(was, key);
    const char *text = json_string_value(before);
    if (text && is ? !strcmp(text, is) : !text && !is)
        return ERR_OK;
    json_t *now = is ? json_string(is) : json_null();
    enum err e =
        now ? differs(info, key, now, before) : err_set(info, ERR_NOMEM, NULL, "out of memory");
    json_decref(now);
    return e;
}

// 2 and 2.0 are one number.
static bool same_value(const json_t *a, const json_t *b) {
    if (json_is_number(a) && json_is_number(b)) {
        double x = json_number_value(a), y = json_number_value(b);
        return x >= y && x <= y;
    }
    return json_equal(a, b);
}

static enum err check_hyper(const json_t *was, const char *hyperparameters, struct err_info *info) {
    json_t *hyper = json_load_text(hyperparameters, strlen(hyperparameters), 0, NULL), *value;
    const json_t *before = json_object_get(was, "hyperparameters");
    const char *key;
    enum err e = hyper ? ERR_OK : err_set(info, ERR_NOMEM, NULL, "out of memory");
    json_object_foreach(hyper, key, value) {
        const json_t *other = json_object_get(before, key);
        if (!e && !same_value(value, other))
            e = differs(info, key, value, other);
    }
    json_decref(hyper);
    return e;
}

static enum err check_same_run(const json_t *was, const struct ft_manifest *m,
                               struct err_info *info) {
    const struct {
        const char *key, *is;
    } texts[] = {{"base_digest", m->base_digest},
                 {"tokenizer_digest", m->tokenizer_digest},
                 {"template_digest", m->template_digest},
                 {"dataset_digest", m->dataset_digest},
                 {"method", m->method}};
    enum err e = ERR_OK;
    for (size_t i = 0; i < sizeof texts / sizeof *texts && !e; i++)
        e = check_text(was, texts[i].key, texts[i].is, info);
    return !e && m->hyperparameters ? check_hyper(was, m->hyperparameters, info) : e;
}

static enum err usable(int dir, const char *name, const struct ft_manifest *m,
                       struct err_info *info) {
    int fd;
    json_t *manifest;
    enum err e = ft__open_folder(dir, name, &fd, info);
    if (e)
        return e;
    e = ft__verify(fd, &manifest, info);
    close(fd);
    if (e)
        return e;
    e = m ? check_same_run(manifest, m, info) : ERR_OK;
    json_decref(manifest);
    return e;
}

enum err ft_checkpoint_newest(const char *path, const struct ft_manifest *m,
                              const struct ft_skip *skip, char name[FT_CHECKPOINT_NAME],
                              struct err_info *info) {
    int dir;
    struct list l = {0};
    enum err e = ft__open_folder(AT_FDCWD, path, &dir, info);
    if (e)
        return e;
    e = list_steps(dir, &l, info);
    bool found = false;
    struct err_info why = {0}, first = {0}; // of the newest
    char newest[FT_CHECKPOINT_NAME] = "";
    for (size_t i = 0; i < l.n && !e && !found; i++) {
        step_name(l.steps[i], name);
        enum err bad = usable(dir, name, m, &why);
        if (bad == ERR_IO) // it may have passed
            bad = usable(dir, name, m, &why);
        found = !bad;
        if (bad == ERR_NOMEM)
            e = err_set(info, bad, NULL, "out of memory");
        else if (bad && skip)
            skip->tell(skip->arg, name, why.message);
        if (bad && !i) {
            first = why;
            memcpy(newest, name, sizeof newest);
        }
    }
    close(dir);
    mem_free(l.steps);
    if (e || found)
        return e;
    if (*newest)
        return err_set(info, ERR_NOT_FOUND, NULL,
                       "%.200s holds no checkpoint that this run can go on from; %s: %s", path,
                       newest, first.message);
    return err_set(info, ERR_NOT_FOUND, NULL,
                   "%.200s holds no checkpoint (step-<n>); the run ended before its first one",
                   path);
}

// ---- removal

enum err ft__remove_folder(int parent, const char *name, struct err_info *info) {
    return durable_remove_folder(parent, name, "COMPLETE", info);
}

static enum err remove_aside(int dir, struct err_info *info) {
    DIR *d = durable_list(dir, ".");
    if (!d)
        return durable_errno(info, errno, "read", "the folder of checkpoints");
    enum err e = ERR_OK;
    for (struct dirent *x; !e && (x = readdir(d));)
        if (!strncmp(x->d_name, "." PREFIX, strlen(PREFIX) + 1))
            e = ft__remove_folder(dir, x->d_name, info);
    closedir(d);
    return e;
}

enum err ft_checkpoint_prune(const char *path, int64_t keep, struct err_info *info) {
    int dir;
    struct list l = {0};
    enum err e = ft__open_folder(AT_FDCWD, path, &dir, info);
    if (e)
        return e;
    e = remove_aside(dir, info);
    if (!e)
        e = list_steps(dir, &l, info);
    int64_t kept = 0;
    for (size_t i = 0; i < l.n && !e && keep; i++) {
        char name[FT_CHECKPOINT_NAME];
        struct err_info why;
        step_name(l.steps[i], name);
        // Broken ones do not count, so that a whole one always stays.
        if (kept < keep)
            kept += !usable(dir, name, NULL, &why);
        else
            e = ft__remove_folder(dir, name, info);
    }
    close(dir);
    mem_free(l.steps);
    return e;
}

// SPDX-License-Identifier: Apache-2.0
#include "base/durable.h"
#include "base/hash.h"
#include "base/mem.h"
#include "finetune/checkpoint_internal.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MAX_JSON = 1 << 20, CHUNK = 1 << 18 };
#define PREFIX "step-"

const char *const ft__files[FT__FILES] = {"adapter_model.safetensors", "adapter_config.json",
                                          "optimizer.safetensors", "trainer_state.json"};

// ---- files

enum err ft__open_folder(int parent, const char *path, int *fd, struct err_info *info) {
    *fd = openat(parent, path, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    return *fd < 0 ? durable_errno(info, errno, "open", path) : ERR_OK;
}

static enum err open_file(int dir, const char *name, int *fd, struct err_info *info) {
    struct stat st;
    *fd = openat(dir, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (*fd < 0)
        return durable_errno(info, errno, "open", name);
    if (fstat(*fd, &st) || !S_ISREG(st.st_mode)) {
        close(*fd);
        return err_set(info, ERR_FORMAT, NULL, "%s is not a file", name);
    }
    return ERR_OK;
}

static enum err hash_open(int fd, struct sha256_ctx *sha, char *chunk) {
    for (;;) {
        ssize_t n = read(fd, chunk, CHUNK);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return n < 0 ? ERR_IO : ERR_OK;
        enum err e = sha256_update(sha, chunk, (size_t)n);
        if (e)
            return e;
    }
}

enum err ft__hash_file(int dir, const char *name, char hex[FT__HEX], struct err_info *info) {
    int fd;
    enum err e = open_file(dir, name, &fd, info);
    if (e)
        return e;
    uint8_t digest[SHA256_BYTES];
    char *chunk = mem_alloc(CHUNK);
    struct sha256_ctx *sha = sha256_begin();
    e = chunk && sha ? hash_open(fd, sha, chunk) : ERR_NOMEM;
    enum err ended = sha ? sha256_end(sha, digest) : ERR_NOMEM;
    e = e ? e : ended;
    close(fd);
    mem_free(chunk);
    if (e)
        return err_set(info, e, NULL, "%s: %s", name, err_text(e));
    hex_encode(digest, sizeof digest, hex);
    return ERR_OK;
}

enum err ft__read_json(int dir, const char *name, json_t **out, struct err_info *info) {
    int fd;
    enum err e = open_file(dir, name, &fd, info);
    if (e)
        return e;
    char *text = mem_alloc(MAX_JSON + 1);
    size_t n = 0;
    ssize_t got = 1;
    while (text && n <= MAX_JSON && got > 0) {
        got = read(fd, text + n, MAX_JSON + 1 - n);
        if (got > 0)
            n += (size_t)got;
    }
    close(fd);
    json_error_t why;
    *out = text && got == 0 ? json_loadb(text, n, JSON_REJECT_DUPLICATES, &why) : NULL;
    mem_free(text);
    if (!text)
        return err_set(info, ERR_NOMEM, NULL, "out of memory");
    if (got < 0)
        return durable_errno(info, errno, "read", name);
    if (!json_is_object(*out)) {
        json_decref(*out);
        return err_set(info, ERR_FORMAT, NULL, "%s is not a JSON object", name);
    }
    return ERR_OK;
}

// ---- verify

static enum err check_marker(int dir, struct err_info *info) {
    char expected[FT__HEX], found[FT__HEX + 1];
    int fd;
    if (open_file(dir, "COMPLETE", &fd, info))
        return err_set(info, ERR_FORMAT, NULL, "it was not completed (no COMPLETE)");
    ssize_t n = read(fd, found, sizeof found);
    close(fd);
    enum err e = ft__hash_file(dir, "manifest.json", expected, info);
    if (e)
        return e;
    if (n < FT__HEX - 1 || memcmp(found, expected, FT__HEX - 1) != 0)
        return err_set(info, ERR_FORMAT, NULL, "manifest.json is not what COMPLETE says");
    return ERR_OK;
}

enum err ft__verify(int dir, json_t **manifest, struct err_info *info) {
    json_t *m = NULL;
    enum err e = check_marker(dir, info);
    if (!e)
        e = ft__read_json(dir, "manifest.json", &m, info);
    if (e)
        return e;
    for (int i = 0; i < FT__FILES && !e; i++) {
        char hex[FT__HEX];
        const char *is =
            json_string_value(json_object_get(json_object_get(m, "files"), ft__files[i]));
        if (!(e = ft__hash_file(dir, ft__files[i], hex, info)) && (!is || strcmp(is, hex) != 0))
            e = err_set(info, ERR_FORMAT, NULL, "%s is not what the manifest says", ft__files[i]);
    }
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
    int fd = openat(dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *d = fd < 0 ? NULL : fdopendir(fd);
    if (!d) {
        enum err e = durable_errno(info, errno, "read", "the folder of checkpoints");
        if (fd >= 0)
            close(fd);
        return e;
    }
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

static bool same_text(const json_t *m, const char *key, const char *is) {
    const char *was = json_string_value(json_object_get(m, key));
    return was && is ? !strcmp(was, is) : !was && !is;
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
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        if (!same_text(was, texts[i].key, texts[i].is))
            return err_set(info, ERR_INVALID, NULL, "it belongs to another run: %s differs",
                           texts[i].key);
    json_t *hyper = m->hyperparameters ? json_loads(m->hyperparameters, 0, NULL) : NULL;
    const json_t *before = json_object_get(was, "hyperparameters");
    const char *key, *differs = NULL;
    json_t *value;
    json_object_foreach(hyper, key, value) if (!json_equal(value, json_object_get(before, key)))
        differs = differs ? differs : key;
    enum err e =
        differs ? err_set(info, ERR_INVALID, NULL, "it belongs to another run: %s differs", differs)
                : ERR_OK;
    json_decref(hyper);
    return e;
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
    for (size_t i = 0; i < l.n && !e && !found; i++) {
        struct err_info why;
        step_name(l.steps[i], name);
        enum err bad = usable(dir, name, m, &why);
        found = !bad;
        if (bad == ERR_NOMEM)
            e = err_set(info, bad, NULL, "out of memory");
        else if (bad && skip)
            skip->tell(skip->arg, name, why.message);
    }
    close(dir);
    mem_free(l.steps);
    if (!e && !found)
        e = err_set(info, ERR_NOT_FOUND, NULL, "%s holds no checkpoint to go on from", path);
    return e;
}

// ---- removal

enum err ft__remove_folder(int parent, const char *name, struct err_info *info) {
    return durable_remove_folder(parent, name, "COMPLETE", info);
}

static enum err remove_aside(int dir, struct err_info *info) {
    int fd = openat(dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *d = fd < 0 ? NULL : fdopendir(fd);
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

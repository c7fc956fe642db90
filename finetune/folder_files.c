// SPDX-License-Identifier: Apache-2.0
// Plain files below a folder: names that stay inside it, hashing, reading.
#include "finetune/folder_files.h"
#include "base/durable.h"
#include "base/mem.h"
#include "model/json_doc.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { CHUNK = 1 << 18, DEPTH = 8, JSON_DEPTH = 8, JSON_ELEMENTS = 1 << 19 };

bool ft_path_ok(const char *path) {
    size_t n = strlen(path);
    int depth = 0;
    if (!n || n >= FT_PATH_MAX)
        return false;
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)path[i] < ' ' || path[i] == 0x7f)
            return false;
    for (const char *part = path;; part++) {
        size_t len = strcspn(part, "/");
        if (!len || part[0] == '.' || ++depth > DEPTH)
            return false;
        part += len;
        if (!*part)
            return true;
    }
}

// Opens the folder in which the path's last part stands; *last is that part.
static enum err open_parent(int dir, const char *path, int *parent, const char **last,
                            struct err_info *info) {
    char part[FT_PATH_MAX];
    *parent = fcntl(dir, F_DUPFD_CLOEXEC, 0);
    for (const char *slash; *parent >= 0 && (slash = strchr(path, '/')); path = slash + 1) {
        snprintf(part, sizeof part, "%.*s", (int)(slash - path), path);
        int next = openat(*parent, part, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
        int why = errno;
        close(*parent);
        errno = why;
        *parent = next;
    }
    *last = path;
    return *parent < 0 ? durable_errno(info, errno, "open the folder of", path) : ERR_OK;
}

enum err ft_file_open_below(int dir, const char *path, int *fd, struct err_info *info) {
    struct stat st;
    const char *last;
    int parent;
    *fd = -1;
    if (!ft_path_ok(path))
        return err_set(info, ERR_INVALID, NULL, "'%.100s' is no name of a file", path);
    enum err e = open_parent(dir, path, &parent, &last, info);
    if (e)
        return e;
    *fd = openat(parent, last, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    int why = errno;
    close(parent);
    if (*fd < 0)
        return durable_errno(info, why, "open", path);
    if (fstat(*fd, &st) || !S_ISREG(st.st_mode)) {
        close(*fd);
        *fd = -1;
        return err_set(info, ERR_FORMAT, NULL, "%s is not a file", path);
    }
    return ERR_OK;
}

static enum err hash_open(int fd, struct sha256_ctx *sha, char *chunk, struct pace *pace,
                          uint64_t *bytes) {
    for (;;) {
        ssize_t n = read(fd, chunk, CHUNK);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return n < 0 ? ERR_IO : ERR_OK;
        enum err e = sha256_update(sha, chunk, (size_t)n);
        if (e)
            return e;
        *bytes += (uint64_t)n;
        pace_point(pace);
    }
}

enum err ft_file_hash_paced(int dir, const char *path, struct pace *pace, char hex[FT_SHA256_HEX],
                            uint64_t *bytes, struct err_info *info) {
    int fd;
    *bytes = 0;
    enum err e = ft_file_open_below(dir, path, &fd, info);
    if (e)
        return e;
    uint8_t digest[SHA256_BYTES];
    char *chunk = mem_alloc(CHUNK);
    struct sha256_ctx *sha = sha256_begin();
    e = chunk && sha ? hash_open(fd, sha, chunk, pace, bytes) : ERR_NOMEM;
    enum err ended = sha ? sha256_end(sha, digest) : ERR_NOMEM;
    e = e ? e : ended;
    close(fd);
    mem_free(chunk);
    if (e)
        return err_set(info, e, NULL, "%s: %s", path, err_text(e));
    hex_encode(digest, sizeof digest, hex);
    return ERR_OK;
}

enum err ft_file_hash(int dir, const char *path, char hex[FT_SHA256_HEX], uint64_t *bytes,
                      struct err_info *info) {
    return ft_file_hash_paced(dir, path, NULL, hex, bytes, info);
}

static enum err copy_open(int fd, struct durable *d, const char *name, struct err_info *info) {
    char *chunk = mem_alloc(CHUNK);
    enum err e = chunk ? ERR_OK : err_set(info, ERR_NOMEM, NULL, "out of memory");
    while (!e) {
        ssize_t n = read(fd, chunk, CHUNK);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            e = durable_errno(info, errno, "read", name);
        if (n <= 0)
            break;
        e = durable_write(d, chunk, (size_t)n, info);
    }
    mem_free(chunk);
    return e;
}

enum err ft_file_copy(int from, const char *path, int to, const char *name, struct err_info *info) {
    struct durable d;
    int fd;
    enum err e = ft_file_open_below(from, path, &fd, info);
    if (e)
        return e;
    e = durable_begin(&d, to, name, info);
    if (!e)
        e = copy_open(fd, &d, path, info);
    close(fd);
    if (!e)
        return durable_commit(&d, info);
    durable_abort(&d);
    return e;
}

enum err ft_file_text(int dir, const char *path, struct buf *out, struct err_info *info) {
    int fd;
    enum err e = ft_file_open_below(dir, path, &fd, info);
    if (e)
        return e;
    e = buf_read(out, fd);
    int why = errno;
    close(fd);
    if (e == ERR_IO)
        return durable_errno(info, why, "read", path);
    if (e == ERR_LIMIT)
        return err_set(info, ERR_FORMAT, NULL, "%s is larger than %zu bytes", path, out->max);
    return e ? err_set(info, e, NULL, "out of memory") : ERR_OK;
}

enum err ft_json_object(const char *text, size_t len, const char *name, json_t **out,
                        struct err_info *info) {
    static const struct json_doc_limits limits = {JSON_DEPTH, JSON_ELEMENTS, false};
    struct json_doc_error why;
    enum json_doc_fault fault = json_doc_parse(text, len, &limits, out, &why);
    if (fault == JSON_DOC_NOMEM)
        return err_set(info, ERR_NOMEM, NULL, "out of memory");
    if (fault || !json_is_object(*out)) {
        json_decref(*out);
        *out = NULL;
        return err_set(info, ERR_FORMAT, NULL, "%s is not a JSON object", name);
    }
    return ERR_OK;
}

enum err ft_file_json(int dir, const char *path, size_t most, json_t **out, struct err_info *info) {
    struct buf text;
    *out = NULL;
    buf_init(&text, most);
    enum err e = ft_file_text(dir, path, &text, info);
    if (!e)
        e = ft_json_object(text.data ? text.data : "", text.len, path, out, info);
    buf_fini(&text);
    return e;
}

// ---- names

void ft_names_fini(struct ft_names *n) {
    for (size_t i = 0; i < n->n; i++)
        mem_free(n->items[i]);
    mem_free(n->items);
    *n = (struct ft_names){0};
}

static enum err add_name(struct ft_names *n, const char *prefix, const char *name) {
    char path[FT_PATH_MAX];
    if (n->n >= FT_NAMES_MAX ||
        (size_t)snprintf(path, sizeof path, "%s%s", prefix, name) >= sizeof path)
        return ERR_LIMIT;
    if (n->n == n->cap) {
        size_t cap = n->cap ? 2 * n->cap : 32;
        char **grown = mem_realloc(n->items, cap * sizeof *grown);
        if (!grown)
            return ERR_NOMEM;
        n->items = grown;
        n->cap = cap;
    }
    n->items[n->n] = mem_strdup(path);
    return n->items[n->n] ? (n->n++, ERR_OK) : ERR_NOMEM;
}

static bool is_wanted(int dir, const char *name, bool folders) {
    struct stat st;
    if (name[0] == '.' || fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW))
        return false;
    return folders ? S_ISDIR(st.st_mode) : S_ISREG(st.st_mode);
}

static int by_text(const void *a, const void *b) {
    return strcmp(*(char *const *)a, *(char *const *)b);
}

enum err ft_names_read(int dir, const char *prefix, bool folders, struct ft_names *out,
                       struct err_info *info) {
    DIR *d = durable_list(dir, ".");
    if (!d)
        return durable_errno(info, errno, "read", "a folder");
    enum err e = ERR_OK;
    for (struct dirent *x; !e && (x = readdir(d));)
        if (is_wanted(dir, x->d_name, folders))
            e = add_name(out, prefix, x->d_name);
    closedir(d);
    if (e)
        return err_set(info, e, NULL, "the names in a folder: %s", err_text(e));
    if (out->n)
        qsort(out->items, out->n, sizeof *out->items, by_text);
    return ERR_OK;
}

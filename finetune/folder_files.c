// SPDX-License-Identifier: Apache-2.0
// Plain files below a folder: names that stay inside it, hashing, reading.
#include "base/durable.h"
#include "base/mem.h"
#include "finetune/manifest_internal.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { CHUNK = 1 << 18, DEPTH = 8 };

bool ft_path_ok(const char *path) {
    size_t n = strlen(path);
    int depth = 0;
    if (!n || n >= FT_MANIFEST_PATH)
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
    char part[FT_MANIFEST_PATH];
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

static enum err hash_open(int fd, struct sha256_ctx *sha, char *chunk, uint64_t *bytes) {
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
    }
}

enum err ft_file_hash(int dir, const char *path, char hex[FT_SHA256_HEX], uint64_t *bytes,
                      struct err_info *info) {
    int fd;
    *bytes = 0;
    enum err e = ft_file_open_below(dir, path, &fd, info);
    if (e)
        return e;
    uint8_t digest[SHA256_BYTES];
    char *chunk = mem_alloc(CHUNK);
    struct sha256_ctx *sha = sha256_begin();
    e = chunk && sha ? hash_open(fd, sha, chunk, bytes) : ERR_NOMEM;
    enum err ended = sha ? sha256_end(sha, digest) : ERR_NOMEM;
    e = e ? e : ended;
    close(fd);
    mem_free(chunk);
    if (e)
        return err_set(info, e, NULL, "%s: %s", path, err_text(e));
    hex_encode(digest, sizeof digest, hex);
    return ERR_OK;
}

enum err ft__file_text(int dir, const char *path, struct buf *out, struct err_info *info) {
    enum { PIECE = 1 << 14 };
    int fd;
    enum err e = ft_file_open_below(dir, path, &fd, info);
    if (e)
        return e;
    char *to;
    ssize_t n = 0;
    while ((to = buf_reserve(out, PIECE)) != NULL) {
        n = read(fd, to, PIECE);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            break;
        out->len += (size_t)n;
    }
    int why = errno;
    close(fd);
    if (n < 0)
        return durable_errno(info, why, "read", path);
    if (buf_err(out) == ERR_LIMIT)
        return err_set(info, ERR_FORMAT, NULL, "%s is larger than %zu bytes", path, out->max);
    return buf_err(out) ? err_set(info, buf_err(out), NULL, "out of memory") : ERR_OK;
}

enum err ft_file_json(int dir, const char *path, size_t most, json_t **out, struct err_info *info) {
    struct buf text;
    *out = NULL;
    buf_init(&text, most);
    enum err e = ft__file_text(dir, path, &text, info);
    if (!e)
        e = ft__json_parse(text.data ? text.data : "", text.len, path, out, info);
    buf_fini(&text);
    return e;
}

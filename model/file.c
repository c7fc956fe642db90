// SPDX-License-Identifier: Apache-2.0
#include "model/file.h"
#include "base/mem.h"
#include "model/shown.h"
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char *shown(const struct mdl_file *f, struct mdl_shown *s) {
    return mdl_shown(s, f->path, strlen(f->path));
}

static enum err fail(const struct mdl_file *f, enum err e, int error, const char *what,
                     struct err_info *info) {
    struct mdl_shown s;
    char text[80];
    return err_set(info, e, NULL, "%s: %s: %s", shown(f, &s), what,
                   strerror_r(error, text, sizeof text));
}

enum err mdl_file_open(int dirfd, const char *name, const char *path, struct mdl_file *out,
                       struct err_info *info) {
    struct mdl_shown s;
    struct mdl_file f = {.path = mem_strdup(path)};
    if (!f.path)
        return err_set(info, ERR_NOMEM, NULL, "out of memory");
    enum err e = ERR_OK;
    struct stat st = {0};
    // Without O_NONBLOCK, opening a FIFO would wait for a writer.
    f.fd = openat(dirfd, name, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (f.fd < 0)
        e = fail(&f, errno == ENOENT ? ERR_NOT_FOUND : ERR_IO, errno, "cannot open", info);
    else if (fstat(f.fd, &st) != 0)
        e = fail(&f, ERR_IO, errno, "cannot stat", info);
    else if (!S_ISREG(st.st_mode) || st.st_size < 0)
        e = err_set(info, ERR_FORMAT, NULL, "%s: not a regular file", shown(&f, &s));
    if (e) {
        mdl_file_close(&f);
        return e;
    }
    f.size = (uint64_t)st.st_size;
    f.dev = st.st_dev;
    f.ino = st.st_ino;
    f.mtime = st.st_mtim;
    f.ctime = st.st_ctim;
    *out = f;
    return ERR_OK;
}

void mdl_file_close(struct mdl_file *f) {
    if (f->fd >= 0)
        close(f->fd);
    mem_free(f->path);
    *f = (struct mdl_file){.fd = -1};
}

enum err mdl_file_read(const struct mdl_file *f, uint64_t offset, size_t n, void *dst,
                       struct err_info *info) {
    struct mdl_shown s;
    char *to = dst;
    bool again = false; // what the disk could not read once, it may read now
    if (offset > f->size || n > f->size - offset)
        return err_set(info, ERR_INTERNAL, NULL, "%s: read beyond the end", shown(f, &s));
    while (n) {
        ssize_t got = pread(f->fd, to, n, (off_t)offset);
        if (got < 0 && (errno == EINTR || (errno == EIO && !again))) {
            again = again || errno == EIO;
            continue;
        }
        if (got < 0)
            return fail(f, ERR_IO, errno, "cannot read", info);
        if (got == 0)
            return err_set(info, ERR_IO, NULL, "%s: the file has become shorter (byte %llu)",
                           shown(f, &s), (unsigned long long)offset);
        to += got;
        n -= (size_t)got;
        offset += (uint64_t)got;
    }
    return ERR_OK;
}

enum err mdl_file_read_all(const struct mdl_file *f, size_t max, char **text, size_t *len,
                           struct err_info *info) {
    struct mdl_shown s;
    if (f->size > max)
        return err_set(info, ERR_LIMIT, NULL, "%s: larger than %zu bytes", shown(f, &s), max);
    char *p = mem_alloc((size_t)f->size + 1);
    if (!p)
        return err_set(info, ERR_NOMEM, NULL, "out of memory for %s", shown(f, &s));
    enum err e = mdl_file_read(f, 0, (size_t)f->size, p, info);
    if (e) {
        mem_free(p);
        return e;
    }
    p[f->size] = '\0';
    *text = p;
    *len = (size_t)f->size;
    return ERR_OK;
}

static bool same_time(struct timespec a, struct timespec b) {
    return a.tv_sec == b.tv_sec && a.tv_nsec == b.tv_nsec;
}

enum err mdl_file_check_unchanged(const struct mdl_file *f, struct err_info *info) {
    struct mdl_shown s;
    struct stat st;
    if (fstat(f->fd, &st) != 0)
        return fail(f, ERR_IO, errno, "cannot stat", info);
    // The change time would also move when the file is renamed or linked, which is harmless.
    if ((uint64_t)st.st_size != f->size || !same_time(st.st_mtim, f->mtime))
        return err_set(info, ERR_IO, NULL, "%s: the file changed while it was read", shown(f, &s));
    return ERR_OK;
}

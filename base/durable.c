// SPDX-License-Identifier: Apache-2.0
#include "base/durable.h"
#include "base/diskio.h"
#include "base/hash.h"
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#define ASIDE ".aside-"
#define LOCK_NAME "lock"

enum err durable_errno(struct err_info *info, int err_no, const char *what, const char *name) {
    enum err e = ERR_IO;
    if (err_no == ENOSPC || err_no == EDQUOT)
        e = ERR_DISK_FULL;
    else if (err_no == ENOENT)
        e = ERR_NOT_FOUND;
    return err_set(info, e, NULL, "cannot %s %.200s: %s", what, name, strerror(err_no));
}

static bool name_ok(const char *name) {
    size_t n = strlen(name);
    return n > 0 && n <= DURABLE_NAME_MAX && name[0] != '.' && !strchr(name, '/');
}

static enum err begin(struct durable *d, int dir, const char *name, mode_t mode,
                      struct err_info *info) {
    *d = (struct durable){.dir = dir, .fd = -1};
    if (!name_ok(name))
        return err_set(info, ERR_INVALID, NULL, "'%.64s' is not a file name", name);
    uint8_t random[16];
    char hex[2 * sizeof random + 1];
    if (random_bytes(random, sizeof random))
        return err_set(info, ERR_IO, NULL, "no random numbers");
    hex_encode(random, sizeof random, hex);
    strcpy(d->name, name);
    snprintf(d->aside, sizeof d->aside, ASIDE "%s", hex);
    d->fd = diskio_create(dir, d->aside, mode);
    if (d->fd >= 0)
        return ERR_OK;
    d->aside[0] = '\0';
    return durable_errno(info, errno, "create", name);
}

enum err durable_begin(struct durable *d, int dir, const char *name, struct err_info *info) {
    return begin(d, dir, name, 0600, info);
}

enum err durable_begin_public(struct durable *d, int dir, const char *name, struct err_info *info) {
    return begin(d, dir, name, 0644, info);
}

enum err durable_write(struct durable *d, const void *p, size_t n, struct err_info *info) {
    const char *s = p;
    while (n) {
        ssize_t put = diskio_write(d->fd, s, n);
        if (put < 0 && errno == EINTR)
            continue;
        if (put <= 0)
            return durable_errno(info, put < 0 ? errno : EIO, "write", d->name);
        s += put;
        n -= (size_t)put;
        d->bytes += (uint64_t)put;
    }
    return ERR_OK;
}

void durable_flush(const struct durable *d) {
    (void)sync_file_range(d->fd, 0, 0, SYNC_FILE_RANGE_WRITE);
}

enum err durable_append(struct durable *d, int dir, const char *name, struct err_info *info) {
    *d = (struct durable){.dir = dir, .fd = -1};
    if (!name_ok(name))
        return err_set(info, ERR_INVALID, NULL, "'%.64s' is not a file name", name);
    strcpy(d->name, name);
    d->fd = diskio_append(dir, name);
    return d->fd < 0 ? durable_errno(info, errno, "open", name) : ERR_OK;
}

enum err durable_sync(struct durable *d, struct err_info *info) {
    return diskio_sync(d->fd) ? durable_errno(info, errno, "sync", d->name) : ERR_OK;
}

enum err durable_commit(struct durable *d, struct err_info *info) {
    enum err e = ERR_OK;
    if (diskio_sync(d->fd) != 0)
        e = durable_errno(info, errno, "sync", d->name);
    if (close(d->fd) != 0 && !e && errno != EINTR)
        e = durable_errno(info, errno, "close", d->name);
    d->fd = -1;
    if (!e && diskio_rename(d->dir, d->aside, d->name) != 0)
        e = durable_errno(info, errno, "rename", d->name);
    if (e)
        (void)diskio_unlink(d->dir, d->aside);
    d->aside[0] = '\0';
    return e ? e : durable_sync_dir(d->dir, info);
}

void durable_abort(struct durable *d) {
    if (d->fd >= 0)
        close(d->fd);
    d->fd = -1;
    if (d->aside[0])
        (void)diskio_unlink(d->dir, d->aside);
    d->aside[0] = '\0';
}

enum err durable_put(int dir, const char *name, const void *p, size_t n, struct err_info *info) {
    struct durable d;
    enum err e = durable_begin(&d, dir, name, info);
    if (!e)
        e = durable_write(&d, p, n, info);
    if (!e)
        return durable_commit(&d, info);
    durable_abort(&d);
    return e;
}

enum err durable_sync_dir(int dir, struct err_info *info) {
    return diskio_sync(dir) == 0 ? ERR_OK : durable_errno(info, errno, "sync", "a folder");
}

enum err durable_open(int dir, const char *path, int *fd, struct err_info *info) {
    struct stat st;
    // Without O_NONBLOCK, opening a FIFO would wait for a writer.
    *fd = openat(dir, path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY);
    if (*fd < 0) {
        int why = errno;
        if (why == ELOOP || why == ENXIO) // a link; a socket, or a device that is not there
            return err_set(info, ERR_FORMAT, NULL, "%.200s is not a file", path);
        return durable_errno(info, why, "open", path);
    }
    enum err e = ERR_OK;
    if (fstat(*fd, &st) != 0)
        e = durable_errno(info, errno, "look at", path);
    else if (!S_ISREG(st.st_mode))
        e = err_set(info, ERR_FORMAT, NULL, "%.200s is not a file", path);
    if (e) {
        close(*fd);
        *fd = -1;
    }
    return e;
}

enum err durable_remove(int dir, const char *name, struct err_info *info) {
    if (!name_ok(name))
        return err_set(info, ERR_INVALID, NULL, "'%.64s' is not a file name", name);
    if (diskio_unlink(dir, name) != 0)
        return durable_errno(info, errno, "remove", name);
    return durable_sync_dir(dir, info);
}

enum err durable_folder(int dir, const char *name, int *out, struct err_info *info) {
    *out = -1;
    if (!name_ok(name))
        return err_set(info, ERR_INVALID, NULL, "'%.64s' is not a folder name", name);
    if (diskio_mkdir(dir, name, 0700) != 0 && errno != EEXIST)
        return durable_errno(info, errno, "create", name);
    // Synced even where it was there: who made it may have died before its sync.
    enum err e = durable_sync_dir(dir, info);
    if (e)
        return e;
    *out = openat(dir, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    return *out < 0 ? durable_errno(info, errno, "open", name) : ERR_OK;
}

DIR *durable_list(int dir, const char *name) {
    int fd = openat(dir, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    DIR *list = fd < 0 ? NULL : fdopendir(fd);
    if (fd >= 0 && !list) {
        int why = errno;
        close(fd);
        errno = why;
    }
    return list;
}

enum err durable_clean(int dir, struct err_info *info) {
    DIR *list = durable_list(dir, ".");
    if (!list)
        return durable_errno(info, errno, "read", "a folder");
    enum err e = ERR_OK;
    struct dirent *entry;
    while (!e && (errno = 0, entry = readdir(list)) != NULL)
        if (!strncmp(entry->d_name, ASIDE, sizeof ASIDE - 1) && diskio_unlink(dir, entry->d_name))
            e = durable_errno(info, errno, "remove", entry->d_name);
    if (!e && errno)
        e = durable_errno(info, errno, "read", "a folder");
    closedir(list);
    return e;
}

// The folder's own name must last, too: whoever made it may have died before this.
static enum err sync_parent(int dir, bool made, const char *path, struct err_info *info) {
    int parent = openat(dir, "..", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (parent < 0)
        return made ? durable_errno(info, errno, "open the folder above", path) : ERR_OK;
    enum err e = durable_sync_dir(parent, info);
    close(parent);
    return made ? e : ERR_OK;
}

enum err durable_make(const char *path, mode_t mode, int *out, struct err_info *info) {
    *out = -1;
    bool made = diskio_mkdir(AT_FDCWD, path, mode) == 0;
    if (!made && errno != EEXIST)
        return durable_errno(info, errno, "create", path);
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return durable_errno(info, errno, "open", path);
    enum err e = sync_parent(fd, made, path, info);
    if (e)
        close(fd);
    else
        *out = fd;
    return e;
}

enum err durable_remove_folder(int dir, const char *name, const char *first,
                               struct err_info *info) {
    DIR *list = durable_list(dir, name);
    if (!list)
        return errno == ENOENT ? ERR_OK : durable_errno(info, errno, "open", name);
    if (first)
        (void)diskio_unlink(dirfd(list), first);
    for (struct dirent *entry; (entry = readdir(list));)
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
            (void)diskio_unlink(dirfd(list), entry->d_name);
    closedir(list);
    return diskio_rmdir(dir, name) ? durable_errno(info, errno, "remove", name) : ERR_OK;
}

static void uncache(int fd, struct pace *pace) {
    enum { PIECE = 1 << 20 };
    struct stat st;
    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode))
        return;
    for (off_t at = 0; at < st.st_size; at += PIECE) {
        (void)posix_fadvise(fd, at, PIECE, POSIX_FADV_DONTNEED);
        pace_point(pace);
    }
}

void durable_uncache_folder(int dir, const char *name, struct pace *pace) {
    DIR *list = durable_list(dir, name);
    for (struct dirent *entry; list && (entry = readdir(list));) {
        int file =
            openat(dirfd(list), entry->d_name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
        if (file < 0)
            continue;
        uncache(file, pace);
        close(file);
    }
    if (list)
        closedir(list);
}

// ---- the data-dir

static enum err taken(int fd, const char *path, struct err_info *info) {
    char owner[160];
    ssize_t n = pread(fd, owner, sizeof owner - 1, 0);
    owner[n > 0 ? n : 0] = '\0';
    for (char *s = owner; *s; s++) // a line of ours, unless somebody else wrote it
        if (*s < ' ' || *s > '~')
            *s = '\0';
    return err_set(info, ERR_INVALID, "data-dir", "the data folder %.200s is in use by %s", path,
                   owner[0] ? owner : "another process");
}

static enum err take_lock(const char *path, struct data_dir *d, struct err_info *info) {
    char text[HOST_NAME_MAX + 64], host[HOST_NAME_MAX + 1] = "";
    d->lock_fd = openat(d->fd, LOCK_NAME, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (d->lock_fd < 0)
        return durable_errno(info, errno, "open the lock of", path);
    if (flock(d->lock_fd, LOCK_EX | LOCK_NB) != 0)
        return errno == EWOULDBLOCK ? taken(d->lock_fd, path, info)
                                    : durable_errno(info, errno, "lock", path);
    (void)gethostname(host, sizeof host - 1);
    int n = snprintf(text, sizeof text, "process %ld on %s\n", (long)getpid(), host);
    // The lock is held, whether or not its text tells others by whom: a full disk does not matter.
    if (ftruncate(d->lock_fd, 0) != 0 || pwrite(d->lock_fd, text, (size_t)n, 0) != n)
        (void)ftruncate(d->lock_fd, 0);
    return ERR_OK;
}

enum err data_dir_open(const char *path, struct data_dir *out, struct err_info *info) {
    *out = (struct data_dir){-1, -1};
    enum err e = durable_make(path, 0700, &out->fd, info);
    if (!e)
        e = take_lock(path, out, info);
    if (!e)
        e = durable_clean(out->fd, info);
    if (e)
        data_dir_close(out);
    return e;
}

void data_dir_close(struct data_dir *d) {
    if (d->lock_fd >= 0)
        close(d->lock_fd);
    if (d->fd >= 0)
        close(d->fd);
    *d = (struct data_dir){-1, -1};
}

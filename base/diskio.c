// SPDX-License-Identifier: Apache-2.0
#include "base/diskio.h"
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

// As the counters of base/mem.c: process-wide, and unused outside of tests.
static _Atomic(const struct diskio_hook *) hook;

void diskio_set_hook(const struct diskio_hook *h) {
    atomic_store(&hook, h);
}

static bool refused(const struct diskio_hook *h, struct diskio_call *c) {
    int why = h && h->before ? h->before(h->arg, c) : 0;
    if (why)
        errno = why;
    return why != 0;
}

static void tell(const struct diskio_hook *h, const struct diskio_call *c, int64_t result) {
    int kept = errno;
    if (h && h->after && result >= 0)
        h->after(h->arg, c);
    errno = kept;
}

static const struct diskio_hook *hook_now(void) {
    return atomic_load_explicit(&hook, memory_order_acquire);
}

int diskio_create(int dir, const char *name, mode_t mode) {
    const struct diskio_hook *h = hook_now();
    struct diskio_call c = {.op = DISKIO_CREATE, .fd = dir, .name = name};
    if (refused(h, &c))
        return -1;
    int fd = openat(dir, name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);
    tell(h, &c, fd);
    return fd;
}

int diskio_append(int dir, const char *name) { // changes nothing by itself
    return openat(dir, name, O_WRONLY | O_APPEND | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
}

ssize_t diskio_write(int fd, const void *p, size_t n) {
    const struct diskio_hook *h = hook_now();
    struct diskio_call c = {.op = DISKIO_WRITE, .fd = fd, .p = p, .n = n};
    if (refused(h, &c))
        return -1;
    ssize_t put = write(fd, p, c.n);
    c.n = put > 0 ? (size_t)put : 0;
    tell(h, &c, put);
    return put;
}

int diskio_sync(int fd) {
    const struct diskio_hook *h = hook_now();
    struct diskio_call c = {.op = DISKIO_SYNC, .fd = fd};
    if (refused(h, &c))
        return -1;
    int rc = fsync(fd);
    tell(h, &c, rc);
    return rc;
}

int diskio_rename(int dir, const char *from, const char *to) {
    const struct diskio_hook *h = hook_now();
    struct diskio_call c = {.op = DISKIO_RENAME, .fd = dir, .name = from, .to = to};
    if (refused(h, &c))
        return -1;
    int rc = renameat(dir, from, dir, to);
    tell(h, &c, rc);
    return rc;
}

static int unlink_as(enum diskio_op op, int dir, const char *name, int flags) {
    const struct diskio_hook *h = hook_now();
    struct diskio_call c = {.op = op, .fd = dir, .name = name};
    if (refused(h, &c))
        return -1;
    int rc = unlinkat(dir, name, flags);
    tell(h, &c, rc);
    return rc;
}

int diskio_unlink(int dir, const char *name) {
    return unlink_as(DISKIO_UNLINK, dir, name, 0);
}

int diskio_rmdir(int dir, const char *name) {
    return unlink_as(DISKIO_RMDIR, dir, name, AT_REMOVEDIR);
}

int diskio_mkdir(int dir, const char *name, mode_t mode) {
    const struct diskio_hook *h = hook_now();
    struct diskio_call c = {.op = DISKIO_MKDIR, .fd = dir, .name = name};
    if (refused(h, &c))
        return -1;
    int rc = mkdirat(dir, name, mode);
    tell(h, &c, rc);
    return rc;
}

int diskio_commit(const char *path) {
    const struct diskio_hook *h = hook_now();
    struct diskio_call c = {.op = DISKIO_COMMIT, .fd = -1, .name = path};
    return refused(h, &c) ? -1 : 0;
}

void diskio_committed(const char *path) {
    const struct diskio_call c = {.op = DISKIO_COMMIT, .fd = -1, .name = path};
    tell(hook_now(), &c, 0);
}

uint64_t diskio_room(int fd) {
    const struct diskio_hook *h = hook_now();
    struct statvfs v;
    if (h && h->room)
        return h->room(h->arg);
    return fstatvfs(fd, &v) ? 0 : (uint64_t)v.f_bavail * v.f_frsize;
}

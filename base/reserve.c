// SPDX-License-Identifier: Apache-2.0
#include "base/reserve.h"
#include "base/diskio.h"
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

enum { MOST = 4 << 20, LEAST = 128 << 10, SHARE = 8 }; // an eighth of a small disk
static const char name[] = "reserve";

static uint64_t wanted(const struct statvfs *v) {
    uint64_t share = (uint64_t)v->f_blocks * v->f_frsize / SHARE;
    return !share || share > MOST ? MOST : share < LEAST ? LEAST : share;
}

void reserve_open(struct reserve *r, int dir) {
    struct stat st;
    struct statvfs v;
    r->dir = dir;
    lock_init(&r->lock);
    r->opened = true;
    bool there = !fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) && !fstatvfs(dir, &v);
    // One that was not made to its end, or for another disk, is made anew.
    bool whole = there && S_ISREG(st.st_mode) && (uint64_t)st.st_size == wanted(&v) &&
                 (uint64_t)st.st_blocks * 512 >= wanted(&v);
    if (there && !whole)
        (void)diskio_unlink(dir, name);
    atomic_store(&r->held, whole);
}

void reserve_close(struct reserve *r) {
    if (r->opened)
        lock_fini(&r->lock);
    r->opened = false;
}

static bool make(struct reserve *r) {
    struct statvfs v;
    if (fstatvfs(r->dir, &v) || (uint64_t)v.f_bavail * v.f_frsize < 2 * wanted(&v))
        return false;
    int fd = diskio_create(r->dir, name, 0600);
    if (fd < 0)
        return false;
    bool made = !posix_fallocate(fd, 0, (off_t)wanted(&v)) && !diskio_sync(fd);
    close(fd);
    if (!made)
        (void)diskio_unlink(r->dir, name);
    return made;
}

bool reserve_take(struct reserve *r) {
    if (atomic_load(&r->held))
        return true;
    lock_take(&r->lock);
    if (!atomic_load(&r->held) && make(r))
        atomic_store(&r->held, true);
    lock_drop(&r->lock);
    return atomic_load(&r->held);
}

bool reserve_give(struct reserve *r) {
    lock_take(&r->lock);
    bool given = atomic_load(&r->held) && !diskio_unlink(r->dir, name);
    if (given) {
        atomic_store(&r->held, false);
        atomic_store(&r->given, true);
    }
    lock_drop(&r->lock);
    return given;
}

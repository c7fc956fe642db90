// SPDX-License-Identifier: Apache-2.0
// The calls that change what stands on the disk. All that is to survive a power loss goes through
// here (base/durable.c builds on it), so that tests can record each call, make any of them fail,
// and replay what a crash may leave. Each is the system call that its comment names: -1 and errno.
// Any thread.
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

int diskio_create(int dir, const char *name, mode_t mode); // openat: a new file for writing
int diskio_append(int dir, const char *name);              // openat: writes go behind its end
ssize_t diskio_write(int fd, const void *p, size_t n);     // write
int diskio_sync(int fd);                                   // fsync, of a file or of a folder
int diskio_rename(int dir, const char *from, const char *to);
int diskio_unlink(int dir, const char *name);
int diskio_rmdir(int dir, const char *name);
int diskio_mkdir(int dir, const char *name, mode_t mode);
// A database is about to commit changes, and has done so. Its own files are its own matter.
int diskio_commit(const char *path);
void diskio_committed(const char *path);
uint64_t
diskio_room(int fd); // fstatvfs: bytes that its file system has free for us; 0 if it cannot say

enum diskio_op {
    DISKIO_CREATE,
    DISKIO_WRITE,
    DISKIO_SYNC,
    DISKIO_RENAME,
    DISKIO_UNLINK,
    DISKIO_RMDIR,
    DISKIO_MKDIR,
    DISKIO_COMMIT
};

struct diskio_call {
    enum diskio_op op;
    int fd;                // the folder, or the file of a write or sync; -1 for a commit
    const char *name, *to; // to: of a rename
    const void *p;         // n bytes of a write
    size_t n;
};

// Tests only. One hook for the process; it must stay valid until it is replaced, and calls in
// flight must have ended by then.
struct diskio_hook {
    // Before the call: 0, or the errno that it fails with. May lower n of a write (a short one).
    // May be NULL.
    int (*before)(void *arg, struct diskio_call *c);
    // After a call that succeeded. A write's n is what was written. May be NULL.
    void (*after)(void *arg, const struct diskio_call *c);
    // Instead of what the file system has free, which other processes change. May be NULL.
    uint64_t (*room)(void *arg);
    void *arg;
};
void diskio_set_hook(const struct diskio_hook *h); // NULL: none

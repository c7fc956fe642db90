// SPDX-License-Identifier: Apache-2.0
// A regular file that is read with pread and remembered by its identity, so that a change while it
// is in use is noticed. Reading is thread-safe; opening and closing are the owner's.
#pragma once
#include "base/err.h"
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <time.h>

struct mdl_file {
    char *path; // as shown to people; owned
    int fd;     // -1: not open
    uint64_t size;
    dev_t dev;
    ino_t ino;
    struct timespec mtime, ctime;
};

// Opens `name` relative to the folder dirfd (or AT_FDCWD); `path` is what errors call it. A missing
// file is ERR_NOT_FOUND; what is no regular file is ERR_FORMAT. On failure there is nothing to
// close.
enum err mdl_file_open(int dirfd, const char *name, const char *path, struct mdl_file *out,
                       struct err_info *info);
void mdl_file_close(struct mdl_file *f);
// Exactly n bytes from `offset`; ERR_IO if the file has become shorter.
enum err mdl_file_read(const struct mdl_file *f, uint64_t offset, size_t n, void *dst,
                       struct err_info *info);
// The whole file and a NUL; ERR_LIMIT above max bytes. *text is freed with mem_free.
enum err mdl_file_read_all(const struct mdl_file *f, size_t max, char **text, size_t *len,
                           struct err_info *info);
// ERR_IO if the open file's size or modification time is no longer what it was.
enum err mdl_file_check_unchanged(const struct mdl_file *f, struct err_info *info);

// SPDX-License-Identifier: Apache-2.0
// Files that survive a power loss, and the folder that holds them. A file is written aside, synced,
// renamed, and its folder is synced: whoever sees the name sees the whole file. Names are plain: no
// '/' and no leading '.'. Calls block on the disk. One thread at a time per object.
//
// Errors: ERR_DISK_FULL (no space, quota), ERR_NOT_FOUND, else ERR_IO. After a failed sync nothing
// is known about the file: it is dropped, never synced again.
#pragma once
#include "base/err.h"
#include "base/pace.h"
#include <dirent.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

enum { DURABLE_NAME_MAX = 200 };

// ERR_DISK_FULL or ERR_IO for errno, with "what name: reason".
enum err durable_errno(struct err_info *info, int err_no, const char *what, const char *name);

// A file that is being written. Begin, write ..., then commit or abort (both end it).
struct durable {
    int dir, fd; // dir is the caller's and stays open; fd -1: none
    uint64_t bytes;
    char name[DURABLE_NAME_MAX + 1], aside[48];
};
enum err durable_begin(struct durable *d, int dir, const char *name, struct err_info *info);
// The same for a file that others than its owner may read, as far as the umask allows.
enum err durable_begin_public(struct durable *d, int dir, const char *name, struct err_info *info);
enum err durable_write(struct durable *d, const void *p, size_t n, struct err_info *info);
// What was written begins to go to the disk, so that a later sync has less to do. Waits for
// nothing, promises nothing.
void durable_flush(const struct durable *d);
// A file that is there already grows behind its end. Nothing is known of what was written since the
// last durable_sync; durable_abort ends it, and leaves the file.
enum err durable_append(struct durable *d, int dir, const char *name, struct err_info *info);
enum err durable_sync(struct durable *d, struct err_info *info);
enum err durable_commit(struct durable *d, struct err_info *info); // replaces a file of that name
void durable_abort(struct durable *d);                             // also of one that has ended
// All of it at once.
enum err durable_put(int dir, const char *name, const void *p, size_t n, struct err_info *info);

// Opens a stored file for reading; `path` is relative to `dir` or absolute. A link is not followed,
// and what is no file (a FIFO, a device, a folder) is refused without waiting for it: ERR_FORMAT.
// ERR_NOT_FOUND: there is nothing of the name. *fd is the caller's, -1 after an error.
enum err durable_open(int dir, const char *path, int *fd, struct err_info *info);

enum err durable_remove(int dir, const char *name, struct err_info *info); // and syncs the folder
enum err durable_sync_dir(int dir, struct err_info *info);
// Opens a folder below `dir`, made if it is not there (and then `dir` is synced). *out is a file
// descriptor of the caller's.
enum err durable_folder(int dir, const char *name, int *out, struct err_info *info);
// The same for a path, whose folder above must be there: made with this mode if it is not.
enum err durable_make(const char *path, mode_t mode, int *out, struct err_info *info);
// Opens the folder `name` of `dir` ("." is `dir` itself) for reading its names; a link is not
// followed. NULL: errno says why.
DIR *durable_list(int dir, const char *name);
// Removes a folder of plain files, `first` (may be NULL) before the others: what is not whole any
// more shall not look so. A folder that is not there is no error. Syncs nothing: a crash may bring
// back what was removed.
enum err durable_remove_folder(int dir, const char *name, const char *first, struct err_info *info);
// Drops what the kernel caches of the folder's files, a MiB at a time, calling pace_point in
// between: then removing them takes no time to speak of. A hint; what it fails at is left.
void durable_uncache_folder(int dir, const char *name, struct pace *pace);
// Drops files that were begun and neither committed nor aborted by a process that died.
enum err durable_clean(int dir, struct err_info *info);

// The folder that one process owns, by a lock that ends with the process.
struct data_dir {
    int fd, lock_fd; // -1: not open
};
// Makes the folder (its parents must be there) with mode 0700. ERR_INVALID: another process has it;
// the message says which.
enum err data_dir_open(const char *path, struct data_dir *out, struct err_info *info);
void data_dir_close(struct data_dir *d); // also of zeros' {-1, -1}

// SPDX-License-Identifier: Apache-2.0
// Files by their path: read, written, copied, edited. Functions fail the running cmocka test where
// the system says no.
#pragma once
#include <stddef.h>
#include <stdint.h>

enum { DISK_PATH = 512 };

const char *disk_join(char out[DISK_PATH], const char *dir, const char *name);
// The whole file and a NUL; free with free.
char *disk_read(const char *path, size_t *len);
void disk_write(const char *path, const void *p, size_t n);
void disk_copy(const char *from, const char *to);
// Copies the files of one folder into another.
void disk_copy_folder(const char *from, const char *to);
// Names in a folder, as openat finds it.
size_t disk_entries(int dir, const char *folder);
// Replaces the first `from` in a file, which must be there. Both may hold any bytes but NUL.
void disk_edit(const char *path, const char *from, const char *to);

// A file in memory with a path that opens it, for files that are changed thousands of times.
struct disk_memory {
    int fd;
    char path[64];
};
void disk_memory_open(struct disk_memory *m, const void *p, size_t n);
void disk_memory_write(struct disk_memory *m, size_t at, const void *p, size_t n);
void disk_memory_cut(struct disk_memory *m, size_t n);
void disk_memory_close(struct disk_memory *m);

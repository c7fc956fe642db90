// SPDX-License-Identifier: Apache-2.0
#include "tests/support/disk.h"
#include "tests/support/cmocka_all.h"
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

const char *disk_join(char out[DISK_PATH], const char *dir, const char *name) {
    int n = snprintf(out, DISK_PATH, "%s/%s", dir, name);
    assert_in_range(n, 1, DISK_PATH - 1);
    return out;
}

// Calls fn for each file of a folder.
static void each_file(const char *dir, void (*fn)(const char *path, const char *name, void *arg),
                      void *arg) {
    DIR *d = opendir(dir);
    assert_non_null(d);
    for (struct dirent *e; (e = readdir(d)) != NULL;) {
        char path[DISK_PATH];
        if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0)
            fn(disk_join(path, dir, e->d_name), e->d_name, arg);
    }
    closedir(d);
}

char *disk_read(const char *path, size_t *len) {
    FILE *f = fopen(path, "rb");
    if (!f)
        fail_msg("%s cannot be opened", path);
    assert_int_equal(fseek(f, 0, SEEK_END), 0);
    long n = ftell(f);
    rewind(f);
    char *p = malloc((size_t)n + 1);
    assert_non_null(p);
    assert_int_equal(fread(p, 1, (size_t)n, f), n);
    fclose(f);
    p[n] = '\0';
    *len = (size_t)n;
    return p;
}

void disk_write(const char *path, const void *p, size_t n) {
    // Cut afterwards: some file systems flush a file that was emptied and written again.
    int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0)
        fail_msg("%s cannot be written", path);
    assert_int_equal(write(fd, p, n), n);
    assert_int_equal(ftruncate(fd, (off_t)n), 0);
    close(fd);
}

void disk_copy(const char *from, const char *to) {
    size_t n;
    char *p = disk_read(from, &n);
    disk_write(to, p, n);
    free(p);
}

static void copy_one(const char *path, const char *name, void *arg) {
    char to[DISK_PATH];
    disk_copy(path, disk_join(to, arg, name));
}

void disk_copy_folder(const char *from, const char *to) {
    char dir[DISK_PATH];
    snprintf(dir, sizeof dir, "%s", to);
    each_file(from, copy_one, dir);
}

size_t disk_entries(int dir, const char *folder) {
    int fd = openat(dir, folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *d = fdopendir(fd);
    size_t n = 0;
    assert_non_null(d);
    for (const struct dirent *e; (e = readdir(d)) != NULL;)
        n += strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0;
    closedir(d);
    return n;
}

void disk_edit(const char *path, const char *from, const char *to) {
    size_t n;
    char *p = disk_read(path, &n);
    char *at = memmem(p, n, from, strlen(from));
    if (!at)
        fail_msg("%s holds no %s", path, from);
    size_t head = (size_t)(at - p), tail = n - head - strlen(from);
    char *out = malloc(head + strlen(to) + tail + 1);
    assert_non_null(out);
    memcpy(out, p, head);
    memcpy(out + head, to, strlen(to));
    memcpy(out + head + strlen(to), at + strlen(from), tail);
    disk_write(path, out, head + strlen(to) + tail);
    free(out);
    free(p);
}

void disk_memory_open(struct disk_memory *m, const void *p, size_t n) {
    m->fd = memfd_create("model", MFD_CLOEXEC);
    assert_true(m->fd >= 0);
    snprintf(m->path, sizeof m->path, "/proc/self/fd/%d", m->fd);
    disk_memory_write(m, 0, p, n);
}

void disk_memory_write(struct disk_memory *m, size_t at, const void *p, size_t n) {
    assert_int_equal(pwrite(m->fd, p, n, (off_t)at), n);
}

void disk_memory_cut(struct disk_memory *m, size_t n) {
    assert_int_equal(ftruncate(m->fd, (off_t)n), 0);
}

void disk_memory_close(struct disk_memory *m) {
    close(m->fd);
}

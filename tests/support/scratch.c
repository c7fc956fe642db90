// SPDX-License-Identifier: Apache-2.0
#include "tests/support/scratch.h"
#include "base/mem.h"
#include "tests/support/cmocka_all.h"
#include "tests/support/temp_folder.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

int scratch_open(void **state) {
    struct scratch *s = mem_zalloc(sizeof *s);
    assert_non_null(s);
    temp_folder(s->path, "scratch");
    s->fd = open(s->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    assert_true(s->fd >= 0);
    *state = s;
    return 0;
}

int scratch_close(void **state) {
    struct scratch *s = *state;
    close(s->fd);
    temp_remove(s->path);
    mem_free(s);
    return 0;
}

char *scratch_path(const struct scratch *s, const char *name, char out[256]) {
    assert_true(snprintf(out, 256, "%s/%s", s->path, name) < 256);
    return out;
}

void scratch_folder(const struct scratch *s, const char *name) {
    char path[256];
    assert_true(!mkdir(scratch_path(s, name, path), 0700) || errno == EEXIST);
}

static void put(const struct scratch *s, const char *name, const char *mode, const void *p,
                size_t n) {
    char path[256];
    FILE *f = fopen(scratch_path(s, name, path), mode);
    assert_non_null(f);
    assert_int_equal(fwrite(p, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

void scratch_write(const struct scratch *s, const char *name, const void *p, size_t n) {
    put(s, name, "we", p, n);
}

void scratch_append(const struct scratch *s, const char *name, const char *text) {
    put(s, name, "ae", text, strlen(text));
}

void scratch_flip(const struct scratch *s, const char *name, long at) {
    char path[256];
    uint8_t byte;
    int fd = open(scratch_path(s, name, path), O_RDWR | O_CLOEXEC);
    assert_true(fd >= 0);
    assert_int_equal(pread(fd, &byte, 1, at), 1);
    byte ^= 1;
    assert_int_equal(pwrite(fd, &byte, 1, at), 1);
    close(fd);
}

long scratch_size(const struct scratch *s, const char *name) {
    char path[256];
    struct stat st;
    assert_int_equal(stat(scratch_path(s, name, path), &st), 0);
    return st.st_size;
}

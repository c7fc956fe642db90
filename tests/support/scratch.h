// SPDX-License-Identifier: Apache-2.0
// A folder of a test's own, with files that are written, damaged and removed. Failure fails the
// test.
#pragma once
#include "tests/support/temp_folder.h"
#include <stddef.h>

struct scratch {
    char path[TEMP_PATH];
    int fd;
};
int scratch_open(void **state); // cmocka's set-up: *state is a new struct scratch
int scratch_close(void **state);

char *scratch_path(const struct scratch *s, const char *name, char out[256]); // returns out
void scratch_folder(const struct scratch *s, const char *name);               // may be there
void scratch_write(const struct scratch *s, const char *name, const void *p, size_t n);
void scratch_append(const struct scratch *s, const char *name, const char *text);
void scratch_flip(const struct scratch *s, const char *name, long at); // the lowest bit of a byte
long scratch_size(const struct scratch *s, const char *name);

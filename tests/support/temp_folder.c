// SPDX-License-Identifier: Apache-2.0
#include "tests/support/temp_folder.h"
#include "tests/support/cmocka_all.h"
#include <dirent.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { FOLDERS = 64 };

// What atexit's function removes: it gets no argument, so these are the program's. Folders are made
// and removed by the thread that runs the tests.
static struct {
    char path[FOLDERS][TEMP_PATH]; // "": free
    pid_t owner;                   // a forked child removes nothing at its end
} made;

static void remove_made(void) {
    for (int i = 0; i < FOLDERS && made.owner == getpid(); i++)
        if (made.path[i][0])
            temp_remove(made.path[i]);
}

static bool make(char out[TEMP_PATH], const char *under, const char *name) {
    int n = snprintf(out, TEMP_PATH, "%s/graft-%s-XXXXXX", under, name);
    if (n >= TEMP_PATH)
        fail_msg("%s is too long a path for temporary folders", under);
    if (!mkdtemp(out))
        return false;
    if (!made.owner) {
        made.owner = getpid();
        assert_int_equal(atexit(remove_made), 0);
    }
    for (int i = 0; i < FOLDERS; i++)
        if (!made.path[i][0]) {
            memcpy(made.path[i], out, TEMP_PATH);
            return true;
        }
    temp_remove(out);
    fail_msg("more than %d temporary folders at once", FOLDERS);
    return false;
}

void temp_folder(char out[TEMP_PATH], const char *name) {
    const char *under = getenv("TMPDIR");
    if (!make(out, under && *under ? under : "/tmp", name))
        fail_msg("%s cannot be made", out);
}

void temp_folder_in_memory(char out[TEMP_PATH], const char *name) {
    if (!make(out, "/dev/shm", name))
        temp_folder(out, name);
}

void temp_remove(const char *path) {
    DIR *d = opendir(path);
    for (struct dirent *x; d && (x = readdir(d));) {
        char inner[1024];
        int n = snprintf(inner, sizeof inner, "%s/%s", path, x->d_name);
        if (strcmp(x->d_name, ".") != 0 && strcmp(x->d_name, "..") != 0 && n < (int)sizeof inner &&
            unlink(inner))
            temp_remove(inner);
    }
    if (d)
        closedir(d);
    (void)remove(path);
    for (int i = 0; i < FOLDERS; i++)
        if (!strcmp(made.path[i], path))
            made.path[i][0] = '\0';
}

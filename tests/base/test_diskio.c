// SPDX-License-Identifier: Apache-2.0
// The layer of system calls under durable files: its hook; durable files replayed after a power
// loss at every point; and proof that the replay finds writers that forget a sync.
#include "base/diskio.h"
#include "base/durable.h"
#include "tests/base/disk_replay.h"
#include "tests/support/assert_ok.h"
#include "tests/support/temp_folder.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char folder[TEMP_PATH];
static int dir;

static int setup(void **state) {
    (void)state;
    temp_folder_in_memory(folder, "diskio");
    dir = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    return dir < 0;
}

static int teardown(void **state) {
    (void)state;
    close(dir);
    temp_remove(folder);
    return 0;
}

// ---- a file that is written twice: mark 1 and 2 say that it was acknowledged

static const char *const versions[] = {NULL, "the first version", "and the second, longer one"};

static bool whole(void *arg, const char *path, int mark, char why[REPLAY_WHY]) {
    size_t n;
    (void)arg;
    char *found = replay_read(path, "state", &n);
    bool good = !mark && !found;
    for (int v = mark ? mark : 1; v <= 2 && found; v++)
        good = good || (n == strlen(versions[v]) && !memcmp(found, versions[v], n));
    if (!good)
        snprintf(why, REPLAY_WHY, "state is %s", found ? found : "missing");
    free(found);
    return good;
}

static void put_twice(struct replay *r, void (*put)(const char *text)) {
    for (int v = 1; v <= 2; v++) {
        put(versions[v]);
        replay_mark(r, v);
    }
    replay_end(r);
}

static void put_well(const char *text) {
    struct err_info info = {0};
    assert_ok(durable_put(dir, "state", text, strlen(text), &info), &info);
}

static void test_put(void **state) {
    (void)state;
    struct replay *r = replay_begin(folder);
    put_twice(r, put_well);
    struct replay_result x = replay_run(r, 64, whole, NULL);
    replay_free(r);
    assert_true(x.prefixes > 8 && x.states > 20);
    if (x.bad)
        fail_msg("%d of %d states: %s", x.bad, x.states, x.first);
}

// Writers that forget something; the replay must find each of them out.

enum { NO_FILE_SYNC = 1, NO_FOLDER_SYNC = 2, LATE_SYNC = 4, IN_PLACE = 8 };
static int forgets;

static void put_badly(const char *text) {
    const char *name = forgets & IN_PLACE ? "state" : "aside";
    size_t n = strlen(text);
    if (forgets & IN_PLACE)
        unlinkat(dir, "state", 0); // unseen: as if the file was cut to nothing
    int fd = diskio_create(dir, name, 0600);
    assert_true(fd >= 0);
    assert_int_equal(diskio_write(fd, text, n), n);
    if (!(forgets & (NO_FILE_SYNC | LATE_SYNC)))
        diskio_sync(fd);
    if (!(forgets & IN_PLACE))
        assert_int_equal(diskio_rename(dir, "aside", "state"), 0);
    if (forgets & LATE_SYNC)
        diskio_sync(fd);
    close(fd);
    if (!(forgets & NO_FOLDER_SYNC))
        diskio_sync(dir);
}

static void test_forgetful(void **state) {
    (void)state;
    static const int all[] = {0, NO_FILE_SYNC, NO_FOLDER_SYNC, LATE_SYNC, IN_PLACE};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        forgets = all[i];
        struct replay *r = replay_begin(folder);
        put_twice(r, put_badly);
        struct replay_result x = replay_run(r, 64, whole, NULL);
        replay_free(r);
        if (!x.bad != !forgets)
            fail_msg("kind %d: %d of %d states are bad: %s", forgets, x.bad, x.states, x.first);
        assert_int_equal(unlinkat(dir, "state", 0), 0);
    }
}

// ---- a file that grows: lines up to the last sync are there

static bool has_lines(void *arg, const char *path, int mark, char why[REPLAY_WHY]) {
    size_t n;
    (void)arg;
    char *found = replay_read(path, "lines", &n);
    static const char all[] = "head\none\ntwo\nthree\n";
    static const size_t at_least[] = {0, 5, 13, 19};
    bool good = found ? n >= at_least[mark] && !memcmp(found, all, at_least[mark]) : !mark;
    if (!good)
        snprintf(why, REPLAY_WHY, "lines are %s", found ? found : "missing");
    free(found);
    return good;
}

static void test_append(void **state) {
    (void)state;
    struct durable d;
    struct err_info info = {0};
    struct replay *r = replay_begin(folder);
    assert_ok(durable_put(dir, "lines", "head\n", 5, &info), &info);
    replay_mark(r, 1);
    assert_ok(durable_append(&d, dir, "lines", &info), &info);
    assert_ok(durable_write(&d, "one\n", 4, &info), &info);
    assert_ok(durable_write(&d, "two\n", 4, &info), &info);
    assert_ok(durable_sync(&d, &info), &info);
    replay_mark(r, 2);
    assert_ok(durable_write(&d, "three\n", 6, &info), &info);
    assert_ok(durable_sync(&d, &info), &info);
    replay_mark(r, 3);
    durable_abort(&d); // the file stays
    replay_end(r);
    struct replay_result x = replay_run(r, 64, has_lines, NULL);
    replay_free(r);
    if (x.bad)
        fail_msg("%d of %d states: %s", x.bad, x.states, x.first);
    assert_int_equal(faccessat(dir, "lines", F_OK, 0), 0);
    assert_int_equal(durable_append(&d, dir, "none", &info), ERR_NOT_FOUND);
    assert_int_equal(durable_append(&d, dir, "../up", &info), ERR_INVALID);
}

// ---- each call fails once

struct fault {
    int at, n, with;
    bool short_writes;
};

static int inject(void *arg, struct diskio_call *c) {
    struct fault *f = arg;
    if (f->short_writes && c->op == DISKIO_WRITE && c->n > 3)
        c->n = 3;
    return ++f->n == f->at ? f->with : 0;
}

static void test_faults(void **state) {
    (void)state;
    static const int errors[] = {EIO, ENOSPC, EDQUOT};
    struct err_info info = {0};
    size_t n;
    for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
        for (int at = 1;; at++) {
            put_well(versions[1]);
            struct fault f = {.at = at, .with = errors[i]};
            const struct diskio_hook hook = {.before = inject, .arg = &f};
            diskio_set_hook(&hook);
            enum err e = durable_put(dir, "state", versions[2], strlen(versions[2]), &info);
            diskio_set_hook(NULL);
            char *found = replay_read(folder, "state", &n);
            if (!e) {
                assert_string_equal(found, versions[2]);
                free(found);
                assert_int_equal(f.n, 5); // create, write, sync, rename, sync
                break;
            }
            assert_int_equal(e, errors[i] == EIO ? ERR_IO : ERR_DISK_FULL);
            assert_non_null(strstr(info.message, at == 5 ? "folder" : "state"));
            assert_string_equal(found, at == 5 ? versions[2] : versions[1]);
            free(found);
        }
    // Nothing is left beside it.
    assert_ok(durable_remove(dir, "state", &info), &info);
    assert_int_equal(unlinkat(AT_FDCWD, folder, AT_REMOVEDIR), 0);
    assert_int_equal(mkdir(folder, 0700), 0);
}

static void test_short_writes(void **state) {
    (void)state;
    struct fault f = {.short_writes = true};
    const struct diskio_hook hook = {.before = inject, .arg = &f};
    size_t n;
    diskio_set_hook(&hook);
    put_well(versions[2]);
    diskio_set_hook(NULL);
    char *found = replay_read(folder, "state", &n);
    assert_string_equal(found, versions[2]);
    free(found);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_put, setup, teardown),
        cmocka_unit_test_setup_teardown(test_forgetful, setup, teardown),
        cmocka_unit_test_setup_teardown(test_append, setup, teardown),
        cmocka_unit_test_setup_teardown(test_faults, setup, teardown),
        cmocka_unit_test_setup_teardown(test_short_writes, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

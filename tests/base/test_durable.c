// SPDX-License-Identifier: Apache-2.0
// Files written aside, and the folder that one process owns.
#include "base/durable.h"
#include "tests/support/assert_ok.h"
#include "tests/support/disk.h"
#include "tests/support/temp_folder.h"
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static char folder[TEMP_PATH];
static int dir;

static int setup(void **state) {
    (void)state;
    temp_folder(folder, "durable");
    dir = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    return dir < 0;
}

static int teardown(void **state) {
    (void)state;
    close(dir);
    temp_remove(folder);
    return 0;
}

static void assert_content(const char *name, const char *want) {
    char got[64];
    int fd = openat(dir, name, O_RDONLY | O_CLOEXEC);
    assert_true(fd >= 0);
    ssize_t n = read(fd, got, sizeof got);
    close(fd);
    assert_int_equal(n, strlen(want));
    assert_memory_equal(got, want, strlen(want));
}

static void test_write(void **state) {
    (void)state;
    struct durable d;
    struct err_info info = {0};
    assert_ok(durable_begin(&d, dir, "one", &info), &info);
    assert_ok(durable_write(&d, "hello ", 6, &info), &info);
    assert_int_equal(faccessat(dir, "one", F_OK, 0), -1); // not before it is whole
    assert_ok(durable_write(&d, "world", 5, &info), &info);
    assert_ok(durable_write(&d, NULL, 0, &info), &info);
    assert_int_equal(d.bytes, 11);
    assert_ok(durable_commit(&d, &info), &info);
    durable_abort(&d); // does nothing any more
    assert_content("one", "hello world");
    assert_ok(durable_put(dir, "one", "again", 5, &info), &info); // replaces it
    assert_content("one", "again");
    assert_int_equal(disk_entries(dir, "."), 1);
    assert_ok(durable_remove(dir, "one", &info), &info);
    assert_int_equal(durable_remove(dir, "one", &info), ERR_NOT_FOUND);
    assert_non_null(strstr(info.message, "one"));
    assert_int_equal(disk_entries(dir, "."), 0);
}

static void test_abort_and_clean(void **state) {
    (void)state;
    struct durable a, b;
    struct err_info info = {0};
    assert_ok(durable_put(dir, "kept", "x", 1, &info), &info);
    assert_ok(durable_begin(&a, dir, "kept", &info), &info);
    assert_ok(durable_write(&a, "yy", 2, &info), &info);
    assert_ok(durable_begin(&b, dir, "kept", &info), &info); // two at once do not meet
    assert_int_equal(disk_entries(dir, "."), 3);
    durable_abort(&a);
    assert_int_equal(disk_entries(dir, "."), 2);
    close(b.fd); // as if the process had died here
    assert_ok(durable_clean(dir, &info), &info);
    assert_int_equal(disk_entries(dir, "."), 1);
    assert_content("kept", "x");
    assert_int_equal(durable_clean(-1, &info), ERR_IO);
}

static void test_names(void **state) {
    (void)state;
    static const char *const bad[] = {"", ".", "..", ".hidden", "a/b", "/etc/passwd", "../up"};
    struct durable d;
    struct err_info info = {0};
    int fd;
    char longer[DURABLE_NAME_MAX + 2];
    memset(longer, 'n', sizeof longer - 1);
    longer[sizeof longer - 1] = '\0';
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(durable_begin(&d, dir, bad[i], &info), ERR_INVALID);
        durable_abort(&d);
        assert_int_equal(durable_remove(dir, bad[i], &info), ERR_INVALID);
        assert_int_equal(durable_folder(dir, bad[i], &fd, &info), ERR_INVALID);
    }
    assert_int_equal(durable_begin(&d, dir, longer, &info), ERR_INVALID);
    assert_int_equal(disk_entries(dir, "."), 0);
}

static void test_folder(void **state) {
    (void)state;
    struct err_info info = {0};
    int fd;
    for (int i = 0; i < 2; i++) {
        assert_ok(durable_folder(dir, "files", &fd, &info), &info);
        assert_ok(durable_put(fd, "f", "1", 1, &info), &info);
        assert_int_equal(disk_entries(fd, "."), 1);
        close(fd);
    }
    // A link in its place is not followed.
    assert_int_equal(symlinkat("/tmp", dir, "jobs"), 0);
    assert_int_equal(durable_folder(dir, "jobs", &fd, &info), ERR_IO);
}

// A stored file is opened; anything else in its place is refused, and nothing waits for it.
static void test_open(void **state) {
    (void)state;
    struct err_info info = {0};
    int fd;
    char c;
    assert_ok(durable_put(dir, "f", "1", 1, &info), &info);
    assert_ok(durable_open(dir, "f", &fd, &info), &info);
    assert_int_equal(read(fd, &c, 1), 1);
    close(fd);
    assert_int_equal(durable_open(dir, "none", &fd, &info), ERR_NOT_FOUND);
    assert_int_equal(fd, -1);
    assert_int_equal(mkfifoat(dir, "fifo", 0600), 0);
    assert_int_equal(mkdirat(dir, "folder", 0700), 0);
    assert_int_equal(symlinkat("f", dir, "link"), 0);
    static const char *const others[] = {"fifo", "folder", "link", "/dev/null"};
    for (int i = 0; i < 4; i++) {
        assert_int_equal(durable_open(dir, others[i], &fd, &info), ERR_FORMAT);
        assert_int_equal(fd, -1);
        assert_non_null(strstr(info.message, others[i]));
        assert_non_null(strstr(info.message, "is not a file"));
    }
}

static void test_errors(void **state) {
    (void)state;
    struct err_info info = {0};
    assert_int_equal(durable_errno(&info, ENOSPC, "write", "f"), ERR_DISK_FULL);
    assert_string_equal(info.message, "cannot write f: No space left on device");
    assert_int_equal(durable_errno(&info, EDQUOT, "write", "f"), ERR_DISK_FULL);
    assert_int_equal(durable_errno(&info, ENOENT, "open", "f"), ERR_NOT_FOUND);
    assert_int_equal(durable_errno(&info, EIO, "sync", "f"), ERR_IO);
    // A file that may not grow: the error comes through, and nothing is left.
    struct rlimit before;
    struct durable d;
    getrlimit(RLIMIT_FSIZE, &before);
    signal(SIGXFSZ, SIG_IGN);
    setrlimit(RLIMIT_FSIZE, &(struct rlimit){4, before.rlim_max});
    enum err e = durable_put(dir, "big", "123456789", 9, &info);
    setrlimit(RLIMIT_FSIZE, &before);
    assert_int_equal(e, ERR_IO);
    assert_int_equal(disk_entries(dir, "."), 0);
    // A descriptor that cannot be synced.
    int pipefd[2];
    assert_int_equal(pipe(pipefd), 0);
    d = (struct durable){.dir = dir, .fd = pipefd[1], .name = "p", .aside = ".aside-p"};
    assert_int_equal(durable_commit(&d, &info), ERR_IO);
    close(pipefd[0]);
    assert_int_equal(disk_entries(dir, "."), 0);
}

static void test_data_dir(void **state) {
    (void)state;
    struct err_info info = {0};
    struct data_dir d, second;
    char path[96], who[64];
    struct stat st;
    snprintf(path, sizeof path, "%s/data", folder);
    assert_ok(data_dir_open(path, &d, &info), &info);
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0700);
    struct durable left;
    assert_ok(durable_begin(&left, d.fd, "left", &info), &info);
    close(left.fd);
    assert_int_equal(data_dir_open(path, &second, &info), ERR_INVALID);
    snprintf(who, sizeof who, "process %ld on ", (long)getpid());
    assert_non_null(strstr(info.message, who));
    assert_non_null(strstr(info.message, path));
    assert_string_equal(info.param, "data-dir");
    data_dir_close(&second); // harmless
    data_dir_close(&d);
    assert_ok(data_dir_open(path, &d, &info), &info); // and then it is free
    assert_int_equal(disk_entries(d.fd, "."), 1);     // the lock; the rest of before was cleaned
    data_dir_close(&d);
    snprintf(path, sizeof path, "%s/not/there", folder);
    assert_int_equal(data_dir_open(path, &d, &info), ERR_NOT_FOUND);
    assert_non_null(strstr(info.message, "not/there"));
    assert_ok(durable_put(dir, "file", "", 0, &info), &info);
    snprintf(path, sizeof path, "%s/file", folder);
    assert_int_equal(data_dir_open(path, &d, &info), ERR_IO);
}

// The lock ends with its process, however that ends.
static void test_lock_of_a_dead_process(void **state) {
    (void)state;
    struct err_info info = {0};
    struct data_dir d;
    int pipefd[2];
    char c;
    assert_int_equal(pipe(pipefd), 0);
    pid_t child = fork();
    if (child == 0) {
        enum err e = data_dir_open(folder, &d, &info);
        (void)!write(pipefd[1], e ? "n" : "y", 1);
        pause();
        _exit(0);
    }
    assert_int_equal(read(pipefd[0], &c, 1), 1);
    assert_int_equal(c, 'y');
    assert_int_equal(data_dir_open(folder, &d, &info), ERR_INVALID);
    kill(child, SIGKILL);
    assert_int_equal(waitpid(child, NULL, 0), child);
    assert_ok(data_dir_open(folder, &d, &info), &info);
    data_dir_close(&d);
    close(pipefd[0]);
    close(pipefd[1]);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_write, setup, teardown),
        cmocka_unit_test_setup_teardown(test_abort_and_clean, setup, teardown),
        cmocka_unit_test_setup_teardown(test_names, setup, teardown),
        cmocka_unit_test_setup_teardown(test_folder, setup, teardown),
        cmocka_unit_test_setup_teardown(test_open, setup, teardown),
        cmocka_unit_test_setup_teardown(test_errors, setup, teardown),
        cmocka_unit_test_setup_teardown(test_data_dir, setup, teardown),
        cmocka_unit_test_setup_teardown(test_lock_of_a_dead_process, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

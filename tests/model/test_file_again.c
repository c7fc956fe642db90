// SPDX-License-Identifier: Apache-2.0
// A read that the disk fails once is made again; one that it fails twice is an error.
#include "model/file.h"
#include "tests/support/assert_ok.h"
#include "tests/support/cmocka_all.h"
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static int failures, with;

// Instead of the C library's.
ssize_t pread(int fd, void *to, size_t n, off_t at) {
    if (failures > 0) {
        failures--;
        errno = with;
        return -1;
    }
    return syscall(SYS_pread64, fd, to, n, at);
}

static void test_again(void **state) {
    static const struct {
        int failures, with;
        enum err result;
    } cases[] = {
        {0, 0, ERR_OK}, {1, EIO, ERR_OK}, {2, EIO, ERR_IO}, {1, EBADF, ERR_IO}, {5, EINTR, ERR_OK},
    };
    static const char path[] = "tests/golden/models/f32.gguf";
    struct mdl_file f;
    struct err_info info = {0};
    char magic[4];
    (void)state;
    assert_ok(mdl_file_open(AT_FDCWD, path, "shown", &f, &info), &info);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        failures = cases[i].failures;
        with = cases[i].with;
        memset(magic, 0, sizeof magic);
        assert_int_equal(mdl_file_read(&f, 0, sizeof magic, magic, &info), cases[i].result);
        if (cases[i].result)
            assert_non_null(strstr(info.message, "shown: cannot read: "));
        else
            assert_memory_equal(magic, "GGUF", 4);
        assert_int_equal(failures, 0);
    }
    mdl_file_close(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_again)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

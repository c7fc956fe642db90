// SPDX-License-Identifier: Apache-2.0
#include "base/log.h"
#include "tests/support/cmocka_all.h"
#include <jansson.h>
#include <string.h>
#include <unistd.h>

static size_t read_pipe(int fd, char *to, size_t cap) {
    ssize_t n = read(fd, to, cap - 1);
    to[n > 0 ? n : 0] = '\0';
    return n > 0 ? (size_t)n : 0;
}

static void test_lines(void **state) {
    (void)state;
    int fds[2];
    char line[4096];
    struct log l;
    struct clock_manual m;
    assert_int_equal(pipe(fds), 0);
    clock_manual_init(&m, 0, 1700000000LL * 1000000000 + 42000000);
    log_init(&l, fds[1], LOG_INFO, false, &m.clock);
    log_write(&l, LOG_DEBUG, "not shown");
    log_write(&l, LOG_WARN, "two\nlines %d", 1);
    assert_true(read_pipe(fds[0], line, sizeof line) > 0);
    assert_string_equal(line, "2023-11-14T22:13:20.042Z warn  two lines 1\n");
    l.json = true;
    log_write(&l, LOG_ERROR, "a \"quoted\" \x01 thing");
    assert_true(read_pipe(fds[0], line, sizeof line) > 0);
    json_t *o = json_loads(line, 0, NULL);
    assert_string_equal(json_string_value(json_object_get(o, "level")), "error");
    assert_string_equal(json_string_value(json_object_get(o, "message")),
                        "a \"quoted\" \x01 thing");
    json_decref(o);
    log_write(NULL, LOG_ERROR, "nobody listens");
    close(fds[0]);
    close(fds[1]);
}

static void test_level_names(void **state) {
    (void)state;
    enum log_level level;
    assert_true(log_level_parse("error", &level));
    assert_int_equal(level, LOG_ERROR);
    assert_false(log_level_parse("loud", &level));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lines),
        cmocka_unit_test(test_level_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

// SPDX-License-Identifier: Apache-2.0
// metrics.csv over a power loss: a run that goes on from a checkpoint has a whole line for each
// step before it, once, in order, whatever the disk kept of the lines behind it.
#include "base/diskio.h"
#include "gateway/train_report.h"
#include "tests/base/disk_replay.h"
#include "tests/support/assert_ok.h"
#include "tests/support/temp_folder.h"
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { SAVE_EVERY = 3, STEPS = 8 };

static enum err step(struct train_report *r, int64_t n, struct err_info *info) {
    struct ft_state s;
    ft_state_init(&s);
    s.step = n;
    s.train_loss = 1.0 / (double)n;
    s.trained_tokens = 10 * n;
    s.valid_loss = 2.0 / (double)n;
    s.valid_accuracy = 0.5;
    const struct ft_progress p = {.state = &s, .steps = STEPS, .evaluated = n % 2 == 0, .lr = 0.01};
    return train_report_step(r, &p, info);
}

static enum err open_report(struct train_report *r, const char *folder, int64_t from,
                            struct err_info *info) {
    enum err e = train_report_open(r, folder, from, &clock_system, info);
    r->quiet = true;
    return e;
}

// A resumed run opens it at its checkpoint's step and goes on to `last`.
static void assert_lines(const char *folder, int64_t last, char why[REPLAY_WHY]) {
    size_t n;
    char *csv = replay_read(folder, "metrics.csv", &n), *save, *line;
    int64_t expected = 0;
    if (!csv) {
        snprintf(why, REPLAY_WHY, "metrics.csv is missing");
        return;
    }
    for (line = strtok_r(csv, "\n", &save); line; line = strtok_r(NULL, "\n", &save), expected++) {
        char want[64];
        snprintf(want, sizeof want, "%lld,%.9g,", (long long)expected,
                 1.0 / (double)(expected ? expected : 1));
        if (strncmp(line, expected ? want : "step,", expected ? strlen(want) : 5) != 0)
            snprintf(why, REPLAY_WHY, "line %d is '%.100s'", (int)expected, line);
    }
    if (expected != last + 1 && !why[0])
        snprintf(why, REPLAY_WHY, "%d lines, not %d", (int)expected, (int)last + 1);
    free(csv);
}

static bool goes_on(void *arg, const char *path, int mark, char why[REPLAY_WHY]) {
    struct train_report r;
    struct err_info info = {0};
    (void)arg;
    enum err e = open_report(&r, path, mark, &info);
    if (!e && r.n != (size_t)mark)
        snprintf(why, REPLAY_WHY, "%zu points of %d steps", r.n, mark);
    for (int64_t n = mark + 1; n <= STEPS && !e; n++)
        e = step(&r, n, &info);
    train_report_close(&r);
    if (e)
        snprintf(why, REPLAY_WHY, "%.400s", info.message);
    else if (!why[0])
        assert_lines(path, STEPS, why);
    return !why[0];
}

static void test_power_loss(void **state) {
    struct train_report r;
    struct err_info info = {0};
    char folder[TEMP_PATH], why[REPLAY_WHY] = "";
    (void)state;
    temp_folder_in_memory(folder, "report");
    struct replay *rec = replay_begin(folder);
    assert_ok(open_report(&r, folder, 0, &info), &info);
    for (int64_t n = 1; n <= STEPS; n++) {
        assert_ok(step(&r, n, &info), &info);
        if (n % SAVE_EVERY)
            continue;
        assert_ok(train_report_sync(&r, &info), &info);
        replay_mark(rec, (int)n); // a checkpoint may be written from here on
    }
    train_report_close(&r);
    replay_end(rec);
    assert_lines(folder, STEPS, why);
    assert_string_equal(why, "");
    struct replay_result x = replay_run(rec, 64, goes_on, NULL);
    replay_free(rec);
    temp_remove(folder);
    if (x.bad)
        fail_msg("%d of %d states: %s", x.bad, x.states, x.first);
}

static int full(void *arg, struct diskio_call *c) {
    (void)arg;
    return c->op == DISKIO_WRITE ? ENOSPC : 0;
}

static void test_disk_full(void **state) {
    static const struct diskio_hook hook = {.before = full};
    struct train_report r;
    struct err_info info = {0};
    char folder[TEMP_PATH];
    (void)state;
    temp_folder_in_memory(folder, "report");
    assert_ok(open_report(&r, folder, 0, &info), &info);
    diskio_set_hook(&hook);
    assert_int_equal(step(&r, 1, &info), ERR_DISK_FULL);
    assert_non_null(strstr(info.message, "metrics.csv"));
    diskio_set_hook(NULL);
    train_report_close(&r);
    train_report_close(&r); // of zeros
    assert_int_equal(train_report_open(&r, "/nonexistent", 0, &clock_system, &info), ERR_NOT_FOUND);
    train_report_close(&r);
    temp_remove(folder);
}

// Something else in the file's place is refused, and nothing waits for it.
static void test_no_file(void **state) {
    char folder[TEMP_PATH], path[TEMP_PATH + 16];
    struct train_report r;
    struct err_info info = {0};
    (void)state;
    temp_folder(folder, "report");
    snprintf(path, sizeof path, "%s/metrics.csv", folder);
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_int_equal(open_report(&r, folder, SAVE_EVERY, &info), ERR_FORMAT);
    assert_string_equal(info.message, "metrics.csv is not a file");
    train_report_close(&r);
    temp_remove(folder);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_power_loss),
        cmocka_unit_test(test_disk_full),
        cmocka_unit_test(test_no_file),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

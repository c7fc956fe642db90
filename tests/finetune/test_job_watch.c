// SPDX-License-Identifier: Apache-2.0
// What operators see of jobs: log lines and metrics, also after a restart.
#include "base/mem.h"
#include "tests/finetune/jobs_world.h"
#include "tests/support/cmocka_all.h"
#include "tests/support/wait.h"
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct watched {
    struct world w; // first: jw_ calls get it
    struct metrics *metrics;
    struct log log;
};

static void open_watched(struct watched *t) {
    struct err_info info = {0};
    t->metrics = metrics_create();
    assert_non_null(t->metrics);
    const struct ft_home_config cfg = {.path = t->w.folder,
                                       .clock = &t->w.clock.clock,
                                       .log = &t->log,
                                       .metrics = t->metrics,
                                       .max_file_bytes = 1 << 20};
    assert_ok(ft_home_open(&t->w.home, &cfg, &info), &info);
}

static void close_watched(struct watched *t) {
    ft_control_stop(t->w.control);
    t->w.control = NULL;
    ft_home_close(&t->w.home);
    metrics_destroy(t->metrics);
}

static int setup(void **state) {
    struct watched *t = calloc(1, sizeof *t);
    assert_non_null(t);
    temp_folder(t->w.folder, "watch");
    clock_manual_init(&t->w.clock, 1, 1700000000LL * 1000000000);
    pthread_mutex_init(&t->w.mutex, NULL);
    t->w.obey = true;
    char path[TEMP_PATH + 16];
    snprintf(path, sizeof path, "%s.log", t->w.folder);
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    assert_int_equal(unlink(path), 0);
    log_init(&t->log, fd, LOG_INFO, false, &t->w.clock.clock);
    open_watched(t);
    jw_upload(&t->w, t->w.file);
    *state = t;
    return 0;
}

static int teardown(void **state) {
    struct watched *t = *state;
    close_watched(t);
    close(t->log.fd);
    temp_remove(t->w.folder);
    pthread_mutex_destroy(&t->w.mutex);
    free(t);
    assert_int_equal(mem_live_blocks(), 0);
    return 0;
}

static bool has_log(struct watched *t, const char *text) {
    static char all[64 << 10];
    ssize_t n = pread(t->log.fd, all, sizeof all - 1, 0);
    all[n > 0 ? n : 0] = '\0';
    return strstr(all, text) != NULL;
}

static bool has_metric(struct watched *t, const char *line) {
    struct buf b;
    buf_init(&b, 0);
    metrics_expose(t->metrics, &b);
    bool has = !buf_err(&b) && strstr(b.data, line);
    buf_fini(&b);
    return has;
}

// A change is told of after it is kept, perhaps a moment after a reader of the database sees it.
static void wait_log(struct watched *t, const char *id, const char *rest) {
    char line[512];
    snprintf(line, sizeof line, "%s: %s\n", id, rest);
    for (struct wait wait = {0}; wait_more(&wait);)
        if (has_log(t, line))
            return;
    fail_msg("the log lacks: %s", line);
}

static void wait_metric(struct watched *t, const char *line) {
    for (struct wait wait = {0}; wait_more(&wait);)
        if (has_metric(t, line))
            return;
    fail_msg("the metrics lack: %s", line);
}

static void test_a_jobs_life(void **state) {
    struct watched *t = *state;
    char id[FT_ID_MAX];
    wait_metric(t, "graft_jobs_finished_total{outcome=\"succeeded\"} 0\n");
    jw_create(&t->w, "", id);
    wait_log(t, id, "created");
    wait_metric(t, "graft_jobs{state=\"validating_files\"} 1\n");
    wait_metric(t, "graft_jobs_waiting 1\n");
    jw_start_control(&t->w);
    jw_wait_running(&t->w, id);
    wait_log(t, id, "validating_files -> queued: Files validated, moving job to queued state");
    wait_log(t, id, "queued -> running: Fine-tuning job started");
    wait_metric(t, "graft_jobs{state=\"validating_files\"} 0\n");
    wait_metric(t, "graft_jobs{state=\"queued\"} 0\n");
    wait_metric(t, "graft_jobs{state=\"running\"} 1\n");
    wait_metric(t, "graft_jobs_waiting 0\n");
    jw_succeed(&t->w);
    wait_log(t, id,
             "running -> succeeded: The job has successfully completed, model ft:tiny:graft::x");
    wait_metric(t, "graft_jobs{state=\"succeeded\"} 1\n");
    wait_metric(t, "graft_jobs_finished_total{outcome=\"succeeded\"} 1\n");
}

static void test_cancelled_and_preempted(void **state) {
    struct watched *t = *state;
    struct err_info info = {0};
    char slow[FT_ID_MAX], urgent[FT_ID_MAX], line[256];
    jw_create(&t->w, "", slow);
    jw_start_control(&t->w);
    jw_wait_running(&t->w, slow);
    jw_create(&t->w, "\"graft\": {\"priority\": -5}", urgent);
    ft_control_wake(t->w.control);
    jw_wait_running(&t->w, urgent);
    snprintf(line, sizeof line,
             "running -> queued: Fine-tuning job goes back to the queue: preempted by %s, which is "
             "more urgent",
             urgent);
    wait_log(t, slow, line);
    assert_ok(jw_act(&t->w, slow, FT_JOB_CANCEL, &info), &info);
    wait_log(t, slow, "queued -> cancelled: Fine-tuning job cancelled");
    wait_metric(t, "graft_jobs_finished_total{outcome=\"cancelled\"} 1\n");
    assert_int_equal(jw_act(&t->w, slow, FT_JOB_CANCEL, &info), ERR_INVALID);
    assert_true(has_metric(t, "graft_jobs_finished_total{outcome=\"cancelled\"} 1\n"));
    assert_true(has_metric(t, "graft_jobs{state=\"cancelled\"} 1\n"));
}

static void fail_run(struct watched *t, char id[FT_ID_MAX], const char *code, const char *message,
                     const char *param) {
    struct ft_job_end end = {.how = FT_END_FAILED};
    snprintf(end.error_code, sizeof end.error_code, "%s", code);
    snprintf(end.error_message, sizeof end.error_message, "%s", message);
    snprintf(end.error_param, sizeof end.error_param, "%s", param);
    jw_create(&t->w, "", id);
    ft_control_wake(t->w.control);
    jw_wait_running(&t->w, id);
    jw_end_job(&t->w, &end);
}

// With code and message; but what users wrote and a model answered stays in the job's events.
static void test_failures(void **state) {
    struct watched *t = *state;
    char id[FT_ID_MAX];
    jw_start_control(&t->w);
    fail_run(t, id, "non_finite_loss", "the loss of line 7 is not finite", "");
    wait_log(t, id, "running -> failed, non_finite_loss: the loss of line 7 is not finite");
    fail_run(t, id, "release_gate", "max_valid_loss is 1, and 2 was found",
             "graft.evaluation.max_valid_loss");
    wait_log(
        t, id,
        "running -> failed, release_gate graft.evaluation.max_valid_loss: max_valid_loss is 1, "
        "and 2 was found");
    fail_run(t, id, "release_gate", "required[0]: the answer lacks \"secret\"",
             "graft.evaluation.required");
    wait_log(t, id,
             "running -> failed, release_gate graft.evaluation.required: its events say what was "
             "found");
    assert_false(has_log(t, "secret"));
    wait_metric(t, "graft_jobs_finished_total{outcome=\"failed\"} 3\n");
}

// Gauges are of the database, counters of the process.
static void test_after_a_restart(void **state) {
    struct watched *t = *state;
    char id[FT_ID_MAX], next[FT_ID_MAX];
    jw_start_control(&t->w);
    fail_run(t, id, "training_failed", "no", "");
    wait_metric(t, "graft_jobs_finished_total{outcome=\"failed\"} 1\n");
    jw_create(&t->w, "", next);
    ft_control_wake(t->w.control);
    jw_wait_running(&t->w, next);
    close_watched(t);
    char line[128];
    snprintf(line, sizeof line, "stopping: writing the checkpoint of %s\n", next);
    assert_true(has_log(t, line));
    wait_log(t, next,
             "running -> queued: Fine-tuning job goes back to the queue: the server is stopping");
    t->w.running[0] = '\0';
    open_watched(t);
    jw_start_control(&t->w);
    jw_wait_running(&t->w, next);
    wait_metric(t, "graft_jobs{state=\"running\"} 1\n");
    wait_metric(t, "graft_jobs{state=\"queued\"} 0\n");
    wait_metric(t, "graft_jobs{state=\"failed\"} 1\n");
    wait_metric(t, "graft_jobs_finished_total{outcome=\"failed\"} 0\n");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_a_jobs_life, setup, teardown),
        cmocka_unit_test_setup_teardown(test_cancelled_and_preempted, setup, teardown),
        cmocka_unit_test_setup_teardown(test_failures, setup, teardown),
        cmocka_unit_test_setup_teardown(test_after_a_restart, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

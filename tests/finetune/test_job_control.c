// SPDX-License-Identifier: Apache-2.0
// The control thread, with a runner that the test plays: order, preemption, failures and retries,
// late ends, restarts, and jobs that nobody runs.
#include "tests/finetune/jobs_world.h"
#include "tests/support/cmocka_all.h"
#include "tests/support/wait.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void test_cancel_while_validating(void **state) {
    struct world *w = *state;
    struct err_info info = {0};
    char id[FT_ID_MAX];
    w->slow = true;
    jw_create(w, "", id);
    jw_start_control(w);
    wait_until(w->n_validated > 0);
    assert_ok(jw_act(w, id, FT_JOB_CANCEL, &info), &info);
    char next[FT_ID_MAX];
    pthread_mutex_lock(&w->mutex);
    w->slow = false;
    pthread_mutex_unlock(&w->mutex);
    jw_create(w, "", next);
    jw_wait_running(w, next);
    assert_int_equal(jw_get(w, id).state, FT_JOB_CANCELLED);
}

// Reading a large file takes long; meanwhile the job in hand ends, the next one starts and can be
// stopped.
static void test_run_while_validating(void **state) {
    struct world *w = *state;
    struct err_info info = {0};
    char first[FT_ID_MAX], second[FT_ID_MAX], read[FT_ID_MAX];
    jw_create(w, "", first);
    jw_create(w, "", second);
    jw_start_control(w);
    jw_wait_running(w, first);
    jw_wait_state(w, second, FT_JOB_QUEUED);
    pthread_mutex_lock(&w->mutex);
    w->slow = true;
    pthread_mutex_unlock(&w->mutex);
    jw_create(w, "", read);
    ft_control_wake(w->control);
    wait_until(w->n_validated >= 3);
    jw_succeed(w);
    jw_wait_running(w, second);
    jw_assert_event(w, second, "info:The job waits behind 1 other job");
    assert_int_equal(jw_get(w, first).state, FT_JOB_SUCCEEDED);
    assert_ok(jw_act(w, second, FT_JOB_CANCEL, &info), &info);
    wait_until(w->why == FT_STOP_CANCEL);
    assert_int_equal(jw_get(w, read).state, FT_JOB_VALIDATING);
}

static int events_with(struct world *w, const char *id, const char *text) {
    struct texts t;
    int n = 0;
    jw_events(w, id, &t);
    for (const char *at = t.all; (at = strstr(at, text)); at++)
        n++;
    return n;
}

// Why a running job waits is told once for each kind of reason, whatever its numbers do.
static void test_stalls(void **state) {
    struct world *w = *state;
    char id[FT_ID_MAX];
    static const char *const reasons[] = {"waits for time: none", "waits for memory: 1 of 2",
                                          "waits for memory: 2 of 2", "waits for time: none"};
    jw_create(w, "", id);
    jw_start_control(w);
    jw_wait_running(w, id);
    for (int i = 0; i < 4; i++) {
        w->stall = reasons[i];
        ft_control_wake(w->control);
        if (i != 2)
            wait_until(events_with(w, id, "info:The job waits for") == (i < 2 ? i + 1 : 3));
    }
    assert_int_equal(events_with(w, id, "The job waits for memory: 1 of 2"), 1);
    assert_int_equal(events_with(w, id, "The job waits for time: none"), 2);
    jw_succeed(w);
    jw_wait_state(w, id, FT_JOB_SUCCEEDED);
}

static void test_priority(void **state) {
    struct world *w = *state;
    char late[FT_ID_MAX], first[FT_ID_MAX], urgent[FT_ID_MAX];
    jw_create(w, "\"graft\": {\"priority\": 5}", late);
    jw_create(w, "", first);
    w->starts = ERR_LOADING; // until all are in the queue
    jw_start_control(w);
    jw_wait_state(w, late, FT_JOB_QUEUED);
    wait_until(jw_get(w, first).queued_at);
    pthread_mutex_lock(&w->mutex);
    w->starts = ERR_OK;
    pthread_mutex_unlock(&w->mutex);
    jw_wait_running(w, first);
    jw_create(w, "\"graft\": {\"priority\": -1}", urgent);
    ft_control_wake(w->control);
    jw_wait_running(w, urgent); // preempts
    assert_int_equal(w->why, FT_STOP_PREEMPT);
    struct ft_job j = jw_get(w, first);
    assert_int_equal(j.state, FT_JOB_QUEUED);
    assert_non_null(strstr(j.reason, urgent));
    jw_assert_event(w, first, "goes back to the queue: preempted by ftjob-");
    jw_succeed(w);
    jw_wait_running(w, first);
    assert_string_equal(jw_get(w, first).reason, "");
    jw_assert_event(w, first, "info:Fine-tuning job goes on");
    jw_succeed(w);
    jw_wait_running(w, late);
    jw_succeed(w);
    jw_wait_state(w, late, FT_JOB_SUCCEEDED);
    assert_int_equal(jw_get(w, first).attempts, 0); // being preempted is no failure
}

static void test_failures(void **state) {
    struct world *w = *state;
    char id[FT_ID_MAX];
    const struct ft_job_end passing = {
        .how = FT_END_FAILED, .retry = true, .error_code = "disk", .error_message = "disk full"};
    jw_create(w, "", id);
    jw_start_control(w);
    for (int i = 1; i <= FT_JOB_ATTEMPTS_MAX; i++) {
        jw_wait_running(w, id);
        jw_end_job(w, &passing);
        if (i < FT_JOB_ATTEMPTS_MAX) {
            char text[64];
            snprintf(text, sizeof text, "warn:Fine-tuning job goes back to the queue: try %d of 3",
                     i);
            jw_wait_running(w, id);
            jw_assert_event(w, id, text);
        }
    }
    jw_wait_state(w, id, FT_JOB_FAILED);
    assert_int_equal(w->n_started, FT_JOB_ATTEMPTS_MAX);
    assert_string_equal(jw_get(w, id).error_code, "disk");
    jw_create(w, "", id);
    ft_control_wake(w->control);
    jw_wait_running(w, id);
    jw_end_job(w, &(struct ft_job_end){.how = FT_END_FAILED,
                                       .error_code = "nonfinite_loss",
                                       .error_message = "line 12: the loss is not finite",
                                       .error_param = "training_file"});
    jw_wait_state(w, id, FT_JOB_FAILED);
    assert_string_equal(jw_get(w, id).error_param, "training_file");
    pthread_mutex_lock(&w->mutex);
    w->starts = ERR_UNSUPPORTED;
    pthread_mutex_unlock(&w->mutex);
    jw_create(w, "", id);
    ft_control_wake(w->control);
    jw_wait_state(w, id, FT_JOB_FAILED);
    assert_string_equal(jw_get(w, id).error_code, "cannot_start");
    assert_string_equal(jw_get(w, id).error_param, "graft.lora.r");
}

// The thread's clock goes on while it stands still.
static void advance(struct world *w) {
    ft_control_stop(w->control);
    w->control = NULL;
    clock_manual_advance(&w->clock, 60 * 1000000000LL);
    jw_start_control(w);
}

// A file that the disk cannot read is read again, but not for ever.
static void test_unreadable(void **state) {
    struct world *w = *state;
    char id[FT_ID_MAX];
    for (int fails = 1; fails <= FT_JOB_ATTEMPTS_MAX; fails += FT_JOB_ATTEMPTS_MAX - 1) {
        w->n_validated = 0;
        w->valid = ERR_IO;
        jw_create(w, "", id);
        jw_start_control(w);
        for (int i = 1; i < FT_JOB_ATTEMPTS_MAX && i <= fails; i++) {
            wait_until(w->n_validated == i);
            pthread_mutex_lock(&w->mutex);
            w->valid = i < fails ? ERR_IO : ERR_OK;
            pthread_mutex_unlock(&w->mutex);
            advance(w);
        }
        if (fails < FT_JOB_ATTEMPTS_MAX) {
            jw_wait_running(w, id);
            jw_assert_event(w, id, "warn:The job's files are read again: try 1 of 3 failed");
            jw_succeed(w);
        }
        jw_wait_state(w, id, fails < FT_JOB_ATTEMPTS_MAX ? FT_JOB_SUCCEEDED : FT_JOB_FAILED);
        ft_control_stop(w->control);
        w->control = NULL;
        assert_int_equal(w->n_validated, fails < FT_JOB_ATTEMPTS_MAX ? fails + 1 : fails);
    }
}

// Where nobody trains, jobs say so; where somebody does again, they no longer do.
static void test_no_trainer(void **state) {
    struct world *w = *state;
    struct err_info info = {0};
    char first[FT_ID_MAX], second[FT_ID_MAX];
    struct ft_job_runner r = {.validate = jw_run_validate, .no_trainer = "nobody trains", .arg = w};
    jw_create(w, "", first);
    jw_create(w, "\"graft\": {\"priority\": 1}", second);
    assert_ok(ft_control_start(&w->home, &r, &w->control, &info), &info);
    wait_until(jw_get(w, second).reason[0]);
    assert_string_equal(jw_get(w, first).reason, "nobody trains");
    assert_string_equal(jw_get(w, second).reason, "nobody trains");
    jw_assert_event(w, first, "warn:The job waits in the queue: nobody trains");
    jw_assert_event(w, second, "warn:The job waits in the queue: nobody trains");
    assert_int_equal(jw_get(w, first).ahead, 0);
    assert_int_equal(jw_get(w, second).ahead, 1);
    ft_control_stop(w->control);
    r.start = jw_run_start;
    r.stop = jw_run_stop;
    assert_ok(ft_control_start(&w->home, &r, &w->control, &info), &info);
    jw_wait_running(w, first);
    assert_int_equal(jw_get(w, first).ahead, -1);
    assert_string_equal(jw_get(w, second).reason, "");
    assert_int_equal(jw_get(w, second).ahead, 0);
    assert_string_equal(jw_get(w, second).at_work, first);
}

// The runner is slower than the clients.
static void test_late_ends(void **state) {
    struct world *w = *state;
    struct err_info info = {0};
    char id[FT_ID_MAX], next[FT_ID_MAX];
    w->obey = false;
    jw_create(w, "", id);
    jw_start_control(w);
    jw_wait_running(w, id);
    assert_ok(jw_act(w, id, FT_JOB_PAUSE, &info), &info);
    wait_until(w->n_stopped > 0);
    assert_ok(jw_act(w, id, FT_JOB_RESUME, &info), &info);
    wait_nap();
    assert_int_equal(w->n_started, 1); // not beside itself
    jw_succeed(w);                     // it had ended before it was told
    jw_wait_state(w, id, FT_JOB_SUCCEEDED);
    jw_create(w, "", id);
    ft_control_wake(w->control);
    jw_wait_running(w, id);
    assert_ok(jw_act(w, id, FT_JOB_CANCEL, &info), &info);
    wait_until(w->why == FT_STOP_CANCEL);
    jw_create(w, "", next);
    ft_control_wake(w->control);
    jw_succeed(w);
    jw_wait_running(w, next);
    assert_int_equal(jw_get(w, id).state, FT_JOB_CANCELLED); // and stays so
    w->obey = true;
}

static void test_restart(void **state) {
    struct world *w = *state;
    struct err_info info = {0};
    char runs[FT_ID_MAX], waits[FT_ID_MAX], paused[FT_ID_MAX];
    jw_create(w, "", runs);
    jw_create(w, "", waits);
    jw_create(w, "", paused);
    assert_ok(jw_act(w, paused, FT_JOB_PAUSE, &info), &info);
    jw_start_control(w);
    jw_wait_running(w, runs);
    jw_wait_state(w, waits, FT_JOB_QUEUED);
    ft_control_stop(w->control); // a clean stop
    w->control = NULL;
    assert_int_equal(w->why, FT_STOP_SHUTDOWN);
    assert_int_equal(jw_get(w, runs).state, FT_JOB_QUEUED);
    assert_string_equal(jw_get(w, runs).reason, "the server is stopping");
    // And one that was killed: the job still runs in the database.
    bool moved;
    const struct ft_job_move run = {
        .from = 1u << FT_JOB_QUEUED, .to = FT_JOB_EVALUATING, .level = "info", .message = "m"};
    assert_ok(ft_job_move(&w->home, runs, &run, &moved, &info), &info);
    assert_true(moved);
    assert_ok(ft_job_move(&w->home, runs, &run, &moved, &info), &info);
    assert_false(moved);
    ft_home_close(&w->home);
    jw_open_home(w);
    jw_start_control(w);
    jw_wait_running(w, runs);
    jw_assert_event(w, runs, "warn:The server was restarted");
    assert_int_equal(jw_get(w, paused).state, FT_JOB_PAUSED);
    assert_int_equal(w->n_validated, 2);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_cancel_while_validating, jw_setup, jw_teardown),
        cmocka_unit_test_setup_teardown(test_run_while_validating, jw_setup, jw_teardown),
        cmocka_unit_test_setup_teardown(test_priority, jw_setup, jw_teardown),
        cmocka_unit_test_setup_teardown(test_failures, jw_setup, jw_teardown),
        cmocka_unit_test_setup_teardown(test_unreadable, jw_setup, jw_teardown),
        cmocka_unit_test_setup_teardown(test_stalls, jw_setup, jw_teardown),
        cmocka_unit_test_setup_teardown(test_no_trainer, jw_setup, jw_teardown),
        cmocka_unit_test_setup_teardown(test_late_ends, jw_setup, jw_teardown),
        cmocka_unit_test_setup_teardown(test_restart, jw_setup, jw_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

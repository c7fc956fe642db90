// SPDX-License-Identifier: Apache-2.0
// The job store: what clients may do, what the runner records, who sees what, and each allocation
// failing once. The control thread is in test_job_control.c.
#include "base/mem.h"
#include "finetune/files.h"
#include "finetune/job_models.h"
#include "tests/finetune/jobs_world.h"
#include "tests/support/cmocka_all.h"
#include "tests/support/wait.h"
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void test_create(void **state) {
    struct world *w = *state;
    struct err_info info = {0};
    char id[FT_ID_MAX];
    jw_create(w,
              "\"suffix\": \"s\", \"graft\": {\"priority\": -5}, \"method\": {\"type\": \"dpo\", "
              "\"dpo\": {\"hyperparameters\": {\"beta\": 0.25, \"n_epochs\": 3}}}",
              id);
    struct ft_job j;
    assert_ok(ft_job_get(&w->home, jw_mine, id, &j, &info), &info);
    assert_int_equal(j.state, FT_JOB_VALIDATING);
    assert_int_equal(j.created_at, 1700000000);
    assert_int_equal(j.priority, -5);
    assert_true(j.dpo);
    assert_string_equal(j.model, "tiny");
    assert_string_equal(j.hyper, "{\"batch_size\":\"auto\",\"learning_rate_multiplier\":\"auto\","
                                 "\"n_epochs\":3,\"beta\":0.25}");
    char name[400];
    ft_job_model_name(&j, "s", name, sizeof name);
    assert_int_equal(strncmp(name, "ft:tiny:graft:s:", 16), 0);
    assert_memory_equal(name + 16, id + 6, 12);
    ft_job_model_name(&j, NULL, name, sizeof name);
    assert_int_equal(strncmp(name, "ft:tiny:graft::", 15), 0);
    // A base's name may be anything, an adapter's may not.
    snprintf(j.model, sizeof j.model, "My model@1: \xc3\xa9 %0200d", 0);
    char longest[65];
    memset(longest, 's', 64);
    longest[64] = '\0';
    ft_job_model_name(&j, longest, name, sizeof name);
    assert_int_equal(strncmp(name, "ft:My-model-1-----00000", 23), 0);
    assert_true(strlen(name) <= 128);
    assert_memory_equal(name + strlen(name) - 12, id + 6, 12);
    static const char *const bases[][2] = {{"org/Name-7B", "org/Name-7B"},
                                           {"../../x", "-./-./x"},
                                           {"/a//b", "-a/-b"},
                                           {"a\"b\\c*", "a-b-c-"}};
    for (size_t i = 0; i < sizeof bases / sizeof *bases; i++) {
        char want[64];
        snprintf(j.model, sizeof j.model, "%s", bases[i][0]);
        snprintf(want, sizeof want, "ft:%s:graft::%.12s", bases[i][1], id + 6);
        ft_job_model_name(&j, NULL, name, sizeof name);
        assert_string_equal(name, want);
    }
    ft_job_fini(&j);
    jw_assert_event(w, id, "info:Created fine-tuning job: ");
    // A file that is not there, or another tenant's.
    assert_int_equal(jw_try_create(w, 9, "", id, &info), ERR_INVALID);
    assert_string_equal(info.param, "training_file");
    assert_int_equal(jw_try_create(w, 0, "\"validation_file\": \"file-none\"", id, &info),
                     ERR_INVALID);
    assert_string_equal(info.param, "validation_file");
    assert_int_equal(ft_job_get(&w->home, (struct ft_job_owner){9, false}, j.id, &j, &info),
                     ERR_NOT_FOUND);
    // In use: the file stays until the job has ended.
    assert_int_equal(ft_file_delete(&w->home, 0, w->file, &info), ERR_INVALID);
    assert_non_null(strstr(info.message, "ftjob-"));
    jw_create(w, "", id);
    assert_ok(jw_act(w, id, FT_JOB_CANCEL, &info), &info);
    assert_int_equal(ft_file_delete(&w->home, 0, w->file, &info), ERR_INVALID); // the first job
}

// What waits, paused jobs too, is bounded; what runs or has ended does not count.
static void test_waiting_is_bounded(void **state) {
    struct world *w = *state;
    struct err_info info = {0};
    char id[4][FT_ID_MAX];
    bool moved;
    const unsigned any = 1u << FT_JOB_VALIDATING | 1u << FT_JOB_QUEUED;
    const struct ft_job_move queue = {
        .from = any, .to = FT_JOB_QUEUED, .level = "info", .message = "x"};
    const struct ft_job_move run = {
        .from = any, .to = FT_JOB_RUNNING, .level = "info", .message = "x"};
    w->home.max_waiting = 3;
    for (int i = 0; i < 3; i++)
        jw_create(w, "", id[i]);
    assert_ok(ft_job_move(&w->home, id[0], &queue, &moved, &info), &info);
    assert_ok(jw_act(w, id[1], FT_JOB_PAUSE, &info), &info);
    assert_int_equal(jw_try_create(w, 0, "", id[3], &info), ERR_QUEUE_FULL);
    assert_string_equal(info.param, "");
    assert_non_null(
        strstr(info.message, "3 fine-tuning jobs wait, and 3 may (--max-waiting-jobs)"));
    assert_ok(ft_job_move(&w->home, id[0], &run, &moved, &info), &info);
    jw_create(w, "", id[3]);
    assert_int_equal(jw_try_create(w, 0, "", id[3], &info), ERR_QUEUE_FULL);
    assert_ok(jw_act(w, id[1], FT_JOB_RESUME, &info), &info); // it waited before
    assert_ok(jw_act(w, id[1], FT_JOB_CANCEL, &info), &info);
    jw_create(w, "", id[3]);
    w->home.max_waiting = 0;
    jw_create(w, "", id[3]);
}

static void test_actions(void **state) {
    struct world *w = *state;
    struct err_info info = {0};
    char id[FT_ID_MAX];
    jw_create(w, "", id);
    assert_int_equal(jw_act(w, id, FT_JOB_RESUME, &info), ERR_INVALID);
    assert_non_null(strstr(info.message, "is validating_files and cannot be resumed"));
    assert_ok(jw_act(w, id, FT_JOB_PAUSE, &info), &info);
    assert_int_equal(jw_get(w, id).state, FT_JOB_PAUSED);
    assert_int_equal(jw_act(w, id, FT_JOB_PAUSE, &info), ERR_INVALID);
    assert_ok(jw_act(w, id, FT_JOB_RESUME, &info), &info);
    assert_int_equal(jw_get(w, id).state, FT_JOB_VALIDATING); // its files were never looked at
    jw_start_control(w);
    jw_wait_running(w, id);
    clock_manual_advance(&w->clock, 5000000000);
    assert_ok(jw_act(w, id, FT_JOB_PAUSE, &info), &info);
    assert_int_equal(jw_get(w, id).state, FT_JOB_PAUSED); // at once, whatever the runner does
    wait_until(w->n_stopped > 0);
    assert_int_equal(w->why, FT_STOP_PAUSE);
    assert_ok(jw_act(w, id, FT_JOB_RESUME, &info), &info);
    jw_wait_running(w, id);
    assert_int_equal(w->n_validated, 1); // not again
    assert_ok(jw_act(w, id, FT_JOB_CANCEL, &info), &info);
    struct ft_job j = jw_get(w, id);
    assert_int_equal(j.state, FT_JOB_CANCELLED);
    assert_int_equal(j.finished_at, 1700000005);
    assert_int_equal(jw_act(w, id, FT_JOB_CANCEL, &info), ERR_INVALID);
    assert_non_null(strstr(info.message, "is cancelled and cannot be cancelled"));
    assert_int_equal(jw_act(w, "ftjob-none", FT_JOB_CANCEL, &info), ERR_NOT_FOUND);
    jw_create(w, "", id); // the runner is free again
    ft_control_wake(w->control);
    jw_wait_running(w, id);
    jw_assert_event(w, id, "info:Files validated, moving job to queued state");
    jw_assert_event(w, id, "info:Fine-tuning job started");
    jw_succeed(w);
    jw_wait_state(w, id, FT_JOB_SUCCEEDED);
    assert_string_equal(jw_get(w, id).fine_tuned_model, "ft:tiny:graft::x");
    assert_int_equal(jw_act(w, id, FT_JOB_CANCEL, &info), ERR_INVALID);
    assert_int_equal(jw_act(w, id, FT_JOB_PAUSE, &info), ERR_INVALID);
}

static void test_bad_files(void **state) {
    struct world *w = *state;
    struct err_info info = {0};
    char id[FT_ID_MAX];
    w->valid = ERR_INVALID;
    jw_create(w, "", id);
    jw_start_control(w);
    jw_wait_state(w, id, FT_JOB_FAILED);
    struct ft_job j = jw_get(w, id);
    assert_string_equal(j.error_code, "invalid_jsonl");
    assert_string_equal(j.error_message, "line 7 is not a JSON object");
    assert_true(j.finished_at > 0);
    jw_assert_event(w, id, "error:line 7 is not a JSON object");
    assert_ok(ft_file_delete(&w->home, 0, w->file, &info), &info);
    // Not ready yet: it waits, and goes on when it can.
    jw_upload(w, w->file);
    pthread_mutex_lock(&w->mutex);
    w->valid = ERR_LOADING;
    pthread_mutex_unlock(&w->mutex);
    jw_create(w, "", id);
    int before = w->n_validated;
    ft_control_wake(w->control);
    wait_until(w->n_validated >= before + 2);
    assert_int_equal(jw_get(w, id).state, FT_JOB_VALIDATING);
    pthread_mutex_lock(&w->mutex);
    w->valid = ERR_OK;
    pthread_mutex_unlock(&w->mutex);
    jw_wait_running(w, id);
    jw_succeed(w);
    jw_wait_state(w, id, FT_JOB_SUCCEEDED);
}

static void count_checkpoint(void *arg, const struct ft_checkpoint_row *c) {
    struct texts *t = arg;
    size_t n = strlen(t->all);
    assert_int_equal(strncmp(c->id, "ftckpt_", 7), 0);
    snprintf(t->all + n, sizeof t->all - n, "%lld %s %s\n", (long long)c->step, c->model,
             c->metrics);
    t->n++;
}

static void test_progress(void **state) {
    struct world *w = *state;
    struct err_info info = {0};
    char id[FT_ID_MAX];
    struct texts t = {0};
    bool more;
    jw_create(w, "", id);
    assert_int_equal(jw_get(w, id).trained_tokens, -1);
    const struct ft_job_progress p = {.step = 5,
                                      .steps = 10,
                                      .trained_tokens = 1234,
                                      .estimated_finish = 1700000900,
                                      .hyper = "{\"n_epochs\":3}",
                                      .first_step = true,
                                      .prepared = true};
    assert_ok(ft_job_progress(&w->home, id, &p, &info), &info);
    const struct ft_job_progress none = {
        .step = 6, .steps = -1, .trained_tokens = -1, .estimated_finish = -1};
    assert_ok(ft_job_progress(&w->home, id, &none, &info), &info);
    struct ft_job j = jw_get(w, id);
    assert_int_equal(j.step, 6);
    assert_int_equal(j.steps, 10);
    assert_int_equal(j.trained_tokens, 1234);
    assert_int_equal(j.estimated_finish, 1700000900);
    assert_int_equal(j.first_step_at, 1700000000);
    assert_int_equal(j.prepared_at, 1700000000);
    assert_int_equal(j.checkpoint_at, 0);
    for (int64_t step = 1; step <= 3; step++)
        assert_ok(ft_checkpoint_add(&w->home, id, step, "ft:tiny:graft::x", "{\"step\":1}", &info),
                  &info);
    assert_ok(ft_checkpoint_add(&w->home, id, 3, "ft:tiny:graft::x", "{\"step\":3}", &info), &info);
    const struct ft_page page = {.job = id, .after_seq = -1, .limit = 2};
    assert_ok(ft_checkpoint_list(&w->home, &page, count_checkpoint, &t, &more, &info), &info);
    assert_true(more);
    assert_string_equal(t.all, "3 ft:tiny:graft::x:ckpt-step-3 {\"step\":3}\n"
                               "2 ft:tiny:graft::x:ckpt-step-2 {\"step\":1}\n");
    j = jw_get(w, id);
    assert_int_equal(j.checkpoint_at, 1700000000);
}

static int count_events(struct world *w, const char *id) {
    struct texts t;
    jw_events(w, id, &t);
    return t.n;
}

// A step, its event and its checkpoint stand or fall together.
static void test_record(void **state) {
    struct world *w = *state;
    struct err_info info = {0};
    char id[FT_ID_MAX];
    jw_create(w, "", id);
    int before = count_events(w, id);
    struct ft_job_record r = {.progress = {.step = 4,
                                           .steps = 10,
                                           .trained_tokens = -1,
                                           .estimated_finish = -1,
                                           .checkpoint = true},
                              .level = "info",
                              .type = "metrics",
                              .message = "Step 4/10",
                              .checkpoint_step = 4,
                              .model = "ft:x"};
    assert_int_equal(ft_job_record(&w->home, id, &r, &info), ERR_INVALID); // metrics are missing
    assert_int_equal(jw_get(w, id).step, 0);
    assert_int_equal(jw_get(w, id).checkpoint_at, 0);
    assert_int_equal(count_events(w, id), before);
    uint64_t bumps = ft_events_count(&w->home);
    r.metrics = "{}";
    assert_ok(ft_job_record(&w->home, id, &r, &info), &info);
    assert_int_equal(jw_get(w, id).step, 4);
    assert_int_equal(jw_get(w, id).checkpoint_at, 1700000000);
    assert_int_equal(count_events(w, id), before + 1);
    assert_true(ft_events_count(&w->home) > bumps);
    assert_int_equal(ft_job_record(&w->home, "ftjob-none", &r, &info), ERR_NOT_FOUND);
}

// Which steps of a run have an event. The numbers of multiples are counted by hand.
static void test_told_steps(void **state) {
    (void)state;
    static const struct {
        int64_t steps, eval_steps, told;
    } cases[] = {
        {1, 0, 1},
        {10000, 7, 10000},
        {20001, 0, 1 + 6667},             // of 3
        {100000, 15, 1 + 10000 + 3333},   // of 10; of 15 and not of 10
        {1000000, 1, 1 + 10000},          // of 100
        {1000003, 3, 1 + 9901 + 9706 + 1} // of 101; of 3 * 34 and not of 101; the last
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int64_t n = 0, steps = cases[i].steps;
        for (int64_t s = 1; s <= steps; s++)
            n += ft_step_is_told(s, steps, cases[i].eval_steps);
        assert_int_equal(n, cases[i].told);
        assert_true(ft_step_is_told(steps, steps, 0));
    }
}

struct events_seen {
    int n;
    char last[64];
};

static void see_event(void *arg, const struct ft_event *e) {
    struct events_seen *s = arg;
    s->n++;
    snprintf(s->last, sizeof s->last, "%s", e->message);
}

// A client that pauses and resumes for ever fills no disk.
static void test_messages_are_bounded(void **state) {
    struct world *w = *state;
    struct err_info info = {0};
    char id[FT_ID_MAX];
    jw_create(w, "", id);
    const struct ft_job j = jw_get(w, id);
    assert_ok(ft_event_add(&w->home, id, "info", "metrics", "Step 1/2", "{}", &info), &info);
    assert_ok(db_run(w->home.db, NULL, &info,
                     "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?2)"
                     " INSERT INTO job_events (id, job, created_at, level, type, message)"
                     " SELECT 'x' || i, ?1, 0, 'info', 'message', 'm' || i FROM n",
                     DB_ARGS(db_i(j.seq), db_i(FT_MESSAGES_MAX))),
              &info);
    for (int i = 0; i < 3; i++)
        assert_ok(jw_act(w, id, i % 2 ? FT_JOB_RESUME : FT_JOB_PAUSE, &info), &info);
    struct texts t;
    jw_events(w, id, &t); // the oldest ones
    assert_int_equal(strncmp(t.all, "info:Step 1/2\ninfo:m4\ninfo:m5\n", 30), 0);
    struct events_seen seen = {0};
    const struct ft_page page = {.job = id, .after_seq = 0, .limit = 2 * FT_MESSAGES_MAX};
    bool more;
    assert_ok(ft_event_list(&w->home, &page, see_event, &seen, &more, NULL, &info), &info);
    assert_int_equal(seen.n, FT_MESSAGES_MAX + 1);
    assert_string_equal(seen.last, "Fine-tuning job paused");
}

static void put_result(struct world *w, const char *job, char id[FT_ID_MAX]) {
    struct err_info info = {0};
    struct ft_upload u;
    struct ft_file f = {.filename = "step_metrics.csv", .purpose = "fine-tune-results"};
    assert_ok(ft_upload_begin(&w->home, &u, &info), &info);
    assert_ok(ft_upload_write(&u, "step\n", 5, &info), &info);
    assert_ok(ft_upload_commit_result(&u, &f, job, &info), &info);
    strcpy(id, f.id);
}

// A run that is repeated after a kill leaves one result, not two.
static void test_result(void **state) {
    struct world *w = *state;
    struct err_info info = {0};
    struct ft_upload u;
    struct ft_file f = {.filename = "step_metrics.csv", .purpose = "fine-tune-results"};
    char id[FT_ID_MAX], first[FT_ID_MAX], second[FT_ID_MAX];
    jw_create(w, "", id);
    put_result(w, id, first);
    put_result(w, id, second);
    assert_string_equal(first, second);
    assert_int_equal(jw_get(w, id).n_results, 1);
    assert_ok(ft_file_delete(&w->home, 0, first, &info), &info);
    put_result(w, id, second);
    assert_string_not_equal(first, second);
    assert_string_equal(jw_get(w, id).results[0], second);
    assert_ok(ft_upload_begin(&w->home, &u, &info), &info);
    assert_int_equal(ft_upload_commit_result(&u, &f, "ftjob-none", &info), ERR_NOT_FOUND);
    assert_int_equal(faccessat(w->home.files, u.id, F_OK, 0), -1);
}

// Until the version is named the client is heard; from then on it is not, also after a restart.
static void test_publish(void **state) {
    struct world *w = *state;
    char id[FT_ID_MAX], other[FT_ID_MAX];
    struct ft_job j;
    struct err_info info = {0};
    const struct ft_job_owner me = jw_mine;
    bool moved;
    const struct ft_job_move run = {.from = 1u << FT_JOB_VALIDATING,
                                    .to = FT_JOB_PUBLISHING,
                                    .level = "info",
                                    .message = "publishing"};
    jw_create(w, "", id);
    assert_ok(ft_job_publish(&w->home, id, 7, &moved, &info), &info);
    assert_false(moved); // it is being validated
    assert_ok(ft_job_move(&w->home, id, &run, &moved, &info), &info);
    assert_ok(ft_job_publish(&w->home, id, 7, &moved, &info), &info);
    assert_true(moved);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(ft_job_act(&w->home, me, id, FT_JOB_CANCEL, &j, &info), ERR_INVALID);
        assert_non_null(strstr(info.message, "is being published and cannot be cancelled"));
        assert_int_equal(ft_job_act(&w->home, me, id, FT_JOB_PAUSE, &j, &info), ERR_INVALID);
        ft_home_close(&w->home);
        jw_open_home(w);
        int64_t n;
        assert_ok(ft_jobs_recover(&w->home, &n, &info), &info);
        assert_int_equal(n, i == 0);
        assert_ok(ft_job_get(&w->home, me, id, &j, &info), &info);
        assert_true(j.version == 7 && j.state == FT_JOB_QUEUED);
        ft_job_fini(&j);
    }
    assert_ok(ft_job_publish(&w->home, id, 0, &moved, &info), &info); // it came to nothing
    assert_ok(ft_job_act(&w->home, me, id, FT_JOB_CANCEL, &j, &info), &info);
    ft_job_fini(&j);
    jw_create(w, "", other);
    assert_ok(ft_job_move(&w->home, other, &run, &moved, &info), &info);
    assert_ok(ft_job_act(&w->home, me, other, FT_JOB_CANCEL, &j, &info), &info);
    ft_job_fini(&j);
    assert_ok(ft_job_publish(&w->home, other, 8, &moved, &info), &info);
    assert_false(moved);
}

// From a name to the job, or to its checkpoint; and nothing from what only looks like one.
static void test_models(void **state) {
    struct world *w = *state;
    char id[FT_ID_MAX], name[400], text[480], found[FT_ID_MAX];
    struct ft_job j;
    struct err_info info = {0};
    int64_t step;
    jw_create(w, "\"suffix\":\"s\"", id);
    j = jw_get(w, id);
    ft_job_model_name(&j, "s", name, sizeof name);
    assert_ok(ft_job_of_model(&w->home, name, &j, &info), &info);
    assert_string_equal(j.id, id);
    ft_job_fini(&j);
    static const char *const others[] = {
        "", "ft:", "ft:tiny:graft:s:", "tiny", "ft:tiny:graft:s:0123456789ab", "ft:::::::::::~"};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        assert_int_equal(ft_job_of_model(&w->home, others[i], &j, &info), ERR_NO_MODEL);
    snprintf(text, sizeof text, "ft:tiny:graft:other%s", strrchr(name, ':'));
    assert_int_equal(ft_job_of_model(&w->home, text, &j, &info), ERR_NO_MODEL);
    for (int i = 1; i <= 5; i++)
        assert_ok(ft_checkpoint_add(&w->home, id, 10 * i, name, "{}", &info), &info);
    assert_ok(ft_checkpoints_keep(&w->home, id, 3, &info), &info);
    assert_ok(ft_checkpoints_keep(&w->home, id, 0, &info), &info);
    for (int i = 1; i <= 6; i++) {
        snprintf(text, sizeof text, "%s:ckpt-step-%d", name, 10 * i);
        enum err e = ft_checkpoint_of_model(&w->home, text, found, &step, &info);
        assert_int_equal(e, i >= 3 && i <= 5 ? ERR_OK : ERR_NO_MODEL);
        if (e)
            assert_non_null(strstr(info.message, "does not keep it any more"));
        else
            assert_true(!strcmp(found, id) && step == 10 * i);
    }
    static const char *const bad[] = {"",
                                      ":ckpt-step-",
                                      ":ckpt-step-030",
                                      ":ckpt-step-30x",
                                      ":",
                                      ":ckpt-step--1",
                                      ":ckpt-step-99999999999999999999"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        snprintf(text, sizeof text, "%s%s", name, bad[i]);
        assert_int_equal(ft_checkpoint_of_model(&w->home, text, found, &step, &info), ERR_NO_MODEL);
    }
    char more[1200];
    memset(more, 'x', sizeof more);
    snprintf(more + sizeof more - 32, 32, ":ckpt-step-30");
    assert_int_equal(ft_checkpoint_of_model(&w->home, more, found, &step, &info), ERR_NO_MODEL);
}

static void none(void *arg, const struct ft_job *j) {
    (void)arg;
    assert_non_null(j->request);
}

static void test_without_memory(void **state) {
    struct world *w = *state;
    struct err_info info = {0};
    char id[FT_ID_MAX] = "", other[FT_ID_MAX];
    jw_create(w, "\"metadata\": {\"a\": \"b\"}", id);
    enum err e = ERR_NOMEM;
    for (uint64_t nth = 1; e; nth++) {
        struct ft_job j;
        bool more;
        struct ft_job_query q = {.limit = 10, .n_metadata = 1};
        q.metadata[0].key = "a";
        q.metadata[0].value = "b";
        mem_fail_after(nth, false);
        e = jw_try_create(w, 0, "", other, &info);
        if (!e)
            e = ft_job_list(&w->home, &q, none, NULL, &more, &info);
        if (!e && !(e = ft_job_get(&w->home, jw_mine, id, &j, &info)))
            ft_job_fini(&j);
        if (!e)
            e = ft_job_next(&w->home, FT_JOB_VALIDATING, &j, &info);
        if (!e)
            ft_job_fini(&j);
        if (!e)
            e = jw_act(w, other, FT_JOB_CANCEL, &info);
        mem_fail_after(0, false);
        if (e && e != ERR_NOMEM)
            fail_msg("allocation %llu: %s", (unsigned long long)nth, info.message);
        assert_true(nth < 300);
    }
}

int main(void) {
    json_set_alloc_funcs(mem_alloc, mem_free);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_create, jw_setup, jw_teardown),
        cmocka_unit_test_setup_teardown(test_waiting_is_bounded, jw_setup, jw_teardown),
        cmocka_unit_test_setup_teardown(test_actions, jw_setup, jw_teardown),
        cmocka_unit_test_setup_teardown(test_bad_files, jw_setup, jw_teardown),
        cmocka_unit_test_setup_teardown(test_progress, jw_setup, jw_teardown),
        cmocka_unit_test_setup_teardown(test_record, jw_setup, jw_teardown),
        cmocka_unit_test_setup_teardown(test_result, jw_setup, jw_teardown),
        cmocka_unit_test(test_told_steps),
        cmocka_unit_test_setup_teardown(test_messages_are_bounded, jw_setup, jw_teardown),
        cmocka_unit_test_setup_teardown(test_publish, jw_setup, jw_teardown),
        cmocka_unit_test_setup_teardown(test_models, jw_setup, jw_teardown),
        cmocka_unit_test_setup_teardown(test_without_memory, jw_setup, jw_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

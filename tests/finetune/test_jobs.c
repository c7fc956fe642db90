// SPDX-License-Identifier: Apache-2.0
// The job store and the control thread, with a runner that the test plays: states and who may change
// them, order, preemption, retries, restarts, and each allocation failing once.
#include "base/mem.h"
#include "finetune/files.h"
#include "finetune/job_control.h"
#include "finetune/job_log.h"
#include "finetune/job_models.h"
#include "tests/cmocka_all.h"
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

struct world {
    char folder[64];
    struct clock_manual clock;
    struct ft_home home;
    char file[FT_ID_MAX];
    // the runner
    struct ft_control *control;
    pthread_mutex_t mutex;
    enum err valid, starts; // what validate and start answer
    bool slow;              // validate waits until it is cancelled
    char running[FT_ID_MAX];
    _Atomic int n_started, n_stopped, n_validated;
    _Atomic int why;   // enum ft_stop
    _Atomic bool obey; // stop ends the job at once
};

static void ok(enum err e, const struct err_info *info) {
    if (e)
        fail_msg("%s: %s", err_name(e), info->message);
}

static void open_home(struct world *w) {
    struct err_info info = {0};
    const struct ft_home_config cfg = {
        .path = w->folder, .clock = &w->clock.clock, .max_file_bytes = 1 << 20};
    ok(ft_home_open(&w->home, &cfg, &info), &info);
}

static void upload(struct world *w, char id[FT_ID_MAX]) {
    struct err_info info = {0};
    struct ft_upload u;
    struct ft_file f = {.filename = "a.jsonl", .purpose = "fine-tune"};
    ok(ft_upload_begin(&w->home, &u, &info), &info);
    ok(ft_upload_write(&u, "{}\n", 3, &info), &info);
    ok(ft_upload_commit(&u, &f, &info), &info);
    strcpy(id, f.id);
}

static int setup(void **state) {
    struct world *w = calloc(1, sizeof *w);
    strcpy(w->folder, "/tmp/graft-jobs-XXXXXX");
    assert_non_null(mkdtemp(w->folder));
    clock_manual_init(&w->clock, 1, 1700000000LL * 1000000000);
    pthread_mutex_init(&w->mutex, NULL);
    w->obey = true;
    open_home(w);
    upload(w, w->file);
    *state = w;
    return 0;
}

static int teardown(void **state) {
    struct world *w = *state;
    char command[128];
    ft_control_stop(w->control);
    ft_home_close(&w->home);
    snprintf(command, sizeof command, "rm -rf '%s'", w->folder);
    assert_int_equal(system(command), 0);
    pthread_mutex_destroy(&w->mutex);
    free(w);
    assert_int_equal(mem_live_blocks(), 0);
    return 0;
}

static enum err try_create(struct world *w, uint64_t tenant, const char *body, char id[FT_ID_MAX],
                           struct err_info *info) {
    char text[2048];
    struct ft_job_spec spec;
    struct ft_job j;
    char *request = NULL;
    snprintf(text, sizeof text, "{\"model\": \"tiny\", \"training_file\": \"%s\"%s%s}", w->file,
             body[0] ? ", " : "", body);
    json_t *o = json_loads(text, 0, NULL);
    assert_non_null(o);
    enum err e = ft_job_spec_read(o, &spec, info);
    if (!e)
        e = ft_job_spec_store(o, 7, &request, info);
    if (!e)
        e = ft_job_create(&w->home, tenant, &spec, 7, request, &j, info);
    if (!e) {
        strcpy(id, j.id);
        ft_job_fini(&j);
    }
    mem_free(request);
    json_decref(o);
    return e;
}

static void create(struct world *w, const char *body, char id[FT_ID_MAX]) {
    struct err_info info = {0};
    ok(try_create(w, 0, body, id, &info), &info);
}

static const struct ft_job_owner mine = {0, false};

static struct ft_job get(struct world *w, const char *id) {
    struct err_info info = {0};
    struct ft_job j;
    ok(ft_job_get(&w->home, mine, id, &j, &info), &info);
    ft_job_fini(&j);
    return j;
}

static void nap(void) {
    nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
}

static void wait_state(struct world *w, const char *id, enum ft_job_state s) {
    for (int i = 0; i < 5000; i++, nap())
        if (get(w, id).state == s)
            return;
    fail_msg("%s is %s, not %s", id, ft_job_state_text(get(w, id).state), ft_job_state_text(s));
}

static enum err act(struct world *w, const char *id, enum ft_job_action a, struct err_info *info) {
    struct ft_job j;
    enum err e = ft_job_act(&w->home, mine, id, a, &j, info);
    if (!e)
        ft_job_fini(&j);
    ft_control_wake(w->control);
    return e;
}

struct texts {
    char all[4000];
    int n;
};

static void add_text(void *arg, const struct ft_event *e) {
    struct texts *t = arg;
    size_t n = strlen(t->all);
    snprintf(t->all + n, sizeof t->all - n, "%s:%s\n", e->level, e->message);
    t->n++;
}

static void assert_event(struct world *w, const char *id, const char *text) {
    struct err_info info = {0};
    struct texts t = {0};
    bool more;
    const struct ft_page page = {.job = id, .after_seq = 0, .limit = 100};
    ok(ft_event_list(&w->home, &page, add_text, &t, &more, NULL, &info), &info);
    if (!strstr(t.all, text))
        fail_msg("'%s' is not in:\n%s", text, t.all);
}

// ---- the runner

static enum err run_validate(void *arg, const struct ft_job *j, bool (*cancelled)(void *arg),
                             void *cancelled_arg, struct ft_job_failure *why,
                             struct err_info *info) {
    struct world *w = arg;
    (void)j;
    pthread_mutex_lock(&w->mutex);
    w->n_validated++;
    enum err e = w->valid;
    bool slow = w->slow;
    pthread_mutex_unlock(&w->mutex);
    while (slow && !cancelled(cancelled_arg))
        nap();
    if (slow)
        return err_set(info, ERR_CANCELLED, NULL, "cancelled");
    if (e == ERR_INVALID)
        snprintf(why->code, sizeof why->code, "invalid_jsonl");
    return e ? err_set(info, e, NULL, "line 7 is not a JSON object") : ERR_OK;
}

static enum err run_start(void *arg, const struct ft_job *j, struct err_info *info) {
    struct world *w = arg;
    pthread_mutex_lock(&w->mutex);
    enum err e = w->starts;
    if (!e) {
        assert_int_equal(w->running[0], '\0'); // one at a time
        memcpy(w->running, j->id, sizeof w->running);
        w->n_started++;
    }
    pthread_mutex_unlock(&w->mutex);
    return e ? err_set(info, e, "graft.lora.r", "no room to start") : ERR_OK;
}

static void end_job(struct world *w, const struct ft_job_end *end) {
    pthread_mutex_lock(&w->mutex);
    w->running[0] = '\0';
    pthread_mutex_unlock(&w->mutex);
    ft_control_ended(w->control, end);
}

static void run_stop(void *arg, enum ft_stop why) {
    struct world *w = arg;
    pthread_mutex_lock(&w->mutex);
    w->n_stopped++;
    w->why = (int)why;
    bool end = w->obey && w->running[0];
    pthread_mutex_unlock(&w->mutex);
    if (end)
        end_job(w, &(struct ft_job_end){.how = FT_END_STOPPED});
}

static void start_control(struct world *w) {
    struct err_info info = {0};
    const struct ft_job_runner r = {
        .validate = run_validate, .start = run_start, .stop = run_stop, .arg = w};
    ok(ft_control_start(&w->home, &r, &w->control, &info), &info);
}

static void succeed(struct world *w) {
    end_job(w,
            &(struct ft_job_end){.how = FT_END_SUCCEEDED, .fine_tuned_model = "ft:tiny:graft::x"});
}

static void wait_running(struct world *w, const char *id) {
    for (int i = 0; i < 5000; i++, nap()) {
        pthread_mutex_lock(&w->mutex);
        bool is = !strcmp(w->running, id);
        pthread_mutex_unlock(&w->mutex);
        if (is)
            return;
    }
    fail_msg("%s does not run, but %s", id, w->running);
}

// ---- tests

static void test_create(void **state) {
    struct world *w = *state;
    struct err_info info = {0};
    char id[FT_ID_MAX];
    create(w,
           "\"suffix\": \"s\", \"graft\": {\"priority\": -5}, \"method\": {\"type\": \"dpo\", "
           "\"dpo\": {\"hyperparameters\": {\"beta\": 0.25, \"n_epochs\": 3}}}",
           id);
    struct ft_job j;
    ok(ft_job_get(&w->home, mine, id, &j, &info), &info);
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
    assert_event(w, id, "info:Created fine-tuning job: ");
    // A file that is not there, or another tenant's.
    assert_int_equal(try_create(w, 9, "", id, &info), ERR_INVALID);
    assert_string_equal(info.param, "training_file");
    assert_int_equal(try_create(w, 0, "\"validation_file\": \"file-none\"", id, &info),
                     ERR_INVALID);
    assert_string_equal(info.param, "validation_file");
    assert_int_equal(ft_job_get(&w->home, (struct ft_job_owner){9, false}, j.id, &j, &info),
                     ERR_NOT_FOUND);
    // In use: the file stays until the job has ended.
    assert_int_equal(ft_file_delete(&w->home, 0, w->file, &info), ERR_INVALID);
    assert_non_null(strstr(info.message, "ftjob-"));
    create(w, "", id);
    ok(act(w, id, FT_JOB_CANCEL, &info), &info);
    assert_int_equal(ft_file_delete(&w->home, 0, w->file, &info), ERR_INVALID); // the first job
}

static void test_actions(void **state) {
    struct world *w = *state;
    struct err_info info = {0};
    char id[FT_ID_MAX];
    create(w, "", id);
    assert_int_equal(act(w, id, FT_JOB_RESUME, &info), ERR_INVALID);
    assert_non_null(strstr(info.message, "is validating_files and cannot be resumed"));
    ok(act(w, id, FT_JOB_PAUSE, &info), &info);
    assert_int_equal(get(w, id).state, FT_JOB_PAUSED);
    assert_int_equal(act(w, id, FT_JOB_PAUSE, &info), ERR_INVALID);
    ok(act(w, id, FT_JOB_RESUME, &info), &info);
    assert_int_equal(get(w, id).state, FT_JOB_VALIDATING); // its files were never looked at
    start_control(w);
    wait_running(w, id);
    clock_manual_advance(&w->clock, 5000000000);
    ok(act(w, id, FT_JOB_PAUSE, &info), &info);
    assert_int_equal(get(w, id).state, FT_JOB_PAUSED); // at once, whatever the runner does
    for (int i = 0; w->n_stopped == 0 && i < 5000; i++)
        nap();
    assert_int_equal(w->why, FT_STOP_PAUSE);
    ok(act(w, id, FT_JOB_RESUME, &info), &info);
    wait_running(w, id);
    assert_int_equal(w->n_validated, 1); // not again
    ok(act(w, id, FT_JOB_CANCEL, &info), &info);
    struct ft_job j = get(w, id);
    assert_int_equal(j.state, FT_JOB_CANCELLED);
    assert_int_equal(j.finished_at, 1700000005);
    assert_int_equal(act(w, id, FT_JOB_CANCEL, &info), ERR_INVALID);
    assert_non_null(strstr(info.message, "is cancelled and cannot be cancelled"));
    assert_int_equal(act(w, "ftjob-none", FT_JOB_CANCEL, &info), ERR_NOT_FOUND);
    create(w, "", id); // the runner is free again
    ft_control_wake(w->control);
    wait_running(w, id);
    assert_event(w, id, "info:Files validated, moving job to queued state");
    assert_event(w, id, "info:Fine-tuning job started");
    succeed(w);
    wait_state(w, id, FT_JOB_SUCCEEDED);
    assert_string_equal(get(w, id).fine_tuned_model, "ft:tiny:graft::x");
    assert_int_equal(act(w, id, FT_JOB_CANCEL, &info), ERR_INVALID);
    assert_int_equal(act(w, id, FT_JOB_PAUSE, &info), ERR_INVALID);
}

static void test_bad_files(void **state) {
    struct world *w = *state;
    struct err_info info = {0};
    char id[FT_ID_MAX];
    w->valid = ERR_INVALID;
    create(w, "", id);
    start_control(w);
    wait_state(w, id, FT_JOB_FAILED);
    struct ft_job j = get(w, id);
    assert_string_equal(j.error_code, "invalid_jsonl");
    assert_string_equal(j.error_message, "line 7 is not a JSON object");
    assert_true(j.finished_at > 0);
    assert_event(w, id, "error:line 7 is not a JSON object");
    ok(ft_file_delete(&w->home, 0, w->file, &info), &info);
    // Not ready yet: it waits, and goes on when it can.
    upload(w, w->file);
    pthread_mutex_lock(&w->mutex);
    w->valid = ERR_LOADING;
    pthread_mutex_unlock(&w->mutex);
    create(w, "", id);
    int before = w->n_validated;
    ft_control_wake(w->control);
    while (w->n_validated < before + 2)
        nap();
    assert_int_equal(get(w, id).state, FT_JOB_VALIDATING);
    pthread_mutex_lock(&w->mutex);
    w->valid = ERR_OK;
    pthread_mutex_unlock(&w->mutex);
    wait_running(w, id);
    succeed(w);
    wait_state(w, id, FT_JOB_SUCCEEDED);
}

static void test_cancel_while_validating(void **state) {
    struct world *w = *state;
    struct err_info info = {0};
    char id[FT_ID_MAX];
    w->slow = true;
    create(w, "", id);
    start_control(w);
    while (w->n_validated == 0)
        nap();
    ok(act(w, id, FT_JOB_CANCEL, &info), &info);
    char next[FT_ID_MAX];
    pthread_mutex_lock(&w->mutex);
    w->slow = false;
    pthread_mutex_unlock(&w->mutex);
    create(w, "", next);
    wait_running(w, next);
    assert_int_equal(get(w, id).state, FT_JOB_CANCELLED);
}

static void test_priority(void **state) {
    struct world *w = *state;
    char late[FT_ID_MAX], first[FT_ID_MAX], urgent[FT_ID_MAX];
    create(w, "\"graft\": {\"priority\": 5}", late);
    create(w, "", first);
    w->starts = ERR_LOADING; // until all are in the queue
    start_control(w);
    wait_state(w, late, FT_JOB_QUEUED);
    for (int i = 0; i < 5000 && !get(w, first).queued_at; i++)
        nap();
    pthread_mutex_lock(&w->mutex);
    w->starts = ERR_OK;
    pthread_mutex_unlock(&w->mutex);
    wait_running(w, first);
    create(w, "\"graft\": {\"priority\": -1}", urgent);
    ft_control_wake(w->control);
    wait_running(w, urgent); // preempts
    assert_int_equal(w->why, FT_STOP_PREEMPT);
    struct ft_job j = get(w, first);
    assert_int_equal(j.state, FT_JOB_QUEUED);
    assert_non_null(strstr(j.reason, urgent));
    assert_event(w, first, "goes back to the queue: preempted by ftjob-");
    succeed(w);
    wait_running(w, first);
    assert_string_equal(get(w, first).reason, "");
    assert_event(w, first, "info:Fine-tuning job goes on");
    succeed(w);
    wait_running(w, late);
    succeed(w);
    wait_state(w, late, FT_JOB_SUCCEEDED);
    assert_int_equal(get(w, first).attempts, 0); // being preempted is no failure
}

static void test_failures(void **state) {
    struct world *w = *state;
    char id[FT_ID_MAX];
    const struct ft_job_end passing = {
        .how = FT_END_FAILED, .retry = true, .error_code = "disk", .error_message = "disk full"};
    create(w, "", id);
    start_control(w);
    for (int i = 1; i <= FT_JOB_ATTEMPTS_MAX; i++) {
        wait_running(w, id);
        end_job(w, &passing);
        if (i < FT_JOB_ATTEMPTS_MAX) {
            char text[64];
            snprintf(text, sizeof text, "warn:Fine-tuning job goes back to the queue: try %d of 3",
                     i);
            wait_running(w, id);
            assert_event(w, id, text);
        }
    }
    wait_state(w, id, FT_JOB_FAILED);
    assert_int_equal(w->n_started, FT_JOB_ATTEMPTS_MAX);
    assert_string_equal(get(w, id).error_code, "disk");
    create(w, "", id);
    ft_control_wake(w->control);
    wait_running(w, id);
    end_job(w, &(struct ft_job_end){.how = FT_END_FAILED,
                                    .error_code = "nonfinite_loss",
                                    .error_message = "line 12: the loss is not finite",
                                    .error_param = "training_file"});
    wait_state(w, id, FT_JOB_FAILED);
    assert_string_equal(get(w, id).error_param, "training_file");
    pthread_mutex_lock(&w->mutex);
    w->starts = ERR_UNSUPPORTED;
    pthread_mutex_unlock(&w->mutex);
    create(w, "", id);
    ft_control_wake(w->control);
    wait_state(w, id, FT_JOB_FAILED);
    assert_string_equal(get(w, id).error_code, "cannot_start");
    assert_string_equal(get(w, id).error_param, "graft.lora.r");
}

// Where nobody trains, jobs say so; where somebody does again, they no longer do.
static void test_no_trainer(void **state) {
    struct world *w = *state;
    struct err_info info = {0};
    char first[FT_ID_MAX], second[FT_ID_MAX];
    struct ft_job_runner r = {.validate = run_validate, .no_trainer = "nobody trains", .arg = w};
    create(w, "", first);
    create(w, "\"graft\": {\"priority\": 1}", second);
    ok(ft_control_start(&w->home, &r, &w->control, &info), &info);
    for (int i = 0; i < 5000 && !get(w, second).reason[0]; i++)
        nap();
    assert_string_equal(get(w, first).reason, "nobody trains");
    assert_string_equal(get(w, second).reason, "nobody trains");
    assert_event(w, first, "warn:The job waits in the queue: nobody trains");
    assert_event(w, second, "warn:The job waits in the queue: nobody trains");
    assert_int_equal(get(w, first).ahead, 0);
    assert_int_equal(get(w, second).ahead, 1);
    ft_control_stop(w->control);
    r.start = run_start;
    r.stop = run_stop;
    ok(ft_control_start(&w->home, &r, &w->control, &info), &info);
    wait_running(w, first);
    assert_int_equal(get(w, first).ahead, -1);
    assert_string_equal(get(w, second).reason, "");
    assert_int_equal(get(w, second).ahead, 0);
    assert_string_equal(get(w, second).at_work, first);
}

// The runner is slower than the clients.
static void test_late_ends(void **state) {
    struct world *w = *state;
    struct err_info info = {0};
    char id[FT_ID_MAX], next[FT_ID_MAX];
    w->obey = false;
    create(w, "", id);
    start_control(w);
    wait_running(w, id);
    ok(act(w, id, FT_JOB_PAUSE, &info), &info);
    while (w->n_stopped == 0)
        nap();
    ok(act(w, id, FT_JOB_RESUME, &info), &info);
    nap();
    assert_int_equal(w->n_started, 1); // not beside itself
    succeed(w);                        // it had ended before it was told
    wait_state(w, id, FT_JOB_SUCCEEDED);
    create(w, "", id);
    ft_control_wake(w->control);
    wait_running(w, id);
    ok(act(w, id, FT_JOB_CANCEL, &info), &info);
    while (w->why != FT_STOP_CANCEL)
        nap();
    create(w, "", next);
    ft_control_wake(w->control);
    succeed(w);
    wait_running(w, next);
    assert_int_equal(get(w, id).state, FT_JOB_CANCELLED); // and stays so
    w->obey = true;
}

static void test_restart(void **state) {
    struct world *w = *state;
    struct err_info info = {0};
    char runs[FT_ID_MAX], waits[FT_ID_MAX], paused[FT_ID_MAX];
    create(w, "", runs);
    create(w, "", waits);
    create(w, "", paused);
    ok(act(w, paused, FT_JOB_PAUSE, &info), &info);
    start_control(w);
    wait_running(w, runs);
    wait_state(w, waits, FT_JOB_QUEUED);
    ft_control_stop(w->control); // a clean stop
    w->control = NULL;
    assert_int_equal(w->why, FT_STOP_SHUTDOWN);
    assert_int_equal(get(w, runs).state, FT_JOB_QUEUED);
    assert_string_equal(get(w, runs).reason, "the server is stopping");
    // And one that was killed: the job still runs in the database.
    bool moved;
    const struct ft_job_move run = {
        .from = 1u << FT_JOB_QUEUED, .to = FT_JOB_EVALUATING, .level = "info", .message = "m"};
    ok(ft_job_move(&w->home, runs, &run, &moved, &info), &info);
    assert_true(moved);
    ok(ft_job_move(&w->home, runs, &run, &moved, &info), &info);
    assert_false(moved);
    ft_home_close(&w->home);
    open_home(w);
    start_control(w);
    wait_running(w, runs);
    assert_event(w, runs, "warn:The server was restarted");
    assert_int_equal(get(w, paused).state, FT_JOB_PAUSED);
    assert_int_equal(w->n_validated, 2);
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
    char id[FT_ID_MAX], result[FT_ID_MAX];
    struct texts t = {0};
    bool more;
    create(w, "", id);
    assert_int_equal(get(w, id).trained_tokens, -1);
    const struct ft_job_progress p = {.step = 5,
                                      .steps = 10,
                                      .trained_tokens = 1234,
                                      .estimated_finish = 1700000900,
                                      .hyper = "{\"n_epochs\":3}",
                                      .first_step = true,
                                      .prepared = true};
    ok(ft_job_progress(&w->home, id, &p, &info), &info);
    const struct ft_job_progress none = {
        .step = 6, .steps = -1, .trained_tokens = -1, .estimated_finish = -1};
    ok(ft_job_progress(&w->home, id, &none, &info), &info);
    struct ft_job j = get(w, id);
    assert_int_equal(j.step, 6);
    assert_int_equal(j.steps, 10);
    assert_int_equal(j.trained_tokens, 1234);
    assert_int_equal(j.estimated_finish, 1700000900);
    assert_int_equal(j.first_step_at, 1700000000);
    assert_int_equal(j.prepared_at, 1700000000);
    assert_int_equal(j.checkpoint_at, 0);
    for (int64_t step = 1; step <= 3; step++)
        ok(ft_checkpoint_add(&w->home, id, step, "ft:tiny:graft::x", "{\"step\":1}", &info), &info);
    ok(ft_checkpoint_add(&w->home, id, 3, "ft:tiny:graft::x", "{\"step\":3}", &info), &info);
    const struct ft_page page = {.job = id, .after_seq = -1, .limit = 2};
    ok(ft_checkpoint_list(&w->home, &page, count_checkpoint, &t, &more, &info), &info);
    assert_true(more);
    assert_string_equal(t.all, "3 ft:tiny:graft::x:ckpt-step-3 {\"step\":3}\n"
                               "2 ft:tiny:graft::x:ckpt-step-2 {\"step\":1}\n");
    upload(w, result);
    ok(ft_job_add_result(&w->home, id, result, &info), &info);
    ok(ft_job_add_result(&w->home, id, result, &info), &info);
    j = get(w, id);
    assert_int_equal(j.n_results, 1);
    assert_string_equal(j.results[0], result);
    assert_int_equal(j.checkpoint_at, 1700000000);
}

static int count_events(struct world *w, const char *id) {
    struct texts t = {0};
    struct err_info info = {0};
    const struct ft_page page = {.job = id, .after_seq = 0, .limit = 100};
    bool more;
    ok(ft_event_list(&w->home, &page, add_text, &t, &more, NULL, &info), &info);
    return t.n;
}

// A step, its event and its checkpoint stand or fall together.
static void test_record(void **state) {
    struct world *w = *state;
    struct err_info info = {0};
    char id[FT_ID_MAX];
    create(w, "", id);
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
    assert_int_equal(get(w, id).step, 0);
    assert_int_equal(get(w, id).checkpoint_at, 0);
    assert_int_equal(count_events(w, id), before);
    uint64_t bumps = ft_events_count(&w->home);
    r.metrics = "{}";
    ok(ft_job_record(&w->home, id, &r, &info), &info);
    assert_int_equal(get(w, id).step, 4);
    assert_int_equal(get(w, id).checkpoint_at, 1700000000);
    assert_int_equal(count_events(w, id), before + 1);
    assert_true(ft_events_count(&w->home) > bumps);
    assert_int_equal(ft_job_record(&w->home, "ftjob-none", &r, &info), ERR_NOT_FOUND);
}

static void put_result(struct world *w, const char *job, char id[FT_ID_MAX]) {
    struct err_info info = {0};
    struct ft_upload u;
    struct ft_file f = {.filename = "step_metrics.csv", .purpose = "fine-tune-results"};
    ok(ft_upload_begin(&w->home, &u, &info), &info);
    ok(ft_upload_write(&u, "step\n", 5, &info), &info);
    ok(ft_upload_commit_result(&u, &f, job, &info), &info);
    strcpy(id, f.id);
}

// A run that is repeated after a kill leaves one result, not two.
static void test_result(void **state) {
    struct world *w = *state;
    struct err_info info = {0};
    struct ft_upload u;
    struct ft_file f = {.filename = "step_metrics.csv", .purpose = "fine-tune-results"};
    char id[FT_ID_MAX], first[FT_ID_MAX], second[FT_ID_MAX];
    create(w, "", id);
    put_result(w, id, first);
    put_result(w, id, second);
    assert_string_equal(first, second);
    assert_int_equal(get(w, id).n_results, 1);
    ok(ft_file_delete(&w->home, 0, first, &info), &info);
    put_result(w, id, second);
    assert_string_not_equal(first, second);
    assert_string_equal(get(w, id).results[0], second);
    ok(ft_upload_begin(&w->home, &u, &info), &info);
    assert_int_equal(ft_upload_commit_result(&u, &f, "ftjob-none", &info), ERR_NOT_FOUND);
    assert_int_equal(faccessat(w->home.files, u.id, F_OK, 0), -1);
}

// Until the version is named the client is heard; from then on it is not, also after a restart.
static void test_publish(void **state) {
    struct world *w = *state;
    char id[FT_ID_MAX], other[FT_ID_MAX];
    struct ft_job j;
    struct err_info info = {0};
    const struct ft_job_owner me = mine;
    bool moved;
    const struct ft_job_move run = {.from = 1u << FT_JOB_VALIDATING,
                                    .to = FT_JOB_PUBLISHING,
                                    .level = "info",
                                    .message = "publishing"};
    create(w, "", id);
    ok(ft_job_publish(&w->home, id, 7, &moved, &info), &info);
    assert_false(moved); // it is being validated
    ok(ft_job_move(&w->home, id, &run, &moved, &info), &info);
    ok(ft_job_publish(&w->home, id, 7, &moved, &info), &info);
    assert_true(moved);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(ft_job_act(&w->home, me, id, FT_JOB_CANCEL, &j, &info), ERR_INVALID);
        assert_non_null(strstr(info.message, "is being published and cannot be cancelled"));
        assert_int_equal(ft_job_act(&w->home, me, id, FT_JOB_PAUSE, &j, &info), ERR_INVALID);
        ft_home_close(&w->home);
        open_home(w);
        int64_t n;
        ok(ft_jobs_recover(&w->home, &n, &info), &info);
        assert_int_equal(n, i == 0);
        ok(ft_job_get(&w->home, me, id, &j, &info), &info);
        assert_true(j.version == 7 && j.state == FT_JOB_QUEUED);
        ft_job_fini(&j);
    }
    ok(ft_job_publish(&w->home, id, 0, &moved, &info), &info); // it came to nothing
    ok(ft_job_act(&w->home, me, id, FT_JOB_CANCEL, &j, &info), &info);
    ft_job_fini(&j);
    create(w, "", other);
    ok(ft_job_move(&w->home, other, &run, &moved, &info), &info);
    ok(ft_job_act(&w->home, me, other, FT_JOB_CANCEL, &j, &info), &info);
    ft_job_fini(&j);
    ok(ft_job_publish(&w->home, other, 8, &moved, &info), &info);
    assert_false(moved);
}

// From a name to the job, or to its checkpoint; and nothing from what only looks like one.
static void test_models(void **state) {
    struct world *w = *state;
    char id[FT_ID_MAX], name[400], text[480], found[FT_ID_MAX];
    struct ft_job j;
    struct err_info info = {0};
    int64_t step;
    create(w, "\"suffix\":\"s\"", id);
    j = get(w, id);
    ft_job_model_name(&j, "s", name, sizeof name);
    ok(ft_job_of_model(&w->home, name, &j, &info), &info);
    assert_string_equal(j.id, id);
    ft_job_fini(&j);
    static const char *const others[] = {
        "", "ft:", "ft:tiny:graft:s:", "tiny", "ft:tiny:graft:s:0123456789ab", "ft:::::::::::~"};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        assert_int_equal(ft_job_of_model(&w->home, others[i], &j, &info), ERR_NO_MODEL);
    snprintf(text, sizeof text, "ft:tiny:graft:other%s", strrchr(name, ':'));
    assert_int_equal(ft_job_of_model(&w->home, text, &j, &info), ERR_NO_MODEL);
    for (int i = 1; i <= 5; i++)
        ok(ft_checkpoint_add(&w->home, id, 10 * i, name, "{}", &info), &info);
    ok(ft_checkpoints_keep(&w->home, id, 3, &info), &info);
    ok(ft_checkpoints_keep(&w->home, id, 0, &info), &info);
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
    json_set_alloc_funcs(malloc, free);
    struct err_info info = {0};
    char id[FT_ID_MAX] = "", other[FT_ID_MAX];
    create(w, "\"metadata\": {\"a\": \"b\"}", id);
    enum err e = ERR_NOMEM;
    for (uint64_t nth = 1; e; nth++) {
        struct ft_job j;
        bool more;
        struct ft_job_query q = {.limit = 10, .n_metadata = 1};
        q.metadata[0].key = "a";
        q.metadata[0].value = "b";
        mem_fail_after(nth, false);
        e = try_create(w, 0, "", other, &info);
        if (!e)
            e = ft_job_list(&w->home, &q, none, NULL, &more, &info);
        if (!e && !(e = ft_job_get(&w->home, mine, id, &j, &info)))
            ft_job_fini(&j);
        if (!e)
            e = ft_job_next(&w->home, FT_JOB_VALIDATING, &j, &info);
        if (!e)
            ft_job_fini(&j);
        if (!e)
            e = act(w, other, FT_JOB_CANCEL, &info);
        mem_fail_after(0, false);
        if (e && e != ERR_NOMEM)
            fail_msg("allocation %llu: %s", (unsigned long long)nth, info.message);
        assert_true(nth < 300);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_create, setup, teardown),
        cmocka_unit_test_setup_teardown(test_actions, setup, teardown),
        cmocka_unit_test_setup_teardown(test_bad_files, setup, teardown),
        cmocka_unit_test_setup_teardown(test_cancel_while_validating, setup, teardown),
        cmocka_unit_test_setup_teardown(test_priority, setup, teardown),
        cmocka_unit_test_setup_teardown(test_failures, setup, teardown),
        cmocka_unit_test_setup_teardown(test_no_trainer, setup, teardown),
        cmocka_unit_test_setup_teardown(test_late_ends, setup, teardown),
        cmocka_unit_test_setup_teardown(test_restart, setup, teardown),
        cmocka_unit_test_setup_teardown(test_progress, setup, teardown),
        cmocka_unit_test_setup_teardown(test_record, setup, teardown),
        cmocka_unit_test_setup_teardown(test_result, setup, teardown),
        cmocka_unit_test_setup_teardown(test_publish, setup, teardown),
        cmocka_unit_test_setup_teardown(test_models, setup, teardown),
        cmocka_unit_test_setup_teardown(test_without_memory, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

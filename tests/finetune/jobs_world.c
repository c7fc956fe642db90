// SPDX-License-Identifier: Apache-2.0
#include "tests/finetune/jobs_world.h"
#include "base/mem.h"
#include "tests/finetune/home_fixture.h"
#include "tests/support/cmocka_all.h"
#include "tests/support/temp_folder.h"
#include "tests/support/wait.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void jw_open_home(struct world *w) {
    struct err_info info = {0};
    const struct ft_home_config cfg = {
        .path = w->folder, .clock = &w->clock.clock, .max_file_bytes = 1 << 20};
    assert_ok(ft_home_open(&w->home, &cfg, &info), &info);
}

void jw_upload(struct world *w, char id[FT_ID_MAX]) {
    struct err_info info = {0};
    assert_ok(home_upload(&w->home, "{}\n", 3, id, &info), &info);
}

int jw_setup(void **state) {
    struct world *w = calloc(1, sizeof *w);
    temp_folder(w->folder, "jobs");
    clock_manual_init(&w->clock, 1, 1700000000LL * 1000000000);
    pthread_mutex_init(&w->mutex, NULL);
    w->obey = true;
    jw_open_home(w);
    jw_upload(w, w->file);
    *state = w;
    return 0;
}

int jw_teardown(void **state) {
    struct world *w = *state;
    ft_control_stop(w->control);
    ft_home_close(&w->home);
    temp_remove(w->folder);
    pthread_mutex_destroy(&w->mutex);
    free(w);
    assert_int_equal(mem_live_blocks(), 0);
    return 0;
}

enum err jw_try_create(struct world *w, uint64_t tenant, const char *body, char id[FT_ID_MAX],
                       struct err_info *info) {
    char fields[1024];
    snprintf(fields, sizeof fields, "%s%s", body[0] ? ", " : "", body);
    return home_job_create(&w->home, tenant, w->file, fields, id, info);
}

void jw_create(struct world *w, const char *body, char id[FT_ID_MAX]) {
    struct err_info info = {0};
    assert_ok(jw_try_create(w, 0, body, id, &info), &info);
}

struct ft_job jw_get(struct world *w, const char *id) {
    struct err_info info = {0};
    struct ft_job j;
    assert_ok(ft_job_get(&w->home, jw_mine, id, &j, &info), &info);
    ft_job_fini(&j);
    return j;
}

void jw_wait_state(struct world *w, const char *id, enum ft_job_state s) {
    for (struct wait wait = {0}; wait_more(&wait);)
        if (jw_get(w, id).state == s)
            return;
    fail_msg("%s is %s, not %s", id, ft_job_state_text(jw_get(w, id).state), ft_job_state_text(s));
}

enum err jw_act(struct world *w, const char *id, enum ft_job_action a, struct err_info *info) {
    struct ft_job j;
    enum err e = ft_job_act(&w->home, jw_mine, id, a, &j, info);
    if (!e)
        ft_job_fini(&j);
    ft_control_wake(w->control);
    return e;
}

static void add_text(void *arg, const struct ft_event *e) {
    struct texts *t = arg;
    size_t n = strlen(t->all);
    snprintf(t->all + n, sizeof t->all - n, "%s:%s\n", e->level, e->message);
    t->n++;
}

void jw_events(struct world *w, const char *id, struct texts *t) {
    struct err_info info = {0};
    bool more;
    const struct ft_page page = {.job = id, .after_seq = 0, .limit = 100};
    *t = (struct texts){0};
    assert_ok(ft_event_list(&w->home, &page, add_text, t, &more, NULL, &info), &info);
}

void jw_assert_event(struct world *w, const char *id, const char *text) {
    struct texts t;
    jw_events(w, id, &t);
    if (!strstr(t.all, text))
        fail_msg("'%s' is not in:\n%s", text, t.all);
}

enum err jw_run_validate(void *arg, const struct ft_job *j, bool (*cancelled)(void *arg),
                         void *cancelled_arg, struct ft_job_failure *why, struct err_info *info) {
    struct world *w = arg;
    (void)j;
    pthread_mutex_lock(&w->mutex);
    w->n_validated++;
    enum err e = w->valid;
    bool slow = w->slow;
    pthread_mutex_unlock(&w->mutex);
    while (slow && !cancelled(cancelled_arg))
        wait_nap();
    if (slow)
        return err_set(info, ERR_CANCELLED, NULL, "cancelled");
    if (e == ERR_INVALID)
        snprintf(why->code, sizeof why->code, "invalid_jsonl");
    return e ? err_set(info, e, NULL, "line 7 is not a JSON object") : ERR_OK;
}

enum err jw_run_start(void *arg, const struct ft_job *j, struct err_info *info) {
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

void jw_end_job(struct world *w, const struct ft_job_end *end) {
    pthread_mutex_lock(&w->mutex);
    w->running[0] = '\0';
    pthread_mutex_unlock(&w->mutex);
    ft_control_ended(w->control, end);
}

void jw_run_stop(void *arg, enum ft_stop why) {
    struct world *w = arg;
    pthread_mutex_lock(&w->mutex);
    w->n_stopped++;
    w->why = (int)why;
    bool end = w->obey && w->running[0];
    pthread_mutex_unlock(&w->mutex);
    if (end)
        jw_end_job(w, &(struct ft_job_end){.how = FT_END_STOPPED});
}

static void stalls(void *arg, const char *id, char *reason, size_t cap) {
    struct world *w = arg;
    const char *why = w->stall;
    (void)id;
    if (why)
        snprintf(reason, cap, "%s", why);
}

void jw_start_control(struct world *w) {
    struct err_info info = {0};
    const struct ft_job_runner r = {.validate = jw_run_validate,
                                    .start = jw_run_start,
                                    .stop = jw_run_stop,
                                    .arg = w,
                                    .stalls = stalls,
                                    .stalls_arg = w};
    assert_ok(ft_control_start(&w->home, &r, &w->control, &info), &info);
}

void jw_succeed(struct world *w) {
    jw_end_job(
        w, &(struct ft_job_end){.how = FT_END_SUCCEEDED, .fine_tuned_model = "ft:tiny:graft::x"});
}

void jw_wait_running(struct world *w, const char *id) {
    for (struct wait wait = {0}; wait_more(&wait);) {
        pthread_mutex_lock(&w->mutex);
        bool is = !strcmp(w->running, id);
        pthread_mutex_unlock(&w->mutex);
        if (is)
            return;
    }
    fail_msg("%s does not run, but %s", id, w->running);
}

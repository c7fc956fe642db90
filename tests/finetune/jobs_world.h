// SPDX-License-Identifier: Apache-2.0
// A data folder with one file, jobs in it, and a control thread whose runner the test plays.
// Failures end the test (cmocka).
#pragma once
#include "finetune/job_control.h"
#include "finetune/job_log.h"
#include "tests/support/assert_ok.h"
#include "tests/support/temp_folder.h"
#include <pthread.h>
#include <stdbool.h>

struct world {
    char folder[TEMP_PATH];
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
    _Atomic int why;             // enum ft_stop
    _Atomic bool obey;           // stop ends the job at once
    _Atomic(const char *) stall; // why the job makes no progress; NULL: it does
};

struct texts {
    char all[4000]; // "level:message", oldest first, a line each
    int n;
};

static const struct ft_job_owner jw_mine = {0, false};

int jw_setup(void **state); // *state: a struct world
int jw_teardown(void **state);
void jw_open_home(struct world *w);
void jw_upload(struct world *w, char id[FT_ID_MAX]);

// A job with more fields ("\"seed\": 1", or ""). ERR_NOMEM also where the request could not be
// read.
enum err jw_try_create(struct world *w, uint64_t tenant, const char *body, char id[FT_ID_MAX],
                       struct err_info *info);
void jw_create(struct world *w, const char *body, char id[FT_ID_MAX]);
struct ft_job jw_get(struct world *w, const char *id); // without its request
enum err jw_act(struct world *w, const char *id, enum ft_job_action a, struct err_info *info);
void jw_events(struct world *w, const char *id, struct texts *t);
void jw_assert_event(struct world *w, const char *id, const char *text); // a part of their texts

// The runner.
enum err jw_run_validate(void *arg, const struct ft_job *j, bool (*cancelled)(void *arg),
                         void *cancelled_arg, struct ft_job_failure *why, struct err_info *info);
enum err jw_run_start(void *arg, const struct ft_job *j, struct err_info *info);
void jw_run_stop(void *arg, enum ft_stop why);
void jw_start_control(struct world *w);
void jw_end_job(struct world *w, const struct ft_job_end *end);
void jw_succeed(struct world *w);
void jw_wait_state(struct world *w, const char *id, enum ft_job_state s);
void jw_wait_running(struct world *w, const char *id);

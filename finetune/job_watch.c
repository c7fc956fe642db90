// SPDX-License-Identifier: Apache-2.0
#include "finetune/job_watch.h"
#include <stdio.h>
#include <string.h>

_Static_assert((int)FT_WATCH_STATES == (int)FT_JOB_STATE_COUNT, "home.h counts the states");

#define BIT(s) (1u << FT_JOB_##s)

enum err ft__watch_init(struct ft_home *h, struct metrics *m) {
    static const char name[] = "graft_jobs", finished[] = "graft_jobs_finished_total";
    char labels[64];
    bool ok = true;
    if (!m)
        return ERR_OK;
    for (int i = 0; i < FT_JOB_STATE_COUNT; i++) {
        snprintf(labels, sizeof labels, "state=\"%s\"", ft_job_state_text((enum ft_job_state)i));
        h->watch.jobs[i] = metrics_gauge(m, name, labels, "Fine-tuning jobs by state.");
        ok = ok && h->watch.jobs[i];
    }
    h->watch.waiting = metrics_gauge(m, "graft_jobs_waiting", NULL,
                                     "Fine-tuning jobs that validate, are queued or paused.");
    ok = ok && h->watch.waiting;
    for (int i = 0; i < FT_JOB_STATE_COUNT; i++) {
        if (!ft_job_state_final((enum ft_job_state)i))
            continue;
        snprintf(labels, sizeof labels, "outcome=\"%s\"", ft_job_state_text((enum ft_job_state)i));
        h->watch.finished[i] = metrics_counter(
            m, finished, labels, "Fine-tuning jobs that ended since the start, by outcome.");
        ok = ok && h->watch.finished[i];
    }
    return ok ? ERR_OK : ERR_NOMEM;
}

static void add(struct ft_home *h, enum ft_job_state s, double n) {
    metric_add(h->watch.jobs[s], n);
    if (1u << s & (BIT(VALIDATING) | BIT(QUEUED) | BIT(PAUSED)))
        metric_add(h->watch.waiting, n);
}

enum err ft__watch_count(struct ft_home *h, struct err_info *info) {
    struct db_rows q;
    enum ft_job_state s;
    for (int i = 0; i < FT_JOB_STATE_COUNT; i++)
        metric_set(h->watch.jobs[i], 0);
    metric_set(h->watch.waiting, 0);
    enum err e = db_begin(h->db, info);
    if (e)
        return e;
    e = db_query(h->db, &q, info, "SELECT state, count(*) FROM jobs GROUP BY state", DB_NONE);
    while (!e && db_next(&q))
        if (ft_job_state_parse(db_text(&q, 0), &s))
            add(h, s, (double)db_int(&q, 1));
    return db_end(h->db, e ? e : db_rows_end(&q, info), info);
}

void ft__watch_created(struct ft_home *h, const char *id) {
    add(h, FT_JOB_VALIDATING, 1);
    log_write(h->log, LOG_INFO, "%s: created", id);
}

// Messages about the texts of graft.evaluation quote them, and what the model answered.
static bool quotes(const struct ft_job_move *m) {
    static const char *const plain[] = {"graft.evaluation.max_valid_loss",
                                        "graft.evaluation.min_improvement"};
    static const char of[] = "graft.evaluation";
    if (!m->error_param || strncmp(m->error_param, of, sizeof of - 1) != 0)
        return false;
    for (size_t i = 0; i < sizeof plain / sizeof *plain; i++)
        if (!strcmp(m->error_param, plain[i]))
            return false;
    return true;
}

static enum log_level level_of(const char *level) {
    return !strcmp(level, "error") ? LOG_ERROR : !strcmp(level, "warn") ? LOG_WARN : LOG_INFO;
}

void ft__watch_moved(struct ft_home *h, const char *id, enum ft_job_state from,
                     const struct ft_job_move *m) {
    const char *was = ft_job_state_text(from), *is = ft_job_state_text(m->to);
    add(h, from, -1);
    add(h, m->to, 1);
    metric_add(h->watch.finished[m->to], 1);
    if (m->to == FT_JOB_FAILED)
        log_write(h->log, LOG_ERROR, "%s: %s -> failed, %s%s%s: %s", id, was,
                  m->error_code ? m->error_code : "no code", m->error_param ? " " : "",
                  m->error_param ? m->error_param : "",
                  quotes(m) ? "its events say what was found" : m->message);
    else
        log_write(h->log, level_of(m->level), "%s: %s -> %s: %s%s%s", id, was, is, m->message,
                  m->fine_tuned_model ? ", model " : "",
                  m->fine_tuned_model ? m->fine_tuned_model : "");
}

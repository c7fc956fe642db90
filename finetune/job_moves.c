// SPDX-License-Identifier: Apache-2.0
// What the control thread and the runner do to jobs.
#include "finetune/job_watch.h"
#include "finetune/jobs_internal.h"
#include <stdio.h>
#include <string.h>

// Times that a state sets when it is entered.
static const char *time_of(enum ft_job_state to) {
    if (to == FT_JOB_QUEUED)
        return ", queued_at = ?4";
    if (to == FT_JOB_RUNNING)
        return ", started_at = coalesce(started_at, ?4)";
    return ft_job_state_final(to) ? ", finished_at = ?4, estimated_finish = NULL" : "";
}

enum err ft__job_change(struct ft_home *h, int64_t seq, const struct ft_job_move *m,
                        struct err_info *info) {
    char sql[512];
    snprintf(sql, sizeof sql,
             "UPDATE jobs SET state = ?2, reason = ?3, error_code = ?5, error_message = ?6,"
             " error_param = ?7, fine_tuned_model = coalesce(?8, fine_tuned_model),"
             " attempts = attempts + ?9%s WHERE seq = ?1",
             time_of(m->to));
    enum err e = db_run(h->db, NULL, info, sql,
                        DB_ARGS(db_i(seq), db_t(ft_job_state_text(m->to)), db_t(m->reason),
                                db_i(ft_now(h)), db_t(m->error_code), db_t(m->error_message),
                                db_t(m->error_param), db_t(m->fine_tuned_model), db_i(m->tried)));
    if (!e)
        e = ft__event_insert(h, seq, m->level, "message", m->message, NULL, info);
    return e ? e : ft__messages_trim(h, seq, info);
}

static const struct ft_job_owner anyone = {.any = true};

static enum err move(struct ft_home *h, const char *id, const struct ft_job_move *m, bool *moved,
                     struct err_info *info) {
    int64_t seq;
    enum ft_job_state state;
    *moved = false;
    enum err e = db_begin(h->db, info);
    if (e)
        return e;
    e = ft__job_seq(h, anyone, id, &seq, &state, info);
    if (!e && m->from & 1u << state) {
        *moved = true;
        e = ft__job_change(h, seq, m, info);
    }
    e = db_end(h->db, e, info);
    if (e)
        *moved = false;
    if (*moved) {
        ft__events_bump(h);
        ft__watch_moved(h, id, state, m);
    }
    return e;
}

enum err ft_job_move(struct ft_home *h, const char *id, const struct ft_job_move *m, bool *moved,
                     struct err_info *info) {
    enum err e;
    int tries = 0;
    do
        e = move(h, id, m, moved, info);
    while (ft__again(e, &tries));
    return e;
}

enum err ft_job_next(struct ft_home *h, enum ft_job_state state, struct ft_job *out,
                     struct err_info *info) {
    struct db_rows q;
    struct err_info row = {0};
    *out = (struct ft_job){0};
    enum err e = db_begin(h->db, info);
    if (e)
        return e;
    e = db_query(h->db, &q, info,
                 state == FT_JOB_QUEUED
                     ? "SELECT " FT_JOB_COLUMNS
                       " FROM jobs WHERE state = ? ORDER BY priority, seq LIMIT 1"
                     : "SELECT " FT_JOB_COLUMNS " FROM jobs WHERE state = ? ORDER BY seq LIMIT 1",
                 DB_ARGS(db_t(ft_job_state_text(state))));
    if (!e && db_next(&q))
        ft__job_read(&q, out, &row);
    e = db_rows_end(&q, info);
    if (!e && row.code) {
        *info = row;
        e = row.code;
    }
    enum err end = db_end(h->db, e, info);
    if (end)
        ft_job_fini(out);
    return end;
}

static enum err recover_one(struct ft_home *h, int64_t *seq, struct err_info *info) {
    static const struct ft_job_move back = {
        .to = FT_JOB_QUEUED,
        .reason = "the server was restarted",
        .level = "warn",
        .message = "The server was restarted; the job goes on from its newest checkpoint",
    };
    struct db_rows q;
    *seq = 0;
    enum err e = db_query(h->db, &q, info,
                          "SELECT seq FROM jobs WHERE state IN ('running', 'evaluating',"
                          " 'publishing') LIMIT 1",
                          DB_NONE);
    if (!e && db_next(&q))
        *seq = db_int(&q, 0);
    e = db_rows_end(&q, info);
    return !e && *seq ? ft__job_change(h, *seq, &back, info) : e;
}

static enum err recover(struct ft_home *h, int64_t *n, struct err_info *info) {
    int64_t seq = 0;
    *n = 0;
    enum err e = db_begin(h->db, info);
    if (e)
        return e;
    do {
        e = recover_one(h, &seq, info);
        *n += !e && seq;
    } while (!e && seq);
    return db_end(h->db, e, info);
}

enum err ft_jobs_recover(struct ft_home *h, int64_t *n, struct err_info *info) {
    enum err e;
    int tries = 0;
    do
        e = recover(h, n, info);
    while (ft__again(e, &tries));
    return e;
}

#define TO_BE_TOLD " WHERE state IN (?2, ?3) AND reason IS NOT ?1"

static enum err tell_and_mark(struct ft_home *h, unsigned states, const char *reason, int64_t *told,
                              struct err_info *info) {
    char message[FT_JOB_REASON_MAX + 32];
    const char *queued = states & 1u << FT_JOB_QUEUED ? "queued" : "";
    const char *validating = states & 1u << FT_JOB_VALIDATING ? "validating_files" : "";
    snprintf(message, sizeof message, "The job waits%s: %s", *validating ? "" : " in the queue",
             reason);
    enum err e = db_run(
        h->db, told, info,
        "INSERT INTO job_events (id, job, created_at, level, type, message)"
        " SELECT 'ftevent-' || lower(hex(randomblob(12))), seq, ?4, 'warn',"
        " 'message', ?5 FROM jobs" TO_BE_TOLD,
        DB_ARGS(db_t(reason), db_t(queued), db_t(validating), db_i(ft_now(h)), db_t(message)));
    return e || !*told ? e
                       : db_run(h->db, NULL, info, "UPDATE jobs SET reason = ?1" TO_BE_TOLD,
                                DB_ARGS(db_t(reason), db_t(queued), db_t(validating)));
}

static enum err wait_all(struct ft_home *h, unsigned states, const char *reason,
                         struct err_info *info) {
    int64_t told = 0;
    enum err e = db_begin(h->db, info);
    if (e)
        return e;
    e = db_end(h->db, tell_and_mark(h, states, reason, &told, info), info);
    if (!e && told)
        ft__events_bump(h);
    return e;
}

enum err ft_jobs_wait(struct ft_home *h, unsigned states, const char *reason,
                      struct err_info *info) {
    enum err e;
    int tries = 0;
    do
        e = wait_all(h, states, reason, info);
    while (ft__again(e, &tries));
    return e;
}

enum err ft_jobs_wait_over(struct ft_home *h, const char *reason, struct err_info *info) {
    enum err e;
    int tries = 0;
    do {
        if ((e = db_begin(h->db, info)))
            continue;
        e = db_run(h->db, NULL, info,
                   "UPDATE jobs SET reason = NULL WHERE state IN ('queued', 'validating_files')"
                   " AND reason = ?",
                   DB_ARGS(db_t(reason)));
        e = db_end(h->db, e, info);
    } while (ft__again(e, &tries));
    return e;
}

static struct db_value or_null(int64_t v) {
    return v < 0 ? db_t(NULL) : db_i(v);
}

static enum err update(struct ft_home *h, int64_t seq, const struct ft_job_progress *p,
                       struct err_info *info) {
    return db_run(h->db, NULL, info,
                  "UPDATE jobs SET step = coalesce(?2, step), steps = coalesce(?3, steps),"
                  " trained_tokens = coalesce(?4, trained_tokens),"
                  " estimated_finish = CASE WHEN finished_at IS NULL"
                  "   THEN coalesce(?5, estimated_finish) END,"
                  " hyper = coalesce(?6, hyper),"
                  " prepared_at = CASE WHEN ?7 THEN ?10 ELSE prepared_at END,"
                  " first_step_at = CASE WHEN ?8 THEN coalesce(first_step_at, ?10)"
                  "   ELSE first_step_at END,"
                  " checkpoint_at = CASE WHEN ?9 THEN ?10 ELSE checkpoint_at END WHERE seq = ?1",
                  DB_ARGS(db_i(seq), or_null(p->step), or_null(p->steps),
                          or_null(p->trained_tokens), or_null(p->estimated_finish), db_t(p->hyper),
                          db_i(p->prepared), db_i(p->first_step), db_i(p->checkpoint),
                          db_i(ft_now(h))));
}

static enum err record(struct ft_home *h, const char *id, const struct ft_job_record *r,
                       struct err_info *info) {
    int64_t seq;
    enum err e = ft__job_seq(h, anyone, id, &seq, NULL, info);
    if (!e)
        e = update(h, seq, &r->progress, info);
    if (!e && r->level)
        e = ft__event_insert(h, seq, r->level, r->type, r->message, r->data, info);
    if (!e && r->model)
        e = ft__checkpoint_insert(h, seq, r->checkpoint_step, r->model, r->metrics, info);
    return e;
}

enum err ft_job_record(struct ft_home *h, const char *id, const struct ft_job_record *r,
                       struct err_info *info) {
    enum err e;
    int tries = 0;
    do {
        if (!(e = db_begin(h->db, info)))
            e = db_end(h->db, record(h, id, r, info), info);
    } while (ft__again(e, &tries));
    if (!e && r->level)
        ft__events_bump(h);
    return e;
}

enum err ft_job_progress(struct ft_home *h, const char *id, const struct ft_job_progress *p,
                         struct err_info *info) {
    const struct ft_job_record r = {.progress = *p};
    return ft_job_record(h, id, &r, info);
}

static enum err publish(struct ft_home *h, const char *id, uint64_t version, bool *moved,
                        struct err_info *info) {
    int64_t seq;
    enum ft_job_state state;
    *moved = false;
    enum err e = db_begin(h->db, info);
    if (e)
        return e;
    e = ft__job_seq(h, anyone, id, &seq, &state, info);
    bool may = !e && (!version || state == FT_JOB_PUBLISHING);
    if (may)
        e = db_run(h->db, NULL, info, "UPDATE jobs SET version = ?2 WHERE seq = ?1",
                   DB_ARGS(db_i(seq), version ? db_i((int64_t)version) : db_t(NULL)));
    e = db_end(h->db, e, info);
    *moved = may && !e;
    return e;
}

enum err ft_job_publish(struct ft_home *h, const char *id, uint64_t version, bool *moved,
                        struct err_info *info) {
    enum err e;
    int tries = 0;
    do
        e = publish(h, id, version, moved, info);
    while (ft__again(e, &tries));
    return e;
}

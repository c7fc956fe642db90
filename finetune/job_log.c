// SPDX-License-Identifier: Apache-2.0
#include "finetune/job_log.h"
#include "finetune/jobs_internal.h"
#include <stdio.h>
#include <string.h>

uint64_t ft_events_count(const struct ft_home *h) {
    return atomic_load_explicit(&h->events, memory_order_acquire);
}

void ft__events_bump(struct ft_home *h) {
    atomic_fetch_add_explicit(&h->events, 1, memory_order_acq_rel);
}

// Every how many of n, so that FT_STEPS_TOLD at most are left.
static int64_t stride(int64_t n) {
    return n > 0 ? (n - 1) / FT_STEPS_TOLD + 1 : 1;
}

bool ft_step_is_told(int64_t step, int64_t steps, int64_t eval_steps) {
    if (step == 1 || step == steps || step % stride(steps) == 0)
        return true;
    return eval_steps > 0 && step % eval_steps == 0 &&
           step / eval_steps % stride(steps / eval_steps) == 0;
}

enum err ft__messages_trim(struct ft_home *h, int64_t job_seq, struct err_info *info) {
    return db_run(h->db, NULL, info,
                  "DELETE FROM job_events WHERE job = ?1 AND type = 'message' AND seq <= (SELECT "
                  "seq FROM job_events WHERE job = ?1 AND type = 'message' ORDER BY seq DESC LIMIT "
                  "1 OFFSET ?2)",
                  DB_ARGS(db_i(job_seq), db_i(FT_MESSAGES_MAX)));
}

enum err ft__event_insert(struct ft_home *h, int64_t job_seq, const char *level, const char *type,
                          const char *message, const char *data, struct err_info *info) {
    char id[FT_ID_MAX];
    enum err e = ft_id_make("ftevent-", id, info);
    if (e)
        return e;
    return db_run(h->db, NULL, info,
                  "INSERT INTO job_events (id, job, created_at, level, type, message, data)"
                  " VALUES (?, ?, ?, ?, ?, ?, ?)",
                  DB_ARGS(db_t(id), db_i(job_seq), db_i(ft_now(h)), db_t(level), db_t(type),
                          db_t(message), db_t(data)));
}

enum err ft__job_seq(struct ft_home *h, struct ft_job_owner owner, const char *id, int64_t *seq,
                     enum ft_job_state *state, struct err_info *info) {
    struct db_rows q;
    bool found = false, known = true;
    enum err e =
        db_query(h->db, &q, info, "SELECT seq, state FROM jobs WHERE id = ? AND (?2 OR tenant = ?)",
                 DB_ARGS(db_t(id), db_i(owner.any), db_i((int64_t)owner.tenant)));
    if (!e && db_next(&q)) {
        found = true;
        *seq = db_int(&q, 0);
        known = !state || ft_job_state_parse(db_text(&q, 1), state);
    }
    e = db_rows_end(&q, info);
    if (e)
        return e;
    if (!known)
        return err_set(info, ERR_IO, NULL, "%.64s is in a state that is none", id);
    return found ? ERR_OK
                 : err_set(info, ERR_NOT_FOUND, "fine_tuning_job_id",
                           "Could not find fine tune: %.64s", id);
}

static enum err in_transaction(struct ft_home *h, const char *job, const char *level,
                               const char *type, const char *message, const char *data,
                               struct err_info *info) {
    int64_t seq;
    enum err e = ft__job_seq(h, (struct ft_job_owner){.any = true}, job, &seq, NULL, info);
    return e ? e : ft__event_insert(h, seq, level, type, message, data, info);
}

enum err ft_event_add(struct ft_home *h, const char *job, const char *level, const char *type,
                      const char *message, const char *data, struct err_info *info) {
    enum err e;
    int tries = 0;
    do {
        if (!(e = db_begin(h->db, info)))
            e = db_end(h->db, in_transaction(h, job, level, type, message, data, info), info);
    } while (ft__again(e, &tries));
    if (!e)
        ft__events_bump(h);
    return e;
}

// The place of the cursor in the table: the first row of a page, newest first, is below it.
static enum err cursor(struct ft_home *h, const char *sql, const struct ft_page *p, int64_t job,
                       int64_t *seq, struct err_info *info) {
    struct db_rows q;
    bool found = false;
    *seq = INT64_MAX;
    if (!p->after)
        return ERR_OK;
    enum err e = db_query(h->db, &q, info, sql, DB_ARGS(db_t(p->after), db_i(job)));
    if (!e && db_next(&q)) {
        *seq = db_int(&q, 0);
        found = true;
    }
    e = db_rows_end(&q, info);
    if (e || found)
        return e;
    return err_set(info, ERR_NOT_FOUND, "after", "after: the job has no %.64s", p->after);
}

static enum err events(struct ft_home *h, const struct ft_page *p,
                       void (*each)(void *arg, const struct ft_event *e), void *arg, bool *more,
                       bool *final, struct err_info *info) {
    struct db_rows q;
    int64_t job, below, n = 0;
    enum ft_job_state state;
    enum err e = ft__job_seq(h, p->owner, p->job, &job, &state, info);
    if (!e)
        e = cursor(h, "SELECT seq FROM job_events WHERE id = ? AND job = ?", p, job, &below, info);
    if (e)
        return e;
    if (final)
        *final = ft_job_state_final(state);
    bool forward = p->after_seq >= 0;
    e = db_query(
        h->db, &q, info,
        forward ? "SELECT seq, id, created_at, level, type, message, data FROM job_events"
                  " WHERE job = ? AND seq > ? ORDER BY seq LIMIT ?"
                : "SELECT seq, id, created_at, level, type, message, data FROM job_events"
                  " WHERE job = ? AND seq < ? ORDER BY seq DESC LIMIT ?",
        DB_ARGS(db_i(job), db_i(forward && !p->after ? p->after_seq : below), db_i(p->limit + 1)));
    while (!e && db_next(&q)) {
        if (n++ == p->limit) {
            *more = true;
            break;
        }
        struct ft_event event = {.seq = db_int(&q, 0), .created_at = db_int(&q, 2)};
        db_copy(&q, 1, event.id, sizeof event.id);
        event.level = db_text(&q, 3);
        event.type = db_text(&q, 4);
        event.message = db_text(&q, 5);
        event.data = db_text(&q, 6);
        if (!q.rc)
            each(arg, &event);
    }
    return db_rows_end(&q, info);
}

enum err ft_event_list(struct ft_home *h, const struct ft_page *p,
                       void (*each)(void *arg, const struct ft_event *e), void *arg, bool *more,
                       bool *final, struct err_info *info) {
    *more = false;
    enum err e = db_begin(h->db, info);
    return e ? e : db_end(h->db, events(h, p, each, arg, more, final, info), info);
}

// ---- checkpoints

enum err ft__checkpoint_insert(struct ft_home *h, int64_t seq, int64_t step, const char *model,
                               const char *metrics, struct err_info *info) {
    char id[FT_ID_MAX], name[512];
    enum err e = ft_id_make("ftckpt_", id, info);
    snprintf(name, sizeof name, "%s:ckpt-step-%lld", model, (long long)step);
    if (!e)
        e = db_run(
            h->db, NULL, info,
            "INSERT INTO job_checkpoints (id, job, created_at, step, model, metrics)"
            " VALUES (?, ?, ?, ?, ?, ?)"
            " ON CONFLICT (job, step) DO UPDATE SET metrics = excluded.metrics",
            DB_ARGS(db_t(id), db_i(seq), db_i(ft_now(h)), db_i(step), db_t(name), db_t(metrics)));
    return e;
}

enum err ft_checkpoint_add(struct ft_home *h, const char *job, int64_t step, const char *model,
                           const char *metrics, struct err_info *info) {
    const struct ft_job_record r = {.progress = {-1, -1, -1, -1, NULL, false, false, true},
                                    .checkpoint_step = step,
                                    .model = model,
                                    .metrics = metrics};
    return ft_job_record(h, job, &r, info);
}

static enum err checkpoints(struct ft_home *h, const struct ft_page *p,
                            void (*each)(void *arg, const struct ft_checkpoint_row *c), void *arg,
                            bool *more, struct err_info *info) {
    struct db_rows q;
    int64_t job, below, n = 0;
    enum err e = ft__job_seq(h, p->owner, p->job, &job, NULL, info);
    if (!e)
        e = cursor(h, "SELECT seq FROM job_checkpoints WHERE id = ? AND job = ?", p, job, &below,
                   info);
    if (e)
        return e;
    e = db_query(h->db, &q, info,
                 "SELECT id, created_at, step, model, metrics FROM job_checkpoints"
                 " WHERE job = ? AND seq < ? ORDER BY seq DESC LIMIT ?",
                 DB_ARGS(db_i(job), db_i(below), db_i(p->limit + 1)));
    while (!e && db_next(&q)) {
        if (n++ == p->limit) {
            *more = true;
            break;
        }
        struct ft_checkpoint_row c = {
            .created_at = db_int(&q, 1), .step = db_int(&q, 2), .job = p->job};
        db_copy(&q, 0, c.id, sizeof c.id);
        c.model = db_text(&q, 3);
        c.metrics = db_text(&q, 4);
        if (!q.rc)
            each(arg, &c);
    }
    return db_rows_end(&q, info);
}

enum err ft_checkpoint_list(struct ft_home *h, const struct ft_page *p,
                            void (*each)(void *arg, const struct ft_checkpoint_row *c), void *arg,
                            bool *more, struct err_info *info) {
    *more = false;
    enum err e = db_begin(h->db, info);
    return e ? e : db_end(h->db, checkpoints(h, p, each, arg, more, info), info);
}

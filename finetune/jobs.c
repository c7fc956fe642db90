// SPDX-License-Identifier: Apache-2.0
// Jobs as clients see them: made, read, listed, cancelled, paused, resumed. What the control thread
// does to them is in job_moves.c.
#include "finetune/jobs.h"
#include "base/buf.h"
#include "base/json_write.h"
#include "base/mem.h"
#include "finetune/cleanup.h"
#include "finetune/files.h"
#include "finetune/job_watch.h"
#include "finetune/jobs_internal.h"
#include <stdio.h>
#include <string.h>

struct state_row {
    const char *text, *status;
};
static const struct state_row states[FT_JOB_STATE_COUNT] = {
#define X(name, text, status) [FT_JOB_##name] = {text, status},
    FT_JOB_STATES(X)
#undef X
};

const char *ft_job_state_text(enum ft_job_state s) {
    return states[s].text;
}

const char *ft_job_state_status(enum ft_job_state s) {
    return states[s].status;
}

bool ft_job_state_final(enum ft_job_state s) {
    return s == FT_JOB_SUCCEEDED || s == FT_JOB_FAILED || s == FT_JOB_CANCELLED;
}

bool ft_job_state_parse(const char *text, enum ft_job_state *out) {
    for (int i = 0; i < FT_JOB_STATE_COUNT; i++)
        if (text && !strcmp(text, states[i].text)) {
            *out = (enum ft_job_state)i;
            return true;
        }
    return false;
}

void ft_job_fini(struct ft_job *j) {
    mem_free(j->request);
    mem_free(j->hyper);
    j->request = j->hyper = NULL;
}

void ft_job_model_name(const struct ft_job *j, const char *suffix, char *out, size_t cap) {
    // The base's name as a part of an adapter's name: its letters without the separators, and short
    // enough that the whole is a name, whatever the suffix.
    static const char kept[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-/";
    char base[41];
    size_t n = 0;
    for (; n < sizeof base - 1 && j->model[n]; n++) {
        char c = j->model[n];
        bool begins = n == 0 || base[n - 1] == '/'; // a part, which must be one
        base[n] = strchr(kept, c) && !(begins && (c == '/' || c == '.')) ? c : '-';
    }
    base[n] = '\0';
    const char *digits = strchr(j->id, '-');
    snprintf(out, cap, "ft:%s:graft:%s:%.*s", base, suffix ? suffix : "", FT_MODEL_ID,
             digits ? digits + 1 : j->id);
}

// ---- rows

static char *own(struct db_rows *q, int col) {
    const char *s = db_text(q, col);
    return mem_strdup(s ? s : "");
}

enum err ft__job_read(struct db_rows *q, struct ft_job *j, struct err_info *info) {
    int c = 0;
    *j = (struct ft_job){.seq = db_int(q, c++)};
    db_copy(q, c++, j->id, sizeof j->id);
    j->tenant = (uint64_t)db_int(q, c++);
    bool known = ft_job_state_parse(db_text(q, c++), &j->state);
    db_copy(q, c++, j->reason, sizeof j->reason);
    j->request = own(q, c++);
    j->hyper = own(q, c++);
    db_copy(q, c++, j->model, sizeof j->model);
    db_copy(q, c++, j->training_file, sizeof j->training_file);
    db_copy(q, c++, j->validation_file, sizeof j->validation_file);
    j->dpo = db_int(q, c++) != 0;
    j->seed = db_int(q, c++);
    j->priority = db_int(q, c++);
    j->attempts = db_int(q, c++);
    db_copy(q, c++, j->fine_tuned_model, sizeof j->fine_tuned_model);
    j->trained_tokens = db_is_null(q, c) ? -1 : db_int(q, c);
    c++;
    j->step = db_int(q, c++);
    j->steps = db_int(q, c++);
    int64_t *const times[] = {&j->created_at,  &j->queued_at,       &j->started_at,
                              &j->prepared_at, &j->first_step_at,   &j->checkpoint_at,
                              &j->finished_at, &j->estimated_finish};
    for (size_t i = 0; i < sizeof times / sizeof *times; i++)
        *times[i] = db_int(q, c++);
    db_copy(q, c++, j->error_code, sizeof j->error_code);
    db_copy(q, c++, j->error_message, sizeof j->error_message);
    db_copy(q, c++, j->error_param, sizeof j->error_param);
    j->version = (uint64_t)db_int(q, c++);
    j->ahead = db_int(q, c++);
    db_copy(q, c++, j->at_work, sizeof j->at_work);
    if (!j->request || !j->hyper || q->rc)
        return err_set(info, ERR_NOMEM, NULL, "out of memory");
    return known ? ERR_OK : err_set(info, ERR_IO, NULL, "%s is in a state that is none", j->id);
}

enum err ft__job_results(struct ft_home *h, struct ft_job *j, struct err_info *info) {
    struct db_rows q;
    j->n_results = 0;
    enum err e = db_query(h->db, &q, info,
                          "SELECT r.file FROM job_results r JOIN files f ON f.id = r.file"
                          " WHERE r.job = ? ORDER BY f.seq",
                          DB_ARGS(db_i(j->seq)));
    while (!e && j->n_results < FT_JOB_RESULTS_MAX && db_next(&q))
        db_copy(&q, 0, j->results[j->n_results++], FT_ID_MAX);
    return db_rows_end(&q, info);
}

enum err ft__job_find(struct ft_home *h, struct ft_job_owner owner, const char *id,
                      const char *param, struct ft_job *out, struct err_info *info) {
    struct db_rows q;
    bool found = false;
    *out = (struct ft_job){0};
    enum err e = db_query(h->db, &q, info,
                          "SELECT " FT_JOB_COLUMNS " FROM jobs WHERE id = ? AND (?2 OR tenant = ?)",
                          DB_ARGS(db_t(id), db_i(owner.any), db_i((int64_t)owner.tenant)));
    struct err_info row = {0};
    if (!e && db_next(&q)) {
        found = true;
        ft__job_read(&q, out, &row);
    }
    e = db_rows_end(&q, info);
    if (!e && row.code) {
        *info = row;
        e = row.code;
    }
    if (!e && !found)
        e = err_set(info, ERR_NOT_FOUND, param, "Could not find fine tune: %.64s", id);
    if (!e)
        e = ft__job_results(h, out, info);
    if (e)
        ft_job_fini(out);
    return e;
}

// ---- making one

static enum err check_file(struct ft_home *h, uint64_t tenant, const char *param, const char *id,
                           struct err_info *info) {
    struct db_rows q;
    char purpose[FT_PURPOSE_MAX] = "", status[16] = "";
    enum err e = db_query(h->db, &q, info,
                          "SELECT purpose, status FROM files WHERE id = ? AND tenant = ?"
                          " AND (expires_at IS NULL OR expires_at > ?)",
                          DB_ARGS(db_t(id), db_i((int64_t)tenant), db_i(ft_now(h))));
    if (!e && db_next(&q)) {
        db_copy(&q, 0, purpose, sizeof purpose);
        db_copy(&q, 1, status, sizeof status);
    }
    e = db_rows_end(&q, info);
    if (e)
        return e;
    if (!purpose[0])
        return err_set(info, ERR_INVALID, param, "%s: there is no file %.64s", param, id);
    if (strcmp(purpose, "fine-tune") != 0)
        return err_set(info, ERR_INVALID, param, "%s: %s has purpose %s, not fine-tune", param, id,
                       purpose);
    if (strcmp(status, "processed") != 0)
        return err_set(info, ERR_INVALID, param, "%s: the content of %s is damaged", param, id);
    return ERR_OK;
}

static enum err check_waiting(struct ft_home *h, struct err_info *info) {
    struct db_rows q;
    int64_t n = 0;
    if (!h->max_waiting)
        return ERR_OK;
    enum err e = db_query(h->db, &q, info,
                          "SELECT count(*) FROM jobs"
                          " WHERE state IN ('validating_files', 'queued', 'paused')",
                          DB_NONE);
    if (!e && db_next(&q))
        n = db_int(&q, 0);
    e = db_rows_end(&q, info);
    if (e || n < h->max_waiting)
        return e;
    return err_set(info, ERR_QUEUE_FULL, NULL,
                   "%lld fine-tuning jobs wait, and %lld may (--max-waiting-jobs); cancel some, or "
                   "try again later",
                   (long long)n, (long long)h->max_waiting);
}

static void put_num(struct buf *out, double v) {
    char text[JW_NUM_TEXT];
    buf_append(out, text, jw_num_text(v, text));
}

static void write_hyper(const struct ft_job_spec *s, struct buf *out) {
    buf_puts(out, "{\"batch_size\":");
    s->batch_size ? buf_printf(out, "%lld", (long long)s->batch_size) : buf_puts(out, "\"auto\"");
    buf_puts(out, ",\"learning_rate_multiplier\":");
    s->learning_rate_multiplier > 0 ? put_num(out, s->learning_rate_multiplier)
                                    : buf_puts(out, "\"auto\"");
    buf_puts(out, ",\"n_epochs\":");
    s->n_epochs ? buf_printf(out, "%lld", (long long)s->n_epochs) : buf_puts(out, "\"auto\"");
    if (s->dpo) {
        buf_puts(out, ",\"beta\":");
        s->beta > 0 ? put_num(out, s->beta) : buf_puts(out, "\"auto\"");
    }
    buf_putc(out, '}');
}

static enum err insert_metadata(struct ft_home *h, int64_t seq, const json_t *metadata,
                                struct err_info *info) {
    const char *key;
    json_t *v;
    json_object_foreach((json_t *)(uintptr_t)metadata, key, v) {
        enum err e =
            db_run(h->db, NULL, info, "INSERT INTO job_metadata (job, key, value) VALUES (?, ?, ?)",
                   DB_ARGS(db_i(seq), db_t(key), db_t(json_string_value(v))));
        if (e)
            return e;
    }
    return ERR_OK;
}

static enum err insert(struct ft_home *h, uint64_t tenant, const struct ft_job_spec *s,
                       int64_t seed, const char *request, const char *hyper, const char *id,
                       struct err_info *info) {
    char message[128];
    enum err e = check_file(h, tenant, "training_file", s->training_file, info);
    if (!e)
        e = check_waiting(h, info);
    if (!e && s->validation_file)
        e = check_file(h, tenant, "validation_file", s->validation_file, info);
    if (!e)
        e = db_run(h->db, NULL, info,
                   "INSERT INTO jobs (id, tenant, state, request, hyper, model, training_file,"
                   " validation_file, dpo, seed, priority, created_at)"
                   " VALUES (?, ?, 'validating_files', ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                   DB_ARGS(db_t(id), db_i((int64_t)tenant), db_t(request), db_t(hyper),
                           db_t(s->model), db_t(s->training_file), db_t(s->validation_file),
                           db_i(s->dpo), db_i(seed), db_i(s->priority), db_i(ft_now(h))));
    if (e)
        return e;
    int64_t seq = db_last_id(h->db);
    e = insert_metadata(h, seq, s->metadata, info);
    snprintf(message, sizeof message, "Created fine-tuning job: %s", id);
    if (!e)
        e = ft__event_insert(h, seq, "info", "message", message, NULL, info);
    snprintf(message, sizeof message, "Validating training file: %s%s%s", s->training_file,
             s->validation_file ? " and validation file: " : "",
             s->validation_file ? s->validation_file : "");
    return e ? e : ft__event_insert(h, seq, "info", "message", message, NULL, info);
}

enum err ft_job_create(struct ft_home *h, uint64_t tenant, const struct ft_job_spec *spec,
                       int64_t seed, const char *request, struct ft_job *out,
                       struct err_info *info) {
    struct buf hyper;
    char id[FT_ID_MAX];
    *out = (struct ft_job){0};
    buf_init(&hyper, 0);
    write_hyper(spec, &hyper);
    enum err e =
        buf_err(&hyper) ? err_set(info, ERR_NOMEM, NULL, "out of memory") : ft_home_room(h, info);
    if (!e && (e = ft_usage_check(h, 0, info)))
        info->param[0] = '\0'; // of no field
    if (!e)
        e = ft_id_make("ftjob-", id, info);
    if (!e)
        e = db_begin(h->db, info);
    if (!e) {
        e = insert(h, tenant, spec, seed, request, hyper.data, id, info);
        // Read within the transaction: once it is kept, nothing may fail any more.
        if (!e)
            e = ft__job_find(h, (struct ft_job_owner){tenant, false}, id, NULL, out, info);
        e = db_end(h->db, e, info);
        if (e) {
            ft_job_fini(out);
        } else {
            ft__events_bump(h);
            ft__watch_created(h, id);
        }
    }
    buf_fini(&hyper);
    return e;
}

// ---- reading

enum err ft_job_get(struct ft_home *h, struct ft_job_owner owner, const char *id,
                    struct ft_job *out, struct err_info *info) {
    enum err e = db_begin(h->db, info);
    if (e)
        return e;
    e = ft__job_find(h, owner, id, "fine_tuning_job_id", out, info);
    enum err end = db_end(h->db, e, info);
    if (!e && end)
        ft_job_fini(out);
    return end;
}

static void build_list(const struct ft_job_query *q, struct buf *sql, struct db_value *args,
                       size_t *n, int64_t after) {
    *n = 0;
    buf_puts(sql, "SELECT " FT_JOB_COLUMNS " FROM jobs WHERE (? OR tenant = ?) AND seq < ?");
    args[(*n)++] = db_i(q->owner.any);
    args[(*n)++] = db_i((int64_t)q->owner.tenant);
    args[(*n)++] = db_i(after);
    if (q->no_metadata)
        buf_puts(sql, " AND NOT EXISTS (SELECT 1 FROM job_metadata m WHERE m.job = jobs.seq)");
    for (size_t i = 0; i < q->n_metadata; i++) {
        buf_puts(sql, " AND EXISTS (SELECT 1 FROM job_metadata m WHERE m.job = jobs.seq"
                      " AND m.key = ? AND m.value = ?)");
        args[(*n)++] = db_t(q->metadata[i].key);
        args[(*n)++] = db_t(q->metadata[i].value);
    }
    buf_puts(sql, " ORDER BY seq DESC LIMIT ?");
    args[(*n)++] = db_i(q->limit + 1);
}

static enum err list_rows(struct ft_home *h, const struct ft_job_query *q, struct db_rows *rows,
                          void (*each)(void *arg, const struct ft_job *j), void *arg, bool *more,
                          struct err_info *info) {
    enum err e = ERR_OK;
    for (int64_t n = 0; !e && db_next(rows); n++) {
        struct ft_job j;
        if (n == q->limit) {
            *more = true;
            break;
        }
        e = ft__job_read(rows, &j, info);
        if (!e)
            e = ft__job_results(h, &j, info);
        if (!e)
            each(arg, &j);
        ft_job_fini(&j);
    }
    return e;
}

static enum err list(struct ft_home *h, const struct ft_job_query *q,
                     void (*each)(void *arg, const struct ft_job *j), void *arg, bool *more,
                     struct err_info *info) {
    struct db_value args[4 + 2 * FT_METADATA_MAX];
    struct db_rows rows;
    struct buf sql;
    size_t n;
    int64_t after = INT64_MAX;
    enum err e = q->after ? ft__job_seq(h, q->owner, q->after, &after, NULL, info) : ERR_OK;
    if (e == ERR_NOT_FOUND)
        err_set(info, e, "after", "Could not find fine tune: %.64s", q->after);
    if (e)
        return e;
    buf_init(&sql, 0);
    build_list(q, &sql, args, &n, after);
    e = buf_err(&sql) ? err_set(info, ERR_NOMEM, NULL, "out of memory")
                      : db_query(h->db, &rows, info, sql.data, args, n);
    if (!e) {
        struct err_info own;
        e = list_rows(h, q, &rows, each, arg, more, info);
        enum err end = db_rows_end(&rows, e ? &own : info);
        e = e ? e : end;
    }
    buf_fini(&sql);
    return e;
}

enum err ft_job_list(struct ft_home *h, const struct ft_job_query *q,
                     void (*each)(void *arg, const struct ft_job *j), void *arg, bool *more,
                     struct err_info *info) {
    *more = false;
    enum err e = db_begin(h->db, info);
    return e ? e : db_end(h->db, list(h, q, each, arg, more, info), info);
}

// ---- what a client may ask of one

#define BIT(s) (1u << FT_JOB_##s)

struct action {
    const char *verb, *message, *by_admin;
    unsigned from;
};
static const struct action actions[] = {
    [FT_JOB_CANCEL] = {"cancelled", "Fine-tuning job cancelled",
                       "Fine-tuning job cancelled by an administrator",
                       BIT(VALIDATING) | BIT(QUEUED) | BIT(RUNNING) | BIT(EVALUATING) |
                           BIT(PUBLISHING) | BIT(PAUSED)},
    [FT_JOB_PAUSE] = {"paused", "Fine-tuning job paused",
                      "Fine-tuning job paused by an administrator",
                      BIT(VALIDATING) | BIT(QUEUED) | BIT(RUNNING) | BIT(EVALUATING)},
    [FT_JOB_RESUME] = {"resumed", "Fine-tuning job resumed",
                       "Fine-tuning job resumed by an administrator", BIT(PAUSED)},
};

static enum ft_job_state target(enum ft_job_action a, const struct ft_job *j) {
    if (a == FT_JOB_CANCEL)
        return FT_JOB_CANCELLED;
    if (a == FT_JOB_PAUSE)
        return FT_JOB_PAUSED;
    return j->queued_at ? FT_JOB_QUEUED : FT_JOB_VALIDATING; // its files were valid before
}

struct change { // what was done, once it is kept
    enum ft_job_state from;
    struct ft_job_move move;
};

static enum err act(struct ft_home *h, struct ft_job_owner owner, const char *id,
                    enum ft_job_action action, struct change *done, struct ft_job *out,
                    struct err_info *info) {
    const struct action *a = &actions[action];
    enum err e = ft__job_find(h, owner, id, "fine_tuning_job_id", out, info);
    if (e)
        return e;
    const struct ft_job_move m = {.to = target(action, out),
                                  .level = "info",
                                  .message = owner.any ? a->by_admin : a->message};
    *done = (struct change){out->state, m};
    if (out->version && action != FT_JOB_RESUME && !ft_job_state_final(out->state))
        e = err_set(info, ERR_INVALID, NULL, "%s is being published and cannot be %s any more",
                    out->id, a->verb);
    else if (!(a->from & 1u << out->state))
        e = err_set(info, ERR_INVALID, NULL, "%s is %s and cannot be %s", out->id,
                    ft_job_state_text(out->state), a->verb);
    if (!e)
        e = ft__job_change(h, out->seq, &m, info);
    ft_job_fini(out);
    return e ? e : ft__job_find(h, owner, id, NULL, out, info);
}

static enum err act_once(struct ft_home *h, struct ft_job_owner owner, const char *id,
                         enum ft_job_action action, struct change *done, struct ft_job *out,
                         struct err_info *info) {
    enum err e = db_begin(h->db, info);
    if (e)
        return e;
    e = act(h, owner, id, action, done, out, info);
    enum err end = db_end(h->db, e, info);
    if (!e && end)
        ft_job_fini(out);
    return end;
}

enum err ft_job_act(struct ft_home *h, struct ft_job_owner owner, const char *id,
                    enum ft_job_action action, struct ft_job *out, struct err_info *info) {
    enum err e;
    int tries = 0;
    struct change done;
    do
        e = act_once(h, owner, id, action, &done, out, info);
    while (ft__again(e, &tries));
    if (!e) {
        ft__events_bump(h);
        ft__watch_moved(h, out->id, done.from, &done.move);
    }
    return e;
}

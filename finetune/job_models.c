// SPDX-License-Identifier: Apache-2.0
#include "finetune/job_models.h"
#include "base/json_load.h"
#include "finetune/jobs_internal.h"
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct ft_job_owner anyone = {.any = true};
static const char step_mark[] = ":ckpt-step-";

static enum err none(const char *name, struct err_info *info) {
    return err_set(info, ERR_NO_MODEL, "model", "The model `%.128s` does not exist", name);
}

// The stored request has the suffix that the name was made with.
static bool is_called(const struct ft_job *j, const char *name) {
    char own[400];
    json_t *request = json_load_text(j->request, strlen(j->request), 0, NULL);
    ft_job_model_name(j, json_string_value(json_object_get(request, "suffix")), own, sizeof own);
    json_decref(request);
    return !strcmp(own, name);
}

// A name ends with the beginning of its job's id, so that an index finds it.
static enum err find_id(struct ft_home *h, const char *name, char id[FT_ID_MAX],
                        struct err_info *info) {
    const char *last = strrchr(name, ':');
    char low[FT_ID_MAX], high[FT_ID_MAX];
    struct db_rows q;
    id[0] = '\0';
    if (strncmp(name, "ft:", 3) != 0 || !last || strlen(last + 1) != FT_MODEL_ID)
        return ERR_OK;
    snprintf(low, sizeof low, "ftjob-%.12s", last + 1);
    snprintf(high, sizeof high, "ftjob-%.12s~", last + 1); // behind every letter and digit
    enum err e = db_query(h->db, &q, info, "SELECT id FROM jobs WHERE id >= ? AND id < ? LIMIT 1",
                          DB_ARGS(db_t(low), db_t(high)));
    if (!e && db_next(&q))
        db_copy(&q, 0, id, FT_ID_MAX);
    return db_rows_end(&q, info);
}

static enum err find_job(struct ft_home *h, const char *name, struct ft_job *out,
                         struct err_info *info) {
    char id[FT_ID_MAX];
    enum err e = find_id(h, name, id, info);
    if (!e && !id[0])
        e = none(name, info);
    if (!e)
        e = ft__job_find(h, anyone, id, NULL, out, info);
    if (!e && !is_called(out, name)) {
        ft_job_fini(out);
        e = none(name, info);
    }
    return e;
}

enum err ft_job_of_model(struct ft_home *h, const char *name, struct ft_job *out,
                         struct err_info *info) {
    *out = (struct ft_job){0};
    enum err e = db_begin(h->db, info);
    if (e)
        return e;
    e = find_job(h, name, out, info);
    enum err end = db_end(h->db, e, info);
    if (!e && end)
        ft_job_fini(out);
    return end;
}

static enum err has_row(struct ft_home *h, int64_t job, int64_t step, bool *has,
                        struct err_info *info) {
    struct db_rows q;
    enum err e =
        db_query(h->db, &q, info, "SELECT 1 FROM job_checkpoints WHERE job = ? AND step = ?",
                 DB_ARGS(db_i(job), db_i(step)));
    *has = !e && db_next(&q);
    return db_rows_end(&q, info);
}

static enum err find_checkpoint(struct ft_home *h, const char *name, char job[FT_ID_MAX],
                                int64_t *step, struct err_info *info) {
    const char *mark = strstr(name, step_mark);
    const char *digits = mark ? mark + sizeof step_mark - 1 : "";
    char model[400], *end;
    struct ft_job j;
    bool has;
    *step = strtoll(digits, &end, 10);
    if (!mark || *digits < '1' || *digits > '9' || *end || strlen(digits) > 15 ||
        (size_t)(mark - name) >= sizeof model)
        return none(name, info);
    memcpy(model, name, (size_t)(mark - name));
    model[mark - name] = '\0';
    enum err e = find_job(h, model, &j, info);
    if (e)
        return e == ERR_NO_MODEL ? none(name, info) : e;
    memcpy(job, j.id, FT_ID_MAX);
    e = has_row(h, j.seq, *step, &has, info);
    if (!e && !has)
        e = err_set(info, ERR_NO_MODEL, "model",
                    "The model `%.128s` does not exist: %s has no checkpoint of that step, or does "
                    "not keep it any more",
                    name, j.id);
    ft_job_fini(&j);
    return e;
}

enum err ft_checkpoint_of_model(struct ft_home *h, const char *name, char job[FT_ID_MAX],
                                int64_t *step, struct err_info *info) {
    enum err e = db_begin(h->db, info);
    return e ? e : db_end(h->db, find_checkpoint(h, name, job, step, info), info);
}

enum err ft_checkpoints_keep(struct ft_home *h, const char *job, int64_t keep,
                             struct err_info *info) {
    int64_t seq;
    enum err e = keep ? db_begin(h->db, info) : ERR_OK;
    if (e || !keep)
        return e;
    e = ft__job_seq(h, anyone, job, &seq, NULL, info);
    if (!e)
        e = db_run(h->db, NULL, info,
                   "DELETE FROM job_checkpoints WHERE job = ?1 AND step NOT IN"
                   " (SELECT step FROM job_checkpoints WHERE job = ?1 ORDER BY step DESC LIMIT ?2)",
                   DB_ARGS(db_i(seq), db_i(keep)));
    return db_end(h->db, e, info);
}

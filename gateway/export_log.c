// SPDX-License-Identifier: Apache-2.0
// What the state database knows of a job, as files of its set.
#include "base/json_write.h"
#include "finetune/files.h"
#include "finetune/job_log.h"
#include "gateway/api_jobs.h"
#include "gateway/export_set.h"

enum { PAGE = 1000 };

static const struct ft_job_owner anyone = {.any = true};

// ---- job.json: the job as the admin API shows it, its files and checkpoints

static enum err put_file(struct ft_home *h, const struct ft_job *j, const char *id,
                         struct json_w *w, struct err_info *info) {
    struct ft_file f;
    if (!*id)
        return ERR_OK;
    enum err e = ft_file_get(h, j->tenant, id, &f, info);
    if (e)
        return e == ERR_NOT_FOUND ? ERR_OK : e; // deleted since
    jw_obj(w);
    jw_kstr(w, "id", f.id);
    jw_kstr(w, "filename", f.filename);
    jw_kstr(w, "purpose", f.purpose);
    jw_kint(w, "bytes", f.bytes);
    jw_kstr(w, "sha256", f.sha256);
    jw_kint(w, "created_at", f.created_at);
    jw_obj_end(w);
    return ERR_OK;
}

static void put_checkpoint(void *arg, const struct ft_checkpoint_row *c) {
    api_checkpoint_write(c, arg);
}

static enum err put_checkpoints(const struct export_set *s, struct json_w *w,
                                struct err_info *info) {
    struct ft_page p = {.owner = anyone, .job = s->job, .after_seq = -1, .limit = INT32_MAX};
    bool more;
    jw_key(w, "checkpoints");
    jw_arr(w);
    enum err e = ft_checkpoint_list(s->home, &p, put_checkpoint, w, &more, info);
    jw_arr_end(w);
    return e;
}

static enum err put_job(const struct export_set *s, struct json_w *w, struct err_info *info) {
    struct ft_job j;
    enum err e = ft_job_get(s->home, anyone, s->job, &j, info);
    if (e)
        return e;
    jw_obj(w);
    jw_key(w, "job");
    api_job_admin_write(&j, gw_keys_tenant(NULL, j.tenant), NULL, NULL,
                        w); // samples.json stands beside it
    jw_key(w, "files");
    jw_arr(w);
    e = put_file(s->home, &j, j.training_file, w, info);
    if (!e)
        e = put_file(s->home, &j, j.validation_file, w, info);
    for (int i = 0; i < j.n_results && !e; i++)
        e = put_file(s->home, &j, j.results[i], w, info);
    jw_arr_end(w);
    if (!e)
        e = put_checkpoints(s, w, info);
    jw_obj_end(w);
    ft_job_fini(&j);
    return e;
}

static enum err write_job(const struct export_set *s, int dir, struct err_info *info) {
    struct buf b;
    buf_init(&b, 0);
    struct json_w w = json_w_begin(&b);
    enum err e = put_job(s, &w, info);
    buf_putc(&b, '\n');
    if (!e && buf_err(&b))
        e = err_set(info, buf_err(&b), NULL, "job.json: %s", err_text(buf_err(&b)));
    if (!e)
        e = durable_put(dir, "job.json", b.data, b.len, info);
    buf_fini(&b);
    return e;
}

// ---- events.jsonl: the oldest first, one a line

struct events {
    struct durable out;
    struct buf line;
    int64_t last;
    enum err e; // sticky
    struct err_info *info;
};

static void put_event(void *arg, const struct ft_event *event) {
    struct events *x = arg;
    if (x->e)
        return;
    buf_clear(&x->line);
    struct json_w w = json_w_begin(&x->line);
    api_event_write(event, &w);
    buf_putc(&x->line, '\n');
    x->last = event->seq;
    x->e = buf_err(&x->line) ? err_set(x->info, buf_err(&x->line), NULL, "out of memory")
                             : durable_write(&x->out, x->line.data, x->line.len, x->info);
}

static enum err write_events(const struct export_set *s, int dir, struct err_info *info) {
    struct events x = {.info = info};
    struct ft_page p = {.owner = anyone, .job = s->job, .limit = PAGE};
    bool more = true;
    enum err e = durable_begin(&x.out, dir, "events.jsonl", info);
    buf_init(&x.line, 0);
    while (!e && more) {
        p.after_seq = x.last;
        e = ft_event_list(s->home, &p, put_event, &x, &more, NULL, info);
        e = e ? e : x.e;
    }
    buf_fini(&x.line);
    if (!e)
        return durable_commit(&x.out, info);
    durable_abort(&x.out);
    return e;
}

enum err export__log(const struct export_set *s, int dir, struct err_info *info) {
    enum err e = write_job(s, dir, info);
    return e ? e : write_events(s, dir, info);
}

// SPDX-License-Identifier: Apache-2.0
// GET /v1/fine_tuning/jobs/{id}/events and /checkpoints, and the same for administrators, of any
// tenant's job, under /admin/v1/jobs. With ?stream=true events are followed as
// server-sent events, from the first on (or behind ?after=), until the job has ended: the database
// is looked at only when its count of changes has moved, twice a second at most. When the server
// stops, the stream ends with an error event: whoever follows may go on with ?after=.
#include "base/mem.h"
#include "gateway/api_data.h"
#include "gateway/api_jobs.h"
#include "gateway/api_task.h"
#include <stdio.h>
#include <string.h>

enum { EVENTS_LIMIT = 20, CHECKPOINTS_LIMIT = 10, STREAM_LIMIT = 64 };

// ---- pages

struct page {
    struct api_answer a;
    struct ft_home *home;
    struct ft_page page;
    char job[96], after[FT_ID_MAX];
    struct json_w w;
    char first[FT_ID_MAX], last[FT_ID_MAX];
};

static void begin_list(struct page *p) {
    p->w = json_w_begin(&p->a.body);
    jw_obj(&p->w);
    jw_kstr(&p->w, "object", "list");
    jw_key(&p->w, "data");
    jw_arr(&p->w);
}

static void add_event(void *arg, const struct ft_event *e) {
    struct page *p = arg;
    api_event_write(e, &p->w);
}

static enum err make_events(struct api_answer *a, struct err_info *info) {
    struct page *p = (struct page *)a;
    bool more;
    begin_list(p);
    enum err e = ft_event_list(p->home, &p->page, add_event, p, &more, NULL, info);
    if (e)
        return e;
    jw_arr_end(&p->w);
    jw_kbool(&p->w, "has_more", more);
    jw_obj_end(&p->w);
    return ERR_OK;
}

static void add_checkpoint(void *arg, const struct ft_checkpoint_row *c) {
    struct page *p = arg;
    api_checkpoint_write(c, &p->w);
    if (!p->first[0])
        memcpy(p->first, c->id, sizeof p->first);
    memcpy(p->last, c->id, sizeof p->last);
}

static enum err make_checkpoints(struct api_answer *a, struct err_info *info) {
    struct page *p = (struct page *)a;
    bool more;
    begin_list(p);
    enum err e = ft_checkpoint_list(p->home, &p->page, add_checkpoint, p, &more, info);
    if (e)
        return e;
    jw_arr_end(&p->w);
    jw_kbool(&p->w, "has_more", more);
    jw_kstr(&p->w, "first_id", p->first[0] ? p->first : NULL);
    jw_kstr(&p->w, "last_id", p->last[0] ? p->last : NULL);
    jw_obj_end(&p->w);
    return ERR_OK;
}

static void give_page(struct gw_request *r, const struct api_data *d, const struct api_query *q,
                      bool admin, int64_t limit,
                      enum err (*make)(struct api_answer *a, struct err_info *info)) {
    struct err_info info = {0};
    struct page *p = api_answer_begin(r, d->io, sizeof *p, make);
    if (!p)
        return;
    p->home = d->home;
    p->page = (struct ft_page){
        .owner = {r->who.tenant, admin}, .job = p->job, .after_seq = -1, .limit = limit};
    snprintf(p->job, sizeof p->job, "%s", r->params[0]);
    if (api_page_read(q, limit, &p->page.limit, p->after, &info)) {
        gw_reply_error(r, &info);
        api_task_end(&p->a.task);
        return;
    }
    if (p->after[0])
        p->page.after = p->after;
    api_answer_start(&p->a);
}

static void give_checkpoints(struct gw_request *r, const struct api_data *d, bool admin) {
    struct api_query q;
    struct err_info info;
    if (api_data_missing(r, d))
        return;
    if (api_query_parse(&r->arena, r->query, &q, &info))
        gw_reply_error(r, &info);
    else
        give_page(r, d, &q, admin, CHECKPOINTS_LIMIT, make_checkpoints);
}

void api_jobs_checkpoints(struct gw_request *r, void *arg) {
    give_checkpoints(r, arg, false);
}

void api_admin_jobs_checkpoints(struct gw_request *r, void *arg) {
    give_checkpoints(r, arg, true);
}

// ---- the stream

static const int64_t look_ns = 500 * 1000000LL, keep_alive_ns = 10 * 1000000000LL;

struct follow {
    struct api_task task;
    struct ft_home *home;
    const struct clock *clock;
    struct ft_job_owner owner;
    char job[96], after[FT_ID_MAX]; // after: until the first look
    struct gw_timer *timer;
    bool began, full;
    uint64_t seen; // of ft_events_count, before the last look
    int64_t alive_ns;
    // the pool's, in turns
    int64_t after_seq;
    bool more, final;
    struct buf out;
    struct err_info error;
};

static void follow_add(void *arg, const struct ft_event *e) {
    struct follow *f = arg;
    struct json_w w = json_w_begin(&f->out);
    buf_puts(&f->out, "data: ");
    api_event_write(e, &w);
    buf_puts(&f->out, "\n\n");
    f->after_seq = e->seq;
}

static void follow_work(struct api_task *t) {
    struct follow *f = (struct follow *)t;
    const struct ft_page page = {.owner = f->owner,
                                 .job = f->job,
                                 .after = f->after[0] ? f->after : NULL,
                                 .after_seq = f->after_seq,
                                 .limit = STREAM_LIMIT};
    buf_clear(&f->out);
    enum err e = ft_event_list(f->home, &page, follow_add, f, &f->more, &f->final, &f->error);
    if (!e && buf_err(&f->out))
        e = err_set(&f->error, ERR_NOMEM, NULL, "out of memory while answering");
    f->error.code = e;
    f->after[0] = '\0';
}

static void follow_drop(struct api_task *t) {
    struct follow *f = (struct follow *)t;
    buf_fini(&f->out);
    mem_free(f);
}

static void follow_look(struct follow *f) {
    f->seen = ft_events_count(f->home); // before the look: what comes during it is seen next time
    api_task_go_on(&f->task);
}

static void follow_wait(struct follow *f);

// The server stops before the job has ended.
static void follow_cut(struct follow *f) {
    struct gw_request *r = f->task.r;
    struct err_info info;
    err_set(
        &info, ERR_DRAINING, NULL,
        "the server is shutting down; the job goes on later, and so may the stream, with after=");
    buf_clear(&f->out);
    buf_puts(&f->out, "data: ");
    gw_error_body(&info, &f->out);
    buf_puts(&f->out, "\n\n");
    if (buf_err(&f->out)) {
        gw_stream_abort(r);
    } else {
        gw_stream_write(r, f->out.data, f->out.len);
        gw_stream_end(r);
    }
    api_task_end(&f->task);
}

static void on_timer(void *arg) {
    struct follow *f = arg;
    struct gw_request *r = f->task.r;
    int64_t now = clock_mono_ns(f->clock);
    f->timer = NULL;
    if (f->full) // on_writable goes on
        return;
    if (gw_stopping(r)) {
        follow_cut(f);
        return;
    }
    if (ft_events_count(f->home) != f->seen) {
        follow_look(f);
        return;
    }
    if (now - f->alive_ns >= keep_alive_ns) {
        gw_stream_write(r, ": keep-alive\n\n", 14);
        f->alive_ns = now;
    }
    follow_wait(f);
}

static void follow_wait(struct follow *f) {
    f->timer = gw_loop_timer(f->task.loop, look_ns, on_timer, f);
    if (!f->timer) {
        gw_stream_abort(f->task.r);
        api_task_end(&f->task);
    }
}

static void follow_done(struct api_task *t) {
    struct follow *f = (struct follow *)t;
    struct gw_request *r = t->r;
    if (!f->error.code && !f->began) {
        gw_response_header(r, "Cache-Control", "no-cache");
        f->began = gw_stream_begin(r, 200, "text/event-stream; charset=utf-8");
        if (!f->began)
            err_set(&f->error, ERR_NOMEM, NULL, "out of memory while answering");
    }
    if (f->error.code) {
        if (f->began)
            gw_stream_abort(r); // a stream without [DONE] is a failed one
        else
            gw_reply_error(r, &f->error);
        api_task_end(t);
        return;
    }
    gw_stream_write(r, f->out.data, f->out.len);
    f->alive_ns = clock_mono_ns(f->clock);
    if (f->final && !f->more) {
        gw_stream_write(r, "data: [DONE]\n\n", 14);
        gw_stream_end(r);
        api_task_end(t);
        return;
    }
    f->full = gw_stream_full(r);
    if (f->full)
        return;
    if (gw_stopping(r))
        follow_cut(f);
    else if (f->more)
        follow_look(f);
    else
        follow_wait(f);
}

static void follow_writable(struct gw_request *r) {
    struct follow *f = r->handler;
    if (!f->full)
        return;
    f->full = false;
    follow_look(f);
}

static void follow_close(struct gw_request *r) {
    struct follow *f = r->handler;
    if (f->timer)
        gw_loop_timer_cancel(f->timer);
    f->timer = NULL;
    api_task_closed(r);
}

static void follow_events(struct gw_request *r, const struct api_data *d, const struct api_query *q,
                          bool admin) {
    const char *after = api_query_get(q, "after");
    struct follow *f = api_task_begin(r, d->io, sizeof *f);
    if (!f)
        return;
    f->home = d->home;
    f->clock = &clock_system;
    f->owner = (struct ft_job_owner){r->who.tenant, admin};
    snprintf(f->job, sizeof f->job, "%s", r->params[0]);
    snprintf(f->after, sizeof f->after, "%s", after ? after : "");
    buf_init(&f->out, 0);
    f->task.work = follow_work;
    f->task.done = follow_done;
    f->task.drop = follow_drop;
    r->on_writable = follow_writable;
    r->on_close = follow_close;
    f->seen = ft_events_count(f->home);
    (void)api_task_start(&f->task);
}

static void give_events(struct gw_request *r, const struct api_data *d, bool admin) {
    struct api_query q;
    struct err_info info = {0};
    if (api_data_missing(r, d))
        return;
    enum err e = api_query_parse(&r->arena, r->query, &q, &info);
    const char *stream = e ? NULL : api_query_get(&q, "stream");
    if (stream && strcmp(stream, "true") != 0 && strcmp(stream, "false") != 0)
        e = err_set(&info, ERR_INVALID, "stream", "stream must be true or false");
    if (e)
        gw_reply_error(r, &info);
    else if (stream && !strcmp(stream, "true"))
        follow_events(r, d, &q, admin);
    else
        give_page(r, d, &q, admin, EVENTS_LIMIT, make_events);
}

void api_jobs_events(struct gw_request *r, void *arg) {
    give_events(r, arg, false);
}

void api_admin_jobs_events(struct gw_request *r, void *arg) {
    give_events(r, arg, true);
}

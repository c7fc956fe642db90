// SPDX-License-Identifier: Apache-2.0
// GET /v1/files, GET and DELETE /v1/files/{id}, GET /v1/files/{id}/content. POST is in
// file_upload.c.
#include "gateway/api_files.h"
#include "base/json_write.h"
#include "base/mem.h"
#include "finetune/files.h"
#include "gateway/api_data.h"
#include "gateway/api_query.h"
#include "gateway/api_task.h"
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { LIST_MAX = 10000, PIECE = 64 << 10 };

void api_file_write(const struct ft_file *f, struct json_w *w) {
    jw_obj(w);
    jw_kstr(w, "id", f->id);
    jw_kstr(w, "object", "file");
    jw_kint(w, "bytes", f->bytes);
    jw_kint(w, "created_at", f->created_at);
    if (f->expires_at)
        jw_kint(w, "expires_at", f->expires_at);
    jw_kstr(w, "filename", f->filename);
    jw_kstr(w, "purpose", f->purpose);
    jw_kstr(w, "status", f->error ? "error" : "processed");
    if (f->status_details[0])
        jw_kstr(w, "status_details", f->status_details);
    jw_obj_end(w);
}

// ---- one file

struct one {
    struct api_answer a;
    struct ft_home *home;
    uint64_t tenant;
    char id[96]; // longer than any id: what does not fit is none
};

static struct one *begin_one(struct gw_request *r, const struct api_data *d,
                             enum err (*make)(struct api_answer *a, struct err_info *info)) {
    struct one *o = api_data_missing(r, d) ? NULL : api_answer_begin(r, d->io, sizeof *o, make);
    if (!o)
        return NULL;
    o->home = d->home;
    o->tenant = r->who.tenant;
    snprintf(o->id, sizeof o->id, "%s", r->params[0]);
    return o;
}

static enum err make_get(struct api_answer *a, struct err_info *info) {
    const struct one *o = (struct one *)a;
    struct ft_file f;
    enum err e = ft_file_get(o->home, o->tenant, o->id, &f, info);
    if (e)
        return e;
    struct json_w w = json_w_begin(&a->body);
    api_file_write(&f, &w);
    return ERR_OK;
}

void api_files_get(struct gw_request *r, void *arg) {
    struct one *o = begin_one(r, arg, make_get);
    if (o)
        api_answer_start(&o->a);
}

static enum err make_delete(struct api_answer *a, struct err_info *info) {
    const struct one *o = (struct one *)a;
    enum err e = ft_file_delete(o->home, o->tenant, o->id, info);
    if (e)
        return e;
    struct json_w w = json_w_begin(&a->body);
    jw_obj(&w);
    jw_kstr(&w, "id", o->id);
    jw_kstr(&w, "object", "file");
    jw_kbool(&w, "deleted", true);
    jw_obj_end(&w);
    return ERR_OK;
}

void api_files_delete(struct gw_request *r, void *arg) {
    struct one *o = begin_one(r, arg, make_delete);
    if (o)
        api_answer_start(&o->a);
}

// ---- the list

struct list {
    struct api_answer a;
    struct ft_home *home;
    struct ft_file_query query;
    char purpose[FT_PURPOSE_MAX], after[96];
    struct json_w w;
    char first[FT_ID_MAX], last[FT_ID_MAX];
};

static void add_file(void *arg, const struct ft_file *f) {
    struct list *l = arg;
    api_file_write(f, &l->w);
    if (!l->first[0])
        memcpy(l->first, f->id, sizeof l->first);
    memcpy(l->last, f->id, sizeof l->last);
}

static enum err make_list(struct api_answer *a, struct err_info *info) {
    struct list *l = (struct list *)a;
    bool more;
    l->w = json_w_begin(&a->body);
    jw_obj(&l->w);
    jw_kstr(&l->w, "object", "list");
    jw_key(&l->w, "data");
    jw_arr(&l->w);
    enum err e = ft_file_list(l->home, &l->query, add_file, l, &more, info);
    if (e)
        return e;
    jw_arr_end(&l->w);
    jw_kstr(&l->w, "first_id", l->first[0] ? l->first : NULL);
    jw_kstr(&l->w, "last_id", l->last[0] ? l->last : NULL);
    jw_kbool(&l->w, "has_more", more);
    jw_obj_end(&l->w);
    return ERR_OK;
}

static enum err read_list_query(struct gw_request *r, struct list *l, struct err_info *info) {
    struct api_query q;
    enum err e = api_query_parse(&r->arena, r->query, &q, info);
    if (!e)
        e = api_query_int(&q, "limit", 1, LIST_MAX, LIST_MAX, &l->query.limit, info);
    if (e)
        return e;
    const char *order = api_query_get(&q, "order"), *purpose = api_query_get(&q, "purpose"),
               *after = api_query_get(&q, "after");
    if (order && strcmp(order, "asc") != 0 && strcmp(order, "desc") != 0)
        return err_set(info, ERR_INVALID, "order", "order must be asc or desc");
    if (purpose && strlen(purpose) >= sizeof l->purpose)
        return err_set(info, ERR_INVALID, "purpose", "purpose is longer than any there is");
    l->query.ascending = order && !strcmp(order, "asc");
    if (purpose && *purpose)
        l->query.purpose = strcpy(l->purpose, purpose);
    snprintf(l->after, sizeof l->after, "%s", after ? after : "");
    if (l->after[0])
        l->query.after = l->after;
    return ERR_OK;
}

void api_files_list(struct gw_request *r, void *arg) {
    const struct api_data *d = arg;
    struct err_info info;
    if (api_data_missing(r, d))
        return;
    struct list *l = api_answer_begin(r, d->io, sizeof *l, make_list);
    if (!l)
        return;
    l->home = d->home;
    l->query.tenant = r->who.tenant;
    if (read_list_query(r, l, &info)) {
        gw_reply_error(r, &info);
        api_task_end(&l->a.task);
        return;
    }
    api_answer_start(&l->a);
}

// ---- content: read in the pool a piece at a time, written on the loop as the client takes it

struct content {
    struct api_task task;
    struct ft_home *home;
    uint64_t tenant;
    char id[96];
    struct ft_file file;
    struct err_info error;
    int fd; // -1: not yet open
    bool began, ended;
    size_t n;
    char piece[PIECE];
};

static void content_work(struct api_task *t) {
    struct content *c = (struct content *)t;
    if (c->fd < 0 && ft_file_open(c->home, c->tenant, c->id, &c->file, &c->fd, &c->error))
        return;
    ssize_t n;
    do
        n = read(c->fd, c->piece, sizeof c->piece);
    while (n < 0 && errno == EINTR);
    if (n < 0)
        durable_errno(&c->error, errno, "read", c->id);
    c->n = n > 0 ? (size_t)n : 0;
    c->ended = n <= 0;
}

static void content_done(struct api_task *t) {
    struct content *c = (struct content *)t;
    struct gw_request *r = t->r;
    if (c->error.code && !c->began) {
        gw_reply_error(r, &c->error);
        api_task_end(t);
        return;
    }
    if (!c->began) {
        gw_response_header(r, "Content-Disposition", "attachment");
        gw_response_header(r, "X-Content-Type-Options", "nosniff");
        c->began = gw_stream_begin(r, 200, "application/octet-stream");
        if (!c->began) {
            err_set(&c->error, ERR_NOMEM, NULL, "out of memory while answering");
            content_done(t);
            return;
        }
    }
    gw_stream_write(r, c->piece, c->n);
    if (c->error.code) {
        gw_stream_abort(r); // the client sees that the end is missing
    } else if (c->ended || r->method == GW_HEAD) {
        gw_stream_end(r);
    } else {
        if (!gw_stream_full(r))
            api_task_go_on(t);
        return;
    }
    api_task_end(t);
}

static void content_writable(struct gw_request *r) {
    struct api_task *t = r->handler;
    if (!t->busy)
        api_task_go_on(t);
}

static void content_drop(struct api_task *t) {
    struct content *c = (struct content *)t;
    if (c->fd >= 0)
        close(c->fd);
    mem_free(c);
}

void api_files_content(struct gw_request *r, void *arg) {
    const struct api_data *d = arg;
    struct content *c = api_data_missing(r, d) ? NULL : api_task_begin(r, d->io, sizeof *c);
    if (!c)
        return;
    c->home = d->home;
    c->tenant = r->who.tenant;
    c->fd = -1;
    snprintf(c->id, sizeof c->id, "%s", r->params[0]);
    c->task.work = content_work;
    c->task.done = content_done;
    c->task.drop = content_drop;
    r->on_writable = content_writable;
    (void)api_task_start(&c->task);
}

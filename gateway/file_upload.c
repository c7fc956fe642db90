// SPDX-License-Identifier: Apache-2.0
// POST /v1/files. The body goes through in pieces of one read: the loop copies a piece and pauses
// the client, the I/O pool parses it and writes the file's part to the disk, the loop lets the
// client go on. So an upload holds two pieces in memory, however large it is.
//
// Invariants
// 1. Fields from `parser` on are the pool's while the task is busy, the loop's while it is not.
// 2. A 2xx is written after ft_upload_commit alone. After an error nothing of the file is left.
#include "base/mem.h"
#include "gateway/api_data.h"
#include "gateway/api_files.h"
#include "gateway/api_task.h"
#include "gateway/multipart.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum {
    EXPIRES_MIN = 3600,
    EXPIRES_MAX = 2592000,
    VALUE_MAX = 64,
    OTHERS_MAX = 64 << 10,
    ANSWER_MAX = 4096
};

enum field { FIELD_OTHER, FIELD_FILE, FIELD_PURPOSE, FIELD_ANCHOR, FIELD_SECONDS, FIELDS };
static const struct {
    const char *part, *param; // how forms and how errors name it
} names[FIELDS] = {
    [FIELD_FILE] = {"file", "file"},
    [FIELD_PURPOSE] = {"purpose", "purpose"},
    [FIELD_ANCHOR] = {"expires_after[anchor]", "expires_after.anchor"},
    [FIELD_SECONDS] = {"expires_after[seconds]", "expires_after.seconds"},
};

struct upload {
    struct api_task task;
    struct ft_home *home;
    bool ended; // the loop's: the whole body came
    // both, in turns
    struct multipart parser;
    struct ft_upload out;
    struct ft_file file;
    struct err_info error;
    struct buf piece, answer;
    bool last, committed; // this work ends the upload; it did
    enum field field;     // of the part that is being read
    bool seen[FIELDS];
    char value[FIELDS][VALUE_MAX + 1];
    size_t value_len, others;
};

// ---- in the pool: the form

static const char *base_name(const char *path) {
    const char *s = path + strlen(path);
    while (s > path && s[-1] != '/' && s[-1] != '\\')
        s--;
    return s;
}

static enum err begin_file(struct upload *u, const struct mp_part *part, struct err_info *info) {
    if (!part->filename)
        return err_set(info, ERR_INVALID, "file",
                       "file must be sent as a file, with a filename, not as a plain field");
    const char *name = base_name(part->filename), *dot = strrchr(name, '.');
    if (!name[0] || strlen(name) > FT_FILENAME_MAX)
        return err_set(info, ERR_INVALID, "file", "file's filename must be 1 to %d bytes long",
                       FT_FILENAME_MAX);
    if (!dot || strcasecmp(dot, ".jsonl") != 0)
        return err_set(info, ERR_INVALID, "file",
                       "file '%.64s' is not of a format for fine-tuning: its name must end in "
                       ".jsonl",
                       name);
    strcpy(u->file.filename, name);
    return ft_upload_begin(u->home, &u->out, info);
}

static enum err begin_part(void *arg, const struct mp_part *part, struct err_info *info) {
    struct upload *u = arg;
    u->field = FIELD_OTHER;
    u->value_len = 0;
    for (int i = 1; i < FIELDS; i++)
        if (!strcmp(part->name, names[i].part))
            u->field = (enum field)i;
    if (u->field == FIELD_OTHER)
        return ERR_OK;
    if (u->seen[u->field])
        return err_set(info, ERR_INVALID, names[u->field].param, "%s is given more than once",
                       names[u->field].param);
    u->seen[u->field] = true;
    return u->field == FIELD_FILE ? begin_file(u, part, info) : ERR_OK;
}

static enum err part_content(void *arg, const char *p, size_t n, struct err_info *info) {
    struct upload *u = arg;
    if (u->field == FIELD_FILE)
        return ft_upload_write(&u->out, p, n, info);
    if (u->field == FIELD_OTHER) {
        u->others += n;
        return u->others <= OTHERS_MAX
                   ? ERR_OK
                   : err_set(info, ERR_INVALID, NULL, "the form has more than %d bytes of fields",
                             OTHERS_MAX);
    }
    if (n > VALUE_MAX - u->value_len)
        return err_set(info, ERR_INVALID, names[u->field].param, "%s is longer than %d bytes",
                       names[u->field].param, VALUE_MAX);
    memcpy(u->value[u->field] + u->value_len, p, n);
    u->value_len += n;
    u->value[u->field][u->value_len] = '\0';
    return ERR_OK;
}

static enum err check_purpose(struct upload *u, struct err_info *info) {
    const char *purpose = u->value[FIELD_PURPOSE];
    if (strlen(purpose) != u->value_len || strcmp(purpose, "fine-tune") != 0)
        return err_set(info, ERR_INVALID, "purpose",
                       "purpose '%s' is not supported; the only one is fine-tune", purpose);
    strcpy(u->file.purpose, "fine-tune");
    return ERR_OK;
}

static enum err check_seconds(struct upload *u, struct err_info *info) {
    const char *s = u->value[FIELD_SECONDS];
    size_t digits = strspn(s, "0123456789");
    long v = digits && digits <= 9 && digits == u->value_len ? atol(s) : 0;
    if (v < EXPIRES_MIN || v > EXPIRES_MAX)
        return err_set(info, ERR_INVALID, "expires_after.seconds",
                       "expires_after.seconds must be an integer from %d to %d", EXPIRES_MIN,
                       EXPIRES_MAX);
    u->file.expires_at = v; // from the moment of its creation, in finish()
    return ERR_OK;
}

// A bad field is refused before the file behind it is read.
static enum err end_part(void *arg, struct err_info *info) {
    struct upload *u = arg;
    switch (u->field) {
    case FIELD_PURPOSE:
        return check_purpose(u, info);
    case FIELD_SECONDS:
        return check_seconds(u, info);
    case FIELD_ANCHOR:
        if (strlen(u->value[FIELD_ANCHOR]) != u->value_len ||
            strcmp(u->value[FIELD_ANCHOR], "created_at") != 0)
            return err_set(info, ERR_INVALID, "expires_after.anchor",
                           "expires_after.anchor must be created_at");
        break;
    default:
        break;
    }
    return ERR_OK;
}

static const struct mp_calls calls = {begin_part, part_content, end_part};

static enum err finish(struct upload *u, struct err_info *info) {
    enum err e = mp_finish(&u->parser, info);
    if (e)
        return e;
    if (!u->seen[FIELD_FILE])
        return err_set(info, ERR_INVALID, "file", "file is required");
    if (!u->seen[FIELD_PURPOSE])
        return err_set(info, ERR_INVALID, "purpose", "purpose is required");
    if (u->seen[FIELD_ANCHOR] != u->seen[FIELD_SECONDS]) {
        const char *missing = names[u->seen[FIELD_ANCHOR] ? FIELD_SECONDS : FIELD_ANCHOR].param;
        return err_set(info, ERR_INVALID, missing, "%s is required", missing);
    }
    if (u->file.expires_at)
        u->file.expires_at += ft_now(u->home);
    // Once the file is kept nothing may fail any more: the client would send it again.
    if (!buf_reserve(&u->answer, ANSWER_MAX))
        return err_set(info, ERR_NOMEM, NULL, "out of memory while answering");
    e = ft_upload_commit(&u->out, &u->file, info);
    if (e)
        return e;
    u->committed = true;
    struct json_w w = json_w_begin(&u->answer);
    api_file_write(&u->file, &w);
    return ERR_OK;
}

static void upload_work(struct api_task *t) {
    struct upload *u = (struct upload *)t;
    enum err e = ERR_OK;
    if (u->piece.len)
        e = mp_feed(&u->parser, u->piece.data, u->piece.len, &u->error);
    if (!e && u->last)
        e = finish(u, &u->error);
    buf_clear(&u->piece);
    u->error.code = e;
    if (e)
        ft_upload_abort(&u->out);
}

static void upload_drop(struct api_task *t) {
    struct upload *u = (struct upload *)t;
    ft_upload_abort(&u->out);
    buf_fini(&u->piece);
    buf_fini(&u->answer);
    mem_free(u);
}

// ---- on the loop

static void upload_refuse(struct upload *u) {
    struct gw_request *r = u->task.r;
    gw_reply_error(r, &u->error);
    api_task_end(&u->task);
}

static void upload_done(struct api_task *t) {
    struct upload *u = (struct upload *)t;
    struct gw_request *r = t->r;
    if (u->error.code) {
        upload_refuse(u);
    } else if (u->committed) {
        gw_reply(r, 200, "application/json", u->answer.data, u->answer.len);
        api_task_end(t);
    } else if (u->ended) {
        u->last = true;
        api_task_go_on(t);
    } else {
        gw_body_resume(r);
    }
}

static void on_body(struct gw_request *r, const char *p, size_t n) {
    struct upload *u = r->handler;
    buf_append(&u->piece, p, n);
    if (buf_err(&u->piece)) {
        err_set(&u->error, ERR_NOMEM, NULL, "out of memory");
        upload_refuse(u);
        return;
    }
    gw_body_pause(r);
    api_task_go_on(&u->task);
}

static void on_body_end(struct gw_request *r) {
    struct upload *u = r->handler;
    u->ended = true;
    if (!u->task.busy)
        upload_done(&u->task);
}

void api_files_create(struct gw_request *r, void *arg) {
    const struct api_data *d = arg;
    char boundary[MP_BOUNDARY_MAX + 1];
    struct err_info info;
    if (api_data_missing(r, d))
        return;
    if (mp_boundary(gw_request_header(r, "content-type"), boundary, &info)) {
        gw_reply_error(r, &info);
        return;
    }
    struct upload *u = api_task_begin(r, d->io, sizeof *u);
    if (!u)
        return;
    u->home = d->home;
    u->file.tenant = r->who.tenant;
    u->task.work = upload_work;
    u->task.done = upload_done;
    u->task.drop = upload_drop;
    buf_init(&u->piece, 0);
    buf_init(&u->answer, 0);
    mp_init(&u->parser, boundary, &calls, u);
    r->on_body = on_body;
    r->on_body_end = on_body_end;
}

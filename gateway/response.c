// SPDX-License-Identifier: Apache-2.0
// Whole answers, and the head of every answer.
#include "base/json_write.h"
#include "gateway/conn.h"
#include <assert.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

struct status_text {
    int status;
    const char *text;
};

static const char *reason(int status) {
    static const struct status_text texts[] = {
        {200, "OK"},
        {201, "Created"},
        {202, "Accepted"},
        {204, "No Content"},
        {206, "Partial Content"},
        {302, "Found"},
        {304, "Not Modified"},
        {400, "Bad Request"},
        {401, "Unauthorized"},
        {403, "Forbidden"},
        {404, "Not Found"},
        {405, "Method Not Allowed"},
        {408, "Request Timeout"},
        {409, "Conflict"},
        {413, "Content Too Large"},
        {415, "Unsupported Media Type"},
        {416, "Range Not Satisfiable"},
        {429, "Too Many Requests"},
        {431, "Request Header Fields Too Large"},
        {499, "Client Closed Request"},
        {500, "Internal Server Error"},
        {503, "Service Unavailable"},
    };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        if (texts[i].status == status)
            return texts[i].text;
    return "Status";
}

static bool plain_text(const char *s) {
    for (; *s; s++)
        if ((unsigned char)*s < ' ' && *s != '\t')
            return false;
    return true;
}

const char *gw_request_header(const struct gw_request *r, const char *lower_name) {
    for (size_t i = 0; i < r->n_headers; i++)
        if (strcmp(r->headers[i].name, lower_name) == 0)
            return r->headers[i].value;
    return NULL;
}

void gw_response_header(struct gw_request *r, const char *name, const char *value) {
    struct gw_conn *c = r->conn__;
    if (!plain_text(name) || !plain_text(value) || !c->active || c->stream.begun)
        return;
    size_t n = strlen(name), v = strlen(value), at = c->extra.len;
    char *to = buf_reserve(&c->extra, n + v + 4);
    if (!to) { // this field is left out; the answer itself is worth more
        c->extra.failed = ERR_OK;
        c->extra.len = at;
        return;
    }
    memcpy(to, name, n);
    memcpy(to + n, ": ", 2);
    memcpy(to + n + 2, value, v);
    memcpy(to + n + 2 + v, "\r\n", 2);
    c->extra.len += n + v + 4;
}

static bool has_extra(const struct gw_conn *c, const char *name) {
    size_t n = strlen(name);
    const char *s = c->extra.data, *end = c->extra.data ? s + c->extra.len : s;
    while (s < end) {
        if ((size_t)(end - s) > n && strncasecmp(s, name, n) == 0 && s[n] == ':')
            return true;
        s = (const char *)memchr(s, '\n', (size_t)(end - s)) + 1;
    }
    return false;
}

static char *put(char *to, const char *s) {
    size_t n = strlen(s);
    memcpy(to, s, n);
    return to + n;
}

static char *put_int(char *to, int64_t v) {
    char digits[20];
    size_t n = 0;
    do
        digits[n++] = (char)('0' + v % 10);
    while ((v /= 10) > 0);
    while (n)
        *to++ = digits[--n];
    return to;
}

bool gw__response_head(struct gw_conn *c, int status, const char *content_type, int64_t length) {
    const struct gw_server *s = c->server;
    int64_t now = gw__now(s);
    if (c->state == GW_CONN_BODY) // the rest of the body is not read
        c->close_after = c->linger = true;
    if (!c->parse.keep_alive || atomic_load_explicit(&s->draining, memory_order_relaxed))
        c->close_after = true;
    char *to = buf_reserve(&c->out, 384 + c->extra.len + (content_type ? strlen(content_type) : 0));
    if (!to)
        return false;
    char *begin = to;
    to = put(to, "HTTP/1.1 ");
    to = put_int(to, status);
    *to++ = ' ';
    to = put(to, reason(status));
    to = put(to, "\r\n");
    to = put(to, gw__worker_date(c->worker, now));
    if (content_type) {
        to = put(to, "Content-Type: ");
        to = put(to, content_type);
        to = put(to, "\r\n");
    }
    if (length >= 0) {
        to = put(to, "Content-Length: ");
        to = put_int(to, length);
        to = put(to, "\r\n");
    } else if (length == GW_LENGTH_CHUNKED) {
        to = put(to, "Transfer-Encoding: chunked\r\n");
    }
    to = put(to, "x-request-id: ");
    to = put(to, c->req.id);
    to = put(to, "\r\nopenai-processing-ms: ");
    int64_t ms = (now - c->head_ns) / 1000000;
    to = put_int(to, ms > 0 ? ms : 0);
    to = put(to, "\r\n");
    if (c->close_after)
        to = put(to, "Connection: close\r\n");
    else if (c->parse.http10)
        to = put(to, "Connection: keep-alive\r\n");
    if (c->extra.len) {
        memcpy(to, c->extra.data, c->extra.len);
        to += c->extra.len;
    }
    to = put(to, "\r\n");
    *to = '\0';
    c->out.len += (size_t)(to - begin);
    c->sent += (size_t)(to - begin);
    return true;
}

void gw__request_end(struct gw_conn *c, int status) {
    struct gw_server *s = c->server;
    struct gw_request *r = &c->req;
    int64_t duration = gw__now(s) - c->head_ns;
    gw__access_log(c, status, duration);
    size_t route = r->route__ ? (size_t)(r->route__ - s->router.routes) : s->router.n;
    gw_http_metrics_request(s->metrics, route, r->method, status, duration);
    gw_http_metrics_in_flight(s->metrics, -1);
    if (c->reserved)
        atomic_fetch_sub_explicit(&s->inflight_bytes, c->reserved, memory_order_relaxed);
    c->reserved = 0;
    c->active = c->handled = c->above = false;
    c->ended = true;
    c->stream.begun = false;
    r->on_close = NULL;
    r->on_writable = NULL;
    r->on_body = NULL;
    r->on_body_end = NULL;
    if (atomic_load_explicit(&s->draining, memory_order_relaxed))
        c->close_after = true;
    c->state = GW_CONN_HEAD;
    gw__conn_dirty(c);
}

// Fits into the room that each connection keeps, so that it can be said without memory.
static const char no_memory[] =
    "{\"error\":{\"message\":\"out of memory\",\"type\":\"server_error\","
    "\"param\":null,\"code\":null}}";

static bool append_answer(struct gw_conn *c, int status, const char *content_type, const void *body,
                          size_t len) {
    size_t at = c->out.len, sent = c->sent;
    bool bodiless = status == 204 || status == 304;
    if (gw__response_head(c, status, content_type, bodiless ? GW_LENGTH_NONE : (int64_t)len)) {
        if (c->req.method != GW_HEAD && !bodiless) {
            buf_append(&c->out, body, len);
            c->sent += len;
        }
        if (!buf_err(&c->out))
            return true;
    }
    c->out.len = at;
    c->out.failed = ERR_OK;
    c->sent = sent;
    return false;
}

void gw_reply(struct gw_request *r, int status, const char *content_type, const void *body,
              size_t len) {
    struct gw_conn *c = r->conn__;
    if (c->state == GW_CONN_DETACHED) {
        gw__conn_detached_end(c);
        return;
    }
    assert(c->active && !c->stream.begun);
    if (!c->active || c->stream.begun) // a second answer would reach the next request's client
        return;
    if (status == 401)
        gw_response_header(r, "WWW-Authenticate", "Bearer");
    if (!append_answer(c, status, content_type, body, len)) {
        status = 503;
        buf_clear(&c->extra);
        if (!append_answer(c, status, "application/json", no_memory, sizeof no_memory - 1))
            c->failed = true;
    }
    gw__request_end(c, status);
}

void gw_error_body(const struct err_info *info, struct buf *out) {
    struct json_w w = json_w_begin(out);
    enum err e = info->code == ERR_OK ? ERR_INTERNAL : info->code;
    const char *message = info->message[0] ? info->message : err_text(e);
    jw_obj(&w);
    jw_key(&w, "error");
    jw_obj(&w);
    jw_kstr(&w, "message", message);
    jw_kstr(&w, "type", err_openai_type(e));
    jw_kstr(&w, "param", info->param[0] ? info->param : NULL);
    jw_kstr(&w, "code", err_openai_code(e));
    jw_obj_end(&w);
    jw_obj_end(&w);
}

static void retry_fields(struct gw_request *r, enum err e) {
    int status = err_http_status(e);
    // The same input would fail in the same way, or only add load: clients retry 5xx by themselves.
    if (e == ERR_NONFINITE || e == ERR_DEADLINE)
        gw_response_header(r, "x-should-retry", "false");
    else if ((status == 429 || status == 503) && !has_extra(r->conn__, "retry-after"))
        gw_response_header(r, "Retry-After", e == ERR_LOADING || e == ERR_ENGINE_DEAD ? "5" : "1");
}

void gw_reply_error(struct gw_request *r, const struct err_info *info) {
    struct gw_conn *c = r->conn__;
    if (c->state == GW_CONN_DETACHED) {
        gw__conn_detached_end(c);
        return;
    }
    enum err e = info->code == ERR_OK ? ERR_INTERNAL : info->code;
    struct buf body;
    buf_init(&body, 0);
    gw_error_body(info, &body);
    if (!c->access.error_type)
        c->access.error_type = err_openai_type(e);
    retry_fields(r, e);
    if (buf_err(&body))
        gw_reply(r, 503, "application/json", no_memory, sizeof no_memory - 1);
    else
        gw_reply(r, err_http_status(e), "application/json", body.data, body.len);
    buf_fini(&body);
}

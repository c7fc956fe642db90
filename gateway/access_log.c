// SPDX-License-Identifier: Apache-2.0
// One JSON line for each request. Lines collect during a turn of the loop and leave in one write.
// Fields that do not apply are left out. No prompt, no answer, no key, no raw URL.
#include "base/json_write.h"
#include "gateway/conn.h"
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

// Lines that wait for a stalled reader; beyond it lines are dropped and counted, because a full
// pipe must not stop the answers.
enum { LOG_BACKLOG_MAX = 1 << 20, LOG_RETRY_NS = 100000000 };

static void put_digits(char *to, int v, int digits) {
    for (int i = digits - 1; i >= 0; i--, v /= 10)
        to[i] = (char)('0' + v % 10);
}

static void timestamp(int64_t wall_ns, char out[25]) {
    time_t sec = (time_t)(wall_ns / 1000000000);
    struct tm tm;
    gmtime_r(&sec, &tm);
    memcpy(out, "0000-00-00T00:00:00.000Z", 25);
    put_digits(out, tm.tm_year + 1900, 4);
    put_digits(out + 5, tm.tm_mon + 1, 2);
    put_digits(out + 8, tm.tm_mday, 2);
    put_digits(out + 11, tm.tm_hour, 2);
    put_digits(out + 14, tm.tm_min, 2);
    put_digits(out + 17, tm.tm_sec, 2);
    put_digits(out + 20, (int)(wall_ns / 1000000 % 1000), 3);
}

// Milliseconds with three decimals.
static void put_ms(struct json_w *w, const char *key, int64_t ns) {
    if (ns < 0)
        return;
    char text[32];
    int n = snprintf(text, sizeof text, "%lld.%03d", (long long)(ns / 1000000),
                     (int)(ns / 1000 % 1000));
    jw_key(w, key);
    jw_raw(w, text, (size_t)n);
}

static void put_text(struct json_w *w, const char *key, const char *value) {
    if (value && *value)
        jw_kstr(w, key, value);
}

static void put_count(struct json_w *w, const char *key, int64_t v) {
    if (v >= 0)
        jw_kint(w, key, v);
}

static void put_model_fields(struct json_w *w, const struct gw_access *a) {
    put_text(w, "error_type", a->error_type);
    put_text(w, "model", a->model);
    if (a->adapter) {
        put_text(w, "adapter", a->adapter);
        jw_kint(w, "adapter_version", (int64_t)a->adapter_version);
    }
    put_text(w, "finish_reason", a->finish_reason);
    put_count(w, "prompt_tokens", a->prompt_tokens);
    put_count(w, "cached_tokens", a->cached_tokens);
    put_count(w, "completion_tokens", a->completion_tokens);
    put_ms(w, "queue_ms", a->queue_ns);
    put_ms(w, "ttft_ms", a->ttft_ns);
    if (a->tpot_ms >= 0)
        put_ms(w, "tpot_ms", (int64_t)(a->tpot_ms * 1e6));
}

void gw__access_log(struct gw_conn *c, int status, int64_t duration_ns) {
    const struct gw_config *cfg = &c->server->cfg;
    const struct gw_request *r = &c->req;
    struct buf *out = &c->worker->log;
    if (!cfg->access_log || cfg->access_log->fd < 0)
        return;
    char ts[25], tenant[20];
    timestamp(clock_wall_ns(cfg->clock), ts);
    size_t at = out->len;
    if (at)
        buf_putc(out, '\n');
    struct json_w w = json_w_begin(out);
    jw_obj(&w);
    jw_kstr(&w, "ts", ts);
    jw_kstr(&w, "level", status >= 500 ? "error" : "info");
    jw_kstr(&w, "request_id", r->id);
    put_text(&w, "trace_id", c->trace_id);
    if (r->who.domain) { // there is a key
        snprintf(tenant, sizeof tenant, "%016llx", (unsigned long long)r->who.tenant);
        jw_kstr(&w, "tenant_id", tenant);
        snprintf(tenant, sizeof tenant, "%08x", r->who.key_id);
        jw_kstr(&w, "key_id", tenant);
    }
    jw_kstr(&w, "client_ip", c->ip);
    jw_kstr(&w, "method", gw_method_text(r->method));
    jw_kstr(&w, "route", r->route__ ? r->route__->pattern : "other");
    jw_kint(&w, "status", status);
    jw_kbool(&w, "stream", c->access.stream);
    put_model_fields(&w, &c->access);
    put_ms(&w, "duration_ms", duration_ns);
    jw_kint(&w, "bytes_in", (int64_t)c->parse.bytes);
    jw_kint(&w, "bytes_out", (int64_t)c->sent);
    jw_kbool(&w, "client_disconnected", c->access.client_disconnected);
    put_text(&w, "build", cfg->build);
    jw_obj_end(&w);
    if (buf_err(out) || out->len > LOG_BACKLOG_MAX) { // those before it are not lost
        out->failed = ERR_OK;
        out->len = at;
        gw_http_metrics_log_dropped(c->server->metrics);
    }
}

// May a write of one piece block? A pipe that is ready takes PIPE_BUF bytes.
static bool ready(const struct gw_server *s) {
    struct pollfd p = {.fd = s->cfg.access_log->fd, .events = POLLOUT};
    return !s->log_is_pipe || (poll(&p, 1, 0) == 1 && p.revents & POLLOUT);
}

void gw__access_log_flush(struct gw_worker *w, bool last) {
    const struct gw_server *server = w->server;
    size_t piece = server->log_is_pipe ? PIPE_BUF : SIZE_MAX, at = 0;
    struct buf *b = &w->log;
    while (at < b->len && ready(server)) {
        const char *s = b->data + at;
        size_t left = b->len - at, n = left;
        if (n > piece) { // as many whole lines as fit, at least one
            const char *end = memrchr(s, '\n', piece);
            if (!end)
                end = memchr(s, '\n', left);
            n = end ? (size_t)(end - s) : left;
        }
        log_line(server->cfg.access_log, s, n);
        at += n < left ? n + 1 : n; // log_line wrote the line break
    }
    if (at)
        buf_consume(b, at);
    if (b->len > 0 && !last)
        gw__worker_turn_by(w, LOG_RETRY_NS);
    else if (b->cap > LOG_BACKLOG_MAX / 4)
        buf_fini(b);
}

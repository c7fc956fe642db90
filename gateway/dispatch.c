// SPDX-License-Identifier: Apache-2.0
// What happens to a request between its parsing and its handler: the target, the route, the key,
// the limits. A refusal is kept in c->reject and answered when the body has been read over (small
// bodies), or at once with the connection closed after it.
#include "gateway/conn.h"
#include <string.h>
#include <strings.h>

enum {
    READ_OVER_MAX = 64 << 10,        // a refused request's body up to here is read and dropped
    PIECES_RESERVE = 4 * GW_SCRATCH, // what a body in pieces counts for in the in-flight budget
};

static bool id_ok(const char *s) {
    size_t n = strlen(s);
    if (n == 0 || n >= sizeof((struct gw_request *)0)->id)
        return false;
    for (; *s; s++) {
        char c = *s;
        if (!((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
              c == '.' || c == '_' || c == '-'))
            return false;
    }
    return true;
}

static char *put_hex(char *to, uint64_t v) {
    static const char digits[] = "0123456789abcdef";
    for (int shift = 60; shift >= 0; shift -= 4)
        *to++ = digits[v >> shift & 15];
    return to;
}

static void choose_id(struct gw_conn *c, const char *asked) {
    char *id = c->req.id;
    if (asked && id_ok(asked)) {
        strcpy(id, asked);
        return;
    }
    memcpy(id, "req_", 4);
    *put_hex(put_hex(id + 4, gw__worker_random(c->worker)), gw__worker_random(c->worker)) = '\0';
}

static size_t lower_hex(const char *s) {
    return strspn(s, "0123456789abcdef");
}

// W3C trace context: 00-<32 hex>-<16 hex>-<2 hex>. The trace goes on with a span of ours.
static void follow_trace(struct gw_conn *c, const char *in) {
    if (!in || strlen(in) != 55 || strncmp(in, "00-", 3) != 0 || lower_hex(in + 3) != 32 ||
        in[35] != '-' || lower_hex(in + 36) != 16 || in[52] != '-' || lower_hex(in + 53) != 2)
        return;
    if (strspn(in + 3, "0") >= 32 || strspn(in + 36, "0") >= 16)
        return;
    memcpy(c->trace_id, in + 3, 32);
    c->trace_id[32] = '\0';
    char out[56];
    memcpy(out, in, sizeof out);
    put_hex(out + 36, gw__worker_random(c->worker) | 1);
    out[52] = '-';
    gw_response_header(&c->req, "traceparent", out);
}

static void request_begin(struct gw_conn *c, bool parsed) {
    struct gw_request *r = &c->req;
    const struct gw_parse *p = &c->parse;
    arena_reset(&r->arena);
    buf_clear(&c->extra);
    struct arena arena = r->arena;
    *r = (struct gw_request){.loop = &c->worker->loop,
                             .arena = arena,
                             .path = "",
                             .query = "",
                             .client_ip = c->ip,
                             .received_ns = c->head_ns,
                             .access = &c->access,
                             .conn__ = c};
    c->access = (struct gw_access){.prompt_tokens = -1,
                                   .cached_tokens = -1,
                                   .completion_tokens = -1,
                                   .queue_ns = -1,
                                   .ttft_ns = -1,
                                   .tpot_ms = -1};
    c->reject.code = ERR_OK;
    c->trace_id[0] = '\0';
    c->active = true;
    c->handled = c->paused = false;
    c->sent = 0;
    c->body_mark = 0;
    choose_id(c, parsed ? p->request_id : NULL);
    if (parsed) {
        r->method = (enum gw_method)p->method;
        r->headers = p->headers;
        r->n_headers = p->n_headers;
        follow_trace(c, p->traceparent);
        gw__cors_apply(c);
    }
    if (!c->counted)
        atomic_fetch_add_explicit(&c->server->in_flight, 1, memory_order_relaxed);
    c->counted = true;
    gw_http_metrics_in_flight(c->server->metrics, 1);
}

static enum err refuse(struct gw_conn *c, enum err e, const char *why) {
    return err_set(&c->reject, e, NULL, "%s", why);
}

static enum err check_key(struct gw_conn *c, const struct gw_route *t) {
    const struct gw_keys *keys = c->server->cfg.keys;
    struct gw_request *r = &c->req;
    if (!keys) {
        r->who = (struct gw_identity){.admin = c->loopback, .train = c->loopback};
    } else {
        const char *s = c->parse.authorization;
        if (!s)
            return refuse(c, ERR_NO_KEY,
                          "no API key was given; send it as Authorization: Bearer <key>");
        if (strncasecmp(s, "Bearer ", 7) != 0)
            return refuse(c, ERR_NO_KEY, "the Authorization header must be: Bearer <key>");
        s += 7 + strspn(s + 7, " ");
        if (!gw_keys_check(keys, s, strlen(s), &r->who))
            return refuse(c, ERR_NO_KEY, "the API key is not valid");
    }
    if (t->auth == GW_AUTH_ADMIN && !r->who.admin)
        return refuse(c, ERR_PERMISSION, "this route needs an administrator's API key");
    if (t->auth == GW_AUTH_TRAIN && !r->who.train)
        return refuse(c, ERR_PERMISSION, "this route needs an API key with the role train");
    return ERR_OK;
}

static bool is_json(const char *type) {
    static const char json[] = "application/json";
    if (!type || strncasecmp(type, json, sizeof json - 1) != 0)
        return false;
    type += sizeof json - 1;
    type += strspn(type, " \t");
    return *type == '\0' || *type == ';';
}

// Takes `bytes` more out of the budget for bodies in flight.
static bool reserve(struct gw_conn *c, size_t bytes) {
    struct gw_server *s = c->server;
    size_t before = atomic_fetch_add_explicit(&s->inflight_bytes, bytes, memory_order_relaxed);
    if (bytes > s->cfg.max_inflight_bytes || before > s->cfg.max_inflight_bytes - bytes) {
        atomic_fetch_sub_explicit(&s->inflight_bytes, bytes, memory_order_relaxed);
        return false;
    }
    c->reserved += bytes;
    return true;
}

static enum err check_body(struct gw_conn *c, const struct gw_route *t) {
    const struct gw_parse *p = &c->parse;
    uint64_t max = t->max_body_bytes ? t->max_body_bytes : c->server->cfg.max_body_bytes;
    uint64_t count = p->content_length;
    if (p->content_length == 0 && !p->chunked)
        return ERR_OK;
    if (p->content_length > max)
        return err_set(&c->reject, ERR_TOO_LARGE, NULL,
                       "the request body is too large; at most %llu bytes are accepted",
                       (unsigned long long)max);
    c->parse.body_limit = max;
    if (t->json_body && !is_json(p->content_type))
        return refuse(c, ERR_MEDIA_TYPE, "the Content-Type must be application/json");
    if (t->body_pieces && (p->chunked || count > PIECES_RESERVE))
        count = PIECES_RESERVE;
    if (!reserve(c, (size_t)count))
        return refuse(c, ERR_AGAIN, "too many request bytes are in flight; try again");
    return ERR_OK;
}

static enum err refuse_unmatched(struct gw_conn *c, unsigned allowed) {
    struct gw_request *r = &c->req;
    if (!allowed)
        return refuse(c, ERR_NOT_FOUND, "there is no such route");
    char text[64];
    gw_methods_text(allowed | GW_OPTIONS, text, sizeof text);
    gw_response_header(r, "Allow", text);
    return err_set(&c->reject, ERR_METHOD, NULL, "%s is not allowed here; allowed: %s",
                   c->parse.method_name, text);
}

static enum err check_request(struct gw_conn *c) {
    struct gw_request *r = &c->req;
    struct gw_server *s = c->server;
    struct gw_target target;
    enum err e = gw_target_parse(&r->arena, c->parse.method, c->parse.target, c->parse.host,
                                 &target, &c->reject);
    if (e)
        return e;
    r->path = target.path;
    r->query = target.query;
    // The metrics port has the metrics and nothing else; then the main port does not have them.
    bool is_metrics = strcmp(r->path, "/metrics") == 0;
    bool own_port = s->cfg.metrics_host != NULL;
    if (own_port && is_metrics != (c->port == GW_PORT_METRICS))
        return refuse_unmatched(c, 0);
    if (c->parse.expect_other)
        return refuse(c, ERR_INVALID, "expect: only 100-continue is known");
    struct gw_match m = {0};
    if (!gw_router_match(&s->router, &r->arena, r->method, r->path, &m))
        return refuse(c, ERR_NOMEM, "out of memory");
    if (!m.route) {
        // Any route, and the server as a whole, answers OPTIONS.
        bool all = strcmp(r->path, "*") == 0;
        if (r->method != GW_OPTIONS || !(m.allowed || all))
            return refuse_unmatched(c, m.allowed);
        c->options = all ? GW_GET | GW_HEAD | GW_POST | GW_DELETE : m.allowed;
        return ERR_OK;
    }
    r->route__ = m.route;
    memcpy(r->params, m.params, sizeof r->params);
    if (m.route->auth != GW_AUTH_NONE && c->port == GW_PORT_MAIN) {
        e = check_key(c, m.route);
        if (e)
            return e;
        if (c->over_limit)
            return refuse(c, ERR_AGAIN, "too many connections; try again");
    }
    return check_body(c, m.route);
}

// The rest of the message is not wanted: answer now and close.
static void refuse_now(struct gw_conn *c) {
    // A handler that is reading the body learns that its request is over.
    if (c->handled && c->req.on_close)
        c->req.on_close(&c->req);
    c->req.on_close = NULL;
    c->handled = false;
    c->close_after = c->linger = true;
    c->state = GW_CONN_BUSY;
    gw_reply_error(&c->req, &c->reject);
}

static void call_handler(struct gw_conn *c) {
    c->handled = true;
    c->req.route__->handle(&c->req, c->req.route__->arg);
}

void gw__dispatch_head(struct gw_conn *c, bool body_in_hand) {
    struct gw_parse *p = &c->parse;
    c->options = 0;
    request_begin(c, true);
    enum err e = check_request(c);
    bool has_body = p->chunked || p->content_length > 0;
    if (!has_body)
        return; // the message is complete, gw__dispatch_done follows
    if (e || c->options) {
        p->discard = true;
        if (p->chunked || p->content_length > READ_OVER_MAX || p->expect_continue) {
            if (!e)
                refuse(c, ERR_INVALID, "OPTIONS takes no body");
            refuse_now(c);
        }
        return;
    }
    if (c->req.route__->body_pieces) {
        p->pieces = true;
        call_handler(c);
    }
    if (c->active && p->expect_continue && !body_in_hand) {
        buf_puts(&c->out, "HTTP/1.1 100 Continue\r\n\r\n");
        if (buf_err(&c->out))
            c->failed = true;
    }
}

void gw__dispatch_body(struct gw_conn *c) {
    struct gw_parse *p = &c->parse;
    size_t have = p->body.len;
    if (p->pieces) {
        if (c->handled && have)
            c->req.on_body(&c->req, p->body.data, have);
        buf_clear(&p->body);
        return;
    }
    if (!p->chunked || have <= c->reserved || reserve(c, have - c->reserved))
        return;
    refuse(c, ERR_AGAIN, "too many request bytes are in flight; try again");
    refuse_now(c);
}

// The end of a body whose handler gets it in pieces; an empty one begins here.
static void end_pieces(struct gw_conn *c) {
    struct gw_request *r = &c->req;
    if (!c->handled)
        call_handler(c);
    if (c->active && c->handled)
        r->on_body_end(r);
}

void gw__dispatch_done(struct gw_conn *c) {
    struct gw_request *r = &c->req;
    if (c->parse.pieces)
        c->state = GW_CONN_BUSY; // before the last piece: its answer costs the connection nothing
    if (!c->reject.code)
        gw__dispatch_body(c); // the last bytes of a chunked body
    if (!c->active)
        return;
    c->state = GW_CONN_BUSY;
    if (c->over_limit)
        c->close_after = true;
    if (c->reject.code) {
        gw_reply_error(r, &c->reject);
    } else if (c->options) {
        gw__cors_answer(c, c->options);
    } else if (r->route__->body_pieces) {
        end_pieces(c);
    } else {
        r->body = c->parse.body.data ? c->parse.body.data : "";
        r->body_len = c->parse.body.len;
        call_handler(c);
    }
}

void gw_body_pause(struct gw_request *r) {
    r->conn__->paused = true;
}

void gw_body_resume(struct gw_request *r) {
    struct gw_conn *c = r->conn__;
    c->paused = false;
    gw__conn_dirty(c);
}

void gw__dispatch_bad(struct gw_conn *c) {
    if (!c->active) {
        struct err_info why = c->reject;
        if (!gw_parse_started(&c->parse))
            c->head_ns = gw__now(c->server);
        request_begin(c, false);
        c->reject = why;
    }
    refuse_now(c);
}

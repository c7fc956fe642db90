// SPDX-License-Identifier: Apache-2.0
// A connection's life.
//
//   accepted -> HEAD -> BODY -> BUSY -> HEAD ...          feed, gw__dispatch_*, gw__request_end
//   HEAD, BODY, BUSY -> (output written) -> DEAD          flush, when close_after
//                    -> LINGER -> DEAD                    finish, drain
//   any -> DEAD                                           gw__conn_lost, gw__conn_close
//   BUSY -> DETACHED -> DEAD                              gw__conn_lost, gw__conn_detached_end
//
// Invariants
// 1. The socket's event is registered once, for both directions and the peer's end, edge-triggered;
//    `readable` and `writable` remember what it said until a call would block.
// 2. Requests of one connection are answered one after another: nothing is parsed while one is
//    active beyond its own body, and nothing is read while bytes in `pending` are not parsed.
//    So a connection buffers at most one read (GW_SCRATCH) of requests sent ahead, or of a body
//    whose handler has paused.
// 3. `out` grows by handlers; gw__conn_run alone writes it. Above its high mark nothing is parsed.
// 4. A connection is freed at the end of a turn, never inside a callback.
// 5. A peer that ends its direction while its request is BUSY is gone (README rule 9).
#include "gateway/conn.h"
#include "base/mem.h"
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
    MAX_READS = 16,         // of one connection in one turn
    OUT_KEPT = 64 << 10,    // a larger output buffer is not kept
    OUT_FIRST = 1024,       // room that is always there, for the answer that says: out of memory
    BODY_STEP = 64 << 10,   // so much of a body must come in each body time-out
    OUT_COMPACT = 64 << 10, // written bytes are dropped from the front of `out` beyond this
};

static ssize_t sock_read(struct gw_conn *c, void *p, size_t n) {
    if (c->ssl)
        return gw_tls_read(c->ssl, p, n);
    ssize_t got;
    do
        got = recv(c->fd, p, n, 0);
    while (got < 0 && errno == EINTR);
    if (got >= 0)
        return got;
    return errno == EAGAIN || errno == EWOULDBLOCK ? GW_IO_AGAIN : GW_IO_FAILED;
}

static ssize_t sock_write(struct gw_conn *c, const void *p, size_t n) {
    if (c->ssl)
        return gw_tls_write(c->ssl, p, n);
    ssize_t put;
    do
        put = send(c->fd, p, n, MSG_NOSIGNAL);
    while (put < 0 && errno == EINTR);
    if (put >= 0)
        return put;
    return errno == EAGAIN || errno == EWOULDBLOCK ? GW_IO_AGAIN : GW_IO_FAILED;
}

static void run_again(struct gw_conn *c) {
    if (c->is_dirty || c->state == GW_CONN_DEAD || c->state == GW_CONN_DETACHED)
        return;
    TAILQ_INSERT_TAIL(&c->worker->dirty, c, dirty_link);
    c->is_dirty = true;
}

void gw__conn_dirty(struct gw_conn *c) {
    if (!c->running) // else gw__conn_run will see to it
        run_again(c);
}

static void uncount(struct gw_conn *c) {
    if (c->counted)
        atomic_fetch_sub_explicit(&c->server->in_flight, 1, memory_order_relaxed);
    c->counted = false;
}

static void close_socket(struct gw_conn *c) {
    uncount(c);
    gw__deadline_clear(&c->read_wait);
    gw__deadline_clear(&c->write_wait);
    if (c->is_dirty)
        TAILQ_REMOVE(&c->worker->dirty, c, dirty_link);
    c->is_dirty = false;
    event_del(&c->event);
    if (c->ssl) {
        gw_tls_shutdown(c->ssl);
        gw_tls_session_free(c->ssl);
        c->ssl = NULL;
    }
    close(c->fd);
    c->fd = -1;
    atomic_fetch_sub_explicit(&c->worker->n_conns, 1, memory_order_relaxed);
    atomic_fetch_sub_explicit(&c->server->n_conns, 1, memory_order_relaxed);
    gw_http_metrics_connections(c->server->metrics, -1);
}

static void die(struct gw_conn *c) {
    c->state = GW_CONN_DEAD;
    TAILQ_REMOVE(&c->worker->conns, c, link);
    TAILQ_INSERT_TAIL(&c->worker->dead, c, link);
}

void gw__conn_close(struct gw_conn *c) {
    if (c->state == GW_CONN_DEAD)
        return;
    close_socket(c);
    die(c);
}

void gw__conn_detached_end(struct gw_conn *c) {
    die(c);
}

void gw__conn_free(struct gw_conn *c) {
    arena_fini(&c->req.arena);
    gw_parse_fini(&c->parse);
    buf_fini(&c->pending);
    buf_fini(&c->out);
    buf_fini(&c->extra);
    mem_free(c);
}

void gw__conn_lost(struct gw_conn *c, bool by_client) {
    if (c->active) {
        struct gw_request *r = &c->req;
        int status = c->stream.begun ? c->stream.status : 499;
        bool detach = c->handled && !r->on_close;
        c->access.client_disconnected = by_client;
        if (c->handled && r->on_close)
            r->on_close(r);
        gw__request_end(c, status);
        if (detach) { // it will still be answered, into the void
            close_socket(c);
            c->state = GW_CONN_DETACHED;
            return;
        }
    }
    gw__conn_close(c);
}

// After the last answer. Closing a socket that holds unread bytes resets the connection, and the
// reset can overtake the answer; so such a peer gets time to read it first.
static void finish(struct gw_conn *c) {
    bool unread = c->linger || c->pending.len > 0 || (c->readable && !c->peer_ended);
    if (!unread || c->eof) {
        gw__conn_close(c);
        return;
    }
    if (c->ssl)
        gw_tls_shutdown(c->ssl);
    shutdown(c->fd, SHUT_WR);
    buf_fini(&c->pending);
    c->state = GW_CONN_LINGER;
    c->readable = true;
    gw__deadline_clear(&c->write_wait);
    gw__worker_wait(c->worker, GW_WAIT_LINGER, &c->read_wait, gw__now(c->server));
    run_again(c); // what came already has had its event
}

static void drain(struct gw_conn *c) {
    for (int i = 0; i < MAX_READS; i++) {
        ssize_t n = recv(c->fd, c->worker->scratch, GW_SCRATCH, 0);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
            return;
        if (n <= 0) {
            gw__conn_close(c);
            return;
        }
        c->worker->bytes_in += (size_t)n;
    }
    run_again(c);
}

static void out_written(struct gw_conn *c) {
    if (gw__conn_backlog(c) == 0) {
        if (!c->active)
            uncount(c);
        buf_clear(&c->out);
        c->out_at = 0;
        if (c->out.cap > OUT_KEPT) {
            buf_fini(&c->out);
            (void)buf_reserve(&c->out, OUT_FIRST);
        }
        gw__deadline_clear(&c->write_wait);
    } else if (c->out_at > OUT_COMPACT && c->stream.chunk_at == SIZE_MAX) {
        buf_consume(&c->out, c->out_at);
        c->out_at = 0;
    }
}

static void flush(struct gw_conn *c) {
    gw__stream_close_chunk(c);
    while (c->writable && gw__conn_backlog(c) > 0) {
        ssize_t n = sock_write(c, c->out.data + c->out_at, gw__conn_backlog(c));
        if (n == GW_IO_AGAIN) {
            c->writable = false;
        } else if (n < 0) {
            gw__conn_lost(c, true);
            return;
        } else {
            c->out_at += (size_t)n;
            c->worker->bytes_out += (size_t)n;
            c->wrote = true;
        }
    }
    out_written(c);
    if (c->failed) {
        gw__conn_lost(c, false);
    } else if (gw__conn_backlog(c) == 0 && c->close_after && !c->active) {
        finish(c);
    } else if (c->above && gw__conn_backlog(c) <= c->server->cfg.stream_high_bytes / 2) {
        c->above = false;
        if (c->handled && c->req.on_writable)
            c->req.on_writable(&c->req);
    }
}

static bool may_parse(const struct gw_conn *c) {
    return (c->state == GW_CONN_HEAD || (c->state == GW_CONN_BODY && !c->paused)) &&
           !c->close_after && !c->failed && gw__conn_backlog(c) <= c->server->cfg.stream_high_bytes;
}

// Parses data[0..n) and handles what it holds; returns how much was taken.
static size_t feed(struct gw_conn *c, const char *data, size_t n) {
    size_t at = 0, used;
    while (may_parse(c) && (at < n || c->state == GW_CONN_BODY)) {
        if (c->state == GW_CONN_HEAD && !c->active && c->parse.stage != GW_PARSE_IN_HEAD)
            gw_parse_next(&c->parse);
        if (c->state == GW_CONN_HEAD && !gw_parse_started(&c->parse))
            c->head_ns = gw__now(c->server);
        enum gw_parse_event e = gw_parse_feed(&c->parse, data + at, n - at, &used, &c->reject);
        at += used;
        switch (e) {
        case GW_PARSE_MORE:
            if (c->state == GW_CONN_BODY)
                gw__dispatch_body(c);
            return at;
        case GW_PARSE_HEAD:
            c->state = GW_CONN_BODY;
            gw__dispatch_head(c, at < n);
            break;
        case GW_PARSE_DONE:
            gw__dispatch_done(c);
            break;
        case GW_PARSE_BAD:
            gw__dispatch_bad(c);
            return n;
        }
    }
    return at;
}

static void at_eof(struct gw_conn *c) {
    c->eof = c->peer_ended = true;
    if (c->active)
        gw__conn_lost(c, true);
    else
        c->close_after = true;
}

static void input(struct gw_conn *c) {
    for (int reads = 0; may_parse(c);) {
        if (c->pending.len > 0) {
            buf_consume(&c->pending, feed(c, c->pending.data, c->pending.len));
            if (c->pending.len == 0)
                buf_fini(&c->pending);
            continue;
        }
        if (!c->readable)
            return;
        if (reads++ == MAX_READS) {
            run_again(c);
            return;
        }
        ssize_t n = sock_read(c, c->worker->scratch, GW_SCRATCH);
        if (n == GW_IO_AGAIN) {
            c->readable = false;
            return;
        }
        if (n <= 0) {
            at_eof(c);
            return;
        }
        // A short read has emptied the socket, unless the peer's end is still to be read. TLS keeps
        // bytes of its own: only a call that would block says that they are all read.
        if (!c->ssl && n < GW_SCRATCH && !c->peer_ended)
            c->readable = false;
        c->worker->bytes_in += (size_t)n;
        size_t used = feed(c, c->worker->scratch, (size_t)n);
        if (used < (size_t)n && c->state != GW_CONN_DEAD) {
            buf_append(&c->pending, c->worker->scratch + used, (size_t)n - used);
            if (buf_err(&c->pending))
                c->failed = true;
        }
    }
}

static void update_waits(struct gw_conn *c) {
    int64_t now = 0; // asked for once, and only where a time-out starts
    struct gw_worker *w = c->worker;
    struct gw_deadline *d = &c->read_wait;
    bool backlog = gw__conn_backlog(c) > 0;
    enum gw_wait kind = GW_WAITS;
    bool restart = false;
    if (c->state == GW_CONN_BODY && c->paused) {
        c->body_mark = c->parse.body_bytes; // not the client's time
    } else if (c->state == GW_CONN_BODY) {
        kind = GW_WAIT_BODY;
        if (c->parse.body_bytes >= c->body_mark + BODY_STEP) {
            c->body_mark = c->parse.body_bytes;
            restart = true;
        }
    } else if (c->state == GW_CONN_HEAD && c->parse.stage == GW_PARSE_IN_HEAD && !backlog) {
        kind = GW_WAIT_HEAD; // begun, or the connection's first
    } else if (c->state == GW_CONN_HEAD && !backlog) {
        kind = d->queue == &w->waits[GW_WAIT_COLD] && !c->ended ? GW_WAIT_COLD : GW_WAIT_WARM;
        restart = c->ended;
    }
    c->ended = false;
    if (kind == GW_WAITS) {
        gw__deadline_clear(d);
    } else if (restart || d->queue != &w->waits[kind]) {
        now = gw__now(c->server);
        gw__worker_wait(w, kind, d, now);
    }
    if (!backlog) {
        gw__deadline_clear(&c->write_wait);
    } else if (c->wrote || !c->write_wait.queue) {
        gw__worker_wait(w, GW_WAIT_WRITE, &c->write_wait, now ? now : gw__now(c->server));
    }
    c->wrote = false;
}

// Is there work for which no event will come: what on_writable did, or requests that waited for
// room in `out`?
static bool more_to_do(const struct gw_conn *c) {
    bool end = c->failed || (c->close_after && !c->active && gw__conn_backlog(c) == 0);
    bool input_left = (c->pending.len > 0 || c->readable) && may_parse(c);
    return end || (c->writable && (gw__conn_backlog(c) > 0 || input_left));
}

void gw__conn_run(struct gw_conn *c) {
    if (c->state == GW_CONN_DEAD || c->state == GW_CONN_DETACHED)
        return;
    c->running = true;
    if (c->state == GW_CONN_LINGER) {
        drain(c);
        c->running = false;
        return;
    }
    flush(c);
    input(c);
    if (c->state == GW_CONN_BUSY && c->peer_ended)
        gw__conn_lost(c, true);
    if (c->state <= GW_CONN_BUSY)
        flush(c);
    c->running = false;
    if (c->state <= GW_CONN_BUSY) {
        update_waits(c);
        if (more_to_do(c))
            run_again(c);
    }
}

static void on_event(evutil_socket_t fd, short what, void *arg) {
    struct gw_conn *c = arg;
    if (c->state == GW_CONN_DEAD)
        return;
    if (what & EV_CLOSED)
        c->peer_ended = true;
    if (what & EV_READ && c->state == GW_CONN_BUSY && !c->peer_ended) {
        // Bytes sent ahead, or a reset: libevent reports both as readable.
        struct pollfd p = {.fd = fd, .events = POLLRDHUP};
        if (poll(&p, 1, 0) == 1 && p.revents & (POLLERR | POLLHUP | POLLRDHUP))
            c->peer_ended = true;
    }
    c->readable = c->readable || what & (EV_READ | EV_CLOSED) || c->ssl;
    c->writable = c->writable || what & EV_WRITE || c->ssl;
    gw__conn_run(c);
}

void gw__conn_expired(struct gw_conn *c, enum gw_wait kind) {
    switch (kind) {
    case GW_WAIT_WARM:
        gw_parse_trim(&c->parse);
        arena_fini(&c->req.arena);
        buf_fini(&c->extra);
        gw__worker_wait(c->worker, GW_WAIT_COLD, &c->read_wait, gw__now(c->server));
        return;
    case GW_WAIT_WRITE:
        gw__conn_lost(c, true);
        return;
    case GW_WAIT_COLD:
    case GW_WAIT_LINGER:
    case GW_WAITS:
        gw__conn_close(c);
        return;
    case GW_WAIT_HEAD:
        if (!gw_parse_started(&c->parse)) {
            gw__conn_close(c);
            return;
        }
        err_set(&c->reject, ERR_CLIENT_TIMEOUT, NULL, "the request head did not come in time");
        break;
    case GW_WAIT_BODY:
        err_set(&c->reject, ERR_CLIENT_TIMEOUT, NULL, "the request body did not come in time");
        break;
    }
    gw__dispatch_bad(c);
    gw__conn_run(c);
}

void gw__conn_drain(struct gw_conn *c) {
    if (c->state != GW_CONN_HEAD || c->active)
        return;
    c->readable = true; // a request may lie in the socket, unreported: it is answered
    gw__conn_run(c);
    if (c->state != GW_CONN_HEAD || c->active || c->close_after ||
        (c->parse.stage == GW_PARSE_IN_HEAD && gw_parse_started(&c->parse)))
        return;
    c->close_after = c->linger = true;
    gw__conn_run(c);
}

void gw__conn_stop(struct gw_conn *c) {
    if (c->state == GW_CONN_DETACHED || c->state == GW_CONN_DEAD)
        return;
    c->running = true;
    c->above = false;
    if (c->state != GW_CONN_LINGER)
        flush(c);
    if (c->state != GW_CONN_DEAD)
        gw__conn_lost(c, false);
    c->running = false;
}

struct accepted {
    struct gw_worker *worker;
    int fd;
    enum gw_port port;
    bool loopback, over_limit;
    char ip[INET6_ADDRSTRLEN];
};

static enum err conn_open(const struct accepted *a) {
    struct gw_worker *w = a->worker;
    struct gw_server *s = w->server;
    struct gw_conn *c = mem_zalloc(sizeof *c);
    if (!c)
        return ERR_NOMEM;
    c->worker = w;
    c->server = s;
    c->fd = a->fd;
    c->port = a->port;
    c->loopback = a->loopback;
    c->over_limit = a->over_limit;
    c->writable = true;
    c->stream.chunk_at = SIZE_MAX;
    memcpy(c->ip, a->ip, sizeof c->ip);
    arena_init(&c->req.arena, 0);
    buf_init(&c->pending, GW_SCRATCH);
    buf_init(&c->out, 0);
    buf_init(&c->extra, 16 << 10);
    gw_parse_init(&c->parse,
                  &(struct gw_parse_limits){s->cfg.max_header_bytes, s->cfg.max_body_bytes});
    bool ok = buf_reserve(&c->out, OUT_FIRST) != NULL;
    if (ok && s->tls && a->port == GW_PORT_MAIN) {
        c->ssl = gw_tls_session(s->tls, a->fd);
        ok = c->ssl != NULL;
    }
    ok = ok &&
         event_assign(&c->event, w->loop.base, a->fd,
                      EV_READ | EV_WRITE | EV_CLOSED | EV_ET | EV_PERSIST, on_event, c) == 0 &&
         event_add(&c->event, NULL) == 0;
    if (!ok) {
        gw_tls_session_free(c->ssl);
        gw__conn_free(c);
        return ERR_NOMEM;
    }
    TAILQ_INSERT_TAIL(&w->conns, c, link);
    gw_http_metrics_connections(s->metrics, 1);
    // The first request is usually there already, or will wake us.
    c->readable = true;
    gw__conn_run(c);
    return ERR_OK;
}

static void conn_opened_on_worker(void *arg) {
    struct accepted *a = arg;
    if (conn_open(a)) {
        close(a->fd);
        atomic_fetch_sub_explicit(&a->worker->n_conns, 1, memory_order_relaxed);
        atomic_fetch_sub_explicit(&a->worker->server->n_conns, 1, memory_order_relaxed);
    }
    mem_free(a);
}

void gw__accepted(struct gw_server *s, int fd, const char *peer, bool loopback, enum gw_port port) {
    struct gw_worker *best = &s->workers[0];
    int fewest = atomic_load_explicit(&best->n_conns, memory_order_relaxed);
    for (int i = 1; i < s->n_workers; i++) {
        int n = atomic_load_explicit(&s->workers[i].n_conns, memory_order_relaxed);
        if (n < fewest) {
            fewest = n;
            best = &s->workers[i];
        }
    }
    struct accepted *a = mem_zalloc(sizeof *a);
    if (!a) {
        close(fd);
        return;
    }
    *a = (struct accepted){.worker = best, .fd = fd, .port = port, .loopback = loopback};
    snprintf(a->ip, sizeof a->ip, "%s", peer);
    atomic_fetch_add_explicit(&best->n_conns, 1, memory_order_relaxed);
    int all = atomic_fetch_add_explicit(&s->n_conns, 1, memory_order_relaxed) + 1;
    a->over_limit = all > s->cfg.max_connections;
    if (best->index == 0) {
        conn_opened_on_worker(a);
    } else if (!gw_loop_post(&best->loop, conn_opened_on_worker, a)) {
        close(fd);
        atomic_fetch_sub_explicit(&best->n_conns, 1, memory_order_relaxed);
        atomic_fetch_sub_explicit(&s->n_conns, 1, memory_order_relaxed);
        mem_free(a);
    }
}

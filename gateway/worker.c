// SPDX-License-Identifier: Apache-2.0
// What one event loop owns beside its connections: time-outs, the Date field, the access log's
// lines of this turn, ids. The end of each turn is here: connections with something to write, the
// dead, the log.
#include "base/hash.h"
#include "base/mem.h"
#include "gateway/conn.h"
#include <stdio.h>
#include <string.h>
#include <time.h>

static const int64_t second_ns = 1000000000, warm_ns = 1000000000, linger_ns = 2000000000;

static void drain(struct gw_worker *w) {
    if (w->index == 0)
        gw__listeners_close(w->server, false);
    struct gw_conn *c, *next;
    for (c = TAILQ_FIRST(&w->conns); c; c = next) {
        next = TAILQ_NEXT(c, link);
        if (c->port == GW_PORT_MAIN)
            gw__conn_drain(c);
    }
}

static void turn(void *arg) {
    struct gw_worker *w = arg;
    if (!w->drained && atomic_load_explicit(&w->server->draining, memory_order_relaxed)) {
        w->drained = true;
        drain(w);
    }
    size_t n = 0;
    struct gw_conn *c;
    TAILQ_FOREACH(c, &w->dirty, dirty_link) n++;
    // Those that become dirty meanwhile wait for the next turn, so that events come in between.
    for (; n > 0 && (c = TAILQ_FIRST(&w->dirty)) != NULL; n--) {
        TAILQ_REMOVE(&w->dirty, c, dirty_link);
        c->is_dirty = false;
        gw__conn_run(c);
    }
    while ((c = TAILQ_FIRST(&w->dead)) != NULL) {
        TAILQ_REMOVE(&w->dead, c, link);
        gw__conn_free(c);
    }
    w->loop.again = !TAILQ_EMPTY(&w->dirty);
    gw__access_log_flush(w, w->loop.stop);
    if (w->bytes_in || w->bytes_out) {
        gw_http_metrics_bytes(w->server->metrics, w->bytes_in, w->bytes_out);
        w->bytes_in = w->bytes_out = 0;
    }
}

static void stopping(void *arg) {
    struct gw_worker *w = arg;
    if (w->index == 0)
        gw__listeners_close(w->server, true);
    struct gw_conn *c, *next;
    for (c = TAILQ_FIRST(&w->conns); c; c = next) {
        next = TAILQ_NEXT(c, link);
        gw__conn_stop(c);
    }
}

static const struct gw_loop_hooks hooks = {.turn = turn, .stopping = stopping};

static void arm(struct gw_worker *w, int64_t at, int64_t now) {
    if (at >= w->sweep_at)
        return;
    int64_t us = at > now ? (at - now) / 1000 + 1 : 1;
    struct timeval tv = {.tv_sec = us / 1000000, .tv_usec = us % 1000000};
    if (event_add(&w->sweep, &tv) == 0)
        w->sweep_at = at;
}

static void on_sweep(evutil_socket_t fd, short what, void *arg) {
    (void)fd;
    (void)what;
    struct gw_worker *w = arg;
    int64_t now = gw__now(w->server), next = INT64_MAX;
    w->sweep_at = INT64_MAX;
    for (size_t i = 0; i < GW_WAITS; i++) {
        int64_t at = gw__deadline_run(&w->waits[i], now);
        if (at < next)
            next = at;
    }
    if (next != INT64_MAX)
        arm(w, next, now);
}

void gw__worker_wait(struct gw_worker *w, enum gw_wait kind, struct gw_deadline *d, int64_t now) {
    gw__deadline_set(&w->waits[kind], d, now);
    arm(w, d->at, now);
}

void gw__worker_turn_by(struct gw_worker *w, int64_t delay_ns) {
    int64_t now = gw__now(w->server);
    arm(w, now + delay_ns, now);
}

static struct gw_conn *reader(struct gw_deadline *d) {
    return (struct gw_conn *)((char *)d - offsetof(struct gw_conn, read_wait));
}
static void on_head(struct gw_deadline *d) {
    gw__conn_expired(reader(d), GW_WAIT_HEAD);
}
static void on_body(struct gw_deadline *d) {
    gw__conn_expired(reader(d), GW_WAIT_BODY);
}
static void on_warm(struct gw_deadline *d) {
    gw__conn_expired(reader(d), GW_WAIT_WARM);
}
static void on_cold(struct gw_deadline *d) {
    gw__conn_expired(reader(d), GW_WAIT_COLD);
}
static void on_linger(struct gw_deadline *d) {
    gw__conn_expired(reader(d), GW_WAIT_LINGER);
}
static void on_write(struct gw_deadline *d) {
    struct gw_conn *c = (struct gw_conn *)((char *)d - offsetof(struct gw_conn, write_wait));
    gw__conn_expired(c, GW_WAIT_WRITE);
}

enum err gw__worker_init(struct gw_worker *w, struct gw_server *s, int index,
                         struct err_info *info) {
    *w = (struct gw_worker){.server = s, .index = index, .sweep_at = INT64_MAX};
    TAILQ_INIT(&w->conns);
    TAILQ_INIT(&w->dirty);
    TAILQ_INIT(&w->dead);
    buf_init(&w->log, 0);
    const struct gw_config *cfg = &s->cfg;
    int64_t cold = cfg->idle_timeout_ns > warm_ns ? cfg->idle_timeout_ns - warm_ns : 0;
    gw__deadline_queue_init(&w->waits[GW_WAIT_HEAD], cfg->header_timeout_ns, on_head);
    gw__deadline_queue_init(&w->waits[GW_WAIT_BODY], cfg->body_timeout_ns, on_body);
    gw__deadline_queue_init(&w->waits[GW_WAIT_WARM], cfg->idle_timeout_ns - cold, on_warm);
    gw__deadline_queue_init(&w->waits[GW_WAIT_COLD], cold, on_cold);
    gw__deadline_queue_init(&w->waits[GW_WAIT_WRITE], cfg->write_timeout_ns, on_write);
    gw__deadline_queue_init(&w->waits[GW_WAIT_LINGER], linger_ns, on_linger);
    enum err e = gw__loop_init(&w->loop, &hooks, w, info);
    if (e)
        return e;
    w->scratch = mem_alloc(GW_SCRATCH);
    if (!w->scratch)
        return err_set(info, ERR_NOMEM, NULL, "out of memory");
    if (event_assign(&w->sweep, w->loop.base, -1, 0, on_sweep, w) != 0)
        return err_set(info, ERR_INTERNAL, NULL, "cannot make a timer");
    e = random_bytes(&w->id_key, sizeof w->id_key);
    return e ? err_set(info, e, NULL, "no random numbers from the system") : ERR_OK;
}

void gw__worker_fini(struct gw_worker *w) {
    struct gw_conn *c;
    while ((c = TAILQ_FIRST(&w->dead)) != NULL) {
        TAILQ_REMOVE(&w->dead, c, link);
        gw__conn_free(c);
    }
    if (event_initialized(&w->sweep))
        event_del(&w->sweep);
    while ((c = TAILQ_FIRST(&w->conns)) != NULL) { // detached ones, never answered
        TAILQ_REMOVE(&w->conns, c, link);
        gw__conn_free(c);
    }
    gw__loop_fini(&w->loop);
    mem_free(w->scratch);
    buf_fini(&w->log);
}

const char *gw__worker_date(struct gw_worker *w, int64_t now) {
    static const char days[] = "SunMonTueWedThuFriSat";
    static const char months[] = "JanFebMarAprMayJunJulAugSepOctNovDec";
    if (now >= w->date_until) {
        int64_t wall = clock_wall_ns(w->server->cfg.clock);
        time_t sec = (time_t)(wall / second_ns);
        struct tm tm;
        gmtime_r(&sec, &tm);
        // Not strftime: its names follow the locale.
        snprintf(w->date, sizeof w->date, "Date: %.3s, %02d %.3s %04d %02d:%02d:%02d GMT\r\n",
                 days + 3 * tm.tm_wday, tm.tm_mday, months + 3 * tm.tm_mon, tm.tm_year + 1900,
                 tm.tm_hour, tm.tm_min, tm.tm_sec);
        w->date_until = now + second_ns - wall % second_ns;
    }
    return w->date;
}

uint64_t gw__worker_random(struct gw_worker *w) {
    return hash_mix64(w->id_key + 0x9e3779b97f4a7c15u * ++w->id_next);
}

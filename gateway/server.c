// SPDX-License-Identifier: Apache-2.0
// The server as a whole: defaults, start, drain, stop. The calls here come from the thread that
// owns the server (main); drain and TLS reload from any.
#include "base/mem.h"
#include "gateway/conn.h"
#include <stdio.h>
#include <sys/stat.h>

static const int64_t second_ns = 1000000000;

static void set_size(size_t *v, size_t dflt) {
    *v = *v ? *v : dflt;
}
static void set_time(int64_t *v, int64_t seconds) {
    *v = *v > 0 ? *v : seconds * second_ns;
}

static void fill_defaults(struct gw_config *cfg) {
    cfg->loops = cfg->loops > 0 ? cfg->loops : 1;
    cfg->max_connections = cfg->max_connections > 0 ? cfg->max_connections : 10000;
    set_size(&cfg->max_header_bytes, 64 << 10);
    set_size(&cfg->max_body_bytes, 32 << 20);
    set_size(&cfg->max_inflight_bytes, 256 << 20);
    set_size(&cfg->stream_high_bytes, 64 << 10);
    set_time(&cfg->header_timeout_ns, 10);
    set_time(&cfg->body_timeout_ns, 30);
    set_time(&cfg->idle_timeout_ns, 75);
    set_time(&cfg->write_timeout_ns, 60);
    cfg->clock = cfg->clock ? cfg->clock : &clock_system;
}

static bool may_block(const struct log *log) {
    struct stat st;
    return log && log->fd >= 0 && fstat(log->fd, &st) == 0 && !S_ISREG(st.st_mode);
}

static enum err create(struct gw_server *s, struct err_info *info) {
    struct gw_config *cfg = &s->cfg;
    if (!cfg->ssl_certfile != !cfg->ssl_keyfile)
        return err_set(info, ERR_INVALID, "ssl-keyfile",
                       "a TLS certificate and its key are given together or not at all");
    enum err e = gw_router_init(&s->router, cfg->routes, cfg->n_routes, info);
    if (e)
        return e;
    e = gw_http_metrics_create(cfg->metrics, cfg->routes, cfg->n_routes, &s->metrics);
    if (e)
        return err_set(info, e, NULL, "out of memory");
    if (cfg->ssl_certfile) {
        e = gw_tls_create(cfg->ssl_certfile, cfg->ssl_keyfile, &s->tls, info);
        if (e)
            return e;
    }
    s->workers = mem_calloc((size_t)cfg->loops, sizeof *s->workers);
    if (!s->workers)
        return err_set(info, ERR_NOMEM, NULL, "out of memory");
    for (int i = 0; i < cfg->loops; i++) {
        s->n_workers = i + 1;
        e = gw__worker_init(&s->workers[i], s, i, info);
        if (e)
            return e;
    }
    s->port = cfg->port;
    e = gw__listen(s, GW_PORT_MAIN, cfg->host, &s->port, info);
    s->metrics_port = cfg->metrics_port;
    if (!e && cfg->metrics_host)
        e = gw__listen(s, GW_PORT_METRICS, cfg->metrics_host, &s->metrics_port, info);
    return e ? e : gw__listeners_watch(s, info);
}

enum err gw_server_create(const struct gw_config *cfg, struct gw_server **out,
                          struct err_info *info) {
    struct gw_server *s = mem_zalloc(sizeof *s);
    if (!s)
        return err_set(info, ERR_NOMEM, NULL, "out of memory");
    s->cfg = *cfg;
    fill_defaults(&s->cfg);
    s->log_is_pipe = may_block(cfg->access_log);
    enum err e = create(s, info);
    if (e)
        gw_server_destroy(s);
    else
        *out = s;
    return e;
}

enum err gw_server_start(struct gw_server *s, struct err_info *info) {
    for (int i = 0; i < s->n_workers; i++) {
        char name[24];
        snprintf(name, sizeof name, "gw-loop-%d", i);
        enum err e = gw__loop_start(&s->workers[i].loop, name, info);
        if (e) {
            gw_server_stop(s);
            return e;
        }
        s->running = true;
    }
    return ERR_OK;
}

int gw_server_port(const struct gw_server *s) {
    return s->port;
}

int gw_server_metrics_port(const struct gw_server *s) {
    return s->metrics_port;
}

enum err gw_server_reload_tls(struct gw_server *s, struct err_info *info) {
    return s->tls ? gw_tls_reload(s->tls, info) : ERR_OK;
}

int64_t gw_server_in_flight(const struct gw_server *s) {
    return atomic_load_explicit(&s->in_flight, memory_order_relaxed);
}

// No memory is needed from here on: neither a drain nor a stop can fail.
void gw_server_stop_accepting(struct gw_server *s) {
    if (atomic_exchange(&s->draining, true))
        return;
    for (int i = 0; i < s->n_workers; i++)
        gw__loop_wake(&s->workers[i].loop);
}

void gw_server_stop(struct gw_server *s) {
    atomic_store(&s->draining, true);
    for (int i = 0; i < s->n_workers; i++)
        if (s->workers[i].loop.started)
            gw__loop_stop(&s->workers[i].loop);
    for (int i = 0; i < s->n_workers; i++)
        gw__loop_join(&s->workers[i].loop);
    s->running = false;
}

void gw_server_destroy(struct gw_server *s) {
    if (!s)
        return;
    if (s->running)
        gw_server_stop(s);
    gw__listeners_close(s, true);
    for (int i = 0; i < s->n_workers; i++)
        gw__worker_fini(&s->workers[i]);
    mem_free(s->workers);
    gw_tls_destroy(s->tls);
    gw_http_metrics_destroy(s->metrics);
    mem_free(s);
}

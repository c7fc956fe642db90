// SPDX-License-Identifier: Apache-2.0
#include "gateway/http_metrics.h"
#include "base/mem.h"
#include "gateway/router.h"
#include <stdio.h>
#include <string.h>

static const int statuses[] = {200, 204, 400, 401, 403, 404, 405, 408,
                               413, 415, 429, 431, 499, 500, 503};
enum { N_STATUSES = sizeof statuses / sizeof *statuses };

static const unsigned counted_methods[] = {GW_GET, GW_POST, GW_DELETE, GW_OPTIONS};
enum { N_METHODS = sizeof counted_methods / sizeof *counted_methods };

struct route_metrics {
    struct metric *requests[N_METHODS][N_STATUSES];
    struct metric *other;
    struct histogram *duration;
};

struct gw_http_metrics {
    struct metric *in_flight, *connections, *bytes_in, *bytes_out, *log_dropped;
    size_t n; // routes; routes[n] is for requests that matched none
    struct route_metrics routes[];
};

static const double buckets[] = {.001, .005, .025, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 120};

// Can this status come from that route? A series that stays zero is only noise in a scrape.
static bool possible(const struct gw_route *t, unsigned method, int status) {
    switch (status) {
    case 204:
    case 405:
    case 431:
        return !t;
    case 401:
        return t && t->auth != GW_AUTH_NONE;
    case 403:
        return !t || t->auth == GW_AUTH_TRAIN || t->auth == GW_AUTH_ADMIN;
    case 408:
    case 413:
        return !t || method == GW_POST;
    case 415:
    case 429:
        return t && method == GW_POST;
    case 404:
    case 499:
        return !t || t->auth != GW_AUTH_NONE;
    default:
        return true;
    }
}

// What rates are taken of stands there from zero on: a counter that appears with its first request
// has no rate for it. The rest, hundreds of lines, comes with the first answer of its kind.
static bool is_always_shown(const struct gw_route *t, int status) {
    return t ? status == 200 : status == 404;
}

// `same`: an earlier route with the same pattern (and other methods), whose series it shares.
static bool make_route(struct metrics *m, const struct gw_route *t,
                       const struct route_metrics *same, struct route_metrics *out) {
    static const char name[] = "graft_http_requests_total";
    static const char help[] = "HTTP requests answered.";
    const char *pattern = t ? t->pattern : "other";
    char labels[192];
    bool ok = true;
    for (size_t i = 0; i < N_METHODS; i++) {
        unsigned method = counted_methods[i];
        if (t && !(t->methods & method))
            continue;
        for (size_t k = 0; k < N_STATUSES; k++) {
            if ((!t && i > 0) || !possible(t, method, statuses[k]))
                continue;
            snprintf(labels, sizeof labels, "route=\"%s\",method=\"%s\",status=\"%d\"", pattern,
                     t ? gw_method_text(method) : "other", statuses[k]);
            out->requests[i][k] = metrics_counter(m, name, labels, help);
            if (!is_always_shown(t, statuses[k]))
                metric_when_used(out->requests[i][k]);
            ok = ok && out->requests[i][k];
        }
    }
    if (same) {
        out->other = same->other;
        out->duration = same->duration;
        return ok;
    }
    snprintf(labels, sizeof labels, "route=\"%s\",method=\"other\",status=\"other\"", pattern);
    out->other = metrics_counter(m, name, labels, help);
    metric_when_used(out->other);
    snprintf(labels, sizeof labels, "route=\"%s\"", pattern);
    out->duration = metrics_histogram(m, "graft_http_request_duration_seconds", labels,
                                      "Time from a request's first byte to the end of its answer.",
                                      buckets, sizeof buckets / sizeof *buckets);
    histogram_when_used(out->duration);
    return ok && out->other && out->duration;
}

enum err gw_http_metrics_create(struct metrics *m, const struct gw_route *routes, size_t n,
                                struct gw_http_metrics **out) {
    size_t bytes = sizeof **out + (n + 1) * sizeof(struct route_metrics);
    struct gw_http_metrics *h = mem_zalloc(bytes);
    if (!h)
        return ERR_NOMEM;
    h->n = n;
    *out = h;
    if (!m)
        return ERR_OK;
    bool ok = true;
    for (size_t i = 0; i <= n && ok; i++) {
        const struct route_metrics *same = NULL;
        for (size_t k = 0; k < i && i < n && !same; k++)
            if (strcmp(routes[k].pattern, routes[i].pattern) == 0)
                same = &h->routes[k];
        ok = make_route(m, i < n ? &routes[i] : NULL, same, &h->routes[i]);
    }
    h->in_flight =
        metrics_gauge(m, "graft_http_requests_in_flight", NULL, "Requests being handled.");
    h->connections = metrics_gauge(m, "graft_http_connections", NULL, "Open client connections.");
    h->bytes_in = metrics_counter(m, "graft_http_receive_bytes_total", NULL,
                                  "Bytes received from clients, before TLS.");
    h->bytes_out = metrics_counter(m, "graft_http_send_bytes_total", NULL,
                                   "Bytes sent to clients, before TLS.");
    h->log_dropped = metrics_counter(m, "graft_http_access_log_dropped_total", NULL,
                                     "Access log lines dropped because their reader stalled.");
    if (ok && h->in_flight && h->connections && h->bytes_in && h->bytes_out && h->log_dropped)
        return ERR_OK;
    gw_http_metrics_destroy(h);
    *out = NULL;
    return ERR_NOMEM;
}

void gw_http_metrics_destroy(struct gw_http_metrics *h) {
    mem_free(h);
}

void gw_http_metrics_request(struct gw_http_metrics *h, size_t route, unsigned method, int status,
                             int64_t duration_ns) {
    struct route_metrics *t = &h->routes[route < h->n ? route : h->n];
    if (method == GW_HEAD)
        method = GW_GET;
    struct metric *m = NULL;
    for (size_t i = 0; i < N_METHODS && !m; i++) {
        if (route < h->n && counted_methods[i] != method)
            continue;
        for (size_t k = 0; k < N_STATUSES && !m; k++)
            if (statuses[k] == status)
                m = t->requests[i][k];
        if (route >= h->n)
            break;
    }
    metric_add(m ? m : t->other, 1);
    histogram_observe(t->duration, (double)duration_ns * 1e-9);
}

void gw_http_metrics_in_flight(struct gw_http_metrics *h, int delta) {
    metric_add(h->in_flight, delta);
}

void gw_http_metrics_connections(struct gw_http_metrics *h, int delta) {
    metric_add(h->connections, delta);
}

void gw_http_metrics_log_dropped(struct gw_http_metrics *h) {
    metric_add(h->log_dropped, 1);
}

void gw_http_metrics_bytes(struct gw_http_metrics *h, size_t in, size_t out) {
    if (in)
        metric_add(h->bytes_in, (double)in);
    if (out)
        metric_add(h->bytes_out, (double)out);
}

// SPDX-License-Identifier: Apache-2.0
// The HTTP server's metrics. All series are made at start, one for each route, method and status
// that can occur there; a status outside that set counts under status="other" of its route. Shown
// from the start is each route's status 200; the others, and durations, once there was one, and
// from then on. HEAD counts as GET. Counting is safe from any thread.
#pragma once
#include "gateway/http.h"

struct gw_http_metrics;

// ERR_NOMEM. `m` may be NULL: nothing is counted.
enum err gw_http_metrics_create(struct metrics *m, const struct gw_route *routes, size_t n,
                                struct gw_http_metrics **out);
void gw_http_metrics_destroy(struct gw_http_metrics *h);

// `route`: an index into the routes, or n for a request that matched none.
void gw_http_metrics_request(struct gw_http_metrics *h, size_t route, unsigned method, int status,
                             int64_t duration_ns);
void gw_http_metrics_in_flight(struct gw_http_metrics *h, int delta);
void gw_http_metrics_connections(struct gw_http_metrics *h, int delta);
void gw_http_metrics_log_dropped(struct gw_http_metrics *h);
void gw_http_metrics_bytes(struct gw_http_metrics *h, size_t in, size_t out);

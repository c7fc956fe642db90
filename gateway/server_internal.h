// SPDX-License-Identifier: Apache-2.0
// The server as its own files see it: one gw_server, and one gw_worker for each event loop. A
// worker's fields belong to its loop's thread; what loops share is atomic or immutable.
#pragma once
#include "gateway/deadline.h"
#include "gateway/http.h"
#include "gateway/http_metrics.h"
#include "gateway/http_parse.h"
#include "gateway/loop.h"
#include "gateway/router.h"
#include "gateway/tls.h"
#include <stdatomic.h>
#include <sys/queue.h>

enum { GW_SCRATCH = 64 << 10 }; // most that one read takes

// Kinds of time-out. HEAD: from a connection's or a request's first byte to the end of its head.
// WARM: idle, with its memory kept for the next request; then COLD, the rest of the idle time.
enum gw_wait {
    GW_WAIT_HEAD,
    GW_WAIT_BODY,
    GW_WAIT_WARM,
    GW_WAIT_COLD,
    GW_WAIT_WRITE,
    GW_WAIT_LINGER,
    GW_WAITS
};

TAILQ_HEAD(gw_conn_list, gw_conn);

struct gw_worker {
    struct gw_loop loop;
    struct gw_server *server;
    int index;
    struct gw_conn_list conns, dirty, dead;
    struct gw_deadline_queue waits[GW_WAITS];
    struct event sweep;
    int64_t sweep_at; // when `sweep` is armed for; INT64_MAX: not armed
    char *scratch;    // GW_SCRATCH bytes; what a read brought, until it is parsed
    char date[96];    // "Date: ...\r\n"
    int64_t date_until;
    struct buf log; // access log lines of this turn
    uint64_t id_key, id_next;
    size_t bytes_in, bytes_out; // of this turn
    bool drained;
    _Atomic int n_conns;
};

enum gw_port { GW_PORT_MAIN, GW_PORT_METRICS };

struct gw_listener {
    struct gw_server *server;
    struct event event, resume;
    int fd;
    enum gw_port port;
    bool watching;
};

enum { GW_MAX_LISTENERS = 16 };

struct gw_server {
    struct gw_config cfg; // with the defaults filled in
    struct gw_router router;
    struct gw_http_metrics *metrics;
    struct gw_tls *tls;
    struct gw_worker *workers;
    int n_workers;
    struct gw_listener listeners[GW_MAX_LISTENERS];
    int n_listeners;
    int port, metrics_port;
    bool log_is_pipe; // or a terminal: the access log may block, and takes PIPE_BUF bytes at once
    int64_t emfile_logged_ns;
    bool running;
    _Atomic bool draining;
    _Atomic int n_conns;
    _Atomic int64_t in_flight;     // requests that have begun and whose answer is not yet written
    _Atomic size_t inflight_bytes; // of their bodies
};

static inline struct gw_worker *gw__worker_of(struct gw_loop *l) {
    return (struct gw_worker *)((char *)l - offsetof(struct gw_worker, loop));
}
static inline int64_t gw__now(const struct gw_server *s) {
    return clock_mono_ns(s->cfg.clock);
}

// worker.c
enum err gw__worker_init(struct gw_worker *w, struct gw_server *s, int index,
                         struct err_info *info);
void gw__worker_fini(struct gw_worker *w);
// Starts (or restarts) a time-out.
void gw__worker_wait(struct gw_worker *w, enum gw_wait kind, struct gw_deadline *d, int64_t now);
const char *gw__worker_date(struct gw_worker *w, int64_t now);  // "Date: ...\r\n"
void gw__worker_turn_by(struct gw_worker *w, int64_t delay_ns); // a turn ends at the latest then
uint64_t gw__worker_random(struct gw_worker *w);                // for ids, not for secrets

// listener.c
// Binds every address of the host. *port: the one asked for, then the one got.
enum err gw__listen(struct gw_server *s, enum gw_port kind, const char *host, int *port,
                    struct err_info *info);
enum err gw__listeners_watch(struct gw_server *s, struct err_info *info); // before the loops run
void gw__listeners_close(struct gw_server *s, bool all); // all: the metrics port too; loop 0 only

// The worker with the fewest connections takes the accepted socket. `peer` is copied.
void gw__accepted(struct gw_server *s, int fd, const char *peer, bool loopback, enum gw_port port);

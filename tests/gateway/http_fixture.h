// SPDX-License-Identifier: Apache-2.0
// A running server for tests, with routes that show what the layer does, and a small client of its
// own on blocking sockets. Failures end the test (cmocka).
#pragma once
#include "gateway/http.h"
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>

// Routes: GET /health; POST /echo (JSON, its body comes back), POST /raw (any type); GET
// /items/{id}/part and /files/{path} (parameters come back); POST /later (answered by fx_answer);
// GET, POST /stream (driven by fx_stream_*); POST /pieces (counts a body of up to 4 MiB as it
// comes); GET /metrics. With keys: /echo, /later and /stream need
// one, GET /admin an administrator's.
struct fx {
    struct gw_server *server;
    struct metrics *metrics;
    struct log access_log;
    int log_read; // what the server wrote to its access log
    int port, metrics_port;
    struct gw_config cfg;
    // The requests that wait for the test's answer, oldest first.
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    struct gw_request *waiting[600];
    _Atomic size_t n_waiting;
    _Atomic int closed;                       // on_close calls
    _Atomic int writable;                     // on_writable calls
    _Atomic int handled;                      // handler calls
    _Atomic size_t body_bytes, largest_piece; // of /pieces
};

// `cfg` may be NULL; what fixture and routes need is filled in.
void fx_start(struct fx *f, const struct gw_config *cfg);
void fx_stop(struct fx *f);
size_t fx_wait_waiting(struct fx *f, size_t n); // until n requests wait
void fx_wait_closed(struct fx *f, int n);
void fx_answer(struct fx *f, const char *body); // the oldest waiting request, from this thread
// Runs fn on the oldest waiting request's loop and waits until it has run. The request stays in the
// list unless `take`.
void fx_on_loop(struct fx *f, bool take, void (*fn)(struct gw_request *r, void *arg), void *arg);
char *fx_log(struct fx *f, size_t lines); // waits for so many lines; free() it

// Client.
int cl_connect(int port);
bool cl_send(int fd, const void *p, size_t n); // false: the server has closed
void cl_puts(int fd, const char *s);
struct cl_response {
    int status;
    char head[8192]; // status line and fields
    char *body;
    size_t len;
    bool chunked, closed; // closed: the end came from the connection's end
};
// Reads one answer; `head_request`: no body follows. False: the connection ended before it.
bool cl_read(int fd, bool head_request, struct cl_response *out);
void cl_free(struct cl_response *r);
// Value of a field of the answer, or NULL. Static buffer.
const char *cl_field(const struct cl_response *r, const char *name, char *out, size_t cap);
bool cl_eof(int fd); // the server has ended the connection
// Until that text has come, which stays to be read.
void cl_wait_text(int fd, const char *text);
// One request on its own connection: sends, reads, closes.
void cl_once(int port, const char *request, struct cl_response *out);
void cl_assert_status(int port, const char *request, int status);

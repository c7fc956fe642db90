// SPDX-License-Identifier: Apache-2.0
// The HTTP/1.1 server under the API files: listeners, connections, TLS, limits and time-outs,
// routing, authentication, responses. A request lives on one event loop and all its callbacks run
// on that loop's thread; the one call that other threads may make is gw_loop_post.
//
// A handler answers in one of two ways, at once or later:
//   whole:  gw_reply(...)                       exactly once
//   stream: gw_stream_begin, gw_stream_write*, gw_stream_end     (Transfer-Encoding: chunked)
// After gw_reply, gw_stream_end or gw_stream_abort the request is gone for the handler. If the
// client goes away first, `on_close` is called instead, and the request is gone then; whatever it
// had running must be cancelled. A handler that answers later and sets no on_close must still
// answer; that answer goes nowhere.
//
// A route with `body_pieces` gets its body as it comes: its handler is called at the end of the
// head, sets on_close, on_body and on_body_end (or answers at once), and may answer at any time;
// what was not read of the body then costs the connection. Between gw_body_pause
// and gw_body_resume no on_body comes and nothing is read from the client, but on_body_end may
// come. A body that ends badly (malformed, too large, too slow) is answered by the server, after
// on_close.
#pragma once
#include "base/arena.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"
#include "base/metrics.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct gw_server;
struct gw_loop;
struct gw_conn;

enum gw_method { GW_GET = 1, GW_POST = 2, GW_DELETE = 4, GW_HEAD = 8, GW_OPTIONS = 16 };

struct gw_header {
    const char *name, *value; // NUL-terminated; the name in lower case
};

// Who is asking, from the API key.
struct gw_identity {
    // Whose files and jobs: 0 is the default tenant, of clients without a key and of keys that name
    // no tenant or "default". A tenant's number follows from its name alone.
    uint64_t tenant;
    // Who shares cached prefixes and a turn in the queue: the tenant that the key names, else the
    // key itself; 0: no key.
    uint64_t domain;
    uint32_t key_id;
    bool admin;
    bool train; // may make fine-tuning jobs; administrators may
};

struct gw_request {
    struct gw_loop *loop;
    struct arena arena; // dies with the request
    enum gw_method method;
    const char *path;      // decoded, without the query; what routing and authorisation both used
    const char *query;     // raw, or ""
    const char *params[4]; // captured path parts ("{id}"), decoded
    const struct gw_header *headers;
    size_t n_headers;
    const char *body;
    size_t body_len;
    char id[40]; // x-request-id: the client's if it is well formed, else made here
    const char *client_ip;
    struct gw_identity who;
    int64_t received_ns;      // monotonic, first byte of the head
    struct gw_access *access; // what the handler adds to the access log
    // Set by a handler that answers later.
    void *handler;
    void (*on_close)(struct gw_request *r);    // client gone or server stops; do not reply
    void (*on_writable)(struct gw_request *r); // the output buffer fell below its low mark
    // Set by the handler of a route with body_pieces. The bytes are valid during the call.
    void (*on_body)(struct gw_request *r, const char *p, size_t n);
    void (*on_body_end)(struct gw_request *r); // all of it came
    struct gw_conn *conn__;
    const struct gw_route *route__;
};

// Fields of the access log that only the API knows; all optional.
struct gw_access {
    const char *model, *adapter, *finish_reason, *error_type;
    uint64_t adapter_version;
    bool stream, client_disconnected;
    int64_t prompt_tokens, cached_tokens, completion_tokens; // -1: not known
    int64_t queue_ns, ttft_ns;                               // -1
    double tpot_ms;                                          // < 0
};

enum gw_auth { GW_AUTH_NONE, GW_AUTH_KEY, GW_AUTH_TRAIN, GW_AUTH_ADMIN };

struct gw_route {
    unsigned methods;    // enum gw_method bits
    const char *pattern; // "/v1/files/{id}/content"; "{id*}" takes slashes, too
    enum gw_auth auth;
    bool json_body; // Content-Type must be application/json where a body is given (415)
    void (*handle)(struct gw_request *r, void *arg);
    void *arg;
    bool body_pieces;        // see above; such bodies are not counted whole as in flight
    uint64_t max_body_bytes; // of this route; 0: the server's
};

// Sizes, times and counts that are 0 take the default in brackets. Everything pointed to outlives
// the server.
struct gw_config {
    const char *host;         // NULL: every address
    int port;                 // 0: any free port
    const char *metrics_host; // a listener of its own for /metrics, or NULL
    int metrics_port;
    int loops;                              // event loop threads [1]
    const char *ssl_certfile, *ssl_keyfile; // both or none
    size_t max_header_bytes;                // [64 KiB]
    size_t max_body_bytes;                  // one request [32 MiB]
    size_t max_inflight_bytes; // bodies of all requests together; over it: 503 with Retry-After
                               // [256 MiB]
    int max_connections;       // over it: 503 on routes that need a key [10,000]
    int64_t header_timeout_ns; // from a request's first byte to the end of its head [10 s]
    int64_t body_timeout_ns;   // for each 64 KiB of a body [30 s]
    int64_t idle_timeout_ns;   // between requests [75 s]
    int64_t write_timeout_ns;  // without the client taking a byte [60 s]
    size_t stream_high_bytes;  // [64 KiB]: gw_stream_full says true above it
    const char *const *cors_origins; // exact origins or "*"
    size_t n_cors_origins;
    const struct gw_route *routes; // outlive the server
    size_t n_routes;
    struct gw_keys *keys; // NULL: no authentication; loopback clients are administrators
    const struct clock *clock;
    const struct log *log;        // server messages
    const struct log *access_log; // NULL: none
    struct metrics *metrics;
    const char *build; // in the access log
};

enum err gw_server_create(const struct gw_config *cfg, struct gw_server **out,
                          struct err_info *info);                     // binds and listens
enum err gw_server_start(struct gw_server *s, struct err_info *info); // loop threads run
int gw_server_port(const struct gw_server *s);
int gw_server_metrics_port(const struct gw_server *s);
enum err gw_server_reload_tls(struct gw_server *s,
                              struct err_info *info); // any thread; keeps the old on error
void gw_server_stop_accepting(
    struct gw_server *s); // any thread; keep-alive connections close after their answer
int64_t gw_server_in_flight(const struct gw_server *s); // requests whose answer is not yet written
void gw_server_stop(struct gw_server *s);               // closes what is left, joins the loops
void gw_server_destroy(struct gw_server *s);

// Runs fn(arg) on the loop's thread soon. Any thread; never blocks; false only when out of memory
// or stopped.
bool gw_loop_post(struct gw_loop *l, void (*fn)(void *arg), void *arg);
// Runs fn(arg) after delay_ns on the loop's thread (loop thread only). Returns a handle for
// gw_loop_timer_cancel.
struct gw_timer;
struct gw_timer *gw_loop_timer(struct gw_loop *l, int64_t delay_ns, void (*fn)(void *arg),
                               void *arg);
void gw_loop_timer_cancel(struct gw_timer *t);

// Routes with body_pieces; the loop's thread.
void gw_body_pause(struct gw_request *r);
void gw_body_resume(struct gw_request *r);

// The server takes no new requests: an answer that has no end of its own should come to one soon.
bool gw_stopping(const struct gw_request *r);
const char *gw_request_header(const struct gw_request *r, const char *lower_name); // NULL if absent
// Adds a response header (before reply or stream_begin). Values with CR, LF or NUL are dropped.
void gw_response_header(struct gw_request *r, const char *name, const char *value);
// The body is copied.
void gw_reply(struct gw_request *r, int status, const char *content_type, const void *body,
              size_t len);
// OpenAI's error body with all four keys; status, type and code from the table; Retry-After and
// x-should-retry where the reference page asks for them.
void gw_reply_error(struct gw_request *r, const struct err_info *info);
void gw_error_body(const struct err_info *info, struct buf *out);

// False: out of memory and nothing was sent; the request still wants gw_reply_error.
bool gw_stream_begin(struct gw_request *r, int status, const char *content_type);
void gw_stream_write(struct gw_request *r, const void *p,
                     size_t n); // copied, sent at the loop's next turn
bool gw_stream_full(
    const struct gw_request *r); // above the high mark: stop producing until on_writable
void gw_stream_end(struct gw_request *r);
void gw_stream_abort(
    struct gw_request *r); // the request ends; closes the connection without the last chunk

// API keys: hashed in memory (SHA-256), compared in constant time.
struct gw_keys;
enum err gw_keys_create(struct gw_keys **out);
void gw_keys_destroy(struct gw_keys *k);
enum err gw_keys_add(struct gw_keys *k, const char *key, const char *tenant, bool admin,
                     struct err_info *info);
enum gw_role { GW_ROLE_NONE, GW_ROLE_TRAIN, GW_ROLE_ADMIN };
enum err gw_keys_add_role(struct gw_keys *k, const char *key, const char *tenant, enum gw_role role,
                          struct err_info *info);
#define GW_TENANT_DEFAULT "default"
// One key a line; "key", "key tenant", "key tenant train", "key tenant admin"; # comments.
enum err gw_keys_load_file(struct gw_keys *k, const char *path, struct err_info *info);
bool gw_keys_check(const struct gw_keys *k, const char *presented, size_t len,
                   struct gw_identity *out);
size_t gw_keys_count(const struct gw_keys *k);
// What a tenant is called, or NULL: no key names it. `k` may be NULL.
const char *gw_keys_tenant(const struct gw_keys *k, uint64_t tenant);

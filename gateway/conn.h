// SPDX-License-Identifier: Apache-2.0
// One client connection: its socket, what it reads (parse, pending), the request it is answering
// and what it still has to write (out). Everything here runs on the connection's loop.
//
// Who may do what: conn.c moves the state and owns the socket; dispatch.c decides about a request
// (route, key, limits) and calls its handler; response.c and stream.c append to `out`, end the
// request and never touch the socket. The socket is written by gw__conn_run alone, so nothing that
// a handler calls can make its own connection disappear under it.
#pragma once
#include "gateway/server_internal.h"
#include <netinet/in.h>

enum gw_conn_state {
    GW_CONN_HEAD,     // waiting for a request or reading its head
    GW_CONN_BODY,     // reading its body
    GW_CONN_BUSY,     // answering it; nothing is read
    GW_CONN_LINGER,   // our side is shut; what still comes is thrown away until the peer ends
    GW_CONN_DETACHED, // the socket is gone, a handler without on_close still has the request
    GW_CONN_DEAD,     // freed at the end of the turn
};

struct gw_conn {
    struct gw_request req;
    struct gw_access access;
    struct gw_worker *worker;
    struct gw_server *server;
    TAILQ_ENTRY(gw_conn) link;       // conns or dead
    TAILQ_ENTRY(gw_conn) dirty_link; // dirty
    struct event event;              // both directions and the peer's end, edge-triggered, for life
    struct ssl_st *ssl;              // NULL: plain
    int fd;
    enum gw_conn_state state;
    enum gw_port port;
    // The socket, as the last events and calls left it.
    bool readable, writable, peer_ended, eof;
    bool running, is_dirty;
    bool loopback, over_limit;
    bool close_after; // no more requests; close when `out` is written and none is active
    bool linger;      // ... and the peer may still be sending
    bool failed;      // an answer was lost (out of memory): close without finishing it
    bool above;       // `out` went over the high mark and was not yet below the low one
    bool wrote;       // the last flush made progress
    bool active;      // a request has begun and not ended
    bool handled;     // ... and its handler was called
    bool counted;     // in the server\'s in_flight: until its answer is written
    bool ended;       // a request has ended since the idle time-out was set
    bool paused;      // the handler takes no more of the body for now
    struct {
        bool begun, chunked, no_body;
        int status;
        size_t chunk_at; // where in `out` the open chunk's size goes; SIZE_MAX: no open chunk
    } stream;
    struct gw_parse parse;
    struct buf pending; // read but not parsed: requests sent ahead
    struct buf out;     // [out_at, len) is still to be written
    size_t out_at;
    struct buf extra;       // response fields of this request, as "Name: value\r\n" lines
    struct err_info reject; // why this request is refused; code ERR_OK: it is not
    unsigned options;       // OPTIONS that no route asked for: the methods of its path
    int64_t head_ns;        // the first byte of this request
    size_t reserved;        // of the server's in-flight bytes
    size_t sent;            // bytes of this request's answer
    uint64_t body_mark;
    struct gw_deadline read_wait, write_wait;
    char ip[INET6_ADDRSTRLEN];
    char trace_id[33];
};

static inline size_t gw__conn_backlog(const struct gw_conn *c) {
    return c->out.len - c->out_at;
}

// conn.c
void gw__conn_run(struct gw_conn *c);   // reads, handles and writes what is possible now
void gw__conn_dirty(struct gw_conn *c); // gw__conn_run at the end of this turn
// The peer is gone or must go: on_close, log, close.
void gw__conn_lost(struct gw_conn *c, bool by_client);
void gw__conn_close(struct gw_conn *c); // no request active
void gw__conn_free(struct gw_conn *c);  // a dead one, at the end of the turn
void gw__conn_drain(struct gw_conn *c); // no new work: closes if idle
void gw__conn_stop(struct gw_conn *c);  // the server stops: writes what it can, then closes
void gw__conn_expired(struct gw_conn *c, enum gw_wait kind);
void gw__conn_detached_end(struct gw_conn *c);

// dispatch.c
void gw__dispatch_head(struct gw_conn *c, bool body_in_hand);
void gw__dispatch_body(struct gw_conn *c); // some more of the body came: the in-flight budget
void gw__dispatch_done(struct gw_conn *c); // the message is complete
void gw__dispatch_bad(struct gw_conn *c);  // c->reject says why; the connection closes

// response.c
void gw__request_end(struct gw_conn *c, int status); // log, metrics, ready for the next
bool gw__response_head(struct gw_conn *c, int status, const char *content_type, int64_t length);
enum { GW_LENGTH_NONE = -1, GW_LENGTH_CHUNKED = -2 };

// stream.c
void gw__stream_close_chunk(struct gw_conn *c);

// cors.c
void gw__cors_apply(struct gw_conn *c); // response fields for an allowed Origin
bool gw__cors_preflight(const struct gw_conn *c);
// Answers a preflight for a path with these methods.
void gw__cors_answer(struct gw_conn *c, unsigned methods);

// access_log.c
void gw__access_log(struct gw_conn *c, int status, int64_t duration_ns);
void gw__access_log_flush(struct gw_worker *w, bool last);

// SPDX-License-Identifier: Apache-2.0
// Streamed answers. What a handler writes within one turn becomes one chunk: the first write leaves
// room for the chunk's size in the output, and closing the chunk fills it in.
#include "base/mem.h"
#include "gateway/conn.h"
#include <assert.h>
#include <string.h>

enum {
    SIZE_ROOM = 10,        // "ffffffff\r\n"
    BEYOND_HIGH = 4 << 20, // a handler that ignores gw_stream_full loses its connection here
    CHUNK_MAX = 0x7fffffff,
};

bool gw_stream_begin(struct gw_request *r, int status, const char *content_type) {
    struct gw_conn *c = r->conn__;
    if (c->state == GW_CONN_DETACHED)
        return true; // what follows goes nowhere
    assert(c->active && !c->stream.begun);
    if (!c->active || c->stream.begun)
        return false;
    c->stream.chunked = !c->parse.http10;
    c->stream.no_body = r->method == GW_HEAD;
    if (c->parse.http10)
        c->close_after = true;
    size_t at = c->out.len;
    if (!gw__response_head(c, status, content_type,
                           c->stream.chunked ? GW_LENGTH_CHUNKED : GW_LENGTH_NONE)) {
        c->out.len = at;
        c->out.failed = ERR_OK;
        return false;
    }
    c->stream.begun = true;
    c->stream.status = status;
    c->stream.chunk_at = SIZE_MAX;
    c->access.stream = true;
    gw__conn_dirty(c);
    return true;
}

void gw_stream_write(struct gw_request *r, const void *p, size_t n) {
    struct gw_conn *c = r->conn__;
    if (c->state == GW_CONN_DETACHED || c->failed || n == 0)
        return;
    assert(c->active && c->stream.begun);
    if (!c->active || c->stream.no_body)
        return;
    size_t high = c->server->cfg.stream_high_bytes;
    if (n > CHUNK_MAX || gw__conn_backlog(c) > high + BEYOND_HIGH) {
        c->failed = true;
    } else {
        if (c->stream.chunked && c->stream.chunk_at == SIZE_MAX &&
            buf_reserve(&c->out, SIZE_ROOM)) {
            c->stream.chunk_at = c->out.len;
            c->out.len += SIZE_ROOM;
        }
        buf_append(&c->out, p, n);
        if (!c->stream.chunked)
            c->sent += n;
        if (buf_err(&c->out))
            c->failed = true;
        if (gw__conn_backlog(c) > high)
            c->above = true;
    }
    gw__conn_dirty(c);
}

void gw__stream_close_chunk(struct gw_conn *c) {
    size_t at = c->stream.chunk_at;
    if (at == SIZE_MAX)
        return;
    c->stream.chunk_at = SIZE_MAX;
    size_t n = c->out.len - at - SIZE_ROOM;
    if (n == 0 || c->failed) { // the room for its size was never written: it must not be sent
        c->out.len = at;
        return;
    }
    char text[SIZE_ROOM];
    size_t digits = 0;
    for (size_t v = n; v; v >>= 4)
        digits++;
    for (size_t i = 0, v = n; i < digits; i++, v >>= 4)
        text[digits - 1 - i] = "0123456789abcdef"[v & 15];
    memcpy(text + digits, "\r\n", 2);
    size_t unused = SIZE_ROOM - digits - 2;
    char *room = c->out.data + at;
    if (at == c->out_at) { // nothing before it: begin later
        memcpy(room + unused, text, digits + 2);
        c->out_at += unused;
    } else {
        memcpy(room, text, digits + 2);
        memmove(room + digits + 2, room + SIZE_ROOM, n);
        c->out.len -= unused;
    }
    buf_append(&c->out, "\r\n", 2);
    if (buf_err(&c->out))
        c->failed = true;
    c->sent += digits + 2 + n + 2;
}

bool gw_stopping(const struct gw_request *r) {
    return atomic_load_explicit(&r->conn__->server->draining, memory_order_relaxed);
}

bool gw_stream_full(const struct gw_request *r) {
    const struct gw_conn *c = r->conn__;
    return c->state != GW_CONN_DETACHED && gw__conn_backlog(c) > c->server->cfg.stream_high_bytes;
}

void gw_stream_end(struct gw_request *r) {
    struct gw_conn *c = r->conn__;
    if (c->state == GW_CONN_DETACHED) {
        gw__conn_detached_end(c);
        return;
    }
    assert(c->active && c->stream.begun);
    if (!c->active || !c->stream.begun)
        return;
    gw__stream_close_chunk(c);
    if (c->stream.chunked && !c->stream.no_body && !c->failed) {
        buf_append(&c->out, "0\r\n\r\n", 5);
        c->sent += 5;
        if (buf_err(&c->out))
            c->failed = true;
    }
    gw__request_end(c, c->stream.status);
}

void gw_stream_abort(struct gw_request *r) {
    struct gw_conn *c = r->conn__;
    if (c->state == GW_CONN_DETACHED) {
        gw__conn_detached_end(c);
        return;
    }
    assert(c->active);
    if (!c->active)
        return;
    c->failed = true;
    gw__request_end(c, c->stream.begun ? c->stream.status : 500);
}

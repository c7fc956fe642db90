// SPDX-License-Identifier: Apache-2.0
#include "gateway/http_parse.h"
#include "base/mem.h"
#include <string.h>

enum {
    BODY_KEPT = 64 << 10,         // a body buffer larger than this is not kept for the next request
    FRAMING_RUN_MAX = 8 << 10,    // chunk-size line with extensions, or the trailers
    FRAMING_SPARE = 64 << 10,     // framing bytes of a body in all: this and ...
    FRAMING_PER_BODY_BYTE = 8,    // ... so much for each byte of the body
    BODY_RESERVE_MAX = 256 << 10, // a content-length is believed up to here
};

static struct gw_parse *of(llhttp_t *l) {
    return l->data;
}

static int fail(struct gw_parse *p, enum err e, const char *why) {
    p->failed = e;
    p->failed_why = why;
    return -1;
}

static int on_target(llhttp_t *l, const char *at, size_t n) {
    buf_append(&of(l)->text, at, n);
    return 0;
}

static int on_text_end(llhttp_t *l) {
    buf_putc(&of(l)->text, '\0');
    return 0;
}

static int on_name(llhttp_t *l, const char *at, size_t n) {
    struct gw_parse *p = of(l);
    if (p->stage != GW_PARSE_IN_HEAD)
        return 0; // trailers are read over
    char *to = buf_reserve(&p->text, n);
    if (!to)
        return fail(p, ERR_NOMEM, "out of memory");
    for (size_t i = 0; i < n; i++)
        to[i] = (char)(at[i] >= 'A' && at[i] <= 'Z' ? at[i] + ('a' - 'A') : at[i]);
    p->text.len += n;
    return 0;
}

static int on_name_end(llhttp_t *l) {
    struct gw_parse *p = of(l);
    if (p->stage != GW_PARSE_IN_HEAD)
        return 0;
    if (++p->n_fields > GW_MAX_HEADERS)
        return fail(p, ERR_HEADERS, "too many header fields");
    buf_putc(&p->text, '\0');
    p->field_at = p->text.len;
    return 0;
}

static int on_value(llhttp_t *l, const char *at, size_t n) {
    struct gw_parse *p = of(l);
    if (p->stage == GW_PARSE_IN_HEAD)
        buf_append(&p->text, at, n);
    return 0;
}

static int on_value_end(llhttp_t *l) {
    struct gw_parse *p = of(l);
    if (p->stage != GW_PARSE_IN_HEAD)
        return 0;
    struct buf *t = &p->text;
    while (t->len > p->field_at && (t->data[t->len - 1] == ' ' || t->data[t->len - 1] == '\t'))
        t->len--;
    buf_putc(t, '\0');
    return 0;
}

static int on_head_end(llhttp_t *l) {
    (void)l;
    return HPE_PAUSED;
}

static int on_message_end(llhttp_t *l) {
    of(l)->complete = true;
    return HPE_PAUSED;
}

// The bytes between body pieces are chunk framing and trailers: lines, like the head's.
static bool framing_ok(struct gw_parse *p, const char *end) {
    size_t n = (size_t)(end - p->mark);
    p->framing += n;
    p->framing_run += n;
    if (p->framing_run > FRAMING_RUN_MAX ||
        p->framing > FRAMING_SPARE + FRAMING_PER_BODY_BYTE * p->body_bytes)
        return false;
    char prev = p->prev;
    for (const char *s = p->mark; s < end; s++) {
        if ((*s == '\n') != (prev == '\r') || *s == '\0')
            return false;
        prev = *s;
    }
    p->prev = prev;
    return true;
}

static bool take_body(struct gw_parse *p, const char *at, size_t n) {
    p->body_bytes += n;
    if (!p->discard)
        buf_append(&p->body, at, n);
    return buf_err(&p->body) == ERR_OK;
}

static int on_body(llhttp_t *l, const char *at, size_t n) {
    struct gw_parse *p = of(l);
    if (!framing_ok(p, at))
        return fail(p, ERR_INVALID, "malformed chunk framing");
    p->mark = at + n;
    p->framing_run = 0;
    p->prev = 0;
    if (n > p->body_limit || p->body_bytes > p->body_limit - n)
        return fail(p, ERR_TOO_LARGE, "the request body is too large");
    return take_body(p, at, n) ? 0 : fail(p, ERR_NOMEM, "out of memory");
}

static const llhttp_settings_t settings = {
    .on_url = on_target,
    .on_url_complete = on_text_end,
    .on_header_field = on_name,
    .on_header_field_complete = on_name_end,
    .on_header_value = on_value,
    .on_header_value_complete = on_value_end,
    .on_headers_complete = on_head_end,
    .on_body = on_body,
    .on_message_complete = on_message_end,
};

void gw_parse_init(struct gw_parse *p, const struct gw_parse_limits *limits) {
    *p = (struct gw_parse){.limits = *limits};
    // The text holds no more than the head plus one NUL for each part.
    buf_init(&p->text, limits->max_header_bytes + 4 * (GW_MAX_HEADERS + 1));
    buf_init(&p->body, 0); // bounded by body_limit and, with a length, by the caller
    gw_parse_next(p);
}

void gw_parse_fini(struct gw_parse *p) {
    gw_parse_trim(p);
}

void gw_parse_trim(struct gw_parse *p) {
    buf_fini(&p->text);
    buf_fini(&p->body);
    mem_free(p->headers);
    p->headers = NULL;
    p->headers_cap = 0;
}

void gw_parse_next(struct gw_parse *p) {
    buf_clear(&p->text);
    if (p->body.cap > BODY_KEPT)
        buf_fini(&p->body);
    buf_clear(&p->body);
    p->bytes = p->n_headers = p->n_fields = p->line = p->framing = p->framing_run = 0;
    p->body_bytes = p->content_length = 0;
    p->discard = p->pieces = p->complete = p->chunked = false;
    p->body_limit = p->limits.max_body_bytes;
    p->lead = 0;
    p->first_line = true;
    p->words = 0;
    p->version = 0;
    p->prev = 0;
    p->failed = ERR_OK;
    p->stage = GW_PARSE_IN_HEAD;
    llhttp_init(&p->llhttp, HTTP_REQUEST, &settings);
    p->llhttp.data = p;
}

bool gw_parse_started(const struct gw_parse *p) {
    return p->bytes > 0;
}

// METHOD SP target SP HTTP/1.0 or HTTP/1.1; llhttp speaks other protocols and older versions too.
static bool request_line_byte(struct gw_parse *p, char c) {
    static const char version[] = "HTTP/1.";
    if (c == ' ')
        return ++p->words <= 2 && p->prev != ' ';
    if (p->words < 2)
        return c != '\t';
    size_t i = p->version++;
    return i < sizeof version - 1 ? c == version[i]
                                  : i == sizeof version - 1 && (c == '0' || c == '1');
}

// Finds the end of the head and checks its lines on the way. Returns how many of the n bytes belong
// to the head; *end tells whether it ended; false: malformed.
static bool head_scan(struct gw_parse *p, const char *s, size_t n, size_t *len, bool *end) {
    size_t line = p->line;
    *end = false;
    size_t i = 0;
    while (i < n && !*end) {
        char c = s[i++];
        if (c == '\n') {
            if (p->prev != '\r' || (p->first_line && p->version != sizeof "HTTP/1.1" - 1))
                return false;
            *end = line == 0;
            line = 0;
            p->first_line = false;
        } else if (c == '\r') {
            if (p->prev == '\r')
                return false;
        } else {
            if (((unsigned char)c < ' ' && c != '\t') || c == 0x7f || p->prev == '\r')
                return false;
            if (line == 0 && (c == ' ' || c == '\t')) // a folded line, or before the first field
                return false;
            if (p->first_line && !request_line_byte(p, c))
                return false;
            line++;
        }
        p->prev = c;
    }
    p->line = line;
    *len = i;
    return true;
}

static enum gw_parse_event bad(struct gw_parse *p, struct err_info *info, enum err e,
                               const char *why) {
    p->stage = GW_PARSE_ENDED;
    if (e == ERR_HEADERS)
        err_set(info, e, NULL, "%s; at most %zu bytes and %d fields are accepted", why,
                p->limits.max_header_bytes, GW_MAX_HEADERS);
    else if (e == ERR_TOO_LARGE)
        err_set(info, e, NULL, "%s; at most %llu bytes are accepted", why,
                (unsigned long long)p->body_limit);
    else
        err_set(info, e, NULL, "%s", why);
    return GW_PARSE_BAD;
}

static enum gw_parse_event bad_llhttp(struct gw_parse *p, struct err_info *info) {
    if (p->failed)
        return bad(p, info, p->failed, p->failed_why);
    if (buf_err(&p->text))
        return bad(p, info, buf_err(&p->text), "out of memory");
    p->stage = GW_PARSE_ENDED;
    const char *why = llhttp_get_error_reason(&p->llhttp);
    err_set(info, ERR_INVALID, NULL, "malformed HTTP request: %s", why ? why : "not HTTP/1.1");
    return GW_PARSE_BAD;
}

static enum gw_parse_event feed_head(struct gw_parse *p, const char *s, size_t n, size_t *used,
                                     struct err_info *info) {
    // One empty line before the request is read over (RFC 9112, 2.2).
    while (p->bytes == p->lead && p->lead < 2 && *used < n &&
           s[*used] == (p->lead == 0 ? '\r' : '\n')) {
        p->bytes = ++p->lead;
        ++*used;
    }
    if (*used == n)
        return GW_PARSE_MORE;
    if (p->lead == 1) // a CR without its LF
        return bad(p, info, ERR_INVALID, "malformed request line");
    s += *used;
    n -= *used;
    size_t room = p->limits.max_header_bytes - p->bytes, len;
    bool end;
    if (!head_scan(p, s, n < room ? n : room, &len, &end))
        return bad(p, info, ERR_INVALID,
                   p->first_line
                       ? "malformed request line; only HTTP/1.1 and HTTP/1.0 are spoken here"
                       : "malformed header line");
    *used += len;
    p->bytes += len;
    llhttp_errno_t e = llhttp_execute(&p->llhttp, s, len);
    if (e != HPE_OK && e != HPE_PAUSED)
        return bad_llhttp(p, info);
    if ((e == HPE_PAUSED) != end || (end && llhttp_get_error_pos(&p->llhttp) != s + len))
        return bad(p, info, ERR_INVALID, "malformed request head");
    if (buf_err(&p->text))
        return bad(p, info, buf_err(&p->text), "out of memory");
    if (!end)
        return n < room ? GW_PARSE_MORE
                        : bad(p, info, ERR_HEADERS, "the request head is too large");
    if (gw__head_check(p, info)) {
        p->stage = GW_PARSE_ENDED;
        return GW_PARSE_BAD;
    }
    p->stage = GW_PARSE_IN_BODY;
    p->prev = 0;
    if (p->chunked) {
        p->llhttp.upgrade = 0; // an offer to change the protocol is not taken
        llhttp_resume(&p->llhttp);
    }
    return GW_PARSE_HEAD;
}

static enum gw_parse_event feed_chunked(struct gw_parse *p, const char *s, size_t n, size_t *used,
                                        struct err_info *info) {
    p->mark = s;
    llhttp_errno_t e = llhttp_execute(&p->llhttp, s, n);
    if (e != HPE_OK && e != HPE_PAUSED)
        return bad_llhttp(p, info);
    const char *end = e == HPE_PAUSED ? llhttp_get_error_pos(&p->llhttp) : s + n;
    if (!framing_ok(p, end))
        return bad(p, info, ERR_INVALID, "malformed chunk framing");
    *used = (size_t)(end - s);
    p->bytes += *used;
    if (!p->complete)
        return GW_PARSE_MORE;
    p->stage = GW_PARSE_ENDED;
    return GW_PARSE_DONE;
}

static enum gw_parse_event feed_length(struct gw_parse *p, const char *s, size_t n, size_t *used,
                                       struct err_info *info) {
    uint64_t left = p->content_length - p->body_bytes;
    size_t len = left < n ? (size_t)left : n;
    if (p->body_bytes == 0 && !p->discard && !p->pieces)
        (void)buf_reserve(&p->body, left < BODY_RESERVE_MAX ? (size_t)left : BODY_RESERVE_MAX);
    if (!take_body(p, s, len))
        return bad(p, info, ERR_NOMEM, "out of memory");
    *used = len;
    p->bytes += len;
    if (p->body_bytes < p->content_length)
        return GW_PARSE_MORE;
    p->stage = GW_PARSE_ENDED;
    return GW_PARSE_DONE;
}

enum gw_parse_event gw_parse_feed(struct gw_parse *p, const char *data, size_t n, size_t *used,
                                  struct err_info *info) {
    *used = 0;
    if (p->stage == GW_PARSE_IN_HEAD)
        return feed_head(p, data, n, used, info);
    if (p->stage == GW_PARSE_ENDED)
        return bad(p, info, ERR_INVALID, "the message has ended");
    return p->chunked ? feed_chunked(p, data, n, used, info) : feed_length(p, data, n, used, info);
}

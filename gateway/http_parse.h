// SPDX-License-Identifier: Apache-2.0
// Reads one HTTP/1.x request from bytes that come in pieces; no socket is involved. llhttp parses;
// on top of it the head's line structure is checked byte by byte (every line ends in CRLF, no fold,
// no control characters, one blank between the parts of the request line), so that no other reader
// of the same bytes can see other lines; http_head.c then holds the rules about fields.
//
// One struct gw_parse serves a connection: init, then for each request feed ... until DONE, read
// the fields, gw_parse_next. After BAD nothing more can be read from that peer. Not thread-safe.
#pragma once
#include "base/buf.h"
#include "base/err.h"
#include "gateway/http.h"
#include <llhttp.h>

enum gw_parse_event {
    GW_PARSE_MORE, // every byte was used and the message goes on
    GW_PARSE_HEAD, // the head is complete; feed again (perhaps 0 bytes) for the body
    GW_PARSE_DONE, // the message is complete; what was not used belongs to the next one
    GW_PARSE_BAD,  // *info says why
};

struct gw_parse_limits {
    size_t max_header_bytes; // request line and fields
    size_t max_body_bytes;   // enforced here for chunked bodies; content_length is the caller's
};

enum { GW_MAX_HEADERS = 100 };

struct gw_parse {
    // Valid from GW_PARSE_HEAD until gw_parse_next. Strings point into the parser's memory.
    unsigned method; // enum gw_method, or 0: a method that no route has
    const char *method_name;
    const char *target; // as sent
    bool http10, keep_alive, chunked, expect_continue, expect_other;
    uint64_t content_length; // 0 where there is none
    struct gw_header *headers;
    size_t n_headers;
    // The fields that the server itself reads, or NULL.
    const char *host, *authorization, *content_type, *origin, *request_id, *traceparent, *expect;
    const char *content_length_text, *transfer_encoding; // only seen by the head rules
    size_t bytes;                                        // of this message so far
    // The body; it stays empty with `discard`. With `pieces` it holds what the last feed brought,
    // which the caller takes out. Both may be set at GW_PARSE_HEAD, and so may the limit.
    struct buf body;
    uint64_t body_bytes;
    uint64_t body_limit; // limits.max_body_bytes, unless set
    bool discard, pieces;

    // private below
    struct gw_parse_limits limits;
    llhttp_t llhttp;
    struct buf text; // target NUL name NUL value NUL name NUL ...
    size_t headers_cap, n_fields;
    size_t field_at; // where the value that is being read begins in `text`
    enum { GW_PARSE_IN_HEAD, GW_PARSE_IN_BODY, GW_PARSE_ENDED } stage;
    enum err failed;           // of the parser's own doing, not llhttp's
    const char *failed_why;    // NULL: llhttp's reason
    unsigned lead;             // bytes of the empty line before the request
    char prev;                 // the last byte of the line structure
    bool first_line, complete; // of the head; llhttp saw the end of the message
    unsigned words;            // blanks in the request line so far
    size_t version;            // bytes of its last word
    size_t line;               // bytes of the current line without its end
    const char *mark;          // chunk framing up to here is checked
    size_t framing, framing_run;
};

void gw_parse_init(struct gw_parse *p, const struct gw_parse_limits *limits);
void gw_parse_fini(struct gw_parse *p);
void gw_parse_next(struct gw_parse *p);          // ready for the next request; keeps its memory
void gw_parse_trim(struct gw_parse *p);          // between requests: gives the memory back
bool gw_parse_started(const struct gw_parse *p); // some byte of a request has come

// Reads from data[0..n); *used says how many bytes were taken (never any after the event).
enum gw_parse_event gw_parse_feed(struct gw_parse *p, const char *data, size_t n, size_t *used,
                                  struct err_info *info);

// http_head.c: fills the fields above from the text and checks them. ERR_INVALID or ERR_NOMEM.
enum err gw__head_check(struct gw_parse *p, struct err_info *info);

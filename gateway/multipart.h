// SPDX-License-Identifier: Apache-2.0
// Reads multipart/form-data (RFC 7578, in the syntax of RFC 2046) from bytes that come in pieces
// cut anywhere. Nothing of a part's content is kept: it is handed on as it comes. Bounded: the head
// of a part, the number of parts, what stands before the first and after the last delimiter.
//
// init; feed ... ; finish. After an error nothing more may be fed. One thread at a time, no
// allocation.
//
// A delimiter is a whole line: CRLF "--" boundary, blanks, CRLF (the last one: "--" after the
// boundary). A line that only begins like one is content. In a part's head every line ends in CRLF;
// no folding, no control characters.
#pragma once
#include "base/err.h"
#include <stdbool.h>
#include <stddef.h>

enum {
    MP_BOUNDARY_MAX = 70, // RFC 2046, 5.1.1
    MP_HEAD_MAX = 4096,   // bytes of one part's head
    MP_PARTS_MAX = 64,
    MP_OUTSIDE_MAX = 1024, // bytes before the first delimiter, and after the last
    MP_BLANKS_MAX = 64,    // after a boundary on its line
};

// All strings are valid UTF-8 without control characters.
struct mp_part {
    const char *name;
    const char *filename;     // as sent, a path perhaps; NULL: the part is a plain field
    const char *content_type; // NULL: none
};

// Calls for one part: begin, content any number of times, end. An error ends the reading and is
// what mp_feed returns.
struct mp_calls {
    enum err (*begin)(void *arg, const struct mp_part *part, struct err_info *info);
    enum err (*content)(void *arg, const char *p, size_t n, struct err_info *info);
    enum err (*end)(void *arg, struct err_info *info);
};

struct multipart {
    // private below
    const struct mp_calls *calls;
    void *arg;
    int state;
    size_t delimiter_len, held_len, phantom, head_len, head_line, parts, outside, blanks;
    bool in_part;                            // the content before the delimiter belongs to a part
    char delimiter[4 + MP_BOUNDARY_MAX + 1]; // CRLF "--" boundary
    // Bytes that may become a delimiter line: content if they do not.
    char held[4 + MP_BOUNDARY_MAX + 2 + MP_BLANKS_MAX + 2];
    char head[MP_HEAD_MAX];
};

// The boundary of a Content-Type field (which may be NULL). ERR_MEDIA_TYPE: it is another type;
// ERR_INVALID: no boundary or one that is none.
enum err mp_boundary(const char *content_type, char out[MP_BOUNDARY_MAX + 1],
                     struct err_info *info);
void mp_init(struct multipart *m, const char *boundary, const struct mp_calls *calls, void *arg);
enum err mp_feed(struct multipart *m, const char *p, size_t n, struct err_info *info);
// The body has ended. ERR_INVALID: not after the last delimiter.
enum err mp_finish(struct multipart *m, struct err_info *info);

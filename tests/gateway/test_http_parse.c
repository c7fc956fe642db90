// SPDX-License-Identifier: Apache-2.0
// The parser alone: what is refused and as what, and that the cut of the bytes does not matter.
#include "base/mem.h"
#include "gateway/http_parse.h"
#include "tests/support/cmocka_all.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct gw_parse_limits limits = {4096, 1000};

// Feeds all of it in pieces of `step` bytes (the first one `first`) until an end; *rest gets the
// unread bytes.
static enum gw_parse_event feed_all(struct gw_parse *p, const char *s, size_t n, size_t first,
                                    size_t step, size_t *rest, struct err_info *info) {
    size_t at = 0, piece = first;
    for (;;) {
        // A copy of its own size, so that reading beyond it is seen.
        char *copy = malloc(piece ? piece : 1);
        assert_non_null(copy);
        memcpy(copy, s + at, piece);
        size_t done = 0, used;
        enum gw_parse_event e;
        do {
            e = gw_parse_feed(p, copy + done, piece - done, &used, info);
            done += used;
            assert_true(done <= piece);
        } while (e == GW_PARSE_HEAD);
        free(copy);
        at += done;
        *rest = n - at;
        if (e != GW_PARSE_MORE || at == n)
            return e;
        assert_int_equal(done, piece);
        piece = n - at < step ? n - at : step;
    }
}

struct bad {
    const char *name, *bytes;
    enum err code;
};
#define HOST "Host: example.com\r\n"
#define CHUNKED "POST / HTTP/1.1\r\n" HOST "Transfer-Encoding: chunked\r\n\r\n"
// "~" stands for a NUL byte.
static const struct bad bad_requests[] = {
    {"lines end in LF", "GET / HTTP/1.1\nHost: a\n\n", ERR_INVALID},
    {"one line ends in LF", "GET / HTTP/1.1\r\nHost: a\nX: y\r\n\r\n", ERR_INVALID},
    {"lone CR in a value", "GET / HTTP/1.1\r\nHost: a\rX: y\r\n\r\n", ERR_INVALID},
    {"lone CR after the version", "GET / HTTP/1.1\rHost: a\r\n\r\n", ERR_INVALID},
    {"CR CR LF", "GET / HTTP/1.1\r\nHost: a\r\r\n\r\n", ERR_INVALID},
    {"head ends in LF LF", "GET / HTTP/1.1\r\nHost: a\r\n\n", ERR_INVALID},
    {"obs-fold with a space", "GET / HTTP/1.1\r\nHost: a\r\n b\r\n\r\n", ERR_INVALID},
    {"obs-fold with a tab", "GET / HTTP/1.1\r\nHost: a\r\nX: y\r\n\tz\r\n\r\n", ERR_INVALID},
    {"blank before the first field", "GET / HTTP/1.1\r\n Host: a\r\n\r\n", ERR_INVALID},
    {"NUL in a value", "GET / HTTP/1.1\r\nHost: a\r\nX: ~\r\n\r\n", ERR_INVALID},
    {"NUL in a name", "GET / HTTP/1.1\r\nHost: a\r\nX~: y\r\n\r\n", ERR_INVALID},
    {"NUL in the target", "GET /~ HTTP/1.1\r\n" HOST "\r\n", ERR_INVALID},
    {"control character in a value", "GET / HTTP/1.1\r\n" HOST "X: \x01\r\n\r\n", ERR_INVALID},
    {"DEL in a value", "GET / HTTP/1.1\r\n" HOST "X: \x7f\r\n\r\n", ERR_INVALID},
    {"vertical tab in a value", "GET / HTTP/1.1\r\n" HOST "X:\x0bz\r\n\r\n", ERR_INVALID},
    {"space before the colon", "GET / HTTP/1.1\r\nHost : a\r\n\r\n", ERR_INVALID},
    {"space in a name", "GET / HTTP/1.1\r\n" HOST "X Y: z\r\n\r\n", ERR_INVALID},
    {"bracket in a name", "GET / HTTP/1.1\r\n" HOST "X[: z\r\n\r\n", ERR_INVALID},
    {"UTF-8 in a name", "GET / HTTP/1.1\r\n" HOST "\xc3\xa9: z\r\n\r\n", ERR_INVALID},
    {"no name", "GET / HTTP/1.1\r\n" HOST ": z\r\n\r\n", ERR_INVALID},
    {"no colon", "GET / HTTP/1.1\r\n" HOST "X\r\n\r\n", ERR_INVALID},
    {"two spaces after the method", "GET  / HTTP/1.1\r\n" HOST "\r\n", ERR_INVALID},
    {"two spaces before the version", "GET /  HTTP/1.1\r\n" HOST "\r\n", ERR_INVALID},
    {"tab in the request line", "GET\t/ HTTP/1.1\r\n" HOST "\r\n", ERR_INVALID},
    {"space after the version", "GET / HTTP/1.1 \r\n" HOST "\r\n", ERR_INVALID},
    {"space before the method", " GET / HTTP/1.1\r\n" HOST "\r\n", ERR_INVALID},
    {"two empty lines first", "\r\n\r\nGET / HTTP/1.1\r\n" HOST "\r\n", ERR_INVALID},
    {"lone CR first", "\rGET / HTTP/1.1\r\n" HOST "\r\n", ERR_INVALID},
    {"LF first", "\nGET / HTTP/1.1\r\n" HOST "\r\n", ERR_INVALID},
    {"lower-case method", "get / HTTP/1.1\r\n" HOST "\r\n", ERR_INVALID},
    {"no method", "/ HTTP/1.1\r\n" HOST "\r\n", ERR_INVALID},
    {"unknown method", "FETCH / HTTP/1.1\r\n" HOST "\r\n", ERR_INVALID},
    {"no target", "GET HTTP/1.1\r\n" HOST "\r\n", ERR_INVALID},
    {"HTTP/0.9", "GET /\r\n\r\n", ERR_INVALID},
    {"HTTP/1.2", "GET / HTTP/1.2\r\n" HOST "\r\n", ERR_INVALID},
    {"HTTP/2.0", "GET / HTTP/2.0\r\n" HOST "\r\n", ERR_INVALID},
    {"HTTP/2 preface", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", ERR_INVALID},
    {"lower-case version", "GET / http/1.1\r\n" HOST "\r\n", ERR_INVALID},
    {"RTSP", "PLAY / RTSP/1.0\r\n" HOST "\r\n", ERR_INVALID},
    {"GET over RTSP", "GET / RTSP/1.0\r\n" HOST "\r\n", ERR_INVALID},
    {"ICE", "SOURCE / ICE/1.0\r\n" HOST "\r\n", ERR_INVALID},
    {"a TLS hello", "\x16\x03\x01\x02\x05\x01", ERR_INVALID},
    {"raw UTF-8 in the target", "GET /\xc3\xa9 HTTP/1.1\r\n" HOST "\r\n", ERR_INVALID},
    {"fragment in the target", "GET /#x HTTP/1.1\r\n" HOST "\r\n", ERR_INVALID},
    {"backslash in the target", "GET /\\ HTTP/1.1\r\n" HOST "\r\n", ERR_INVALID},
    {"no Host", "GET / HTTP/1.1\r\n\r\n", ERR_INVALID},
    {"two Hosts", "GET / HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n", ERR_INVALID},
    {"two Hosts, one in capitals", "GET / HTTP/1.1\r\nHost: a\r\nHOST: b\r\n\r\n", ERR_INVALID},
    {"empty Host", "GET / HTTP/1.1\r\nHost:\r\n\r\n", ERR_INVALID},
    {"path in Host", "GET / HTTP/1.1\r\nHost: a/health\r\n\r\n", ERR_INVALID},
    {"query in Host", "GET / HTTP/1.1\r\nHost: a?x\r\n\r\n", ERR_INVALID},
    {"user in Host", "GET / HTTP/1.1\r\nHost: u@a\r\n\r\n", ERR_INVALID},
    {"list in Host", "GET / HTTP/1.1\r\nHost: a, b\r\n\r\n", ERR_INVALID},
    {"port of letters", "GET / HTTP/1.1\r\nHost: a:b\r\n\r\n", ERR_INVALID},
    {"port too long", "GET / HTTP/1.1\r\nHost: a:123456\r\n\r\n", ERR_INVALID},
    {"open bracket in Host", "GET / HTTP/1.1\r\nHost: [::1\r\n\r\n", ERR_INVALID},
    {"UTF-8 in Host", "GET / HTTP/1.1\r\nHost: \xc3\xa9\r\n\r\n", ERR_INVALID},
    {"two keys", "GET / HTTP/1.1\r\n" HOST "Authorization: a\r\nAuthorization: b\r\n\r\n",
     ERR_INVALID},
    {"two content types", "GET / HTTP/1.1\r\n" HOST "Content-Type: a\r\nContent-type: b\r\n\r\n",
     ERR_INVALID},
    // Framing: what two readers could take for two different messages.
    {"CL and TE",
     "POST / HTTP/1.1\r\n" HOST "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
     ERR_INVALID},
    {"TE and CL",
     "POST / HTTP/1.1\r\n" HOST "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n",
     ERR_INVALID},
    {"TE and CL 0",
     "POST / HTTP/1.1\r\n" HOST "Transfer-Encoding: chunked\r\nContent-Length: 0\r\n\r\n",
     ERR_INVALID},
    {"two equal CLs", "POST / HTTP/1.1\r\n" HOST "Content-Length: 5\r\nContent-Length: 5\r\n\r\n",
     ERR_INVALID},
    {"two CLs", "POST / HTTP/1.1\r\n" HOST "Content-Length: 5\r\nContent-Length: 6\r\n\r\n",
     ERR_INVALID},
    {"CL list", "POST / HTTP/1.1\r\n" HOST "Content-Length: 5, 5\r\n\r\n", ERR_INVALID},
    {"CL with plus", "POST / HTTP/1.1\r\n" HOST "Content-Length: +5\r\n\r\n", ERR_INVALID},
    {"CL with minus", "POST / HTTP/1.1\r\n" HOST "Content-Length: -5\r\n\r\n", ERR_INVALID},
    {"CL in hex", "POST / HTTP/1.1\r\n" HOST "Content-Length: 0x5\r\n\r\n", ERR_INVALID},
    {"CL with a blank inside", "POST / HTTP/1.1\r\n" HOST "Content-Length: 5 5\r\n\r\n",
     ERR_INVALID},
    {"CL empty", "POST / HTTP/1.1\r\n" HOST "Content-Length: \r\n\r\n", ERR_INVALID},
    {"CL 2^64", "POST / HTTP/1.1\r\n" HOST "Content-Length: 18446744073709551616\r\n\r\n",
     ERR_INVALID},
    {"TE twice",
     "POST / HTTP/1.1\r\n" HOST "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n",
     ERR_INVALID},
    {"TE gzip", "POST / HTTP/1.1\r\n" HOST "Transfer-Encoding: gzip\r\n\r\n", ERR_INVALID},
    {"TE gzip, chunked", "POST / HTTP/1.1\r\n" HOST "Transfer-Encoding: gzip, chunked\r\n\r\n",
     ERR_INVALID},
    {"TE chunked, gzip", "POST / HTTP/1.1\r\n" HOST "Transfer-Encoding: chunked, gzip\r\n\r\n",
     ERR_INVALID},
    {"TE identity", "POST / HTTP/1.1\r\n" HOST "Transfer-Encoding: identity\r\n\r\n", ERR_INVALID},
    {"TE xchunked", "POST / HTTP/1.1\r\n" HOST "Transfer-Encoding: xchunked\r\n\r\n", ERR_INVALID},
    {"TE chunked;x", "POST / HTTP/1.1\r\n" HOST "Transfer-Encoding: chunked;x\r\n\r\n",
     ERR_INVALID},
    {"TE quoted", "POST / HTTP/1.1\r\n" HOST "Transfer-Encoding: \"chunked\"\r\n\r\n", ERR_INVALID},
    {"TE empty", "POST / HTTP/1.1\r\n" HOST "Transfer-Encoding:\r\n\r\n", ERR_INVALID},
    {"TE in HTTP/1.0", "POST / HTTP/1.0\r\n" HOST "Transfer-Encoding: chunked\r\n\r\n",
     ERR_INVALID},
    {"chunk size 0x5", CHUNKED "0x5\r\nhello\r\n0\r\n\r\n", ERR_INVALID},
    {"chunk size with a blank", CHUNKED "5 \r\nhello\r\n0\r\n\r\n", ERR_INVALID},
    {"chunk size -5", CHUNKED "-5\r\nhello\r\n0\r\n\r\n", ERR_INVALID},
    {"chunk size +5", CHUNKED "+5\r\nhello\r\n0\r\n\r\n", ERR_INVALID},
    {"no chunk size", CHUNKED "\r\nhello\r\n0\r\n\r\n", ERR_INVALID},
    {"chunk size 2^64", CHUNKED "10000000000000000\r\nhello\r\n0\r\n\r\n", ERR_INVALID},
    {"chunk size ends in LF", CHUNKED "5\nhello\r\n0\r\n\r\n", ERR_INVALID},
    {"chunk size ends in CR", CHUNKED "5\rXhello\r\n0\r\n\r\n", ERR_INVALID},
    {"chunk is longer than it says", CHUNKED "5\r\nhelloX\r\n0\r\n\r\n", ERR_INVALID},
    {"chunk ends in LF", CHUNKED "5\r\nhello\n0\r\n\r\n", ERR_INVALID},
    {"chunk ends in CR", CHUNKED "5\r\nhello\r0\r\n\r\n", ERR_INVALID},
    {"extension with LF", CHUNKED "5;a=b\nhello\r\n0\r\n\r\n", ERR_INVALID},
    {"extension with CR", CHUNKED "5;a=b\rc\r\nhello\r\n0\r\n\r\n", ERR_INVALID},
    {"extension with NUL", CHUNKED "5;a=~\r\nhello\r\n0\r\n\r\n", ERR_INVALID},
    {"last chunk ends in CR CR", CHUNKED "5\r\nhello\r\n0\r\rX", ERR_INVALID},
    {"trailer with CR", CHUNKED "5\r\nhello\r\n0\r\nX: y\r\r\n\r\n", ERR_INVALID},
    {"trailer ends in LF", CHUNKED "5\r\nhello\r\n0\r\nX: y\n\r\n", ERR_INVALID},
};

static size_t unescape(const char *s, char *out) {
    size_t n = strlen(s);
    for (size_t i = 0; i < n; i++)
        out[i] = (char)(s[i] == '~' ? '\0' : s[i]);
    return n;
}

static void test_refused(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof bad_requests / sizeof *bad_requests; i++) {
        const struct bad *b = &bad_requests[i];
        char bytes[1024];
        size_t n = unescape(b->bytes, bytes), rest;
        for (size_t step = 1; step <= n; step += n - 1 ? n - 1 : 1) { // bytewise, and all at once
            struct gw_parse p;
            struct err_info info = {0};
            gw_parse_init(&p, &limits);
            enum gw_parse_event e = feed_all(&p, bytes, n, step, step, &rest, &info);
            if (e != GW_PARSE_BAD || info.code != b->code || !info.message[0])
                fail_msg("%s (steps of %zu): event %d, %s", b->name, step, e, err_name(info.code));
            gw_parse_fini(&p);
        }
    }
}

struct good {
    const char *bytes, *target, *body, *rest;
    unsigned method;
    bool keep_alive;
};
static const struct good good_requests[] = {
    {"GET / HTTP/1.1\r\n" HOST "\r\n", "/", "", "", GW_GET, true},
    {"\r\nGET /a?b=c HTTP/1.1\r\nhost:\texample.com:80 \t\r\n\r\nGET", "/a?b=c", "", "GET", GW_GET,
     true},
    {"GET / HTTP/1.1\r\nHost: [::1]:8000\r\nConnection: close\r\n\r\n", "/", "", "", GW_GET, false},
    {"GET / HTTP/1.0\r\n\r\n", "/", "", "", GW_GET, false},
    {"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n", "/", "", "", GW_GET, true},
    {"PUT /x HTTP/1.1\r\n" HOST "Content-Length: 0\r\n\r\n", "/x", "", "", 0, true},
    {"POST /x HTTP/1.1\r\n" HOST "Content-Length: 5\r\n\r\nhelloPOST", "/x", "hello", "POST",
     GW_POST, true},
    {"POST /x HTTP/1.1\r\n" HOST "Content-Length: 000005\r\nX: caf\xc3\xa9\r\nY:\r\n\r\nhe\0lo",
     "/x", NULL, "", GW_POST, true},
    {CHUNKED "5\r\nhello\r\n0\r\n\r\nGET /", "/", "hello", "GET /", GW_POST, true},
    {CHUNKED "0\r\n\r\n", "/", "", "", GW_POST, true},
    {CHUNKED "1\r\nh\r\n04;x=\"y\";z\r\nello\r\n000\r\nExpires: 0\r\nHost: b\r\n\r\nG", "/",
     "hello", "G", GW_POST, true},
    {"POST / HTTP/1.1\r\n" HOST "Transfer-Encoding: Chunked\r\nUpgrade: h2c\r\nConnection: "
     "upgrade\r\n\r\nA\r\n0123456789\r\n0\r\n\r\n",
     "/", "0123456789", "", GW_POST, true},
    {"GET / HTTP/1.1\r\n" HOST "Upgrade: h2c\r\nConnection: Upgrade, HTTP2-Settings\r\n\r\nGET",
     "/", "", "GET", GW_GET, true},
    {"OPTIONS * HTTP/1.1\r\n" HOST "\r\n", "*", "", "", GW_OPTIONS, true},
    {"GET http://example.com/a HTTP/1.1\r\n" HOST "\r\n", "http://example.com/a", "", "", GW_GET,
     true},
};

static size_t good_len(const struct good *g) {
    // The one body with a NUL.
    return g->body ? strlen(g->bytes) : strlen(g->bytes) + 3;
}

static void check_good(const struct good *g, const struct gw_parse *p, size_t rest) {
    assert_string_equal(p->target, g->target);
    assert_int_equal(p->method, g->method);
    assert_int_equal(p->keep_alive, g->keep_alive);
    assert_int_equal(rest, strlen(g->rest));
    assert_int_equal(p->bytes, good_len(g) - rest);
    if (g->body) {
        assert_int_equal(p->body.len, strlen(g->body));
        assert_memory_equal(p->body.len ? p->body.data : "", g->body, p->body.len);
    } else {
        assert_int_equal(p->body.len, 5);
        assert_memory_equal(p->body.data, "he\0lo", 5);
        assert_int_equal(p->n_headers, 4);
        assert_string_equal(p->headers[2].name, "x");
        assert_string_equal(p->headers[2].value, "caf\xc3\xa9");
        assert_string_equal(p->headers[3].value, "");
    }
}

static void test_every_split(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof good_requests / sizeof *good_requests; i++) {
        const struct good *g = &good_requests[i];
        size_t n = good_len(g), rest;
        struct gw_parse p;
        struct err_info info = {0};
        gw_parse_init(&p, &limits);
        for (size_t first = 0; first <= n; first++) {
            enum gw_parse_event e = feed_all(&p, g->bytes, n, first, n, &rest, &info);
            if (e != GW_PARSE_DONE)
                fail_msg("request %zu cut at %zu: event %d, %s", i, first, e, info.message);
            check_good(g, &p, rest);
            gw_parse_next(&p); // one parser for all: nothing of a request reaches the next
        }
        for (size_t step = 1; step < 4; step++) {
            assert_int_equal(feed_all(&p, g->bytes, n, step, step, &rest, &info), GW_PARSE_DONE);
            check_good(g, &p, strlen(g->rest)); // what was never fed is not counted in rest
            gw_parse_next(&p);
        }
        gw_parse_fini(&p);
    }
    assert_int_equal(mem_live_blocks(), 0);
}

static enum gw_parse_event parse_text(const char *s, size_t n, struct err_info *info) {
    struct gw_parse p;
    size_t rest;
    *info = (struct err_info){0};
    gw_parse_init(&p, &limits);
    enum gw_parse_event e = feed_all(&p, s, n, n, n, &rest, info);
    gw_parse_fini(&p);
    return e;
}

static void test_limits(void **state) {
    (void)state;
    char text[20000];
    struct err_info info;
    // A head of exactly the limit, and one byte more.
    static const char front[] = "GET / HTTP/1.1\r\nHost: a\r\nX: ";
    size_t n = sizeof front - 1;
    memset(text, 'x', sizeof text);
    memcpy(text, front, n);
    memcpy(text + 4092, "\r\n\r\n", 4);
    assert_int_equal(parse_text(text, 4096, &info), GW_PARSE_DONE);
    text[4092] = 'x';
    memcpy(text + 4093, "\r\n\r\n", 4);
    assert_int_equal(parse_text(text, 4097, &info), GW_PARSE_BAD);
    assert_int_equal(info.code, ERR_HEADERS);
    memset(text, 'x', sizeof text); // a request line without an end
    memcpy(text, "GET /", 5);
    assert_int_equal(parse_text(text, sizeof text, &info), GW_PARSE_BAD);
    assert_int_equal(info.code, ERR_HEADERS);
    for (int fields = GW_MAX_HEADERS - 1; fields <= GW_MAX_HEADERS; fields++) {
        n = (size_t)snprintf(text, sizeof text, "GET / HTTP/1.1\r\nHost: a\r\n");
        for (int i = 0; i < fields; i++)
            n += (size_t)snprintf(text + n, sizeof text - n, "X: y\r\n");
        n += (size_t)snprintf(text + n, sizeof text - n, "\r\n");
        bool fits = fields < GW_MAX_HEADERS;
        assert_int_equal(parse_text(text, n, &info), fits ? GW_PARSE_DONE : GW_PARSE_BAD);
        assert_int_equal(info.code, fits ? ERR_OK : ERR_HEADERS);
    }
}

static void test_chunked_limits(void **state) {
    (void)state;
    char *text = malloc(600000);
    struct err_info info;
    assert_non_null(text);
    // 1,000 one-byte chunks are the most that this body limit takes.
    for (int chunks = 1000; chunks <= 1001; chunks++) {
        size_t n = (size_t)sprintf(text, "%s", CHUNKED);
        for (int i = 0; i < chunks; i++)
            n += (size_t)sprintf(text + n, "1\r\nx\r\n");
        n += (size_t)sprintf(text + n, "0\r\n\r\n");
        assert_int_equal(parse_text(text, n, &info), chunks == 1000 ? GW_PARSE_DONE : GW_PARSE_BAD);
        assert_int_equal(info.code, chunks == 1000 ? ERR_OK : ERR_TOO_LARGE);
    }
    // A single chunk that says it is larger than the limit ends at the limit, not at its end.
    size_t n = (size_t)sprintf(text, "%sFFFFFF\r\n", CHUNKED);
    memset(text + n, 'x', 1001);
    assert_int_equal(parse_text(text, n + 1001, &info), GW_PARSE_BAD);
    assert_int_equal(info.code, ERR_TOO_LARGE);
    // Extensions and trailers without end.
    n = (size_t)sprintf(text, "%s5;a=", CHUNKED);
    memset(text + n, 'x', 9000);
    assert_int_equal(parse_text(text, n + 9000, &info), GW_PARSE_BAD);
    n = (size_t)sprintf(text, "%s0\r\n", CHUNKED);
    for (int i = 0; i < 2000; i++)
        n += (size_t)sprintf(text + n, "X: y\r\n");
    assert_int_equal(parse_text(text, n, &info), GW_PARSE_BAD);
    // Many chunks with an extension each: framing out of all proportion to the body.
    n = (size_t)sprintf(text, "%s", CHUNKED);
    for (int i = 0; i < 500; i++) {
        n += (size_t)sprintf(text + n, "1;a=%0500d\r\nx\r\n", 0);
    }
    assert_int_equal(parse_text(text, n, &info), GW_PARSE_BAD);
    assert_int_equal(info.code, ERR_INVALID);
    free(text);
}

static void test_discard(void **state) {
    (void)state;
    static const char *const texts[] = {
        "POST / HTTP/1.1\r\n" HOST "Content-Length: 5\r\n\r\nhello",
        CHUNKED "5\r\nhello\r\n0\r\n\r\n",
    };
    for (size_t i = 0; i < 2; i++) {
        struct gw_parse p;
        struct err_info info;
        size_t used, at = 0, n = strlen(texts[i]);
        gw_parse_init(&p, &limits);
        assert_int_equal(gw_parse_feed(&p, texts[i], n, &used, &info), GW_PARSE_HEAD);
        p.discard = true;
        at += used;
        assert_int_equal(gw_parse_feed(&p, texts[i] + at, n - at, &used, &info), GW_PARSE_DONE);
        assert_int_equal(at + used, n);
        assert_int_equal(p.body.len, 0);
        assert_int_equal(p.body_bytes, 5);
        gw_parse_fini(&p);
    }
}

static void test_no_memory(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof good_requests / sizeof *good_requests; i++) {
        const struct good *g = &good_requests[i];
        enum gw_parse_event e = GW_PARSE_BAD;
        for (uint64_t nth = 1; e == GW_PARSE_BAD; nth++) {
            struct gw_parse p;
            struct err_info info = {0};
            size_t rest;
            gw_parse_init(&p, &limits);
            mem_fail_after(nth, true);
            e = feed_all(&p, g->bytes, good_len(g), 3, 3, &rest, &info);
            mem_fail_after(0, false);
            if (e == GW_PARSE_BAD)
                assert_int_equal(info.code, ERR_NOMEM);
            gw_parse_fini(&p);
            assert_int_equal(mem_live_blocks(), 0);
            assert_true(nth < 50);
        }
        assert_int_equal(e, GW_PARSE_DONE);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_refused), cmocka_unit_test(test_every_split),
        cmocka_unit_test(test_limits),  cmocka_unit_test(test_chunked_limits),
        cmocka_unit_test(test_discard), cmocka_unit_test(test_no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

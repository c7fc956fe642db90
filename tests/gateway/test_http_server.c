// SPDX-License-Identifier: Apache-2.0
// Whole requests over sockets: keep-alive, pipelining, errors, fields of the answers, CORS, the
// access log and the metrics.
#include "base/mem.h"
#include "tests/gateway/http_fixture.h"
#include "tests/support/cmocka_all.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define GET_HEALTH "GET /health HTTP/1.1\r\nHost: a\r\n\r\n"
#define JSON "Content-Type: application/json\r\n"

static int setup(void **state) {
    struct fx *f = calloc(1, sizeof *f);
    static const char *const origins[] = {"https://app.example"};
    fx_start(f, &(struct gw_config){.max_body_bytes = 100000,
                                    .cors_origins = origins,
                                    .n_cors_origins = 1,
                                    .metrics_host = NULL});
    *state = f;
    return 0;
}

static int teardown(void **state) {
    fx_stop(*state);
    free(*state);
    return 0;
}

static void test_statuses(void **state) {
    const struct fx *f = *state;
    static const struct {
        const char *request;
        int status;
    } cases[] = {
        {GET_HEALTH, 200},
        {"HEAD /health HTTP/1.1\r\nHost: a\r\n\r\n", 200},
        {"OPTIONS /health HTTP/1.1\r\nHost: a\r\n\r\n", 204},
        {"OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n", 204},
        {"OPTIONS /none HTTP/1.1\r\nHost: a\r\n\r\n", 404},
        {"GET /none HTTP/1.1\r\nHost: a\r\n\r\n", 404},
        {"GET * HTTP/1.1\r\nHost: a\r\n\r\n", 400},
        {"PUT /none HTTP/1.1\r\nHost: a\r\n\r\n", 404},
        {"POST /health HTTP/1.1\r\nHost: a\r\n\r\n", 405},
        {"PUT /health HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc", 405},
        {"PATCH /health HTTP/1.1\r\nHost: a\r\nContent-Length: 99999\r\n\r\nabc", 405},
        {"CONNECT a:443 HTTP/1.1\r\nHost: a\r\n\r\n", 400},
        {"TRACE /health HTTP/1.1\r\nHost: a\r\n\r\n", 405},
        {"GET /%zz HTTP/1.1\r\nHost: a\r\n\r\n", 400},
        {"GET /health HTTP/1.1\r\n\r\n", 400},
        {"GET /health HTTP/1.1\r\nHost: a\r\nExpect: wonders\r\n\r\n", 400},
        {"POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{}", 415},
        {"POST /echo HTTP/1.1\r\nHost: a\r\nContent-Type: text/plain\r\nContent-Length: "
         "2\r\n\r\n{}",
         415},
        {"POST /echo HTTP/1.1\r\nHost: a\r\nContent-Type: application/jsonp\r\nContent-Length: "
         "2\r\n\r\n{}",
         415},
        {"POST /echo HTTP/1.1\r\nHost: a\r\nContent-Type: Application/JSON ; "
         "charset=utf-8\r\nContent-Length: 2\r\n\r\n{}",
         200},
        {"POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n", 200}, // no body, no type
        {"POST /raw HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{}", 200},
        {"POST /raw HTTP/1.1\r\nHost: a\r\nContent-Length: 100001\r\n\r\n", 413},
        {"POST /raw HTTP/1.1\r\nHost: a\r\nContent-Length: 18446744073709551615\r\n\r\n", 413},
        {"BREW /health HTTP/1.1\r\nHost: a\r\n\r\n", 400},
        {"hello\r\n\r\n", 400},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        cl_assert_status(f->port, cases[i].request, cases[i].status);
    char *head = malloc(80000);
    assert_non_null(head);
    int n = sprintf(head, "GET /health HTTP/1.1\r\nHost: a\r\nX: ");
    memset(head + n, 'x', 79000);
    strcpy(head + n + 70000, "\r\n\r\n");
    cl_assert_status(f->port, head, 431);
    free(head);
}

// Every error body has the four keys, and every answer its id and its time.
static void test_error_shape(void **state) {
    const struct fx *f = *state;
    static const char *const requests[] = {
        "GET /none HTTP/1.1\r\nHost: a\r\nX-Request-Id: abc-1.2_Z\r\n\r\n",
        "POST /health HTTP/1.1\r\nHost: a\r\nX-Request-Id: abc-1.2_Z\r\n\r\n",
        "POST /echo HTTP/1.1\r\nHost: a\r\nX-Request-Id: abc-1.2_Z\r\nContent-Length: 1\r\n\r\n1",
    };
    static const char *const bodies[] = {
        "{\"error\":{\"message\":\"there is no such route\",\"type\":\"invalid_request_error\","
        "\"param\":null,\"code\":null}}",
        "{\"error\":{\"message\":\"POST is not allowed here; allowed: GET, HEAD, "
        "OPTIONS\",\"type\":"
        "\"invalid_request_error\",\"param\":null,\"code\":null}}",
        "{\"error\":{\"message\":\"the Content-Type must be application/json\",\"type\":"
        "\"invalid_request_error\",\"param\":null,\"code\":null}}",
    };
    for (size_t i = 0; i < 3; i++) {
        struct cl_response r;
        char v[128];
        cl_once(f->port, requests[i], &r);
        assert_string_equal(r.body, bodies[i]);
        assert_string_equal(cl_field(&r, "content-type", v, sizeof v), "application/json");
        assert_string_equal(cl_field(&r, "x-request-id", v, sizeof v), "abc-1.2_Z");
        assert_non_null(cl_field(&r, "openai-processing-ms", v, sizeof v));
        assert_non_null(cl_field(&r, "date", v, sizeof v));
        assert_null(cl_field(&r, "connection", v, sizeof v));
        if (i == 1)
            assert_string_equal(cl_field(&r, "allow", v, sizeof v), "GET, HEAD, OPTIONS");
        cl_free(&r);
    }
}

static void test_request_id(void **state) {
    const struct fx *f = *state;
    static const char *const refused[] = {
        "",
        "a b",
        "a\"b",
        "caf\xc3\xa9",
        "a;b",
        "a/b",
        "0123456789012345678901234567890123456789", // 40 characters
    };
    char seen[sizeof refused / sizeof *refused][64];
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        char text[256];
        struct cl_response r;
        snprintf(text, sizeof text, "GET /health HTTP/1.1\r\nHost: a\r\nx-request-id: %s\r\n\r\n",
                 refused[i]);
        cl_once(f->port, text, &r);
        assert_non_null(cl_field(&r, "x-request-id", seen[i], sizeof seen[i]));
        assert_int_equal(strlen(seen[i]), 36);
        assert_int_equal(strncmp(seen[i], "req_", 4), 0);
        for (size_t k = 0; k < i; k++)
            assert_string_not_equal(seen[k], seen[i]);
        cl_free(&r);
    }
    struct cl_response r;
    char v[64];
    cl_once(f->port,
            "GET /health HTTP/1.1\r\nHost: a\r\n"
            "x-request-id: 123456789012345678901234567890123456789\r\n\r\n",
            &r);
    assert_string_equal(cl_field(&r, "x-request-id", v, sizeof v),
                        "123456789012345678901234567890123456789");
    cl_free(&r);
}

static void test_framing_errors_close(void **state) {
    const struct fx *f = *state;
    static const char *const requests[] = {
        "POST /raw HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n"
        "0\r\n\r\nGET /health HTTP/1.1\r\nHost: a\r\n\r\n",
        "POST /raw HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello!\r\n"
        "GET /health HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET /health HTTP/1.1\r\nHost: a\r\nX: y\r\n z\r\n\r\nGET /health HTTP/1.1\r\nHost: "
        "a\r\n\r\n",
    };
    for (size_t i = 0; i < 3; i++) {
        int fd = cl_connect(f->port);
        struct cl_response r;
        char v[64];
        cl_puts(fd, requests[i]);
        assert_true(cl_read(fd, false, &r));
        assert_int_equal(r.status, 400);
        assert_string_equal(cl_field(&r, "connection", v, sizeof v), "close");
        cl_free(&r);
        assert_true(cl_eof(fd)); // and the smuggled request has no answer
        close(fd);
    }
}

static void test_keep_alive(void **state) {
    const struct fx *f = *state;
    struct cl_response r;
    char v[64];
    int fd = cl_connect(f->port);
    for (int i = 0; i < 3; i++) {
        cl_puts(fd, "POST /raw HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello");
        assert_true(cl_read(fd, false, &r));
        assert_string_equal(r.body, "hello");
        cl_free(&r);
        cl_puts(fd, "GET /none HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello");
        assert_true(cl_read(fd, false, &r)); // a refused request's body is read over
        assert_int_equal(r.status, 404);
        cl_free(&r);
    }
    cl_puts(fd, "HEAD /health HTTP/1.1\r\nHost: a\r\n\r\n" GET_HEALTH);
    assert_true(cl_read(fd, true, &r));
    assert_string_equal(cl_field(&r, "content-length", v, sizeof v), "15");
    cl_free(&r);
    assert_true(cl_read(fd, false, &r));
    assert_string_equal(r.body, "{\"status\":\"ok\"}");
    cl_free(&r);
    cl_puts(fd, "GET /health HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    assert_true(cl_read(fd, false, &r));
    assert_string_equal(cl_field(&r, "connection", v, sizeof v), "close");
    cl_free(&r);
    assert_true(cl_eof(fd));
    close(fd);
    fd = cl_connect(f->port);
    cl_puts(fd,
            "GET /health HTTP/1.0\r\nConnection: Keep-Alive\r\n\r\nGET /health HTTP/1.0\r\n\r\n");
    assert_true(cl_read(fd, false, &r));
    assert_string_equal(cl_field(&r, "connection", v, sizeof v), "keep-alive");
    cl_free(&r);
    assert_true(cl_read(fd, false, &r));
    assert_string_equal(cl_field(&r, "connection", v, sizeof v), "close");
    cl_free(&r);
    assert_true(cl_eof(fd));
    close(fd);
}

enum { MANY = 20000 };

static void *send_many(void *arg) {
    const int *fd = arg;
    char text[64];
    for (int i = 0; i < MANY; i++) {
        int n = snprintf(text, sizeof text, "GET /files/%d HTTP/1.1\r\nHost: a\r\n\r\n", i);
        cl_send(*fd, text, (size_t)n);
    }
    return NULL;
}

static void test_pipelining(void **state) {
    struct fx *f = *state;
    struct cl_response r;
    char text[64];
    int fd = cl_connect(f->port);
    // The second waits for the first's late answer; all come in order.
    cl_puts(fd, "POST /later HTTP/1.1\r\nHost: a\r\n\r\n"
                "POST /raw HTTP/1.1\r\nHost: a\r\nContent-Length: 6\r\n\r\nsecond"
                "POST /later HTTP/1.1\r\nHost: a\r\n\r\n" GET_HEALTH);
    assert_int_equal(fx_wait_waiting(f, 1), 1);
    fx_answer(f, "first");
    assert_true(cl_read(fd, false, &r));
    assert_string_equal(r.body, "first");
    cl_free(&r);
    assert_true(cl_read(fd, false, &r));
    assert_string_equal(r.body, "second");
    cl_free(&r);
    fx_answer(f, "third");
    assert_true(cl_read(fd, false, &r));
    assert_string_equal(r.body, "third");
    cl_free(&r);
    assert_true(cl_read(fd, false, &r));
    assert_string_equal(r.body, "{\"status\":\"ok\"}");
    cl_free(&r);
    // Far more than any buffer holds, sent by a thread so that both directions go on.
    pthread_t sender;
    assert_int_equal(pthread_create(&sender, NULL, send_many, &fd), 0);
    for (int i = 0; i < MANY; i++) {
        assert_true(cl_read(fd, false, &r));
        snprintf(text, sizeof text, "/files/%d||%d|", i, i);
        assert_string_equal(r.body, text);
        cl_free(&r);
    }
    pthread_join(sender, NULL);
    close(fd);
}

// Requests that fill a read exactly, and whose answers stop the reading: it goes on by itself.
static void test_full_reads(void **state) {
    struct fx *f = *state;
    enum { READ = 64 << 10 };
    char *text = calloc(1, READ + 1);
    assert_non_null(text);
    int head = sprintf(text, "POST /raw HTTP/1.1\r\nHost: a\r\nContent-Length: %05d\r\n\r\n", 0);
    sprintf(text, "POST /raw HTTP/1.1\r\nHost: a\r\nContent-Length: %05d\r\n\r\n", READ - head);
    int fd = cl_connect(f->port);
    cl_puts(fd, "POST /later HTTP/1.1\r\nHost: a\r\n\r\n");
    fx_wait_waiting(f, 1);
    for (int i = 0; i < 4; i++) // all of it lies in the socket before the first is read
        assert_true(cl_send(fd, text, READ));
    usleep(20000);
    fx_answer(f, "go");
    for (int i = 0; i < 5; i++) {
        struct cl_response r;
        assert_true(cl_read(fd, false, &r));
        assert_int_equal(r.len, i ? READ - head : 2);
        cl_free(&r);
    }
    free(text);
    close(fd);
}

static void test_body_in_every_cut(void **state) {
    const struct fx *f = *state;
    static const char *const requests[] = {
        "POST /raw HTTP/1.1\r\nHost: a\r\nContent-Length: 11\r\n\r\nhello world",
        "POST /raw HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
        "5\r\nhello\r\n6;x=y\r\n world\r\n0\r\nX: y\r\n\r\n",
    };
    for (size_t i = 0; i < 2; i++) {
        int fd = cl_connect(f->port);
        int one = 1;
        setsockopt(fd, 6, 1, &one, sizeof one); // TCP_NODELAY
        for (size_t cut = 1; cut < strlen(requests[i]); cut++) {
            struct cl_response r;
            cl_send(fd, requests[i], cut);
            if (cut % 7 == 0)
                usleep(2000); // the server sees the first part alone
            cl_puts(fd, requests[i] + cut);
            assert_true(cl_read(fd, false, &r));
            assert_string_equal(r.body, "hello world");
            cl_free(&r);
        }
        close(fd);
    }
}

static void test_expect(void **state) {
    const struct fx *f = *state;
    struct cl_response r;
    int fd = cl_connect(f->port);
    cl_puts(fd,
            "POST /raw HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n");
    assert_true(cl_read(fd, false, &r));
    assert_int_equal(r.status, 100);
    cl_free(&r);
    cl_puts(fd, "hello");
    assert_true(cl_read(fd, false, &r));
    assert_int_equal(r.status, 200);
    assert_string_equal(r.body, "hello");
    cl_free(&r);
    // The body came along: no interim answer is needed.
    cl_puts(
        fd,
        "POST /raw HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\nhello");
    assert_true(cl_read(fd, false, &r));
    assert_int_equal(r.status, 200);
    cl_free(&r);
    // Refused: the final answer at once, and the connection ends.
    cl_puts(
        fd,
        "POST /raw HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 100001\r\n\r\n");
    assert_true(cl_read(fd, false, &r));
    assert_int_equal(r.status, 413);
    cl_free(&r);
    assert_true(cl_eof(fd));
    close(fd);
}

// The answer to a body that is too large reaches a client that is still sending it.
static void test_too_large_is_read(void **state) {
    const struct fx *f = *state;
    struct cl_response r;
    int fd = cl_connect(f->port);
    char *body = calloc(1, 1 << 20);
    assert_non_null(body);
    cl_puts(fd, "POST /raw HTTP/1.1\r\nHost: a\r\nContent-Length: 1048576\r\n\r\n");
    assert_true(cl_send(fd, body, 1 << 20)); // taken to its end, and thrown away
    assert_true(cl_read(fd, false, &r));
    assert_int_equal(r.status, 413);
    cl_free(&r);
    char c;
    assert_int_equal(recv(fd, &c, 1, 0), 0); // an end, not a reset
    close(fd);
    fd = cl_connect(f->port); // chunked: as soon as the limit is passed
    cl_puts(fd, "POST /raw HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n100000\r\n");
    cl_send(fd, body, 1 << 20);
    assert_true(cl_read(fd, false, &r));
    assert_int_equal(r.status, 413);
    cl_free(&r);
    close(fd);
    free(body);
}

static void test_params(void **state) {
    const struct fx *f = *state;
    struct cl_response r;
    cl_once(f->port, "GET /items/a%20b/part?q=1 HTTP/1.1\r\nHost: a\r\n\r\n", &r);
    assert_string_equal(r.body, "/items/a b/part|q=1|a b|");
    cl_free(&r);
    cl_once(f->port, "GET /items/fixed/part HTTP/1.1\r\nHost: a\r\n\r\n", &r);
    assert_string_equal(r.body, "/items/fixed/part|||");
    cl_free(&r);
    cl_once(f->port, "DELETE /files/x/y%2Fz HTTP/1.1\r\nHost: a\r\n\r\n", &r);
    assert_string_equal(r.body, "/files/x/y/z||x/y/z|");
    cl_free(&r);
}

static void test_cors(void **state) {
    const struct fx *f = *state;
    struct cl_response r;
    char v[128];
    cl_once(f->port, "GET /health HTTP/1.1\r\nHost: a\r\nOrigin: https://app.example\r\n\r\n", &r);
    assert_string_equal(cl_field(&r, "access-control-allow-origin", v, sizeof v),
                        "https://app.example");
    assert_string_equal(cl_field(&r, "vary", v, sizeof v), "Origin");
    cl_free(&r);
    static const char *const strangers[] = {"https://app.example.evil", "http://app.example",
                                            "null", "https://app.exampl"};
    for (size_t i = 0; i < 4; i++) {
        char text[256];
        snprintf(text, sizeof text, "GET /none HTTP/1.1\r\nHost: a\r\nOrigin: %s\r\n\r\n",
                 strangers[i]);
        cl_once(f->port, text, &r);
        assert_null(cl_field(&r, "access-control-allow-origin", v, sizeof v));
        assert_string_equal(cl_field(&r, "vary", v, sizeof v), "Origin");
        cl_free(&r);
    }
    cl_once(f->port,
            "OPTIONS /echo HTTP/1.1\r\nHost: a\r\nOrigin: https://app.example\r\n"
            "Access-Control-Request-Method: POST\r\n"
            "Access-Control-Request-Headers: authorization, content-type\r\n\r\n",
            &r);
    assert_int_equal(r.status, 204);
    assert_string_equal(cl_field(&r, "access-control-allow-methods", v, sizeof v), "POST, OPTIONS");
    assert_string_equal(cl_field(&r, "access-control-allow-headers", v, sizeof v),
                        "authorization, content-type");
    assert_null(cl_field(&r, "content-length", v, sizeof v));
    cl_free(&r);
    cl_assert_status(f->port,
                     "OPTIONS /echo HTTP/1.1\r\nHost: a\r\nOrigin: https://evil\r\n"
                     "Access-Control-Request-Method: POST\r\n\r\n",
                     403);
}

static void test_trace(void **state) {
    const struct fx *f = *state;
    struct cl_response r;
    char v[128];
    static const char in[] = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    char text[256];
    snprintf(text, sizeof text, "GET /health HTTP/1.1\r\nHost: a\r\nTraceparent: %s\r\n\r\n", in);
    cl_once(f->port, text, &r);
    assert_non_null(cl_field(&r, "traceparent", v, sizeof v));
    assert_int_equal(strlen(v), 55);
    assert_memory_equal(v, in, 36);     // the same trace
    assert_memory_not_equal(v, in, 52); // another span
    assert_string_equal(v + 52, "-01");
    cl_free(&r);
    cl_once(f->port, "GET /health HTTP/1.1\r\nHost: a\r\nTraceparent: 00-xyz\r\n\r\n", &r);
    assert_null(cl_field(&r, "traceparent", v, sizeof v));
    cl_free(&r);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_statuses),
        cmocka_unit_test(test_error_shape),
        cmocka_unit_test(test_request_id),
        cmocka_unit_test(test_framing_errors_close),
        cmocka_unit_test(test_keep_alive),
        cmocka_unit_test(test_pipelining),
        cmocka_unit_test(test_body_in_every_cut),
        cmocka_unit_test(test_expect),
        cmocka_unit_test(test_full_reads),
        cmocka_unit_test(test_too_large_is_read),
        cmocka_unit_test(test_params),
        cmocka_unit_test(test_cors),
        cmocka_unit_test(test_trace),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}

// SPDX-License-Identifier: Apache-2.0
// Bodies that a handler takes in pieces: limits of their own, pauses, answers before the end,
// clients that go away or send nonsense in the middle.
#include "base/mem.h"
#include "tests/gateway/http_fixture.h"
#include "tests/support/cmocka_all.h"
#include "tests/support/wait.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define HEAD(query) "POST /pieces" query " HTTP/1.1\r\nHost: a\r\n"
#define GET_HEALTH "GET /health HTTP/1.1\r\nHost: a\r\n\r\n"

static const int64_t ms = 1000000;
enum { BIG = 3 << 20 };

static int setup(void **state) {
    struct fx *f = calloc(1, sizeof *f);
    // Another route's body may be 64 KiB; time-outs are short.
    fx_start(f, &(struct gw_config){.max_body_bytes = 64 << 10, .body_timeout_ns = 1500 * ms});
    *state = f;
    return 0;
}

static int teardown(void **state) {
    fx_stop(*state);
    free(*state);
    return 0;
}

static char *body_of(size_t n, char want[64]) {
    char *p = malloc(n + 1);
    uint32_t sum = 0;
    assert_non_null(p);
    for (size_t i = 0; i < n; i++) {
        p[i] = (char)(i * 2654435761u >> 13);
        sum = sum * 31 + (unsigned char)p[i];
    }
    snprintf(want, 64, "%zu %u", n, sum);
    return p;
}

static void send_length(int fd, const char *head, const char *body, size_t n) {
    char text[256];
    snprintf(text, sizeof text, "%sContent-Length: %zu\r\n\r\n", head, n);
    cl_puts(fd, text);
    cl_send(fd, body, n);
}

static void send_chunked(int fd, const char *head, const char *body, size_t n, size_t step) {
    char text[256];
    snprintf(text, sizeof text, "%sTransfer-Encoding: chunked\r\n\r\n", head);
    cl_puts(fd, text);
    for (size_t at = 0; at < n; at += step) {
        size_t len = n - at < step ? n - at : step;
        snprintf(text, sizeof text, "%zx\r\n", len);
        cl_puts(fd, text);
        cl_send(fd, body + at, len);
        cl_puts(fd, "\r\n");
    }
    cl_puts(fd, "0\r\n\r\n");
}

static void expect(int fd, int status, const char *body) {
    struct cl_response r;
    assert_true(cl_read(fd, false, &r));
    if (r.status != status)
        fail_msg("status %d, not %d: %s", r.status, status, r.body);
    if (body)
        assert_string_equal(r.body, body);
    cl_free(&r);
}

static void test_whole_bodies(void **state) {
    struct fx *f = *state;
    static const size_t sizes[] = {1, 65535, 65536, 65537, BIG};
    int fd = cl_connect(f->port); // one connection for all: each ends where it should
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        char want[64];
        char *body = body_of(sizes[i], want);
        send_length(fd, HEAD(""), body, sizes[i]);
        expect(fd, 200, want);
        send_chunked(fd, HEAD(""), body, sizes[i], 40000);
        expect(fd, 200, want);
        if (sizes[i] < 70000) {
            send_chunked(fd, HEAD("?pause"), body, sizes[i], 9000);
            expect(fd, 200, want);
        }
        free(body);
    }
    cl_puts(fd, HEAD("") "Content-Length: 0\r\n\r\n");
    expect(fd, 200, "0 0");
    cl_puts(fd, HEAD("") "\r\n");
    expect(fd, 200, "0 0");
    cl_puts(fd, GET_HEALTH);
    expect(fd, 200, NULL);
    close(fd);
    assert_true(f->largest_piece <= 64 << 10); // never the whole of it
    // Other routes keep the server's limit.
    cl_assert_status(f->port, "POST /raw HTTP/1.1\r\nHost: a\r\nContent-Length: 65537\r\n\r\n",
                     413);
}

// With rests of the handler the body still comes whole, and the client waits: pauses are not held
// against it, although they take longer than a body may.
static void test_pause(void **state) {
    struct fx *f = *state;
    char want[64];
    char *body = body_of(BIG, want);
    int fd = cl_connect(f->port);
    send_length(fd, HEAD("?pause"), body, BIG);
    expect(fd, 200, want);
    close(fd);
    // A handler that takes nothing for longer than the body's time-out.
    fd = cl_connect(f->port);
    send_length(fd, HEAD("?hold"), body, 100000);
    usleep(1800000);
    char c;
    assert_int_equal(recv(fd, &c, 1, MSG_DONTWAIT), -1);
    size_t before = f->body_bytes;
    assert_true(before < BIG + 100000); // and nothing more was read for it
    close(fd);
    free(body);
}

static void test_limits(void **state) {
    struct fx *f = *state;
    char want[64], *body = body_of(5 << 20, want);
    int fd = cl_connect(f->port);
    cl_puts(fd, HEAD("") "Content-Length: 4194305\r\n\r\n");
    expect(fd, 413, NULL);
    assert_int_equal(f->handled, 0);
    assert_true(cl_eof(fd));
    close(fd);
    fd = cl_connect(f->port);
    send_chunked(fd, HEAD(""), body, 5 << 20, 100000);
    struct cl_response r;
    assert_true(cl_read(fd, false, &r));
    assert_int_equal(r.status, 413);
    assert_non_null(strstr(r.body, "4194304"));
    cl_free(&r);
    close(fd);
    fx_wait_closed(f, 1); // the handler was told
    // Malformed in the middle.
    fd = cl_connect(f->port);
    cl_puts(fd, HEAD("") "Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\nzz\r\n");
    expect(fd, 400, NULL);
    assert_true(cl_eof(fd));
    close(fd);
    fx_wait_closed(f, 2);
    // Too slow.
    fd = cl_connect(f->port);
    cl_puts(fd, HEAD("") "Content-Length: 10\r\n\r\nhello");
    expect(fd, 408, NULL);
    close(fd);
    fx_wait_closed(f, 3);
    free(body);
}

static void test_answers_before_the_end(void **state) {
    struct fx *f = *state;
    char want[64], *body = body_of(BIG, want), value[32];
    static const struct {
        const char *head;
        int status;
    } cases[] = {{HEAD("?refuse"), 403}, {HEAD("?stop"), 400}};
    for (size_t i = 0; i < 2; i++) {
        struct cl_response r;
        int fd = cl_connect(f->port);
        send_length(fd, cases[i].head, body, BIG);
        assert_true(cl_read(fd, false, &r));
        assert_int_equal(r.status, cases[i].status);
        assert_string_equal(cl_field(&r, "connection", value, sizeof value), "close");
        cl_free(&r);
        assert_true(cl_eof(fd)); // no second answer: the rest of the body is no request
        close(fd);
        // The last piece is in hand: nothing is left unread, and the connection stays.
        fd = cl_connect(f->port);
        if (i == 1) {
            send_length(fd, cases[i].head, body, 10);
            expect(fd, cases[i].status, NULL);
            cl_puts(fd, GET_HEALTH);
            expect(fd, 200, NULL);
        }
        close(fd);
    }
    assert_int_equal(f->closed, 0);
    free(body);
}

static void test_continue(void **state) {
    struct fx *f = *state;
    int fd = cl_connect(f->port);
    cl_puts(fd, HEAD("") "Expect: 100-continue\r\nContent-Length: 5\r\n\r\n");
    expect(fd, 100, NULL);
    cl_puts(fd, "hello");
    expect(fd, 200, "5 99162322");
    // Refused before the client sends: no 100 comes before the answer.
    cl_puts(fd, HEAD("?refuse") "Expect: 100-continue\r\nContent-Length: 5\r\n\r\n");
    expect(fd, 403, NULL);
    close(fd);
}

static void test_client_goes_away(void **state) {
    struct fx *f = *state;
    int fd = cl_connect(f->port);
    cl_puts(fd, HEAD("") "Content-Length: 100000\r\n\r\nhello");
    wait_until(f->body_bytes >= 5);
    close(fd);
    fx_wait_closed(f, 1);
    fd = cl_connect(f->port); // after the whole body, while the answer is awaited
    cl_puts(fd, HEAD("?keep") "Content-Length: 5\r\n\r\nhello");
    wait_until(f->body_bytes >= 10);
    close(fd);
    fx_wait_closed(f, 2);
    cl_assert_status(f->port, GET_HEALTH, 200);
}

// Bodies in pieces count for a part of the budget of bytes in flight, not for their length.
static void test_budget(void **state) {
    (void)state;
    struct fx f;
    fx_start(&f, &(struct gw_config){.max_inflight_bytes = 600 << 10, .max_body_bytes = 64 << 10});
    int fds[3];
    for (int i = 0; i < 3; i++) {
        fds[i] = cl_connect(f.port);
        cl_puts(fds[i], HEAD("") "Content-Length: 3000000\r\n\r\nhello");
        if (i == 2)
            expect(fds[i], 503, NULL);
        wait_until(i == 2 || f.body_bytes >= 5 * (size_t)(i + 1));
    }
    close(fds[0]);
    fx_wait_closed(&f, 1);
    cl_assert_status(f.port, HEAD("") "Content-Length: 300000\r\nExpect: 100-continue\r\n\r\n",
                     100);
    for (int i = 1; i < 3; i++)
        close(fds[i]);
    fx_stop(&f);
}

static void test_stop_within_a_body(void **state) {
    (void)state;
    struct fx f;
    fx_start(&f, NULL);
    int fd = cl_connect(f.port);
    cl_puts(fd, HEAD("") "Content-Length: 3000000\r\n\r\nhello");
    wait_until(f.body_bytes >= 5);
    fx_stop(&f);
    assert_int_equal(f.closed, 1);
    close(fd);
    assert_int_equal(mem_live_blocks(), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_whole_bodies, setup, teardown),
        cmocka_unit_test_setup_teardown(test_pause, setup, teardown),
        cmocka_unit_test_setup_teardown(test_limits, setup, teardown),
        cmocka_unit_test_setup_teardown(test_answers_before_the_end, setup, teardown),
        cmocka_unit_test_setup_teardown(test_continue, setup, teardown),
        cmocka_unit_test_setup_teardown(test_client_goes_away, setup, teardown),
        cmocka_unit_test(test_budget),
        cmocka_unit_test(test_stop_within_a_body),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

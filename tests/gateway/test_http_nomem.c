// SPDX-License-Identifier: Apache-2.0
// The Nth allocation fails, for each N, over the life of requests of every kind: the server answers
// with an error or closes the connection, keeps nothing, and serves the next request.
#include "base/mem.h"
#include "tests/gateway/http_fixture.h"
#include "tests/support/cmocka_all.h"
#include "tests/support/wait.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define GET_HEALTH "GET /health HTTP/1.1\r\nHost: a\r\n\r\n"

// Reads whatever comes until the answer is whole or the connection ends. The client's own memory is
// not the server's: it uses malloc.
static bool try_read(int fd, struct cl_response *r) {
    bool ok = cl_read(fd, false, r);
    if (!ok)
        r->status = 0;
    return ok;
}

static void check_status(const char *what, const struct cl_response *r, int status, uint64_t nth) {
    if (r->status != status && r->status != 503 && r->status != 0)
        fail_msg("%s, allocation %llu: status %d", what, (unsigned long long)nth, r->status);
    if (r->status == 503)
        assert_non_null(strstr(r->body, "\"type\":\"server_error\""));
}

static void stream(struct gw_request *r, void *arg) {
    (void)arg;
    if (!gw_stream_begin(r, 200, "text/event-stream")) {
        struct err_info info;
        err_set(&info, ERR_NOMEM, NULL, "out of memory");
        gw_reply_error(r, &info);
        return;
    }
    char piece[3000] = {0};
    for (int i = 0; i < 10; i++)
        gw_stream_write(r, piece, sizeof piece);
    gw_stream_end(r);
}

static bool one_request(const struct fx *f, const char *request, int status, uint64_t nth) {
    struct cl_response r;
    mem_fail_after(nth, false);
    int fd = cl_connect(f->port);
    cl_puts(fd, request);
    try_read(fd, &r);
    check_status(request, &r, status, nth);
    cl_free(&r);
    close(fd);
    bool failed = mem_fail_count() >= nth;
    mem_fail_after(0, false);
    return failed;
}

static void test_quick_requests(void **state) {
    (void)state;
    static const struct {
        const char *request;
        int status;
    } cases[] = {
        {GET_HEALTH, 200},
        {"GET /none HTTP/1.1\r\nHost: a\r\n\r\n", 404},
        {"GET /items/x/part?y HTTP/1.1\r\nHost: a\r\nTraceparent: "
         "00-0af7651916cd43dd8448eb211c80319c-"
         "b7ad6b7169203331-01\r\n\r\n",
         200},
        {"POST /echo HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: "
         "2\r\n\r\n{}",
         200},
        {"POST /raw HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: "
         "chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
         200},
        {"OPTIONS /echo HTTP/1.1\r\nHost: a\r\nOrigin: x\r\nAccess-Control-Request-Method: "
         "POST\r\n\r\n",
         204},
        {"GET /health HTTP/1.1\r\n\r\n", 400},
        {"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n", 200},
    };
    static const char *const origins[] = {"*"};
    struct fx f;
    fx_start(&f, &(struct gw_config){.loops = 1, .cors_origins = origins, .n_cors_origins = 1});
    cl_assert_status(f.port, GET_HEALTH, 200);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        uint64_t nth = 1;
        while (one_request(&f, cases[i].request, cases[i].status, nth))
            assert_true(++nth < 100);
        assert_true(nth > 2); // some allocations there were
    }
    for (int i = 0; i < 3; i++)
        cl_assert_status(f.port, GET_HEALTH, 200);
    fx_stop(&f);
    assert_int_equal(mem_live_blocks(), 0);
}

// Answers from another thread, streamed, beyond the output buffer's first size.
static void test_late_answers(void **state) {
    (void)state;
    struct fx f;
    fx_start(&f, NULL);
    bool failed = true;
    for (uint64_t nth = 1; failed; nth++) {
        int fd = cl_connect(f.port);
        struct cl_response r;
        mem_fail_after(nth, false);
        cl_puts(fd, "POST /later HTTP/1.1\r\nHost: a\r\n\r\n");
        for (struct wait wait = {0};
             wait_more(&wait);) { // the handler has it, or its connection was closed
            char c;
            pthread_mutex_lock(&f.mutex);
            size_t n = f.n_waiting;
            pthread_mutex_unlock(&f.mutex);
            if (n || recv(fd, &c, 1, MSG_DONTWAIT | MSG_PEEK) >= 0)
                break;
        }
        if (f.n_waiting)
            fx_on_loop(&f, true, stream, NULL);
        if (try_read(fd, &r) && r.status == 200 && !r.closed)
            assert_int_equal(r.len, 30000);
        check_status("stream", &r, 200, nth);
        cl_free(&r);
        close(fd);
        failed = mem_fail_count() >= nth;
        mem_fail_after(0, false);
        assert_true(nth < 200);
    }
    cl_assert_status(f.port, GET_HEALTH, 200);
    fx_stop(&f);
    assert_int_equal(mem_live_blocks(), 0);
}

static void test_create(void **state) {
    (void)state;
    enum err e = ERR_NOMEM;
    for (uint64_t nth = 1; e; nth++) {
        struct gw_server *s = NULL;
        struct err_info info = {0};
        struct metrics *m = metrics_create();
        struct gw_config cfg = {.host = "127.0.0.1", .loops = 2, .metrics = m};
        mem_fail_after(nth, false);
        e = gw_server_create(&cfg, &s, &info);
        mem_fail_after(0, false);
        assert_true(e == ERR_OK || e == ERR_NOMEM);
        if (!e)
            gw_server_destroy(s);
        metrics_destroy(m);
        assert_true(nth < 300);
    }
    assert_int_equal(mem_live_blocks(), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_quick_requests),
        cmocka_unit_test(test_late_answers),
        cmocka_unit_test(test_create),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

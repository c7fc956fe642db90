// SPDX-License-Identifier: Apache-2.0
// Time-outs, limits, many connections, running out of descriptors, drain and stop.
#include "base/mem.h"
#include "tests/gateway/http_fixture.h"
#include "tests/support/cmocka_all.h"
#include "tests/support/wait.h"
#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#define GET_HEALTH "GET /health HTTP/1.1\r\nHost: a\r\n\r\n"
#define POST_LATER "POST /later HTTP/1.1\r\nHost: a\r\n\r\n"

static const int64_t ms = 1000000;

static void expect_status(int fd, int status) {
    struct cl_response r;
    if (!cl_read(fd, false, &r))
        fail_msg("no answer, wanted %d", status);
    assert_int_equal(r.status, status);
    cl_free(&r);
}

static void test_head_timeout(void **state) {
    (void)state;
    struct fx f;
    fx_start(&f, &(struct gw_config){.header_timeout_ns = 1000 * ms});
    int silent = cl_connect(f.port), slow = cl_connect(f.port), second = cl_connect(f.port);
    cl_puts(second, GET_HEALTH "GET /he");
    expect_status(second, 200);
    // A byte now and then does not put the end off.
    struct cl_response r = {0};
    int i;
    for (i = 0; i < 1000; i++) {
        char c;
        cl_puts(slow, i ? "x" : "GET /");
        usleep(10000);
        if (recv(slow, &c, 1, MSG_DONTWAIT | MSG_PEEK) >= 0 || errno == ECONNRESET)
            break;
    }
    assert_in_range(i, 2, 999);
    assert_true(cl_read(slow, false, &r));
    assert_int_equal(r.status, 408);
    cl_free(&r);
    expect_status(second, 408);
    assert_true(cl_eof(second));
    assert_true(cl_eof(silent)); // said nothing, is told nothing
    close(silent);
    close(slow);
    close(second);
    fx_stop(&f);
}

static void test_body_timeout(void **state) {
    (void)state;
    struct fx f;
    fx_start(&f, &(struct gw_config){.body_timeout_ns = 3000 * ms});
    int length = cl_connect(f.port), chunked = cl_connect(f.port);
    cl_puts(length, "POST /raw HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\nhello");
    cl_puts(chunked, "POST /raw HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhel");
    expect_status(length, 408);
    assert_true(cl_eof(length));
    expect_status(chunked, 408);
    assert_true(cl_eof(chunked));
    close(length);
    close(chunked);
    // A large body that keeps coming may take longer than one time-out.
    char *piece = calloc(1, 64 << 10);
    assert_non_null(piece);
    int fd = cl_connect(f.port);
    cl_puts(fd, "POST /raw HTTP/1.1\r\nHost: a\r\nContent-Length: 327680\r\n\r\n");
    for (int i = 0; i < 5; i++) {
        usleep(700000);
        cl_send(fd, piece, 64 << 10);
    }
    expect_status(fd, 200);
    close(fd);
    free(piece);
    fx_stop(&f);
}

static void test_idle_timeout(void **state) {
    (void)state;
    struct fx f;
    fx_start(&f, &(struct gw_config){.idle_timeout_ns = 3000 * ms, .header_timeout_ns = 9000 * ms});
    int fd = cl_connect(f.port);
    for (int i = 0; i < 5; i++) { // each request starts the time anew
        cl_puts(fd, GET_HEALTH);
        expect_status(fd, 200);
        usleep(700000);
    }
    assert_true(cl_eof(fd));
    close(fd);
    fd = cl_connect(f.port); // a request that is being answered is not idle
    cl_puts(fd, POST_LATER);
    fx_wait_waiting(&f, 1);
    usleep(3200000);
    fx_answer(&f, "late");
    expect_status(fd, 200);
    close(fd);
    fx_stop(&f);
    // Longer than the time after which an idle connection gives its memory back.
    fx_start(&f, &(struct gw_config){.idle_timeout_ns = 4000 * ms});
    fd = cl_connect(f.port);
    cl_puts(fd, GET_HEALTH);
    expect_status(fd, 200);
    usleep(1100000);
    cl_puts(fd, "POST /raw HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nhi");
    expect_status(fd, 200);
    assert_true(cl_eof(fd));
    close(fd);
    fx_stop(&f);
}

static void test_inflight_bytes(void **state) {
    (void)state;
    struct fx f;
    fx_start(&f, &(struct gw_config){.max_inflight_bytes = 1000});
    int a = cl_connect(f.port), b = cl_connect(f.port);
    struct cl_response r;
    char v[32];
    cl_puts(a, "POST /raw HTTP/1.1\r\nHost: a\r\nContent-Length: 900\r\n"
               "Expect: 100-continue\r\n\r\n");
    expect_status(a, 100); // its bytes are counted
    cl_puts(a, "hello");
    cl_puts(b, "POST /raw HTTP/1.1\r\nHost: a\r\nContent-Length: 101\r\n\r\n");
    char body[900] = {0};
    cl_send(b, body, 101);
    assert_true(cl_read(b, false, &r));
    assert_int_equal(r.status, 503);
    assert_string_equal(cl_field(&r, "retry-after", v, sizeof v), "1");
    cl_free(&r);
    cl_puts(b, "POST /raw HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\n"); // exactly fits
    cl_send(b, body, 100);
    expect_status(b, 200);
    cl_puts(b, "POST /raw HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n65\r\n");
    cl_send(b, body, 101);
    expect_status(b, 503);
    assert_true(cl_eof(b));
    cl_send(a, body, 895);
    expect_status(a, 200);
    cl_puts(a, "POST /raw HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\n\r\n"); // all given back
    cl_send(a, body, 900);
    cl_send(a, body, 100);
    expect_status(a, 200);
    close(a);
    close(b);
    fx_stop(&f);
}

static void test_max_connections(void **state) {
    (void)state;
    struct fx f;
    struct gw_keys *k;
    assert_int_equal(gw_keys_create(&k), ERR_OK);
    assert_int_equal(gw_keys_add(k, "sk-x", NULL, false, NULL), ERR_OK);
    fx_start(&f, &(struct gw_config){.max_connections = 4, .keys = k});
    static const char echo[] =
        "POST /echo HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer sk-x\r\n\r\n";
    int fds[4];
    for (int i = 0; i < 4; i++) {
        fds[i] = cl_connect(f.port);
        cl_puts(fds[i], echo);
        expect_status(fds[i], 200);
    }
    int more = cl_connect(f.port);
    cl_puts(more, echo);
    expect_status(more, 503);
    assert_true(cl_eof(more));
    close(more);
    more = cl_connect(f.port); // probes are still answered
    cl_puts(more, GET_HEALTH);
    expect_status(more, 200);
    assert_true(cl_eof(more));
    close(more);
    close(fds[0]);
    for (int tries = 0, status = 0; status != 200; tries++) {
        struct cl_response r;
        cl_once(f.port, echo, &r);
        status = r.status;
        cl_free(&r);
        assert_true(tries < 500);
    }
    for (int i = 1; i < 4; i++)
        close(fds[i]);
    // Far beyond the limit connections wait in the kernel, and are served when others end.
    enum { N = 60 };
    int many[N];
    for (int i = 0; i < N; i++) {
        many[i] = cl_connect(f.port);
        cl_puts(many[i], GET_HEALTH);
    }
    for (int i = 0; i < N; i++) {
        expect_status(many[i], 200);
        close(many[i]);
    }
    fx_stop(&f);
    gw_keys_destroy(k);
}

static void test_no_descriptors(void **state) {
    (void)state;
    struct fx f;
    fx_start(&f, NULL);
    int fd = cl_connect(f.port), waiting = cl_connect(f.port);
    cl_puts(fd, GET_HEALTH);
    expect_status(fd, 200);
    cl_puts(waiting, GET_HEALTH);
    expect_status(waiting, 200);
    struct rlimit old, low;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &old), 0);
    int late = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    low = (struct rlimit){.rlim_cur = (rlim_t)late + 1, .rlim_max = old.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &low), 0);
    struct sockaddr_in a = {.sin_family = AF_INET,
                            .sin_port = htons((uint16_t)f.port),
                            .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    assert_int_equal(connect(late, (struct sockaddr *)&a, sizeof a), 0);
    cl_puts(late, GET_HEALTH);
    usleep(250000); // the server cannot accept it now; what it has goes on
    cl_puts(fd, GET_HEALTH);
    expect_status(fd, 200);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &old), 0);
    expect_status(late, 200);
    close(late);
    close(fd);
    close(waiting);
    fx_stop(&f);
}

static void test_500_connections(void **state) {
    (void)state;
    enum { N = 500 };
    struct fx f;
    static int fds[N];
    char text[128];
    fx_start(&f, &(struct gw_config){.loops = 3});
    for (int i = 0; i < N; i++) {
        fds[i] = cl_connect(f.port);
        cl_puts(fds[i], POST_LATER);
    }
    assert_int_equal(fx_wait_waiting(&f, N), N);
    assert_int_equal(gw_server_in_flight(f.server), N);
    for (int i = 0; i < N; i++) {
        snprintf(text, sizeof text,
                 "POST /raw HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\n%04d", i);
        cl_puts(fds[i], text); // ahead, while the first is waiting
    }
    for (int i = 0; i < N; i++)
        fx_answer(&f, "done");
    for (int i = 0; i < N; i++) {
        struct cl_response r;
        assert_true(cl_read(fds[i], false, &r));
        assert_string_equal(r.body, "done");
        cl_free(&r);
        assert_true(cl_read(fds[i], false, &r));
        snprintf(text, sizeof text, "%04d", i);
        assert_string_equal(r.body, text);
        cl_free(&r);
        close(fds[i]);
    }
    fx_stop(&f);
}

static void test_drain(void **state) {
    (void)state;
    struct fx f;
    fx_start(&f, &(struct gw_config){.loops = 2, .metrics_host = "127.0.0.1"});
    int idle = cl_connect(f.port), busy = cl_connect(f.port), fresh = cl_connect(f.port);
    cl_puts(idle, GET_HEALTH);
    expect_status(idle, 200);
    cl_puts(busy, POST_LATER);
    fx_wait_waiting(&f, 1);
    gw_server_stop_accepting(f.server);
    assert_true(cl_eof(idle));
    assert_true(cl_eof(fresh));
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_in a = {.sin_family = AF_INET,
                            .sin_port = htons((uint16_t)f.port),
                            .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    assert_int_equal(connect(fd, (struct sockaddr *)&a, sizeof a), -1);
    close(fd);
    cl_assert_status(f.metrics_port, "GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n", 200);
    assert_int_equal(gw_server_in_flight(f.server), 1);
    fx_answer(&f, "whole");
    struct cl_response r;
    char v[32];
    assert_true(cl_read(busy, false, &r));
    assert_string_equal(r.body, "whole");
    assert_string_equal(cl_field(&r, "connection", v, sizeof v), "close");
    cl_free(&r);
    assert_true(cl_eof(busy));
    close(idle);
    close(busy);
    close(fresh);
    fx_stop(&f);
}

static void reply_large(struct gw_request *r, void *arg) {
    gw_reply(r, 200, "text/plain", arg, 8 << 20);
}

// A drain waits for answers to be taken, not only to be made.
static void test_drain_of_a_slow_reader(void **state) {
    (void)state;
    struct fx f;
    fx_start(&f, NULL);
    char *body = calloc(1, 8 << 20);
    assert_non_null(body);
    int fd = cl_connect(f.port);
    cl_puts(fd, POST_LATER);
    fx_on_loop(&f, true, reply_large, body);
    gw_server_stop_accepting(f.server);
    usleep(50000);
    assert_int_equal(gw_server_in_flight(f.server), 1);
    size_t got = 0;
    for (ssize_t n = 1; n > 0; got += (size_t)n)
        n = recv(fd, body, 8 << 20, 0);
    assert_in_range(got, (8 << 20) + 100, (8 << 20) + 1000);
    wait_until(gw_server_in_flight(f.server) == 0);
    free(body);
    close(fd);
    fx_stop(&f);
}

static void count_up(void *arg) {
    ++*(int *)arg;
}

static void test_stop(void **state) {
    (void)state;
    struct fx f;
    int count = 0, fds[20];
    fx_start(&f, &(struct gw_config){.loops = 2});
    for (int i = 0; i < 20; i++) {
        fds[i] = cl_connect(f.port);
        cl_puts(fds[i],
                i % 2 ? POST_LATER : "POST /raw HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n");
    }
    fx_wait_waiting(&f, 10);
    struct gw_loop *loop = f.waiting[0]->loop;
    assert_true(gw_loop_post(loop, count_up, &count));
    gw_server_stop(f.server);
    assert_int_equal(count, 1);
    assert_int_equal(f.closed, 10);
    assert_int_equal(f.n_waiting, 0);
    assert_false(gw_loop_post(loop, count_up, &count));
    for (int i = 0; i < 20; i++) {
        char c;
        assert_true(recv(fds[i], &c, 1, 0) <= 0);
        close(fds[i]);
    }
    fx_stop(&f);
    assert_int_equal(count, 1);
}

static void test_metrics_port(void **state) {
    (void)state;
    struct fx f;
    fx_start(&f, &(struct gw_config){.metrics_host = "127.0.0.1"});
    cl_assert_status(f.port, "GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n", 404);
    cl_assert_status(f.metrics_port, "GET /health HTTP/1.1\r\nHost: a\r\n\r\n", 404);
    cl_assert_status(f.metrics_port, "POST /metrics HTTP/1.1\r\nHost: a\r\n\r\n", 405);
    cl_assert_status(f.metrics_port, "GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n", 200);
    fx_stop(&f);
}

static void test_addresses(void **state) {
    (void)state;
    struct fx f;
    struct err_info info = {0};
    fx_start(&f, &(struct gw_config){.host = "::"}); // both families
    cl_assert_status(f.port, GET_HEALTH, 200);
    char *log = fx_log(&f, 1);
    assert_non_null(strstr(log, "\"client_ip\":\"127.0.0.1\"")); // not ::ffff:127.0.0.1
    free(log);
    // The port is taken: a second server says so.
    struct gw_server *s = NULL;
    struct gw_config cfg = f.cfg;
    cfg.metrics = NULL;
    cfg.port = f.port;
    assert_int_equal(gw_server_create(&cfg, &s, &info), ERR_IO);
    assert_non_null(strstr(info.message, "in use"));
    fx_stop(&f);
    cfg.routes = NULL;
    cfg.n_routes = 0;
    cfg.port = 0;
    cfg.host = "no such host";
    assert_int_equal(gw_server_create(&cfg, &s, &info), ERR_INVALID);
    assert_string_equal(info.param, "host");
    cfg.host = "127.0.0.1";
    cfg.ssl_certfile = "/nonexistent";
    assert_int_equal(gw_server_create(&cfg, &s, &info), ERR_INVALID);
    cfg.ssl_keyfile = "/nonexistent";
    assert_int_equal(gw_server_create(&cfg, &s, &info), ERR_INVALID);
    assert_non_null(strstr(info.message, "/nonexistent"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_head_timeout),
        cmocka_unit_test(test_body_timeout),
        cmocka_unit_test(test_idle_timeout),
        cmocka_unit_test(test_inflight_bytes),
        cmocka_unit_test(test_max_connections),
        cmocka_unit_test(test_no_descriptors),
        cmocka_unit_test(test_500_connections),
        cmocka_unit_test(test_drain),
        cmocka_unit_test(test_stop),
        cmocka_unit_test(test_drain_of_a_slow_reader),
        cmocka_unit_test(test_metrics_port),
        cmocka_unit_test(test_addresses),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

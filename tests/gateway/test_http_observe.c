// SPDX-License-Identifier: Apache-2.0
// What operators see: the access log (read with jansson) and the metrics.
#include "base/mem.h"
#include "tests/gateway/http_fixture.h"
#include "tests/support/cmocka_all.h"
#include "tests/support/wait.h"
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static json_t *line(const char *log, size_t n) {
    while (n-- > 0)
        log = strchr(log, '\n') + 1;
    json_error_t e;
    json_t *v = json_loadb(log, strcspn(log, "\n"), JSON_REJECT_DUPLICATES, &e);
    if (!v)
        fail_msg("not JSON (%s): %s", e.text, log);
    return v;
}

static const char *text(const json_t *v, const char *key) {
    const char *s = json_string_value(json_object_get(v, key));
    return s ? s : "";
}

static void finish(struct gw_request *r, void *arg) {
    (void)arg;
    *r->access = (struct gw_access){.model = "tiny",
                                    .adapter = "support\"bot",
                                    .adapter_version = 3,
                                    .finish_reason = "stop",
                                    .prompt_tokens = 11,
                                    .cached_tokens = 0,
                                    .completion_tokens = 5,
                                    .queue_ns = 1500000,
                                    .ttft_ns = 20000000,
                                    .tpot_ms = 12.5};
    assert_true(gw_stream_begin(r, 200, "text/event-stream"));
    gw_stream_write(r, "data: secret answer\n\n", 21);
    gw_stream_end(r);
}

static void begin(struct gw_request *r, void *arg) {
    (void)arg;
    assert_true(gw_stream_begin(r, 200, "text/event-stream"));
}

#define KEY "Authorization: Bearer sk-x\r\n"

// Five requests, one line each: answered, no such route, left before the answer, left in the
// stream, not HTTP. Returns how long the first answer was; `sent`: the first request.
static size_t make_requests(struct fx *f, size_t *sent) {
    struct cl_response r;
    int fd = cl_connect(f->port);
    static const char first[] = "POST /later?prompt=secret HTTP/1.1\r\nHost: a\r\n" KEY
                                "X-Request-Id: r-1\r\nContent-Type: application/json\r\n"
                                "Traceparent: 00-0af7651916cd43dd8448eb211c80319c-"
                                "b7ad6b7169203331-01\r\nContent-Length: 10\r\n\r\n\"a secret\"";
    cl_puts(fd, first);
    fx_on_loop(f, true, finish, NULL);
    assert_true(cl_read(fd, false, &r));
    size_t answer = strlen(r.head) + strlen("15\r\n") + 21 + strlen("\r\n0\r\n\r\n");
    cl_free(&r);
    cl_puts(fd, "GET /secret HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_true(cl_read(fd, false, &r));
    cl_free(&r);
    cl_puts(fd, "POST /later HTTP/1.1\r\nHost: a\r\n" KEY "\r\n");
    fx_wait_waiting(f, 1);
    close(fd);
    fx_wait_closed(f, 1);
    fd = cl_connect(f->port);
    cl_puts(fd, "GET /stream HTTP/1.1\r\nHost: a\r\n" KEY "\r\n");
    fx_on_loop(f, false, begin, NULL);
    close(fd);
    fx_wait_closed(f, 2);
    cl_assert_status(f->port, "rubbish\r\n\r\n", 400);
    *sent = sizeof first - 1;
    return answer;
}

static void check_answered(const char *log, size_t sent, size_t answer) {
    json_t *v = line(log, 0);
    assert_int_equal(strlen(text(v, "ts")), 24);
    assert_string_equal(text(v, "level"), "info");
    assert_string_equal(text(v, "request_id"), "r-1");
    assert_string_equal(text(v, "trace_id"), "0af7651916cd43dd8448eb211c80319c");
    assert_int_equal(strlen(text(v, "tenant_id")), 16);
    assert_int_equal(strlen(text(v, "key_id")), 8);
    assert_string_equal(text(v, "client_ip"), "127.0.0.1");
    assert_string_equal(text(v, "method"), "POST");
    assert_string_equal(text(v, "route"), "/later");
    assert_int_equal(json_integer_value(json_object_get(v, "status")), 200);
    assert_true(json_is_true(json_object_get(v, "stream")));
    assert_string_equal(text(v, "model"), "tiny");
    assert_string_equal(text(v, "adapter"), "support\"bot");
    assert_int_equal(json_integer_value(json_object_get(v, "adapter_version")), 3);
    assert_string_equal(text(v, "finish_reason"), "stop");
    assert_int_equal(json_integer_value(json_object_get(v, "prompt_tokens")), 11);
    assert_int_equal(json_integer_value(json_object_get(v, "cached_tokens")), 0);
    assert_int_equal(json_integer_value(json_object_get(v, "completion_tokens")), 5);
    assert_true(json_real_value(json_object_get(v, "queue_ms")) == 1.5);
    assert_true(json_real_value(json_object_get(v, "ttft_ms")) == 20.0);
    assert_true(json_real_value(json_object_get(v, "tpot_ms")) == 12.5);
    assert_true(json_real_value(json_object_get(v, "duration_ms")) > 0);
    assert_int_equal(json_integer_value(json_object_get(v, "bytes_in")), sent);
    assert_int_equal(json_integer_value(json_object_get(v, "bytes_out")), answer);
    assert_true(json_is_false(json_object_get(v, "client_disconnected")));
    assert_string_equal(text(v, "build"), "test");
    json_decref(v);
}

static void test_access_log(void **state) {
    (void)state;
    struct fx f;
    struct gw_keys *k;
    assert_int_equal(gw_keys_create(&k), ERR_OK);
    assert_int_equal(gw_keys_add(k, "sk-x", "red", false, NULL), ERR_OK);
    fx_start(&f, &(struct gw_config){.keys = k});
    size_t sent, answer = make_requests(&f, &sent);
    char *log = fx_log(&f, 5);
    assert_null(strstr(log, "secret")); // neither prompts nor answers, nor URLs
    assert_null(strstr(log, "sk-x"));
    check_answered(log, sent, answer);

    json_t *v = line(log, 1);
    assert_string_equal(text(v, "route"), "other");
    assert_string_equal(text(v, "error_type"), "invalid_request_error");
    assert_null(json_object_get(v, "model"));
    assert_null(json_object_get(v, "prompt_tokens"));
    assert_null(json_object_get(v, "tenant_id"));
    json_decref(v);

    v = line(log, 2); // left before an answer began, and after
    assert_int_equal(json_integer_value(json_object_get(v, "status")), 499);
    assert_true(json_is_true(json_object_get(v, "client_disconnected")));
    json_decref(v);
    v = line(log, 3);
    assert_int_equal(json_integer_value(json_object_get(v, "status")), 200);
    assert_true(json_is_true(json_object_get(v, "client_disconnected")));
    json_decref(v);
    v = line(log, 4);
    assert_string_equal(text(v, "method"), "other");
    assert_int_equal(json_integer_value(json_object_get(v, "status")), 400);
    json_decref(v);
    free(log);
    fx_stop(&f);
    gw_keys_destroy(k);
}

static double sample(const struct fx *f, const char *series) {
    struct buf out;
    buf_init(&out, 0);
    metrics_expose(f->metrics, &out);
    const char *s = strstr(out.data, series);
    if (!s)
        fail_msg("no series %s", series);
    double v = atof(s + strlen(series));
    buf_fini(&out);
    return v;
}

static bool has_series(const struct fx *f, const char *series) {
    struct buf out;
    buf_init(&out, 0);
    metrics_expose(f->metrics, &out);
    buf_putc(&out, '\0');
    bool has = strstr(out.data, series) != NULL;
    buf_fini(&out);
    return has;
}

static void test_metrics(void **state) {
    (void)state;
    struct fx f;
    fx_start(&f, NULL);
    // Nothing was asked: rates have their zero, and errors no line.
    assert_true(sample(&f, "\ngraft_http_requests_total{route=\"/echo\",method=\"POST\",status="
                           "\"200\"} ") == 0);
    assert_false(has_series(&f, "status=\"415\""));
    assert_false(has_series(&f, "status=\"other\""));
    assert_false(has_series(&f, "\ngraft_http_request_duration_seconds_bucket"));
    int fd = cl_connect(f.port), later = cl_connect(f.port);
    struct cl_response r;
    for (int i = 0; i < 3; i++) {
        cl_puts(fd, i ? "GET /health HTTP/1.1\r\nHost: a\r\n\r\n"
                      : "HEAD /health HTTP/1.1\r\nHost: a\r\n\r\n");
        assert_true(cl_read(fd, i == 0, &r));
        cl_free(&r);
    }
    cl_puts(later, "POST /later HTTP/1.1\r\nHost: a\r\n\r\n");
    fx_wait_waiting(&f, 1);
    assert_true(sample(&f, "\ngraft_http_requests_in_flight ") == 1);
    assert_true(sample(&f, "\ngraft_http_connections ") == 2);
    assert_true(sample(&f, "\ngraft_http_requests_total{route=\"/health\",method=\"GET\",status="
                           "\"200\"} ") == 3);
    assert_true(sample(&f, "\ngraft_http_request_duration_seconds_count{route=\"/health\"} ") == 3);
    cl_assert_status(f.port, "GET /none HTTP/1.1\r\nHost: a\r\n\r\n", 404);
    cl_assert_status(f.port, "POST /health HTTP/1.1\r\nHost: a\r\n\r\n", 405);
    cl_assert_status(f.port, "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\n1", 415);
    static const char other[] =
        "\ngraft_http_requests_total{route=\"other\",method=\"other\",status=\"%s\"} ";
    char series[128];
    snprintf(series, sizeof series, other, "404");
    assert_true(sample(&f, series) == 1);
    snprintf(series, sizeof series, other, "405");
    assert_true(sample(&f, series) == 1);
    assert_true(sample(&f, "\ngraft_http_requests_total{route=\"/echo\",method=\"POST\",status="
                           "\"415\"} ") == 1);
    close(later);
    fx_wait_closed(&f, 1);
    wait_until(gw_server_in_flight(f.server) == 0);
    assert_true(sample(&f, "\ngraft_http_requests_in_flight ") == 0);
    close(fd);
    wait_until(sample(&f, "\ngraft_http_connections ") <= 0);
    assert_true(sample(&f, "\ngraft_http_receive_bytes_total ") > 100);
    assert_true(sample(&f, "\ngraft_http_send_bytes_total ") > 500);
    fx_stop(&f);
}

// A reader of the log that stalls costs lines, and no answers.
static void test_stalled_log(void **state) {
    (void)state;
    struct fx f;
    struct cl_response r;
    fx_start(&f, NULL);
    char ask[128];
    int fd = cl_connect(f.port);
    enum { N = 12000 };
    for (int i = 0; i < N; i++) {
        snprintf(ask, sizeof ask, "HEAD /files/%d HTTP/1.1\r\nHost: a\r\n\r\n", i);
        cl_puts(fd, ask);
        assert_true(cl_read(fd, true, &r));
        cl_free(&r);
    }
    double dropped = sample(&f, "\ngraft_http_access_log_dropped_total ");
    assert_true(dropped > 0 && dropped < N);
    // Those that were kept come, whole and in order, once somebody reads, without another request.
    size_t lines = N - (size_t)dropped;
    char *log = malloc(8 << 20);
    assert_non_null(log);
    size_t n = 0, seen = 0;
    for (struct wait wait = {0}; seen < lines;) {
        ssize_t got = read(f.log_read, log + n, 1 << 16);
        for (ssize_t i = 0; i < got; i++)
            seen += log[n + (size_t)i] == '\n';
        n += got > 0 ? (size_t)got : 0;
        if (got <= 0 && !wait_more(&wait))
            fail_msg("%zu lines came, not %zu", seen, lines);
    }
    assert_int_equal(seen, lines);
    log[n] = '\0';
    const char *at = log;
    for (size_t i = 0; i < lines; i++) {
        json_t *v = line(at, 0);
        json_decref(v);
        at = strchr(at, '\n') + 1;
    }
    assert_int_equal(at - log, n);
    free(log);
    close(fd);
    fx_stop(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_access_log),
        cmocka_unit_test(test_metrics),
        cmocka_unit_test(test_stalled_log),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

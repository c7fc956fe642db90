// SPDX-License-Identifier: Apache-2.0
// Streamed and late answers: chunks, back-pressure, clients that go away or do not read.
#include "base/mem.h"
#include "tests/gateway/http_fixture.h"
#include "tests/support/cmocka_all.h"
#include "tests/support/wait.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define GET_STREAM "GET /stream HTTP/1.1\r\nHost: a\r\n\r\n"
#define POST_LATER "POST /later HTTP/1.1\r\nHost: a\r\n\r\n"
#define GET_HEALTH "GET /health HTTP/1.1\r\nHost: a\r\n\r\n"

static const int64_t ms = 1000000;

static int setup(void **state) {
    struct fx *f = calloc(1, sizeof *f);
    fx_start(f, &(struct gw_config){.write_timeout_ns = 1500 * ms, .stream_high_bytes = 64 << 10});
    *state = f;
    return 0;
}

static int teardown(void **state) {
    fx_stop(*state);
    free(*state);
    return 0;
}

static void begin(struct gw_request *r, void *arg) {
    (void)arg;
    assert_true(gw_stream_begin(r, 200, "text/event-stream"));
}

static void write_text(struct gw_request *r, void *arg) {
    gw_stream_write(r, arg, strlen(arg));
}

static void write_three(struct gw_request *r, void *arg) {
    (void)arg;
    gw_stream_write(r, "one", 3);
    gw_stream_write(r, "", 0);
    gw_stream_write(r, "two", 3);
    gw_stream_write(r, "three", 5);
}

static void end(struct gw_request *r, void *arg) {
    (void)arg;
    gw_stream_end(r);
}

static void end_at_once(struct gw_request *r, void *arg) {
    begin(r, arg);
    write_three(r, arg);
    end(r, arg);
}

static void abort_it(struct gw_request *r, void *arg) {
    (void)arg;
    gw_stream_abort(r);
}

static void read_exactly(int fd, const char *want) {
    char got[256];
    size_t n = strlen(want);
    assert_int_equal(recv(fd, got, n, MSG_WAITALL), n);
    assert_memory_equal(got, want, n);
}

static void read_head(int fd) {
    char tail[4] = {0}, c;
    while (memcmp(tail, "\r\n\r\n", 4) != 0) {
        assert_int_equal(recv(fd, &c, 1, 0), 1);
        memmove(tail, tail + 1, 3);
        tail[3] = c;
    }
}

static void test_chunks(void **state) {
    struct fx *f = *state;
    int fd = cl_connect(f->port);
    cl_puts(fd, GET_STREAM);
    fx_on_loop(f, false, begin, NULL);
    read_head(fd); // before anything is written: the client knows that it was accepted
    fx_on_loop(f, false, write_three, NULL);
    read_exactly(fd, "b\r\nonetwothree\r\n"); // one turn, one chunk
    fx_on_loop(f, false, write_text, (void *)(uintptr_t) "0123456789abcdef");
    read_exactly(fd, "10\r\n0123456789abcdef\r\n");
    fx_on_loop(f, true, end, NULL);
    read_exactly(fd, "0\r\n\r\n");
    cl_puts(fd, GET_HEALTH); // and the connection lives on
    struct cl_response r;
    assert_true(cl_read(fd, false, &r));
    assert_int_equal(r.status, 200);
    cl_free(&r);
    close(fd);
}

static void test_stream_in_one_turn(void **state) {
    struct fx *f = *state;
    struct cl_response r;
    int fd = cl_connect(f->port);
    for (int i = 0; i < 2; i++) {
        cl_puts(fd, GET_STREAM);
        fx_on_loop(f, true, end_at_once, NULL);
        assert_true(cl_read(fd, false, &r));
        assert_true(r.chunked && !r.closed);
        assert_string_equal(r.body, "onetwothree");
        cl_free(&r);
    }
    close(fd);
    // HTTP/1.0 has no chunks: the connection's end ends the stream.
    fd = cl_connect(f->port);
    cl_puts(fd, "GET /stream HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
    fx_on_loop(f, true, end_at_once, NULL);
    assert_true(cl_read(fd, false, &r));
    assert_true(!r.chunked && r.closed);
    assert_string_equal(r.body, "onetwothree");
    cl_free(&r);
    close(fd);
    fd = cl_connect(f->port);
    cl_puts(fd, "HEAD /stream HTTP/1.1\r\nHost: a\r\n\r\n" GET_HEALTH);
    fx_on_loop(f, true, end_at_once, NULL);
    assert_true(cl_read(fd, true, &r)); // no body at all
    cl_free(&r);
    assert_true(cl_read(fd, false, &r));
    assert_string_equal(r.body, "{\"status\":\"ok\"}");
    cl_free(&r);
    close(fd);
}

static void test_abort(void **state) {
    struct fx *f = *state;
    struct cl_response r;
    int fd = cl_connect(f->port), closed = f->closed;
    cl_puts(fd, GET_STREAM);
    fx_on_loop(f, false, begin, NULL);
    fx_on_loop(f, false, write_three, NULL);
    fx_on_loop(f, true, abort_it, NULL);
    assert_true(cl_read(fd, false, &r));
    assert_true(r.closed); // cut: no last chunk
    assert_string_equal(r.body, "onetwothree");
    cl_free(&r);
    close(fd);
    assert_int_equal(f->closed, closed); // who aborts is not told
}

static void reset(int fd) {
    struct linger l = {.l_onoff = 1};
    setsockopt(fd, SOL_SOCKET, SO_LINGER, &l, sizeof l);
    close(fd);
}

// However the client leaves, and at whatever point, on_close comes, once.
static void test_client_leaves(void **state) {
    struct fx *f = *state;
    enum { CLOSE, SHUTDOWN, RESET, WAYS };
    for (int way = 0; way < WAYS; way++)
        for (int stage = 0; stage < 4; stage++) {
            int fd = cl_connect(f->port), closed = f->closed;
            // Stage 3: with another request sent ahead, so that the socket is readable anyway.
            cl_puts(fd, stage == 3 ? POST_LATER POST_LATER : stage ? GET_STREAM : POST_LATER);
            fx_wait_waiting(f, 1);
            if (stage == 1 || stage == 2)
                fx_on_loop(f, false, begin, NULL);
            if (stage == 2)
                fx_on_loop(f, false, write_three, NULL);
            if (stage == 3)
                cl_puts(fd, POST_LATER);
            if (way == SHUTDOWN)
                shutdown(fd, SHUT_WR);
            else if (way == RESET)
                reset(fd);
            else
                close(fd);
            fx_wait_closed(f, closed + 1);
            assert_int_equal(f->n_waiting, 0);
            if (way == SHUTDOWN)
                close(fd);
        }
    wait_until(gw_server_in_flight(f->server) == 0);
}

// A client that shuts its side after a request that is answered at once has its answers.
static void test_half_close_of_quick_requests(void **state) {
    const struct fx *f = *state;
    struct cl_response r;
    int fd = cl_connect(f->port);
    cl_puts(fd, GET_HEALTH GET_HEALTH);
    shutdown(fd, SHUT_WR);
    for (int i = 0; i < 2; i++) {
        assert_true(cl_read(fd, false, &r));
        assert_int_equal(r.status, 200);
        cl_free(&r);
    }
    assert_true(cl_eof(fd));
    close(fd);
}

static char block[16 << 10];

static void fill(struct gw_request *r, void *arg) {
    size_t *written = arg;
    while (!gw_stream_full(r)) {
        gw_stream_write(r, block, sizeof block);
        *written += sizeof block;
    }
}

static size_t read_body(int fd, size_t want) {
    // Counts chunk payload.
    size_t got = 0;
    char line[32];
    while (got < want) {
        size_t n = 0;
        do
            assert_int_equal(recv(fd, line + n, 1, 0), 1);
        while (line[n++] != '\n' && n < sizeof line - 1);
        line[n] = '\0';
        size_t size = strtoul(line, NULL, 16);
        char *data = malloc(size + 2);
        assert_non_null(data);
        assert_int_equal(recv(fd, data, size + 2, MSG_WAITALL), size + 2);
        for (size_t i = 0; i < size; i++)
            assert_int_equal(data[i], block[(got + i) % sizeof block]);
        assert_memory_equal(data + size, "\r\n", 2);
        free(data);
        got += size;
    }
    return got;
}

static void test_back_pressure(void **state) {
    struct fx *f = *state;
    for (size_t i = 0; i < sizeof block; i++)
        block[i] = (char)(i * 31);
    int fd = cl_connect(f->port);
    size_t written = 0, read = 0;
    cl_puts(fd, GET_STREAM);
    fx_on_loop(f, false, begin, NULL);
    read_head(fd);
    // Until the socket's buffers are full too: then a turn no longer makes room.
    for (size_t before = SIZE_MAX; before != written;) {
        before = written;
        fx_on_loop(f, false, fill, &written);
    }
    int writable = f->writable;
    read += read_body(fd, written);
    pthread_mutex_lock(&f->mutex);
    while (f->writable == writable)
        pthread_cond_wait(&f->changed, &f->mutex);
    pthread_mutex_unlock(&f->mutex);
    fx_on_loop(f, false, fill, &written);
    fx_on_loop(f, true, end, NULL);
    read += read_body(fd, written - read);
    assert_int_equal(read, written);
    read_exactly(fd, "0\r\n\r\n");
    close(fd);
}

static void fill_beyond(struct gw_request *r, void *arg) {
    (void)arg;
    for (int i = 0; i < 1000; i++)
        gw_stream_write(r, block, sizeof block);
}

static void end_from_callback(struct gw_request *r) {
    struct fx *f = r->handler;
    f->n_waiting = 0;
    f->writable++;
    gw_stream_end(r);
}

static void abort_from_callback(struct gw_request *r) {
    struct fx *f = r->handler;
    f->n_waiting = 0;
    f->writable++;
    gw_stream_abort(r);
}

static void set_callback(struct gw_request *r, void *arg) {
    r->on_writable = arg ? end_from_callback : abort_from_callback;
}

// A handler may end its request in on_writable, in either way.
static void test_end_in_on_writable(void **state) {
    struct fx *f = *state;
    for (int way = 0; way < 2; way++) {
        int fd = cl_connect(f->port);
        size_t written = 0;
        cl_puts(fd, GET_STREAM);
        fx_on_loop(f, false, begin, NULL);
        read_head(fd);
        for (size_t before = SIZE_MAX; before != written;) {
            before = written;
            fx_on_loop(f, false, fill, &written);
        }
        fx_on_loop(f, false, set_callback, way ? f : NULL);
        (void)read_body(fd, written);
        if (way)
            read_exactly(fd, "0\r\n\r\n");
        else
            assert_true(cl_eof(fd));
        close(fd);
    }
}

// A handler that does not look at gw_stream_full loses its connection, not the server its memory.
static void test_hard_limit(void **state) {
    (void)state;
    struct fx f;
    fx_start(&f, NULL); // with a write time-out far away
    int fd = cl_connect(f.port);
    cl_puts(fd, GET_STREAM);
    fx_on_loop(&f, false, begin, NULL);
    fx_on_loop(&f, false, fill_beyond, NULL);
    fx_wait_closed(&f, 1);
    close(fd);
    fx_stop(&f);
}

enum { AHEAD = 500, AHEAD_BODY = 60000 };

static void *send_ahead(void *arg) {
    const int *fd = arg;
    char *text = calloc(1, AHEAD_BODY + 100);
    assert_non_null(text);
    int n =
        sprintf(text, "POST /raw HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n", AHEAD_BODY);
    for (int i = 0; i < AHEAD && cl_send(*fd, text, (size_t)n + AHEAD_BODY); i++)
        ;
    free(text);
    return NULL;
}

// A client that sends requests ahead and reads no answers is not served without end.
static void test_ahead_without_reading(void **state) {
    (void)state;
    struct fx f;
    fx_start(&f, NULL);
    int fd = cl_connect(f.port), small = 4096, before = -1;
    setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
    pthread_t sender;
    assert_int_equal(pthread_create(&sender, NULL, send_ahead, &fd), 0);
    while (f.handled == 0 || f.handled != before) { // until nothing moves any more
        before = f.handled;
        usleep(200000);
    }
    assert_in_range(f.handled, 1, AHEAD / 2);
    shutdown(fd, SHUT_RDWR);
    pthread_join(sender, NULL);
    close(fd);
    fx_stop(&f);
}

static void test_client_does_not_read(void **state) {
    struct fx *f = *state;
    int fd = cl_connect(f->port), closed = f->closed;
    size_t written = 0;
    cl_puts(fd, GET_STREAM);
    fx_on_loop(f, false, begin, NULL);
    for (size_t before = SIZE_MAX; before != written;) {
        before = written;
        fx_on_loop(f, false, fill, &written);
    }
    fx_wait_closed(f, closed + 1); // the write time-out
    close(fd);
}

static void drop(struct gw_request *r, void *arg) {
    (void)arg;
    r->on_close = NULL;
}

// Without on_close a handler's late answer goes nowhere, whatever it does.
static void test_answer_after_the_end(void **state) {
    struct fx *f = *state;
    static void (*const answers[])(struct gw_request *, void *) = {end_at_once, abort_it};
    for (size_t i = 0; i < 2; i++) {
        int fd = cl_connect(f->port);
        cl_puts(fd, GET_STREAM);
        fx_on_loop(f, false, drop, NULL);
        reset(fd);
        wait_until(gw_server_in_flight(f->server) == 0);
        fx_on_loop(f, true, answers[i], NULL);
    }
    int fd = cl_connect(f->port);
    cl_puts(fd, POST_LATER);
    fx_on_loop(f, false, drop, NULL);
    reset(fd);
    wait_until(gw_server_in_flight(f->server) == 0);
    fx_answer(f, "nobody hears this");
}

struct fired {
    struct fx *f;
    struct gw_timer *other;
    int count;
};

static void on_timer(void *arg) {
    struct fired *t = arg;
    pthread_mutex_lock(&t->f->mutex);
    t->count++;
    pthread_cond_broadcast(&t->f->changed);
    pthread_mutex_unlock(&t->f->mutex);
}

static void cancel_other(void *arg) {
    struct fired *t = arg;
    gw_loop_timer_cancel(t->other);
    on_timer(arg);
}

static void start_timers(struct gw_request *r, void *arg) {
    struct fired *t = arg;
    assert_non_null(gw_loop_timer(r->loop, 20 * ms, cancel_other, &t[0]));
    t[0].other = gw_loop_timer(r->loop, 40 * ms, on_timer, &t[1]);
    assert_non_null(t[0].other);
    assert_non_null(gw_loop_timer(r->loop, 60 * ms, on_timer, &t[2]));
    gw_loop_timer_cancel(NULL);
    (void)gw_loop_timer(r->loop, 3600000 * ms, on_timer, &t[1]); // dropped with the loop
    gw_reply(r, 200, NULL, NULL, 0);
}

static void test_timers(void **state) {
    struct fx *f = *state;
    struct fired t[3] = {{f, NULL, 0}, {f, NULL, 0}, {f, NULL, 0}};
    int fd = cl_connect(f->port);
    cl_puts(fd, POST_LATER);
    fx_on_loop(f, true, start_timers, t);
    pthread_mutex_lock(&f->mutex);
    while (!t[2].count)
        pthread_cond_wait(&f->changed, &f->mutex);
    pthread_mutex_unlock(&f->mutex);
    assert_int_equal(t[0].count, 1);
    assert_int_equal(t[1].count, 0); // cancelled
    close(fd);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_chunks),
        cmocka_unit_test(test_stream_in_one_turn),
        cmocka_unit_test(test_abort),
        cmocka_unit_test(test_client_leaves),
        cmocka_unit_test(test_half_close_of_quick_requests),
        cmocka_unit_test(test_back_pressure),
        cmocka_unit_test(test_end_in_on_writable),
        cmocka_unit_test(test_hard_limit),
        cmocka_unit_test(test_ahead_without_reading),
        cmocka_unit_test(test_client_does_not_read),
        cmocka_unit_test(test_answer_after_the_end),
        cmocka_unit_test(test_timers),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}

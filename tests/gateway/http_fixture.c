// SPDX-License-Identifier: Apache-2.0
#include "tests/gateway/http_fixture.h"
#include "tests/support/cmocka_all.h"
#include "tests/support/wait.h"
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

static void health(struct gw_request *r, void *arg) {
    (void)arg;
    gw_reply(r, 200, "application/json", "{\"status\":\"ok\"}", 15);
}

static void count(struct fx *f) {
    pthread_mutex_lock(&f->mutex);
    f->handled++;
    pthread_mutex_unlock(&f->mutex);
}

static void echo(struct gw_request *r, void *arg) {
    count(arg);
    gw_reply(r, 200, "application/octet-stream", r->body, r->body_len);
}

static void params(struct gw_request *r, void *arg) {
    (void)arg;
    char text[1024];
    int n = snprintf(text, sizeof text, "%s|%s|%s|%s", r->path, r->query,
                     r->params[0] ? r->params[0] : "", r->params[1] ? r->params[1] : "");
    gw_reply(r, 200, "text/plain", text, (size_t)n);
}

static void who(struct gw_request *r, void *arg) {
    (void)arg;
    char text[64];
    int n = snprintf(text, sizeof text, "%llu %d", (unsigned long long)r->who.tenant, r->who.admin);
    gw_reply(r, 200, "text/plain", text, (size_t)n);
}

static void expose(struct gw_request *r, void *arg) {
    struct fx *f = arg;
    struct buf out;
    buf_init(&out, 0);
    metrics_expose(f->metrics, &out);
    gw_reply(r, 200, "text/plain; version=0.0.4", out.data, out.len);
    buf_fini(&out);
}

static void forget(struct fx *f, const struct gw_request *r) {
    for (size_t i = 0; i < f->n_waiting; i++)
        if (f->waiting[i] == r) {
            memmove(&f->waiting[i], &f->waiting[i + 1],
                    (--f->n_waiting - i) * sizeof f->waiting[0]);
            return;
        }
}

static void on_close(struct gw_request *r) {
    struct fx *f = r->handler;
    pthread_mutex_lock(&f->mutex);
    forget(f, r);
    f->closed++;
    pthread_cond_broadcast(&f->changed);
    pthread_mutex_unlock(&f->mutex);
}

static void on_writable(struct gw_request *r) {
    struct fx *f = r->handler;
    pthread_mutex_lock(&f->mutex);
    f->writable++;
    pthread_cond_broadcast(&f->changed);
    pthread_mutex_unlock(&f->mutex);
}

static void later(struct gw_request *r, void *arg) {
    struct fx *f = arg;
    r->handler = f;
    r->on_close = on_close;
    r->on_writable = on_writable;
    r->access->model = "tiny";
    r->access->prompt_tokens = 7;
    pthread_mutex_lock(&f->mutex);
    f->handled++;
    f->waiting[f->n_waiting++] = r;
    pthread_cond_broadcast(&f->changed);
    pthread_mutex_unlock(&f->mutex);
}

// Counts its body as it comes. ?pause: takes it piece by piece, with a rest after each; ?refuse:
// answers at once; ?stop: answers after the first piece; ?keep: never answers.
struct pieces {
    struct fx *f;
    size_t n;
    uint32_t sum;
    bool ended, paused;
};

static void pieces_answer(struct gw_request *r) {
    const struct pieces *p = r->handler;
    char text[64];
    int n = snprintf(text, sizeof text, "%zu %u", p->n, p->sum);
    if (!strstr(r->query, "keep"))
        gw_reply(r, 200, "text/plain", text, (size_t)n);
}

static void pieces_rested(void *arg) {
    struct gw_request *r = arg;
    struct pieces *p = r->handler;
    p->paused = false;
    if (p->ended)
        pieces_answer(r);
    else
        gw_body_resume(r);
}

static void pieces_body(struct gw_request *r, const char *s, size_t n) {
    struct pieces *p = r->handler;
    assert_false(p->paused);
    p->n += n;
    p->f->body_bytes += n;
    if (n > p->f->largest_piece)
        p->f->largest_piece = n;
    for (size_t i = 0; i < n; i++)
        p->sum = p->sum * 31 + (unsigned char)s[i];
    if (strstr(r->query, "stop")) {
        gw_reply(r, 400, "text/plain", "stop", 4);
    } else if (strstr(r->query, "pause")) {
        p->paused = true;
        gw_body_pause(r);
        assert_non_null(gw_loop_timer(r->loop, 2000000, pieces_rested, r));
    } else if (strstr(r->query, "hold")) {
        gw_body_pause(r);
    }
}

static void pieces_end(struct gw_request *r) {
    struct pieces *p = r->handler;
    p->ended = true;
    if (!p->paused)
        pieces_answer(r);
}

static void pieces_close(struct gw_request *r) {
    struct pieces *p = r->handler;
    pthread_mutex_lock(&p->f->mutex);
    p->f->closed++;
    pthread_cond_broadcast(&p->f->changed);
    pthread_mutex_unlock(&p->f->mutex);
}

static void pieces(struct gw_request *r, void *arg) {
    count(arg);
    struct pieces *p = arena_zalloc(&r->arena, sizeof *p);
    if (strstr(r->query, "refuse") || !p) {
        gw_reply(r, p ? 403 : 503, "application/json", "{\"type\":\"server_error\"}", 23);
        return;
    }
    p->f = arg;
    r->handler = p;
    r->on_close = pieces_close;
    r->on_body = pieces_body;
    r->on_body_end = pieces_end;
}

void fx_start(struct fx *f, const struct gw_config *cfg) {
    *f = (struct fx){.mutex = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};
    if (cfg)
        f->cfg = *cfg;
    f->metrics = metrics_create();
    assert_non_null(f->metrics);
    enum gw_auth key = f->cfg.keys ? GW_AUTH_KEY : GW_AUTH_NONE;
    const struct gw_route table[] = {
        {.methods = GW_GET, .pattern = "/health", .handle = health},
        {.methods = GW_POST, .pattern = "/echo", .auth = key, .json_body = true, .handle = echo},
        {.methods = GW_POST, .pattern = "/raw", .handle = echo},
        {.methods = GW_POST,
         .pattern = "/pieces",
         .auth = key,
         .handle = pieces,
         .body_pieces = true,
         .max_body_bytes = 4 << 20},
        {.methods = GW_GET, .pattern = "/items/{id}/part", .handle = params},
        {.methods = GW_GET, .pattern = "/items/fixed/part", .handle = params},
        {.methods = GW_GET | GW_DELETE, .pattern = "/files/{path*}", .handle = params},
        {.methods = GW_POST, .pattern = "/later", .auth = key, .json_body = true, .handle = later},
        {.methods = GW_GET | GW_POST, .pattern = "/stream", .auth = key, .handle = later},
        {.methods = GW_GET, .pattern = "/admin", .auth = GW_AUTH_ADMIN, .handle = who},
        {.methods = GW_GET, .pattern = "/metrics", .handle = expose},
    };
    struct gw_route *routes = malloc(sizeof table);
    assert_non_null(routes);
    memcpy(routes, table, sizeof table);
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        routes[i].arg = f;
    int pipefd[2];
    assert_int_equal(pipe2(pipefd, O_CLOEXEC), 0);
    (void)fcntl(pipefd[0], F_SETPIPE_SZ, 1 << 20);
    (void)fcntl(pipefd[0], F_SETFL, O_NONBLOCK);
    f->log_read = pipefd[0];
    log_init(&f->access_log, pipefd[1], LOG_INFO, true, &clock_system);
    f->cfg.host = f->cfg.host ? f->cfg.host : "127.0.0.1";
    f->cfg.routes = routes;
    f->cfg.n_routes = sizeof table / sizeof *table;
    f->cfg.metrics = f->metrics;
    f->cfg.access_log = &f->access_log;
    f->cfg.build = "test";
    struct err_info info = {0};
    if (gw_server_create(&f->cfg, &f->server, &info) || gw_server_start(f->server, &info))
        fail_msg("%s", info.message);
    f->port = gw_server_port(f->server);
    f->metrics_port = gw_server_metrics_port(f->server);
}

void fx_stop(struct fx *f) {
    gw_server_stop(f->server);
    assert_int_equal(gw_server_in_flight(f->server), 0);
    gw_server_destroy(f->server);
    metrics_destroy(f->metrics);
    free((void *)(uintptr_t)f->cfg.routes);
    close(f->access_log.fd);
    close(f->log_read);
}

static void wait_changed(struct fx *f) {
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += WAIT_MOST_S;
    if (pthread_cond_timedwait(&f->changed, &f->mutex, &until) != 0)
        fail_msg("nothing happened for %d s", WAIT_MOST_S);
}

size_t fx_wait_waiting(struct fx *f, size_t n) {
    pthread_mutex_lock(&f->mutex);
    while (f->n_waiting < n)
        wait_changed(f);
    size_t got = f->n_waiting;
    pthread_mutex_unlock(&f->mutex);
    return got;
}

void fx_wait_closed(struct fx *f, int n) {
    pthread_mutex_lock(&f->mutex);
    while (f->closed < n)
        wait_changed(f);
    pthread_mutex_unlock(&f->mutex);
}

struct call {
    struct fx *f;
    struct gw_request *r;
    bool take, done;
    void (*fn)(struct gw_request *r, void *arg);
    void *arg;
};

static void run_call(void *arg) {
    struct call *c = arg;
    struct fx *f = c->f;
    pthread_mutex_lock(&f->mutex);
    bool there = false;
    for (size_t i = 0; i < f->n_waiting; i++)
        there = there || f->waiting[i] == c->r;
    if (there && c->take)
        forget(f, c->r);
    pthread_mutex_unlock(&f->mutex);
    if (there)
        c->fn(c->r, c->arg);
    pthread_mutex_lock(&f->mutex);
    c->done = true;
    pthread_cond_broadcast(&f->changed);
    pthread_mutex_unlock(&f->mutex);
}

void fx_on_loop(struct fx *f, bool take, void (*fn)(struct gw_request *r, void *arg), void *arg) {
    fx_wait_waiting(f, 1);
    pthread_mutex_lock(&f->mutex);
    struct call c = {f, f->waiting[0], take, false, fn, arg};
    pthread_mutex_unlock(&f->mutex);
    struct gw_loop *loop = c.r->loop;
    while (!gw_loop_post(loop, run_call, &c)) // out of memory, in tests of just that
        nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
    pthread_mutex_lock(&f->mutex);
    while (!c.done)
        wait_changed(f);
    pthread_mutex_unlock(&f->mutex);
}

static void reply_text(struct gw_request *r, void *arg) {
    gw_reply(r, 200, "text/plain", arg, strlen(arg));
}

void fx_answer(struct fx *f, const char *body) {
    fx_on_loop(f, true, reply_text, (void *)(uintptr_t)body);
}

char *fx_log(struct fx *f, size_t lines) {
    size_t n = 0, cap = 1 << 20, seen = 0;
    char *text = malloc(cap);
    assert_non_null(text);
    for (struct wait wait = {0}; seen < lines;) {
        ssize_t got = read(f->log_read, text + n, cap - n - 1);
        if (got <= 0) {
            if (!wait_more(&wait))
                fail_msg("the access log has %zu lines, not %zu", seen, lines);
            continue;
        }
        for (ssize_t i = 0; i < got; i++)
            seen += text[n + (size_t)i] == '\n';
        n += (size_t)got;
    }
    text[n] = '\0';
    return text;
}

int cl_connect(int port) {
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    struct sockaddr_in a = {.sin_family = AF_INET,
                            .sin_port = htons((uint16_t)port),
                            .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    assert_int_equal(connect(fd, (struct sockaddr *)&a, sizeof a), 0);
    struct timeval tv = {.tv_sec = WAIT_MOST_S};
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &tv, sizeof tv);
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &tv, sizeof tv);
    return fd;
}

bool cl_send(int fd, const void *p, size_t n) {
    const char *s = p;
    while (n) {
        ssize_t put = send(fd, s, n, MSG_NOSIGNAL);
        if (put <= 0)
            return false; // what it said may still be read
        s += put;
        n -= (size_t)put;
    }
    return true;
}

void cl_puts(int fd, const char *s) {
    cl_send(fd, s, strlen(s));
}

static bool read_byte(int fd, char *c) {
    ssize_t n = recv(fd, c, 1, 0);
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
        fail_msg("no answer within 20 s");
    return n == 1;
}

static void add(struct cl_response *r, char c) {
    if ((r->len & (r->len + 1)) == 0) {
        r->body = realloc(r->body, 2 * r->len + 2);
        assert_non_null(r->body);
    }
    r->body[r->len++] = c;
    r->body[r->len] = '\0';
}

static bool read_line(int fd, char *line, size_t cap) {
    size_t n = 0;
    while (n < cap - 1 && read_byte(fd, &line[n]))
        if (line[n++] == '\n')
            break;
    line[n] = '\0';
    return n >= 2 && line[n - 2] == '\r' && line[n - 1] == '\n';
}

static void read_chunks(int fd, struct cl_response *r) {
    char line[64], c;
    for (;;) {
        if (!read_line(fd, line, sizeof line)) {
            r->closed = true;
            return;
        }
        char *end;
        unsigned long n = strtoul(line, &end, 16);
        assert_true(end > line && *end == '\r');
        for (unsigned long i = 0; i < n; i++) {
            if (!read_byte(fd, &c)) {
                r->closed = true;
                return;
            }
            add(r, c);
        }
        if (!read_line(fd, line, sizeof line)) {
            r->closed = true;
            return;
        }
        assert_string_equal(line, "\r\n");
        if (n == 0)
            return;
    }
}

bool cl_read(int fd, bool head_request, struct cl_response *r) {
    *r = (struct cl_response){0};
    r->body = calloc(1, 1);
    size_t n = 0;
    while (n < sizeof r->head - 1 && read_byte(fd, &r->head[n]))
        if (++n >= 4 && memcmp(r->head + n - 4, "\r\n\r\n", 4) == 0)
            break;
    r->head[n] = '\0';
    if (n < 16)
        return false;
    assert_true(strncmp(r->head, "HTTP/1.1 ", 9) == 0);
    r->status = atoi(r->head + 9);
    char value[64], c;
    if (head_request || r->status == 204 || r->status == 100)
        return true;
    if (cl_field(r, "transfer-encoding", value, sizeof value)) {
        r->chunked = true;
        read_chunks(fd, r);
    } else if (cl_field(r, "content-length", value, sizeof value)) {
        for (long left = atol(value); left > 0; left--) {
            if (!read_byte(fd, &c)) {
                r->closed = true;
                break;
            }
            add(r, c);
        }
    } else {
        while (read_byte(fd, &c))
            add(r, c);
        r->closed = true;
    }
    return true;
}

void cl_free(struct cl_response *r) {
    free(r->body);
    r->body = NULL;
}

const char *cl_field(const struct cl_response *r, const char *name, char *out, size_t cap) {
    size_t n = strlen(name);
    for (const char *s = strstr(r->head, "\r\n"); s && s[2] != '\r'; s = strstr(s + 2, "\r\n")) {
        if (strncasecmp(s + 2, name, n) != 0 || s[2 + n] != ':')
            continue;
        const char *v = s + 3 + n + strspn(s + 3 + n, " ");
        snprintf(out, cap, "%.*s", (int)strcspn(v, "\r"), v);
        return out;
    }
    return NULL;
}

bool cl_eof(int fd) {
    char c;
    return !read_byte(fd, &c);
}

void cl_wait_text(int fd, const char *text) {
    static char seen[64 << 10];
    for (struct wait wait = {0}; wait_more(&wait);) {
        ssize_t n = recv(fd, seen, sizeof seen, MSG_PEEK | MSG_DONTWAIT);
        if (n > 0 && memmem(seen, (size_t)n, text, strlen(text)))
            return;
    }
    fail_msg("'%s' never came", text);
}

void cl_once(int port, const char *request, struct cl_response *out) {
    int fd = cl_connect(port);
    cl_puts(fd, request);
    if (!cl_read(fd, strncmp(request, "HEAD ", 5) == 0, out))
        fail_msg("no answer to: %s", request);
    close(fd);
}

void cl_assert_status(int port, const char *request, int status) {
    struct cl_response r;
    cl_once(port, request, &r);
    if (r.status != status)
        fail_msg("status %d, not %d, for: %s", r.status, status, request);
    cl_free(&r);
}

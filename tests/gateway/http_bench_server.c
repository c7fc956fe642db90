// SPDX-License-Identifier: Apache-2.0
// A server for benchmarks of the HTTP layer alone: /health answers at once, POST /echo answers with
// its body, /stream sends events until 1,000 are out. Prints its port; ends with the end of stdin.
// Usage: http_bench_server [loops] [access log file] [port]
#include "gateway/http.h"
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static void health(struct gw_request *r, void *arg) {
    (void)arg;
    static const char body[] = "{\"status\":\"ok\"}";
    gw_reply(r, 200, "application/json", body, sizeof body - 1);
}

static void echo(struct gw_request *r, void *arg) {
    (void)arg;
    gw_reply(r, 200, "application/json", r->body, r->body_len);
}

static void stream(struct gw_request *r, void *arg) {
    (void)arg;
    static const char event[] = "data: {\"choices\":[{\"delta\":{\"content\":\"word\"}}]}\n\n";
    if (!gw_stream_begin(r, 200, "text/event-stream"))
        return;
    for (int i = 0; i < 1000; i++)
        gw_stream_write(r, event, sizeof event - 1);
    gw_stream_end(r);
}

static void expose(struct gw_request *r, void *arg) {
    struct buf out;
    buf_init(&out, 0);
    metrics_expose(arg, &out);
    gw_reply(r, 200, "text/plain; version=0.0.4", out.data, out.len);
    buf_fini(&out);
}

int main(int argc, char **argv) {
    struct log log, access;
    log_init(&log, STDERR_FILENO, LOG_INFO, false, &clock_system);
    int fd = argc > 2 ? open(argv[2], O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644) : -1;
    log_init(&access, fd, LOG_INFO, true, &clock_system);
    struct metrics *metrics = metrics_create();
    const struct gw_route routes[] = {
        {.methods = GW_GET, .pattern = "/health", .handle = health},
        {.methods = GW_POST, .pattern = "/echo", .json_body = true, .handle = echo},
        {.methods = GW_GET, .pattern = "/stream", .handle = stream},
        {.methods = GW_GET, .pattern = "/metrics", .handle = expose, .arg = metrics},
    };
    const struct gw_config cfg = {
        .host = "127.0.0.1",
        .port = argc > 3 ? atoi(argv[3]) : 0,
        .loops = argc > 1 ? atoi(argv[1]) : 1,
        .routes = routes,
        .n_routes = sizeof routes / sizeof *routes,
        .log = &log,
        .access_log = &access,
        .metrics = metrics,
        .build = GRAFT_VERSION,
    };
    struct gw_server *s = NULL;
    struct err_info info = {0};
    if (gw_server_create(&cfg, &s, &info) || gw_server_start(s, &info)) {
        fprintf(stderr, "%s\n", info.message);
        return 1;
    }
    printf("%d\n", gw_server_port(s));
    fflush(stdout);
    char c;
    while (read(STDIN_FILENO, &c, 1) > 0)
        ;
    gw_server_stop(s);
    gw_server_destroy(s);
    metrics_destroy(metrics);
    return 0;
}

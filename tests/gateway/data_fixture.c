// SPDX-License-Identifier: Apache-2.0
#include "tests/gateway/data_fixture.h"
#include "tests/support/assert_ok.h"
#include "tests/support/temp_folder.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void open_all(struct df *d) {
    struct err_info info = {0};
    const struct ft_home_config home = {
        .path = d->folder, .clock = &d->clock.clock, .max_file_bytes = d->api.max_file_bytes};
    assert_ok(ft_home_open(&d->home, &home, &info), &info);
    assert_int_equal(io_pool_create(2, 64, &d->api.io), ERR_OK);
    d->api.home = &d->home;
    d->metrics = metrics_create();
    assert_non_null(d->metrics);
    const struct gw_config cfg = {.host = "127.0.0.1",
                                  .loops = 1,
                                  .max_body_bytes = 64 << 10,
                                  .routes = d->routes,
                                  .n_routes = api_data_routes(&d->api, d->routes, 64),
                                  .keys = d->keys,
                                  .metrics = d->metrics};
    assert_true(cfg.n_routes > 0);
    assert_ok(gw_server_create(&cfg, &d->server, &info), &info);
    assert_ok(gw_server_start(d->server, &info), &info);
    d->port = gw_server_port(d->server);
}

void df_start(struct df *d, uint64_t max_file_bytes, bool keys) {
    struct err_info info = {0};
    *d = (struct df){0};
    temp_folder(d->folder, "data");
    clock_manual_init(&d->clock, 0, 1700000000LL * 1000000000);
    d->api.clock = &d->clock.clock;
    d->api.max_file_bytes = max_file_bytes;
    if (keys) {
        assert_ok(gw_keys_create(&d->keys), &info);
        assert_ok(gw_keys_add(d->keys, "key-of-one", "one", true, &info), &info);
        assert_ok(gw_keys_add(d->keys, "key-of-two", "two", true, &info), &info);
    }
    d->api.keys = d->keys;
    open_all(d);
}

static void close_all(struct df *d) {
    gw_server_stop(d->server);
    io_pool_destroy(d->api.io);
    ft_home_close(&d->home);
    gw_server_destroy(d->server);
    metrics_destroy(d->metrics);
}

void df_stop(struct df *d) {
    close_all(d);
    gw_keys_destroy(d->keys);
    d->keys = NULL;
}

void df_restart(struct df *d) {
    close_all(d);
    open_all(d);
}

void df_remove(struct df *d) {
    temp_remove(d->folder);
}

void df_ask(const struct df *d, const char *method, const char *target, const char *fields,
            const char *body, size_t len, struct cl_response *out) {
    char head[1024];
    int n =
        snprintf(head, sizeof head, "%s %s HTTP/1.1\r\nHost: a\r\n%sContent-Length: %zu\r\n\r\n",
                 method, target, fields, len);
    assert_true(n > 0 && (size_t)n < sizeof head);
    int fd = cl_connect(d->port);
    cl_send(fd, head, (size_t)n);
    cl_send(fd, body, len);
    if (!cl_read(fd, !strcmp(method, "HEAD"), out))
        out->status = 0;
    close(fd);
}

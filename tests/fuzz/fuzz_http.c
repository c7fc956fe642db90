// SPDX-License-Identifier: Apache-2.0
// Bytes of a connection into the parser, the target rules and the router, without sockets. The same
// bytes are read twice, cut at different places: both readings must agree on every message, which
// is what makes a difference between two readers of one connection (request smuggling) show up.
// Input: a byte that seeds the cuts, then the connection's bytes.
#include "base/mem.h"
#include "gateway/http_parse.h"
#include "gateway/router.h"
#include "tests/fuzz/fuzz.h"
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

static void handle(struct gw_request *r, void *arg) {
    (void)r;
    (void)arg;
}

static const struct gw_route routes[] = {
    {.methods = GW_GET, .pattern = "/health", .handle = handle},
    {.methods = GW_GET, .pattern = "/v1/models", .handle = handle},
    {.methods = GW_GET | GW_DELETE, .pattern = "/v1/models/{id*}", .handle = handle},
    {.methods = GW_POST, .pattern = "/v1/jobs/{id}/cancel", .handle = handle},
    {.methods = GW_POST, .pattern = "/v1/completions", .handle = handle},
};

enum { MAX_MESSAGES = 64 };

struct message {
    unsigned method;
    size_t bytes, body_len, n_headers;
    uint64_t hash; // of target, fields and body
    int route;
};

struct reading {
    struct message messages[MAX_MESSAGES];
    size_t n;
    enum err end; // why it ended; ERR_OK: the input did
};

static uint64_t add(uint64_t h, const void *p, size_t n) {
    const unsigned char *s = p;
    for (size_t i = 0; i < n; i++)
        h = (h ^ s[i]) * 0x100000001b3u;
    return (h ^ n) * 0x100000001b3u;
}

static void require(int ok) {
    if (!ok)
        abort();
}

static void check_path(const char *path) {
    require(path[0] == '/' || strcmp(path, "*") == 0);
    require(strstr(path, "/../") == NULL && strstr(path, "/./") == NULL);
    for (const char *s = path; *s; s++)
        require((unsigned char)*s >= ' ' && *s != 0x7f);
}

static void take(const struct gw_parse *p, struct reading *out) {
    struct message *m = &out->messages[out->n++];
    *m = (struct message){.method = p->method,
                          .bytes = p->bytes,
                          .body_len = p->body.len,
                          .n_headers = p->n_headers,
                          .route = -1};
    uint64_t h = add(1, p->target, strlen(p->target));
    for (size_t i = 0; i < p->n_headers; i++) {
        h = add(h, p->headers[i].name, strlen(p->headers[i].name));
        h = add(h, p->headers[i].value, strlen(p->headers[i].value));
    }
    m->hash = add(h, p->body.data, p->body.len);
    require(p->chunked || p->body.len == p->content_length);
    require(!(p->chunked && p->content_length_text));
    require(p->host || p->http10);
    struct arena a;
    struct gw_target t;
    struct gw_match match;
    struct gw_router router;
    struct err_info info;
    arena_init(&a, 0);
    require(gw_router_init(&router, routes, sizeof routes / sizeof *routes, &info) == ERR_OK);
    if (gw_target_parse(&a, p->method, p->target, p->host, &t, &info) == ERR_OK) {
        check_path(t.path);
        require(gw_router_match(&router, &a, p->method, t.path, &match));
        m->route = match.route ? (int)(match.route - routes) : match.allowed ? -2 : -1;
    }
    arena_fini(&a);
}

static void read_all(const uint8_t *data, size_t size, uint32_t seed, struct reading *out) {
    const struct gw_parse_limits limits = {1024, 2048};
    struct gw_parse p;
    struct err_info info = {0};
    *out = (struct reading){0};
    gw_parse_init(&p, &limits);
    size_t at = 0;
    while (at < size && out->n < MAX_MESSAGES) {
        size_t piece = fuzz_cut(&seed, size - at);
        char *copy = malloc(piece); // of its own size, so that reading beyond it is seen
        require(copy != NULL);
        memcpy(copy, data + at, piece);
        size_t done = 0, used;
        enum gw_parse_event e;
        do {
            e = gw_parse_feed(&p, copy + done, piece - done, &used, &info);
            done += used;
            require(done <= piece);
            if (e == GW_PARSE_DONE) {
                take(&p, out);
                gw_parse_next(&p);
            }
        } while (e == GW_PARSE_HEAD ||
                 (e == GW_PARSE_DONE && done < piece && out->n < MAX_MESSAGES));
        free(copy);
        at += done;
        if (e == GW_PARSE_BAD) {
            require(info.code != ERR_OK && info.message[0]);
            out->end = info.code;
            break;
        }
    }
    gw_parse_fini(&p);
    require(mem_live_blocks() == 0);
}

static int same(const struct message *a, const struct message *b) {
    return a->method == b->method && a->bytes == b->bytes && a->body_len == b->body_len &&
           a->n_headers == b->n_headers && a->hash == b->hash && a->route == b->route;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size < 1)
        return 0;
    struct reading whole, cut;
    read_all(data + 1, size - 1, 0, &whole);
    read_all(data + 1, size - 1, data[0] + 1u, &cut);
    require(whole.n == cut.n);
    for (size_t i = 0; i < whole.n; i++)
        require(same(&whole.messages[i], &cut.messages[i]));
    // Of two faults in one message, the cut decides which is met first.
    require((whole.end == ERR_OK) == (cut.end == ERR_OK));
    return 0;
}

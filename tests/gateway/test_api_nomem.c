// SPDX-License-Identifier: Apache-2.0
// The Nth allocation fails, for each N, over the life of a request through the whole server: HTTP,
// API, engine and a tiny model. Each outcome is the right answer or a clean error; the server lives
// on, the next request gets its right answer, nothing stays in flight and nothing leaks.
#include "base/mem.h"
#include "gateway/api.h"
#include "kernels/device.h"
#include "model/source.h"
#include "model/weights.h"
#include "tests/gateway/http_fixture.h"
#include "tests/support/assert_ok.h"
#include "tests/support/wait.h"
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MODEL "tests/golden/models/q8_0.gguf"

struct world {
    struct mdl_source *source;
    struct mdl_config config;
    struct tokenizer *tokenizer;
    struct chat_template *template;
    struct kn_device *device;
    struct mdl_weights *weights;
    struct app app;
    struct replicas replicas;
    const char *names[1];
    struct gw_route routes[32];
    int port;
};

static void no_drain(struct app *app) {
    (void)app;
}

static void open_model(struct world *w) {
    struct err_info info = {0};
    assert_ok(mdl_source_open(MODEL, &w->source, &info), &info);
    w->config = *mdl_source_config(w->source);
    assert_ok(mdl_source_tokenizer(w->source, &w->tokenizer, &info), &info);
    const char *text;
    size_t len;
    mdl_source_chat_template(w->source, &text, &len);
    assert_non_null(text);
    assert_ok(chat_template_parse(text, len, &w->template, &info), &info);
    struct kn_device_config device = {.threads = 1};
    assert_ok(kn_ops_cpu.open(&device, &w->device, &info), &info);
    assert_ok(mdl_weights_load(w->source, &kn_ops_cpu, w->device, 0, 1, NULL, &w->weights, &info),
              &info);
    mdl_source_close(w->source);
}

static void open_world(struct world *w) {
    *w = (struct world){.names = {"tiny"}};
    json_set_alloc_funcs(mem_alloc, mem_free);
    open_model(w);
    struct err_info info = {0};
    struct eng_config eng = {
        .weights = w->weights,
        .ops = &kn_ops_cpu,
        .device = w->device,
        .kv_bytes = 1 << 20,
        .max_num_seqs = 4,
        .max_num_batched_tokens = 16,
        .max_model_len = w->config.context,
        .max_queue = 16,
        .prefix_cache = true,
    };
    struct app *a = &w->app;
    assert_ok(eng_create(&eng, &w->replicas.engine[0], &info), &info);
    assert_ok(eng_start(w->replicas.engine[0], &info), &info);
    w->replicas.n = 1;
    a->replicas = &w->replicas;
    a->tokenizer = w->tokenizer;
    a->template = w->template;
    a->config = &w->config;
    a->max_model_len = w->config.context;
    a->names = w->names;
    a->n_names = 1;
    a->clock = &clock_system;
    a->stall_ns = INT64_MAX;
    a->begin_drain = no_drain;
    a->max_prompts = 8;
    a->metrics = metrics_create();
    assert_non_null(a->metrics);
    struct gw_config cfg = {
        .host = "127.0.0.1",
        .loops = 1,
        .routes = w->routes,
        .n_routes = api_routes(a, w->routes, 32),
        .metrics = a->metrics,
    };
    assert_ok(gw_server_create(&cfg, &a->server, &info), &info);
    assert_ok(gw_server_start(a->server, &info), &info);
    atomic_store(&a->state, APP_READY);
    w->port = gw_server_port(a->server);
}

static void close_world(struct world *w) {
    gw_server_stop(w->app.server);
    eng_stop(w->replicas.engine[0]);
    eng_destroy(w->replicas.engine[0]);
    gw_server_destroy(w->app.server);
    metrics_destroy(w->app.metrics);
    mdl_weights_destroy(w->weights);
    kn_ops_cpu.close(w->device);
    chat_template_destroy(w->template);
    tokenizer_destroy(w->tokenizer);
    assert_int_equal(mem_live_blocks(), 0);
}

// ---- what an answer says, without what differs from time to time

enum { CHOICES = 8, TEXT = 4096 };

struct answer {
    char text[CHOICES][TEXT];
    char finish[CHOICES][16];
    size_t logprobs[CHOICES]; // entries
    char other[TEXT];         // prompt_logprobs; or the body of a route that generates nothing
    bool error, done;
};

static void put(char *to, const char *s) {
    size_t n = strlen(to);
    snprintf(to + n, TEXT - n, "%s", s ? s : "");
}

static const char *str(const json_t *o, const char *key) {
    return json_string_value(json_object_get(o, key));
}

static void add_choice(struct answer *a, const json_t *c) {
    json_int_t i = json_integer_value(json_object_get(c, "index"));
    assert_true(i >= 0 && i < CHOICES);
    put(a->text[i], str(c, "text"));
    put(a->text[i], str(json_object_get(c, "delta"), "content"));
    put(a->text[i], str(json_object_get(c, "message"), "content"));
    if (str(c, "finish_reason"))
        snprintf(a->finish[i], sizeof a->finish[i], "%s", str(c, "finish_reason"));
    const json_t *l = json_object_get(c, "logprobs");
    a->logprobs[i] += json_array_size(json_object_get(l, "tokens")) +
                      json_array_size(json_object_get(l, "content"));
    json_t *scores = json_object_get(c, "prompt_logprobs");
    if (scores) {
        char *s = json_dumps(scores, JSON_COMPACT);
        put(a->other, s);
        mem_free(s);
    }
}

static void add_object(struct answer *a, const char *s, size_t n) {
    json_error_t e;
    json_t *o = json_loadb(s, n, 0, &e);
    if (!o)
        fail_msg("not JSON: %.*s", (int)n, s);
    const json_t *choices = json_object_get(o, "choices");
    a->error |= json_object_get(o, "error") != NULL;
    for (size_t i = 0; i < json_array_size(choices); i++)
        add_choice(a, json_array_get(choices, i));
    if (!choices && !a->error)
        put(a->other, s);
    json_decref(o);
}

static void read_answer(const struct cl_response *r, struct answer *a) {
    *a = (struct answer){0};
    const char *s = r->body;
    if (strncmp(s, "data: ", 6) != 0 && *s != ':') {
        if (*s == '{')
            add_object(a, s, r->len);
        a->done = r->len && !a->error;
        return;
    }
    for (const char *end; (end = strstr(s, "\n\n")) != NULL; s = end + 2) {
        if (!strncmp(s, "data: [DONE]", 12))
            a->done = true;
        else if (!strncmp(s, "data: ", 6))
            add_object(a, s + 6, (size_t)(end - s) - 6);
    }
}

// ---- requests

struct request {
    const char *what, *path, *body; // body NULL: GET
};

#define USER                                                                                       \
    "\"messages\": [{\"role\": \"user\", \"content\": [{\"type\": \"text\", \"text\": \"hello "    \
    "you\"}]}]"

static const struct request requests[] = {
    {"whole", "/v1/completions",
     "{\"prompt\": \"hello you\", \"max_tokens\": 6, \"n\": 2, \"seed\": 1, \"logprobs\": 2, "
     "\"echo\": true, "
     "\"prompt_logprobs\": 1, \"stop\": [\"zzzz\"], \"logit_bias\": {\"5\": 1}, "
     "\"stop_token_ids\": [9], "
     "\"ignore_eos\": true, \"frequency_penalty\": 0.5}"},
    {"stream", "/v1/completions",
     "{\"prompt\": \"hello you\", \"max_tokens\": 40, \"n\": 2, \"seed\": 2, \"logprobs\": 1, "
     "\"stream\": true, "
     "\"ignore_eos\": true, \"stream_options\": {\"include_usage\": true}}"},
    {"prompts", "/v1/completions",
     "{\"prompt\": [[5, 6, 7], [8, 9, 10, 11]], \"max_tokens\": 5, \"seed\": 3, \"stream\": true, "
     "\"min_tokens\": 4, \"echo\": true}"},
    {"chat", "/v1/chat/completions",
     "{" USER ", \"tools\": [], \"response_format\": {\"type\": \"text\"}, \"max_tokens\": 6, "
     "\"seed\": 4, \"logprobs\": true, \"top_logprobs\": 2, "
     "\"ignore_eos\": true}"},
    {"chat stream", "/v1/chat/completions",
     "{" USER ", \"max_tokens\": 30, \"seed\": 5, \"stream\": true, \"ignore_eos\": true}"},
    {"tokenize", "/tokenize", "{" USER ", \"return_token_strs\": true}"},
    {"detokenize", "/detokenize", "{\"tokens\": [5, 6, 7, 8]}"},
    {"models", "/v1/models", NULL},
    {"metrics", "/metrics", NULL},
    {"drain", "/admin/v1/drain", ""},
};

static void ask(const struct world *w, const struct request *q, struct cl_response *r) {
    char text[2048];
    if (q->body)
        snprintf(text, sizeof text,
                 "POST %s HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: "
                 "%zu\r\n\r\n%s",
                 q->path, strlen(q->body), q->body);
    else
        snprintf(text, sizeof text, "GET %s HTTP/1.1\r\nHost: a\r\n\r\n", q->path);
    int fd = cl_connect(w->port);
    cl_puts(fd, text);
    if (!cl_read(fd, false, r))
        r->status = 0;
    close(fd);
}

static void wait_idle(const struct world *w, const char *what, uint64_t nth) {
    struct wait wait = {0};
    while (replicas_in_flight(&w->replicas) || gw_server_in_flight(w->app.server))
        if (!wait_more(&wait))
            fail_msg("%s, allocation %llu: something stays in flight", what,
                     (unsigned long long)nth);
}

static void assert_same(const struct request *q, uint64_t nth, const struct answer *want,
                        const struct answer *got) {
    bool same = !memcmp(want->text, got->text, sizeof want->text) &&
                !memcmp(want->finish, got->finish, sizeof want->finish) &&
                !memcmp(want->logprobs, got->logprobs, sizeof want->logprobs) &&
                !memcmp(want->other, got->other, sizeof want->other) && got->done && !got->error;
    if (!same)
        fail_msg("%s, allocation %llu: another answer", q->what, (unsigned long long)nth);
}

static void expect_answer(const struct world *w, const struct request *q, uint64_t nth,
                          const struct answer *want, struct answer *got) {
    struct cl_response r;
    ask(w, q, &r);
    if (r.status != 200)
        fail_msg("%s after allocation %llu: status %d", q->what, (unsigned long long)nth, r.status);
    read_answer(&r, got);
    if (want)
        assert_same(q, nth, want, got);
    cl_free(&r);
}

// True if an allocation failed.
static bool with_failure(const struct world *w, const struct request *q, uint64_t nth,
                         const struct answer *want, struct answer *got) {
    struct cl_response r;
    mem_fail_after(nth, false);
    ask(w, q, &r);
    wait_idle(w, q->what, nth);
    bool failed = mem_fail_count() >= nth;
    mem_fail_after(0, false);
    *got = (struct answer){0};
    if (r.status && !r.closed) // else the connection was closed, before or within the answer
        read_answer(&r, got);
    if (r.status == 200 && got->done && want)
        assert_same(q, nth, want, got);
    else if (r.status == 503)
        assert_true(got->error || r.closed);
    else if (r.status && r.status != 200)
        fail_msg("%s, allocation %llu: status %d: %s", q->what, (unsigned long long)nth, r.status,
                 r.body);
    assert_true(failed || r.status == 200);
    cl_free(&r);
    return failed;
}

static void test_requests(void **state) {
    (void)state;
    struct world w;
    open_world(&w);
    struct answer *want = calloc(1, sizeof *want), *got = calloc(1, sizeof *got);
    assert_true(want && got);
    for (size_t i = 0; i < sizeof requests / sizeof *requests; i++) {
        const struct request *q = &requests[i];
        bool fixed = strcmp(q->path, "/metrics") != 0;
        expect_answer(&w, q, 0, NULL, want);
        expect_answer(&w, q, 0, fixed ? want : NULL, got);
        assert_true(want->done);
        uint64_t nth = 1;
        while (with_failure(&w, q, nth, fixed ? want : NULL, got)) {
            if (nth % 8 == 0)
                expect_answer(&w, q, nth, fixed ? want : NULL, got);
            assert_true(++nth < 3000);
        }
        expect_answer(&w, q, nth, fixed ? want : NULL, got);
        assert_true(nth > 2); // some allocations there were
        print_message("%s: %llu allocations\n", q->what, (unsigned long long)nth - 1);
    }
    free(want);
    free(got);
    close_world(&w);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_requests),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

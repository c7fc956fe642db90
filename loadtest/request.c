// SPDX-License-Identifier: Apache-2.0
#include "loadtest/request.h"
#include "base/clock.h"
#include "loadtest/prompt.h"
#include <stdio.h>

static size_t on_bytes(char *p, size_t size, size_t n, void *arg) {
    struct lt_request *q = arg;
    int64_t now = clock_mono_ns(&clock_system);
    int32_t events = lt_answer_feed(&q->answer, p, size * n);
    if (events && q->stats) {
        q->stats->live_tokens += events;
        double gap = (double)(now - (q->last_ns ? q->last_ns : q->arrival_ns)) * 1e-9;
        (void)lt_series_add(q->last_ns ? &q->stats->itl : &q->stats->ttft, gap);
        for (int32_t i = 1; i < events; i++) // came together: no time between them
            (void)lt_series_add(&q->stats->itl, 0);
        q->last_ns = now;
    }
    return size * n;
}

enum err lt_request_init(struct lt_request *q, const struct lt_options *o,
                         struct curl_slist *headers, const char *url) {
    *q = (struct lt_request){.easy = curl_easy_init()};
    buf_init(&q->body, 0);
    lt_answer_init(&q->answer, o->stream, o->check_tokens);
    if (!q->easy)
        return ERR_NOMEM;
    curl_easy_setopt(q->easy, CURLOPT_URL, url);
    curl_easy_setopt(q->easy, CURLOPT_HTTPHEADER, headers);
    curl_easy_setopt(q->easy, CURLOPT_WRITEFUNCTION, on_bytes);
    curl_easy_setopt(q->easy, CURLOPT_WRITEDATA, q);
    curl_easy_setopt(q->easy, CURLOPT_PRIVATE, q);
    curl_easy_setopt(q->easy, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(q->easy, CURLOPT_TCP_NODELAY, 1L);
    curl_easy_setopt(q->easy, CURLOPT_TIMEOUT_MS, (long)(o->timeout * 1000));
    return ERR_OK;
}

void lt_request_fini(struct lt_request *q) {
    if (q->easy)
        curl_easy_cleanup(q->easy);
    buf_fini(&q->body);
    lt_answer_fini(&q->answer);
}

enum err lt_request_prepare(struct lt_request *q, const struct lt_options *o, const char *model,
                            struct lt_rng *rng, int64_t arrival_ns, struct lt_stats *stats) {
    int32_t n_input = lt_dist_draw(&o->input, rng);
    q->max_tokens = lt_dist_draw(&o->output, rng);
    buf_clear(&q->body);
    lt_prompt_body(o, model, rng, n_input, q->max_tokens, &q->body);
    if (buf_err(&q->body))
        return ERR_NOMEM;
    lt_answer_fini(&q->answer);
    lt_answer_init(&q->answer, o->stream, o->check_tokens);
    q->stats = stats;
    q->arrival_ns = arrival_ns;
    q->last_ns = 0;
    q->busy = true;
    curl_easy_setopt(q->easy, CURLOPT_POSTFIELDS, q->body.data);
    curl_easy_setopt(q->easy, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)q->body.len);
    if (stats)
        stats->sent++;
    return ERR_OK;
}

static enum lt_fault http_fault(long status) {
    if (status == 429 || status == 503)
        return LT_FAULT_BUSY;
    return status < 500 ? LT_FAULT_CLIENT : LT_FAULT_SERVER;
}

void lt_request_finish(struct lt_request *q, CURLcode result) {
    struct lt_answer *a = &q->answer;
    struct lt_stats *s = q->stats;
    long status = 0;
    curl_easy_getinfo(q->easy, CURLINFO_RESPONSE_CODE, &status);
    q->busy = false;
    if (result != CURLE_OK) {
        a->fault = result == CURLE_OPERATION_TIMEDOUT ? LT_FAULT_TIMEOUT : LT_FAULT_CONNECT;
        snprintf(a->detail, sizeof a->detail, "%s", curl_easy_strerror(result));
    } else if (status != 200) {
        a->fault = http_fault(status);
        snprintf(a->detail, sizeof a->detail, "HTTP %ld %.100s", status,
                 a->pending.data ? a->pending.data : "");
    } else {
        lt_answer_end(a, q->max_tokens);
    }
    if (!s)
        return;
    s->faults[a->fault]++;
    if (a->fault && !s->first_fault[0])
        snprintf(s->first_fault, sizeof s->first_fault, "%s: %s", lt_fault_name(a->fault),
                 a->detail);
    if (a->fault)
        return;
    s->ok++;
    s->prompt_tokens += a->prompt_tokens;
    s->completion_tokens += a->completion_tokens;
    double e2e = (double)(clock_mono_ns(&clock_system) - q->arrival_ns) * 1e-9;
    (void)lt_series_add(&s->e2e, e2e);
}

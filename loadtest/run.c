// SPDX-License-Identifier: Apache-2.0
// Invariant: an open loop's arrivals are a fixed schedule. If no slot is free when one is due, it
// waits for a slot, and its latency still counts from when it was due.
#include "loadtest/run.h"
#include "base/clock.h"
#include "base/json_load.h"
#include "base/mem.h"
#include "base/thread.h"
#include "loadtest/request.h"
#include <jansson.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

struct run {
    const struct lt_options *o;
    const char *model;
    struct lt_stats *stats;
    struct lt_rng rng, arrivals;
    CURLM *multi;
    struct curl_slist *headers;
    char url[1024];
    struct lt_request *slots;
    size_t n_slots, n_busy;
    int64_t begin_ns, next_arrival_ns, shown_ns;
    bool terminal;
};

static size_t append_bytes(char *p, size_t size, size_t n, void *arg) {
    buf_append(arg, p, size * n);
    return size * n;
}

static struct curl_slist *make_headers(const struct lt_options *o) {
    struct curl_slist *l = curl_slist_append(NULL, "Content-Type: application/json");
    l = curl_slist_append(l, "Expect:"); // no wait for 100-continue
    if (l && o->api_key) {
        char auth[512];
        snprintf(auth, sizeof auth, "Authorization: Bearer %s", o->api_key);
        l = curl_slist_append(l, auth);
    }
    return l;
}

const char *lt_url_hint(const struct lt_options *o) {
    size_t n = strlen(o->url);
    while (n && o->url[n - 1] == '/')
        n--;
    bool versioned = n >= 3 && !strncmp(o->url + n - 3, "/v1", 3);
    return versioned ? ""
                     : ", or give --url the /v1 at its end that OpenAI-compatible servers have";
}

enum err lt_run_find_model(const struct lt_options *o, char **out, struct err_info *info) {
    char url[1024];
    struct buf body;
    buf_init(&body, 1 << 20);
    snprintf(url, sizeof url, "%s/models", o->url);
    CURL *easy = curl_easy_init();
    struct curl_slist *headers = make_headers(o);
    CURLcode rc = CURLE_OUT_OF_MEMORY;
    if (easy && headers) {
        curl_easy_setopt(easy, CURLOPT_URL, url);
        curl_easy_setopt(easy, CURLOPT_HTTPHEADER, headers);
        curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, append_bytes);
        curl_easy_setopt(easy, CURLOPT_WRITEDATA, &body);
        curl_easy_setopt(easy, CURLOPT_TIMEOUT, 10L);
        rc = curl_easy_perform(easy);
    }
    json_t *root =
        rc == CURLE_OK && body.data ? json_load_text(body.data, body.len, 0, NULL) : NULL;
    const char *id =
        json_string_value(json_object_get(json_array_get(json_object_get(root, "data"), 0), "id"));
    enum err e = ERR_OK;
    long status = 0;
    if (rc == CURLE_OK)
        (void)curl_easy_getinfo(easy, CURLINFO_RESPONSE_CODE, &status);
    if (rc != CURLE_OK)
        e = err_set(info, ERR_IO, NULL, "%s: %s", url, curl_easy_strerror(rc));
    else if (!id)
        e = err_set(info, ERR_INVALID, NULL,
                    "%s lists no model (HTTP %ld); name one with --model%s", url, status,
                    lt_url_hint(o));
    else if (!(*out = mem_strdup(id)))
        e = err_set(info, ERR_NOMEM, NULL, "out of memory");
    json_decref(root);
    curl_slist_free_all(headers);
    curl_easy_cleanup(easy);
    buf_fini(&body);
    return e;
}

static struct lt_request *free_slot(struct run *r) {
    for (size_t i = 0; i < r->n_slots; i++)
        if (!r->slots[i].busy)
            return &r->slots[i];
    return NULL;
}

static enum err send_one(struct run *r, struct lt_request *q, int64_t arrival_ns, bool counted) {
    enum err rc =
        lt_request_prepare(q, r->o, r->model, &r->rng, arrival_ns, counted ? r->stats : NULL);
    if (rc)
        return rc;
    if (curl_multi_add_handle(r->multi, q->easy) != CURLM_OK)
        return ERR_NOMEM;
    r->n_busy++;
    return ERR_OK;
}

static void collect(struct run *r) {
    CURLMsg *m;
    int left;
    while ((m = curl_multi_info_read(r->multi, &left))) {
        if (m->msg != CURLMSG_DONE)
            continue;
        CURL *easy = m->easy_handle;
        CURLcode result = m->data.result;
        struct lt_request *q = NULL;
        curl_easy_getinfo(easy, CURLINFO_PRIVATE, &q);
        curl_multi_remove_handle(r->multi, easy);
        lt_request_finish(q, result);
        r->n_busy--;
    }
}

static bool more_to_send(const struct run *r, int64_t now) {
    if (r->stats->sent >= r->o->requests)
        return false;
    return r->o->duration <= 0 || (double)(now - r->begin_ns) * 1e-9 < r->o->duration;
}

// Sends what is due; returns how many milliseconds may pass before the next is.
static enum err send_due(struct run *r, int *wait_ms) {
    int64_t now = clock_mono_ns(&clock_system);
    *wait_ms = 200;
    while (more_to_send(r, now)) {
        struct lt_request *q = free_slot(r);
        if (!q)
            return ERR_OK;
        int64_t due = now;
        if (r->o->rate > 0) {
            due = r->next_arrival_ns;
            if (due > now) {
                int64_t ms = (due - now) / 1000000;
                *wait_ms = ms < *wait_ms ? (int)ms : *wait_ms;
                return ERR_OK;
            }
            r->next_arrival_ns += (int64_t)(lt_rng_exponential(&r->arrivals, 1 / r->o->rate) * 1e9);
        }
        enum err rc = send_one(r, q, due, true);
        if (rc)
            return rc;
    }
    return ERR_OK;
}

static void show_progress(struct run *r, bool last) {
    int64_t now = clock_mono_ns(&clock_system);
    if (!r->o->progress || (!last && now - r->shown_ns < (r->terminal ? 200000000 : 5000000000)))
        return;
    r->shown_ns = now;
    int64_t bad = 0;
    for (int f = 1; f < LT_FAULTS; f++)
        bad += r->stats->faults[f];
    double t = (double)(now - r->begin_ns) * 1e-9;
    fprintf(stderr, "%s%7.1f s  sent %lld  running %zu  done %lld  failed %lld  %.1f events/s%s",
            r->terminal ? "\r" : "", t, (long long)r->stats->sent, r->n_busy,
            (long long)r->stats->ok, (long long)bad, t > 0 ? (double)r->stats->live_tokens / t : 0,
            r->terminal && !last ? "" : "\n");
    fflush(stderr);
}

static enum err turn(struct run *r, int wait_ms) {
    int running;
    if (curl_multi_poll(r->multi, NULL, 0, wait_ms, NULL) != CURLM_OK ||
        curl_multi_perform(r->multi, &running) != CURLM_OK)
        return ERR_INTERNAL;
    collect(r);
    return ERR_OK;
}

static enum err warm_up(struct run *r) {
    for (int64_t i = 0; i < r->o->warmup; i++) {
        enum err rc = send_one(r, &r->slots[0], clock_mono_ns(&clock_system), false);
        while (!rc && r->n_busy)
            rc = turn(r, 100);
        if (rc)
            return rc;
    }
    return ERR_OK;
}

static enum err run_loop(struct run *r) {
    thread_wake_soon(); // beside a server on the same machine: times are taken when an answer comes
    enum err rc = warm_up(r);
    r->begin_ns = r->next_arrival_ns = clock_mono_ns(&clock_system);
    while (!rc) {
        int wait_ms;
        rc = send_due(r, &wait_ms);
        if (!rc && !r->n_busy && !more_to_send(r, clock_mono_ns(&clock_system)))
            break;
        if (!rc)
            rc = turn(r, wait_ms);
        show_progress(r, false);
    }
    r->stats->seconds = (double)(clock_mono_ns(&clock_system) - r->begin_ns) * 1e-9;
    show_progress(r, true);
    return rc;
}

enum err lt_run(const struct lt_options *o, const char *model, struct lt_stats *stats,
                struct err_info *info) {
    struct run r = {.o = o, .model = model, .stats = stats};
    r.rng.state = (uint64_t)o->seed;
    r.arrivals.state = (uint64_t)o->seed ^ 0xa11a;
    r.terminal = isatty(STDERR_FILENO) != 0;
    r.n_slots = (size_t)(o->rate > 0 ? o->max_connections : o->users);
    snprintf(r.url, sizeof r.url, "%s/%s", o->url,
             strcmp(o->endpoint, "chat") ? "completions" : "chat/completions");
    r.multi = curl_multi_init();
    r.headers = make_headers(o);
    r.slots = mem_calloc(r.n_slots, sizeof *r.slots);
    enum err rc = r.multi && r.headers && r.slots ? ERR_OK : ERR_NOMEM;
    size_t made = 0;
    while (!rc && made < r.n_slots)
        rc = lt_request_init(&r.slots[made++], o, r.headers, r.url);
    if (!rc) {
        curl_multi_setopt(r.multi, CURLMOPT_MAXCONNECTS, (long)r.n_slots);
        rc = run_loop(&r);
    }
    for (size_t i = 0; r.slots && i < made; i++) {
        if (r.slots[i].busy)
            curl_multi_remove_handle(r.multi, r.slots[i].easy);
        lt_request_fini(&r.slots[i]);
    }
    mem_free(r.slots);
    curl_slist_free_all(r.headers);
    if (r.multi)
        curl_multi_cleanup(r.multi);
    return rc ? err_set(info, rc, NULL, "load test: %s", err_text(rc)) : ERR_OK;
}

// SPDX-License-Identifier: Apache-2.0
#include "serving/engine_metrics.h"
#include "serving/sequence.h"
#include <stdio.h>

struct maker {
    struct metrics *registry;
    struct buf graft, vllm; // labels
    bool with_vllm;
};

static const double first_token_s[] = {.001, .005, .01, .02, .04, .06, .08, .1, .25, .5,  .75,
                                       1,    2.5,  5,   7.5, 10,  20,  40,  80, 160, 640, 2560};
static const double inter_token_s[] = {.01, .025, .05, .075, .1,  .15, .2, .3, .4, .5,
                                       .75, 1,    2.5, 5,    7.5, 10,  20, 40, 80};
static const double request_s[] = {.3, .5, .8, 1,  1.5, 2,   2.5, 5,   10,   15,  20,
                                   30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680};
static const double step_s[] = {.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10};
static const double slice_s[] = {.0005, .001, .002, .003, .004, .005, .006, .008, .01, .02, .05};
static const double token_counts[] = {1,   2,    5,    10,   20,    50,    100,   200,
                                      500, 1000, 2000, 5000, 10000, 20000, 50000, 100000};

#define COUNT(a) (sizeof(a) / sizeof *(a))

static void alias_labels(struct buf *out, const struct maker *k, const char *more) {
    buf_append(out, k->vllm.data, k->vllm.len);
    if (more)
        buf_printf(out, ",%s", more);
}

static struct metric *number(struct maker *k, bool counter, const char *name, const char *labels,
                             const char *help, const char *vllm, const char *vllm_labels) {
    struct buf own, alias;
    buf_init(&own, 0);
    buf_init(&alias, 0);
    buf_append(&own, k->graft.data, k->graft.len);
    if (labels)
        buf_printf(&own, ",%s", labels);
    alias_labels(&alias, k, vllm_labels);
    struct metric *m = NULL;
    if (!buf_err(&own) && !buf_err(&alias)) {
        m = (counter ? metrics_counter : metrics_gauge)(k->registry, name, own.data, help);
        if (m && vllm && k->with_vllm)
            metrics_alias(k->registry, m, vllm, alias.data, help);
    }
    buf_fini(&own);
    buf_fini(&alias);
    return m;
}

static struct metric *counter(struct maker *k, const char *name, const char *help,
                              const char *vllm) {
    return number(k, true, name, NULL, help, vllm, NULL);
}

static struct metric *gauge(struct maker *k, const char *name, const char *help, const char *vllm) {
    return number(k, false, name, NULL, help, vllm, NULL);
}

static struct histogram *histogram(struct maker *k, const char *name, const char *help,
                                   const char *vllm, const double *bounds, size_t n) {
    struct histogram *h = metrics_histogram(k->registry, name, k->graft.data, help, bounds, n);
    if (h && vllm && k->with_vllm)
        metrics_alias_histogram(k->registry, h, vllm, k->vllm.data, help);
    return h;
}

static void make_numbers(struct maker *k, struct eng__metrics *m) {
    m->running =
        gauge(k, "graft_requests_running", "Requests being computed.", "vllm:num_requests_running");
    m->waiting = gauge(k, "graft_requests_waiting", "Requests waiting to be computed.",
                       "vllm:num_requests_waiting");
    m->kv_usage =
        gauge(k, "graft_kv_cache_usage_ratio",
              "Part of the KV blocks that sequences refer to, 0 to 1.", "vllm:kv_cache_usage_perc");
    m->kv_blocks_live =
        number(k, false, "graft_kv_blocks", "state=\"live\"", "KV blocks by state.", NULL, NULL);
    m->kv_blocks_cached =
        number(k, false, "graft_kv_blocks", "state=\"cached\"", "KV blocks by state.", NULL, NULL);
    m->kv_blocks_lent =
        number(k, false, "graft_kv_blocks", "state=\"lent\"", "KV blocks by state.", NULL, NULL);
    m->prompt_tokens = counter(k, "graft_prompt_tokens_total", "Prompt tokens processed.",
                               "vllm:prompt_tokens_total");
    m->generation_tokens = counter(k, "graft_generation_tokens_total", "Tokens generated.",
                                   "vllm:generation_tokens_total");
    m->preemptions = counter(k, "graft_preemptions_total",
                             "Sequences that gave their KV blocks back and were recomputed.",
                             "vllm:num_preemptions_total");
    m->rejected = counter(k, "graft_requests_rejected_total",
                          "Requests refused because the queue was full.", NULL);
    m->prefix_queries =
        counter(k, "graft_prefix_cache_queries_total",
                "Prompt tokens looked up in the prefix cache.", "vllm:prefix_cache_queries_total");
    m->prefix_hits =
        counter(k, "graft_prefix_cache_hits_total", "Prompt tokens found in the prefix cache.",
                "vllm:prefix_cache_hits_total");
    m->evictions = counter(k, "graft_prefix_cache_evictions_total",
                           "Cached KV blocks that were dropped.", NULL);
    m->adapter_loads =
        counter(k, "graft_adapter_loads_total", "Adapter versions put into a slot.", NULL);
    m->adapter_evictions = counter(k, "graft_adapter_evictions_total",
                                   "Adapter versions that gave their slot to another.", NULL);
    static const struct {
        const char *own, *vllm;
    } reasons[ENG__FINISHES] = {
        [ENG_FINISH_STOP] = {"reason=\"stop\"", "finished_reason=\"stop\""},
        [ENG_FINISH_LENGTH] = {"reason=\"length\"", "finished_reason=\"length\""},
        [ENG_FINISH_CANCELLED] = {"reason=\"cancelled\"", "finished_reason=\"abort\""},
        [ENG_FINISH_ERROR] = {"reason=\"error\"", "finished_reason=\"error\""},
    };
    for (int i = 0; i < ENG__FINISHES; i++)
        m->finished[i] =
            number(k, true, "graft_requests_finished_total", reasons[i].own,
                   "Requests ended, by reason.", "vllm:request_success_total", reasons[i].vllm);
}

static void make_histograms(struct maker *k, struct eng__metrics *m) {
    m->ttft = histogram(k, "graft_time_to_first_token_seconds",
                        "From a request's arrival to its first token.",
                        "vllm:time_to_first_token_seconds", first_token_s, COUNT(first_token_s));
    m->itl = histogram(k, "graft_inter_token_latency_seconds", "Between two tokens of a choice.",
                       "vllm:inter_token_latency_seconds", inter_token_s, COUNT(inter_token_s));
    m->e2e = histogram(k, "graft_request_seconds", "From a request's arrival to its end.",
                       "vllm:e2e_request_latency_seconds", request_s, COUNT(request_s));
    m->queue = histogram(k, "graft_request_queue_seconds", "From arrival to admission.",
                         "vllm:request_queue_time_seconds", request_s, COUNT(request_s));
    m->prefill = histogram(k, "graft_request_prefill_seconds", "From admission to the first token.",
                           "vllm:request_prefill_time_seconds", request_s, COUNT(request_s));
    m->decode = histogram(k, "graft_request_decode_seconds", "From the first token to the end.",
                          "vllm:request_decode_time_seconds", request_s, COUNT(request_s));
    m->request_prompt = histogram(k, "graft_request_prompt_tokens", "Prompt tokens of a request.",
                                  "vllm:request_prompt_tokens", token_counts, COUNT(token_counts));
    m->request_generation = histogram(
        k, "graft_request_generation_tokens", "Tokens generated by a request, all choices.",
        "vllm:request_generation_tokens", token_counts, COUNT(token_counts));
    m->step = histogram(k, "graft_step_seconds", "Time of one step of the engine.", NULL, step_s,
                        COUNT(step_s));
    m->slice = histogram(k, "graft_background_slice_seconds",
                         "Time of one slice of background work (training) on the engine's thread.",
                         NULL, slice_s, COUNT(slice_s));
}

void eng__metrics_init(struct eng__metrics *m, struct metrics *registry, const char *model,
                       int32_t replica, bool vllm) {
    *m = (struct eng__metrics){0};
    if (!registry)
        return;
    struct maker k = {.registry = registry, .with_vllm = vllm};
    buf_init(&k.graft, 0);
    buf_init(&k.vllm, 0);
    buf_puts(&k.graft, "model=\"");
    metrics_escape_label(&k.graft, model ? model : "");
    buf_printf(&k.graft, "\",replica=\"%d\"", (int)replica);
    buf_puts(&k.vllm, "model_name=\"");
    metrics_escape_label(&k.vllm, model ? model : "");
    buf_printf(&k.vllm, "\",engine=\"%d\"", (int)replica);
    if (!buf_err(&k.graft) && !buf_err(&k.vllm)) {
        make_numbers(&k, m);
        make_histograms(&k, m);
    }
    buf_fini(&k.graft);
    buf_fini(&k.vllm);
}

static double seconds(int64_t ns) {
    return (double)ns / 1e9;
}

void eng__metrics_request(struct eng__metrics *m, const struct eng__req *q, int64_t now_ns) {
    if (q->r.internal)
        return;
    int32_t generated = 0;
    for (int32_t c = 0; c < q->r.n; c++)
        generated += q->choices[c].n_generated;
    metric_add(m->finished[q->finish], 1);
    histogram_observe(m->e2e, seconds(now_ns - q->submitted_ns));
    histogram_observe(m->request_prompt, q->r.n_prompt);
    histogram_observe(m->request_generation, generated);
    if (q->first_ns)
        histogram_observe(m->decode, seconds(now_ns - q->first_ns));
}

void eng__metrics_pool(struct eng__metrics *m, const struct kv_stats *now,
                       struct kv_stats *reported) {
    metric_set(m->kv_usage, (double)now->live / now->total);
    metric_set(m->kv_blocks_live, now->live);
    metric_set(m->kv_blocks_cached, now->cached);
    metric_set(m->kv_blocks_lent, now->lent);
    metric_add(m->prefix_queries, (double)(now->queries - reported->queries));
    metric_add(m->prefix_hits, (double)(now->hits - reported->hits));
    metric_add(m->evictions, (double)(now->evictions - reported->evictions));
    *reported = *now;
}

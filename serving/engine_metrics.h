// SPDX-License-Identifier: Apache-2.0
// The engine's metrics: graft_* names, and with eng_config.vllm_metrics the same numbers under
// vLLM's names. Made at creation; updates come from the engine thread, rejections from submitters.
#pragma once
#include "base/metrics.h"
#include "serving/paged_kv/kv.h"
#include <stdbool.h>

enum { ENG__FINISHES = 4 }; // of enum eng_finish

struct eng__req;

struct eng__metrics { // each may be NULL: updates of NULL do nothing
    struct metric *running, *waiting, *kv_usage;
    struct metric *prompt_tokens, *generation_tokens, *preemptions, *rejected;
    struct metric *finished[ENG__FINISHES];
    struct metric *prefix_queries, *prefix_hits, *evictions;
    struct metric *adapter_loads, *adapter_evictions;
    struct metric *kv_blocks_live, *kv_blocks_cached, *kv_blocks_lent;
    struct histogram *ttft, *itl, *e2e, *queue, *prefill, *decode;
    struct histogram *request_prompt, *request_generation;
    struct histogram *step, *slice;
};

void eng__metrics_init(struct eng__metrics *m, struct metrics *registry, const char *model,
                       int32_t replica, bool vllm);
// A request ended: counts it and its durations.
void eng__metrics_request(struct eng__metrics *m, const struct eng__req *q, int64_t now_ns);
// The pool's numbers; *reported is what the counters stand at.
void eng__metrics_pool(struct eng__metrics *m, const struct kv_stats *now,
                       struct kv_stats *reported);

// SPDX-License-Identifier: Apache-2.0
// One HTTP request under way. Owned by the run; driven by libcurl's multi handle on one thread.
#pragma once
#include "base/buf.h"
#include "loadtest/check.h"
#include "loadtest/options.h"
#include "loadtest/stats.h"
#include <curl/curl.h>

struct lt_request {
    CURL *easy;
    struct buf body;
    struct lt_answer answer;
    struct lt_stats *stats; // NULL: a warm-up, not counted
    int64_t arrival_ns;     // when it was due
    int64_t last_ns;        // last content event, 0: none yet
    int32_t max_tokens;
    bool busy;
};

// Makes the handle once; reused for every request of this slot.
enum err lt_request_init(struct lt_request *q, const struct lt_options *o,
                         struct curl_slist *headers, const char *url);
void lt_request_fini(struct lt_request *q);
// Prepares the next request; the caller adds q->easy to the multi handle.
enum err lt_request_prepare(struct lt_request *q, const struct lt_options *o, const char *model,
                            struct lt_rng *rng, int64_t arrival_ns, struct lt_stats *stats);
// libcurl is done with it: counts it.
void lt_request_finish(struct lt_request *q, CURLcode result);

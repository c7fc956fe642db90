// SPDX-License-Identifier: Apache-2.0
// What the API files share: the served model, the engine, and the state of the process. Filled
// while the server already answers probes; `ready` publishes it (release/acquire), and from then on
// only flags change.
#pragma once
#include "base/clock.h"
#include "base/metrics.h"
#include "gateway/http.h"
#include "model/chat_template.h"
#include "model/config.h"
#include "model/tokenizer.h"
#include "serving/adapter_registry.h"
#include "serving/replicas.h"
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

// What training does, for those who know serving only.
struct app_training {
    char job[64];     // in hand; empty: none
    char reason[240]; // why it makes no progress; empty: it does
    // Of its state (adapter, gradient, sums, moments), in the KV cache and in a file; of a row's
    // activations.
    size_t state_bytes, state_in_file_bytes, activation_bytes;
    uint64_t taken; // how often serving took of the state, since the start
};

enum app_state { APP_LOADING, APP_READY, APP_DRAINING };

struct adapter_demand; // adapter_demand.h

struct app {
    _Atomic int state;             // enum app_state
    struct replicas *replicas;     // the engines
    struct adp_registry *adapters; // NULL: none are served (--enable-lora)
    struct adapter_demand *demand; // models that are loaded when they are asked for; NULL: none
    int32_t max_loras;
    bool vllm_metrics;
    struct tokenizer *tokenizer;
    struct chat_template *template; // NULL: the model has none
    const struct mdl_config *config;
    int32_t max_model_len;
    const char *const *names; // served names; the first is the one answers carry
    size_t n_names;
    const char *model_path;
    char fingerprint[64]; // system_fingerprint of the base
    char kernel_set[96];
    _Atomic(const char *) digest_error; // why there will be none, or NULL
    _Atomic(const char *) digest;       // SHA-256 of the model's content, once it is known
    int64_t created;                    // Unix seconds
    int64_t drain_timeout_ns;
    int64_t request_timeout_ns;      // 0: none
    _Atomic int64_t accept_until_ns; // while draining, requests are still taken until then
    int64_t stall_ns; // the engine is not alive if a busy step loop makes no turn for this long
    const struct clock *clock;
    struct metrics *metrics;
    struct gw_server *server;
    void (*begin_drain)(struct app *app);                  // any thread; idempotent
    int max_prompts;                                       // of one completion request
    void (*training)(void *arg, struct app_training *out); // any thread; NULL: there is none
    void *training_arg;
};

static inline enum app_state app_state(const struct app *a) {
    return (enum app_state)atomic_load_explicit(&a->state, memory_order_acquire);
}

// Whether the model's digest is known, or known not to come.
static inline bool app_digest_ended(const struct app *a) {
    return atomic_load_explicit(&a->digest, memory_order_acquire) ||
           atomic_load_explicit(&a->digest_error, memory_order_acquire);
}

// The routes of the public API; NULL-terminated by n. `app` outlives the server.
size_t api_routes(struct app *app, struct gw_route *out, size_t cap);

// ERR_OK if the process wants traffic: what readiness says.
enum err app_check_ready(const struct app *a, struct err_info *info);
// ERR_OK if a request may be accepted now: ready, or draining and within the time that load
// balancers need to notice (--drain-delay).
enum err app_check_open(const struct app *a, struct err_info *info);
// ERR_NO_MODEL unless `name` is one of the base's.
enum err app_check_model(const struct app *a, const char *name, struct err_info *info);

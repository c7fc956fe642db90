// SPDX-License-Identifier: Apache-2.0
// The engine: one thread that turns requests into tokens. It owns the scheduler, the KV pool and
// the device queue, and touches neither files nor sockets. Any thread may submit; each request's
// stream has one consumer.
//
//   submit -> [queued] -> [prefill] -> [decode] -> end
//                 ^___________|___________|        preemption: recompute later
//   cancel, deadline, error and drain reach a request in every state; each choice gets exactly one
//   END.
#pragma once
#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"
#include "base/metrics.h"
#include "kernels/sample.h"
#include "model/forward.h"
#include "model/weights.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct eng;
struct eng_stream;
struct adp_registry; // adapter_registry.h
struct adp_version;
struct io_pool;

enum { ENG_MAX_CHOICES = 128, ENG_MAX_STOP_IDS = 64 };

// Background work on the engine's idle time and spare KV memory (training). Called on the engine
// thread.
struct eng_background {
    // Runs for at most about budget_us on the engine's queue, returns the microseconds used; 0:
    // nothing to do.
    int64_t (*run)(void *arg, int64_t budget_us);
    // Serving needs memory: give `bytes` of the borrowed range back (eng_background_return), before
    // this returns as far as that takes no time, the rest soon, by `urgent`.
    void (*give_back)(void *arg, size_t bytes);
    // Asked in each turn: whether run must be called now, whatever there is to compute. For memory
    // that is to be returned, and for the end of background work: so that it holds its memory no
    // longer. NULL: never.
    bool (*urgent)(void *arg);
    void *arg;
};

// The background's own calls, on the engine thread inside run or give_back. Borrows from the top of
// the KV pool until `want` bytes are borrowed in all: *at and the result say what is, [*at, *at +
// result), which grows downwards, a few MiB a call. Nothing more is lent while requests wait, and
// for a while after give_back was called. As long as there is less than `need`, the background
// counts as waiting for memory, and the longer it has waited, the fewer cached prefixes are spared
// (paged_kv/README.md). Where no more can be had and it is less than `need`, all but the upper
// `held` bytes is back in the pool.
struct eng_borrow {
    size_t held, need, want;
};
size_t eng_background_borrow(struct eng *e, const struct eng_borrow *b, kn_addr *at);
kn_addr eng_background_end(const struct eng *e); // *at + result, always; any thread
// Gives everything back but the upper `keep_bytes` (rounded up to whole blocks).
void eng_background_return(struct eng *e, size_t keep_bytes);
// Any thread: the background has work again; an idle engine calls run.
void eng_wake(struct eng *e);

// Who used the engine, in all and of late.
struct eng_durations {
    uint64_t n;
    double p50_s, p99_s, most_s; // 0 where n is
};
struct eng_shares {
    double wall_s, serving_s, background_s; // the rest is idle
    struct eng_durations slices;            // of background work
    struct eng_durations gaps;              // between two tokens of a choice
};
enum eng_lend_reason { // why the background has not the memory that it needs
    ENG_LEND_ENOUGH,
    ENG_LEND_GROWS,    // it is on its way
    ENG_LEND_REQUESTS, // requests wait for the same memory
    ENG_LEND_CALM,     // it had to give memory back a moment ago
    ENG_LEND_HOT,      // cached prefixes were hit lately
    ENG_LEND_LIVE,     // running sequences hold it
};
struct eng_colocation {
    double slo_itl_s, slo_ttft_s;  // 0: none
    double margin_s;               // kept free in front of each step
    double slice_s;                // how long a slice may be now
    struct eng_shares recent, all; // recent: the last minute
    size_t pool_bytes, lent_bytes, need_bytes;
    uint64_t asked_back;        // how often memory had to come back
    double waits_for_memory_s;  // since when; 0: it does not wait
    double waited_for_memory_s; // in all
    enum eng_lend_reason lend_reason;
};
void eng_colocation(struct eng *e, struct eng_colocation *out); // any thread

struct eng_config {
    const struct mdl_weights *weights;
    const struct kn_ops *ops;
    struct kn_device *device;       // this engine's own (its pool of threads)
    size_t kv_bytes;                // pool size
    int32_t max_num_seqs;           // running sequences (choices)
    int32_t max_num_batched_tokens; // tokens of one step
    int32_t max_model_len;
    int32_t max_queue; // requests waiting; one more is ERR_QUEUE_FULL
    bool prefix_cache;
    // A step with decodes in it aims at no more than this multiple of a step without prefill; 0:
    // default 1.8
    double prefill_stretch;
    // Targets that background work must leave time for: between two tokens, to the first one. 0:
    // none, and then it gets only what serving cannot use.
    int64_t slo_itl_ns, slo_ttft_ns;
    const struct clock *clock; // NULL: system
    const struct log *log;
    struct metrics *metrics;          // NULL: none
    bool vllm_metrics;                // also under vLLM's names
    const char *model_label;          // for metrics
    struct eng_background background; // zeros: none
    const struct mdl_hooks *hooks;    // NULL: none
    // Adapters of requests, in max_loras slots; NULL: none, and then no `io`. Versions become
    // resident in jobs of `io`; both outlive the engine. No other hooks then.
    struct adp_registry *adapters;
    struct io_pool *io;
    struct io_pool
        *io_gentle; // of versions that ENG_LOAD asks for; NULL: `io`; outlives the engine, too
    int32_t max_loras;
    int32_t replica; // its number among the engines of the registry; a label of its metrics
};

enum eng_kind {
    ENG_GENERATE,
    ENG_SCORE, // ids + mask -> PROMPT events; generates nothing, ends with ENG_FINISH_LENGTH
    ENG_LOAD,  // no prompt is looked at; ends so, too, when its adapter is in a slot
};

struct eng_sampling {
    float temperature, top_p, min_p;
    int32_t top_k;
    float presence, frequency, repetition;
    uint64_t seed;      // always set (made up by the gateway where the client gave none)
    int32_t n_logprobs; // -1: none; 0: the token's own; n: also the n most likely
    const struct kn_token_bias *bias;
    int32_t n_bias;
};

// Everything of a request. Arrays are copied by submit; the struct is the caller's.
struct eng_request {
    enum eng_kind kind;
    const int32_t *prompt;
    int32_t n_prompt;
    struct eng_sampling sampling;
    int32_t n;          // choices
    int32_t max_tokens; // per choice; 0: the prompt is only scored
    int32_t min_tokens;
    bool ignore_eos;
    const int32_t *stop_ids; // besides the model's end-of-sequence ids
    int32_t n_stop_ids;
    int32_t n_prompt_logprobs; // -1: none; else PROMPT events for each position but the first
    const uint8_t *score_mask; // ENG_SCORE: [n_prompt], 1 = wanted; NULL: all but the first
    const uint32_t
        *token_mask; // allowed tokens for every position, (vocab + 31) / 32 words, or NULL

    uint64_t tenant;     // fairness domain
    int32_t priority;    // lower runs first, as in vLLM; 0 default
    int64_t deadline_ns; // monotonic; INT64_MAX: none
    // NULL: base. Pinned by the caller while it submits; the engine pins it until the request ends,
    // and sets the two below.
    struct adp_version *adapter;
    uint64_t adapter_version; // 0: base
    int32_t adapter_slot;     // -1: base; where the caller has hooks of its own, one of its slots
    uint64_t cache_salt;
    // Of the server itself: also taken while it drains, and beyond max_queue. It takes little of a
    // step that computes for others (README.md, rule 47).
    bool internal;

    // Called on the engine thread after a step that put events into an empty stream, and for the
    // last one; must not block, nor release the stream. The consumer then calls eng_stream_next
    // until it gives nothing.
    void (*wake)(void *arg, struct eng_stream *s);
    void *wake_arg;
};

enum eng_finish {
    ENG_FINISH_STOP,   // end-of-sequence or a stop id
    ENG_FINISH_LENGTH, // max_tokens or the context's end
    ENG_FINISH_CANCELLED,
    ENG_FINISH_ERROR,
};

enum eng_event_type { ENG_EVENT_PROMPT, ENG_EVENT_TOKEN, ENG_EVENT_END };

struct eng_event {
    enum eng_event_type type;
    int32_t choice;
    int32_t index; // PROMPT: position; TOKEN: number within the choice, from 0
    int32_t token;
    float logprob; // if asked for
    int32_t rank;
    int32_t n_top;
    int32_t top_id[KN_MAX_TOP_LOGPROBS];
    float top_logprob[KN_MAX_TOP_LOGPROBS];
    // END
    enum eng_finish finish;
    int32_t stop_id;  // the id that stopped it (its TOKEN event came before), or -1
    int32_t n_tokens; // generated by this choice
    enum err error;   // for ENG_FINISH_ERROR
};

struct eng_usage { // known after the first event
    int32_t prompt_tokens, cached_tokens;
    int64_t queued_ns, prefill_ns; // durations
};

enum err eng_create(const struct eng_config *cfg, struct eng **out, struct err_info *info);
enum err eng_start(struct eng *e, struct err_info *info); // starts the thread
// Stops the thread; what still runs ends with ERR_DRAINING. Idempotent.
void eng_stop(struct eng *e);
void eng_destroy(struct eng *e);
// Tests: one turn of the step loop on the calling thread, instead of eng_start. True if it did
// work.
bool eng_step(struct eng *e);

// Any thread. ERR_QUEUE_FULL, ERR_DRAINING, ERR_ENGINE_DEAD, ERR_INVALID (names the field),
// ERR_CONTEXT.
enum err eng_submit(struct eng *e, const struct eng_request *r, struct eng_stream **out,
                    struct err_info *info);
// The consumer of the stream. False: nothing now. The ring is bounded; a sequence whose ring is
// full pauses, and paused sequences are preempted first.
bool eng_stream_next(struct eng_stream *s, struct eng_event *ev);
void eng_stream_usage(const struct eng_stream *s, struct eng_usage *out);
// Ends one choice as the consumer found a stop string: its END says ENG_FINISH_STOP.
void eng_stream_stop(struct eng_stream *s, int32_t choice);
void eng_stream_cancel(struct eng_stream *s); // all choices; their ENDs still come
// The consumer is done with it, whatever its state: unfinished work is cancelled, no wake comes any
// more after this returns (it may wait for a wake call in progress, never for a step).
void eng_stream_release(struct eng_stream *s);

enum err eng_drain(struct eng *e);          // no new requests from now on
int32_t eng_in_flight(const struct eng *e); // requests accepted and not ended

struct eng_health {
    bool alive;           // the loop runs or waits for work
    int64_t last_turn_ns; // monotonic time of the last turn of the loop that made progress
    int32_t running, waiting;
    bool busy; // has work that waits for the loop, not for a consumer to read
};
void eng_health(const struct eng *e, struct eng_health *out);

// What a new request would find, for choosing among engines. Any thread.
struct eng_load {
    // Work that was accepted and is not done, in tokens of a prompt: a token that is to be
    // generated counts for several, and of a long answer only the first part, as most end early.
    int64_t owed;
    bool full, dead; // max_queue is reached; the engine has stopped
    bool beside;     // background work uses what time it gets
};
void eng_load(const struct eng *e, struct eng_load *out);

// SPDX-License-Identifier: Apache-2.0
// The engine's state, shared by the files that make up its thread: engine.c (life and thread),
// engine_submit.c (requests come in), engine_step.c (the step loop), engine_results.c (tokens go
// out), engine_slack.c and engine_lend.c (time and memory of background work), engine_adapters.c
// (slots), sequence.c (states).
#pragma once
#include "serving/batch_build.h"
#include "serving/engine_adapters.h"
#include "serving/engine_metrics.h"
#include "serving/governor.h"
#include "serving/scheduler.h"
#include "serving/step_cost.h"
#include "serving/usage.h"

enum {
    // Rows of prompts whose log-probabilities are wanted, of one step, beside one row per sequence.
    ENG__SCORE_ROWS = 128,
    // Prefill tokens that a step always has room for.
    ENG__MIN_CHUNK = 4,
};

struct eng {
    struct eng_config cfg;
    const struct clock *clock;

    // Shared.
    struct mailbox *mailbox;
    struct lock submit_lock; // around closed, in_flight's growth and sending a request
    _Atomic bool closed;     // nothing comes in any more
    int32_t max_in_flight;
    _Atomic bool draining, stop;
    _Atomic bool alive;
    _Atomic bool busy;
    _Atomic int32_t in_flight;        // accepted, and its last message from the consumer taken
    _Atomic int32_t queued;           // of those, not admitted yet
    _Atomic int64_t owed;             // sum of their `owed`
    _Atomic bool beside;              // background work had something to do when it was last asked
    _Atomic int32_t waiting, running; // requests, for eng_health
    _Atomic int64_t last_turn_ns;
    struct thread thread;
    bool started;

    // Engine thread.
    struct kn_queue *queue;
    struct mdl_forward *forward;
    struct mdl_kv kv;
    size_t block_bytes;
    int32_t blocks; // in the pool; never changes
    struct kv_pool *pool;
    struct eng__sched sched;
    struct eng__cost cost;
    struct eng__batch batch;
    struct eng__metrics metrics;
    struct eng__adapters adapters;
    struct kv_stats reported; // counters as they stand in the metrics
    uint64_t forwards;        // begun
    uint64_t arrivals;
    uint64_t turns;
    bool again;           // something was rearranged: plan once more before going idle
    struct eng__req *all; // accepted, not finished
    int32_t n_all;
    struct eng__req *dirty;  // have events to be flushed
    int64_t next_deadline;   // of all; INT64_MAX: none
    int32_t mixed_steps;     // since the last step of decodes alone
    struct eng__seq **order; // [max_num_seqs], the running list as it was when planning began
    struct kv_seq **tables;  // [max_num_seqs], for lending
    bool out_of_room;        // somebody waits for blocks or places
    struct governor gov;
    struct eng__usage usage;
    struct {                          // of the time between two steps
        int64_t due_ns;               // the earliest decode's; INT64_MAX: none decodes
        int64_t begin_ns, allowed_ns; // of the newest slice
        bool deferred;                // slices came before a step that could have been made
        bool cold;                    // slices came since the last step
        int32_t cold_steps;           // that taught nothing, since one did
        int64_t sliced_ns;            // of the turn in hand
        int64_t gap_ns;               // the longest between two tokens that the step gave
    } slack;
    struct {                   // of memory; guarded by the usage's lock, so that others may read it
        int64_t asked_back_ns; // when background work last had to give some back
        uint64_t asked_back;   // how often
        size_t lent_bytes, need_bytes;
        int64_t waits_since_ns; // for memory; 0: it does not
        int64_t waited_ns;      // in all, before that
        enum eng_lend_reason reason;
    } lend;
    // Why the first in the queue was not admitted; asked again only when one of these has changed.
    struct {
        const struct eng__seq *seq;
        int32_t available, n_running, places;
    } blocked;
};

static inline int64_t eng__now(const struct eng *e) {
    return clock_mono_ns(e->clock);
}

// engine.c
bool eng__take_messages(struct eng *e);
// engine_step.c
bool eng__turn(struct eng *e);
// engine_results.c
void eng__results(struct eng *e, const struct kn_sample_out *out, int64_t now);
// engine_slack.c; true if background work did something
bool eng__slice_idle(struct eng *e);
bool eng__slice_in_slack(struct eng *e, int64_t now); // in place of a step that can wait
void eng__slice_urgent(struct eng *e);                // whatever there is to compute
// How long a step with prompt tokens may take, `limit_ns` at most.
double eng__prefill_limit(const struct eng *e, double decodes_ns, double limit_ns, int64_t now);
void eng__step_ended(struct eng *e, double expected_ns, int64_t begin_ns, int64_t now_ns);
void eng__gaps_ended(struct eng *e); // after the step's results
// engine_lend.c
bool eng__ask_back(struct eng *e, int32_t blocks); // true if some came back

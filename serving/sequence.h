// SPDX-License-Identifier: Apache-2.0
// A request inside the engine and its choices, the sequences. sequence.c has the state machine. All
// of it belongs to the engine thread once the request was submitted; only the stream inside is
// shared with the consumer.
#pragma once
#include "serving/paged_kv/kv.h"
#include "serving/sampling_state.h"
#include "serving/stream.h"

struct eng__flow; // scheduler.h

enum eng__seq_state {
    ENG__NEW,     // not yet queued, or a further choice of a prompt that is not computed yet
    ENG__QUEUED,  // waits for admission, holds no blocks
    ENG__PREFILL, // admitted; tokens of its prompt (or of what it had, after preemption) to compute
    ENG__DECODE,  // one token a step
    ENG__ENDED,   // its END is in the ring
};

struct eng__req;

struct eng__seq {
    struct eng__req *req;
    int32_t choice;
    enum eng__seq_state state;
    int32_t *tokens;  // prompt, then what was generated; memory from admission on
    int32_t n_tokens; // of those; kv.n_tokens of them are computed
    int32_t n_generated;
    struct kv_seq kv;
    struct eng__counts counts;
    int64_t token_ns; // when the last token was emitted
    // The last token is entry out_row of the samples of forward number out_forward.
    uint64_t out_forward;
    int32_t out_row;
    // scheduler
    uint64_t admitted; // seniority: order of first admission, kept over preemption; 0: never
    struct eng__seq *wait_prev, *wait_next;
    int32_t places;  // running places taken while admitted
    int32_t planned; // prefill tokens granted in this step
    bool in_batch;   // of this step
};

struct eng__req {
    struct eng_stream stream; // first: the allocation is freed through it
    struct eng_request r;     // its arrays lie in this allocation
    int32_t *stop_ids;        // end-of-sequence and stop ids that end a choice
    int32_t n_stop_ids;
    int32_t n_bias_all;       // r.sampling.n_bias entries of the client, then the min_tokens bans
    int32_t max_new;          // tokens per choice
    int32_t goal;             // > 0: only rows of the prompt are wanted, this many tokens suffice
    int32_t scored;           // PROMPT events up to this position are out
    struct eng__seq *choices; // [r.n]
    void *memory;             // tokens and counts of all choices, from admission on
    int32_t n_unended;
    bool forked;
    bool paused;            // its ring is full
    bool finished;          // all choices ended
    enum eng_finish finish; // the request's own, for the counters
    struct eng__flow *flow;
    uint64_t arrival;
    int64_t owed;                                // work left, as struct eng_load counts it
    int64_t submitted_ns, admitted_ns, first_ns; // 0: not yet
    struct eng__req *all_prev, *all_next;        // requests of the engine
    struct eng__req *dirty_next;                 // events to be flushed
    bool dirty;
    int32_t taken;       // events planned for it in turn `taken_turn`
    uint64_t taken_turn; //
    uint64_t seen_turn;  // counted as running
};

static inline struct eng__req *eng__req_of(struct eng_stream *s) {
    return (struct eng__req *)(void *)s;
}

// Tokens that must be computed before the next token, or the last wanted row, is there.
static inline int32_t eng__seq_goal(const struct eng__seq *s) {
    return s->req->goal ? s->req->goal : s->n_tokens;
}
static inline int32_t eng__seq_remaining(const struct eng__seq *s) {
    return eng__seq_goal(s) - s->kv.n_tokens;
}
// Running places it takes: a prompt that is not computed yet stands for all its choices.
static inline int32_t eng__seq_width(const struct eng__seq *s) {
    return s->req->forked ? 1 : s->req->n_unended;
}

// Whether the PROMPT event of this position is wanted and not out yet.
bool eng__req_scores(const struct eng__req *q, int32_t position);
// Most tokens that a prefix-cache hit may spare: no row that is still wanted may be skipped.
int32_t eng__seq_match_limit(const struct eng__seq *s);

// The edges of the state machine.
struct eng;
void eng__req_arrive(struct eng *e, struct eng__req *q);    // NEW -> QUEUED
enum err eng__seq_admit(struct eng *e, struct eng__seq *s); // QUEUED -> PREFILL
void eng__seq_prefilled(struct eng *e, struct eng__seq *s); // PREFILL (and NEW) -> DECODE
void eng__seq_preempt(struct eng *e, struct eng__seq *s);   // PREFILL, DECODE -> QUEUED
void eng__seq_end(struct eng *e, struct eng__seq *s, enum eng_finish finish, int32_t stop_id);
void eng__req_fail(struct eng *e, struct eng__req *q, enum err error); // all of it -> ENDED
void eng__req_cancel(struct eng *e, struct eng__req *q);
void eng__emit(struct eng *e, struct eng__req *q, const struct eng_event *ev);
void eng__req_attend(struct eng *e, struct eng__req *q); // what the consumer asked for
void eng__flush(struct eng *e);                          // wakes consumers, lets ended requests go

// SPDX-License-Identifier: Apache-2.0
// Who is admitted, who gets a step's prefill tokens, who has to give way. Pure decisions over
// sequences; the step loop carries them out. README.md, rules 1 to 9, says why they are so.
// Engine thread only.
#pragma once
#include "serving/sequence.h"

enum { ENG__DRR_ADMIT, ENG__DRR_PREFILL, ENG__DRR_KINDS };

// One (tenant, adapter version) with work here. Deficit round-robin in tokens (Shreedhar and
// Varghese, 1995), once for admission and once for the prefill tokens of steps.
struct eng__flow {
    uint64_t tenant, adapter_version;
    int32_t n_requests;
    struct eng__seq *wait_first, *wait_last; // by priority, then arrival
    int64_t deficit[ENG__DRR_KINDS];
    int32_t wants, granted; // of the step being planned
    bool held;              // its adapter is not there: not admitted in this round
};

struct eng__sched {
    struct eng__flow *flows; // [max_flows], n_flows in use
    int32_t max_flows, n_flows;
    int32_t cursor[ENG__DRR_KINDS];
    struct eng__seq **running; // [max_seqs], admitted, the most senior first
    int32_t max_seqs, n_running;
    int32_t places; // running places taken
    int32_t n_waiting;
    uint64_t admissions;
};

enum err eng__sched_init(struct eng__sched *s, int32_t max_seqs, int32_t max_flows);
void eng__sched_fini(struct eng__sched *s);

// A request enters and leaves the fairness domain that it belongs to.
void eng__sched_enter(struct eng__sched *s, struct eng__req *q);
void eng__sched_leave(struct eng__sched *s, struct eng__req *q);

void eng__sched_wait(struct eng__sched *s, struct eng__seq *q); // joins its flow's queue
void eng__sched_unwait(struct eng__sched *s, struct eng__seq *q);
void eng__sched_run(struct eng__sched *s, struct eng__seq *q); // joins the running list
void eng__sched_stop(struct eng__sched *s, struct eng__seq *q);

// The first in a flow's queue that may be admitted, or NULL.
struct eng__seq *eng__flow_first(const struct eng__flow *f);
// The sequence to admit next, or NULL. Asking again without charging gives the same one.
struct eng__seq *eng__sched_next(struct eng__sched *s);
// Its flow pays for what was admitted or generated.
void eng__sched_charge(struct eng__sched *s, struct eng__flow *f, int32_t tokens);

// Prefill tokens of a step: for requests of clients, and for those of the server itself (README.md,
// rule 47).
struct eng__budget {
    int32_t clients, internal;
};
// Distributes up to so many prefill tokens: sets `planned` of every running sequence.
void eng__sched_plan_prefill(struct eng__sched *s, struct eng__budget budget);
// Clients' prompts being computed that lack at most `tokens`.
int32_t eng__sched_short_prompts(const struct eng__sched *s, int32_t tokens);
// Whether there is a prompt to compute, of a client or of the server itself.
bool eng__sched_has_prompt(const struct eng__sched *s, bool internal);

// Who gives its blocks back so that `needy` can go on; NULL: nobody may.
struct eng__seq *eng__sched_victim(const struct eng__sched *s, const struct eng__seq *needy);

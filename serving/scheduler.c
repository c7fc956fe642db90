// SPDX-License-Identifier: Apache-2.0
#include "serving/scheduler.h"
#include "base/mem.h"
#include <assert.h>
#include <limits.h>
#include <string.h>

enum {
    QUANTUM_ADMIT = 512,
    QUANTUM_PREFILL = 32,
    MOST_DEBT = 4096, // what a flow can owe for tokens that it generated while nobody else waited
};

enum err eng__sched_init(struct eng__sched *s, int32_t max_seqs, int32_t max_flows) {
    *s = (struct eng__sched){.max_seqs = max_seqs, .max_flows = max_flows};
    s->running = mem_calloc((size_t)max_seqs, sizeof(struct eng__seq *));
    s->flows = mem_calloc((size_t)max_flows, sizeof *s->flows);
    return s->running && s->flows ? ERR_OK : ERR_NOMEM;
}

void eng__sched_fini(struct eng__sched *s) {
    mem_free(s->running);
    mem_free(s->flows);
    *s = (struct eng__sched){0};
}

// A flow's place in `flows` never changes while it has requests; an empty place has none.
void eng__sched_enter(struct eng__sched *s, struct eng__req *q) {
    struct eng__flow *f = NULL;
    for (int32_t i = 0; i < s->n_flows; i++) {
        struct eng__flow *g = &s->flows[i];
        if (g->n_requests && g->tenant == q->r.tenant &&
            g->adapter_version == q->r.adapter_version) {
            f = g;
            break;
        }
        if (!g->n_requests && !f)
            f = g;
    }
    if (!f) {
        assert(s->n_flows < s->max_flows);
        f = &s->flows[s->n_flows++];
    }
    if (!f->n_requests)
        *f = (struct eng__flow){.tenant = q->r.tenant, .adapter_version = q->r.adapter_version};
    f->n_requests++;
    q->flow = f;
}

void eng__sched_leave(struct eng__sched *s, struct eng__req *q) {
    q->flow->n_requests--;
    q->flow = NULL;
    while (s->n_flows && !s->flows[s->n_flows - 1].n_requests)
        s->n_flows--;
}

static bool waits_before(const struct eng__seq *a, const struct eng__seq *b) {
    if (a->req->r.priority != b->req->r.priority)
        return a->req->r.priority < b->req->r.priority;
    if (a->req->arrival != b->req->arrival)
        return a->req->arrival < b->req->arrival;
    return a->choice < b->choice;
}

void eng__sched_wait(struct eng__sched *s, struct eng__seq *q) {
    struct eng__flow *f = q->req->flow;
    struct eng__seq *after = f->wait_last;
    while (after && waits_before(q, after))
        after = after->wait_prev;
    q->wait_prev = after;
    q->wait_next = after ? after->wait_next : f->wait_first;
    *(after ? &after->wait_next : &f->wait_first) = q;
    *(q->wait_next ? &q->wait_next->wait_prev : &f->wait_last) = q;
    s->n_waiting++;
}

void eng__sched_unwait(struct eng__sched *s, struct eng__seq *q) {
    struct eng__flow *f = q->req->flow;
    *(q->wait_prev ? &q->wait_prev->wait_next : &f->wait_first) = q->wait_next;
    *(q->wait_next ? &q->wait_next->wait_prev : &f->wait_last) = q->wait_prev;
    q->wait_prev = q->wait_next = NULL;
    s->n_waiting--;
    if (!f->wait_first && f->deficit[ENG__DRR_ADMIT] > 0)
        f->deficit[ENG__DRR_ADMIT] = 0; // credit is not saved up while nothing waits
}

static bool is_senior(const struct eng__seq *a, const struct eng__seq *b) {
    if (a->req->r.priority != b->req->r.priority)
        return a->req->r.priority < b->req->r.priority;
    return a->admitted != b->admitted ? a->admitted < b->admitted : a->choice < b->choice;
}

void eng__sched_run(struct eng__sched *s, struct eng__seq *q) {
    assert(s->n_running < s->max_seqs);
    if (!q->admitted)
        q->admitted = ++s->admissions;
    int32_t i = s->n_running++;
    for (; i > 0 && is_senior(q, s->running[i - 1]); i--)
        s->running[i] = s->running[i - 1];
    s->running[i] = q;
    q->places = eng__seq_width(q);
    s->places += q->places;
}

void eng__sched_stop(struct eng__sched *s, struct eng__seq *q) {
    int32_t i = 0;
    while (s->running[i] != q)
        i++;
    memmove(s->running + i, s->running + i + 1,
            (size_t)(--s->n_running - i) * sizeof(struct eng__seq *));
    s->places -= q->places;
}

struct eng__seq *eng__flow_first(const struct eng__flow *f) {
    struct eng__seq *q = f->wait_first;
    while (q && q->req->paused) // nobody reads its events: it would only hold memory
        q = q->wait_next;
    return q;
}

static struct eng__seq *first_ready(const struct eng__flow *f) {
    return f->held ? NULL : eng__flow_first(f);
}

// The flow whose turn it is among those with `wants`. When all are in debt, they get as many quanta
// as the first one to come out of it needs: rounds of the classic algorithm, in one go.
static struct eng__flow *turn(struct eng__sched *s, int kind, int64_t quantum) {
    for (;;) {
        int64_t rounds = INT64_MAX;
        for (int32_t n = 0; n < s->n_flows; n++) {
            int32_t i = (s->cursor[kind] + n) % s->n_flows;
            struct eng__flow *f = &s->flows[i];
            if (!f->wants)
                continue;
            if (f->deficit[kind] > 0) {
                s->cursor[kind] = i;
                return f;
            }
            int64_t need = -f->deficit[kind] / quantum + 1;
            if (need < rounds)
                rounds = need;
        }
        if (rounds == INT64_MAX)
            return NULL;
        for (int32_t i = 0; i < s->n_flows; i++)
            if (s->flows[i].wants)
                s->flows[i].deficit[kind] += rounds * quantum;
    }
}

struct eng__seq *eng__sched_next(struct eng__sched *s) {
    int32_t best = INT32_MAX;
    bool any = false;
    for (int32_t i = 0; i < s->n_flows; i++) {
        const struct eng__seq *q = first_ready(&s->flows[i]);
        if (q && (!any || q->req->r.priority < best)) {
            best = q->req->r.priority;
            any = true;
        }
    }
    for (int32_t i = 0; i < s->n_flows; i++) {
        const struct eng__seq *q = first_ready(&s->flows[i]);
        s->flows[i].wants = q && q->req->r.priority == best;
    }
    struct eng__flow *f = any ? turn(s, ENG__DRR_ADMIT, QUANTUM_ADMIT) : NULL;
    return f ? first_ready(f) : NULL;
}

void eng__sched_charge(struct eng__sched *s, struct eng__flow *f, int32_t tokens) {
    (void)s;
    int64_t *d = &f->deficit[ENG__DRR_ADMIT];
    *d -= tokens;
    if (*d < -MOST_DEBT)
        *d = -MOST_DEBT;
}

static bool can_prefill(const struct eng__seq *q, bool internal) {
    return q->state == ENG__PREFILL && !q->req->paused && q->req->r.internal == internal &&
           eng__seq_remaining(q) > 0;
}

static int32_t give(struct eng__seq *q, int32_t tokens) {
    int32_t room = eng__seq_remaining(q) - q->planned;
    if (tokens > room)
        tokens = room;
    q->planned += tokens;
    return tokens;
}

// Within a flow: half to the prompt that was admitted first, so that it never stands still; the
// rest to the shortest remaining, so that short prompts do not wait behind a giant.
static void share_flow(struct eng__sched *s, struct eng__flow *f, int32_t priority, bool internal) {
    int32_t left = f->granted;
    for (int32_t i = 0; i < s->n_running && left == f->granted; i++) {
        struct eng__seq *q = s->running[i];
        if (q->req->flow == f && q->req->r.priority == priority && can_prefill(q, internal))
            left -= give(q, (left + 1) / 2);
    }
    while (left > 0) {
        struct eng__seq *shortest = NULL;
        for (int32_t i = 0; i < s->n_running; i++) {
            struct eng__seq *q = s->running[i];
            if (q->req->flow == f && q->req->r.priority == priority && can_prefill(q, internal) &&
                q->planned < eng__seq_remaining(q) &&
                (!shortest || eng__seq_remaining(q) < eng__seq_remaining(shortest)))
                shortest = q;
        }
        if (!shortest)
            return;
        left -= give(shortest, left);
    }
}

// The first priority after `after` that has a prompt to compute, or false.
static bool next_priority(const struct eng__sched *s, bool internal, int64_t after, int32_t *out) {
    for (int32_t i = 0; i < s->n_running; i++) { // most senior first, so priorities ascend
        if (s->running[i]->req->r.priority > after && can_prefill(s->running[i], internal)) {
            *out = s->running[i]->req->r.priority;
            return true;
        }
    }
    return false;
}

static void plan_prompts(struct eng__sched *s, int32_t budget, bool internal) {
    int64_t after = INT64_MIN;
    for (int32_t priority; budget > 0 && next_priority(s, internal, after, &priority);
         after = priority) {
        for (int32_t i = 0; i < s->n_flows; i++)
            s->flows[i].wants = s->flows[i].granted = 0;
        for (int32_t i = 0; i < s->n_running; i++) {
            struct eng__seq *q = s->running[i];
            if (q->req->r.priority == priority && can_prefill(q, internal))
                q->req->flow->wants += eng__seq_remaining(q);
        }
        struct eng__flow *f;
        while (budget > 0 && (f = turn(s, ENG__DRR_PREFILL, QUANTUM_PREFILL))) {
            int64_t n = f->deficit[ENG__DRR_PREFILL];
            if (n > budget)
                n = budget;
            if (n > f->wants)
                n = f->wants;
            f->wants -= (int32_t)n;
            f->granted += (int32_t)n;
            f->deficit[ENG__DRR_PREFILL] -= n;
            budget -= (int32_t)n;
            if (!f->wants)
                f->deficit[ENG__DRR_PREFILL] = 0;
        }
        for (int32_t i = 0; i < s->n_flows; i++)
            if (s->flows[i].granted)
                share_flow(s, &s->flows[i], priority, internal);
    }
}

void eng__sched_plan_prefill(struct eng__sched *s, struct eng__budget budget) {
    for (int32_t i = 0; i < s->n_running; i++)
        s->running[i]->planned = 0;
    plan_prompts(s, budget.clients, false);
    plan_prompts(s, budget.internal, true);
}

bool eng__sched_has_prompt(const struct eng__sched *s, bool internal) {
    int32_t priority;
    return next_priority(s, internal, INT64_MIN, &priority);
}

int32_t eng__sched_short_prompts(const struct eng__sched *s, int32_t tokens) {
    int32_t n = 0;
    for (int32_t i = 0; i < s->n_running; i++)
        n += can_prefill(s->running[i], false) && eng__seq_remaining(s->running[i]) <= tokens;
    return n;
}

struct eng__seq *eng__sched_victim(const struct eng__sched *s, const struct eng__seq *needy) {
    struct eng__seq *junior = NULL;
    for (int32_t i = s->n_running; i-- > 0;) {
        struct eng__seq *q = s->running[i];
        if (q == needy || q->in_batch)
            continue;
        if (q->req->paused)
            return q;
        // A sequence that waits for admission only displaces a lower priority; one of the server
        // itself waits for those that run.
        bool may = needy->state == ENG__QUEUED
                       ? q->req->r.priority > needy->req->r.priority && !needy->req->r.internal
                       : is_senior(needy, q);
        if (may && !junior)
            junior = q;
    }
    return junior;
}

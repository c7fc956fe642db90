// SPDX-License-Identifier: Apache-2.0
// The life of a request and of its choices. The function behind each edge:
//
//                     eng__req_arrive          eng__seq_admit           eng__seq_prefilled
//   NEW (choice 0) ------------------> QUEUED -----------------> PREFILL ------------------> DECODE
//                                       ^  ^                        |                          |
//                                       |  +----- eng__seq_preempt -+                          |
//                                       +-------- eng__seq_preempt ----------------------------+
//   NEW (others) ------------------------- eng__seq_prefilled -----------------------------> DECODE
//
//   any state ---- eng__seq_end (stop, length; eng__req_fail and eng__req_cancel: all) ----> ENDED
//
// Invariants
// 1. QUEUED sequences stand in their flow's queue and hold no blocks; PREFILL and DECODE sequences
//    stand in the running list; NEW and ENDED ones in neither.
// 2. Until choice 0 has computed the prompt, it stands for all choices of its request.
// 3. tokens[0, kv.n_tokens) are computed. In DECODE exactly one token is not.
// 4. A choice ends once: eng__seq_end pushes its END, for which the ring always has room.
// 5. A preempted sequence keeps its tokens and its seniority.
#include "base/mem.h"
#include "serving/engine_internal.h"
#include <assert.h>
#include <string.h>

bool eng__req_scores(const struct eng__req *q, int32_t position) {
    const struct eng_request *r = &q->r;
    if (position <= q->scored || position >= r->n_prompt)
        return false;
    return r->kind == ENG_SCORE ? !r->score_mask || r->score_mask[position]
                                : r->n_prompt_logprobs >= 0;
}

int32_t eng__seq_match_limit(const struct eng__seq *s) {
    int32_t goal = eng__seq_goal(s), position = s->req->scored + 1;
    while (position <= goal && !eng__req_scores(s->req, position))
        position++;
    // The row before `position` must be computed, and in any case the last one.
    return position < goal ? position : goal;
}

void eng__emit(struct eng *e, struct eng__req *q, const struct eng_event *ev) {
    eng__stream_push(&q->stream, ev);
    if (q->dirty)
        return;
    q->dirty = true;
    q->dirty_next = e->dirty;
    e->dirty = q;
}

void eng__req_arrive(struct eng *e, struct eng__req *q) {
    q->arrival = ++e->arrivals;
    e->n_all++;
    q->n_unended = q->r.n;
    q->all_next = e->all;
    if (e->all)
        e->all->all_prev = q;
    e->all = q;
    if (q->r.deadline_ns < e->next_deadline)
        e->next_deadline = q->r.deadline_ns;
    eng__sched_enter(&e->sched, q);
    struct eng__seq *first = &q->choices[0];
    first->state = ENG__QUEUED;
    eng__sched_wait(&e->sched, first);
    if (q->goal == 0 && q->max_new == 0 && q->r.kind != ENG_LOAD) { // nothing is to be computed
        for (int32_t c = 0; c < q->r.n; c++)
            eng__seq_end(e, &q->choices[c], ENG_FINISH_LENGTH, -1);
    }
}

// The memory that a request needs while it runs, and keeps until its end.
static enum err open_memory(struct eng *e, struct eng__req *q) {
    const struct eng_sampling *p = &q->r.sampling;
    int32_t n = q->r.n, len = q->r.n_prompt + q->max_new, vocab = e->cfg.weights->config.vocab;
    bool counts = p->presence != 0 || p->frequency != 0 || p->repetition != 1;
    int32_t cap = !counts || q->goal ? 0 : len < vocab ? len : vocab;
    size_t tokens = (size_t)len * sizeof(int32_t), each, all;
    if (!mem_add(tokens, eng__counts_bytes(cap), &each) || !mem_mul(each, (size_t)n, &all))
        return ERR_NOMEM;
    char *at = q->memory = mem_alloc(all);
    if (!at)
        return ERR_NOMEM;
    struct kv_domain domain = {q->r.adapter_version, q->r.cache_salt};
    int32_t blocks = (len + KN_KV_BLOCK - 1) / KN_KV_BLOCK;
    for (int32_t c = 0; c < n; c++, at += each) {
        struct eng__seq *s = &q->choices[c];
        s->tokens = (int32_t *)(void *)at;
        memcpy(s->tokens, q->r.prompt, (size_t)q->r.n_prompt * sizeof *s->tokens);
        eng__counts_init(&s->counts, at + tokens, cap);
        enum err err = kv_seq_init(&s->kv, e->pool, blocks, &domain);
        if (err)
            return err;
    }
    for (int32_t i = 0; i < q->r.n_prompt; i++)
        eng__counts_prompt(&q->choices[0].counts, q->r.prompt[i]);
    return ERR_OK;
}

static void close_memory(struct eng *e, struct eng__req *q) {
    for (int32_t c = 0; c < q->r.n; c++)
        if (q->choices[c].kv.table)
            kv_seq_fini(&q->choices[c].kv, e->pool);
    mem_free(q->memory);
    q->memory = NULL;
}

enum err eng__seq_admit(struct eng *e, struct eng__seq *s) {
    struct eng__req *q = s->req;
    int64_t now = eng__now(e);
    if (!q->memory) {
        enum err err = open_memory(e, q);
        if (err)
            return err;
    }
    bool first = !q->admitted_ns;
    int32_t found = kv_seq_match(&s->kv, e->pool, s->tokens, eng__seq_match_limit(s), now);
    if (first) {
        q->admitted_ns = now;
        atomic_fetch_sub(&e->queued, 1);
        atomic_store(&q->stream.cached_tokens, found);
        atomic_store(&q->stream.queued_ns, now - q->submitted_ns);
        eng__sched_charge(&e->sched, q->flow, eng__seq_goal(s) - found);
    }
    eng__sched_unwait(&e->sched, s);
    s->state = ENG__PREFILL;
    eng__sched_run(&e->sched, s);
    return ERR_OK;
}

void eng__seq_prefilled(struct eng *e, struct eng__seq *s) {
    struct eng__req *q = s->req;
    assert(s->state == ENG__PREFILL && s->kv.n_tokens == s->n_tokens);
    s->state = ENG__DECODE;
    if (q->forked)
        return;
    e->sched.places -= s->places - 1;
    s->places = 1;
    q->forked = true;
    for (int32_t c = 1; c < q->r.n; c++) {
        struct eng__seq *t = &q->choices[c];
        enum err err = kv_seq_fork(&t->kv, &s->kv, e->pool);
        assert(err == ERR_OK); // tables of one request have one size
        (void)err;
        eng__counts_copy(&t->counts, &s->counts);
        t->state = ENG__DECODE;
        eng__sched_run(&e->sched, t);
    }
    for (int32_t c = q->r.n; c-- > 0;) // asked for while choice 0 had to go on for the others
        if (atomic_load(&q->stream.stops[c]))
            eng__seq_end(e, &q->choices[c], ENG_FINISH_STOP, -1);
}

void eng__seq_preempt(struct eng *e, struct eng__seq *s) {
    kv_seq_drop(&s->kv, e->pool, eng__now(e));
    eng__sched_stop(&e->sched, s);
    s->state = ENG__QUEUED;
    eng__sched_wait(&e->sched, s);
    metric_add(e->metrics.preemptions, 1);
}

// Leaves the queue or the running list; what it holds is dropped, or purged if it may be broken.
static void leave(struct eng *e, struct eng__seq *s, bool purge) {
    if (e->blocked.seq == s)
        e->blocked.seq = NULL;
    if (s->state == ENG__QUEUED)
        eng__sched_unwait(&e->sched, s);
    if (s->state == ENG__PREFILL || s->state == ENG__DECODE)
        eng__sched_stop(&e->sched, s);
    if (s->kv.n_blocks)
        (purge ? kv_seq_purge : kv_seq_drop)(&s->kv, e->pool, eng__now(e));
    s->state = ENG__ENDED;
}

static void all_ended(struct eng *e, struct eng__req *q) {
    q->finished = true;
    e->n_all--;
    atomic_fetch_sub(&e->owed, q->owed);
    if (!q->admitted_ns)
        atomic_fetch_sub(&e->queued, 1);
    *(q->all_prev ? &q->all_prev->all_next : &e->all) = q->all_next;
    if (q->all_next)
        q->all_next->all_prev = q->all_prev;
    eng__sched_leave(&e->sched, q);
    eng__metrics_request(&e->metrics, q, eng__now(e));
    close_memory(e, q);
    if (q->r.adapter)
        adp_unpin(q->r.adapter);
    q->r.adapter = NULL;
}

// Of several choices the request's own finish is the gravest.
static enum eng_finish graver(enum eng_finish a, enum eng_finish b) {
    return a > b ? a : b;
}

static void end(struct eng *e, struct eng__seq *s, const struct eng_event *ev, bool purge) {
    struct eng__req *q = s->req;
    if (s->state == ENG__ENDED)
        return;
    leave(e, s, purge);
    eng__emit(e, q, ev);
    q->finish = graver(q->finish, ev->finish);
    if (--q->n_unended == 0)
        all_ended(e, q);
}

void eng__seq_end(struct eng *e, struct eng__seq *s, enum eng_finish finish, int32_t stop_id) {
    struct eng_event ev = {
        .type = ENG_EVENT_END,
        .choice = s->choice,
        .finish = finish,
        .stop_id = stop_id,
        .n_tokens = s->n_generated,
    };
    end(e, s, &ev, false);
}

void eng__req_fail(struct eng *e, struct eng__req *q, enum err error) {
    bool purge = error == ERR_NONFINITE || error == ERR_DEVICE;
    for (int32_t c = q->r.n; c-- > 0;) {
        struct eng_event ev = {
            .type = ENG_EVENT_END,
            .choice = c,
            .finish = ENG_FINISH_ERROR,
            .stop_id = -1,
            .n_tokens = q->choices[c].n_generated,
            .error = error,
        };
        end(e, &q->choices[c], &ev, purge);
    }
}

void eng__req_cancel(struct eng *e, struct eng__req *q) {
    for (int32_t c = q->r.n; c-- > 0;)
        eng__seq_end(e, &q->choices[c], ENG_FINISH_CANCELLED, -1);
}

void eng__req_attend(struct eng *e, struct eng__req *q) {
    atomic_store(&q->stream.attention, false); // before the flags are read: a later one comes again
    if (atomic_load(&q->stream.cancelled)) {
        eng__req_cancel(e, q);
        return;
    }
    int32_t stops = 0;
    for (int32_t c = 0; c < q->r.n; c++)
        stops += atomic_load(&q->stream.stops[c]);
    // Choice 0 goes on for the others while the prompt is not computed (invariant 2).
    if (stops && (q->forked || stops == q->r.n))
        for (int32_t c = q->r.n; c-- > 0;)
            if (atomic_load(&q->stream.stops[c]))
                eng__seq_end(e, &q->choices[c], ENG_FINISH_STOP, -1);
    if (q->paused && eng__stream_half_empty(&q->stream)) {
        q->paused = false;
        atomic_store(&q->stream.blocked, false);
    }
}

void eng__flush(struct eng *e) {
    while (e->dirty) {
        struct eng__req *q = e->dirty;
        e->dirty = q->dirty_next;
        q->dirty = false;
        eng__stream_flush(&q->stream, q->finished);
        // If a message from the consumer is on its way, the request goes when that has come.
        if (q->finished && !atomic_exchange(&q->stream.attention, true)) {
            atomic_fetch_sub(&e->in_flight, 1);
            eng__stream_unref(&q->stream);
        }
    }
}

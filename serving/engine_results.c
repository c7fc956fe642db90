// SPDX-License-Identifier: Apache-2.0
// What a step gave: positions are committed, prompt rows become PROMPT events, tokens go to their
// choices, and choices end.
#include "serving/engine_internal.h"
#include <string.h>

static void copy_numbers(struct eng_event *ev, const struct kn_sample_out *o, int32_t n_top) {
    ev->token = o->token;
    ev->logprob = o->logprob;
    ev->rank = o->rank;
    ev->n_top = o->n_top < n_top ? o->n_top : n_top;
    if (ev->n_top < 0)
        ev->n_top = 0;
    memcpy(ev->top_id, o->top_id, (size_t)ev->n_top * sizeof *ev->top_id);
    memcpy(ev->top_logprob, o->top_logprob, (size_t)ev->n_top * sizeof *ev->top_logprob);
}

static double seconds(int64_t ns) {
    return (double)ns / 1e9;
}

static void prompt_done(struct eng *e, struct eng__req *q, int64_t now) {
    if (q->first_ns)
        return;
    q->first_ns = now;
    q->owed -= q->r.n_prompt;
    atomic_fetch_sub(&e->owed, q->r.n_prompt);
    atomic_store(&q->stream.prefill_ns, now - q->admitted_ns);
    if (q->r.internal)
        return;
    histogram_observe(e->metrics.queue, seconds(q->admitted_ns - q->submitted_ns));
    histogram_observe(e->metrics.prefill, seconds(now - q->admitted_ns));
    metric_add(e->metrics.prompt_tokens, q->r.n_prompt);
    if (q->max_new)
        histogram_observe(e->metrics.ttft, seconds(now - q->submitted_ns));
}

static void take_gap(struct eng *e, int64_t now, int64_t ns) {
    histogram_observe(e->metrics.itl, seconds(ns));
    eng__usage_gap(&e->usage, now, ns);
    if (ns > e->slack.gap_ns)
        e->slack.gap_ns = ns;
}

static bool is_stop(const struct eng__req *q, int32_t id) {
    for (int32_t i = 0; i < q->n_stop_ids; i++)
        if (q->stop_ids[i] == id)
            return true;
    return false;
}

static void take_token(struct eng *e, struct eng__seq *s, const struct kn_sample_out *o,
                       int32_t row, int64_t now) {
    struct eng__req *q = s->req;
    int32_t id = o->token;
    struct eng_event ev = {
        .type = ENG_EVENT_TOKEN,
        .choice = s->choice,
        .index = s->n_generated,
    };
    copy_numbers(&ev, o, q->r.sampling.n_logprobs > 0 ? q->r.sampling.n_logprobs : 0);
    s->tokens[s->n_tokens++] = id;
    s->n_generated++;
    s->out_forward = e->forwards;
    s->out_row = row;
    eng__counts_generated(&s->counts, id);
    eng__sched_charge(&e->sched, q->flow, 1);
    metric_add(e->metrics.generation_tokens, 1);
    prompt_done(e, q, now);
    if (s->token_ns)
        take_gap(e, now, now - s->token_ns);
    s->token_ns = now;
    eng__emit(e, q, &ev);
    if (is_stop(q, id))
        eng__seq_end(e, s, ENG_FINISH_STOP, id);
    else if (s->n_generated >= q->max_new)
        eng__seq_end(e, s, ENG_FINISH_LENGTH, -1);
}

static void take_score(struct eng *e, struct eng__req *q, const struct eng__row *row,
                       const struct kn_sample_out *o) {
    struct eng_event ev = {.type = ENG_EVENT_PROMPT, .index = row->position};
    copy_numbers(&ev, o, q->r.n_prompt_logprobs > 0 ? q->r.n_prompt_logprobs : 0);
    ev.token = q->r.prompt[row->position];
    q->scored = row->position;
    eng__emit(e, q, &ev);
}

static void take_row(struct eng *e, int32_t i, const struct kn_sample_out *o, int64_t now) {
    const struct eng__row *row = &e->batch.rows[i];
    struct eng__seq *s = row->seq;
    struct eng__req *q = s->req;
    if (q->finished)
        return;
    if (o->flags) {
        eng__req_fail(e, q, o->flags & KN_SAMPLE_NONFINITE ? ERR_NONFINITE : ERR_INVALID);
        return;
    }
    if (row->choice < 0) {
        take_score(e, q, row, o);
        return;
    }
    if (s->state == ENG__PREFILL)
        eng__seq_prefilled(e, s);
    if (!q->finished && q->choices[row->choice].state == ENG__DECODE)
        take_token(e, &q->choices[row->choice], o, i, now);
}

void eng__results(struct eng *e, const struct kn_sample_out *out, int64_t now) {
    const struct eng__batch *b = &e->batch;
    for (int32_t i = 0; i < b->b.n_seqs; i++) {
        struct eng__seq *s = b->entries[i].seq;
        kv_seq_commit(&s->kv, e->pool, s->tokens + s->kv.n_tokens, b->entries[i].n, now);
    }
    for (int32_t i = 0; i < b->b.n_want; i++)
        take_row(e, i, &out[i], now);
    for (int32_t i = 0; i < b->b.n_seqs; i++) { // prompts of which only rows were wanted
        struct eng__seq *s = b->entries[i].seq;
        if (s->state != ENG__PREFILL || !s->req->goal || eng__seq_remaining(s) > 0)
            continue;
        prompt_done(e, s->req, now);
        for (int32_t c = s->req->r.n; c-- > 0;)
            eng__seq_end(e, &s->req->choices[c], ENG_FINISH_LENGTH, -1);
    }
}

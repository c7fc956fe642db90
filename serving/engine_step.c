// SPDX-License-Identifier: Apache-2.0
// One turn of the engine: messages, deadlines, admission, planning, one forward, results.
// README.md, rules 1 to 15, says how a step is put together and why.
#include "serving/engine_internal.h"
#include <assert.h>

enum {
    SHORT_PROMPT = 512, // tokens; a prompt that lacks no more counts for the stretch
    MAX_SHORT = 8,      // of those that count
    FIRST_CHUNK = 512,  // while nothing is known about the cost
    LEAST_CHUNK = 256,  // of a step without decodes
    MEASURE_EVERY = 64, // steps with prefill between two without, while there are decodes
    FIRST_INTERNAL = 8, // of the server's own, while nothing is known about the cost
    INTERNAL_PART = 8,  // of the prompt tokens of a step one in so many is theirs, beside clients'
};
static const double internal_stretch =
    1.1; // of a step with decodes, for prompts of the server itself
static const double internal_step_ns =
    4e6; // a step of nothing else: who arrives does not wait longer
static const double solo_step_ns = 400e6; // a step without decodes ends about here: others may come
static const double long_step_ns = 200e6; // a step beyond this shows signs of life in between
static const int64_t sign_of_life_ns = 100000000;

static void expire(struct eng *e, int64_t now) {
    if (now < e->next_deadline)
        return;
    e->next_deadline = INT64_MAX;
    for (struct eng__req *q = e->all, *next; q; q = next) {
        next = q->all_next;
        if (q->r.deadline_ns <= now)
            eng__req_fail(e, q, ERR_DEADLINE);
        else if (q->r.deadline_ns < e->next_deadline)
            e->next_deadline = q->r.deadline_ns;
    }
}

static int32_t blocks_of(int32_t tokens) {
    return (tokens + KN_KV_BLOCK - 1) / KN_KV_BLOCK;
}

// Admission.

// Blocks that admitted prompts still lack, and one for each decode: what is spoken for.
static int32_t spoken_for(const struct eng *e) {
    int32_t n = 0;
    for (int32_t i = 0; i < e->sched.n_running; i++) {
        const struct eng__seq *s = e->sched.running[i];
        int32_t lacks = blocks_of(eng__seq_goal(s)) - s->kv.n_blocks;
        n += s->state == ENG__DECODE ? 1 : lacks > 0 ? lacks : 0;
    }
    return n;
}

// Blocks missing for s to finish its prefill; <= 0: it fits.
static int32_t lacks_blocks(struct eng *e, const struct eng__seq *s) {
    const struct eng__req *q = s->req;
    struct kv_domain domain = {q->r.adapter_version, q->r.cache_salt};
    const int32_t *tokens = q->memory ? s->tokens : q->r.prompt;
    int32_t need = blocks_of(eng__seq_goal(s)),
            available = kv_pool_available(e->pool) - spoken_for(e);
    if (need <= available) // fits even if nothing is cached
        return 0;
    int32_t idle;
    int32_t found = kv_pool_probe(e->pool, &domain, tokens, eng__seq_match_limit(s), &idle);
    return need - found / KN_KV_BLOCK - (available - idle);
}

static bool still_blocked(const struct eng *e, const struct eng__seq *s) {
    return e->blocked.seq == s && e->blocked.available == kv_pool_available(e->pool) &&
           e->blocked.n_running == e->sched.n_running && e->blocked.places == e->sched.places;
}

static bool make_way(struct eng *e, struct eng__seq *s, int32_t lacks) {
    if (lacks > 0 && eng__ask_back(e, lacks))
        return true;
    struct eng__seq *victim = eng__sched_victim(&e->sched, s);
    if (victim)
        eng__seq_preempt(e, victim);
    return victim;
}

static void admit(struct eng *e) {
    struct eng__seq *s;
    e->out_of_room = false;
    eng__adapters_begin(e);
    while ((s = eng__sched_next(&e->sched))) {
        if (!eng__adapters_ready(e, s->req)) {
            if (s->state == ENG__QUEUED)
                s->req->flow->held = true; // others overtake (rule 29)
            continue;
        }
        if (s->req->r.kind == ENG_LOAD) {
            eng__adapters_admitted(e, s->req);
            eng__seq_end(e, s, ENG_FINISH_LENGTH, -1);
            continue;
        }
        e->out_of_room = true;
        if (still_blocked(e, s))
            return;
        int32_t lacks = lacks_blocks(e, s);
        if (lacks > 0 || e->sched.places + eng__seq_width(s) > e->cfg.max_num_seqs) {
            if (make_way(e, s, lacks))
                continue;
            e->blocked.seq = s;
            e->blocked.available = kv_pool_available(e->pool);
            e->blocked.n_running = e->sched.n_running;
            e->blocked.places = e->sched.places;
            return; // nobody overtakes it: a large request must not starve
        }
        e->out_of_room = false;
        enum err err = eng__seq_admit(e, s);
        if (err)
            eng__req_fail(e, s->req, err);
        else
            eng__adapters_admitted(e, s->req);
    }
}

// Planning.

// Whether the ring can take n more events of this step; if not, the request pauses until the
// consumer has read half of it.
static bool has_room(struct eng *e, struct eng__req *q, int32_t n) {
    if (q->taken_turn != e->turns) {
        q->taken_turn = e->turns;
        q->taken = 0;
    }
    if (eng__stream_room(&q->stream, q->n_unended) - q->taken >= n)
        return true;
    if (eng__stream_block(&q->stream)) {
        q->paused = true;
        e->blocked.seq = NULL; // it may have to make way now
        e->again = true;
        return false;
    }
    return eng__stream_room(&q->stream, q->n_unended) - q->taken >= n;
}

// Reserves blocks up to `upto`, at others' expense if need be.
static enum err reserve(struct eng *e, struct eng__seq *s, int32_t upto, int64_t now) {
    bool asked = false;
    for (;;) {
        int32_t n;
        enum err err =
            kv_seq_reserve(&s->kv, e->pool, upto, &e->batch.copies[e->batch.n_copies], &n, now);
        if (err != ERR_AGAIN) {
            e->batch.n_copies += n;
            return err;
        }
        if (!asked) {
            asked = true;
            if (eng__ask_back(e, blocks_of(upto) - s->kv.n_blocks + 1))
                continue;
        }
        struct eng__seq *victim = eng__sched_victim(&e->sched, s);
        if (!victim)
            return err;
        eng__seq_preempt(e, victim);
    }
}

static void plan_decode(struct eng *e, struct eng__seq *s, int64_t now) {
    if (s->state != ENG__DECODE || s->req->paused || !has_room(e, s->req, 1))
        return;
    if (reserve(e, s, s->kv.n_tokens + 1, now)) {
        eng__seq_preempt(e, s); // all others are senior or in this step already
        e->again = true;
        return;
    }
    s->req->taken++;
    eng__batch_add(&e->batch, s, 1, e->forwards);
}

// Beside clients' decodes one of the server itself, each in its turn.
static void plan_decodes(struct eng *e, int32_t n, int64_t now) {
    for (int32_t i = 0; i < n; i++)
        if (!e->order[i]->req->r.internal)
            plan_decode(e, e->order[i], now);
    int32_t clients = e->batch.b.n_seqs;
    for (int32_t i = 0; i < n && (!clients || e->batch.b.n_seqs == clients); i++) {
        struct eng__seq *s = e->order[(e->turns + (uint64_t)i) % (uint64_t)n];
        if (s->req->r.internal)
            plan_decode(e, s, now);
    }
}

static int32_t first_prefill_position(const struct eng *e) {
    int32_t first = -1;
    for (int32_t i = 0; i < e->sched.n_running; i++) {
        const struct eng__seq *s = e->sched.running[i];
        if (s->state == ENG__PREFILL && !s->req->paused && s->kv.n_tokens > first)
            first = s->kv.n_tokens;
    }
    return first;
}

static int32_t within(int32_t n, int32_t least, int32_t most) {
    n = n > least ? n : least;
    return n < most ? n : most;
}

// Of a step without decodes.
static struct eng__budget solo_budget(const struct eng *e, int32_t first, int32_t most) {
    const struct eng__shape none = {0}, one = {.rows = 1};
    bool known = eng__cost_predict(&e->cost, &one) >= 0;
    struct eng__budget b = {0};
    if (!eng__sched_has_prompt(&e->sched, false)) {
        int32_t n = known ? eng__cost_prefill(&e->cost, &none, first, internal_step_ns, most)
                          : FIRST_INTERNAL;
        b.internal = within(n, 1, most);
        return b;
    }
    int32_t n = known ? eng__cost_prefill(&e->cost, &none, first, solo_step_ns, most) : FIRST_CHUNK;
    n = within(n, LEAST_CHUNK, most);
    if (eng__sched_has_prompt(&e->sched, true) && n > 1)
        b.internal = within(n / INTERNAL_PART, 1, n);
    b.clients = n - b.internal;
    return b;
}

// Beside decodes, which need alone_ns without any prompt: clients' prompts.
static int32_t client_budget(struct eng *e, double alone, int32_t first, int32_t most,
                             int64_t now) {
    int32_t waiting = eng__sched_short_prompts(&e->sched, SHORT_PROMPT);
    waiting = waiting < 1 ? 1 : waiting > MAX_SHORT ? MAX_SHORT : waiting;
    double stretch = 1 + (e->cfg.prefill_stretch - 1) * waiting;
    double limit = eng__prefill_limit(e, alone, stretch * alone, now);
    int32_t n = eng__cost_prefill(&e->cost, &e->batch.shape, first, limit, most);
    if (e->slack.deferred && n < ENG__MIN_CHUNK)
        return 0; // this step is due; the next one has time
    return n > ENG__MIN_CHUNK ? n : ENG__MIN_CHUNK;
}

// The same for prompts of the server itself. One token is progress.
static int32_t internal_budget(struct eng *e, double alone, int32_t first, int32_t most,
                               int64_t now) {
    double limit = eng__prefill_limit(e, alone, internal_stretch * alone, now);
    int32_t n = eng__cost_prefill(&e->cost, &e->batch.shape, first, limit, most);
    return within(n, e->slack.deferred ? 0 : 1, most);
}

// Prefill tokens of this step, given its decodes.
static struct eng__budget prefill_budget(struct eng *e, int64_t now) {
    const struct eng__shape *decodes = &e->batch.shape;
    int32_t most = e->batch.limits.max_tokens - decodes->rows, first = first_prefill_position(e);
    struct eng__budget b = {0};
    if (first < 0)
        return b;
    if (most > e->cfg.max_num_batched_tokens)
        most = e->cfg.max_num_batched_tokens;
    if (!decodes->rows)
        return solo_budget(e, first, most);
    // The yardstick is a step of these decodes alone; where it is not known, this step measures it.
    if (!eng__cost_knows(&e->cost, decodes->rows) || e->mixed_steps >= MEASURE_EVERY)
        return b;
    double alone = eng__cost_predict(&e->cost, decodes);
    bool clients = eng__sched_has_prompt(&e->sched, false);
    if (eng__sched_has_prompt(&e->sched, true))
        b.internal = internal_budget(e, alone, first, most, now);
    if (!clients)
        return b;
    // Both together stretch the step no more than clients' prompts alone may.
    int32_t n = client_budget(e, alone, first, most, now);
    b.internal = n < 2 ? 0 : within(b.internal, 0, within(n / INTERNAL_PART, 1, n));
    b.clients = n - b.internal;
    return b;
}

// As much of what s was granted as rows, ring and blocks allow.
static void plan_prompt(struct eng *e, struct eng__seq *s, int64_t now) {
    struct eng__req *q = s->req;
    int32_t n = eng__batch_fit(s, s->planned, eng__batch_rows_left(&e->batch));
    if (n == 0 || q->paused)
        return;
    int32_t rows = eng__batch_rows(s, 1);
    if (!has_room(e, q, rows))
        return;
    n = eng__batch_fit(s, n, eng__stream_room(&q->stream, q->n_unended) - q->taken);
    int32_t room = (s->kv.n_blocks + kv_pool_available(e->pool)) * KN_KV_BLOCK - s->kv.n_tokens;
    if (room <= 0)
        room = KN_KV_BLOCK; // at others' expense
    n = n < room ? n : room;
    if (reserve(e, s, s->kv.n_tokens + n, now)) {
        if (!e->batch.b.n_seqs && s != e->sched.running[0]) {
            eng__seq_preempt(e, s); // nothing else runs: let a senior have the blocks
            e->again = true;
        }
        return;
    }
    q->taken += eng__batch_rows(s, n);
    eng__batch_add(&e->batch, s, n, e->forwards);
}

static void plan(struct eng *e, int64_t now) {
    eng__batch_clear(&e->batch);
    int32_t n = e->sched.n_running;
    for (int32_t i = 0; i < n; i++)
        e->order[i] = e->sched.running[i];
    plan_decodes(e, n, now);
    const struct eng__budget budget = prefill_budget(e, now);
    bool any = budget.clients + budget.internal > 0;
    if (any)
        eng__sched_plan_prefill(&e->sched, budget);
    for (int32_t i = 0; any && i < n; i++)
        if (e->order[i]->state == ENG__PREFILL && e->order[i]->planned > 0)
            plan_prompt(e, e->order[i], now);
    bool mixed = e->batch.n_prefill && e->batch.n_prefill < e->batch.b.n_seqs;
    e->mixed_steps = mixed ? e->mixed_steps + 1 : 0;
}

// Running.

static enum err copy_blocks(struct eng *e) {
    for (int32_t i = 0; i < e->batch.n_copies; i++) {
        // One operation each: a later copy may overwrite what an earlier one read.
        struct kn_kv_copy c = {
            .pool = e->kv.pool,
            .shape = e->kv.shape,
            .src = &e->batch.copies[i].src,
            .dst = &e->batch.copies[i].dst,
            .n = 1,
        };
        enum err err = e->cfg.ops->kv_copy(e->queue, &c);
        if (err)
            return err;
    }
    return ERR_OK;
}

static enum err forward(struct eng *e, double expected, struct err_info *info) {
    const struct mdl_batch *b = eng__batch_finish(&e->batch);
    e->forwards++;
    enum err err = copy_blocks(e);
    if (!err)
        err = mdl_forward_begin(e->forward, b, &e->kv, e->cfg.hooks, NULL, info);
    if (err) {
        e->cfg.ops->queue_wait(e->queue, NULL); // copies may be recorded already
        return err;
    }
    bool sliced = expected > long_step_ns || (expected < 0 && b->n_tokens > ENG__MIN_CHUNK);
    for (bool done = false; !done && !err;) {
        int64_t now = eng__now(e);
        atomic_store(&e->last_turn_ns, now);
        err = mdl_forward_run(e->forward, sliced ? now + sign_of_life_ns : INT64_MAX, &done, info);
    }
    return err;
}

static void fail_step(struct eng *e, enum err err, const struct err_info *info) {
    log_write(e->cfg.log, LOG_ERROR, "a step of %d sequences failed: %s", (int)e->batch.b.n_seqs,
              info->message[0] ? info->message : err_text(err));
    for (int32_t i = 0; i < e->batch.b.n_seqs; i++) {
        struct eng__req *q = e->batch.entries[i].seq->req;
        if (!q->finished)
            eng__req_fail(e, q, err == ERR_NOMEM ? ERR_NOMEM : ERR_DEVICE);
    }
}

static void run_step(struct eng *e) {
    struct err_info info = {0};
    int64_t begin = eng__now(e);
    double expected = eng__cost_predict(&e->cost, &e->batch.shape);
    enum err err = forward(e, expected, &info);
    int64_t now = eng__now(e);
    if (err) {
        fail_step(e, err, &info);
    } else {
        eng__step_ended(e, expected, begin, now);
        histogram_observe(e->metrics.step, (double)(now - begin) / 1e9);
        eng__results(e, mdl_forward_samples(e->forward), now);
        eng__gaps_ended(e);
    }
    eng__batch_clear(&e->batch);
}

// Whether the loop owes anybody progress. Requests whose consumers do not read wait for those, not
// for the loop.
static bool owes(const struct eng *e) {
    const struct eng__req *q = e->all;
    while (q && q->paused)
        q = q->all_next;
    return q;
}

static void publish(struct eng *e) {
    int32_t running = 0;
    for (int32_t i = 0; i < e->sched.n_running; i++) {
        struct eng__req *q = e->sched.running[i]->req;
        running += q->seen_turn != e->turns;
        q->seen_turn = e->turns;
    }
    int32_t waiting = e->n_all - running;
    atomic_store(&e->running, running);
    atomic_store(&e->waiting, waiting);
    atomic_store(&e->busy, owes(e));
    metric_set(e->metrics.running, running);
    metric_set(e->metrics.waiting, waiting);
    struct kv_stats st;
    kv_pool_stats(e->pool, &st);
    eng__metrics_pool(&e->metrics, &st, &e->reported);
}

// Plans a step and runs it; false: there is nothing to compute.
static bool step(struct eng *e, int64_t now) {
    plan(e, now);
    if (!e->batch.b.n_seqs)
        return false;
    atomic_store(&e->busy, true);
    run_step(e);
    return true;
}

bool eng__turn(struct eng *e) {
    e->turns++;
    e->again = false;
    e->slack.sliced_ns = 0;
    int64_t begin = eng__now(e);
    atomic_store(&e->last_turn_ns, begin);
    bool did = eng__take_messages(e);
    did |= eng__adapters_turn(e);
    expire(e, begin);
    admit(e);
    eng__slice_urgent(e);
    int64_t now = e->slack.sliced_ns ? eng__now(e) : begin;
    bool deferred = eng__slice_in_slack(e, now);
    bool stepped = !deferred && step(e, now);
    publish(e);
    did = did || stepped || deferred || e->dirty || e->again;
    eng__flush(e);
    if (stepped) {
        now = eng__now(e);
        eng__usage_step(&e->usage, now, now - begin - e->slack.sliced_ns);
    } else if (!deferred) {
        e->slack.deferred = false;           // what was to be stepped is not there any more
        if (!e->again && eng__slice_idle(e)) // only time that serving leaves
            did = true;
    }
    return did;
}

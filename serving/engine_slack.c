// SPDX-License-Identifier: Apache-2.0
// What time background work gets: the turns in which nothing can be computed, and with targets
// (--slo-itl-ms, --slo-ttft-ms) the time until the next step must begin. governor.h decides; here
// its questions are answered from the sequences, and its answers carried out.
#include "serving/engine_internal.h"

// Steps behind a slice find cold caches; as long as warm ones teach the cost model, they do not.
enum { COLD_STEPS = 16 };

// What the loop has to do next.
struct outlook {
    struct eng__shape decodes;
    int64_t due_ns; // of the decodes' tokens: the earliest; INT64_MAX: none decodes
    int32_t prompts;
    struct eng__shape prompt_rows; // of all that prompts lack
    int64_t first_ns;              // the earliest time at which a first token is due
    bool at_once;                  // somebody waits who has no target
};

static void look_at(const struct eng *e, const struct eng__seq *s, struct outlook *o) {
    const struct gov_config *slo = &e->gov.cfg;
    const struct eng__req *q = s->req;
    if (q->paused)
        return;
    if (s->state == ENG__DECODE) {
        o->decodes.rows++;
        o->decodes.decode_reads += s->kv.n_tokens + 1;
        if (!slo->itl_ns || !s->token_ns)
            o->at_once = true;
        else if (s->token_ns + slo->itl_ns < o->due_ns)
            o->due_ns = s->token_ns + slo->itl_ns;
    } else if (s->state == ENG__PREFILL) {
        int64_t n = eng__seq_remaining(s), first = s->kv.n_tokens;
        o->prompts++;
        o->prompt_rows.rows += (int32_t)n;
        o->prompt_rows.prefill_reads += n * first + n * (n + 1) / 2;
        if (!slo->ttft_ns || q->first_ns) // one that had a token already was preempted
            o->at_once = true;
        else if (q->submitted_ns + slo->ttft_ns < o->first_ns)
            o->first_ns = q->submitted_ns + slo->ttft_ns;
    }
}

static struct outlook look(const struct eng *e) {
    struct outlook o = {.due_ns = INT64_MAX, .first_ns = INT64_MAX, .at_once = e->out_of_room};
    for (int32_t i = 0; i < e->sched.n_running; i++)
        look_at(e, e->sched.running[i], &o);
    return o;
}

// When the next step must begin at the latest.
static int64_t begin_of(const struct eng *e, const struct outlook *o) {
    int64_t begin = INT64_MAX;
    if (o->at_once)
        return INT64_MIN;
    double step = 0, stretch = e->cfg.prefill_stretch;
    if (o->decodes.rows) {
        step = eng__cost_predict(&e->cost, &o->decodes);
        if (step < 0)
            return INT64_MIN;
        begin = o->due_ns - (int64_t)step;
    }
    if (o->prompts) {
        double all = eng__cost_predict(&e->cost, &o->prompt_rows);
        if (all < 0)
            return INT64_MIN;
        // Beside decodes, prompts get what the stretch adds to each step.
        if (o->decodes.rows)
            all = all * stretch / (stretch - 1) + step;
        int64_t prompts = o->first_ns - (int64_t)all;
        begin = prompts < begin ? prompts : begin;
    }
    return begin;
}

// ---- slices

static bool run_slice(struct eng *e, int64_t allowed_ns) {
    const struct eng_background *b = &e->cfg.background;
    int64_t begin = eng__now(e);
    bool did = b->run(b->arg, allowed_ns / 1000) > 0;
    atomic_store(&e->beside, did);
    if (!did)
        return false;
    int64_t now = eng__now(e), used = now - begin;
    gov_slice(&e->gov, allowed_ns, used);
    eng__usage_governor(&e->usage, e->gov.margin_ns, e->gov.slice_ns);
    eng__usage_slice(&e->usage, now, used);
    histogram_observe(e->metrics.slice, (double)used * 1e-9);
    e->slack.begin_ns = begin;
    e->slack.allowed_ns = allowed_ns;
    e->slack.cold = true;
    e->slack.sliced_ns += used;
    return true;
}

bool eng__slice_idle(struct eng *e) {
    const struct gov_view v = {.can_step = false};
    return e->cfg.background.run && run_slice(e, gov_allowance(&e->gov, &v));
}

bool eng__slice_in_slack(struct eng *e, int64_t now) {
    const struct gov_config *slo = &e->gov.cfg;
    if (!slo->itl_ns && !slo->ttft_ns)
        return false;
    struct outlook o = look(e);
    e->slack.due_ns = o.due_ns;
    if (!e->cfg.background.run || o.decodes.rows + o.prompts == 0)
        return false;
    const struct gov_view v = {.now_ns = now, .can_step = true, .begin_ns = begin_of(e, &o)};
    int64_t allowed = gov_allowance(&e->gov, &v);
    if (!allowed || !run_slice(e, allowed))
        return false;
    e->slack.deferred = true;
    return true;
}

void eng__slice_urgent(struct eng *e) {
    const struct eng_background *b = &e->cfg.background;
    if (b->urgent && b->urgent(b->arg))
        run_slice(e, e->gov.slice_ns);
}

// ---- steps

double eng__prefill_limit(const struct eng *e, double decodes_ns, double limit_ns, int64_t now) {
    if (!e->gov.cfg.itl_ns || e->slack.due_ns == INT64_MAX)
        return limit_ns;
    double left = (double)(e->slack.due_ns - now - e->gov.margin_ns);
    // A step that begins as soon as it can takes the prompt tokens that it would take anyhow.
    double least = e->slack.deferred ? 0 : e->cfg.prefill_stretch * decodes_ns;
    left = left > least ? left : least;
    return left < limit_ns ? left : limit_ns;
}

void eng__step_ended(struct eng *e, double expected_ns, int64_t begin_ns, int64_t now_ns) {
    const struct eng__shape *s = &e->batch.shape;
    if (e->slack.deferred && expected_ns >= 0)
        gov_step(&e->gov, now_ns - e->slack.begin_ns - e->slack.allowed_ns - (int64_t)expected_ns);
    bool spare = e->slack.cold && eng__cost_knows(&e->cost, s->rows);
    e->slack.cold_steps = spare ? e->slack.cold_steps + 1 : 0;
    if (!spare || e->slack.cold_steps > COLD_STEPS)
        eng__cost_observe(&e->cost, s, now_ns - begin_ns);
    e->slack.cold = e->slack.deferred = false;
}

void eng__gaps_ended(struct eng *e) {
    if (e->slack.gap_ns)
        gov_gap(&e->gov, e->slack.gap_ns);
    e->slack.gap_ns = 0;
}

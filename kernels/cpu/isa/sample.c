// SPDX-License-Identifier: Apache-2.0
// Sampling (sample.h): cpu_sample. A row is one thread's work. The row's logits are changed in
// place where biases and penalties say so; what was there is kept in scratch, because the token's
// log-probability and rank are those of the unmodified row. The mask changes nothing in memory:
// every pass over the row applies it.
#include "kernels/cpu/isa/choose.h"
#include "kernels/philox.h"

enum { SAMPLE_OLD = 196608 }; // values that biases and penalties may change in one row

struct scratch {
    struct choose_scratch choose;
    float old[SAMPLE_OLD];
};
_Static_assert(sizeof(struct scratch) <= CPU_SCRATCH_BYTES, "scratch too small");

static const float greedy_below = 1e-5f, most_temperature = 1e6f;

static bool in_row(int32_t id, int32_t n) {
    return id >= 0 && id < n;
}

// x is what a bias or penalty made; false: no number that a distribution can have.
static bool set_logit(float *at, float x) {
    *at = x;
    return x < __builtin_inff(); // false for NaN, too
}

static float penalised(const struct kn_sample_row *p, const struct kn_token_count *c, float x) {
    if (c->out > 0 || c->prompt > 0)
        x = x > 0.0f ? x / p->repetition : x * p->repetition;
    x -= p->frequency * (float)c->out;
    return c->out > 0 ? x - p->presence : x;
}

static bool has_penalties(const struct kn_sample_row *p) {
    return p->n_counts > 0 &&
           (p->repetition != 1.0f || p->frequency != 0.0f || p->presence != 0.0f);
}

// Biases, then penalties. `old` gets the values that were there, in order.
static bool modify(const struct kn_sample_row *p, float *x, int32_t n, float *old) {
    const struct kn_token_bias *bias = (const struct kn_token_bias *)p->bias;
    const struct kn_token_count *counts = (const struct kn_token_count *)p->counts;
    bool good = true;
    for (int32_t i = 0; i < p->n_bias; i++) {
        if (!in_row(bias[i].id, n))
            continue;
        float *at = x + bias[i].id;
        *old++ = *at;
        good &= set_logit(at, *at + bias[i].bias);
    }
    for (int32_t i = 0; has_penalties(p) && i < p->n_counts; i++) {
        if (!in_row(counts[i].id, n))
            continue;
        float *at = x + counts[i].id;
        *old++ = *at;
        good &= set_logit(at, penalised(p, &counts[i], *at));
    }
    return good;
}

// Takes modify back; an id may stand in both lists or twice in one, so the last change comes first.
static void restore(const struct kn_sample_row *p, float *x, int32_t n, const float *old) {
    const struct kn_token_bias *bias = (const struct kn_token_bias *)p->bias;
    const struct kn_token_count *counts = (const struct kn_token_count *)p->counts;
    int32_t at = 0;
    for (int32_t i = 0; i < p->n_bias; i++)
        at += in_row(bias[i].id, n);
    for (int32_t i = 0; has_penalties(p) && i < p->n_counts; i++)
        at += in_row(counts[i].id, n);
    for (int32_t i = has_penalties(p) ? p->n_counts : 0; i-- > 0;)
        if (in_row(counts[i].id, n))
            x[counts[i].id] = old[--at];
    for (int32_t i = p->n_bias; i-- > 0;)
        if (in_row(bias[i].id, n))
            x[bias[i].id] = old[--at];
}

// Chooses from a row of which the mask, biases and penalties are part by now.
static int32_t choose(const struct kn_sample_row *p, const struct logits *l,
                      const struct logits_max *m, struct scratch *s) {
    if (!(p->temperature >= greedy_below))
        return m->at;
    float t = p->temperature < most_temperature ? p->temperature : most_temperature;
    const uint32_t counter[4] = {p->position, p->choice, 0, 0};
    const uint32_t key[2] = {(uint32_t)p->seed, (uint32_t)(p->seed >> 32)};
    struct choose_params c = {
        .max = m->value,
        .scale = 0x1.715476p+0f / t,
        .best = m->at,
        .top_k = p->top_k > 0 ? p->top_k : 0,
        .top_p = p->top_p,
        .min_p = p->min_p < 1.0f ? p->min_p : 1.0f,
        .u = philox_uniform(counter, key),
    };
    return choose_token(l, &c, &s->choose);
}

static void score(const struct logits *raw, double log_sum, struct kn_sample_out *out) {
    float x = raw->x[out->token];
    out->logprob = (float)((double)x - log_sum);
    out->rank = 1 + logits_count_above(raw, x);
}

static void sample_row(const struct kn_sample_row *p, float *x, int32_t n, struct scratch *s,
                       struct kn_sample_out *out) {
    struct logits raw = {.x = x, .n = n}, l = raw;
    memset(out, 0, sizeof *out);
    out->token = -1;
    struct logits_max m = logits_find_max(&raw);
    if (!m.finite) {
        out->flags = KN_SAMPLE_NONFINITE;
        return;
    }
    double log_sum = 0.0;
    bool scored = p->n_logprobs >= 0 || p->target >= 0;
    if (scored)
        log_sum = (double)m.value + m_log(logits_sum(&raw, m.value, 0x1.715476p+0f, NULL));
    if (p->n_logprobs > 0) {
        int32_t want = p->n_logprobs < LOGITS_TOP ? p->n_logprobs : LOGITS_TOP;
        out->n_top = logits_find_top(&raw, want, out->top_id, out->top_logprob);
        for (int32_t i = 0; i < out->n_top; i++)
            out->top_logprob[i] = (float)((double)out->top_logprob[i] - log_sum);
    }
    if (p->target >= 0) {
        if (!in_row(p->target, n)) {
            out->flags = KN_SAMPLE_EMPTY;
            return;
        }
        out->token = p->target;
        score(&raw, log_sum, out);
        return;
    }
    l.mask = (const uint32_t *)p->mask;
    bool good = true, changed = p->n_bias > 0 || has_penalties(p);
    if (changed)
        good = modify(p, x, n, s->old);
    if (good && (changed || l.mask))
        m = logits_find_max(&l);
    if (!good)
        out->flags = KN_SAMPLE_NONFINITE;
    else if (m.at < 0)
        out->flags = KN_SAMPLE_EMPTY;
    else
        out->token = choose(p, &l, &m, s);
    if (changed)
        restore(p, x, n, s->old);
    if (scored && out->token >= 0)
        score(&raw, log_sum, out);
}

void ISA(cpu_sample)(const void *params, struct cpu_task *t) {
    const struct kn_sample *p = params;
    const struct kn_sample_row *row = (const struct kn_sample_row *)p->params;
    struct kn_sample_out *out = (struct kn_sample_out *)p->out;
    int32_t *tokens = (int32_t *)p->tokens;
    for (int32_t i; cpu_claim(t, p->rows, &i);) {
        if ((int64_t)row[i].n_bias + row[i].n_counts > SAMPLE_OLD) {
            cpu_fail(t, ERR_LIMIT);
            continue;
        }
        sample_row(&row[i], (float *)p->logits + i * p->ld, p->vocab, t->scratch, &out[i]);
        if (tokens)
            tokens[i] = out[i].token;
    }
}

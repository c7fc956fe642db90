// SPDX-License-Identifier: Apache-2.0
#include "tests/serving/engine_support.h"
#include "base/hash.h"
#include "base/mem.h"
#include "serving/engine_internal.h"
#include "tests/serving/greedy_request.h"
#include "tests/support/must.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

uint32_t client_rnd(uint64_t *rng, uint32_t n) {
    *rng += 0x9e3779b97f4a7c15u;
    return (uint32_t)(hash_mix64(*rng) % n);
}

static void wake(void *arg, struct eng_stream *s) {
    struct client *c = arg;
    (void)s;
    atomic_fetch_add(&c->wakes, 1);
}

void client_init(struct client *c, const int32_t *prompt, int32_t n_prompt, int32_t max_tokens) {
    memset(c, 0, sizeof *c);
    MUST(n_prompt + max_tokens <= CLIENT_LEN);
    if (prompt)
        memcpy(c->prompt, prompt, (size_t)n_prompt * sizeof *prompt);
    c->r = greedy_request(c->prompt, n_prompt, max_tokens);
    c->r.sampling.seed = 1;
    c->r.sampling.bias = c->bias;
    c->r.stop_ids = c->stop_ids;
    c->r.ignore_eos = false;
    c->r.wake = wake;
    c->r.wake_arg = c;
}

void client_random(struct client *c, uint64_t *rng) {
    // Prompts begin with one of a few common beginnings, so that the cache is hit.
    int32_t prompt[CLIENT_LEN], n = 1 + (int32_t)client_rnd(rng, client_rnd(rng, 4) ? 40 : 150);
    uint64_t family = client_rnd(rng, 3), own = client_rnd(rng, 1000);
    int32_t common = (int32_t)client_rnd(rng, 100);
    for (int32_t i = 0; i < n; i++)
        prompt[i] =
            1 + (int32_t)(hash_mix64((i < common ? family : own + 10) * 1000 + (uint64_t)i) %
                          (FAKE_VOCAB - 2));
    client_init(c, prompt, n, 1 + (int32_t)client_rnd(rng, 60));
    struct eng_request *r = &c->r;
    struct eng_sampling *p = &r->sampling;
    if (client_rnd(rng, 3) == 0)
        r->n = 1 + (int32_t)client_rnd(rng, 4);
    if (client_rnd(rng, 2)) {
        p->temperature = 1;
        p->seed = client_rnd(rng, 1000);
    }
    if (client_rnd(rng, 4) == 0)
        p->presence = 0.5f;
    if (client_rnd(rng, 3) == 0)
        p->n_logprobs = (int32_t)client_rnd(rng, 4);
    if (client_rnd(rng, 6) == 0)
        r->n_prompt_logprobs = (int32_t)client_rnd(rng, 3);
    if (client_rnd(rng, 12) == 0)
        r->max_tokens = 0;
    if (client_rnd(rng, 4) == 0 && r->max_tokens)
        r->min_tokens = (int32_t)client_rnd(rng, (uint32_t)r->max_tokens);
    r->ignore_eos = client_rnd(rng, 3) == 0;
    r->n_stop_ids = (int32_t)client_rnd(rng, 3);
    for (int32_t i = 0; i < r->n_stop_ids; i++)
        c->stop_ids[i] = (int32_t)client_rnd(rng, FAKE_VOCAB);
    if (client_rnd(rng, 5) == 0) {
        p->n_bias = 2;
        c->bias[0] = (struct kn_token_bias){(int32_t)client_rnd(rng, FAKE_VOCAB), 1.5f};
        c->bias[1] = (struct kn_token_bias){(int32_t)client_rnd(rng, FAKE_VOCAB), -INFINITY};
    }
    if (client_rnd(rng, 8) == 0) {
        for (size_t i = 0; i < sizeof c->token_mask / sizeof *c->token_mask; i++)
            c->token_mask[i] = 0xffff00ffu >> client_rnd(rng, 3);
        r->token_mask = c->token_mask;
    }
    if (client_rnd(rng, 12) == 0) {
        r->kind = ENG_SCORE;
        r->n = 1;
        r->max_tokens = r->min_tokens = 0;
        r->n_prompt_logprobs = (int32_t)client_rnd(rng, 2);
        for (int32_t i = 0; i < n; i++)
            c->score_mask[i] = client_rnd(rng, 3) == 0;
        if (client_rnd(rng, 2))
            r->score_mask = c->score_mask;
    }
    r->tenant = client_rnd(rng, 3);
    r->cache_salt = client_rnd(rng, 2);
    r->adapter_version = client_rnd(rng, 4) == 0;
    r->adapter_slot = r->adapter_version ? 0 : -1;
    r->priority = client_rnd(rng, 8) == 0 ? (int32_t)client_rnd(rng, 3) - 1 : 0;
}

static bool wants_score(const struct client *c, int32_t position) {
    if (c->r.kind == ENG_SCORE)
        return !c->r.score_mask || c->r.score_mask[position];
    return c->r.n_prompt_logprobs >= 0;
}

static bool stops(const struct client *c, int32_t token) {
    if (token == FAKE_EOS && !c->r.ignore_eos)
        return true;
    for (int32_t i = 0; i < c->r.n_stop_ids; i++)
        if (c->stop_ids[i] == token)
            return true;
    return false;
}

// The penalties' counts, the slow way.
static int32_t count_tokens(const struct client *c, const struct client_choice *x, int32_t n,
                            struct kn_token_count *counts) {
    const struct eng_sampling *p = &c->r.sampling;
    if (p->presence == 0 && p->frequency == 0 && p->repetition == 1)
        return 0;
    int32_t out[FAKE_VOCAB] = {0}, in[FAKE_VOCAB] = {0}, n_counts = 0;
    for (int32_t i = 0; i < c->r.n_prompt; i++)
        in[c->prompt[i]] = 1;
    for (int32_t i = 0; i < n; i++)
        out[x->tokens[i]]++;
    for (int32_t t = 0; t < FAKE_VOCAB; t++)
        if (in[t] || out[t])
            counts[n_counts++] = (struct kn_token_count){t, out[t], in[t]};
    return n_counts;
}

static void expect_choice(struct client *c, int32_t choice, struct fake_plain state,
                          int32_t max_model_len) {
    struct client_choice *x = &c->choices[choice];
    const struct eng_request *r = &c->r;
    const struct eng_sampling *p = &r->sampling;
    x->finish = ENG_FINISH_LENGTH;
    x->stop_id = -1;
    while (x->n < r->max_tokens && r->n_prompt + x->n < max_model_len) {
        struct kn_token_bias bias[16];
        struct kn_token_count counts[FAKE_VOCAB];
        struct mdl_want w = {.bias = bias, .counts = counts, .mask = r->token_mask};
        w.params = (struct kn_sample_row){
            .seed = p->seed,
            .choice = (uint32_t)choice,
            .position = (uint32_t)(r->n_prompt + x->n),
            .temperature = p->temperature,
            .target = -1,
            .n_logprobs = p->n_logprobs,
            .n_bias = p->n_bias,
        };
        if (p->n_bias)
            memcpy(bias, p->bias, (size_t)p->n_bias * sizeof *bias);
        if (x->n < r->min_tokens) {
            for (int32_t t = 0; t < FAKE_VOCAB && w.params.n_bias < 16; t++)
                if (stops(c, t))
                    bias[w.params.n_bias++] = (struct kn_token_bias){t, -INFINITY};
        }
        w.params.n_counts = count_tokens(c, x, x->n, counts);
        struct kn_sample_out *o = &x->out[x->n];
        fake_plain_sample(&state, &w, o);
        x->tokens[x->n++] = o->token;
        if (stops(c, o->token)) {
            x->finish = ENG_FINISH_STOP;
            x->stop_id = o->token;
            return;
        }
        fake_plain_add(&state, o->token, r->adapter_slot);
    }
}

void client_expect(struct client *c, int32_t max_model_len) {
    struct fake_plain state = {0};
    for (int32_t i = 0; i < c->r.n_prompt; i++) {
        fake_plain_add(&state, c->prompt[i], c->r.adapter_slot);
        if (i + 1 == c->r.n_prompt)
            break;
        struct mdl_want w = {
            .params = {.target = c->prompt[i + 1], .n_logprobs = c->r.n_prompt_logprobs}};
        fake_plain_sample(&state, &w, &c->scores[i + 1]);
    }
    for (int32_t i = 0; i < c->r.n; i++)
        expect_choice(c, i, state, max_model_len);
}

enum err client_submit(struct client *c, struct eng *e, struct err_info *info) {
    return eng_submit(e, &c->r, &c->stream, info);
}

static void same_numbers(const struct eng_event *ev, const struct kn_sample_out *o, int32_t n) {
    MUST(ev->token == o->token);
    if (n < 0)
        return;
    MUST(ev->logprob == o->logprob && ev->rank == o->rank && ev->n_top == o->n_top);
    for (int32_t i = 0; i < ev->n_top; i++)
        MUST(ev->top_id[i] == o->top_id[i] && ev->top_logprob[i] == o->top_logprob[i]);
}

static int32_t next_score(const struct client *c) {
    int32_t i = c->scored + 1;
    while (i < c->r.n_prompt && !wants_score(c, i))
        i++;
    return i;
}

static void take_end(struct client *c, struct client_choice *x, const struct eng_event *ev) {
    MUST(++x->ends == 1);
    x->got_finish = ev->finish;
    x->error = ev->error;
    MUST(ev->n_tokens == x->got);
    switch (ev->finish) {
    case ENG_FINISH_CANCELLED:
        MUST(c->cancelled);
        return;
    case ENG_FINISH_ERROR:
        MUST(c->may_fail && ev->error != ERR_OK);
        return;
    default:
        MUST(ev->error == ERR_OK);
        if (c->stopped[ev->choice] && ev->finish == ENG_FINISH_STOP && ev->stop_id == -1)
            return; // ended because this consumer asked for it
        MUST(x->got == x->n && ev->finish == x->finish && ev->stop_id == x->stop_id);
        MUST(next_score(c) == c->r.n_prompt);
    }
}

int32_t client_take(struct client *c, int32_t most) {
    struct eng_event ev;
    int32_t n = 0;
    for (; n < most && eng_stream_next(c->stream, &ev); n++) {
        MUST(ev.choice >= 0 && ev.choice < c->r.n);
        struct client_choice *x = &c->choices[ev.choice];
        MUST(!x->ends);
        if (ev.type == ENG_EVENT_PROMPT) {
            MUST(ev.index == next_score(c) && ev.index < c->r.n_prompt && ev.choice == 0);
            c->scored = ev.index;
            same_numbers(&ev, &c->scores[ev.index], 0);
        } else if (ev.type == ENG_EVENT_TOKEN) {
            MUST(ev.index == x->got && x->got < x->n);
            same_numbers(&ev, &x->out[x->got], c->r.sampling.n_logprobs);
            x->got++;
            if (c->clock) {
                x->last_ns = clock_mono_ns(c->clock);
                x->first_ns = x->first_ns ? x->first_ns : x->last_ns;
            }
        } else {
            take_end(c, x, &ev);
        }
    }
    return n;
}

bool client_done(const struct client *c) {
    for (int32_t i = 0; i < c->r.n; i++)
        if (!c->choices[i].ends)
            return false;
    return true;
}

void client_release(struct client *c) {
    if (c->stream)
        eng_stream_release(c->stream);
    c->stream = NULL;
}

struct eng_config client_config(struct kn_device *d) {
    return (struct eng_config){
        .weights = &d->weights,
        .ops = &d->ops,
        .device = d,
        .kv_bytes = fake_kv_bytes(d),
        .max_num_seqs = 16,
        .max_num_batched_tokens = 64,
        .max_model_len = 256,
        .max_queue = 64,
        .prefix_cache = true,
        .clock = &d->clock.clock,
    };
}

struct eng *client_engine(const struct eng_config *cfg) {
    struct eng *e = NULL;
    struct err_info info = {0};
    if (eng_create(cfg, &e, &info)) {
        fprintf(stderr, "eng_create: %s\n", info.message);
        abort();
    }
    return e;
}

struct eng *client_engine_over(struct kn_device *d, int32_t blocks) {
    fake_init(d, blocks);
    const struct eng_config cfg = client_config(d);
    return client_engine(&cfg);
}

void client_run(struct eng *e, struct client *const *clients, int32_t n) {
    for (int32_t idle = 0; idle < 3;) {
        bool did = eng_step(e);
        for (int32_t i = 0; i < n; i++)
            if (clients[i]->stream && !client_done(clients[i]))
                did = client_take(clients[i], INT32_MAX) > 0 || did;
        idle = did ? 0 : idle + 1;
    }
}

struct client *client_new(void) {
    struct client *c = mem_zalloc(sizeof *c);
    MUST(c);
    return c;
}

struct client *client_of(const int32_t *prompt, int32_t n_prompt, int32_t max_tokens) {
    struct client *c = client_new();
    client_init(c, prompt, n_prompt, max_tokens);
    c->r.ignore_eos = true;
    return c;
}

void client_send(struct client *c, struct eng *e) {
    struct err_info info = {0};
    client_expect(c, e->cfg.max_model_len);
    if (client_submit(c, e, &info)) {
        fprintf(stderr, "client_send: %s\n", info.message);
        abort();
    }
}

void client_close(struct client *c) {
    MUST(client_done(c));
    client_release(c);
    mem_free(c);
}

struct client *client_ask(struct eng *e, const int32_t *prompt, int32_t n_prompt,
                          int32_t max_tokens) {
    struct client *c = client_of(prompt, n_prompt, max_tokens);
    client_send(c, e);
    return c;
}

void client_close_all(struct client *const *clients, int32_t n) {
    for (int32_t i = 0; i < n; i++)
        client_close(clients[i]);
}

void check_pool(const struct eng *e) {
    const struct kv_seq *seqs[64];
    MUST(e->sched.n_running <= 64);
    for (int32_t i = 0; i < e->sched.n_running; i++)
        seqs[i] = &e->sched.running[i]->kv;
    struct err_info info = {0};
    if (!kv_pool_check(e->pool, seqs, e->sched.n_running, &info)) {
        fprintf(stderr, "KV pool: %s\n", info.message);
        abort();
    }
}

void check_empty(const struct eng *e) {
    struct kv_stats st;
    kv_pool_stats(e->pool, &st);
    MUST(st.live == 0);
    MUST(eng_in_flight(e) == 0);
    MUST(e->sched.n_running == 0 && e->sched.n_waiting == 0 && e->sched.places == 0);
    MUST(e->sched.n_flows == 0 && atomic_load(&e->queued) == 0 && !e->all);
    check_pool(e);
}

void client_run_one(struct eng *e, struct client *c) {
    client_send(c, e);
    client_run(e, &c, 1);
    MUST(client_done(c));
}

int32_t client_prompt(int32_t *p, int32_t n, int32_t salt) {
    for (int32_t i = 0; i < n; i++)
        p[i] = 1 + (i * 7 + salt * 13 + i / 5) % (FAKE_VOCAB - 2);
    return n;
}

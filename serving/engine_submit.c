// SPDX-License-Identifier: Apache-2.0
// How a request comes in: checked and copied on the caller's thread into one allocation, then
// handed to the engine thread through the mailbox.
#include "base/mem.h"
#include "serving/engine_internal.h"
#include <assert.h>
#include <math.h>
#include <string.h>

enum {
    TOKEN_COST = 8,  // a token of an answer beside one of a prompt, roughly
    MOST_OWED = 256, // tokens of an answer that count
};

static enum err bad(struct err_info *info, const char *param, const char *range) {
    return err_set(info, ERR_INVALID, param, "%s must be %s", param, range);
}

static enum err check_ids(const struct eng *e, const int32_t *ids, int32_t n, const char *param,
                          struct err_info *info) {
    int32_t vocab = e->cfg.weights->config.vocab;
    for (int32_t i = 0; i < n; i++)
        if (ids[i] < 0 || ids[i] >= vocab)
            return err_set(info, ERR_INVALID, param, "%s[%d] is %d; token ids go from 0 to %d",
                           param, (int)i, (int)ids[i], (int)vocab - 1);
    return ERR_OK;
}

static bool within(float x, float lo, float hi) {
    return x >= lo && x <= hi; // false for NaN
}

static enum err check_sampling(const struct eng *e, const struct eng_sampling *p,
                               struct err_info *info) {
    if (!within(p->temperature, 0, 1e6f))
        return bad(info, "temperature", "a finite number, at least 0");
    if (!within(p->top_p, 1e-30f, 1))
        return bad(info, "top_p", "above 0 and at most 1");
    if (!within(p->min_p, 0, 1))
        return bad(info, "min_p", "from 0 to 1");
    if (p->top_k < 0)
        return bad(info, "top_k", "at least 0");
    if (!within(p->presence, -1e6f, 1e6f))
        return bad(info, "presence_penalty", "a finite number");
    if (!within(p->frequency, -1e6f, 1e6f))
        return bad(info, "frequency_penalty", "a finite number");
    if (!within(p->repetition, 1e-6f, 1e6f))
        return bad(info, "repetition_penalty", "a finite number above 0");
    if (p->n_logprobs < -1 || p->n_logprobs > KN_MAX_TOP_LOGPROBS)
        return bad(info, "logprobs", "from 0 to 20");
    for (int32_t i = 0; i < p->n_bias; i++) {
        enum err err = check_ids(e, &p->bias[i].id, 1, "logit_bias", info);
        if (err)
            return err;
        if (isnan(p->bias[i].bias) || (isinf(p->bias[i].bias) && p->bias[i].bias > 0))
            return bad(info, "logit_bias", "finite, or minus infinity");
    }
    return ERR_OK;
}

// Tokens each choice may generate.
static int32_t most_new(const struct eng *e, const struct eng_request *r) {
    int32_t room = e->cfg.max_model_len - r->n_prompt;
    if (r->kind != ENG_GENERATE)
        return 0;
    return r->max_tokens < room ? r->max_tokens : room;
}

static enum err check_length(const struct eng *e, const struct eng_request *r,
                             struct err_info *info) {
    int32_t most = e->cfg.max_model_len;
    if (r->n_prompt < 1)
        return bad(info, "prompt", "at least one token long");
    bool generates = r->kind == ENG_GENERATE && r->max_tokens > 0;
    if (r->n_prompt > most || (generates && r->n_prompt == most))
        return err_set(info, ERR_CONTEXT, "prompt",
                       "the prompt has %d tokens; this model's context is %d tokens, prompt and "
                       "answer together",
                       (int)r->n_prompt, (int)most);
    // The last token is never computed, so it needs no position in the cache.
    int32_t n = most_new(e, r), positions = r->n_prompt + (n > 0 ? n - 1 : 0);
    if ((positions + KN_KV_BLOCK - 1) / KN_KV_BLOCK > e->blocks)
        return err_set(info, ERR_CONTEXT, "max_tokens",
                       "%d prompt tokens and up to %d new ones do not fit into the KV cache of %d "
                       "tokens",
                       (int)r->n_prompt, (int)n, (int)(e->blocks * KN_KV_BLOCK));
    return ERR_OK;
}

static enum err check(const struct eng *e, const struct eng_request *r, struct err_info *info) {
    enum err err = check_length(e, r, info);
    if (err)
        return err;
    int32_t most = e->cfg.max_num_seqs < ENG_MAX_CHOICES ? e->cfg.max_num_seqs : ENG_MAX_CHOICES;
    if (r->n < 1 || r->n > most || (r->kind != ENG_GENERATE && r->n != 1))
        return err_set(info, ERR_INVALID, "n", "n must be from 1 to %d%s", (int)most,
                       most < ENG_MAX_CHOICES ? ", what may run at once (--max-num-seqs)" : "");
    if (r->max_tokens < 0)
        return bad(info, "max_tokens", "at least 0");
    if (r->min_tokens < 0 || r->min_tokens > r->max_tokens)
        return bad(info, "min_tokens", "from 0 to max_tokens");
    if (r->n_stop_ids < 0 || r->n_stop_ids > ENG_MAX_STOP_IDS)
        return bad(info, "stop_token_ids", "at most 64 token ids");
    if (r->n_prompt_logprobs < -1 || r->n_prompt_logprobs > KN_MAX_TOP_LOGPROBS)
        return bad(info, "prompt_logprobs", "from 0 to 20");
    if (r->adapter && !e->adapters.n)
        return err_set(info, ERR_UNSUPPORTED, "model", "this engine serves no adapters");
    if (r->kind == ENG_LOAD && !r->adapter)
        return bad(info, "adapter", "given");
    if (!r->wake || r->sampling.n_bias < 0)
        return bad(info, "request", "complete");
    if ((err = check_ids(e, r->prompt, r->n_prompt, "prompt", info)) ||
        (err = check_ids(e, r->stop_ids, r->n_stop_ids, "stop_token_ids", info)))
        return err;
    return check_sampling(e, &r->sampling, info);
}

// One allocation, cut into pieces: the first pass (base 0) measures, the second assigns.
struct cutter {
    uintptr_t base;
    size_t size;
};

static void *cut(struct cutter *c, size_t n, size_t each) {
    size_t at = (c->size + 15) & ~(size_t)15;
    c->size = at + n * each; // bounded by check(): counts are 32 bits, elements small
    return c->base ? (void *)(c->base + at) : NULL; // NOLINT(performance-no-int-to-ptr)
}

struct pieces {
    struct eng__req *req;
    struct eng__seq *choices;
    int32_t *prompt, *stop_ids;
    struct kn_token_bias *bias;
    uint8_t *score_mask;
    uint32_t *token_mask;
    _Atomic bool *stops;
    char *ring;
};

struct extent { // what the pieces' sizes depend on
    size_t mask_words;
    uint32_t capacity, element;
    int32_t n_stop_ids, n_bias;
};

static size_t lay_out(uintptr_t base, const struct eng_request *r, const struct extent *x,
                      struct pieces *p) {
    struct cutter c = {.base = base};
    p->req = cut(&c, 1, sizeof *p->req);
    p->choices = cut(&c, (size_t)r->n, sizeof *p->choices);
    p->prompt = cut(&c, (size_t)r->n_prompt, sizeof *p->prompt);
    p->stop_ids = cut(&c, (size_t)x->n_stop_ids, sizeof *p->stop_ids);
    p->bias = cut(&c, (size_t)x->n_bias, sizeof *p->bias);
    p->score_mask = cut(&c, r->score_mask ? (size_t)r->n_prompt : 0, 1);
    p->token_mask = cut(&c, r->token_mask ? x->mask_words : 0, sizeof *p->token_mask);
    p->stops = cut(&c, (size_t)r->n, sizeof *p->stops);
    p->ring = cut(&c, x->capacity, x->element);
    return c.size;
}

static void copy(void *to, const void *from, size_t bytes) {
    if (bytes)
        memcpy(to, from, bytes);
}

// End-of-sequence ids and the client's, and behind the client's biases the bans of both.
static void fill_stops(struct eng__req *q, const struct eng *e, const struct eng_request *r,
                       struct kn_token_bias *bias) {
    const struct mdl_config *c = &e->cfg.weights->config;
    for (int32_t i = 0; !r->ignore_eos && i < c->n_eos; i++)
        q->stop_ids[q->n_stop_ids++] = c->eos[i];
    for (int32_t i = 0; i < r->n_stop_ids; i++)
        q->stop_ids[q->n_stop_ids++] = r->stop_ids[i];
    q->n_bias_all = r->sampling.n_bias;
    for (int32_t i = 0; r->min_tokens > 0 && i < q->n_stop_ids; i++)
        bias[q->n_bias_all++] = (struct kn_token_bias){q->stop_ids[i], -INFINITY};
}

// Rows that a request without generation wants: the row before the last wanted position is the
// last.
static int32_t last_scored(const struct eng__req *q) {
    int32_t i = q->r.n_prompt - 1;
    while (i > 0 && !eng__req_scores(q, i))
        i--;
    return i;
}

static enum err build(const struct eng *e, const struct eng_request *r, struct eng__req **out) {
    const struct mdl_config *c = &e->cfg.weights->config;
    bool scores = r->kind == ENG_SCORE || r->n_prompt_logprobs >= 0;
    int32_t top = r->n_prompt_logprobs > r->sampling.n_logprobs ? r->n_prompt_logprobs
                                                                : r->sampling.n_logprobs;
    int32_t stops = r->n_stop_ids + c->n_eos;
    struct extent x = {
        .mask_words = ((size_t)c->vocab + 31) / 32,
        .capacity = eng__stream_capacity(r->n, scores),
        .element = eng__stream_element(top > 0 ? top : 0),
        .n_stop_ids = stops,
        .n_bias = r->sampling.n_bias + (r->min_tokens > 0 ? stops : 0),
    };
    struct pieces p;
    size_t size = lay_out(0, r, &x, &p);
    void *memory = mem_alloc(size);
    if (!memory)
        return ERR_NOMEM;
    lay_out((uintptr_t)memory, r, &x, &p);
    memset(p.req, 0, sizeof *p.req);
    memset(p.choices, 0, (size_t)r->n * sizeof *p.choices);
    for (int32_t i = 0; i < r->n; i++)
        atomic_init(&p.stops[i], false);
    copy(p.prompt, r->prompt, (size_t)r->n_prompt * sizeof *p.prompt);
    copy(p.bias, r->sampling.bias, (size_t)r->sampling.n_bias * sizeof *p.bias);
    if (r->score_mask)
        copy(p.score_mask, r->score_mask, (size_t)r->n_prompt);
    if (r->token_mask)
        copy(p.token_mask, r->token_mask, x.mask_words * sizeof *p.token_mask);
    struct eng__req *q = p.req;
    q->r = *r;
    q->r.prompt = p.prompt;
    q->r.sampling.bias = p.bias;
    q->r.score_mask = r->score_mask ? p.score_mask : NULL;
    q->r.token_mask = r->token_mask ? p.token_mask : NULL;
    q->stop_ids = p.stop_ids;
    if (r->adapter) {
        adp_pin(r->adapter);
        q->r.adapter_version = adp_number(r->adapter);
        q->r.adapter_slot = -1;
    }
    fill_stops(q, e, r, p.bias);
    q->choices = p.choices;
    for (int32_t i = 0; i < r->n; i++)
        q->choices[i] = (struct eng__seq){.req = q, .choice = i, .n_tokens = r->n_prompt};
    q->max_new = most_new(e, r);
    q->goal = q->max_new || r->kind == ENG_LOAD ? 0 : last_scored(q);
    q->owed = r->n_prompt +
              (int64_t)r->n * TOKEN_COST * (q->max_new < MOST_OWED ? q->max_new : MOST_OWED);
    q->submitted_ns = eng__now(e);
    eng__stream_init(&q->stream, e->mailbox, r, p.ring, x.capacity, x.element, p.stops);
    atomic_init(&q->stream.prompt_tokens, r->n_prompt);
    *out = q;
    return ERR_OK;
}

// Bounds first, so that a full queue costs nothing; both counts include this request then.
static enum err take_place(struct eng *e, bool internal, struct err_info *info) {
    if (e->closed)
        return err_set(info, ERR_ENGINE_DEAD, NULL, "the engine has stopped");
    if (atomic_load(&e->draining) && !internal)
        return err_set(info, ERR_DRAINING, NULL, "the server is draining and takes no new work");
    if ((atomic_load(&e->queued) >= e->cfg.max_queue && !internal) ||
        atomic_load(&e->in_flight) >= e->max_in_flight)
        return err_set(info, ERR_QUEUE_FULL, NULL, "%d requests are waiting; try again later",
                       (int)e->cfg.max_queue);
    // A loop that owed nobody anything is not late since its last turn.
    if (!atomic_load(&e->busy) && !atomic_load(&e->queued))
        atomic_store(&e->last_turn_ns, eng__now(e));
    atomic_fetch_add(&e->queued, 1);
    atomic_fetch_add(&e->in_flight, 1);
    return ERR_OK;
}

enum err eng_submit(struct eng *e, const struct eng_request *r, struct eng_stream **out,
                    struct err_info *info) {
    *out = NULL;
    enum err err = check(e, r, info);
    if (err)
        return err;
    lock_take(&e->submit_lock);
    err = take_place(e, r->internal, info);
    lock_drop(&e->submit_lock);
    if (err) {
        if (err == ERR_QUEUE_FULL)
            metric_add(e->metrics.rejected, 1);
        return err;
    }
    struct eng__req *q;
    err = build(e, r, &q);
    if (!err)
        *out = &q->stream;
    lock_take(&e->submit_lock);
    if (!err && e->closed) {
        if (r->adapter)
            adp_unpin(r->adapter);
        eng__stream_unref(&q->stream);
        eng__stream_unref(&q->stream);
        err = ERR_ENGINE_DEAD;
    }
    if (!err) {
        atomic_fetch_add(&e->owed, q->owed);
        enum err sent = mailbox_send(e->mailbox, &q->stream.submit_msg);
        assert(sent == ERR_OK); // as many ordinary places as requests in flight
        (void)sent;
    } else {
        atomic_fetch_sub(&e->queued, 1);
        atomic_fetch_sub(&e->in_flight, 1);
    }
    lock_drop(&e->submit_lock);
    if (!err)
        return ERR_OK;
    *out = NULL;
    return err_set(info, err, NULL, "%s", err_text(err));
}

// SPDX-License-Identifier: Apache-2.0
// Invariants
// 1. Every function here runs on the request's loop, except gen_wake (engine thread), which touches
// `posted` only.
// 2. The request is answered exactly once, and not touched after that or after on_close.
// 3. A generation is freed when it is closed and no turn is posted.
#include "gateway/generation.h"
#include "base/mem.h"
#include "base/utf8.h"
#include "gateway/generation_internal.h"
#include <stdio.h>
#include <string.h>

static const int64_t keep_alive_ns = 10LL * 1000 * 1000 * 1000;
// Of one turn. The engine fills a ring while it is emptied: without a bound one request could hold
// the loop, and what it has to write could grow, for as long as it lasts.
enum { EVENTS_PER_TURN = 256 };

static void gen_turn(void *arg);
static void gen_work(struct generation *g);
static void schedule_keep_alive(struct generation *g);

static void gen_free(struct generation *g) {
    for (int32_t i = 0; i < g->n_choices; i++) {
        assembler_fini(&g->choices[i].assembler);
        buf_fini(&g->choices[i].text);
        gen_logprobs_fini(&g->choices[i].lp);
    }
    for (int32_t i = 0; g->items && i < g->spec->n_prompts; i++)
        mem_free(g->items[i].scored);
    if (g->adapter)
        adp_unpin(g->adapter);
    mem_free(g->items);
    mem_free(g->choices);
    mem_free(g);
}

// No more events: streams are released, so that no wake comes any more, and the memory goes now or
// with the turn that is still on the loop's queue.
static void gen_close(struct generation *g) {
    for (int32_t i = 0; i < g->spec->n_prompts; i++)
        if (g->items[i].stream)
            eng_stream_release(g->items[i].stream);
    if (g->keep_alive)
        gw_loop_timer_cancel(g->keep_alive);
    int32_t n =
        g->spec
            ->n_prompts; // the spec dies with the request; gen_free needs the scored arrays freed
    for (int32_t i = 0; i < n; i++) {
        mem_free(g->items[i].scored);
        g->items[i].scored = NULL;
    }
    mem_free(g->items);
    g->items = NULL;
    g->r = NULL;
    if (g->adapter)
        adp_unpin(g->adapter); // the engine has pins of its own
    g->adapter = NULL;
    if (atomic_load(&g->posted))
        g->dead = true;
    else
        gen_free(g);
}

static void on_close(struct gw_request *r) {
    struct generation *g = r->handler;
    if (r->access)
        r->access->client_disconnected = true;
    gen_account(g);
    gen_close(g);
}

static void on_writable(struct gw_request *r) {
    gen_work(r->handler);
}

static void post_turn(struct generation *g) {
    if (!atomic_exchange(&g->posted, true) && !gw_loop_post(g->r->loop, gen_turn, g))
        atomic_store(&g->posted, false); // the keep-alive timer looks again
}

static void gen_wake(void *arg, struct eng_stream *s) {
    (void)s;
    post_turn(arg);
}

static bool stream_begin(struct generation *g) {
    if (g->began)
        return true;
    gw_response_header(g->r, "Cache-Control", "no-cache");
    g->began = gw_stream_begin(g->r, 200, "text/event-stream; charset=utf-8");
    return g->began;
}

static void fail(struct generation *g) {
    struct gw_request *r = g->r;
    if (r->access)
        r->access->error_type = err_openai_type(g->error.code);
    gen_account(g);
    struct err_info error = g->error;
    bool began = g->began;
    gen_close(g);
    if (!began) {
        gw_reply_error(r, &error);
        return;
    }
    struct buf out;
    buf_init(&out, 0);
    gen_error_chunk_write(&error, &out);
    if (!buf_err(&out))
        gw_stream_write(r, out.data, out.len);
    buf_fini(&out);
    gw_stream_end(r);
}

static void fail_nomem(struct generation *g) {
    err_set(&g->error, ERR_NOMEM, NULL, "out of memory while answering");
    fail(g);
}

static void finish_stream(struct generation *g) {
    struct gw_request *r = g->r;
    struct buf out;
    buf_init(&out, 0);
    if (g->params->include_usage)
        gen_usage_chunk_write(g, &out);
    buf_puts(&out, "data: [DONE]\n\n");
    gen_account(g);
    gen_close(g);
    if (buf_err(&out)) {
        gw_stream_abort(r); // a stream without [DONE] is a failed one
    } else {
        gw_stream_write(r, out.data, out.len);
        gw_stream_end(r);
    }
    buf_fini(&out);
}

static void finish_whole(struct generation *g) {
    struct gw_request *r = g->r;
    struct buf out;
    buf_init(&out, 0);
    gen_whole_write(g, &out);
    if (buf_err(&out)) {
        buf_fini(&out);
        fail_nomem(g);
        return;
    }
    gen_account(g);
    gen_close(g);
    gw_reply(r, 200, "application/json", out.data, out.len);
    buf_fini(&out);
}

static void end_choice(struct generation *g, struct gen_choice *c, enum eng_finish finish) {
    if (c->ended)
        return;
    c->ended = true;
    c->finish = finish;
    g->n_ended++;
}

static bool is_stop_id(const struct generation *g, int32_t token) {
    const struct mdl_config *m = g->app->config;
    for (int32_t i = 0; !g->params->ignore_eos && i < m->n_eos; i++)
        if (m->eos[i] == token)
            return true;
    for (int32_t i = 0; i < g->params->n_stop_ids; i++)
        if (g->params->stop_ids[i] == token)
            return true;
    return false;
}

// A stop token's own text is not part of the answer; special tokens are not unless asked for.
static bool is_silent(const struct generation *g, int32_t token) {
    if (g->params->skip_special && tokenizer_is_special(g->app->tokenizer, token))
        return true;
    return !g->params->include_stop && is_stop_id(g, token);
}

static enum err on_token(struct generation *g, struct gen_item *it, struct gen_choice *c,
                         const struct eng_event *ev) {
    if (c->ended)
        return ERR_OK;
    int64_t now = clock_mono_ns(g->app->clock);
    if (!g->first_token_ns)
        g->first_token_ns = now;
    g->last_token_ns = now;
    c->n_tokens++;
    size_t len;
    const char *bytes = tokenizer_token_bytes(g->app->tokenizer, ev->token, &len);
    if (g->spec->logprobs >= 0)
        gen_logprobs_add(g, c, ev, false);
    c->assembler.deaf = c->n_tokens <= g->params->min_tokens;
    if (!is_silent(g, ev->token)) {
        enum err rc = assembler_push(&c->assembler, bytes, len, &c->text);
        if (rc)
            return rc;
        c->offset += utf8_count(bytes, len);
    }
    if (c->assembler.stopped) {
        eng_stream_stop(it->stream, ev->choice);
        end_choice(g, c, ENG_FINISH_STOP);
    }
    return buf_err(&c->text);
}

static enum err on_prompt(struct generation *g, struct gen_item *it, const struct eng_event *ev) {
    struct gen_choice *first = &g->choices[(it - g->items) * g->params->n];
    if (g->spec->echo && g->spec->logprobs >= 0) {
        for (int32_t i = 0; i < g->params->n; i++) {
            gen_logprobs_add(g, &first[i], ev, false);
            size_t len;
            const char *bytes = tokenizer_token_bytes(g->app->tokenizer, ev->token, &len);
            first[i].offset += utf8_count(bytes, len);
        }
    }
    if (g->params->prompt_logprobs < 0)
        return ERR_OK;
    if (it->n_scored == it->cap_scored) {
        int32_t cap = it->cap_scored ? it->cap_scored * 2 : 64;
        struct eng_event *grown = mem_realloc(it->scored, (size_t)cap * sizeof *grown);
        if (!grown)
            return ERR_NOMEM;
        it->scored = grown;
        it->cap_scored = cap;
    }
    it->scored[it->n_scored++] = *ev;
    return ERR_OK;
}

static enum err on_end(struct generation *g, struct gen_choice *c, const struct eng_event *ev) {
    if (ev->finish == ENG_FINISH_ERROR || ev->finish == ENG_FINISH_CANCELLED) {
        if (!c->ended) {
            enum err e = ev->finish == ENG_FINISH_ERROR ? ev->error : ERR_CANCELLED;
            return err_set(&g->error, e, NULL, "%s", err_text(e));
        }
        return ERR_OK;
    }
    if (c->ended)
        return ERR_OK;
    enum err rc = assembler_end(&c->assembler, &c->text);
    end_choice(g, c, c->assembler.stopped ? ENG_FINISH_STOP : ev->finish);
    return rc;
}

// *more: the turn's share is used up, and there may be more.
static enum err take_events(struct generation *g, bool *more) {
    int32_t n = g->spec->n_prompts, left = EVENTS_PER_TURN, first = g->next_item;
    struct eng_event ev;
    *more = false;
    for (int32_t k = 0; k < n && !*more; k++) {
        int32_t i = (first + k) % n;
        struct gen_item *it = &g->items[i];
        while (!*more && eng_stream_next(it->stream, &ev)) {
            struct gen_choice *c = &g->choices[i * g->params->n + ev.choice];
            enum err rc = ev.type == ENG_EVENT_TOKEN    ? on_token(g, it, c, &ev)
                          : ev.type == ENG_EVENT_PROMPT ? on_prompt(g, it, &ev)
                                                        : on_end(g, c, &ev);
            if (rc)
                return rc;
            *more = --left == 0;
            g->next_item = (i + 1) % n;
        }
    }
    return ERR_OK;
}

static bool has_news(const struct generation *g, const struct gen_choice *c) {
    if (c->sent_end)
        return false;
    return c->ended || c->text.len || (g->spec->chat && !c->sent_role && c->n_tokens);
}

// Writes what the choices have pending; false if that failed.
static bool flush_stream(struct generation *g) {
    struct buf out;
    buf_init(&out, 0);
    for (int32_t i = 0; i < g->n_choices; i++)
        if (has_news(g, &g->choices[i]))
            gen_chunk_write(g, i, &out);
    bool ok = !buf_err(&out);
    if (ok && out.len) {
        ok = stream_begin(g);
        if (ok)
            gw_stream_write(g->r, out.data, out.len);
    }
    buf_fini(&out);
    return ok;
}

// What gen_wake posts. `posted` is cleared here alone, so that it always says whether a turn is on
// the queue.
static void gen_turn(void *arg) {
    struct generation *g = arg;
    atomic_store(&g->posted, false);
    if (g->dead)
        gen_free(g);
    else
        gen_work(g);
}

static void gen_work(struct generation *g) {
    if (g->params->stream && g->began && gw_stream_full(g->r))
        return; // on_writable comes back here
    bool more;
    enum err rc = take_events(g, &more);
    if (rc) {
        if (!g->error.code)
            err_set(&g->error, rc, NULL, "%s", err_text(rc));
        fail(g);
        return;
    }
    if (g->params->stream && !flush_stream(g)) {
        fail_nomem(g);
        return;
    }
    // Beyond its high mark the connection may refuse more, even the end: on_writable comes back
    // here.
    if (g->params->stream && g->began && gw_stream_full(g->r))
        return;
    if (g->n_ended < g->n_choices) {
        if (more)
            post_turn(g);
        return;
    }
    if (g->params->stream)
        finish_stream(g);
    else
        finish_whole(g);
}

static void on_keep_alive(void *arg) {
    struct generation *g = arg;
    g->keep_alive = NULL;
    if (g->params->stream && stream_begin(g) && !gw_stream_full(g->r))
        gw_stream_write(g->r, ": keep-alive\n\n", 14);
    schedule_keep_alive(g);
    gen_work(g);
}

static void schedule_keep_alive(struct generation *g) {
    g->keep_alive = gw_loop_timer(g->r->loop, keep_alive_ns, on_keep_alive, g);
}

static enum err submit(struct generation *g, struct gen_item *it, struct err_info *info) {
    const struct api_params *p = g->params;
    const struct gen_spec *s = g->spec;
    int32_t room = g->app->max_model_len - it->prompt->n_ids;
    struct eng_request q = {
        .kind = ENG_GENERATE,
        .prompt = it->prompt->ids,
        .n_prompt = it->prompt->n_ids,
        .sampling = p->sampling,
        .n = p->n,
        .max_tokens = s->max_tokens < 0 ? room : s->max_tokens,
        .min_tokens = p->min_tokens,
        .ignore_eos = p->ignore_eos,
        .stop_ids = p->stop_ids,
        .n_stop_ids = p->n_stop_ids,
        .n_prompt_logprobs = p->prompt_logprobs,
        .tenant = g->r->who.domain,
        .priority = p->priority,
        .deadline_ns =
            g->app->request_timeout_ns ? g->r->received_ns + g->app->request_timeout_ns : INT64_MAX,
        .adapter = g->adapter,
        .adapter_slot = -1,
        .cache_salt = p->cache_salt ? p->cache_salt : g->r->who.domain,
        .wake = gen_wake,
        .wake_arg = g,
    };
    q.sampling.n_logprobs = s->logprobs;
    if (s->echo && s->logprobs > q.n_prompt_logprobs)
        q.n_prompt_logprobs = s->logprobs;
    return replicas_submit(g->app->replicas, &q, &it->stream, info);
}

static struct generation *gen_create(struct gw_request *r, struct app *app,
                                     const struct gen_spec *spec) {
    struct generation *g = mem_zalloc(sizeof *g);
    if (!g)
        return NULL;
    int32_t n = spec->n_prompts * spec->params->n;
    g->app = app;
    g->r = r;
    g->spec = spec;
    g->params = spec->params;
    g->items = mem_calloc((size_t)spec->n_prompts, sizeof *g->items);
    g->choices = mem_calloc((size_t)n, sizeof *g->choices);
    if (!g->items || !g->choices) {
        gen_free(g);
        return NULL;
    }
    g->n_choices = n;
    g->created = clock_wall_ns(app->clock) / 1000000000;
    snprintf(g->id, sizeof g->id, "%s-%016llx%08x", spec->chat ? "chatcmpl" : "cmpl",
             (unsigned long long)api_params_random_seed(), (unsigned)api_params_random_seed());
    for (int32_t i = 0; i < n; i++) {
        const struct gen_prompt *prompt = &spec->prompts[i / spec->params->n];
        struct gen_choice *c = &g->choices[i];
        assembler_init(&c->assembler, &spec->params->stops);
        buf_init(&c->text, 0);
        gen_logprobs_init(&c->lp);
        c->offset = spec->echo ? 0 : utf8_count(prompt->text, prompt->text_len);
        if (spec->echo)
            buf_append(&c->text, prompt->text, prompt->text_len);
    }
    return g;
}

// With echo and logprobs the first prompt token has an entry without numbers.
static void begin_echo(struct generation *g) {
    if (!g->spec->echo || g->spec->logprobs < 0)
        return;
    for (int32_t i = 0; i < g->n_choices; i++) {
        const struct gen_prompt *p = g->items[i / g->params->n].prompt;
        struct eng_event first = {.type = ENG_EVENT_PROMPT, .token = p->ids[0]};
        gen_logprobs_add(g, &g->choices[i], &first, true);
        size_t len;
        const char *bytes = tokenizer_token_bytes(g->app->tokenizer, p->ids[0], &len);
        g->choices[i].offset += utf8_count(bytes, len);
    }
}

// The version is chosen here, once, for all of the request.
static enum err choose_adapter(struct generation *g, struct err_info *info) {
    const struct app *app = g->app;
    const char *name = g->spec->adapter;
    snprintf(g->model, sizeof g->model, "%s", name ? name : app->names[0]);
    snprintf(g->fingerprint, sizeof g->fingerprint, "%s", app->fingerprint);
    if (!name)
        return ERR_OK;
    enum err rc = adp_resolve(app->adapters, name, &g->adapter, info);
    if (rc)
        return rc;
    snprintf(g->fingerprint, sizeof g->fingerprint, "%s+%s@%llu", app->fingerprint,
             adp_name(g->adapter), (unsigned long long)adp_number(g->adapter));
    struct gw_access *a = g->r->access;
    if (a) {
        a->adapter = name; // the request's own copy: the version may go before the line is written
        a->adapter_version = adp_number(g->adapter);
    }
    return ERR_OK;
}

void generation_start(struct gw_request *r, struct app *app, const struct gen_spec *spec) {
    struct generation *g = gen_create(r, app, spec);
    if (!g) {
        struct err_info info;
        err_set(&info, ERR_NOMEM, NULL, "out of memory");
        gw_reply_error(r, &info);
        return;
    }
    for (int32_t i = 0; i < spec->n_prompts; i++)
        g->items[i].prompt = &spec->prompts[i];
    begin_echo(g);
    if (r->access) {
        r->access->model = app->names[0];
        r->access->stream = spec->params->stream;
    }
    if (choose_adapter(g, &g->error)) {
        fail(g);
        return;
    }
    for (int32_t i = 0; i < spec->n_prompts; i++) {
        if (submit(g, &g->items[i], &g->error)) {
            fail(g);
            return;
        }
    }
    r->handler = g;
    r->on_close = on_close;
    r->on_writable = on_writable;
    schedule_keep_alive(g);
    if (!g->keep_alive) // a turn that could not be posted would never be made up for
        fail_nomem(g);
}

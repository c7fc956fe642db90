// SPDX-License-Identifier: Apache-2.0
// The JSON of answers: whole bodies, stream chunks, usage.
#include "gateway/generation_internal.h"

static const char *finish_text(enum eng_finish f) {
    return f == ENG_FINISH_LENGTH ? "length" : "stop";
}

static void write_head(const struct generation *g, const char *object, struct json_w *w) {
    jw_kstr(w, "id", g->id);
    jw_kstr(w, "object", object);
    jw_kint(w, "created", g->created);
    jw_kstr(w, "model", g->model);
    jw_kstr(w, "system_fingerprint", g->fingerprint);
}

struct usage {
    int64_t prompt, cached, completion;
    int64_t queued_ns;
};

static struct usage count_usage(const struct generation *g) {
    struct usage u = {0};
    for (int32_t i = 0; i < g->spec->n_prompts; i++) {
        struct eng_usage e = {0};
        if (g->items[i].stream)
            eng_stream_usage(g->items[i].stream, &e);
        u.prompt += g->spec->prompts[i].n_ids;
        u.cached += e.cached_tokens;
        u.queued_ns = e.queued_ns > u.queued_ns ? e.queued_ns : u.queued_ns;
    }
    for (int32_t i = 0; i < g->n_choices; i++)
        u.completion += g->choices[i].n_tokens;
    return u;
}

static void write_usage(const struct generation *g, struct json_w *w) {
    struct usage u = count_usage(g);
    jw_key(w, "usage");
    jw_obj(w);
    jw_kint(w, "prompt_tokens", u.prompt);
    jw_kint(w, "completion_tokens", u.completion);
    jw_kint(w, "total_tokens", u.prompt + u.completion);
    jw_key(w, "prompt_tokens_details");
    jw_obj(w);
    jw_kint(w, "cached_tokens", u.cached);
    jw_obj_end(w);
    jw_obj_end(w);
}

static void write_delta(struct gen_choice *c, struct json_w *w) {
    jw_key(w, "delta");
    jw_obj(w);
    if (c->text.len) {
        jw_key(w, "content");
        jw_strn(w, c->text.data, c->text.len);
    }
    jw_obj_end(w);
}

static void begin_chunk(const struct generation *g, struct json_w *w) {
    buf_puts(w->out, "data: ");
    jw_obj(w);
    write_head(g, g->spec->chat ? "chat.completion.chunk" : "text_completion", w);
    jw_key(w, "choices");
    jw_arr(w);
}

static void end_chunk(const struct generation *g, struct json_w *w) {
    jw_arr_end(w);
    if (g->params->include_usage)
        jw_knull(w, "usage");
    jw_obj_end(w);
    buf_puts(w->out, "\n\n");
}

static void role_chunk(const struct generation *g, int32_t choice, struct buf *out) {
    struct json_w w = json_w_begin(out);
    begin_chunk(g, &w);
    jw_obj(&w);
    jw_kint(&w, "index", choice);
    jw_key(&w, "delta");
    jw_obj(&w);
    jw_kstr(&w, "role", "assistant");
    jw_kstr(&w, "content", "");
    jw_obj_end(&w);
    jw_knull(&w, "logprobs");
    jw_knull(&w, "finish_reason");
    jw_obj_end(&w);
    end_chunk(g, &w);
}

void gen_chunk_write(struct generation *g, int32_t choice, struct buf *out) {
    struct gen_choice *c = &g->choices[choice];
    if (g->spec->chat && !c->sent_role) {
        role_chunk(g, choice, out);
        c->sent_role = true;
        if (!c->text.len && !c->ended)
            return;
    }
    struct json_w w = json_w_begin(out);
    begin_chunk(g, &w);
    jw_obj(&w);
    jw_kint(&w, "index", choice);
    if (g->spec->chat) {
        write_delta(c, &w);
    } else {
        jw_key(&w, "text");
        jw_strn(&w, c->text.data ? c->text.data : "", c->text.len);
    }
    jw_key(&w, "logprobs");
    gen_logprobs_write(g, &c->lp, &w);
    jw_kstr(&w, "finish_reason", c->ended ? finish_text(c->finish) : NULL);
    jw_obj_end(&w);
    end_chunk(g, &w);
    c->sent_end = c->ended;
    buf_clear(&c->text);
    gen_logprobs_clear(&c->lp);
}

void gen_usage_chunk_write(struct generation *g, struct buf *out) {
    struct json_w w = json_w_begin(out);
    buf_puts(out, "data: ");
    jw_obj(&w);
    write_head(g, g->spec->chat ? "chat.completion.chunk" : "text_completion", &w);
    jw_key(&w, "choices");
    jw_arr(&w);
    jw_arr_end(&w);
    write_usage(g, &w);
    jw_obj_end(&w);
    buf_puts(out, "\n\n");
}

void gen_error_chunk_write(const struct err_info *e, struct buf *out) {
    buf_puts(out, "data: ");
    gw_error_body(e, out);
    buf_puts(out, "\n\n");
}

static void write_choice(struct generation *g, int32_t i, struct json_w *w) {
    struct gen_choice *c = &g->choices[i];
    const char *text = c->text.data ? c->text.data : "";
    jw_obj(w);
    jw_kint(w, "index", i);
    if (g->spec->chat) {
        jw_key(w, "message");
        jw_obj(w);
        jw_kstr(w, "role", "assistant");
        jw_key(w, "content");
        jw_strn(w, text, c->text.len);
        jw_knull(w, "refusal");
        jw_obj_end(w);
    } else {
        jw_key(w, "text");
        jw_strn(w, text, c->text.len);
    }
    jw_key(w, "logprobs");
    gen_logprobs_write(g, &c->lp, w);
    jw_kstr(w, "finish_reason", finish_text(c->finish));
    if (!g->spec->chat && g->params->prompt_logprobs >= 0) {
        jw_key(w, "prompt_logprobs");
        gen_prompt_logprobs_write(g, &g->items[i / g->params->n], w);
    }
    jw_obj_end(w);
}

void gen_whole_write(struct generation *g, struct buf *out) {
    struct json_w w = json_w_begin(out);
    jw_obj(&w);
    write_head(g, g->spec->chat ? "chat.completion" : "text_completion", &w);
    jw_key(&w, "choices");
    jw_arr(&w);
    for (int32_t i = 0; i < g->n_choices; i++)
        write_choice(g, i, &w);
    jw_arr_end(&w);
    write_usage(g, &w);
    if (g->spec->chat && g->params->prompt_logprobs >= 0) {
        jw_key(&w, "prompt_logprobs");
        gen_prompt_logprobs_write(g, &g->items[0], &w);
    }
    jw_obj_end(&w);
}

void gen_account(struct generation *g) {
    struct gw_access *a = g->r->access;
    if (!a)
        return;
    struct usage u = count_usage(g);
    a->prompt_tokens = u.prompt;
    a->cached_tokens = u.cached;
    a->completion_tokens = u.completion;
    a->queue_ns = u.queued_ns;
    if (g->first_token_ns)
        a->ttft_ns = g->first_token_ns - g->r->received_ns;
    if (g->n_choices == 1 && g->choices[0].n_tokens > 1)
        a->tpot_ms =
            (double)(g->last_token_ns - g->first_token_ns) * 1e-6 / (g->choices[0].n_tokens - 1);
    if (g->n_choices > 0 && g->choices[0].ended)
        a->finish_reason = finish_text(g->choices[0].finish);
}

// SPDX-License-Identifier: Apache-2.0
// Log-probabilities in the two shapes of the API. Values are the model's own; -inf becomes -9999.
#include "base/utf8.h"
#include "gateway/generation_internal.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

void gen_logprobs_init(struct gen_logprobs *l) {
    buf_init(&l->tokens, 0);
    buf_init(&l->values, 0);
    buf_init(&l->tops, 0);
    buf_init(&l->offsets, 0);
}

void gen_logprobs_fini(struct gen_logprobs *l) {
    buf_fini(&l->tokens);
    buf_fini(&l->values);
    buf_fini(&l->tops);
    buf_fini(&l->offsets);
}

void gen_logprobs_clear(struct gen_logprobs *l) {
    buf_clear(&l->tokens);
    buf_clear(&l->values);
    buf_clear(&l->tops);
    buf_clear(&l->offsets);
}

static double clamped(float logprob) {
    return logprob < -9999.0F || isnan(logprob) ? -9999.0 : (double)logprob;
}

// The token as text. A token that is no valid UTF-8 by itself is written as "bytes:\xe2\x80", so
// that different ones stay different.
static void token_text(const struct generation *g, int32_t id, struct buf *out) {
    size_t len;
    const char *bytes = tokenizer_token_bytes(g->app->tokenizer, id, &len);
    if (g->params->tokens_as_ids) {
        buf_printf(out, "token_id:%d", id);
    } else if (utf8_valid(bytes, len) && !memchr(bytes, 0, len)) {
        buf_append(out, bytes, len);
    } else {
        buf_puts(out, "bytes:");
        for (size_t i = 0; i < len; i++)
            buf_printf(out, "\\x%02x", (unsigned)(unsigned char)bytes[i]);
    }
}

static void write_token(const struct generation *g, int32_t id, struct json_w *w) {
    struct buf text;
    buf_init(&text, 0);
    token_text(g, id, &text);
    if (buf_err(&text))
        w->out->failed = text.failed;
    else
        jw_strn(w, text.data ? text.data : "", text.len);
    buf_fini(&text);
}

static void write_token_key(const struct generation *g, int32_t id, struct json_w *w) {
    write_token(g, id, w);
    buf_putc(w->out, ':');
    w->comma = false;
}

static struct json_w append_to(struct buf *b) {
    return (struct json_w){b, b->len > 0};
}

// Chat: {token, logprob, bytes} with the alternatives of the same form.
static void chat_fields(const struct generation *g, int32_t id, float logprob, struct json_w *w) {
    size_t len;
    const char *bytes = tokenizer_token_bytes(g->app->tokenizer, id, &len);
    jw_key(w, "token");
    if (g->params->tokens_as_ids)
        write_token(g, id, w);
    else
        jw_strn(w, bytes, len);
    jw_knum(w, "logprob", clamped(logprob));
    jw_key(w, "bytes");
    jw_arr(w);
    for (size_t i = 0; i < len; i++)
        jw_int(w, (unsigned char)bytes[i]);
    jw_arr_end(w);
}

static int32_t shown_tops(const struct generation *g, const struct eng_event *ev) {
    return ev->n_top < g->spec->logprobs ? ev->n_top : g->spec->logprobs;
}

static void add_chat(struct generation *g, struct gen_logprobs *l, const struct eng_event *ev) {
    struct json_w w = append_to(&l->tokens);
    jw_obj(&w);
    chat_fields(g, ev->token, ev->logprob, &w);
    jw_key(&w, "top_logprobs");
    jw_arr(&w);
    for (int32_t i = 0; i < shown_tops(g, ev); i++) {
        jw_obj(&w);
        chat_fields(g, ev->top_id[i], ev->top_logprob[i], &w);
        jw_obj_end(&w);
    }
    jw_arr_end(&w);
    jw_obj_end(&w);
}

static void add_top_map(struct generation *g, struct gen_logprobs *l, const struct eng_event *ev) {
    struct json_w w = append_to(&l->tops);
    bool own = false;
    jw_obj(&w);
    for (int32_t i = 0; i < shown_tops(g, ev); i++) {
        own |= ev->top_id[i] == ev->token;
        write_token_key(g, ev->top_id[i], &w);
        jw_num(&w, clamped(ev->top_logprob[i]));
    }
    if (!own) {
        write_token_key(g, ev->token, &w);
        jw_num(&w, clamped(ev->logprob));
    }
    jw_obj_end(&w);
}

void gen_logprobs_add(struct generation *g, struct gen_choice *c, const struct eng_event *ev,
                      bool first_of_prompt) {
    struct gen_logprobs *l = &c->lp;
    if (g->spec->chat) {
        add_chat(g, l, ev);
        return;
    }
    struct json_w tokens = append_to(&l->tokens), values = append_to(&l->values);
    struct json_w offsets = append_to(&l->offsets);
    write_token(g, ev->token, &tokens);
    jw_int(&offsets, (int64_t)c->offset);
    if (first_of_prompt) {
        struct json_w tops = append_to(&l->tops);
        jw_null(&values);
        jw_null(&tops);
    } else {
        jw_num(&values, clamped(ev->logprob));
        add_top_map(g, l, ev);
    }
}

static void write_list(struct json_w *w, const char *key, const struct buf *values) {
    jw_key(w, key);
    jw_arr(w);
    if (values->len)
        jw_raw(w, values->data, values->len);
    jw_arr_end(w);
    if (values->failed)
        w->out->failed = values->failed;
}

void gen_logprobs_write(const struct generation *g, const struct gen_logprobs *l,
                        struct json_w *w) {
    if (g->spec->logprobs < 0) {
        jw_null(w);
        return;
    }
    jw_obj(w);
    if (g->spec->chat) {
        write_list(w, "content", &l->tokens);
        jw_knull(w, "refusal");
    } else {
        write_list(w, "tokens", &l->tokens);
        write_list(w, "token_logprobs", &l->values);
        write_list(w, "top_logprobs", &l->tops);
        write_list(w, "text_offset", &l->offsets);
    }
    jw_obj_end(w);
}

static void prompt_entry(const struct generation *g, int32_t id, float logprob, int32_t rank,
                         struct json_w *w) {
    char key[16];
    size_t len;
    const char *bytes = tokenizer_token_bytes(g->app->tokenizer, id, &len);
    snprintf(key, sizeof key, "%d", id);
    jw_key(w, key);
    jw_obj(w);
    jw_knum(w, "logprob", clamped(logprob));
    jw_kint(w, "rank", rank);
    jw_key(w, "decoded_token");
    jw_strn(w, bytes, len);
    jw_obj_end(w);
}

void gen_prompt_logprobs_write(const struct generation *g, const struct gen_item *it,
                               struct json_w *w) {
    jw_arr(w);
    jw_null(w); // the first token has no past
    for (int32_t i = 0; i < it->n_scored; i++) {
        const struct eng_event *ev = &it->scored[i];
        bool own = false;
        jw_obj(w);
        for (int32_t k = 0; k < ev->n_top && k < g->params->prompt_logprobs; k++) {
            own |= ev->top_id[k] == ev->token;
            prompt_entry(g, ev->top_id[k], ev->top_logprob[k], k + 1, w);
        }
        if (!own)
            prompt_entry(g, ev->token, ev->logprob, ev->rank, w);
        jw_obj_end(w);
    }
    jw_arr_end(w);
}

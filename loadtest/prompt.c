// SPDX-License-Identifier: Apache-2.0
#include "loadtest/prompt.h"
#include "base/json_write.h"
#include <string.h>

// Common words are one token each in most vocabularies, with the space before them.
static const char *const words[] = {
    "time",     "year",    "people",   "way",    "day",        "man",    "thing",   "woman",
    "life",     "child",   "world",    "school", "state",      "family", "student", "group",
    "country",  "problem", "hand",     "part",   "place",      "case",   "week",    "company",
    "system",   "program", "question", "work",   "government", "number", "night",   "point",
    "home",     "water",   "room",     "mother", "area",       "money",  "story",   "fact",
    "month",    "lot",     "right",    "study",  "book",       "eye",    "job",     "word",
    "business", "issue",   "side",     "kind",   "head",       "house",  "service", "friend",
    "father",   "power",   "hour",     "game",
};

static void random_words(struct lt_rng *rng, int32_t n, struct buf *out) {
    for (int32_t i = 0; i < n; i++) {
        if (i)
            buf_putc(out, ' ');
        buf_puts(out, words[lt_rng_next(rng) % (sizeof words / sizeof *words)]);
    }
}

// The shared beginning comes from a generator of its own, which each prompt starts anew.
static void write_text(const struct lt_options *o, struct lt_rng *rng, int32_t n,
                       struct json_w *w) {
    struct lt_rng shared = {(uint64_t)o->seed ^ 0x5eed};
    int32_t n_shared = o->shared_prefix < n ? (int32_t)o->shared_prefix : n;
    struct buf text;
    buf_init(&text, 0);
    random_words(&shared, n_shared, &text);
    if (n_shared && n > n_shared)
        buf_putc(&text, ' ');
    random_words(rng, n - n_shared, &text);
    if (buf_err(&text))
        w->out->failed = text.failed;
    else
        jw_strn(w, text.data, text.len);
    buf_fini(&text);
}

static void write_ids(const struct lt_options *o, struct lt_rng *rng, int32_t n, struct json_w *w) {
    struct lt_rng shared = {(uint64_t)o->seed ^ 0x5eed};
    jw_arr(w);
    for (int32_t i = 0; i < n; i++)
        jw_int(w,
               (int64_t)(lt_rng_next(i < o->shared_prefix ? &shared : rng) % (uint64_t)o->vocab));
    jw_arr_end(w);
}

void lt_prompt_body(const struct lt_options *o, const char *model, struct lt_rng *rng,
                    int32_t n_input, int32_t n_output, struct buf *out) {
    bool chat = !strcmp(o->endpoint, "chat");
    struct json_w w = json_w_begin(out);
    jw_obj(&w);
    jw_kstr(&w, "model", model);
    if (chat) {
        jw_key(&w, "messages");
        jw_arr(&w);
        jw_obj(&w);
        jw_kstr(&w, "role", "user");
        jw_key(&w, "content");
        write_text(o, rng, n_input, &w);
        jw_obj_end(&w);
        jw_arr_end(&w);
    } else {
        jw_key(&w, "prompt");
        if (!strcmp(o->prompt, "ids"))
            write_ids(o, rng, n_input, &w);
        else
            write_text(o, rng, n_input, &w);
    }
    jw_kint(&w, "max_tokens", n_output);
    jw_knum(&w, "temperature", o->temperature);
    jw_kint(&w, "seed", (int64_t)(lt_rng_next(rng) >> 33));
    if (o->ignore_eos)
        jw_kbool(&w, "ignore_eos", true);
    if (o->check_tokens && chat)
        jw_kbool(&w, "logprobs", true);
    else if (o->check_tokens)
        jw_kint(&w, "logprobs", 0);
    if (o->stream) {
        jw_kbool(&w, "stream", true);
        jw_key(&w, "stream_options");
        jw_obj(&w);
        jw_kbool(&w, "include_usage", true);
        jw_obj_end(&w);
    }
    jw_obj_end(&w);
}

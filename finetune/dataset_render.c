// SPDX-License-Identifier: Apache-2.0
// The mask comes from the text: the conversation is rendered once as a whole, and once up to each
// supervised turn, with the generation prompt and with the turn. Both must be a prefix of the
// whole, so that what is learnt stands behind exactly what the model will see when it is served.
#include "base/mem.h"
#include "finetune/dataset_internal.h"
#include "model/chat_prompt.h"
#include <string.h>

enum { MAX_RENDERED = 256 << 20, MAX_VISITED = 4 << 20 }; // of one example: bytes, messages

static enum err no_memory(struct err_info *info) {
    return err_set(info, ERR_NOMEM, NULL, "out of memory while rendering the training data");
}

// What every line would stumble over.
static enum err check_vars(const struct ft_dataset_opts *o, struct err_info *info) {
    static const char field[] = "template_vars";
    if (o->template_vars && !json_is_object(o->template_vars))
        return err_set(info, ERR_INVALID, field, "%s must be an object", field);
    json_t *none = json_array(), *vars = NULL;
    struct chat_prompt p = {
        .tokenizer = o->tokenizer,
        .messages = none,
        .extra = o->template_vars,
        .extra_field = field,
    };
    enum err rc = none ? chat_prompt_vars(&p, &vars, info) : no_memory(info);
    json_decref(vars);
    json_decref(none);
    return rc;
}

enum err ft__renderer_init(struct ft__renderer *r, const struct ft_dataset_opts *opts,
                           struct err_info *info) {
    *r = (struct ft__renderer){.opts = opts};
    int64_t vocab = tokenizer_vocab_size(opts->tokenizer);
    r->eos = opts->eos >= 0 ? opts->eos : tokenizer_eos(opts->tokenizer);
    if (r->eos >= vocab || opts->n_ends < 0 || opts->n_ends > FT_MAX_ENDS)
        return err_set(info, ERR_INVALID, NULL, "eos %d or %d end tokens are out of range", r->eos,
                       opts->n_ends);
    if (opts->max_seq_len < 2 || opts->max_seq_len > FT_MAX_SEQ_LEN)
        return err_set(info, ERR_INVALID, "max_seq_length",
                       "max_seq_length must be from 2 to %d, got %d", FT_MAX_SEQ_LEN,
                       opts->max_seq_len);
    if (r->eos >= 0)
        r->ends[r->n_ends++] = r->eos;
    if (tokenizer_eos(opts->tokenizer) >= 0)
        r->ends[r->n_ends++] = tokenizer_eos(opts->tokenizer);
    for (int32_t i = 0; i < opts->n_ends; i++)
        r->ends[r->n_ends++] = opts->ends[i];
    return check_vars(opts, info);
}

void ft__renderer_fini(struct ft__renderer *r) {
    mem_free(r->end);
    r->end = NULL;
    r->end_cap = 0;
}

void ft__seq_fini(struct ft__seq *s) {
    tok_ids_fini(&s->ids);
    mem_free(s->mask);
    *s = (struct ft__seq){0};
}

static bool is_end(const struct ft__renderer *r, int32_t id) {
    for (int32_t i = 0; i < r->n_ends; i++)
        if (r->ends[i] == id)
            return true;
    return false;
}

static enum err append(struct tok_ids *ids, int32_t id, struct err_info *info) {
    if (ids->n == ids->cap) {
        size_t cap = ids->cap ? 2 * ids->cap : 64;
        int32_t *more = mem_realloc(ids->ids, cap * sizeof *more);
        if (!more)
            return no_memory(info);
        ids->ids = more;
        ids->cap = cap;
    }
    ids->ids[ids->n++] = id;
    return ERR_OK;
}

static enum err append_eos(const struct ft__renderer *r, struct tok_ids *ids,
                           struct err_info *info) {
    if (r->eos < 0)
        return err_set(info, ERR_INVALID, NULL,
                       "the answer needs an end-of-sequence token, and the tokenizer has none");
    return append(ids, r->eos, info);
}

// A zeroed mask for the ids and, one more, for an end-of-sequence.
static enum err clear_mask(struct ft__seq *s, struct err_info *info) {
    size_t need = s->ids.n + 1;
    if (need > s->mask_cap) {
        mem_free(s->mask);
        s->mask_cap = 0;
        s->mask = mem_alloc(2 * need);
        if (!s->mask)
            return no_memory(info);
        s->mask_cap = 2 * need;
    }
    memset(s->mask, 0, need);
    return ERR_OK;
}

// Cuts at max_seq_len and counts. A sequence's first token has nothing before it that it could be
// predicted from.
static void finish(const struct ft__renderer *r, struct ft__seq *s) {
    size_t max = (size_t)r->opts->max_seq_len;
    s->whole = s->ids.n;
    s->cut = s->ids.n > max;
    if (s->cut)
        s->ids.n = max;
    if (s->ids.n)
        s->mask[0] = 0;
    s->targets = 0;
    for (size_t i = 0; i < s->ids.n; i++)
        s->targets += s->mask[i];
}

// ---- chats

struct chat {
    struct ft__renderer *r;
    json_t *messages, *tools;
    const uint8_t *target; // [messages]
    size_t n;
    struct chat_output whole;
};

// The first n messages.
static enum err render(struct chat *c, size_t n, bool add_generation_prompt,
                       struct chat_output *out, struct err_info *info) {
    const struct ft_dataset_opts *o = c->r->opts;
    json_t *some = c->messages, *vars = NULL;
    *out = (struct chat_output){0};
    if (n < c->n) {
        some = json_array();
        for (size_t i = 0; some && i < n; i++)
            if (json_array_append(some, json_array_get(c->messages, i))) {
                json_decref(some);
                some = NULL;
            }
        if (!some)
            return no_memory(info);
    }
    struct chat_prompt p = {
        .tokenizer = o->tokenizer,
        .messages = some,
        .tools = c->tools,
        .add_generation_prompt = add_generation_prompt,
        .extra = o->template_vars,
        .extra_field = "template_vars",
    };
    enum err rc = chat_prompt_vars(&p, &vars, info);
    if (!rc) {
        struct chat_render_opts opts = {.vars = vars, .now = o->now};
        rc = chat_template_render(o->chat_template, &opts, out, info);
        if (rc == ERR_TEMPLATE)
            err_prefix(info, "chat template");
    }
    json_decref(vars);
    if (n < c->n)
        json_decref(some);
    c->r->rendered += out->text.len;
    c->r->visited += n;
    if (!rc && (c->r->rendered > MAX_RENDERED || c->r->visited > MAX_VISITED)) {
        chat_output_fini(out);
        rc = err_set(info, ERR_LIMIT, NULL,
                     "it has too many turns to train on; split it or give some of them weight 0");
    }
    return rc;
}

// Where each token ends in the text. Tokens spell the text, but for what the tokenizer drops: white
// space beside some special tokens, bytes that the vocabulary lacks. Those count to the token after
// them.
static enum err find_ends(struct ft__renderer *r, const struct ft__seq *s, const struct buf *text,
                          struct err_info *info) {
    if (s->ids.n > r->end_cap) {
        mem_free(r->end);
        r->end_cap = 0;
        r->end = mem_calloc(2 * s->ids.n, sizeof *r->end);
        if (!r->end)
            return no_memory(info);
        r->end_cap = 2 * s->ids.n;
    }
    size_t at = 0;
    for (size_t i = 0; i < s->ids.n; i++) {
        size_t len;
        const char *bytes = tokenizer_token_bytes(r->opts->tokenizer, s->ids.ids[i], &len);
        if (!len || at + len > text->len || memcmp(text->data + at, bytes, len) != 0) {
            const char *found =
                len && text->len > at ? memmem(text->data + at, text->len - at, bytes, len) : NULL;
            if (!found)
                return err_set(info, ERR_UNSUPPORTED, NULL,
                               "the tokenizer's tokens do not spell the text (token %zu)", i);
            at = (size_t)(found - text->data);
        }
        at += len;
        r->end[i] = at;
    }
    return ERR_OK;
}

static bool is_literal(const struct chat_output *o, size_t at) {
    size_t lo = 0, hi = o->n_spans;
    while (lo < hi) { // the first span that ends behind `at`
        size_t mid = (lo + hi) / 2;
        if (o->spans[mid].end > at)
            hi = mid;
        else
            lo = mid + 1;
    }
    return lo < o->n_spans && o->spans[lo].literal;
}

static bool is_prefix(const struct buf *a, const struct buf *of) {
    return a->len <= of->len && (!a->len || !memcmp(a->data, of->data, a->len));
}

// The text of turn k: bytes [*begin, *end) of the whole.
static enum err find_turn(struct chat *c, size_t k, size_t *begin, size_t *end,
                          struct err_info *info) {
    struct chat_output prompt, with = {0};
    enum err rc = render(c, k, true, &prompt, info);
    if (rc)
        return rc;
    *begin = prompt.text.len;
    *end = c->whole.text.len;
    bool fits = is_prefix(&prompt.text, &c->whole.text);
    chat_output_fini(&prompt);
    if (!fits)
        return err_set(info, ERR_TEMPLATE, NULL,
                       "the chat template's prompt for messages[%zu] is not how the whole "
                       "conversation begins; give that message weight 0",
                       k);
    if (k + 1 == c->n)
        return ERR_OK;
    rc = render(c, k + 1, false, &with, info);
    if (rc)
        return rc;
    *end = with.text.len;
    fits = *end >= *begin && is_prefix(&with.text, &c->whole.text);
    chat_output_fini(&with);
    if (!fits)
        return err_set(info, ERR_TEMPLATE, NULL,
                       "the chat template writes messages[%zu] in another way once more messages "
                       "follow; give that message weight 0",
                       k);
    return ERR_OK;
}

// The first token that begins at or behind the byte.
static size_t token_at(const struct ft__renderer *r, size_t n, size_t byte) {
    size_t lo = 0, hi = n;
    while (lo < hi) {
        size_t mid = (lo + hi) / 2;
        if ((mid ? r->end[mid - 1] : 0) >= byte)
            hi = mid;
        else
            lo = mid + 1;
    }
    return lo;
}

// Marks turn k, which ends at byte *end. *open: the template does not end it with a token that
// stops the model.
static enum err mark_turn(struct chat *c, size_t k, struct ft__seq *s, size_t *end, bool *open,
                          struct err_info *info) {
    const struct ft__renderer *r = c->r;
    size_t begin;
    enum err rc = find_turn(c, k, &begin, end, info);
    if (rc)
        return rc;
    size_t first = token_at(r, s->ids.n, begin), last = token_at(r, s->ids.n, *end), stop = last;
    while (stop > first && !(is_end(r, s->ids.ids[stop - 1]) && r->end[stop - 1] <= *end &&
                             !is_literal(&c->whole, r->end[stop - 1] - 1)))
        stop--;
    *open = stop == first;
    memset(s->mask + first, 1, (*open ? last : stop) - first);
    return ERR_OK;
}

static enum err mark_turns(struct chat *c, struct ft__seq *s, struct err_info *info) {
    struct ft__renderer *r = c->r;
    size_t max = (size_t)r->opts->max_seq_len, end = 0;
    size_t cut = s->ids.n > max ? r->end[max - 1] : SIZE_MAX; // turns behind it need no rendering
    bool open = false;
    for (size_t k = 1; k < c->n && end < cut; k++) {
        enum err rc = c->target[k] ? mark_turn(c, k, s, &end, &open, info) : ERR_OK;
        if (rc)
            return rc;
    }
    if (s->ids.n > max || !c->target[c->n - 1] || !open)
        return ERR_OK;
    s->mask[s->ids.n] = 1;
    return append_eos(r, &s->ids, info);
}

static enum err check_bos(const struct ft__renderer *r, const struct ft__seq *s,
                          struct err_info *info) {
    int32_t bos = tokenizer_bos(r->opts->tokenizer);
    if (bos >= 0 && s->ids.n > 1 && s->ids.ids[0] == bos && s->ids.ids[1] == bos)
        return err_set(info, ERR_TEMPLATE, NULL, "the chat template writes two BOS tokens");
    return ERR_OK;
}

static enum err render_chat(struct ft__renderer *r, json_t *messages, json_t *tools,
                            const uint8_t *target, struct ft__seq *s, struct err_info *info) {
    struct chat c = {r, messages, tools, target, json_array_size(messages), {{0}, NULL, 0}};
    const struct tok_encode_opts opts = {.parse_special = true};
    s->ids.n = 0;
    enum err rc = render(&c, c.n, false, &c.whole, info);
    if (!rc)
        rc = chat_prompt_encode(r->opts->tokenizer, &c.whole, &opts, &s->ids, info);
    if (!rc)
        rc = clear_mask(s, info);
    bool useless =
        s->ids.n > (size_t)r->opts->max_seq_len && r->opts->truncation != FT_TRUNC_TRUNCATE;
    if (!rc && !useless) {
        (void)((rc = check_bos(r, s, info)) || (rc = find_ends(r, s, &c.whole.text, info)) ||
               (rc = mark_turns(&c, s, info)));
    }
    chat_output_fini(&c.whole);
    if (!rc)
        finish(r, s);
    return rc;
}

static enum err render_pair(struct ft__renderer *r, const struct ft__example *e,
                            struct ft__seq seq[2], struct err_info *info) {
    size_t n = json_array_size(e->messages);
    uint8_t *target = mem_zalloc(n + 1);
    if (!target)
        return no_memory(info);
    target[n] = 1;
    enum err rc = ERR_OK;
    for (int j = 0; !rc && j < 2; j++) {
        json_t *all = json_copy(e->messages);
        if (!all || json_array_append(all, e->output[j]))
            rc = no_memory(info);
        if (!rc)
            rc = render_chat(r, all, e->tools, target, &seq[j], info);
        json_decref(all);
    }
    mem_free(target);
    return rc;
}

// ---- completions

// Prompt and completion are tokenised apart: the prompt's ids are then those that serving sends.
static enum err render_completion(struct ft__renderer *r, const struct ft__example *e,
                                  struct ft__seq *s, struct err_info *info) {
    const struct tokenizer *t = r->opts->tokenizer;
    const struct tok_encode_opts opts = {.parse_special = true};
    const char *prompt = json_string_value(e->prompt);
    size_t len = json_string_length(e->prompt);
    int32_t bos = tokenizer_bos(t);
    enum err rc = ERR_OK;
    s->ids.n = 0;
    size_t bos_len = 0;
    const char *bos_text = bos >= 0 ? tokenizer_token_bytes(t, bos, &bos_len) : "";
    bool has_bos = bos_len && len >= bos_len && !memcmp(prompt, bos_text, bos_len);
    if (tokenizer_adds_bos(t) && !has_bos)
        rc = append(&s->ids, bos, info);
    if (!rc)
        rc = tokenizer_encode(t, prompt, len, &opts, &s->ids, info);
    size_t border = s->ids.n;
    if (!rc)
        rc = tokenizer_encode(t, json_string_value(e->answer), json_string_length(e->answer), &opts,
                              &s->ids, info);
    if (!rc && !(s->ids.n > border && is_end(r, s->ids.ids[s->ids.n - 1])))
        rc = append_eos(r, &s->ids, info);
    if (!rc)
        rc = clear_mask(s, info);
    if (rc)
        return rc;
    memset(s->mask + border, 1, s->ids.n - border);
    finish(r, s);
    return ERR_OK;
}

enum err ft__render(struct ft__renderer *r, const struct ft__example *e, struct ft__seq seq[2],
                    struct err_info *info) {
    r->rendered = r->visited = 0;
    if (e->kind == FT_COMPLETION)
        return render_completion(r, e, &seq[0], info);
    if (!r->opts->chat_template)
        return err_set(info, ERR_TEMPLATE, NULL,
                       "the model has no chat template; use prompt and completion");
    if (e->kind == FT_PREFERENCE)
        return render_pair(r, e, seq, info);
    return render_chat(r, e->messages, e->tools, e->target, &seq[0], info);
}

enum ft__fate ft__fate_of(const struct ft_dataset_opts *o, const struct ft__seq seq[2], bool pair,
                          bool *cut) {
    *cut = seq[0].cut || (pair && seq[1].cut);
    if (*cut && o->truncation == FT_TRUNC_ERROR)
        return FT__TOO_LONG;
    bool empty = !seq[0].targets || (pair && !seq[1].targets);
    if (*cut && (empty || o->truncation == FT_TRUNC_DROP))
        return FT__DROPPED;
    return empty ? FT__NO_TARGET : FT__KEPT;
}

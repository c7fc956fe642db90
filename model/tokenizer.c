// SPDX-License-Identifier: Apache-2.0
#include "model/tokenizer.h"
#include "base/mem.h"
#include "base/utf8.h"
#include "model/tokenizer_internal.h"
#include <string.h>

void tokenizer_destroy(struct tokenizer *t) {
    if (!t)
        return;
    for (size_t i = 0; i < t->n_stages; i++)
        pcre2_code_free(t->stages[i].code);
    pcre2_code_free(t->word_char);
    mem_free(t->added[0].items);
    mem_free(t->added[1].items);
    mem_free(t->merges);
    mem_free(t->words);
    mem_free(t->tokens);
    mem_free(t->blob);
    mem_free(t);
}

uint32_t tokenizer_vocab_size(const struct tokenizer *t) {
    return t->n_tokens;
}

int32_t tokenizer_bos(const struct tokenizer *t) {
    return t->bos;
}

int32_t tokenizer_eos(const struct tokenizer *t) {
    return t->eos;
}

bool tokenizer_adds_bos(const struct tokenizer *t) {
    for (size_t i = 0; i < t->n_prefix; i++)
        if (t->prefix[i] == t->bos)
            return true;
    return false;
}

void tok_ids_fini(struct tok_ids *ids) {
    mem_free(ids->ids);
    *ids = (struct tok_ids){0};
}

// --- encoding

enum err tok__emit(struct tok__encoder *e, int32_t id) {
    struct tok_ids *out = e->out;
    if (out->n >= e->limit)
        return ERR_CONTEXT;
    if (out->n == out->cap) {
        size_t cap = out->cap ? 2 * out->cap : 64;
        int32_t *ids = mem_realloc(out->ids, cap * sizeof(*ids));
        if (!ids)
            return ERR_NOMEM;
        out->ids = ids;
        out->cap = cap;
    }
    out->ids[out->n++] = id;
    return ERR_OK;
}

static enum err emit_all(struct tok__encoder *e, const int32_t *ids, size_t n) {
    enum err err = ERR_OK;
    for (size_t i = 0; i < n && err == ERR_OK; i++)
        err = tok__emit(e, ids[i]);
    return err;
}

static enum err encode(struct tok__encoder *e, const struct tok_encode_opts *opts) {
    const struct tokenizer *t = e->t;
    size_t held = e->out->n, suffix = opts->add_special ? t->n_suffix : 0;
    enum err err = ERR_OK;
    e->limit = SIZE_MAX;
    if (opts->max_ids && suffix > opts->max_ids)
        err = ERR_CONTEXT;
    else if (opts->max_ids && opts->max_ids < SIZE_MAX - held)
        e->limit = held + opts->max_ids - suffix;
    if (err == ERR_OK && opts->add_special)
        err = emit_all(e, t->prefix, t->n_prefix);
    if (err == ERR_OK && e->len) {
        err = tok__match_init(e);
        if (err == ERR_OK)
            err = tok__split_added(e, 0, 0, e->len);
        tok__match_fini(e);
        tok__bpe_work_fini(&e->work);
    }
    if (err == ERR_OK && suffix) {
        e->limit = SIZE_MAX; // room for these was kept
        err = emit_all(e, t->suffix, suffix);
    }
    if (err == ERR_OK)
        return ERR_OK;
    e->out->n = held;
    if (err == ERR_CONTEXT)
        return err_set(e->info, err, NULL, "the text has more than %zu tokens", opts->max_ids);
    if (err == ERR_NOMEM)
        return err_set(e->info, err, NULL, "out of memory while tokenizing");
    return err; // the stage that failed has said why
}

static enum err check_text(const char *text, size_t len, struct err_info *info) {
    if (len > TOK__MAX_TEXT)
        return err_set(info, ERR_LIMIT, NULL, "a text to tokenize has at most %d bytes, not %zu",
                       (int)TOK__MAX_TEXT, len);
    size_t good = utf8_valid_prefix(text, len);
    if (good < len)
        return err_set(info, ERR_INVALID, NULL, "the text is not valid UTF-8 at byte %zu", good);
    return ERR_OK;
}

enum err tokenizer_encode(const struct tokenizer *t, const char *text, size_t len,
                          const struct tok_encode_opts *opts, struct tok_ids *out,
                          struct err_info *info) {
    struct tok_piece piece = {.text = text, .len = len, .literal = !opts->parse_special};
    return tokenizer_encode_pieces(t, &piece, 1, opts, out, info);
}

// Joins the pieces' texts and finds their runs of equal `literal`. One piece is used where it
// stands: *joined stays NULL.
static enum err join(const struct tok_piece *pieces, size_t n, bool all_literal, char **joined,
                     struct tok__run *runs, size_t *n_runs) {
    size_t len = 0, made = 0;
    for (size_t i = 0; i < n; i++) {
        bool literal = all_literal || pieces[i].literal;
        if (!pieces[i].len)
            continue;
        len += pieces[i].len;
        if (made && runs[made - 1].literal == literal)
            made--;
        runs[made++] = (struct tok__run){.end = len, .literal = literal};
    }
    *n_runs = made;
    if (n <= 1)
        return ERR_OK;
    char *text = *joined = mem_alloc(len);
    if (!text)
        return ERR_NOMEM;
    for (size_t i = 0; i < n; i++) {
        if (pieces[i].len)
            memcpy(text, pieces[i].text, pieces[i].len);
        text += pieces[i].len;
    }
    return ERR_OK;
}

enum err tokenizer_encode_pieces(const struct tokenizer *t, const struct tok_piece *pieces,
                                 size_t n, const struct tok_encode_opts *opts, struct tok_ids *out,
                                 struct err_info *info) {
    struct tok__run one;
    struct tok__run *runs = n <= 1 ? &one : mem_calloc(n, sizeof(*runs));
    char *joined = NULL;
    size_t len = 0, n_runs = 0;
    enum err err = runs ? ERR_OK : ERR_NOMEM;
    for (size_t i = 0; i < n; i++)
        if (!mem_add(len, pieces[i].len, &len))
            len = SIZE_MAX; // refused below; a wrapped sum could look small
    if (err == ERR_OK && len <= TOK__MAX_TEXT)
        err = join(pieces, n, !opts->parse_special, &joined, runs, &n_runs);
    if (err == ERR_NOMEM) {
        err_set(info, err, NULL, "out of memory while tokenizing");
        goto done;
    }
    const char *text = joined ? joined : n ? pieces[0].text : "";
    err = check_text(text, len, info);
    if (err == ERR_OK) {
        struct tok__encoder e = {.t = t,
                                 .text = text,
                                 .len = len,
                                 .runs = runs,
                                 .n_runs = n_runs,
                                 .out = out,
                                 .info = info};
        err = encode(&e, opts);
    }
done:
    mem_free(joined);
    if (runs != &one)
        mem_free(runs);
    return err;
}

// --- single tokens and decoding

static const struct tok__token *token_of(const struct tokenizer *t, int32_t id) {
    return id >= 0 && (uint32_t)id < t->n_tokens ? &t->tokens[id] : NULL;
}

const char *tokenizer_token_bytes(const struct tokenizer *t, int32_t id, size_t *len) {
    const struct tok__token *tok = token_of(t, id);
    *len = tok ? tok->len : 0;
    return tok && tok->len ? t->blob + tok->off : "";
}

bool tokenizer_is_special(const struct tokenizer *t, int32_t id) {
    const struct tok__token *tok = token_of(t, id);
    return tok && tok->flags & TOK__CONTROL;
}

int32_t tokenizer_find(const struct tokenizer *t, const char *text, size_t len) {
    for (int pass = 0; pass < 2 && len; pass++) {
        const struct tok__added_set *set = &t->added[pass];
        size_t last = set->bucket[(uint8_t)text[0] + 1];
        for (size_t i = set->bucket[(uint8_t)text[0]]; i < last; i++) {
            const struct tok__added *a = &set->items[i];
            if (a->len == len && memcmp(t->blob + a->off, text, len) == 0)
                return a->id;
        }
    }
    return tok__find(t, text, len);
}

enum err tokenizer_decode(const struct tokenizer *t, const int32_t *ids, size_t n,
                          bool skip_special, struct buf *out) {
    for (size_t i = 0; i < n; i++) {
        const struct tok__token *tok = token_of(t, ids[i]);
        if (tok && !(skip_special && tok->flags & TOK__CONTROL))
            buf_append(out, t->blob + tok->off, tok->len);
    }
    return buf_err(out);
}

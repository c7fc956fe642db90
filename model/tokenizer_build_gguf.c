// SPDX-License-Identifier: Apache-2.0
// Builds a tokenizer from the arrays of a GGUF file. The file does not say how its added tokens
// were flagged, so they are matched as they stand (no strip, no single_word), before anything else.
#include "base/mem.h"
#include "base/utf8.h"
#include "model/tokenizer_internal.h"
#include <string.h>

enum token_type { NORMAL = 1, UNKNOWN = 2, CONTROL = 3, USER_DEFINED = 4, UNUSED = 5 };

static bool equals(struct tok_str s, const char *name) {
    return s.n == strlen(name) && memcmp(s.p, name, s.n) == 0;
}

static enum err set_split(struct tokenizer *t, struct tok_str pre, struct err_info *info) {
    if (equals(pre, "gpt-2"))
        return tok__add_stage(t, tok__pattern_gpt2, strlen(tok__pattern_gpt2), info);
    if (equals(pre, "llama-bpe") || equals(pre, "llama3") || equals(pre, "llama-v3")) {
        t->ignore_merges = true;
        return tok__add_stage(t, tok__pattern_llama3, strlen(tok__pattern_llama3), info);
    }
    if (equals(pre, "smollm")) {
        enum err e = tok__add_digits_stage(t, true, info);
        if (e != ERR_OK)
            return e;
        return tok__add_stage(t, tok__pattern_gpt2, strlen(tok__pattern_gpt2), info);
    }
    return err_set(info, ERR_UNSUPPORTED, NULL,
                   "tokenizer.ggml.pre %s is not supported; what is: gpt-2, llama-bpe, llama3, "
                   "llama-v3, smollm",
                   pre.n ? tok__show(pre.p, pre.n).text : "is missing, which");
}

static enum err entry_error(struct err_info *info, enum err e, size_t i, const char *what) {
    return err_set(info, e, NULL, "tokenizer.ggml.tokens[%zu] %s", i, what);
}

static enum err add_added(struct tokenizer *t, size_t i, struct tok_str s, bool special,
                          struct err_info *info) {
    if (s.n > TOK__MAX_ADDED_BYTES)
        return entry_error(info, ERR_LIMIT, i, "is too long for a control or user-defined token");
    struct tok__added_spec spec = {.text = s.p, .len = s.n, .id = (int32_t)i, .special = special};
    enum err e = tok__add_added(t, &spec);
    return e == ERR_OK ? e : entry_error(info, e, i, err_text(e));
}

// `scratch` has room for the token's text.
static enum err add_token(struct tokenizer *t, size_t i, struct tok_str s, int32_t type,
                          char *scratch, struct err_info *info) {
    const char *bytes = s.p;
    size_t n = s.n;
    uint32_t flags = TOK__LITERAL;
    if (s.n > TOK__MAX_TOKEN)
        return entry_error(info, ERR_LIMIT, i, "is too long");
    if (!utf8_valid(s.p, s.n))
        return entry_error(info, ERR_FORMAT, i, "is not UTF-8");
    switch (type) {
    case NORMAL:
        flags = TOK__LITERAL | TOK__WORD;
        if (tok__alphabet_decode(s.p, s.n, scratch, &n)) {
            bytes = scratch;
            flags = TOK__WORD;
        }
        break;
    case UNKNOWN:
    case CONTROL:
        flags |= TOK__CONTROL | TOK__ADDED;
        break;
    case USER_DEFINED:
        flags |= TOK__ADDED | TOK__WORD;
        break;
    case UNUSED:
        break;
    default:
        return err_set(info, ERR_FORMAT, NULL,
                       "tokenizer.ggml.token_type[%zu] is %d, which byte-level BPE does not have",
                       i, type);
    }
    enum err e = tok__set_token(t, (uint32_t)i, bytes, n, flags);
    if (e != ERR_OK)
        return entry_error(info, e, i, err_text(e));
    if (flags & TOK__ADDED && n)
        return add_added(t, i, s, flags & TOK__CONTROL, info);
    return ERR_OK;
}

static enum err add_tokens(struct tokenizer *t, const struct tokenizer_gguf *g,
                           struct err_info *info) {
    if (g->n_tokens == 0 || g->n_tokens > TOK__MAX_VOCAB)
        return err_set(info, ERR_LIMIT, NULL, "tokenizer.ggml.tokens has %zu entries, not 1 to %d",
                       g->n_tokens, (int)TOK__MAX_VOCAB);
    if (tok__alloc_ids(t, g->n_tokens) != ERR_OK)
        return err_set(info, ERR_NOMEM, NULL, "out of memory for %zu tokens", g->n_tokens);
    char *scratch = mem_alloc(TOK__MAX_TOKEN);
    if (!scratch)
        return err_set(info, ERR_NOMEM, NULL, "out of memory for the tokenizer");
    enum err e = ERR_OK;
    for (size_t i = 0; i < g->n_tokens && e == ERR_OK; i++)
        e = add_token(t, i, g->tokens[i], g->token_type ? g->token_type[i] : NORMAL, scratch, info);
    mem_free(scratch);
    if (e != ERR_OK)
        return e;
    e = tok__index_words(t, info);
    if (e != ERR_OK)
        err_prefix(info, "tokenizer.ggml.tokens");
    return e;
}

static enum err add_merges(struct tokenizer *t, const struct tokenizer_gguf *g,
                           struct err_info *info) {
    enum err e = tok__alloc_merges(t, g->n_merges, info);
    if (e != ERR_OK)
        err_prefix(info, "tokenizer.ggml.merges");
    for (size_t i = 0; i < g->n_merges && e == ERR_OK; i++) {
        struct tok_str m = g->merges[i];
        const char *space = m.n ? memchr(m.p, ' ', m.n) : NULL;
        if (!space || memchr(space + 1, ' ', m.n - (size_t)(space - m.p) - 1)) {
            e = err_set(info, ERR_FORMAT, NULL, "%s is not two texts with one space between",
                        tok__show(m.p, m.n).text);
        } else {
            struct tok_str left = {m.p, (size_t)(space - m.p)};
            struct tok_str right = {space + 1, m.n - left.n - 1};
            e = tok__add_merge(t, (uint32_t)i, left, right, info);
        }
        if (e != ERR_OK)
            err_prefix(info, "tokenizer.ggml.merges[%zu]", i);
    }
    return e;
}

static enum err check_id(int32_t id, size_t n, const char *name, struct err_info *info) {
    if (id >= -1 && (id < 0 || (size_t)id < n))
        return ERR_OK;
    return err_set(info, ERR_FORMAT, NULL, "tokenizer.ggml.%s_token_id %d is not below %zu", name,
                   id, n);
}

static enum err set_affixes(struct tokenizer *t, const struct tokenizer_gguf *g,
                            struct err_info *info) {
    enum err e = check_id(g->bos, g->n_tokens, "bos", info);
    if (e == ERR_OK)
        e = check_id(g->eos, g->n_tokens, "eos", info);
    if (e == ERR_OK)
        e = check_id(g->eot, g->n_tokens, "eot", info);
    if (e != ERR_OK)
        return e;
    if ((g->add_bos && g->bos < 0) || (g->add_eos && g->eos < 0))
        return err_set(info, ERR_FORMAT, NULL, "tokenizer.ggml.add_%s_token without that token",
                       g->add_bos && g->bos < 0 ? "bos" : "eos");
    t->bos = g->bos;
    t->eos = g->eos;
    if (g->add_bos)
        t->prefix[t->n_prefix++] = g->bos;
    if (g->add_eos)
        t->suffix[t->n_suffix++] = g->eos;
    return ERR_OK;
}

enum err tokenizer_from_gguf(const struct tokenizer_gguf *g, struct tokenizer **out,
                             struct err_info *info) {
    *out = NULL;
    if (!equals(g->model, "gpt2"))
        return err_set(info, ERR_UNSUPPORTED, NULL,
                       "tokenizer.ggml.model %s is not supported; what is: gpt2 (byte-level BPE)",
                       tok__show(g->model.p, g->model.n).text);
    struct tokenizer *t = tok__new();
    if (!t)
        return err_set(info, ERR_NOMEM, NULL, "out of memory for the tokenizer");
    enum err e = set_split(t, g->pre, info);
    if (e == ERR_OK)
        e = add_tokens(t, g, info);
    if (e == ERR_OK)
        e = add_merges(t, g, info);
    if (e == ERR_OK)
        e = set_affixes(t, g, info);
    if (e == ERR_OK)
        e = tok__finish(t, info);
    if (e != ERR_OK) {
        tokenizer_destroy(t);
        return e;
    }
    *out = t;
    return ERR_OK;
}

// SPDX-License-Identifier: Apache-2.0
// Builds a tokenizer from a Hugging Face folder's tokenizer.json and tokenizer_config.json.
// `truncation` and `padding` are settings of one caller of that library and are ignored.
#include "base/json_load.h"
#include "base/mem.h"
#include "base/utf8.h"
#include "model/tokenizer_hf.h"
#include <string.h>

enum { MAX_JSON = 128 << 20 };

static enum err parse(const char *json, size_t len, const char *file, json_t **out,
                      struct err_info *info) {
    json_error_t at;
    *out = NULL;
    if (len > MAX_JSON)
        return err_set(info, ERR_LIMIT, NULL, "%s has more than %d MiB", file, MAX_JSON >> 20);
    json_t *root = json_load_text(json, len, JSON_REJECT_DUPLICATES, &at);
    if (!root)
        return err_set(info, json_load_err(&at), NULL, "%s, line %d: %s", file, at.line, at.text);
    if (!json_is_object(root)) {
        json_decref(root);
        return err_set(info, ERR_FORMAT, NULL, "%s is not a JSON object", file);
    }
    *out = root;
    return ERR_OK;
}

// What BPE itself can be told and byte-level BPE does not use.
static enum err check_model(const json_t *model, struct err_info *info) {
    static const char *const unused[] = {"continuing_subword_prefix", "end_of_word_suffix"};
    const char *type = json_string_value(json_object_get(model, "type"));
    if (!json_is_object(model))
        return err_set(info, ERR_FORMAT, NULL, "model must be an object");
    if (type && strcmp(type, "BPE") != 0)
        return err_set(info, ERR_UNSUPPORTED, NULL,
                       "model type %s is not supported; what is: BPE (byte-level)",
                       tok__show(type, strlen(type)).text);
    for (size_t i = 0; i < 2; i++) {
        const json_t *v = json_object_get(model, unused[i]);
        if (v && !json_is_null(v) && !(json_is_string(v) && json_string_length(v) == 0))
            return err_set(info, ERR_UNSUPPORTED, NULL, "model.%s is not supported", unused[i]);
    }
    const json_t *dropout = json_object_get(model, "dropout");
    if (dropout && !json_is_null(dropout) && json_number_value(dropout) != 0.0)
        return err_set(info, ERR_UNSUPPORTED, NULL, "model.dropout is not supported");
    bool fallback;
    enum err e = tok__hf_bool(model, "byte_fallback", false, &fallback, info);
    if (e == ERR_OK && fallback)
        e = err_set(info, ERR_UNSUPPORTED, NULL, "model.byte_fallback is not supported");
    return e;
}

// --- vocabulary

static enum err check_id(const json_t *v, struct err_info *info) {
    if (!json_is_integer(v))
        return err_set(info, ERR_FORMAT, NULL, "the id must be an integer");
    json_int_t id = json_integer_value(v);
    if (id < 0 || id >= TOK__MAX_VOCAB)
        return err_set(info, ERR_LIMIT, NULL, "id %lld is not 0 to %d", (long long)id,
                       TOK__MAX_VOCAB - 1);
    return ERR_OK;
}

static enum err vocab_error(struct err_info *info, enum err e, const char *key) {
    err_prefix(info, "model.vocab %s", tok__show(key, strlen(key)).text);
    return e;
}

static enum err count_ids(json_t *vocab, const json_t *added, size_t *n, struct err_info *info) {
    const char *key;
    json_t *v;
    json_int_t most = -1;
    json_object_foreach(vocab, key, v) {
        enum err e = check_id(v, info);
        if (e != ERR_OK)
            return vocab_error(info, e, key);
        if (json_integer_value(v) > most)
            most = json_integer_value(v);
    }
    for (size_t i = 0; i < json_array_size(added); i++) {
        v = json_object_get(json_array_get(added, i), "id");
        enum err e = check_id(v, info);
        if (e != ERR_OK) {
            err_prefix(info, "added_tokens[%zu]", i);
            return e;
        }
        if (json_integer_value(v) > most)
            most = json_integer_value(v);
    }
    *n = (size_t)(most + 1);
    return most < 0 ? err_set(info, ERR_FORMAT, NULL, "the vocabulary is empty") : ERR_OK;
}

static enum err read_added(const json_t *v, struct tok__added_spec *spec, struct err_info *info) {
    const json_t *content = json_object_get(v, "content");
    if (!json_is_string(content))
        return err_set(info, ERR_FORMAT, NULL, "content must be a string");
    *spec = (struct tok__added_spec){.text = json_string_value(content),
                                     .len = json_string_length(content),
                                     .id = (int32_t)json_integer_value(json_object_get(v, "id"))};
    if (spec->len > TOK__MAX_ADDED_BYTES)
        return err_set(info, ERR_LIMIT, NULL, "content has more than %d bytes",
                       (int)TOK__MAX_ADDED_BYTES);
    enum err e = tok__hf_bool(v, "special", false, &spec->special, info);
    if (e == ERR_OK)
        e = tok__hf_bool(v, "single_word", false, &spec->single_word, info);
    if (e == ERR_OK)
        e = tok__hf_bool(v, "lstrip", false, &spec->lstrip, info);
    if (e == ERR_OK)
        e = tok__hf_bool(v, "rstrip", false, &spec->rstrip, info);
    if (e == ERR_OK)
        e = tok__hf_bool(v, "normalized", true, &spec->normalized, info);
    return e;
}

// A token of the vocabulary that is also added is found by its literal text. That text must not be
// how the byte alphabet writes a single byte, or the byte itself could no longer be shown.
static enum err check_spelling(const struct tok__added_spec *spec, struct err_info *info) {
    char byte[TOK__MAX_ADDED_BYTES];
    size_t n;
    if (spec->len > 1 && tok__alphabet_decode(spec->text, spec->len, byte, &n) && n == 1)
        return err_set(info, ERR_UNSUPPORTED, NULL, "content is the vocabulary's name of a byte");
    return ERR_OK;
}

static enum err add_added(struct tokenizer *t, const json_t *vocab, const json_t *v,
                          struct err_info *info) {
    struct tok__added_spec spec;
    enum err e = read_added(v, &spec, info);
    if (e != ERR_OK || spec.len == 0)
        return e;
    const json_t *in_vocab = json_object_get(vocab, spec.text);
    if (in_vocab && json_integer_value(in_vocab) != spec.id)
        return err_set(info, ERR_FORMAT, NULL, "id %d, but %lld in model.vocab", spec.id,
                       (long long)json_integer_value(in_vocab));
    if (in_vocab)
        e = check_spelling(&spec, info);
    if (e != ERR_OK)
        return e;
    uint32_t flags = TOK__ADDED | TOK__LITERAL;
    if (spec.special)
        flags |= TOK__CONTROL;
    else if (in_vocab)
        flags |= TOK__WORD;
    e = tok__set_token(t, (uint32_t)spec.id, spec.text, spec.len, flags);
    if (e == ERR_OK)
        e = tok__add_added(t, &spec);
    else if (e == ERR_FORMAT)
        return err_set(info, e, NULL, "id %d has a token already", spec.id);
    return e == ERR_OK ? e : err_set(info, e, NULL, "%s", err_text(e));
}

static enum err add_word(struct tokenizer *t, const char *key, uint32_t id, char *scratch,
                         struct err_info *info) {
    const struct tok__token *tok = &t->tokens[id];
    size_t len = strlen(key), n = len;
    if (tok->flags & TOK__USED) {
        if (tok->len == len && memcmp(t->blob + tok->off, key, len) == 0)
            return ERR_OK; // also an added token
        return err_set(info, ERR_FORMAT, NULL, "id %u has a token already", id);
    }
    if (len > TOK__MAX_TOKEN)
        return err_set(info, ERR_LIMIT, NULL, "a token has at most %d bytes", (int)TOK__MAX_TOKEN);
    bool spelled = tok__alphabet_decode(key, len, scratch, &n);
    enum err e = spelled ? tok__set_token(t, id, scratch, n, TOK__WORD)
                         : tok__set_token(t, id, key, len, TOK__WORD | TOK__LITERAL);
    return e == ERR_OK ? e : err_set(info, e, NULL, "%s", err_text(e));
}

static enum err add_vocab(struct tokenizer *t, json_t *vocab, const json_t *added,
                          struct err_info *info) {
    size_t n;
    char *scratch = NULL;
    enum err e = count_ids(vocab, added, &n, info);
    if (e != ERR_OK)
        return e;
    if (tok__alloc_ids(t, n) != ERR_OK || !(scratch = mem_alloc(TOK__MAX_TOKEN)))
        return err_set(info, ERR_NOMEM, NULL, "out of memory for %zu tokens", n);
    for (size_t i = 0; i < json_array_size(added) && e == ERR_OK; i++) {
        e = add_added(t, vocab, json_array_get(added, i), info);
        if (e != ERR_OK)
            err_prefix(info, "added_tokens[%zu]", i);
    }
    const char *key;
    json_t *v;
    if (e == ERR_OK) {
        json_object_foreach(vocab, key, v) {
            e = add_word(t, key, (uint32_t)json_integer_value(v), scratch, info);
            if (e != ERR_OK) {
                vocab_error(info, e, key);
                break;
            }
        }
    }
    mem_free(scratch);
    return e == ERR_OK ? tok__index_words(t, info) : e;
}

// --- merges

static bool merge_sides(const json_t *v, struct tok_str *left, struct tok_str *right) {
    if (json_is_array(v)) { // ["left", "right"]
        const json_t *a = json_array_get(v, 0), *b = json_array_get(v, 1);
        if (json_array_size(v) != 2 || !json_is_string(a) || !json_is_string(b))
            return false;
        *left = (struct tok_str){json_string_value(a), json_string_length(a)};
        *right = (struct tok_str){json_string_value(b), json_string_length(b)};
        return true;
    }
    const char *s = json_string_value(v), *space = s ? strchr(s, ' ') : NULL; // "left right"
    if (!space || strchr(space + 1, ' '))
        return false;
    *left = (struct tok_str){s, (size_t)(space - s)};
    *right = (struct tok_str){space + 1, strlen(space + 1)};
    return true;
}

static enum err add_merges(struct tokenizer *t, const json_t *merges, struct err_info *info) {
    if (!json_is_array(merges))
        return err_set(info, ERR_FORMAT, NULL, "model.merges must be a list");
    size_t n = json_array_size(merges);
    enum err e = tok__alloc_merges(t, n, info);
    if (e != ERR_OK)
        err_prefix(info, "model.merges");
    for (size_t i = 0; i < n && e == ERR_OK; i++) {
        struct tok_str left, right;
        if (merge_sides(json_array_get(merges, i), &left, &right))
            e = tok__add_merge(t, (uint32_t)i, left, right, info);
        else
            e = err_set(info, ERR_FORMAT, NULL, "must be two strings, or one with one space");
        if (e != ERR_OK)
            err_prefix(info, "model.merges[%zu]", i);
    }
    return e;
}

static enum err set_unk(struct tokenizer *t, const json_t *model, const json_t *vocab,
                        struct err_info *info) {
    const json_t *unk = json_object_get(model, "unk_token");
    enum err e = tok__hf_bool(model, "fuse_unk", false, &t->fuse_unk, info);
    if (e != ERR_OK || !unk || json_is_null(unk))
        return e;
    const json_t *id = json_is_string(unk) ? json_object_get(vocab, json_string_value(unk)) : NULL;
    if (!id)
        return err_set(info, ERR_FORMAT, NULL, "model.unk_token is not in the vocabulary");
    t->unk = (int32_t)json_integer_value(id);
    return ERR_OK;
}

static enum err build(struct tokenizer *t, const json_t *root, struct err_info *info) {
    const json_t *model = json_object_get(root, "model");
    const json_t *added = json_object_get(root, "added_tokens");
    enum err e = check_model(model, info);
    if (e != ERR_OK)
        return e;
    json_t *vocab = json_object_get(model, "vocab");
    if (!json_is_object(vocab))
        return err_set(info, ERR_FORMAT, NULL, "model.vocab must be an object");
    if (added && !json_is_null(added) && !json_is_array(added))
        return err_set(info, ERR_FORMAT, NULL, "added_tokens must be a list");
    e = tok__hf_bool(model, "ignore_merges", false, &t->ignore_merges, info);
    if (e == ERR_OK)
        e = tok__hf_normalizer(json_object_get(root, "normalizer"), info);
    if (e == ERR_OK)
        e = tok__hf_pre_tokenizer(t, json_object_get(root, "pre_tokenizer"), info);
    if (e == ERR_OK)
        e = tok__hf_decoder(json_object_get(root, "decoder"), info);
    if (e == ERR_OK)
        e = add_vocab(t, vocab, added, info);
    if (e == ERR_OK)
        e = add_merges(t, json_object_get(model, "merges"), info);
    if (e == ERR_OK)
        e = set_unk(t, model, vocab, info);
    if (e == ERR_OK)
        e = tok__hf_post_processor(t, json_object_get(root, "post_processor"), info);
    return e;
}

// --- tokenizer_config.json

static enum err named_token(struct tokenizer *t, const json_t *config, const char *key, int32_t *id,
                            struct err_info *info) {
    const json_t *v = json_object_get(config, key);
    if (json_is_object(v))
        v = json_object_get(v, "content");
    if (!v || json_is_null(v))
        return ERR_OK;
    if (!json_is_string(v))
        return err_set(info, ERR_FORMAT, NULL, "tokenizer_config.json: %s must be a string", key);
    *id = tokenizer_find(t, json_string_value(v), json_string_length(v));
    if (*id < 0)
        return err_set(info, ERR_FORMAT, NULL,
                       "tokenizer_config.json: %s %s is not in the vocabulary", key,
                       tok__show(json_string_value(v), json_string_length(v)).text);
    return ERR_OK;
}

static enum err read_config(struct tokenizer *t, const char *text, size_t len,
                            struct err_info *info) {
    json_t *config;
    enum err e = parse(text, len, "tokenizer_config.json", &config, info);
    if (e != ERR_OK)
        return e;
    e = named_token(t, config, "bos_token", &t->bos, info);
    if (e == ERR_OK)
        e = named_token(t, config, "eos_token", &t->eos, info);
    json_decref(config);
    return e;
}

enum err tokenizer_from_hf(const char *json, size_t len, const char *config, size_t config_len,
                           struct tokenizer **out, struct err_info *info) {
    json_t *root;
    *out = NULL;
    enum err e = parse(json, len, "tokenizer.json", &root, info);
    if (e != ERR_OK)
        return e;
    struct tokenizer *t = tok__new();
    if (!t) {
        json_decref(root);
        return err_set(info, ERR_NOMEM, NULL, "out of memory for the tokenizer");
    }
    e = build(t, root, info);
    json_decref(root);
    if (e == ERR_OK)
        e = tok__finish(t, info);
    if (e != ERR_OK)
        err_prefix(info, "tokenizer.json");
    else if (config)
        e = read_config(t, config, config_len, info);
    if (e == ERR_OK && t->bos < 0 && t->n_prefix)
        t->bos = t->prefix[0];
    if (e != ERR_OK) {
        tokenizer_destroy(t);
        return e;
    }
    *out = t;
    return ERR_OK;
}

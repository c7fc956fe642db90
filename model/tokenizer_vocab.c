// SPDX-License-Identifier: Apache-2.0
// Fills a tokenizer: tokens by id, the map from bytes to tokens, merges, added tokens. The order is
// that of the declarations in tokenizer_internal.h.
#include "base/mem.h"
#include "base/utf8.h"
#include "model/tokenizer_internal.h"
#include <stdlib.h>
#include <string.h>

struct tokenizer *tok__new(void) {
    struct tokenizer *t = mem_zalloc(sizeof(*t));
    if (!t)
        return NULL;
    t->bos = t->eos = t->unk = -1;
    for (int b = 0; b < 256; b++)
        t->byte_id[b] = -1;
    t->blob_cap = 4096;
    t->blob = mem_alloc(t->blob_cap); // never NULL: offsets are added to it, also those of no bytes
    if (!t->blob || hash_key_random(&t->key) != ERR_OK) {
        tokenizer_destroy(t);
        return NULL;
    }
    return t;
}

struct tok__shown tok__show(const char *p, size_t n) {
    struct tok__shown s = {0};
    size_t room = sizeof(s.text) - 6, made = 0;
    bool whole = n <= room;
    s.text[made++] = '"';
    for (size_t i = 0; i < n && i < room; i++)
        s.text[made++] = (unsigned char)p[i] < 0x20 ? '?' : p[i];
    made = 1 + utf8_valid_prefix(s.text + 1, made - 1);
    memcpy(s.text + made, whole ? "\"" : "...\"", whole ? 2 : 5);
    return s;
}

enum err tok__alloc_ids(struct tokenizer *t, size_t n) {
    t->tokens = mem_calloc(n ? n : 1, sizeof(*t->tokens));
    if (!t->tokens)
        return ERR_NOMEM;
    t->n_tokens = (uint32_t)n;
    return ERR_OK;
}

// Room for n more bytes at the end of the blob.
static enum err blob_reserve(struct tokenizer *t, size_t n) {
    if (n > TOK__MAX_TEXT - t->blob_len)
        return ERR_LIMIT;
    size_t need = t->blob_len + n;
    if (need <= t->blob_cap)
        return ERR_OK;
    size_t cap = t->blob_cap;
    while (cap < need)
        cap *= 2;
    char *blob = mem_realloc(t->blob, cap);
    if (!blob)
        return ERR_NOMEM;
    t->blob = blob;
    t->blob_cap = cap;
    return ERR_OK;
}

static enum err blob_add(struct tokenizer *t, const char *p, size_t n, uint32_t *off) {
    enum err e = blob_reserve(t, n);
    if (e != ERR_OK)
        return e;
    if (n)
        memcpy(t->blob + t->blob_len, p, n);
    *off = (uint32_t)t->blob_len;
    t->blob_len += n;
    return ERR_OK;
}

enum err tok__set_token(struct tokenizer *t, uint32_t id, const char *bytes, size_t len,
                        uint32_t flags) {
    struct tok__token *tok = &t->tokens[id];
    if (tok->flags & TOK__USED)
        return ERR_FORMAT;
    if (len > TOK__MAX_TOKEN)
        return ERR_LIMIT;
    enum err e = blob_add(t, bytes, len, &tok->off);
    if (e != ERR_OK)
        return e;
    tok->len = (uint32_t)len;
    tok->flags = flags | TOK__USED;
    return ERR_OK;
}

enum err tok__add_added(struct tokenizer *t, const struct tok__added_spec *spec) {
    struct tok__added_set *set = &t->added[spec->normalized];
    if (set->n == set->cap) {
        size_t cap = set->cap ? 2 * set->cap : 32;
        struct tok__added *items = mem_realloc(set->items, cap * sizeof(*items));
        if (!items)
            return ERR_NOMEM;
        set->items = items;
        set->cap = cap;
    }
    struct tok__added *a = &set->items[set->n];
    *a = (struct tok__added){.len = (uint32_t)spec->len,
                             .id = spec->id,
                             .special = spec->special,
                             .single_word = spec->single_word,
                             .lstrip = spec->lstrip,
                             .rstrip = spec->rstrip};
    enum err e = blob_add(t, spec->text, spec->len, &a->off);
    if (e == ERR_OK)
        set->n++;
    return e;
}

// Smallest power of two with at least twice n slots.
static size_t table_size(size_t n) {
    size_t size = 16;
    while (size < 2 * n)
        size *= 2;
    return size;
}

// The slot that holds p[0..n) or, if none does, the free one where it belongs.
static struct tok__word_slot *word_slot(const struct tokenizer *t, const char *p, size_t n,
                                        uint32_t *tag) {
    uint64_t h = hash_bytes(&t->key, p, n);
    *tag = (uint32_t)(h >> 32);
    for (uint32_t at = (uint32_t)h & t->word_mask;; at = (at + 1) & t->word_mask) {
        struct tok__word_slot *slot = &t->words[at];
        if (!slot->id1)
            return slot;
        const struct tok__token *tok = &t->tokens[slot->id1 - 1];
        if (slot->tag == *tag && tok->len == n && memcmp(t->blob + tok->off, p, n) == 0)
            return slot;
    }
}

int32_t tok__find(const struct tokenizer *t, const char *p, size_t n) {
    uint32_t tag;
    if (n == 0)
        return -1;
    return (int32_t)word_slot(t, p, n, &tag)->id1 - 1;
}

// A literal text is a spelling in the byte alphabet too only where both read the same.
static bool plain_ascii(const char *p, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (p[i] <= 0x20 || p[i] >= 0x7f)
            return false;
    return true;
}

enum err tok__index_words(struct tokenizer *t, struct err_info *info) {
    size_t size = table_size(t->n_tokens);
    t->words = mem_calloc(size, sizeof(*t->words));
    if (!t->words)
        return err_set(info, ERR_NOMEM, NULL, "out of memory for %u tokens", t->n_tokens);
    t->word_mask = (uint32_t)(size - 1);
    t->max_word = 1;
    for (uint32_t id = 0; id < t->n_tokens; id++) {
        struct tok__token *tok = &t->tokens[id];
        const char *p = t->blob + tok->off;
        if (tok->len == 0 || (tok->flags & TOK__LITERAL && !plain_ascii(p, tok->len))) {
            tok->flags &= ~(uint32_t)TOK__WORD;
            continue;
        }
        uint32_t tag;
        struct tok__word_slot *slot = word_slot(t, p, tok->len, &tag);
        if (slot->id1)
            return err_set(info, ERR_FORMAT, NULL, "tokens %u and %u are both spelled %s",
                           slot->id1 - 1, id, tok__show(p, tok->len).text);
        *slot = (struct tok__word_slot){.id1 = id + 1, .tag = tag};
        if (tok->len == 1)
            t->byte_id[(uint8_t)*p] = (int32_t)id;
        if (tok->flags & TOK__WORD && tok->len > t->max_word)
            t->max_word = tok->len;
    }
    return ERR_OK;
}

enum err tok__alloc_merges(struct tokenizer *t, size_t n, struct err_info *info) {
    if (n > TOK__MAX_MERGES)
        return err_set(info, ERR_LIMIT, NULL, "%zu merges; at most %d are allowed", n,
                       (int)TOK__MAX_MERGES);
    size_t size = table_size(n);
    t->merges = mem_calloc(size, sizeof(*t->merges));
    if (!t->merges)
        return err_set(info, ERR_NOMEM, NULL, "out of memory for %zu merges", n);
    for (size_t i = 0; i < size; i++)
        t->merges[i].rank = TOK__NO_RANK;
    t->merge_mask = (uint32_t)(size - 1);
    return ERR_OK;
}

enum err tok__add_merge(struct tokenizer *t, uint32_t rank, struct tok_str left,
                        struct tok_str right, struct err_info *info) {
    size_t n_left, n_right;
    if (left.n > TOK__MAX_TOKEN || right.n > TOK__MAX_TOKEN)
        return err_set(info, ERR_LIMIT, NULL, "a side is longer than %d bytes",
                       (int)TOK__MAX_TOKEN);
    enum err e = blob_reserve(t, left.n + right.n); // scratch: nothing is added to the blob
    if (e != ERR_OK)
        return err_set(info, e, NULL, "no room for the merge's text");
    char *joined = t->blob + t->blob_len;
    if (!tok__alphabet_decode(left.p, left.n, joined, &n_left) ||
        !tok__alphabet_decode(right.p, right.n, joined + n_left, &n_right))
        return err_set(info, ERR_FORMAT, NULL, "%s + %s is not in the byte alphabet",
                       tok__show(left.p, left.n).text, tok__show(right.p, right.n).text);
    int32_t a = tok__find(t, joined, n_left);
    int32_t b = tok__find(t, joined + n_left, n_right);
    int32_t ab = tok__find(t, joined, n_left + n_right);
    if (a < 0 || b < 0 || ab < 0) {
        const char *what = a < 0 ? "left side" : b < 0 ? "right side" : "result";
        return err_set(info, ERR_FORMAT, NULL, "%s + %s: the %s is not in the vocabulary",
                       tok__show(left.p, left.n).text, tok__show(right.p, right.n).text, what);
    }
    if (!(t->tokens[ab].flags & TOK__WORD))
        return ERR_OK; // plain text never becomes a control token
    uint64_t pair = (uint64_t)(uint32_t)a << 32 | (uint32_t)b;
    uint32_t at = (uint32_t)hash_mix64(pair ^ t->key.k0) & t->merge_mask;
    while (t->merges[at].rank != TOK__NO_RANK && t->merges[at].pair != pair)
        at = (at + 1) & t->merge_mask;
    t->merges[at] = (struct tok__merge){.pair = pair, .rank = rank, .id = ab};
    return ERR_OK;
}

// Order of texts by their bytes, a prefix first. qsort has no context argument, so the items carry
// nothing but offsets and the blob comes through qsort_r.
static int added_order(const void *a, const void *b, void *blob) {
    const struct tok__added *x = a, *y = b;
    size_t n = x->len < y->len ? x->len : y->len;
    int c = memcmp((const char *)blob + x->off, (const char *)blob + y->off, n);
    return c ? c : (x->len > y->len) - (x->len < y->len);
}

static void sort_added(struct tokenizer *t, struct tok__added_set *set) {
    if (set->n)
        qsort_r(set->items, set->n, sizeof(*set->items), added_order, t->blob);
    size_t at = 0;
    for (size_t b = 0; b <= 256; b++) {
        while (at < set->n && (uint8_t)t->blob[set->items[at].off] < b)
            at++;
        set->bucket[b] = (uint32_t)at;
    }
}

// Finds the tokens that the merges give back whole, so that a word that is one of them needs no
// merging.
static enum err mark_whole(struct tokenizer *t) {
    struct tok__bpe_work work = {0};
    enum err e = ERR_OK;
    for (uint32_t id = 0; id < t->n_tokens && e == ERR_OK; id++) {
        struct tok__token *tok = &t->tokens[id];
        if (!(tok->flags & TOK__WORD))
            continue;
        const int32_t *ids = NULL;
        size_t n = 1;
        if (!t->ignore_merges)
            e = tok__bpe(t, &work, t->blob + tok->off, tok->len, &ids, &n);
        if (e == ERR_OK && (t->ignore_merges || (n == 1 && ids[0] == (int32_t)id)))
            tok->flags |= TOK__WHOLE;
    }
    tok__bpe_work_fini(&work);
    return e;
}

enum err tok__finish(struct tokenizer *t, struct err_info *info) {
    for (int i = 0; i < 2; i++)
        sort_added(t, &t->added[i]);
    for (int i = 0; i < 2; i++) {
        for (size_t k = 0; k < t->added[i].n && !t->word_char; k++) {
            if (!t->added[i].items[k].single_word)
                continue;
            t->word_char = tok__word_char_compile();
            if (!t->word_char)
                return err_set(info, ERR_NOMEM, NULL, "out of memory for the tokenizer");
        }
    }
    enum err e = mark_whole(t);
    if (e != ERR_OK)
        return err_set(info, e, NULL, "out of memory for the tokenizer");
    return ERR_OK;
}

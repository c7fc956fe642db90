// SPDX-License-Identifier: Apache-2.0
// The digest of a tokenizer's content: whatever decides which ids a text gets. It is taken from the
// built tokenizer, in an order of its own, so that two files that say the same in two formats have
// one digest.
#include "base/mem.h"
#include "model/tokenizer_internal.h"
#include <stdlib.h>
#include <string.h>

// Bump it where the list below changes.
static const char magic[] = "graft tokenizer 1\n";

struct digest {
    struct sha256_ctx *ctx;
    enum err rc; // sticky
};

static void put(struct digest *d, const void *p, size_t n) {
    if (!d->rc)
        d->rc = sha256_update(d->ctx, p, n);
}

static void put_u32(struct digest *d, uint32_t v) {
    uint8_t bytes[4] = {(uint8_t)v, (uint8_t)(v >> 8), (uint8_t)(v >> 16), (uint8_t)(v >> 24)};
    put(d, bytes, sizeof bytes);
}

static void put_text(struct digest *d, const char *p, uint32_t n) {
    put_u32(d, n);
    put(d, p, n);
}

static void put_ids(struct digest *d, const int32_t *ids, size_t n) {
    put_u32(d, (uint32_t)n);
    for (size_t i = 0; i < n; i++)
        put_u32(d, (uint32_t)ids[i]);
}

static void put_tokens(struct digest *d, const struct tokenizer *t) {
    const uint32_t flags = TOK__CONTROL | TOK__ADDED | TOK__WORD | TOK__WHOLE | TOK__USED;
    put_u32(d, t->n_tokens);
    for (uint32_t i = 0; i < t->n_tokens; i++) {
        put_u32(d, t->tokens[i].flags & flags);
        put_text(d, t->blob + t->tokens[i].off, t->tokens[i].len);
    }
    put_ids(d, t->byte_id, 256);
}

static int by_rank(const void *a, const void *b) {
    const struct tok__merge *x = a, *y = b;
    return (x->rank > y->rank) - (x->rank < y->rank);
}

// The table's order hangs on a random key; the ranks, of which only the order counts, do not.
static void put_merges(struct digest *d, const struct tokenizer *t) {
    size_t slots = t->merges ? (size_t)t->merge_mask + 1 : 0, n = 0;
    struct tok__merge *sorted = mem_calloc(slots ? slots : 1, sizeof *sorted);
    if (!sorted) {
        d->rc = d->rc ? d->rc : ERR_NOMEM;
        return;
    }
    for (size_t i = 0; i < slots; i++)
        if (t->merges[i].rank != TOK__NO_RANK)
            sorted[n++] = t->merges[i];
    qsort(sorted, n, sizeof *sorted, by_rank);
    put_u32(d, (uint32_t)n);
    for (size_t i = 0; i < n; i++) {
        put_u32(d, (uint32_t)(sorted[i].pair >> 32));
        put_u32(d, (uint32_t)sorted[i].pair);
        put_u32(d, (uint32_t)sorted[i].id);
    }
    mem_free(sorted);
}

static void put_added(struct digest *d, const struct tokenizer *t) {
    for (int s = 0; s < 2; s++) {
        const struct tok__added_set *set = &t->added[s];
        put_u32(d, (uint32_t)set->n);
        for (size_t i = 0; i < set->n; i++) {
            const struct tok__added *a = &set->items[i];
            put_text(d, t->blob + a->off, a->len);
            put_u32(d, (uint32_t)a->id);
            put_u32(d, (uint32_t)a->special | (uint32_t)a->single_word << 1 |
                           (uint32_t)a->lstrip << 2 | (uint32_t)a->rstrip << 3);
        }
    }
}

enum err tokenizer_digest(const struct tokenizer *t, char hex[2 * SHA256_BYTES + 1],
                          struct err_info *info) {
    uint8_t sum[SHA256_BYTES];
    struct digest d = {.ctx = sha256_begin()};
    if (!d.ctx)
        return err_set(info, ERR_NOMEM, NULL, "out of memory for the tokenizer's digest");
    put(&d, magic, sizeof magic - 1);
    put_tokens(&d, t);
    put_merges(&d, t);
    put_added(&d, t);
    put_u32(&d, (uint32_t)t->n_stages);
    for (size_t i = 0; i < t->n_stages; i++)
        put(&d, t->stages[i].pattern, sizeof t->stages[i].pattern);
    put_u32(&d, (uint32_t)t->fuse_unk | (uint32_t)t->ignore_merges << 1);
    put_ids(&d, t->prefix, t->n_prefix);
    put_ids(&d, t->suffix, t->n_suffix);
    const int32_t special[] = {t->unk, t->bos, t->eos};
    put_ids(&d, special, sizeof special / sizeof *special);
    enum err ended = sha256_end(d.ctx, sum), e = d.rc ? d.rc : ended;
    if (e)
        return err_set(info, e, NULL, "the tokenizer's digest: %s", err_text(e));
    hex_encode(sum, sizeof sum, hex);
    return ERR_OK;
}

// SPDX-License-Identifier: Apache-2.0
// One sequence's block table: growing, sharing, writing, dropping. Rules 9 to 12 of README.md.
#include "base/mem.h"
#include "serving/paged_kv/kv_internal.h"
#include <assert.h>
#include <string.h>

enum err kv_seq_init(struct kv_seq *s, struct kv_pool *p, int32_t max_blocks,
                     const struct kv_domain *domain) {
    (void)p;
    *s = (struct kv_seq){.cap__ = max_blocks, .domain__ = *domain};
    s->blocks__ = mem_calloc((size_t)max_blocks, sizeof *s->blocks__);
    s->table = s->blocks__;
    return s->blocks__ ? ERR_OK : ERR_NOMEM;
}

void kv_seq_fini(struct kv_seq *s, struct kv_pool *p) {
    if (s->n_blocks)
        kv_seq_drop(s, p, INT64_MIN);
    mem_free(s->blocks__);
    *s = (struct kv_seq){0};
}

int32_t kv_seq_match(struct kv_seq *s, struct kv_pool *p, const int32_t *tokens, int32_t n,
                     int64_t now_ns) {
    assert(s->n_blocks == 0 && s->n_tokens == 0);
    if (!p->cfg.prefix_cache || n < 1)
        return 0;
    int32_t size = p->cfg.block_size, parent = KV__NONE;
    while (s->n_tokens + size < n && s->n_blocks < s->cap__) {
        int32_t b = kv__find(p, parent, tokens + s->n_tokens, &s->domain__);
        if (b == KV__NONE)
            break;
        kv__ref(p, b);
        p->blocks[b].used_ns = now_ns;
        s->blocks__[s->n_blocks++] = parent = b;
        s->n_tokens += size;
    }
    s->keyed__ = s->n_blocks;
    p->queries += (uint64_t)n;
    p->hits += (uint64_t)s->n_tokens;
    return s->n_tokens;
}

int32_t kv_pool_probe(struct kv_pool *p, const struct kv_domain *domain, const int32_t *tokens,
                      int32_t n, int32_t *idle) {
    int32_t size = p->cfg.block_size, parent = KV__NONE, found = 0;
    *idle = 0;
    while (p->cfg.prefix_cache && found + size < n) {
        parent = kv__find(p, parent, tokens + found, domain);
        if (parent == KV__NONE)
            break;
        *idle += p->blocks[parent].refs == 0;
        found += size;
    }
    return found;
}

enum err kv_seq_reserve(struct kv_seq *s, struct kv_pool *p, int32_t upto, struct kv_copy *copy,
                        int32_t *n_copies, int64_t now_ns) {
    int32_t size = p->cfg.block_size;
    *n_copies = 0;
    if (upto <= s->n_tokens)
        return ERR_OK;
    int32_t blocks = upto / size + (upto % size != 0);
    if (blocks > s->cap__)
        return ERR_CONTEXT;
    int32_t last = s->n_tokens / size; // the block that the next position falls into
    bool shared = last < s->n_blocks && p->blocks[s->blocks__[last]].refs > 1;
    int32_t more = blocks > s->n_blocks ? blocks - s->n_blocks : 0;
    if (more + (int32_t)shared > kv_pool_available(p))
        return ERR_AGAIN;
    if (shared) {
        int32_t src = s->blocks__[last], dst = kv__alloc(p);
        memcpy(kv__tokens(p, dst), kv__tokens(p, src), (size_t)size * sizeof *p->tokens);
        s->blocks__[last] = dst;
        kv__unref(p, src, now_ns);
        *copy = (struct kv_copy){.src = src, .dst = dst};
        *n_copies = 1;
    }
    while (s->n_blocks < blocks)
        s->blocks__[s->n_blocks++] = kv__alloc(p);
    return ERR_OK;
}

// The block at index i is full: it gets a key, or gives way to the block that already has it.
static void key_block(struct kv_seq *s, struct kv_pool *p, int32_t i, int64_t now_ns) {
    if (!p->cfg.prefix_cache || s->keyed__ != i)
        return;
    int32_t b = s->blocks__[i], parent = i ? s->blocks__[i - 1] : KV__NONE;
    if (parent != KV__NONE && !p->blocks[parent].serial)
        return; // its history was forgotten meanwhile
    assert(p->blocks[b].refs == 1 && !p->blocks[b].serial);
    int32_t first = kv__find(p, parent, kv__tokens(p, b), &s->domain__);
    if (first == KV__NONE) {
        kv__insert(p, b, parent, &s->domain__);
        p->blocks[b].used_ns = now_ns;
    } else {
        kv__ref(p, first);
        s->blocks__[i] = first;
        kv__unref(p, b, now_ns);
    }
    s->keyed__ = i + 1;
}

void kv_seq_commit(struct kv_seq *s, struct kv_pool *p, const int32_t *tokens, int32_t n,
                   int64_t now_ns) {
    int32_t size = p->cfg.block_size;
    assert(s->n_tokens + n <= s->n_blocks * size);
    while (n > 0) {
        int32_t i = s->n_tokens / size, at = s->n_tokens % size;
        int32_t take = n < size - at ? n : size - at;
        memcpy(kv__tokens(p, s->blocks__[i]) + at, tokens, (size_t)take * sizeof *tokens);
        s->n_tokens += take;
        tokens += take;
        n -= take;
        if (at + take == size)
            key_block(s, p, i, now_ns);
    }
}

void kv_seq_drop(struct kv_seq *s, struct kv_pool *p, int64_t now_ns) {
    while (s->n_blocks > 0)
        kv__unref(p, s->blocks__[--s->n_blocks], now_ns);
    s->n_tokens = s->keyed__ = 0;
}

void kv_seq_purge(struct kv_seq *s, struct kv_pool *p, int64_t now_ns) {
    for (int32_t i = 0; i < s->n_blocks; i++) {
        const struct kv__block *k = &p->blocks[s->blocks__[i]];
        // A block that only this sequence refers to has no descendant that another one refers to.
        if (k->serial && k->refs == 1)
            kv__forget(p, s->blocks__[i]);
    }
    kv_seq_drop(s, p, now_ns);
}

enum err kv_seq_fork(struct kv_seq *dst, const struct kv_seq *src, struct kv_pool *p) {
    assert(dst->n_blocks == 0 && dst->n_tokens == 0);
    // Blocks reserved beyond the positions written stay src's own: both would write there.
    int32_t size = p->cfg.block_size, n = src->n_tokens / size + (src->n_tokens % size != 0);
    if (n > dst->cap__)
        return ERR_CONTEXT;
    for (int32_t i = 0; i < n; i++) {
        kv__ref(p, src->blocks__[i]);
        dst->blocks__[i] = src->blocks__[i];
    }
    dst->n_blocks = n;
    dst->n_tokens = src->n_tokens;
    dst->keyed__ = src->keyed__;
    return ERR_OK;
}

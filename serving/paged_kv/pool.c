// SPDX-License-Identifier: Apache-2.0
// The block pool: who is free, who is cached in which order, who is referred to. Rules 1 to 4 of
// README.md.
#include "base/mem.h"
#include "serving/paged_kv/kv_internal.h"
#include <string.h>

enum { WORD = 64 };

static int32_t words(const struct kv_pool *p) {
    return (p->cfg.blocks + WORD - 1) / WORD;
}

enum err kv_pool_create(const struct kv_config *cfg, struct kv_pool **out) {
    enum err e = ERR_NOMEM;
    if (cfg->blocks < 1 || cfg->block_size < 1)
        return ERR_INVALID;
    struct kv_pool *p = mem_zalloc(sizeof *p);
    if (!p)
        return ERR_NOMEM;
    p->cfg = *cfg;
    p->lru_head = p->lru_tail = KV__NONE;
    p->next_serial = 1;
    size_t n = (size_t)cfg->blocks;
    uint32_t buckets = 16;
    while (buckets < 2 * (uint64_t)n && buckets < 1u << 30)
        buckets *= 2;
    p->table_mask = buckets - 1;
    p->blocks = mem_calloc(n, sizeof *p->blocks);
    p->tokens = mem_calloc(n, (size_t)cfg->block_size * sizeof *p->tokens);
    p->free_bits = mem_calloc((size_t)words(p), sizeof *p->free_bits);
    p->table = mem_calloc(buckets, sizeof *p->table);
    p->scratch = mem_calloc(3 + (size_t)cfg->block_size, sizeof *p->scratch);
    if (!p->blocks || !p->tokens || !p->free_bits || !p->table || !p->scratch)
        goto fail;
    e = hash_key_random(&p->key);
    if (e)
        goto fail;
    memset(p->table, 0xff, buckets * sizeof *p->table); // KV__NONE
    for (int32_t b = 0; b < cfg->blocks; b++)
        kv__put_free(p, b);
    *out = p;
    return ERR_OK;
fail:
    kv_pool_destroy(p);
    return e;
}

void kv_pool_destroy(struct kv_pool *p) {
    if (!p)
        return;
    mem_free(p->blocks);
    mem_free(p->tokens);
    mem_free(p->free_bits);
    mem_free(p->table);
    mem_free(p->scratch);
    mem_free(p);
}

void kv_pool_stats(const struct kv_pool *p, struct kv_stats *out) {
    *out = (struct kv_stats){
        .total = p->cfg.blocks,
        .live = p->cfg.blocks - p->n_free - p->n_cached - p->lent,
        .cached = p->n_cached,
        .free = p->n_free,
        .lent = p->lent,
        .queries = p->queries,
        .hits = p->hits,
        .evictions = p->evictions,
    };
}

int32_t kv_pool_available(const struct kv_pool *p) {
    return p->n_free + p->n_cached;
}

int32_t *kv__tokens(const struct kv_pool *p, int32_t b) {
    return p->tokens + (size_t)b * (size_t)p->cfg.block_size;
}

bool kv__is_free(const struct kv_pool *p, int32_t b) {
    return p->free_bits[b / WORD] >> (b % WORD) & 1;
}

void kv__put_free(struct kv_pool *p, int32_t b) {
    struct kv__block *k = &p->blocks[b];
    *k = (struct kv__block){
        .lru_prev = KV__NONE,
        .lru_next = KV__NONE,
        .hash_next = KV__NONE,
        .parent = KV__NONE,
        .first_child = KV__NONE,
        .sib_prev = KV__NONE,
        .sib_next = KV__NONE,
    };
    p->free_bits[b / WORD] |= UINT64_C(1) << (b % WORD);
    if (b / WORD < p->free_hint)
        p->free_hint = b / WORD;
    p->n_free++;
}

void kv__unfree(struct kv_pool *p, int32_t b) {
    p->free_bits[b / WORD] &= ~(UINT64_C(1) << (b % WORD));
    p->n_free--;
}

int32_t kv__take_free(struct kv_pool *p, int32_t below) {
    int32_t n = words(p);
    while (p->free_hint < n && !p->free_bits[p->free_hint])
        p->free_hint++;
    if (p->free_hint == n)
        return KV__NONE;
    int32_t b = p->free_hint * WORD + __builtin_ctzll(p->free_bits[p->free_hint]);
    if (b >= below)
        return KV__NONE;
    kv__unfree(p, b);
    return b;
}

int32_t kv__alloc(struct kv_pool *p) {
    int32_t b = kv__take_free(p, p->cfg.blocks);
    if (b == KV__NONE) {
        if (p->lru_head == KV__NONE)
            return KV__NONE;
        // The least recently used block is a leaf (rule 4), so this frees it alone.
        kv__forget(p, p->lru_head);
        p->evictions++;
        b = kv__take_free(p, p->cfg.blocks);
    }
    p->blocks[b].refs = 1;
    return b;
}

void kv__lru_remove(struct kv_pool *p, int32_t b) {
    struct kv__block *k = &p->blocks[b];
    if (k->lru_prev == KV__NONE)
        p->lru_head = k->lru_next;
    else
        p->blocks[k->lru_prev].lru_next = k->lru_next;
    if (k->lru_next == KV__NONE)
        p->lru_tail = k->lru_prev;
    else
        p->blocks[k->lru_next].lru_prev = k->lru_prev;
    k->lru_prev = k->lru_next = KV__NONE;
    p->n_cached--;
}

void kv__lru_push(struct kv_pool *p, int32_t b) {
    struct kv__block *k = &p->blocks[b];
    k->lru_prev = p->lru_tail;
    k->lru_next = KV__NONE;
    if (p->lru_tail == KV__NONE)
        p->lru_head = b;
    else
        p->blocks[p->lru_tail].lru_next = b;
    p->lru_tail = b;
    p->n_cached++;
}

void kv__ref(struct kv_pool *p, int32_t b) {
    if (p->blocks[b].refs++ == 0)
        kv__lru_remove(p, b);
}

void kv__unref(struct kv_pool *p, int32_t b, int64_t now_ns) {
    struct kv__block *k = &p->blocks[b];
    if (now_ns > k->used_ns)
        k->used_ns = now_ns;
    if (--k->refs > 0)
        return;
    if (k->serial) {
        kv__lru_push(p, b);
    } else {
        kv__put_free(p, b);
    }
}

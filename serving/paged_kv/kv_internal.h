// SPDX-License-Identifier: Apache-2.0
// What the files of paged_kv share: the block descriptors and the three structures over them (free
// set, LRU list, key table). The rules they keep are numbered in README.md. Engine thread only.
#pragma once
#include "base/hash.h"
#include "serving/paged_kv/kv.h"

enum { KV__NONE = -1 };

struct kv__block {
    int32_t refs;
    int32_t lru_prev, lru_next; // neighbours in the LRU list while cached
    int32_t hash_next;          // chain of the key table while keyed
    // The tree of keyed blocks: a key is (parent block, tokens, domain).
    int32_t parent;                          // KV__NONE: first block of its sequence
    int32_t first_child, sib_prev, sib_next; // children of one parent
    uint64_t serial;                         // never used twice; 0: no key
    uint64_t parent_serial;                  // 0: no parent
    int64_t used_ns;                         // last match or drop
    struct kv_domain domain;
};

struct kv_pool {
    struct kv_config cfg;
    struct kv__block *blocks; // [cfg.blocks]
    int32_t *tokens;          // [cfg.blocks][cfg.block_size], ids of the positions written
    uint64_t *free_bits;      // bit b set: block b is free
    int32_t free_hint;        // no free bit below this word
    int32_t n_free, n_cached, lent;
    int32_t lru_head, lru_tail; // head: least recently used
    int32_t *table;             // heads of the key table's chains
    uint32_t table_mask;
    struct hash_key key;
    uint64_t *scratch; // one key's bytes
    uint64_t next_serial;
    uint64_t queries, hits, evictions;
};

// pool.c
int32_t kv__alloc(struct kv_pool *p);                    // refs = 1; KV__NONE when there is none
int32_t kv__take_free(struct kv_pool *p, int32_t below); // lowest free block < below, not yet owned
void kv__put_free(struct kv_pool *p, int32_t b);
void kv__unfree(struct kv_pool *p, int32_t b); // b is free and is now nobody's
bool kv__is_free(const struct kv_pool *p, int32_t b);
void kv__ref(struct kv_pool *p, int32_t b);
void kv__unref(struct kv_pool *p, int32_t b, int64_t now_ns);
void kv__lru_remove(struct kv_pool *p, int32_t b);
void kv__lru_push(struct kv_pool *p, int32_t b); // as most recently used
int32_t *kv__tokens(const struct kv_pool *p, int32_t b);

// prefix_cache.c
int32_t kv__find(struct kv_pool *p, int32_t parent, const int32_t *tokens,
                 const struct kv_domain *domain);
void kv__insert(struct kv_pool *p, int32_t b, int32_t parent, const struct kv_domain *domain);
// Takes the key away from b and all its descendants; those that are cached become free.
void kv__forget(struct kv_pool *p, int32_t b);
// dst takes over src's place in the key table and the tree.
void kv__rename(struct kv_pool *p, int32_t src, int32_t dst);

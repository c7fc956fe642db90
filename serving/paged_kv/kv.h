// SPDX-License-Identifier: Apache-2.0
// Paged KV cache, host side: which block of the pool belongs to whom. Knows block numbers only,
// never device memory. Owned by the engine thread.
//
// Words: a *block* is KN_KV_BLOCK positions of all layers. A block is *live* while a sequence
// refers to it, *cached* when nobody does but its content is known by key, *free* otherwise, *lent*
// while its range is given to background work.
//
// Worked example (block size 4): sequence A has 10 tokens: blocks [7, 2, 5], the third holds 2
// positions. When A's second block is full it gets a key and becomes findable. Sequence B with the
// same first 8 tokens starts as [7, 2] with references 2 each and computes from position 8. A fork
// of A (n > 1) shares [7, 2, 5]; whoever writes into 5 first gets a copy of it (kv_seq_reserve
// reports the copy).
#pragma once
#include "base/err.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct kv_pool;

struct kv_config {
    int32_t blocks;     // in the pool
    int32_t block_size; // positions; KN_KV_BLOCK in production
    bool prefix_cache;
};

// What separates caches: a block is shared only where all of this and every token before it are
// equal.
struct kv_domain {
    uint64_t adapter_version; // 0: base
    uint64_t salt;            // from cache_salt, or the tenant
};

struct kv_stats {
    int32_t total, live, cached, free, lent;
    uint64_t queries, hits; // tokens looked up, tokens found, since creation
    uint64_t evictions;
};

enum err kv_pool_create(const struct kv_config *cfg, struct kv_pool **out);
void kv_pool_destroy(struct kv_pool *p);
void kv_pool_stats(const struct kv_pool *p, struct kv_stats *out);
// Blocks that an allocation could get now: free ones and evictable cached ones.
int32_t kv_pool_available(const struct kv_pool *p);

// One sequence's blocks. Storage for the table is allocated once, by init, for max_blocks; nothing
// else here allocates.
struct kv_seq {
    // public, read only
    const int32_t *table; // [n_blocks], what a batch's block table row holds
    int32_t n_blocks;
    int32_t n_tokens; // positions written (committed) so far
    // private below
    int32_t *blocks__;
    int32_t cap__;
    int32_t keyed__; // full blocks from the front that have a key
    struct kv_domain domain__;
};

enum err kv_seq_init(struct kv_seq *s, struct kv_pool *p, int32_t max_blocks,
                     const struct kv_domain *domain);
void kv_seq_fini(struct kv_seq *s, struct kv_pool *p); // drops its references first

// Takes the longest cached prefix of tokens[0..n) as whole blocks, at most n - 1 tokens (one is
// left to compute). Only on an empty sequence. Returns the tokens found. Never allocates. Hits are
// verified token by token, so a hash collision cannot share a wrong block.
int32_t kv_seq_match(struct kv_seq *s, struct kv_pool *p, const int32_t *tokens, int32_t n,
                     int64_t now_ns);
// What match would find, without taking it or counting it; *idle: how many of those blocks no
// sequence refers to now (they would no longer count as available).
int32_t kv_pool_probe(struct kv_pool *p, const struct kv_domain *domain, const int32_t *tokens,
                      int32_t n, int32_t *idle);

struct kv_copy { // the device must copy block src to dst before this step's writes
    int32_t src, dst;
};
// Makes room so that positions [n_tokens, upto) can be written: new blocks, and a copy of a shared
// last block. *n_copies (0 or 1) says whether *copy is to be done. ERR_AGAIN: not enough blocks;
// nothing changed.
enum err kv_seq_reserve(struct kv_seq *s, struct kv_pool *p, int32_t upto, struct kv_copy *copy,
                        int32_t *n_copies, int64_t now_ns);
// Positions up to n_tokens + n are written now; tokens[0..n) are their ids. Full blocks become
// findable.
void kv_seq_commit(struct kv_seq *s, struct kv_pool *p, const int32_t *tokens, int32_t n,
                   int64_t now_ns);
// Drops all blocks (preemption or end). Full ones stay cached, most recently used last, the
// sequence's tail first to go.
void kv_seq_drop(struct kv_seq *s, struct kv_pool *p, int64_t now_ns);
// Drops all blocks and forgets the content of those that only this sequence refers to: it may be
// broken (non-finite values, a device error).
void kv_seq_purge(struct kv_seq *s, struct kv_pool *p, int64_t now_ns);
// dst (initialised, empty) becomes a second reference to all of src's blocks.
enum err kv_seq_fork(struct kv_seq *dst, const struct kv_seq *src, struct kv_pool *p);

// Forgets all cached blocks of an adapter version (retired), or of every domain (0, all = true).
void kv_pool_forget(struct kv_pool *p, uint64_t adapter_version, bool all);

// Lending: a contiguous range of blocks at the top of the pool. kv_pool_lend takes up to `want`
// more blocks from the top that are free or cold-cached (cached ones are dropped); live and hot
// ones in the way are reported as moves: the caller copies src to dst on the device, in order, and
// the tables are already changed (sequences must be at rest; `seqs` are all that hold blocks).
// Stops early where nothing below is free or cold. Returns the number lent in all; the range is
// [total - lent, total).
struct kv_lending {
    int64_t now_ns;
    int64_t hot_ns; // cached blocks hit within this time are hot
    bool coldest;   // and so are those that were hit later than the `want` oldest of them
    struct kv_seq *const *seqs;
    int32_t n_seqs;
    struct kv_copy *moves;
    int32_t max_moves;
};
// How many more blocks could be lent in the end, `want` at most.
int32_t kv_pool_lendable(const struct kv_pool *p, int32_t want, const struct kv_lending *how);
int32_t kv_pool_lend(struct kv_pool *p, int32_t want, const struct kv_lending *how,
                     int32_t *n_moves);
void kv_pool_return(struct kv_pool *p, int32_t keep); // gives back all but `keep` lent blocks

// Full walk: every invariant of the README, with every live sequence given. False and a message if
// broken.
bool kv_pool_check(const struct kv_pool *p, const struct kv_seq *const *seqs, int32_t n_seqs,
                   struct err_info *info);

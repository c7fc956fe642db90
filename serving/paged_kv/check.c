// SPDX-License-Identifier: Apache-2.0
// The full walk: every rule of README.md that the structures can show. Tests call it after each
// operation; it allocates and is slow.
#include "base/mem.h"
#include "serving/paged_kv/kv_internal.h"
#include <string.h>

#define BROKEN(...) err_set(info, ERR_INTERNAL, NULL, __VA_ARGS__)

static enum err count_refs(const struct kv_pool *p, const struct kv_seq *const *seqs,
                           int32_t n_seqs, int32_t *refs, struct err_info *info) {
    for (int32_t i = 0; i < n_seqs; i++) {
        const struct kv_seq *s = seqs[i];
        if (s->n_tokens > s->n_blocks * p->cfg.block_size || s->keyed__ > s->n_blocks)
            return BROKEN("sequence %d: %d tokens, %d keyed in %d blocks", (int)i, (int)s->n_tokens,
                          (int)s->keyed__, (int)s->n_blocks);
        for (int32_t j = 0; j < s->n_blocks; j++) {
            int32_t b = s->blocks__[j];
            if (b < 0 || b >= p->cfg.blocks - p->lent)
                return BROKEN("sequence %d refers to block %d", (int)i, (int)b);
            refs[b]++;
            const struct kv__block *k = &p->blocks[b];
            bool own_chain = j < s->keyed__ && k->serial;
            if (own_chain && j > 0 && k->parent != s->blocks__[j - 1])
                return BROKEN("sequence %d: block %d is not its neighbour's child", (int)i, (int)b);
        }
    }
    return ERR_OK;
}

static enum err check_block(struct kv_pool *p, int32_t b, int32_t refs, struct err_info *info) {
    const struct kv__block *k = &p->blocks[b];
    bool lent = b >= p->cfg.blocks - p->lent, isfree = kv__is_free(p, b);
    if (k->refs != refs)
        return BROKEN("block %d counts %d references, there are %d", (int)b, (int)k->refs,
                      (int)refs);
    if ((lent || isfree) && (k->refs || k->serial || (lent && isfree)))
        return BROKEN("block %d is free or lent, and in use", (int)b);
    if (!lent && !isfree && !k->refs && !k->serial)
        return BROKEN("block %d belongs to nobody", (int)b);
    if (!k->serial)
        return k->first_child == KV__NONE ? ERR_OK
                                          : BROKEN("block %d has no key, but children", (int)b);
    if (kv__find(p, k->parent, kv__tokens(p, b), &k->domain) != b)
        return BROKEN("block %d is not found by its key", (int)b);
    if (k->parent != KV__NONE) {
        const struct kv__block *up = &p->blocks[k->parent];
        if (up->serial != k->parent_serial || !up->serial)
            return BROKEN("block %d has a parent without its key", (int)b);
        if (up->refs < k->refs)
            return BROKEN("block %d is referred to more often than its parent", (int)b);
        if (up->domain.adapter_version != k->domain.adapter_version ||
            up->domain.salt != k->domain.salt)
            return BROKEN("block %d is in another domain than its parent", (int)b);
    }
    for (int32_t c = k->first_child; c != KV__NONE; c = p->blocks[c].sib_next)
        if (p->blocks[c].parent != b)
            return BROKEN("block %d is no child of %d", (int)c, (int)b);
    return ERR_OK;
}

static enum err check_lru(const struct kv_pool *p, int32_t *seen, struct err_info *info) {
    int32_t n = 0, prev = KV__NONE;
    for (int32_t b = p->lru_head; b != KV__NONE; prev = b, b = p->blocks[b].lru_next) {
        const struct kv__block *k = &p->blocks[b];
        if (k->lru_prev != prev || k->refs || !k->serial || ++n > p->n_cached)
            return BROKEN("block %d stands wrong in the LRU list", (int)b);
        for (int32_t c = k->first_child; c != KV__NONE; c = p->blocks[c].sib_next)
            if (!seen[c])
                return BROKEN("block %d would be evicted before its child %d", (int)b, (int)c);
        seen[b] = 1;
    }
    return n == p->n_cached && prev == p->lru_tail ? ERR_OK : BROKEN("the LRU list is torn");
}

bool kv_pool_check(const struct kv_pool *pool, const struct kv_seq *const *seqs, int32_t n_seqs,
                   struct err_info *info) {
    struct kv_pool view = *pool, *p = &view; // finding uses the scratch key; nothing else changes
    size_t n = (size_t)p->cfg.blocks;
    int32_t *refs = mem_calloc(n, sizeof *refs), n_free = 0;
    enum err e = refs ? count_refs(p, seqs, n_seqs, refs, info) : BROKEN("out of memory");
    for (int32_t b = 0; !e && b < p->cfg.blocks; b++) {
        n_free += kv__is_free(p, b);
        e = check_block(p, b, refs[b], info);
    }
    if (!e && n_free != p->n_free)
        e = BROKEN("%d blocks are free, %d are counted", (int)n_free, (int)p->n_free);
    if (!e) {
        memset(refs, 0, n * sizeof *refs);
        e = check_lru(p, refs, info);
    }
    mem_free(refs);
    return e == ERR_OK;
}

// SPDX-License-Identifier: Apache-2.0
// Lending the top of the pool to background work and taking it back. Rules 13 to 15 of README.md.
#include "serving/paged_kv/kv_internal.h"
#include <string.h>

// What may be dropped: cached blocks that were used no later than this.
static int64_t cold_until(const struct kv_pool *p, int32_t want, const struct kv_lending *how) {
    int64_t cold = INT64_MAX;
    if (how->hot_ns > 0 && __builtin_sub_overflow(how->now_ns, how->hot_ns, &cold))
        cold = INT64_MIN;
    int32_t lacks = want - p->n_free, b = p->lru_head;
    if (!how->coldest || lacks <= 0 || b == KV__NONE)
        return cold;
    for (; --lacks > 0 && p->blocks[b].lru_next != KV__NONE; b = p->blocks[b].lru_next)
        ;
    return p->blocks[b].used_ns < cold ? p->blocks[b].used_ns : cold;
}

// A free block below `below`: as it is, or by evicting the oldest cached block if that is cold and
// lies there.
static int32_t place_below(struct kv_pool *p, int32_t below, int64_t cold_ns) {
    int32_t b = kv__take_free(p, below);
    if (b != KV__NONE)
        return b;
    for (b = p->lru_head; b != KV__NONE && p->blocks[b].used_ns <= cold_ns;
         b = p->blocks[b].lru_next) {
        if (b < below) {
            kv__forget(p, b);
            p->evictions++;
            return kv__take_free(p, below);
        }
    }
    return KV__NONE;
}

static void move_block(struct kv_pool *p, int32_t src, int32_t dst, struct kv_seq *const *seqs,
                       int32_t n_seqs) {
    struct kv__block *s = &p->blocks[src], *d = &p->blocks[dst];
    memcpy(kv__tokens(p, dst), kv__tokens(p, src), (size_t)p->cfg.block_size * sizeof *p->tokens);
    d->refs = s->refs;
    d->used_ns = s->used_ns;
    if (s->serial)
        kv__rename(p, src, dst);
    if (s->refs == 0) { // cached: takes over the place in the LRU order
        d->lru_prev = s->lru_prev;
        d->lru_next = s->lru_next;
        *(s->lru_prev == KV__NONE ? &p->lru_head : &p->blocks[s->lru_prev].lru_next) = dst;
        *(s->lru_next == KV__NONE ? &p->lru_tail : &p->blocks[s->lru_next].lru_prev) = dst;
        s->lru_prev = s->lru_next = KV__NONE;
        return;
    }
    s->refs = 0;
    for (int32_t i = 0, left = d->refs; i < n_seqs && left > 0; i++) {
        for (int32_t j = 0; j < seqs[i]->n_blocks; j++) {
            if (seqs[i]->blocks__[j] == src) {
                seqs[i]->blocks__[j] = dst;
                left--;
                break;
            }
        }
    }
}

int32_t kv_pool_lendable(const struct kv_pool *p, int32_t want, const struct kv_lending *how) {
    int64_t cold_ns = cold_until(p, want, how);
    int32_t n = p->n_free;
    for (int32_t b = p->lru_head; n < want && b != KV__NONE && p->blocks[b].used_ns <= cold_ns;
         b = p->blocks[b].lru_next)
        n++;
    return n < want ? n : want;
}

int32_t kv_pool_lend(struct kv_pool *p, int32_t want, const struct kv_lending *how,
                     int32_t *n_moves) {
    int64_t cold_ns = cold_until(p, want, how);
    *n_moves = 0;
    while (want-- > 0 && p->lent < p->cfg.blocks) {
        int32_t b = p->cfg.blocks - p->lent - 1;
        struct kv__block *k = &p->blocks[b];
        if (!kv__is_free(p, b) && k->refs == 0 && k->used_ns <= cold_ns) {
            // Descendants were used no later than b (rule 4), so they are cold as well.
            kv__forget(p, b);
            p->evictions++;
        } else if (!kv__is_free(p, b)) {
            int32_t to = *n_moves < how->max_moves ? place_below(p, b, cold_ns) : KV__NONE;
            if (to == KV__NONE)
                break;
            move_block(p, b, to, how->seqs, how->n_seqs);
            how->moves[(*n_moves)++] = (struct kv_copy){.src = b, .dst = to};
            p->lent++;
            continue;
        }
        kv__unfree(p, b);
        p->lent++;
    }
    return p->lent;
}

void kv_pool_return(struct kv_pool *p, int32_t keep) {
    while (p->lent > keep && p->lent > 0)
        kv__put_free(p, p->cfg.blocks - p->lent--);
}

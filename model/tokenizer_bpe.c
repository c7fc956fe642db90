// SPDX-License-Identifier: Apache-2.0
// Byte-pair merging of one word: the pair of lowest rank first, the leftmost of equals, until no
// pair has a merge. A short word searches its few pairs each time. A long one keeps a list of
// symbols and a heap of pairs, O(n log n); a heap entry is stale, and skipped, once its symbol's
// pair has another rank.
#include "base/mem.h"
#include "model/tokenizer_internal.h"
#include <string.h>

#define NONE UINT32_MAX

static uint32_t pair_rank(const struct tokenizer *t, int32_t left, int32_t right, int32_t *to) {
    uint64_t pair = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
    for (uint32_t at = (uint32_t)hash_mix64(pair ^ t->key.k0);; at++) {
        const struct tok__merge *m = &t->merges[at & t->merge_mask];
        if (m->rank == TOK__NO_RANK)
            return TOK__NO_RANK;
        if (m->pair == pair) {
            *to = m->id;
            return m->rank;
        }
    }
}

// One symbol a byte. A byte without a token is the unknown token or, without that, nothing.
static size_t first_symbols(const struct tokenizer *t, const char *p, size_t n, int32_t *ids) {
    size_t made = 0;
    bool in_unk = false;
    for (size_t i = 0; i < n; i++) {
        int32_t id = t->byte_id[(uint8_t)p[i]];
        if (id >= 0) {
            ids[made++] = id;
            in_unk = false;
        } else if (t->unk >= 0 && !(in_unk && t->fuse_unk)) {
            ids[made++] = t->unk;
            in_unk = true;
        }
    }
    return made;
}

static size_t merge_few(const struct tokenizer *t, struct tok__bpe_work *w, const char *p,
                        size_t n) {
    int32_t *id = w->few_id, *to = w->few_to;
    uint32_t *rank = w->few_rank;
    size_t m = first_symbols(t, p, n, id);
    for (size_t i = 0; i + 1 < m; i++)
        rank[i] = pair_rank(t, id[i], id[i + 1], &to[i]);
    while (m > 1) {
        size_t best = 0;
        for (size_t i = 1; i + 1 < m; i++)
            if (rank[i] < rank[best])
                best = i;
        if (rank[best] == TOK__NO_RANK)
            break;
        id[best] = to[best];
        m--;
        size_t after = m - 1 - best; // symbols right of the merged one
        memmove(&id[best + 1], &id[best + 2], after * sizeof(*id));
        if (after) {
            memmove(&rank[best + 1], &rank[best + 2], (after - 1) * sizeof(*rank));
            memmove(&to[best + 1], &to[best + 2], (after - 1) * sizeof(*to));
            rank[best] = pair_rank(t, id[best], id[best + 1], &to[best]);
        }
        if (best > 0)
            rank[best - 1] = pair_rank(t, id[best - 1], id[best], &to[best - 1]);
    }
    return m;
}

// --- a heap of rank << 32 | symbol, four children a node: shallow, and a node's children are one
// line

static void sift_down(uint64_t *heap, size_t n, size_t at) {
    uint64_t v = heap[at];
    for (;;) {
        size_t child = 4 * at + 1;
        if (child >= n)
            break;
        size_t last = child + 4 < n ? child + 4 : n, least = child;
        for (size_t c = child + 1; c < last; c++)
            if (heap[c] < heap[least])
                least = c;
        if (heap[least] >= v)
            break;
        heap[at] = heap[least];
        at = least;
    }
    heap[at] = v;
}

static uint64_t heap_pop(struct tok__bpe_work *w) {
    uint64_t top = w->heap[0];
    w->heap[0] = w->heap[--w->heap_n];
    if (w->heap_n)
        sift_down(w->heap, w->heap_n, 0);
    return top;
}

static enum err heap_push(struct tok__bpe_work *w, uint64_t v) {
    if (w->heap_n == w->heap_cap) {
        size_t cap = 2 * w->heap_cap;
        uint64_t *heap = mem_realloc(w->heap, cap * sizeof(*heap));
        if (!heap)
            return ERR_NOMEM;
        w->heap = heap;
        w->heap_cap = cap;
    }
    size_t at = w->heap_n++;
    for (; at && w->heap[(at - 1) / 4] > v; at = (at - 1) / 4)
        w->heap[at] = w->heap[(at - 1) / 4];
    w->heap[at] = v;
    return ERR_OK;
}

// --- long words

static enum err reserve(struct tok__bpe_work *w, size_t n) {
    if (n <= w->cap)
        return ERR_OK;
    tok__bpe_work_fini(w);
    w->id = mem_calloc(n, sizeof(*w->id));
    w->to = mem_calloc(n, sizeof(*w->to));
    w->rank = mem_calloc(n, sizeof(*w->rank));
    w->prev = mem_calloc(n, sizeof(*w->prev));
    w->next = mem_calloc(n, sizeof(*w->next));
    w->heap = mem_calloc(n, sizeof(*w->heap));
    if (!w->id || !w->to || !w->rank || !w->prev || !w->next || !w->heap) {
        tok__bpe_work_fini(w);
        return ERR_NOMEM;
    }
    w->cap = w->heap_cap = n;
    return ERR_OK;
}

// The pair of symbol `at` and its next one has changed.
static enum err pair_changed(const struct tokenizer *t, struct tok__bpe_work *w, uint32_t at) {
    uint32_t next = w->next[at];
    w->rank[at] = next == NONE ? TOK__NO_RANK : pair_rank(t, w->id[at], w->id[next], &w->to[at]);
    if (w->rank[at] == TOK__NO_RANK)
        return ERR_OK;
    return heap_push(w, (uint64_t)w->rank[at] << 32 | at);
}

static enum err merge_list(const struct tokenizer *t, struct tok__bpe_work *w) {
    while (w->heap_n) {
        uint64_t top = heap_pop(w);
        uint32_t at = (uint32_t)top;
        if (w->rank[at] != (uint32_t)(top >> 32))
            continue;
        uint32_t gone = w->next[at], next = w->next[gone], prev = w->prev[at];
        w->id[at] = w->to[at];
        w->rank[gone] = TOK__NO_RANK;
        w->next[at] = next;
        if (next != NONE)
            w->prev[next] = at;
        enum err e = pair_changed(t, w, at);
        if (e == ERR_OK && prev != NONE)
            e = pair_changed(t, w, prev);
        if (e != ERR_OK)
            return e;
    }
    return ERR_OK;
}

static enum err merge_many(const struct tokenizer *t, struct tok__bpe_work *w, const char *p,
                           size_t n, size_t *n_ids) {
    enum err e = reserve(w, n);
    if (e != ERR_OK)
        return e;
    uint32_t m = (uint32_t)first_symbols(t, p, n, w->id);
    *n_ids = m;
    if (m == 0)
        return ERR_OK;
    w->heap_n = 0;
    for (uint32_t i = 0; i < m; i++) {
        w->prev[i] = i ? i - 1 : NONE;
        w->next[i] = i + 1 < m ? i + 1 : NONE;
        w->rank[i] = i + 1 < m ? pair_rank(t, w->id[i], w->id[i + 1], &w->to[i]) : TOK__NO_RANK;
        if (w->rank[i] != TOK__NO_RANK)
            w->heap[w->heap_n++] = (uint64_t)w->rank[i] << 32 | i;
    }
    for (size_t i = w->heap_n / 4 + 1; i-- > 0;)
        if (i < w->heap_n)
            sift_down(w->heap, w->heap_n, i);
    e = merge_list(t, w);
    size_t made = 0;
    for (uint32_t at = 0; at != NONE; at = w->next[at])
        w->id[made++] = w->id[at]; // never overtakes the list: made <= at
    *n_ids = made;
    return e;
}

enum err tok__bpe(const struct tokenizer *t, struct tok__bpe_work *w, const char *p, size_t n,
                  const int32_t **ids, size_t *n_ids) {
    if (n <= TOK__FEW) {
        *n_ids = merge_few(t, w, p, n);
        *ids = w->few_id;
        return ERR_OK;
    }
    enum err e = merge_many(t, w, p, n, n_ids);
    *ids = w->id;
    return e;
}

void tok__bpe_work_fini(struct tok__bpe_work *w) {
    mem_free(w->id);
    mem_free(w->to);
    mem_free(w->rank);
    mem_free(w->prev);
    mem_free(w->next);
    mem_free(w->heap);
    w->id = w->to = NULL;
    w->rank = w->prev = w->next = NULL;
    w->heap = NULL;
    w->cap = w->heap_cap = w->heap_n = 0;
}

// Whether the word surely has more ids than fit: no token has more than max_word bytes.
static bool surely_over(const struct tok__encoder *e, const char *p, size_t n) {
    size_t room = e->limit - e->out->n, known = 0;
    if (n / e->t->max_word <= room)
        return false;
    for (size_t i = 0; i < n; i++)
        known += e->t->byte_id[(uint8_t)p[i]] >= 0;
    return known / e->t->max_word > room;
}

enum err tok__encode_word(struct tok__encoder *e, const char *p, size_t n) {
    const struct tokenizer *t = e->t;
    if (n <= t->max_word) {
        int32_t id = tok__find(t, p, n);
        if (id >= 0 && t->tokens[id].flags & TOK__WHOLE)
            return tok__emit(e, id);
    }
    if (n > TOK__FEW && surely_over(e, p, n))
        return ERR_CONTEXT;
    const int32_t *ids;
    size_t n_ids;
    enum err err = tok__bpe(t, &e->work, p, n, &ids, &n_ids);
    for (size_t i = 0; i < n_ids && err == ERR_OK; i++)
        err = tok__emit(e, ids[i]);
    return err;
}

// SPDX-License-Identifier: Apache-2.0
// The prefix cache: full blocks, findable by (parent block, tokens, domain). The keyed blocks form
// a forest; a block's whole history is its path to the root, so comparing one block's tokens and
// its parent compares everything before it too. The table's hash is keyed at random, so nobody can
// choose prompts that fall into one chain. Rules 5 to 8 of README.md.
#include "serving/paged_kv/kv_internal.h"
#include <string.h>

static int32_t *chain_of(struct kv_pool *p, uint64_t parent_serial, const int32_t *tokens,
                         const struct kv_domain *domain) {
    size_t bytes = (size_t)p->cfg.block_size * sizeof *tokens;
    p->scratch[0] = parent_serial;
    p->scratch[1] = domain->adapter_version;
    p->scratch[2] = domain->salt;
    memcpy(p->scratch + 3, tokens, bytes);
    return &p->table[hash_bytes(&p->key, p->scratch, 3 * sizeof(uint64_t) + bytes) & p->table_mask];
}

int32_t kv__find(struct kv_pool *p, int32_t parent, const int32_t *tokens,
                 const struct kv_domain *domain) {
    uint64_t serial = parent == KV__NONE ? 0 : p->blocks[parent].serial;
    size_t bytes = (size_t)p->cfg.block_size * sizeof *tokens;
    for (int32_t b = *chain_of(p, serial, tokens, domain); b != KV__NONE;
         b = p->blocks[b].hash_next) {
        const struct kv__block *k = &p->blocks[b];
        if (k->parent_serial == serial && k->domain.adapter_version == domain->adapter_version &&
            k->domain.salt == domain->salt && memcmp(kv__tokens(p, b), tokens, bytes) == 0)
            return b;
    }
    return KV__NONE;
}

static void tree_link(struct kv_pool *p, int32_t b, int32_t parent) {
    struct kv__block *k = &p->blocks[b];
    k->parent = parent;
    k->sib_prev = k->sib_next = KV__NONE;
    if (parent == KV__NONE)
        return;
    k->sib_next = p->blocks[parent].first_child;
    if (k->sib_next != KV__NONE)
        p->blocks[k->sib_next].sib_prev = b;
    p->blocks[parent].first_child = b;
}

static void tree_unlink(struct kv_pool *p, int32_t b) {
    struct kv__block *k = &p->blocks[b];
    if (k->sib_prev != KV__NONE)
        p->blocks[k->sib_prev].sib_next = k->sib_next;
    else if (k->parent != KV__NONE)
        p->blocks[k->parent].first_child = k->sib_next;
    if (k->sib_next != KV__NONE)
        p->blocks[k->sib_next].sib_prev = k->sib_prev;
    k->parent = k->sib_prev = k->sib_next = KV__NONE;
}

static void table_link(struct kv_pool *p, int32_t b) {
    struct kv__block *k = &p->blocks[b];
    int32_t *chain = chain_of(p, k->parent_serial, kv__tokens(p, b), &k->domain);
    k->hash_next = *chain;
    *chain = b;
}

static void table_unlink(struct kv_pool *p, int32_t b) {
    struct kv__block *k = &p->blocks[b];
    int32_t *at = chain_of(p, k->parent_serial, kv__tokens(p, b), &k->domain);
    while (*at != b)
        at = &p->blocks[*at].hash_next;
    *at = k->hash_next;
    k->hash_next = KV__NONE;
}

void kv__insert(struct kv_pool *p, int32_t b, int32_t parent, const struct kv_domain *domain) {
    struct kv__block *k = &p->blocks[b];
    k->serial = p->next_serial++;
    k->parent_serial = parent == KV__NONE ? 0 : p->blocks[parent].serial;
    k->domain = *domain;
    tree_link(p, b, parent);
    table_link(p, b);
}

static void forget_leaf(struct kv_pool *p, int32_t b) {
    struct kv__block *k = &p->blocks[b];
    table_unlink(p, b);
    tree_unlink(p, b);
    k->serial = k->parent_serial = 0;
    if (k->refs == 0) {
        kv__lru_remove(p, b);
        kv__put_free(p, b);
    }
}

// Depth first without recursion: go down to a leaf, forget it, continue at its parent.
void kv__forget(struct kv_pool *p, int32_t root) {
    for (int32_t b = root;;) {
        int32_t child = p->blocks[b].first_child;
        if (child != KV__NONE) {
            b = child;
            continue;
        }
        int32_t parent = p->blocks[b].parent;
        forget_leaf(p, b);
        if (b == root)
            return;
        b = parent;
    }
}

void kv__rename(struct kv_pool *p, int32_t src, int32_t dst) {
    struct kv__block *s = &p->blocks[src], *d = &p->blocks[dst];
    int32_t parent = s->parent, child = s->first_child;
    table_unlink(p, src);
    tree_unlink(p, src);
    d->serial = s->serial;
    d->parent_serial = s->parent_serial;
    d->domain = s->domain;
    tree_link(p, dst, parent);
    table_link(p, dst);
    d->first_child = child;
    for (; child != KV__NONE; child = p->blocks[child].sib_next)
        p->blocks[child].parent = dst;
    s->first_child = KV__NONE;
    s->serial = s->parent_serial = 0;
}

void kv_pool_forget(struct kv_pool *p, uint64_t adapter_version, bool all) {
    for (int32_t b = 0; b < p->cfg.blocks - p->lent; b++) {
        const struct kv__block *k = &p->blocks[b];
        if (k->serial && (all || k->domain.adapter_version == adapter_version))
            kv__forget(p, b);
    }
}

// SPDX-License-Identifier: Apache-2.0
#include "serving/sampling_state.h"
#include "base/hash.h"
#include <assert.h>
#include <string.h>

static uint32_t index_size(int32_t cap) {
    uint32_t n = 4;
    while (n < 2 * (uint32_t)cap)
        n *= 2;
    return n;
}

size_t eng__counts_bytes(int32_t cap) {
    if (cap == 0)
        return 0;
    return (size_t)cap * sizeof(struct kn_token_count) + index_size(cap) * sizeof(int32_t);
}

void eng__counts_init(struct eng__counts *c, void *memory, int32_t cap) {
    *c = (struct eng__counts){.cap = cap};
    if (cap == 0)
        return;
    c->list = memory;
    c->index = (int32_t *)(void *)(c->list + cap);
    c->mask = index_size(cap) - 1;
    memset(c->index, 0, (c->mask + 1) * sizeof *c->index);
}

static struct kn_token_count *entry(struct eng__counts *c, int32_t id) {
    uint32_t i = (uint32_t)hash_mix64((uint64_t)id) & c->mask;
    for (; c->index[i]; i = (i + 1) & c->mask)
        if (c->list[c->index[i] - 1].id == id)
            return &c->list[c->index[i] - 1];
    assert(c->n < c->cap);
    c->list[c->n] = (struct kn_token_count){.id = id};
    c->index[i] = ++c->n;
    return &c->list[c->n - 1];
}

void eng__counts_prompt(struct eng__counts *c, int32_t id) {
    if (c->cap)
        entry(c, id)->prompt = 1;
}

void eng__counts_generated(struct eng__counts *c, int32_t id) {
    if (c->cap)
        entry(c, id)->out++;
}

void eng__counts_copy(struct eng__counts *dst, const struct eng__counts *src) {
    assert(dst->cap == src->cap);
    if (src->cap == 0)
        return;
    memcpy(dst->list, src->list, (size_t)src->n * sizeof *src->list);
    memcpy(dst->index, src->index, (src->mask + 1) * sizeof *src->index);
    dst->n = src->n;
}

// SPDX-License-Identifier: Apache-2.0
// The slots' table (its invariants: lora.c) and the hook of the layer walk.
#include "base/mem.h"
#include "kernels/lora.h"
#include "model/lora.h"
#include <string.h>

struct mdl_lora_slots {
    const struct mdl_weights *w;
    struct kn_queue *q;
    struct mdl_hooks hooks;
    int32_t n_slots;
    const struct mdl_lora **held;  // [n_slots], borrowed
    struct kn_lora_entry *entries; // [n_layers][MDL_TARGETS][n_slots]
    kn_addr table;                 // the same on the device
    size_t bytes;                  // of either
    int32_t (*users)[MDL_LINEARS]; // [n_layers]: entries with r > 0
    float dropout;
    kn_addr keys;
};

// The parts of each product, in the order of enum mdl_target.
static const struct {
    enum mdl_target first;
    int32_t n;
} parts[MDL_LINEARS] = {[MDL_QKV] = {MDL_TARGET_Q, 3},
                        [MDL_O] = {MDL_TARGET_O, 1},
                        [MDL_GATE_UP] = {MDL_TARGET_GATE, 2},
                        [MDL_DOWN] = {MDL_TARGET_DOWN, 1}};

static size_t entry_at(const struct mdl_lora_slots *s, int32_t layer, int t) {
    return ((size_t)layer * MDL_TARGETS + (size_t)t) * (size_t)s->n_slots;
}

static bool wants(void *arg, int32_t layer, enum mdl_linear which) {
    const struct mdl_lora_slots *s = arg;
    return s->users[layer][which] > 0;
}

// Of the largest adapter.
static double flops(void *arg, int32_t layer, enum mdl_linear which) {
    const struct mdl_lora_slots *s = arg;
    double sum = 0;
    for (int32_t j = 0; j < parts[which].n; j++) {
        int t = (int)parts[which].first + j;
        const struct kn_lora_entry *e = &s->entries[entry_at(s, layer, t)];
        int32_t n, k, r = 0;
        for (int32_t i = 0; i < s->n_slots; i++)
            r = e[i].r > r ? e[i].r : r;
        mdl_target_shape(&s->w->config, (enum mdl_target)t, &n, &k);
        sum += 2.0 * r * (n + k);
    }
    return sum;
}

static struct kn_lora operation(const struct mdl_lora_slots *s,
                                const struct mdl_linear_call *call) {
    int first = (int)parts[call->which].first;
    struct kn_lora p = {
        .batch = call->batch,
        .x = call->x,
        .ldx = call->ldx,
        .y = call->y,
        .ldy = call->ldy,
        .rows = call->rows,
        .entries = s->table + entry_at(s, call->layer, first) * sizeof(struct kn_lora_entry),
        .n_slots = s->n_slots,
        .n_parts = parts[call->which].n,
        .dropout = {.p = s->dropout,
                    .module = (uint32_t)(call->layer * MDL_TARGETS + first),
                    .keys = s->keys ? s->keys + (kn_addr)call->row * sizeof(uint64_t) : 0},
    };
    for (int32_t j = 0, col = 0; j < p.n_parts; j++) {
        mdl_target_shape(&s->w->config, (enum mdl_target)(first + j), &p.n[j], &p.k);
        p.col[j] = col;
        col += p.n[j];
    }
    return p;
}

static enum err linear(void *arg, struct kn_queue *q, const struct mdl_linear_call *call) {
    const struct mdl_lora_slots *s = arg;
    struct kn_lora p = operation(s, call);
    return s->w->ops->lora(q, &p);
}

static enum err product(void *arg, struct kn_queue *q, const struct kn_gemm *gemm,
                        const struct mdl_linear_call *call) {
    const struct mdl_lora_slots *s = arg;
    struct kn_lora p = operation(s, call);
    return s->w->ops->gemm_lora(q, gemm, &p);
}

enum err mdl_lora_slots_create(const struct mdl_weights *w, struct kn_queue *q, int32_t n_slots,
                               struct mdl_lora_slots **out, struct err_info *info) {
    enum err e = kn_require(w->ops, KN_NEED_LORA, info);
    if (e)
        return e;
    if (n_slots < 1 || n_slots > MDL_LORA_MAX_SLOTS)
        return err_set(info, ERR_INVALID, NULL, "there can be 1 to %d adapter slots, not %d",
                       MDL_LORA_MAX_SLOTS, n_slots);
    if (w->world != 1)
        return err_set(info, ERR_UNSUPPORTED, NULL,
                       "adapters on a sharded model are not supported");
    struct mdl_lora_slots *s = mem_zalloc(sizeof *s);
    if (!s)
        return err_set(info, ERR_NOMEM, NULL, "out of memory for adapter slots");
    s->w = w;
    s->q = q;
    s->n_slots = n_slots;
    s->hooks = (struct mdl_hooks){.linear = linear,
                                  .product = w->ops->gemm_lora ? product : NULL,
                                  .wants = wants,
                                  .flops = flops,
                                  .arg = s};
    size_t n = entry_at(s, w->config.n_layers, 0);
    s->held = mem_calloc((size_t)n_slots, sizeof(struct mdl_lora *));
    s->entries = mem_calloc(n, sizeof *s->entries);
    s->users = mem_calloc((size_t)w->config.n_layers, sizeof *s->users);
    s->bytes = n * sizeof *s->entries;
    if (!s->held || !s->entries || !s->users ||
        w->ops->alloc(w->ops->queue_device(q), s->bytes, &s->table)) {
        mdl_lora_slots_destroy(s);
        return err_set(info, ERR_NOMEM, NULL, "out of memory for %d adapter slots", n_slots);
    }
    *out = s;
    return ERR_OK;
}

void mdl_lora_slots_destroy(struct mdl_lora_slots *s) {
    if (!s)
        return;
    if (s->table)
        s->w->ops->free(s->w->ops->queue_device(s->q), s->table, s->bytes);
    mem_free(s->held);
    mem_free(s->entries);
    mem_free(s->users);
    mem_free(s);
}

// Slot i of the host image.
static void fill(struct mdl_lora_slots *s, int32_t i, const struct mdl_lora *l) {
    for (int32_t layer = 0; layer < s->w->config.n_layers; layer++)
        for (int which = 0; which < MDL_LINEARS; which++)
            for (int32_t j = 0; j < parts[which].n; j++) {
                enum mdl_target t = (enum mdl_target)((int32_t)parts[which].first + j);
                struct kn_lora_entry *e = &s->entries[entry_at(s, layer, (int)t) + (size_t)i];
                int32_t *users = &s->users[layer][which];
                *users -= e->r > 0;
                memset(e, 0, sizeof *e);
                if (l)
                    *e = *mdl_lora_module(l, layer, t);
                *users += e->r > 0;
            }
}

enum err mdl_lora_set(struct mdl_lora_slots *s, int32_t i, const struct mdl_lora *l) {
    if (i < 0 || i >= s->n_slots)
        return ERR_INVALID;
    if (s->held[i] == l)
        return ERR_OK;
    fill(s, i, l);
    enum err e = s->w->ops->upload(s->q, s->table, s->entries, s->bytes);
    if (e)
        fill(s, i, s->held[i]); // as it was
    else
        s->held[i] = l;
    return e;
}

const struct mdl_hooks *mdl_lora_hooks(struct mdl_lora_slots *s) {
    return &s->hooks;
}

void mdl_lora_dropout(struct mdl_lora_slots *s, float p, kn_addr keys) {
    s->dropout = p;
    s->keys = keys;
}

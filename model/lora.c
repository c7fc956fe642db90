// SPDX-License-Identifier: Apache-2.0
// Invariants
// 1. A resident adapter is one range of device memory; A and B of a module follow one another, modules
//    lie in the order of the walk, so that a step reads it from begin to end.
// 2. The slots' table is [layer][target][slot], in the order of enum mdl_target, so that the parts that
//    share an input (q, k, v; gate, up) are the operation's [part][slot]. The host image and the table
//    on the device are equal once the queue has passed what mdl_lora_set recorded.
#include "model/lora.h"
#include "base/mem.h"
#include "kernels/lora.h"
#include <string.h>

enum { ALIGN = 256 };

struct resident {
    kn_addr a, b;
    int32_t r;
    float scale;
};

struct mdl_lora {
    const struct mdl_weights *w;
    struct kn_device *device;                // that holds it
    struct resident (*modules)[MDL_TARGETS]; // [n_layers]
    kn_addr memory;
    size_t bytes;
};

static size_t matrix_bytes(const struct mdl_weights *w, enum mdl_target t, int32_t r,
                           enum kn_lora_side side) {
    int32_t n, k;
    if (!r)
        return 0;
    mdl_target_shape(&w->config, t, &n, &k);
    size_t bytes =
        side == KN_LORA_A ? w->ops->lora_bytes(side, r, k) : w->ops->lora_bytes(side, n, r);
    return (bytes + ALIGN - 1) / ALIGN * ALIGN;
}

static size_t module_bytes(const struct mdl_weights *w, const struct mdl_adapter *a, int32_t layer,
                           enum mdl_target t) {
    int32_t r = a->modules[layer][t].r;
    return matrix_bytes(w, t, r, KN_LORA_A) + matrix_bytes(w, t, r, KN_LORA_B);
}

static size_t layer_bytes(const struct mdl_weights *w, const struct mdl_adapter *a, int32_t layer) {
    size_t n = 0;
    for (int t = 0; t < MDL_TARGETS; t++)
        n += module_bytes(w, a, layer, (enum mdl_target)t);
    return n;
}

size_t mdl_lora_bytes_for(const struct mdl_weights *w, const struct mdl_adapter *a) {
    size_t n = 0;
    for (int32_t i = 0; i < a->n_layers && i < w->config.n_layers; i++)
        n += layer_bytes(w, a, i);
    return n;
}

size_t mdl_lora_bytes(const struct mdl_lora *l) {
    return l->bytes;
}

void mdl_lora_destroy(struct mdl_lora *l) {
    if (!l)
        return;
    if (l->memory)
        l->w->ops->free(l->device, l->memory, l->bytes);
    mem_free(l->modules);
    mem_free(l);
}

void mdl_lora_module(const struct mdl_lora *l, int32_t layer, enum mdl_target t, kn_addr *a,
                     kn_addr *b, int32_t *r, float *scale) {
    const struct resident *m = &l->modules[layer][t];
    *a = m->a;
    *b = m->b;
    *r = m->r;
    *scale = m->scale;
}

// Packs a layer into `stage` and uploads it to `at`.
static enum err put_layer(struct mdl_lora *l, struct kn_queue *q, const struct mdl_adapter *a,
                          int32_t layer, kn_addr at, char *stage, struct err_info *info) {
    const struct kn_ops *ops = l->w->ops;
    size_t used = 0;
    for (int t = 0; t < MDL_TARGETS; t++) {
        const struct mdl_adapter_module *m = &a->modules[layer][t];
        struct resident *to = &l->modules[layer][t];
        int32_t n, k;
        if (!m->r)
            continue;
        mdl_target_shape(&l->w->config, (enum mdl_target)t, &n, &k);
        *to = (struct resident){.a = at + used, .r = m->r, .scale = m->scale};
        ops->lora_pack(KN_LORA_A, m->r, k, m->a, stage + used);
        used += matrix_bytes(l->w, (enum mdl_target)t, m->r, KN_LORA_A);
        to->b = at + used;
        ops->lora_pack(KN_LORA_B, n, m->r, m->b, stage + used);
        used += matrix_bytes(l->w, (enum mdl_target)t, m->r, KN_LORA_B);
    }
    if (!used)
        return ERR_OK;
    enum err e = ops->upload(q, at, stage, used);
    if (e)
        return err_set(info, e, NULL, "an adapter's upload: %s", err_text(e));
    return ops->queue_wait(q, info); // so that no more than a layer is staged
}

static size_t largest_layer(const struct mdl_weights *w, const struct mdl_adapter *a) {
    size_t most = 0;
    for (int32_t i = 0; i < a->n_layers; i++) {
        size_t n = layer_bytes(w, a, i);
        most = n > most ? n : most;
    }
    return most;
}

static enum err put_all(struct mdl_lora *l, struct kn_queue *q, const struct mdl_adapter *a,
                        struct err_info *info) {
    size_t most = largest_layer(l->w, a);
    char *stage = mem_aligned(64, most);
    if (!stage)
        return err_set(info, ERR_NOMEM, NULL, "out of memory for an adapter's layer");
    memset(stage, 0, most);
    enum err e = ERR_OK;
    kn_addr at = l->memory;
    for (int32_t i = 0; !e && i < a->n_layers; i++) {
        e = put_layer(l, q, a, i, at, stage, info);
        at += layer_bytes(l->w, a, i);
    }
    mem_free(stage);
    return e;
}

static enum err check(const struct mdl_weights *w, const struct mdl_adapter *a,
                      struct err_info *info) {
    enum err e = kn_require(w->ops, KN_NEED_LORA, info);
    if (e)
        return e;
    if (w->world != 1)
        return err_set(info, ERR_UNSUPPORTED, NULL,
                       "adapters on a sharded model are not supported");
    if (a && (a->n_layers != w->config.n_layers || !mdl_lora_bytes_for(w, a)))
        return err_set(info, ERR_INVALID, NULL, "the adapter is not one of this model");
    return ERR_OK;
}

enum err mdl_lora_create(const struct mdl_weights *w, struct kn_queue *q,
                         const struct mdl_adapter *a, struct mdl_lora **out,
                         struct err_info *info) {
    enum err e = check(w, a, info);
    if (e)
        return e;
    struct mdl_lora *l = mem_zalloc(sizeof *l);
    if (!l)
        return err_set(info, ERR_NOMEM, NULL, "out of memory for an adapter");
    l->w = w;
    l->device = w->ops->queue_device(q);
    l->bytes = mdl_lora_bytes_for(w, a);
    l->modules = mem_calloc((size_t)a->n_layers, sizeof *l->modules);
    if (!l->modules || w->ops->alloc(l->device, l->bytes, &l->memory))
        e = err_set(info, ERR_NOMEM, NULL, "out of memory for an adapter of %zu bytes", l->bytes);
    if (!e)
        e = put_all(l, q, a, info);
    if (e) {
        mdl_lora_destroy(l);
        return e;
    }
    *out = l;
    return ERR_OK;
}

// ---- back to the host

static enum err get_matrix(const struct mdl_lora *l, struct kn_queue *q, enum mdl_target t,
                           enum kn_lora_side side, kn_addr from, int32_t r, char *stage, float *to,
                           struct err_info *info) {
    const struct kn_ops *ops = l->w->ops;
    int32_t n, k;
    mdl_target_shape(&l->w->config, t, &n, &k);
    int32_t rows = side == KN_LORA_A ? r : n, cols = side == KN_LORA_A ? k : r;
    enum err e = ops->download(q, stage, from, ops->lora_bytes(side, rows, cols));
    if (e)
        return err_set(info, e, NULL, "an adapter's download: %s", err_text(e));
    e = ops->queue_wait(q, info);
    if (!e)
        ops->lora_unpack(side, rows, cols, stage, to);
    return e;
}

enum err mdl_lora_download(const struct mdl_lora *l, struct kn_queue *q, struct mdl_adapter *to,
                           struct err_info *info) {
    enum err e = check(l->w, to, info);
    size_t most = 0;
    if (e)
        return e;
    for (int32_t i = 0; i < to->n_layers; i++)
        for (int t = 0; t < MDL_TARGETS; t++) {
            if (to->modules[i][t].r != l->modules[i][t].r)
                return err_set(info, ERR_INVALID, NULL, "the adapter has other modules or ranks");
            size_t n = module_bytes(l->w, to, i, (enum mdl_target)t);
            most = n > most ? n : most;
        }
    char *stage = mem_aligned(64, most);
    if (!stage)
        return err_set(info, ERR_NOMEM, NULL, "out of memory for an adapter's module");
    for (int32_t i = 0; !e && i < to->n_layers; i++)
        for (int t = 0; !e && t < MDL_TARGETS; t++) {
            const struct resident *m = &l->modules[i][t];
            if (!m->r)
                continue;
            e = get_matrix(l, q, (enum mdl_target)t, KN_LORA_A, m->a, m->r, stage,
                           to->modules[i][t].a, info);
            if (!e)
                e = get_matrix(l, q, (enum mdl_target)t, KN_LORA_B, m->b, m->r, stage,
                               to->modules[i][t].b, info);
        }
    mem_free(stage);
    return e;
}

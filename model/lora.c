// SPDX-License-Identifier: Apache-2.0
// Invariants
// 1. A resident adapter is one range of device memory; A and B of a module follow one another,
//    modules lie in the order of the walk, so that a step reads it from begin to end.
// 2. A module's matrices have the type of 16 bits that holds all their values, or f32. So 16 bits
//    are never a rounding, and an adapter whose matrices change is f32.
// 3. The slots' table is [layer][target][slot], in the order of enum mdl_target, so that the parts
//    that share an input (q, k, v; gate, up) are the operation's [part][slot]. The host image and
//    the table on the device are equal once the queue has passed what mdl_lora_set recorded.
#include "model/lora.h"
#include "base/mem.h"
#include <string.h>

enum { ALIGN = 256 };

struct mdl_lora {
    const struct mdl_weights *w;
    struct kn_device *device;                     // that holds it
    struct kn_lora_entry (*modules)[MDL_TARGETS]; // [n_layers]
    kn_addr memory;
    size_t bytes;
};

// ---- types: the one of 16 bits that has all values of both matrices, else f32

static bool all_bf16(const float *x, size_t n) {
    uint32_t low = 0;
    for (size_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, &x[i], sizeof bits);
        low |= bits & 0xffff;
    }
    return low == 0;
}

static bool all_f16(const float *x, size_t n) {
    for (size_t i = 0; i < n; i++) {
        float back = kn_f16_to_f32(kn_f32_to_f16(x[i]));
        if (!(back <= x[i] && back >= x[i])) // NaN is none
            return false;
    }
    return true;
}

static enum kn_dtype narrowest(const struct mdl_weights *w, const struct mdl_adapter_module *m,
                               enum mdl_target t) {
    int32_t n, k;
    mdl_target_shape(&w->config, t, &n, &k);
    size_t na = (size_t)m->r * (size_t)k, nb = (size_t)m->r * (size_t)n;
    if (!m->r || !w->ops->lora_narrow || !w->ops->lora_widen)
        return KN_F32;
    return all_bf16(m->a, na) && all_bf16(m->b, nb) ? KN_BF16
           : all_f16(m->a, na) && all_f16(m->b, nb) ? KN_F16
                                                    : KN_F32;
}

// ---- sizes

// Bytes of a matrix in f32, and where it lies.
static size_t packed_bytes(const struct mdl_weights *w, enum mdl_target t, int32_t r,
                           enum kn_lora_side side) {
    int32_t n, k;
    mdl_target_shape(&w->config, t, &n, &k);
    return side == KN_LORA_A ? w->ops->lora_bytes(side, r, k) : w->ops->lora_bytes(side, n, r);
}

static size_t matrix_bytes(const struct mdl_weights *w, enum mdl_target t,
                           const struct kn_lora_entry *m, enum kn_lora_side side) {
    if (!m->r)
        return 0;
    size_t bytes = packed_bytes(w, t, m->r, side) / (m->dtype == KN_F32 ? 1 : 2);
    return (bytes + ALIGN - 1) / ALIGN * ALIGN;
}

static size_t module_bytes(const struct mdl_weights *w, enum mdl_target t,
                           const struct kn_lora_entry *m) {
    return matrix_bytes(w, t, m, KN_LORA_A) + matrix_bytes(w, t, m, KN_LORA_B);
}

static size_t layer_bytes(const struct mdl_lora *l, int32_t layer) {
    size_t n = 0;
    for (int t = 0; t < MDL_TARGETS; t++)
        n += module_bytes(l->w, (enum mdl_target)t, &l->modules[layer][t]);
    return n;
}

size_t mdl_lora_bytes_for(const struct mdl_weights *w, const struct mdl_adapter *a) {
    size_t n = 0;
    for (int32_t i = 0; i < a->n_layers && i < w->config.n_layers; i++)
        for (int t = 0; t < MDL_TARGETS; t++) {
            const struct mdl_adapter_module *m = &a->modules[i][t];
            struct kn_lora_entry e = {.r = m->r, .dtype = narrowest(w, m, (enum mdl_target)t)};
            n += module_bytes(w, (enum mdl_target)t, &e);
        }
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

const struct kn_lora_entry *mdl_lora_module(const struct mdl_lora *l, int32_t layer,
                                            enum mdl_target t) {
    return &l->modules[layer][t];
}

// ---- to the device

// Packs a matrix to `to`, where its f32 values have room; returns what it takes there.
static size_t pack_matrix(const struct mdl_lora *l, enum mdl_target t,
                          const struct kn_lora_entry *m, enum kn_lora_side side, const float *from,
                          char *to) {
    const struct kn_ops *ops = l->w->ops;
    int32_t n, k;
    mdl_target_shape(&l->w->config, t, &n, &k);
    ops->lora_pack(side, side == KN_LORA_A ? m->r : n, side == KN_LORA_A ? k : m->r, from, to);
    if (m->dtype != KN_F32)
        ops->lora_narrow(m->dtype, to, packed_bytes(l->w, t, m->r, side), to);
    return matrix_bytes(l->w, t, m, side);
}

// Packs a layer into `stage` and uploads it to `at`.
static enum err put_layer(struct mdl_lora *l, struct kn_queue *q, const struct mdl_adapter *a,
                          int32_t layer, kn_addr at, char *stage, struct pace *pace,
                          struct err_info *info) {
    size_t used = 0;
    for (int t = 0; t < MDL_TARGETS; t++) {
        const struct mdl_adapter_module *m = &a->modules[layer][t];
        struct kn_lora_entry *to = &l->modules[layer][t];
        if (!m->r)
            continue;
        to->a = at + used;
        used += pack_matrix(l, (enum mdl_target)t, to, KN_LORA_A, m->a, stage + used);
        pace_point(pace);
        to->b = at + used;
        used += pack_matrix(l, (enum mdl_target)t, to, KN_LORA_B, m->b, stage + used);
        pace_point(pace);
    }
    if (!used)
        return ERR_OK;
    enum err e = l->w->ops->upload(q, at, stage, used);
    if (e)
        return err_set(info, e, NULL, "an adapter's upload: %s", err_text(e));
    return l->w->ops->queue_wait(q, info); // so that no more than a layer is staged
}

// Of a layer in f32: a matrix is packed so before it is narrowed.
static size_t largest_layer(const struct mdl_lora *l, const struct mdl_adapter *a) {
    size_t most = 0;
    for (int32_t i = 0; i < a->n_layers; i++) {
        size_t n = 0;
        for (int t = 0; t < MDL_TARGETS; t++) {
            struct kn_lora_entry e = {.r = a->modules[i][t].r};
            n += module_bytes(l->w, (enum mdl_target)t, &e);
        }
        most = n > most ? n : most;
    }
    return most;
}

static enum err put_all(struct mdl_lora *l, struct kn_queue *q, const struct mdl_adapter *a,
                        struct pace *pace, struct err_info *info) {
    size_t most = largest_layer(l, a);
    char *stage = mem_aligned(64, most);
    if (!stage)
        return err_set(info, ERR_NOMEM, NULL, "out of memory for an adapter's layer");
    memset(stage, 0, most);
    enum err e = ERR_OK;
    kn_addr at = l->memory;
    for (int32_t i = 0; !e && i < a->n_layers; i++) {
        e = put_layer(l, q, a, i, at, stage, pace, info);
        at += layer_bytes(l, i);
        pace_point(pace);
    }
    mem_free(stage);
    return e;
}

static bool has_modules(const struct mdl_adapter *a) {
    for (int32_t i = 0; i < a->n_layers; i++)
        for (int t = 0; t < MDL_TARGETS; t++)
            if (a->modules[i][t].r)
                return true;
    return false;
}

static enum err check(const struct mdl_weights *w, const struct mdl_adapter *a,
                      struct err_info *info) {
    enum err e = kn_require(w->ops, KN_NEED_LORA, info);
    if (e)
        return e;
    if (w->world != 1)
        return err_set(info, ERR_UNSUPPORTED, NULL,
                       "adapters on a sharded model are not supported");
    if (a && (a->n_layers != w->config.n_layers || !has_modules(a)))
        return err_set(info, ERR_INVALID, NULL, "the adapter is not one of this model");
    return ERR_OK;
}

// Ranks, scales and types; the size of it all.
static void describe(struct mdl_lora *l, const struct mdl_adapter *a, bool narrow,
                     struct pace *pace) {
    for (int32_t i = 0; i < a->n_layers; i++) {
        for (int t = 0; t < MDL_TARGETS; t++) {
            const struct mdl_adapter_module *m = &a->modules[i][t];
            struct kn_lora_entry *e = &l->modules[i][t];
            if (!m->r)
                continue;
            *e = (struct kn_lora_entry){.r = m->r, .scale = m->scale};
            e->dtype = narrow ? narrowest(l->w, m, (enum mdl_target)t) : KN_F32;
            pace_point(pace);
        }
        l->bytes += layer_bytes(l, i);
    }
}

static enum err create_unplaced(const struct mdl_weights *w, struct kn_queue *q,
                                const struct mdl_adapter *a, bool narrow, struct pace *pace,
                                struct mdl_lora **out, struct err_info *info) {
    enum err e = check(w, a, info);
    if (e)
        return e;
    struct mdl_lora *l = mem_zalloc(sizeof *l);
    if (l)
        l->modules = mem_calloc((size_t)a->n_layers, sizeof *l->modules);
    if (!l || !l->modules) {
        mem_free(l);
        return err_set(info, ERR_NOMEM, NULL, "out of memory for an adapter");
    }
    l->w = w;
    l->device = w->ops->queue_device(q);
    describe(l, a, narrow, pace);
    *out = l;
    return ERR_OK;
}

// The spare one ends; before anything is allocated, for the memory of two may not be there.
static void take_memory(struct mdl_lora *l, struct mdl_lora *spare) {
    if (spare && spare->bytes == l->bytes) {
        l->memory = spare->memory;
        spare->memory = 0;
    }
    mdl_lora_destroy(spare);
}

static enum err create(const struct mdl_weights *w, struct kn_queue *q, const struct mdl_adapter *a,
                       bool narrow, struct pace *pace, struct mdl_lora *spare,
                       struct mdl_lora **out, struct err_info *info) {
    struct mdl_lora *l;
    enum err e = create_unplaced(w, q, a, narrow, pace, &l, info);
    if (e) {
        mdl_lora_destroy(spare);
        return e;
    }
    take_memory(l, spare);
    if (!l->memory && w->ops->alloc(l->device, l->bytes, &l->memory))
        e = err_set(info, ERR_NOMEM, NULL, "out of memory for an adapter of %zu bytes", l->bytes);
    if (!e)
        e = put_all(l, q, a, pace, info);
    if (e) {
        mdl_lora_destroy(l);
        return e;
    }
    *out = l;
    return ERR_OK;
}

enum err mdl_lora_create(const struct mdl_weights *w, struct kn_queue *q,
                         const struct mdl_adapter *a, struct mdl_lora **out,
                         struct err_info *info) {
    return create(w, q, a, true, NULL, NULL, out, info);
}

enum err mdl_lora_create_in(const struct mdl_weights *w, struct kn_queue *q,
                            const struct mdl_adapter *a, struct mdl_lora *spare, struct pace *pace,
                            struct mdl_lora **out, struct err_info *info) {
    return create(w, q, a, true, pace, spare, out, info);
}

enum err mdl_lora_create_f32(const struct mdl_weights *w, struct kn_queue *q,
                             const struct mdl_adapter *a, struct mdl_lora **out,
                             struct err_info *info) {
    return create(w, q, a, false, NULL, NULL, out, info);
}

enum err mdl_lora_create_unplaced(const struct mdl_weights *w, struct kn_queue *q,
                                  const struct mdl_adapter *a, struct mdl_lora **out,
                                  struct err_info *info) {
    return create_unplaced(w, q, a, false, NULL, out, info);
}

// Where put_layer would have put them.
void mdl_lora_place(struct mdl_lora *l, kn_addr at) {
    for (int32_t i = 0; i < l->w->config.n_layers; i++)
        for (int t = 0; t < MDL_TARGETS; t++) {
            struct kn_lora_entry *m = &l->modules[i][t];
            if (!m->r)
                continue;
            m->a = at;
            m->b = at + matrix_bytes(l->w, (enum mdl_target)t, m, KN_LORA_A);
            at += module_bytes(l->w, (enum mdl_target)t, m);
        }
}

// ---- back to the host

// stage: room for the matrix twice.
static enum err get_matrix(const struct mdl_lora *l, struct kn_queue *q, enum mdl_target t,
                           const struct kn_lora_entry *m, enum kn_lora_side side, char *stage,
                           float *to, struct err_info *info) {
    const struct kn_ops *ops = l->w->ops;
    int32_t n, k;
    mdl_target_shape(&l->w->config, t, &n, &k);
    size_t bytes = packed_bytes(l->w, t, m->r, side), half = m->dtype == KN_F32 ? 0 : bytes / 2;
    char *from = half ? stage + bytes : stage;
    enum err e = ops->download(q, from, side == KN_LORA_A ? m->a : m->b, half ? half : bytes);
    if (e)
        return err_set(info, e, NULL, "an adapter's download: %s", err_text(e));
    e = ops->queue_wait(q, info);
    if (e)
        return e;
    if (half)
        ops->lora_widen(m->dtype, from, bytes, stage);
    ops->lora_unpack(side, side == KN_LORA_A ? m->r : n, side == KN_LORA_A ? k : m->r, stage, to);
    return ERR_OK;
}

enum err mdl_lora_download(const struct mdl_lora *l, struct kn_queue *q, struct mdl_adapter *to,
                           struct err_info *info) {
    enum err e = check(l->w, to, info);
    if (e)
        return e;
    for (int32_t i = 0; i < to->n_layers; i++)
        for (int t = 0; t < MDL_TARGETS; t++)
            if (to->modules[i][t].r != l->modules[i][t].r)
                return err_set(info, ERR_INVALID, NULL, "the adapter has other modules or ranks");
    char *stage = mem_aligned(64, 2 * largest_layer(l, to));
    if (!stage)
        return err_set(info, ERR_NOMEM, NULL, "out of memory for an adapter's module");
    for (int32_t i = 0; !e && i < to->n_layers; i++)
        for (int t = 0; !e && t < MDL_TARGETS; t++) {
            const struct kn_lora_entry *m = &l->modules[i][t];
            const struct mdl_adapter_module *at = &to->modules[i][t];
            if (!m->r)
                continue;
            e = get_matrix(l, q, (enum mdl_target)t, m, KN_LORA_A, stage, at->a, info);
            if (!e)
                e = get_matrix(l, q, (enum mdl_target)t, m, KN_LORA_B, stage, at->b, info);
        }
    mem_free(stage);
    return e;
}

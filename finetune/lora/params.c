// SPDX-License-Identifier: Apache-2.0
// Where the trained adapter's numbers lie: the matrices as a resident adapter (model/lora.h), all
// else in ranges that repeat the offsets of the matrices.
#include "finetune/lora/params.h"
#include "base/mem.h"
#include "kernels/philox.h"
#include <math.h>
#include <string.h>

enum { ALIGN = 64 }; // bytes

struct lora_params {
    const struct mdl_weights *w;
    struct kn_device *device;
    struct mdl_lora *resident;
    struct lora_module (*modules)[MDL_TARGETS]; // [n_layers]
    struct lora_ranges ranges;
    int64_t count;
    float dropout;
    kn_addr flag;
    kn_addr own;                 // memory of its own; 0: somebody else's
    size_t bytes, kind_bytes;    // of all; of one kind in f32
    size_t largest;              // bytes of the largest matrix
    struct lora_store store;     // read NULL: the device's memory
    struct mdl_adapter *initial; // until it is placed
};

// ---- initial values

// U(-1/sqrt(k), 1/sqrt(k)), what Kaiming's uniform initialisation with a = sqrt(5) comes to and
// what PEFT draws A from. The noise is counted by place, so it does not depend on an order.
static void fill_a(uint64_t seed, uint32_t module, int32_t r, int32_t k, float *a) {
    const uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    double bound = 1 / sqrt((double)k);
    int64_t n = (int64_t)r * k;
    for (int64_t i = 0; i < n; i += 4) {
        const uint32_t counter[4] = {(uint32_t)i, (uint32_t)((uint64_t)i >> 32), module,
                                     0x4c6f5241}; // apart from other uses of the seed
        uint32_t noise[4];
        philox4x32(counter, key, noise);
        for (int64_t j = 0; j < 4 && i + j < n; j++)
            a[i + j] = (float)((noise[j] * 0x1p-31 - 1 + 0x1p-32) * bound);
    }
}

static enum err initial(const struct mdl_weights *w, const struct lora_config *cfg,
                        struct mdl_adapter **out, struct err_info *info) {
    enum err e =
        mdl_adapter_create(&w->config, cfg->targets, cfg->r, cfg->alpha, cfg->rslora, out, info);
    if (e)
        return e;
    (*out)->dropout = cfg->dropout;
    for (int32_t l = 0; l < (*out)->n_layers; l++)
        for (int t = 0; t < MDL_TARGETS; t++) {
            struct mdl_adapter_module *m = &(*out)->modules[l][t];
            int32_t n, k;
            mdl_target_shape(&w->config, (enum mdl_target)t, &n, &k);
            if (m->r)
                fill_a(cfg->seed, (uint32_t)(l * MDL_TARGETS + t), m->r, k, m->a);
        }
    return ERR_OK;
}

// ---- places

static int64_t values(const struct kn_ops *ops, enum kn_lora_side side, int32_t rows,
                      int32_t cols) {
    return (int64_t)(ops->lora_bytes(side, rows, cols) / sizeof(float));
}

static void describe_module(struct lora_params *p, int32_t l, enum mdl_target t) {
    struct lora_module *m = &p->modules[l][t];
    const struct kn_lora_entry *e = mdl_lora_module(p->resident, l, t);
    m->r = e->r;
    m->scale = e->scale;
    mdl_target_shape(&p->w->config, t, &m->n, &m->k);
    if (!m->r)
        return;
    m->len_a = values(p->w->ops, KN_LORA_A, m->r, m->k);
    m->len_b = values(p->w->ops, KN_LORA_B, m->n, m->r);
    p->count += (int64_t)m->r * (m->k + m->n);
    int64_t longest = m->len_a > m->len_b ? m->len_a : m->len_b;
    size_t bytes = (size_t)longest * sizeof(float);
    p->largest = bytes > p->largest ? bytes : p->largest;
}

static void place_module(struct lora_params *p, int32_t l, enum mdl_target t) {
    const struct lora_ranges *r = &p->ranges;
    struct lora_module *m = &p->modules[l][t];
    const struct kn_lora_entry *e = mdl_lora_module(p->resident, l, t);
    if (!m->r)
        return;
    m->a = e->a;
    m->b = e->b;
    kn_addr a = m->a - r->w, b = m->b - r->w;
    m->grad_a = r->grad + a;
    m->grad_b = r->grad + b;
    m->acc_a = r->acc + 2 * a; // twice as wide
    m->acc_b = r->acc + 2 * b;
}

enum err lora_params_describe(const struct mdl_weights *w, struct kn_queue *q,
                              const struct lora_config *cfg, struct lora_params **out,
                              struct err_info *info) {
    struct lora_params *p = mem_zalloc(sizeof *p);
    if (!p)
        return err_set(info, ERR_NOMEM, NULL, "out of memory");
    p->w = w;
    p->device = w->ops->queue_device(q);
    p->dropout = cfg->dropout;
    p->modules = mem_calloc((size_t)w->config.n_layers, sizeof *p->modules);
    enum err e = p->modules ? initial(w, cfg, &p->initial, info)
                            : err_set(info, ERR_NOMEM, NULL, "out of memory");
    if (!e)
        e = mdl_lora_create_unplaced(w, q, p->initial, &p->resident, info);
    for (int32_t l = 0; l < w->config.n_layers && !e; l++)
        for (int t = 0; t < MDL_TARGETS; t++)
            describe_module(p, l, (enum mdl_target)t);
    if (!e && !p->count)
        e = err_set(info, ERR_INVALID, NULL, "the adapter has no target module");
    if (e) {
        lora_params_destroy(p);
        return e;
    }
    p->kind_bytes = (mdl_lora_bytes(p->resident) + ALIGN - 1) & ~(size_t)(ALIGN - 1);
    p->ranges.n = (int64_t)(mdl_lora_bytes(p->resident) / sizeof(float));
    p->bytes = 6 * p->kind_bytes + ALIGN; // four of f32, one of i64, the flag
    *out = p;
    return ERR_OK;
}

void lora_params_destroy(struct lora_params *p) {
    if (!p)
        return;
    if (p->own)
        p->w->ops->free(p->device, p->own, p->bytes);
    mdl_adapter_destroy(p->initial);
    mdl_lora_destroy(p->resident);
    mem_free(p->modules);
    mem_free(p);
}

size_t lora_params_bytes(const struct lora_params *p) {
    return p->bytes;
}

int64_t lora_params_count(const struct lora_params *p) {
    return p->count;
}

const struct mdl_lora *lora_params_resident(const struct lora_params *p) {
    return p->resident;
}

void lora_params_module(const struct lora_params *p, int32_t layer, enum mdl_target t,
                        struct lora_module *out) {
    *out = p->modules[layer][t];
}

void lora_params_ranges(const struct lora_params *p, struct lora_ranges *out) {
    *out = p->ranges;
}

kn_addr lora_params_flag(const struct lora_params *p) {
    return p->flag;
}

float lora_params_dropout(const struct lora_params *p) {
    return p->dropout;
}

// ---- state to and from the host

// One side of one module between device memory at `at` and natural layout.
static enum err move_side(struct lora_params *p, struct kn_queue *q, bool get,
                          enum kn_lora_side side, int32_t rows, int32_t cols, kn_addr at,
                          float *host, void *packed, struct err_info *info) {
    const struct kn_ops *ops = p->w->ops;
    const struct lora_store *s = &p->store;
    size_t bytes = ops->lora_bytes(side, rows, cols), offset = at - p->ranges.state;
    if (!get) {
        if (host)
            ops->lora_pack(side, rows, cols, host, packed);
        else
            memset(packed, 0, bytes);
        return s->write ? s->write(s->arg, offset, packed, bytes, info)
                        : ops->upload(q, at, packed, bytes);
    }
    enum err e = s->read ? s->read(s->arg, offset, packed, bytes, info)
                         : ops->download(q, packed, at, bytes);
    enum err waited = s->read ? ERR_OK : ops->queue_wait(q, info);
    if (!e && !waited)
        ops->lora_unpack(side, rows, cols, packed, host);
    return e ? e : waited;
}

// `base`: the range that has what `a` holds; a NULL sets zeros.
static enum err move_layers(struct lora_params *p, struct kn_queue *q, bool get, int32_t layer,
                            kn_addr base, const struct mdl_adapter *a, struct err_info *info) {
    void *packed = mem_alloc(p->largest);
    if (!packed)
        return err_set(info, ERR_NOMEM, NULL, "out of memory");
    enum err e = ERR_OK;
    int32_t first = layer < 0 ? 0 : layer, end = layer < 0 ? p->w->config.n_layers : layer + 1;
    for (int32_t l = first; l < end && !e; l++)
        for (int t = 0; t < MDL_TARGETS && !e; t++) {
            const struct lora_module *m = &p->modules[l][t];
            if (!m->r)
                continue;
            const struct mdl_adapter_module *h = a ? &a->modules[l][t] : NULL;
            e = move_side(p, q, get, KN_LORA_A, m->r, m->k, base + (m->a - p->ranges.w),
                          h ? h->a : NULL, packed, info);
            if (!e)
                e = move_side(p, q, get, KN_LORA_B, m->n, m->r, base + (m->b - p->ranges.w),
                              h ? h->b : NULL, packed, info);
        }
    enum err waited = p->store.read ? ERR_OK : p->w->ops->queue_wait(q, info);
    mem_free(packed);
    return e ? e : waited;
}

static enum err check_shape(const struct lora_params *p, const struct mdl_adapter *a,
                            struct err_info *info) {
    if (a->n_layers != p->w->config.n_layers)
        return err_set(info, ERR_INVALID, NULL, "an adapter of %d layers for a model of %d",
                       a->n_layers, p->w->config.n_layers);
    for (int32_t l = 0; l < a->n_layers; l++)
        for (int t = 0; t < MDL_TARGETS; t++) {
            const struct mdl_adapter_module *h = &a->modules[l][t];
            const struct lora_module *m = &p->modules[l][t];
            if (h->r != m->r)
                return err_set(info, ERR_INVALID, NULL,
                               "layer %d %s: the adapter has rank %d, training has %d", l,
                               mdl_target_name((enum mdl_target)t), h->r, m->r);
        }
    return ERR_OK;
}

enum err lora_params_get(struct lora_params *p, struct kn_queue *q, int32_t layer,
                         struct mdl_adapter *w, struct mdl_adapter *m, struct mdl_adapter *v,
                         struct err_info *info) {
    const struct mdl_adapter *to[3] = {w, m, v};
    const kn_addr from[3] = {p->ranges.w, p->ranges.m, p->ranges.v};
    enum err e = ERR_OK;
    for (int i = 0; i < 3 && !e; i++)
        if (to[i] && !(e = check_shape(p, to[i], info)))
            e = move_layers(p, q, true, layer, from[i], to[i], info);
    return e;
}

enum err lora_params_set(struct lora_params *p, struct kn_queue *q, int32_t layer,
                         const struct mdl_adapter *w, const struct mdl_adapter *m,
                         const struct mdl_adapter *v, struct err_info *info) {
    const struct mdl_adapter *from[3] = {w, m, v};
    const kn_addr to[3] = {p->ranges.w, p->ranges.m, p->ranges.v};
    enum err e = ERR_OK;
    for (int i = 0; i < 3 && !e; i++)
        if (from[i])
            e = check_shape(p, from[i], info);
    for (int i = 0; i < 3 && !e; i++)
        e = move_layers(p, q, false, layer, to[i], from[i], info);
    return e;
}

// ---- memory

enum err lora_params_place(struct lora_params *p, struct kn_queue *q, kn_addr at,
                           const struct lora_store *store, struct err_info *info) {
    struct lora_ranges *r = &p->ranges;
    size_t bytes = p->kind_bytes;
    r->state = r->grad = at;
    r->acc = r->grad + bytes;
    r->m = r->acc + 2 * bytes;
    r->v = r->m + bytes;
    r->w = r->v + bytes;
    p->flag = r->w + bytes;
    mdl_lora_place(p->resident, r->w);
    for (int32_t l = 0; l < p->w->config.n_layers; l++)
        for (int t = 0; t < MDL_TARGETS; t++)
            place_module(p, l, (enum mdl_target)t);
    if (store)
        p->store = *store;
    enum err e = move_layers(p, q, false, -1, r->w, p->initial, info);
    mdl_adapter_destroy(p->initial);
    p->initial = NULL;
    return e;
}

enum err lora_params_create(const struct mdl_weights *w, struct kn_queue *q,
                            const struct lora_config *cfg, struct lora_params **out,
                            struct err_info *info) {
    struct lora_params *p;
    enum err e = lora_params_describe(w, q, cfg, &p, info);
    if (e)
        return e;
    if ((e = w->ops->alloc(p->device, p->bytes, &p->own)))
        err_set(info, e, NULL, "no memory for the adapter's gradients and moments (%zu MiB)",
                p->bytes >> 20);
    if (!e)
        e = lora_params_place(p, q, p->own, NULL, info);
    if (e) {
        lora_params_destroy(p);
        return e;
    }
    *out = p;
    return ERR_OK;
}

// SPDX-License-Identifier: Apache-2.0
// Loading: mdl_weights_load reads the source's tensors one stack after another into a scratch
// range that is used again and again, and hands them to the device, which makes its own layout of
// them. Norms, biases and rotary frequencies go as f32 into one range of device memory. Runs on the
// caller's thread; the device may use its pool.
#include "model/weights.h"
#include "base/mem.h"
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { NAME_BYTES = 128, VECTOR_ALIGN = 16 }; // f32 values

struct loader {
    const struct mdl_source *src;
    struct mdl_weights *w;
    const struct mdl_progress *progress;
    struct err_info *info;
    size_t done, total; // bytes of the source
    char *scratch;      // the parts being stacked now
    size_t scratch_bytes;
    float *vectors; // host image of w->vectors
    size_t vectors_used, vectors_cap;
};

// One tensor of the file as the config wants it; n_heads > 0: rows to be put back in half-split
// order if the source stores them permuted.
struct part {
    const char *suffix;
    int64_t n, k;
    int32_t n_heads;
};

static enum err tick(struct loader *l, size_t bytes) {
    l->done += bytes;
    if (l->progress && !l->progress->tick(l->progress->arg, l->done, l->total))
        return err_set(l->info, ERR_CANCELLED, NULL, "loading was cancelled");
    return ERR_OK;
}

// "model.layers.<layer>.<suffix>", or the suffix alone for layer < 0.
static void tensor_name(char *out, int layer, const char *suffix) {
    if (layer < 0)
        snprintf(out, NAME_BYTES, "%s", suffix);
    else
        snprintf(out, NAME_BYTES, "model.layers.%d.%s", layer, suffix);
}

// k = 0: a vector of n values.
static enum err find(struct loader *l, int layer, const char *suffix, int64_t n, int64_t k,
                     const struct mdl_tensor **out) {
    char name[NAME_BYTES];
    tensor_name(name, layer, suffix);
    const struct mdl_tensor *t = mdl_source_tensor(l->src, name);
    if (!t)
        return err_set(l->info, ERR_FORMAT, NULL, "tensor %s is missing", name);
    bool fits = k ? t->n_dims == 2 && t->dims[0] == n && t->dims[1] == k
                  : t->n_dims == 1 && t->dims[0] == n;
    if (!fits) {
        char found[96];
        size_t len = 0;
        for (int32_t i = 0; i < t->n_dims && i < MDL_MAX_DIMS && len < sizeof found; i++) {
            int c =
                snprintf(found + len, sizeof found - len, "%s%" PRId64, i ? ", " : "", t->dims[i]);
            len += c > 0 ? (size_t)c : 0;
        }
        char wanted[48];
        if (k)
            snprintf(wanted, sizeof wanted, "%" PRId64 ", %" PRId64, n, k);
        else
            snprintf(wanted, sizeof wanted, "%" PRId64, n);
        return err_set(l->info, ERR_FORMAT, NULL,
                       "tensor %s has shape [%s] where the config wants [%s]", name, found, wanted);
    }
    *out = t;
    return ERR_OK;
}

static enum err scratch_reserve(struct loader *l, size_t bytes) {
    if (bytes <= l->scratch_bytes)
        return ERR_OK;
    mem_unmap(l->scratch, l->scratch_bytes);
    l->scratch_bytes = 0;
    l->scratch = mem_map(bytes);
    if (!l->scratch)
        return err_set(l->info, ERR_NOMEM, NULL, "no memory to read %zu bytes of weights", bytes);
    l->scratch_bytes = bytes;
    return ERR_OK;
}

// Reads the parts' data into the scratch range, each at a 64-byte boundary.
static enum err read_parts(struct loader *l, const struct mdl_tensor *const *t, int n_parts,
                           const void **data) {
    size_t total = 0, at[MDL_MAX_PARTS];
    for (int i = 0; i < n_parts; i++) {
        at[i] = total;
        if (!mem_add(total, t[i]->bytes, &total) || !mem_add(total, 63, &total))
            return err_set(l->info, ERR_FORMAT, NULL, "tensor %s is too large", t[i]->name);
        total &= ~(size_t)63;
    }
    enum err e = scratch_reserve(l, total);
    for (int i = 0; i < n_parts && !e; i++) {
        data[i] = l->scratch + at[i];
        e = mdl_source_read(l->src, t[i], 0, t[i]->bytes, l->scratch + at[i], l->info);
    }
    return e;
}

static enum err create(struct loader *l, const struct kn_weight_spec *spec, struct mdl_matrix *m) {
    const struct kn_ops *ops = l->w->ops;
    struct kn_weight *w;
    enum err e = ops->weight_create(l->w->device, spec, &w, l->info);
    if (e)
        return e;
    int64_t n = 0, world = spec->world, rank = spec->rank;
    for (int i = 0; i < spec->n_parts; i++)
        n += spec->axis == KN_SHARD_N
                 ? spec->parts[i].n * (rank + 1) / world - spec->parts[i].n * rank / world
                 : spec->parts[i].n;
    m->part[m->n_parts] = w;
    m->part_n[m->n_parts] = (int32_t)n;
    m->n_parts++;
    m->n += (int32_t)n;
    int64_t k = spec->parts[0].k;
    m->k = (int32_t)(spec->axis == KN_SHARD_K ? k * (rank + 1) / world - k * rank / world : k);
    m->forms |= 1u << ops->weight_form(w);
    l->w->bytes += ops->weight_bytes(w);
    return ERR_OK;
}

// Stacks the parts into one matrix, or keeps one matrix per part where the device cannot.
static enum err load_matrix(struct loader *l, int layer, const struct part *parts, int n_parts,
                            enum kn_stack stack, enum kn_shard_axis axis, struct mdl_matrix *m) {
    const struct mdl_tensor *t[MDL_MAX_PARTS];
    const void *data[MDL_MAX_PARTS];
    struct kn_weight_src src[MDL_MAX_PARTS];
    size_t bytes = 0;
    for (int i = 0; i < n_parts; i++) {
        enum err e = find(l, layer, parts[i].suffix, parts[i].n, parts[i].k, &t[i]);
        if (e)
            return e;
        bytes += t[i]->bytes;
    }
    enum err e = read_parts(l, t, n_parts, data);
    if (e)
        return e;
    bool permuted = mdl_source_rope_permuted(l->src);
    for (int i = 0; i < n_parts; i++)
        src[i] = (struct kn_weight_src){.dtype = t[i]->dtype,
                                        .n = parts[i].n,
                                        .k = parts[i].k,
                                        .data = data[i],
                                        .unpermute_heads = permuted ? parts[i].n_heads : 0};
    struct kn_weight_spec spec = {.parts = src,
                                  .n_parts = n_parts,
                                  .stack = stack,
                                  .axis = axis,
                                  .rank = l->w->rank,
                                  .world = l->w->world,
                                  .name = t[0]->name};
    e = create(l, &spec, m);
    if (e == ERR_UNSUPPORTED && n_parts > 1) {
        spec.n_parts = 1;
        spec.stack = KN_STACK;
        e = ERR_OK;
        for (int i = 0; i < n_parts && !e; i++) {
            spec.parts = &src[i];
            spec.name = t[i]->name;
            e = create(l, &spec, m);
        }
    }
    return e ? e : tick(l, bytes);
}

static float *vector_place(struct loader *l, size_t n, kn_addr *addr) {
    if (n > l->vectors_cap - l->vectors_used)
        return NULL;
    float *p = l->vectors + l->vectors_used;
    *addr = l->w->vectors + l->vectors_used * sizeof *p;
    size_t padded = (n + VECTOR_ALIGN - 1) / VECTOR_ALIGN * VECTOR_ALIGN;
    l->vectors_used += padded;
    return p;
}

// Reads a vector of `n` values as f32 into `to`. n_heads: see struct part.
static enum err read_vector(struct loader *l, int layer, const struct part *p, float *to) {
    const struct mdl_tensor *t;
    enum err e = find(l, layer, p->suffix, p->n, 0, &t);
    if (e)
        return e;
    if (t->dtype != KN_F32 && t->dtype != KN_F16 && t->dtype != KN_BF16)
        return err_set(l->info, ERR_UNSUPPORTED, NULL, "tensor %s has type %s, not F32, F16, BF16",
                       t->name, kn_dtype_name(t->dtype));
    const void *data;
    e = read_parts(l, &t, 1, &data);
    if (e)
        return e;
    kn_dequantize(t->dtype, data, to, (size_t)p->n);
    if (p->n_heads && mdl_source_rope_permuted(l->src)) {
        // Pairs are neighbours in the file: value 2i + h of a head goes to h * half + i.
        float *copy = mem_dup(to, (size_t)p->n * sizeof *to);
        if (!copy)
            return err_set(l->info, ERR_NOMEM, NULL, "no memory to load %s", t->name);
        int64_t dim = p->n / p->n_heads, half = dim / 2;
        for (int64_t i = 0; i < p->n; i++) {
            int64_t head = i / dim, at = i % dim;
            to[head * dim + (at & 1) * half + at / 2] = copy[i];
        }
        mem_free(copy);
    }
    return tick(l, t->bytes);
}

static enum err load_vector(struct loader *l, int layer, const char *suffix, int64_t n,
                            kn_addr *out) {
    float *to = vector_place(l, (size_t)n, out);
    if (!to)
        return err_set(l->info, ERR_INTERNAL, NULL, "vectors outgrew their range at %s", suffix);
    struct part p = {suffix, n, 0, 0};
    return read_vector(l, layer, &p, to);
}

// The biases of q, k and v, this rank's slice of each, side by side.
static enum err load_qkv_bias(struct loader *l, int layer, kn_addr *out) {
    const struct mdl_config *c = &l->w->config;
    int64_t q = (int64_t)c->n_heads * c->head_dim, kv = (int64_t)c->n_kv_heads * c->head_dim;
    const struct part parts[] = {{"self_attn.q_proj.bias", q, 0, c->n_heads},
                                 {"self_attn.k_proj.bias", kv, 0, c->n_kv_heads},
                                 {"self_attn.v_proj.bias", kv, 0, 0}};
    int64_t rank = l->w->rank, world = l->w->world;
    float *to = vector_place(l, (size_t)((q + 2 * kv) / world), out);
    float *whole = mem_alloc((size_t)q * sizeof *whole);
    enum err e = ERR_OK;
    if (!to || !whole)
        e = err_set(l->info, ERR_NOMEM, NULL, "no memory to load layer %d's biases", layer);
    for (int i = 0; i < 3 && !e; i++) {
        e = read_vector(l, layer, &parts[i], whole);
        if (!e)
            memcpy(to, whole + parts[i].n * rank / world,
                   (size_t)(parts[i].n / world) * sizeof *to);
        to += parts[i].n / world;
    }
    mem_free(whole);
    return e;
}

static enum err load_layer(struct loader *l, int i) {
    const struct mdl_config *c = &l->w->config;
    struct mdl_layer *y = &l->w->layers[i];
    int64_t h = c->hidden, f = c->intermediate;
    int64_t q = (int64_t)c->n_heads * c->head_dim, kv = (int64_t)c->n_kv_heads * c->head_dim;
    const struct part qkv[] = {{"self_attn.q_proj.weight", q, h, c->n_heads},
                               {"self_attn.k_proj.weight", kv, h, c->n_kv_heads},
                               {"self_attn.v_proj.weight", kv, h, 0}};
    const struct part o = {"self_attn.o_proj.weight", h, q, 0};
    const struct part gate_up[] = {{"mlp.gate_proj.weight", f, h, 0},
                                   {"mlp.up_proj.weight", f, h, 0}};
    const struct part down = {"mlp.down_proj.weight", h, f, 0};

    enum err e = load_vector(l, i, "input_layernorm.weight", h, &y->attn_norm);
    if (!e)
        e = load_matrix(l, i, qkv, 3, KN_STACK, KN_SHARD_N, &y->qkv);
    if (!e && c->qkv_bias)
        e = load_qkv_bias(l, i, &y->qkv_bias);
    if (!e && c->qk_norm)
        e = load_vector(l, i, "self_attn.q_norm.weight", c->head_dim, &y->q_norm);
    if (!e && c->qk_norm)
        e = load_vector(l, i, "self_attn.k_norm.weight", c->head_dim, &y->k_norm);
    if (!e)
        e = load_matrix(l, i, &o, 1, KN_STACK, KN_SHARD_K, &y->o);
    if (!e)
        e = load_vector(l, i, "post_attention_layernorm.weight", h, &y->ffn_norm);
    if (!e)
        e = load_matrix(l, i, gate_up, 2, KN_STACK_GATE_UP, KN_SHARD_N, &y->gate_up);
    if (!e)
        e = load_matrix(l, i, &down, 1, KN_STACK, KN_SHARD_K, &y->down);
    return e;
}

static enum err load_ends(struct loader *l) {
    struct mdl_weights *w = l->w;
    const struct mdl_config *c = &w->config;
    const struct part embed = {"model.embed_tokens.weight", c->vocab, c->hidden, 0};
    const struct part head = {"lm_head.weight", c->vocab, c->hidden, 0};
    struct mdl_matrix m = {0};
    enum err e = load_matrix(l, -1, &embed, 1, KN_STACK, KN_SHARD_NONE, &m);
    w->embed = m.part[0];
    if (!e && c->tied)
        w->head = m;
    else if (!e)
        e = load_matrix(l, -1, &head, 1, KN_STACK, KN_SHARD_NONE, &w->head);
    if (!e)
        e = load_vector(l, -1, "model.norm.weight", c->hidden, &w->final_norm);
    if (!e)
        mdl_rope_inv_freq(c, vector_place(l, (size_t)c->head_dim / 2, &w->inv_freq));
    return e;
}

static enum err vectors_alloc(struct loader *l) {
    struct mdl_weights *w = l->w;
    const struct mdl_config *c = &w->config;
    // Each vector may grow by its padding; seven vectors a layer at most.
    size_t qkv = (size_t)(c->n_heads + 2 * c->n_kv_heads) * (size_t)c->head_dim;
    size_t layer = 2 * (size_t)c->hidden + (c->qkv_bias ? qkv : 0) +
                   (c->qk_norm ? 2 * (size_t)c->head_dim : 0) + (size_t)7 * VECTOR_ALIGN;
    l->vectors_cap = (size_t)c->n_layers * layer + (size_t)c->hidden + (size_t)c->head_dim +
                     (size_t)2 * VECTOR_ALIGN;
    w->vectors_bytes = l->vectors_cap * sizeof *l->vectors;
    l->vectors = mem_zalloc(w->vectors_bytes);
    enum err e = l->vectors ? ERR_OK : ERR_NOMEM;
    if (!e)
        e = w->ops->alloc(w->device, w->vectors_bytes, &w->vectors);
    if (e)
        return err_set(l->info, e, NULL, "no memory for the model's norms");
    w->bytes += w->vectors_bytes;
    return ERR_OK;
}

static enum err vectors_upload(struct loader *l) {
    struct mdl_weights *w = l->w;
    struct kn_queue *q;
    enum err e = w->ops->queue_create(w->device, &q);
    if (e)
        return err_set(l->info, e, NULL, "no device queue for loading");
    e = w->ops->upload(q, w->vectors, l->vectors, l->vectors_used * sizeof *l->vectors);
    enum err waited = w->ops->queue_wait(q, l->info);
    w->ops->queue_destroy(q);
    return e ? err_set(l->info, e, NULL, "upload of the model's norms failed") : waited;
}

static enum err check(const struct mdl_config *c, int rank, int world, struct err_info *info) {
    if (world < 1 || rank < 0 || rank >= world)
        return err_set(info, ERR_INVALID, NULL, "rank %d of %d does not exist", rank, world);
    if (c->attn_bias || c->mlp_bias)
        return err_set(info, ERR_UNSUPPORTED, NULL,
                       "biases of the attention output and of the MLP are not supported");
    if (c->n_heads % world || c->n_kv_heads % world || c->intermediate % world)
        return err_set(info, ERR_UNSUPPORTED, NULL,
                       "%d heads, %d key-value heads and %d intermediate values cannot be cut "
                       "into %d equal shards",
                       c->n_heads, c->n_kv_heads, c->intermediate, world);
    return ERR_OK;
}

enum err mdl_weights_load(const struct mdl_source *src, const struct kn_ops *ops,
                          struct kn_device *device, int rank, int world,
                          const struct mdl_progress *progress, struct mdl_weights **out,
                          struct err_info *info) {
    const struct mdl_config *c = mdl_source_config(src);
    enum err e = check(c, rank, world, info);
    if (e)
        return e;
    struct mdl_weights *w = mem_zalloc(sizeof *w);
    if (!w)
        return err_set(info, ERR_NOMEM, NULL, "no memory for the model");
    *w = (struct mdl_weights){.config = *c,
                              .ops = ops,
                              .device = device,
                              .rank = rank,
                              .world = world,
                              .n_heads = c->n_heads / world,
                              .n_kv_heads = c->n_kv_heads / world,
                              .intermediate = c->intermediate / world};
    struct loader l = {
        .src = src, .w = w, .progress = progress, .info = info, .total = mdl_source_bytes(src)};
    w->layers = mem_calloc((size_t)c->n_layers, sizeof *w->layers);
    if (!w->layers)
        e = err_set(info, ERR_NOMEM, NULL, "no memory for the model");
    if (!e)
        e = vectors_alloc(&l);
    if (!e)
        e = load_ends(&l);
    for (int i = 0; i < c->n_layers && !e; i++)
        e = load_layer(&l, i);
    if (!e)
        e = vectors_upload(&l);
    if (!e)
        e = mdl_source_check_unchanged(src, info);
    mem_free(l.vectors);
    mem_unmap(l.scratch, l.scratch_bytes);
    if (e)
        mdl_weights_destroy(w);
    else
        *out = w;
    return e;
}

static void matrix_destroy(const struct kn_ops *ops, struct mdl_matrix *m) {
    for (int i = 0; i < m->n_parts; i++)
        ops->weight_destroy(m->part[i]);
}

void mdl_weights_destroy(struct mdl_weights *w) {
    if (!w)
        return;
    for (int i = 0; w->layers && i < w->config.n_layers; i++) {
        struct mdl_layer *y = &w->layers[i];
        matrix_destroy(w->ops, &y->qkv);
        matrix_destroy(w->ops, &y->o);
        matrix_destroy(w->ops, &y->gate_up);
        matrix_destroy(w->ops, &y->down);
    }
    if (w->embed && w->embed != w->head.part[0])
        w->ops->weight_destroy(w->embed);
    matrix_destroy(w->ops, &w->head);
    if (w->vectors)
        w->ops->free(w->device, w->vectors, w->vectors_bytes);
    mem_free(w->layers);
    mem_free(w);
}

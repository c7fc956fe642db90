// SPDX-License-Identifier: Apache-2.0
#include "tests/model/forward_doubles.h"
#include "base/hash.h"
#include "tests/support/cmocka_all.h"
#include <string.h>

// ---- clock

uint64_t ticking_clock_draw(struct ticking_clock *c) {
    return hash_mix64(c->seed + 0x9e3779b97f4a7c15u * ++c->drawn);
}

static int64_t look(void *arg) {
    struct ticking_clock *c = arg;
    c->now += (int64_t)(ticking_clock_draw(c) % 1000000);
    return c->now;
}

void ticking_clock_init(struct ticking_clock *c, uint64_t seed) {
    *c = (struct ticking_clock){.clock = {look, look, c}, .seed = seed};
}

// ---- hooks

void counting_hook_init(struct counting_hook *h, const struct mdl_weights *w) {
    *h = (struct counting_hook){.weights = w, .in_order = true};
    int32_t k =
        w->config.intermediate > w->config.hidden ? w->config.intermediate : w->config.hidden;
    h->scratch_bytes = 512 * w->ops->form_row_bytes(KN_FORM_Q8, k);
    assert_int_equal(w->ops->alloc(w->device, h->scratch_bytes, &h->scratch), ERR_OK);
}

void counting_hook_fini(struct counting_hook *h) {
    h->weights->ops->free(h->weights->device, h->scratch, h->scratch_bytes);
}

static const struct mdl_matrix *matrix(const struct mdl_weights *w,
                                       const struct mdl_linear_call *call) {
    const struct mdl_layer *y = &w->layers[call->layer];
    const struct mdl_matrix *m[] = {&y->qkv, &y->o, &y->gate_up, &y->down};
    return m[call->which];
}

enum err counting_hook_linear(void *arg, struct kn_queue *q, const struct mdl_linear_call *call) {
    struct counting_hook *h = arg;
    const struct kn_ops *ops = h->weights->ops;
    const struct mdl_matrix *m = matrix(h->weights, call);
    int32_t total = 0;
    for (int i = 0; i < MDL_LINEARS; i++)
        total += h->calls[i];
    h->in_order &= total == call->layer * MDL_LINEARS + (int32_t)call->which;
    h->calls[call->which]++;
    if (h->row_begin == h->row_end)
        return ERR_OK;
    enum err e = ops->download(q, h->slots, call->batch->slot, sizeof h->slots);
    int32_t rows = h->row_end - h->row_begin;
    size_t row = (size_t)h->row_begin * sizeof(float);
    kn_addr x = call->x + row * (size_t)call->ldx, y = call->y + row * (size_t)call->ldy;
    struct kn_quantize z = {.x = x, .ldx = call->ldx, .yq = h->scratch, .rows = rows, .k = m->k};
    for (int i = 0, offset = 0; i < m->n_parts && !e; offset += m->part_n[i++]) {
        bool quantised = ops->weight_form(m->part[i]) == KN_FORM_Q8;
        if (quantised)
            e = ops->quantize(q, &z);
        struct kn_gemm g = {.w = m->part[i],
                            .x = quantised ? h->scratch : x,
                            .ldx = call->ldx,
                            .y = y + (size_t)offset * sizeof(float),
                            .ldy = call->ldy,
                            .rows = rows,
                            .epilogue = KN_GEMM_ADD};
        if (!e)
            e = ops->gemm(q, &g);
    }
    return e;
}

enum err failing_hook_linear(void *arg, struct kn_queue *q, const struct mdl_linear_call *call) {
    struct failing_hook *h = arg;
    if (call->layer != 1 || (int)call->which != h->which)
        return ERR_OK;
    if (h->record)
        return ERR_DEVICE;
    struct kn_gather wrong = {.src = call->x, .dst = call->y, .rows = call->x, .n = -1, .k = 1};
    return h->ops->gather(q, &wrong);
}

// ---- tape

void whole_tape_init(struct whole_tape *t, const struct mdl_weights *w, int32_t rows) {
    const struct mdl_config *c = &w->config;
    int32_t attn = c->n_heads * c->head_dim, kv = c->n_kv_heads * c->head_dim;
    *t = (struct whole_tape){
        .weights = w,
        .rows = rows,
        .width = {c->hidden, attn + 2 * kv, attn, c->hidden, 2 * c->intermediate, c->hidden, attn}};
    for (int k = 0; k < MDL_TAPE_KINDS; k++) {
        t->layers[k] = k == MDL_TAPE_FINAL ? 1 : c->n_layers;
        size_t n = (size_t)t->layers[k] * (size_t)rows * (size_t)t->width[k];
        assert_int_equal(w->ops->alloc(w->device, n * sizeof(float), &t->at[k]), ERR_OK);
    }
}

static size_t offset(const struct whole_tape *t, int32_t layer, int kind, int32_t row) {
    return (((size_t)layer * (size_t)t->rows + (size_t)row) * (size_t)t->width[kind]) *
           sizeof(float);
}

void whole_tape_fini(struct whole_tape *t) {
    for (int k = 0; k < MDL_TAPE_KINDS; k++)
        t->weights->ops->free(t->weights->device, t->at[k], offset(t, t->layers[k], k, 0));
}

kn_addr whole_tape_place(void *arg, int32_t layer, enum mdl_tape_kind kind, int32_t rows,
                         int32_t width) {
    struct whole_tape *t = arg;
    t->asked++;
    assert_int_equal(rows, t->rows);
    assert_int_equal(width, t->width[kind]);
    if (kind == MDL_TAPE_FINAL) {
        assert_int_equal(layer, t->weights->config.n_layers);
        layer = 0;
    }
    return t->skip >> kind & 1 ? 0 : t->at[kind] + offset(t, layer, (int)kind, 0);
}

void whole_tape_read(const struct whole_tape *t, struct kn_queue *q, int32_t layer,
                     enum mdl_tape_kind kind, int32_t row, float *to) {
    const struct kn_ops *ops = t->weights->ops;
    struct err_info info;
    assert_int_equal(ops->download(q, to, t->at[kind] + offset(t, layer, (int)kind, row),
                                   (size_t)t->width[kind] * sizeof(float)),
                     ERR_OK);
    assert_int_equal(ops->queue_wait(q, &info), ERR_OK);
}

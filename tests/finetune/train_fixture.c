// SPDX-License-Identifier: Apache-2.0
#include "tests/finetune/train_fixture.h"
#include "base/mem.h"
#include "model/source_internal.h"
#include "tests/support/cmocka_all.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

static void check(enum err e, const struct err_info *info, const char *what) {
    if (e)
        fail_msg("%s: %s: %s", what, err_name(e), info->message);
}

// ---- golden files

struct reader {
    FILE *f;
};

static void read_bytes(struct reader *r, void *to, size_t n) {
    assert_int_equal(fread(to, 1, n, r->f), n);
}

static int32_t read_int(struct reader *r) {
    int32_t v;
    read_bytes(r, &v, sizeof v);
    return v;
}

static void read_row(struct reader *r, struct tf_row *row) {
    row->n_tokens = read_int(r);
    row->n_seqs = read_int(r);
    assert_in_range(row->n_tokens, 1, TF_TOKENS);
    assert_in_range(row->n_seqs, 1, TF_SEQS);
    read_bytes(r, row->ids, (size_t)row->n_tokens * sizeof *row->ids);
    read_bytes(r, row->seq_start, ((size_t)row->n_seqs + 1) * sizeof *row->seq_start);
    read_bytes(r, row->mask, (size_t)row->n_tokens);
    row->n_targets = read_int(r);
    assert_in_range(row->n_targets, 1, row->n_tokens);
    read_bytes(r, row->losses, (size_t)row->n_targets * sizeof *row->losses);
}

static void read_module(struct reader *r, struct mdl_adapter_module *start,
                        struct mdl_adapter_module *gradient) {
    size_t n = (size_t)read_int(r), k = (size_t)read_int(r), rank = (size_t)start->r;
    float *const a[] = {start->a, gradient->a}, *const b[] = {start->b, gradient->b};
    for (int i = 0; i < 2; i++) {
        read_bytes(r, a[i], rank * k * sizeof(float));
        read_bytes(r, b[i], n * rank * sizeof(float));
    }
}

void tf_golden_read(struct tf_golden *g, const struct mdl_config *c, const char *name) {
    char path[128], magic[4];
    struct err_info info;
    snprintf(path, sizeof path, "tests/golden/finetune/%s.train", name);
    struct reader r = {fopen(path, "rb")};
    assert_non_null(r.f);
    read_bytes(&r, magic, 4);
    assert_memory_equal(magic, "GLFT", 4);
    assert_int_equal(read_int(&r), 2);
    g->layers = read_int(&r);
    g->r = read_int(&r);
    read_bytes(&r, &g->alpha, sizeof g->alpha);
    g->rslora = read_int(&r) != 0;
    g->targets = (unsigned)read_int(&r);
    g->n_rows = read_int(&r);
    assert_int_equal(g->layers, c->n_layers);
    assert_in_range(g->n_rows, 1, TF_ROWS);
    for (int32_t i = 0; i < g->n_rows; i++)
        read_row(&r, &g->rows[i]);
    struct mdl_adapter **const adapters[] = {&g->start, &g->gradient};
    for (int i = 0; i < 2; i++)
        check(mdl_adapter_create(c, g->targets, g->r, g->alpha, g->rslora, adapters[i], &info),
              &info, "adapter");
    for (int32_t l = 0; l < g->layers; l++)
        for (int t = 0; t < MDL_TARGETS; t++)
            if (g->targets >> t & 1)
                read_module(&r, &g->start->modules[l][t], &g->gradient->modules[l][t]);
    g->steps = read_int(&r);
    assert_in_range(g->steps, 1, TF_MAX_STEPS);
    double *const numbers[] = {&g->lr, &g->beta1, &g->beta2, &g->eps, &g->decay, &g->max_norm};
    for (int i = 0; i < 6; i++)
        read_bytes(&r, numbers[i], sizeof(double));
    for (int32_t i = 0; i < g->steps; i++) {
        read_bytes(&r, &g->loss[i], sizeof(double));
        read_bytes(&r, &g->norm[i], sizeof(double));
        read_bytes(&r, &g->loss_spread[i], sizeof(double));
        read_bytes(&r, &g->norm_spread[i], sizeof(double));
    }
    assert_int_equal(fgetc(r.f), EOF);
    fclose(r.f);
}

void tf_golden_fini(struct tf_golden *g) {
    mdl_adapter_destroy(g->start);
    mdl_adapter_destroy(g->gradient);
}

// ---- a unit

static void prepare_walk(struct mdl_source *src) {
    src->config.qkv_bias = true;
    src->config.window = 3;
}

static void prepare_norm(struct mdl_source *src) {
    src->config.qk_norm = true;
}

static void prepare_walk_norm(struct mdl_source *src) {
    prepare_walk(src);
    prepare_norm(src);
}

static const struct model_file {
    const char *name, *file;
    void (*prepare)(struct mdl_source *src);
} not_llama[] = {{"walk", "hf-walk", prepare_walk},
                 {"walk-norm", "hf-walk", prepare_walk_norm},
                 {"qwen3", "hf-qwen3", prepare_norm},
                 {"qwen3-bf16", "qwen3-bf16.gguf", prepare_norm},
                 {"qwen3-q8_0", "qwen3-q8_0.gguf", prepare_norm}};

void tf_open_model(struct fx *x, const char *model, const struct fx_options *o) {
    char path[128];
    struct fx_options options = *o;
    snprintf(path, sizeof path, "tests/golden/models/%s.gguf", model);
    for (size_t i = 0; i < sizeof not_llama / sizeof *not_llama; i++)
        if (strcmp(model, not_llama[i].name) == 0) {
            snprintf(path, sizeof path, "tests/golden/models/%s", not_llama[i].file);
            options.prepare = not_llama[i].prepare;
        }
    fx_open(x, path, &options);
}

void tf_open(struct tf *t, const char *model, const struct tf_options *o) {
    struct err_info info;
    *t = (struct tf){.limits = {TF_TOKENS, TF_SEQS, !o->forget}};
    tf_open_model(&t->fx, model, &o->fx);
    struct lora_config cfg = {.targets = o->targets ? o->targets : (1U << MDL_TARGETS) - 1,
                              .r = o->r ? o->r : 4,
                              .alpha = o->alpha > 0 ? o->alpha : 8,
                              .rslora = o->rslora,
                              .dropout = o->dropout,
                              .seed = 7};
    check(lora_params_create(t->fx.weights, t->fx.queue, &cfg, &t->params, &info), &info, "params");
    check(lora_unit_create(t->fx.weights, t->fx.queue, t->params, &t->limits,
                           o->clock ? o->clock : &clock_system, &t->unit, &info),
          &info, "unit");
    t->range_bytes = lora_unit_bytes(t->fx.weights, t->params, &t->limits, NULL);
    assert_int_equal(t->fx.ops->alloc(t->fx.device, t->range_bytes, &t->range), ERR_OK);
}

void tf_close(struct tf *t) {
    lora_unit_destroy(t->unit);
    lora_params_destroy(t->params);
    t->fx.ops->free(t->fx.device, t->range, t->range_bytes);
    fx_close(&t->fx);
}

void tf_set(struct tf *t, const struct mdl_adapter *w) {
    struct err_info info;
    check(lora_params_set(t->params, t->fx.queue, -1, w, NULL, NULL, &info), &info, "set");
}

struct lora_row tf_lora_row(const struct tf_row *row, int exponent) {
    return (struct lora_row){.n_tokens = row->n_tokens,
                             .n_seqs = row->n_seqs,
                             .ids = row->ids,
                             .seq_start = row->seq_start,
                             .mask = row->mask,
                             .weight = 1,
                             .exponent = exponent,
                             .backward = true};
}

void tf_unit(struct tf *t, const struct lora_row *row, bool sliced, struct lora_row_result *out) {
    struct err_info info;
    check(lora_unit_begin(t->unit, row, t->range, t->range_bytes, &info), &info, "begin");
    for (bool done = false; !done;)
        check(lora_unit_run(t->unit, sliced ? 0 : INT64_MAX, &done, &info), &info, "run");
    lora_unit_result(t->unit, out);
}

void tf_clear(struct tf *t) {
    struct lora_ranges r;
    lora_params_ranges(t->params, &r);
    t->fx.ops->discard(t->fx.device, r.acc, (size_t)r.n * sizeof(int64_t));
}

int64_t *tf_sums(struct tf *t, int64_t *n) {
    struct lora_ranges r;
    struct err_info info;
    lora_params_ranges(t->params, &r);
    int64_t *sums = mem_alloc((size_t)r.n * sizeof *sums);
    assert_non_null(sums);
    assert_int_equal(t->fx.ops->download(t->fx.queue, sums, r.acc, (size_t)r.n * sizeof *sums),
                     ERR_OK);
    check(t->fx.ops->queue_wait(t->fx.queue, &info), &info, "download");
    *n = r.n;
    return sums;
}

struct mdl_adapter *tf_adapter(const struct tf *t) {
    struct mdl_adapter *a;
    struct err_info info;
    unsigned targets = 0;
    int32_t r = 0;
    for (int i = 0; i < MDL_TARGETS; i++) {
        struct lora_module m;
        lora_params_module(t->params, 0, (enum mdl_target)i, &m);
        targets |= m.r ? 1U << i : 0;
        r = m.r ? m.r : r;
    }
    check(mdl_adapter_create(&t->fx.weights->config, targets, r, 8, false, &a, &info), &info,
          "adapter");
    return a;
}

static void unpack(const struct tf *t, enum kn_lora_side side, int32_t rows, int32_t cols,
                   const int64_t *sums, int exponent, float *to) {
    size_t bytes = t->fx.ops->lora_bytes(side, rows, cols);
    float *packed = mem_alloc(bytes);
    assert_non_null(packed);
    for (size_t i = 0; i < bytes / sizeof(float); i++)
        packed[i] = (float)ldexp((double)sums[i], -exponent);
    t->fx.ops->lora_unpack(side, rows, cols, packed, to);
    mem_free(packed);
}

struct mdl_adapter *tf_gradient(struct tf *t, int exponent) {
    struct mdl_adapter *g = tf_adapter(t);
    struct lora_ranges r;
    int64_t n, *sums = tf_sums(t, &n);
    lora_params_ranges(t->params, &r);
    for (int32_t l = 0; l < g->n_layers; l++)
        for (int i = 0; i < MDL_TARGETS; i++) {
            struct lora_module m;
            struct mdl_adapter_module *to = &g->modules[l][i];
            lora_params_module(t->params, l, (enum mdl_target)i, &m);
            if (!m.r)
                continue;
            unpack(t, KN_LORA_A, m.r, m.k, sums + (m.acc_a - r.acc) / sizeof *sums, exponent,
                   to->a);
            unpack(t, KN_LORA_B, m.n, m.r, sums + (m.acc_b - r.acc) / sizeof *sums, exponent,
                   to->b);
        }
    mem_free(sums);
    return g;
}

// SPDX-License-Identifier: Apache-2.0
// Loading: what a tensor must look like, shards that add up to the whole, progress, running out of
// memory at any point.
#include "base/mem.h"
#include "model/source_internal.h"
#include "tests/model/model_fixture.h"
#include "tests/support/cmocka_all.h"
#include <stdio.h>
#include <string.h>

struct setup {
    struct kn_device *device;
    struct mdl_source *src;
    struct err_info info;
};

static void open_setup(struct setup *s, const char *name) {
    char path[128];
    snprintf(path, sizeof path, "tests/golden/models/%s", name);
    struct kn_device_config cfg = {.threads = 2};
    memset(&s->info, 0, sizeof s->info);
    assert_int_equal(kn_ops_cpu.open(&cfg, &s->device, &s->info), ERR_OK);
    assert_int_equal(mdl_source_open(path, &s->src, &s->info), ERR_OK);
}

static void close_setup(struct setup *s) {
    mdl_source_close(s->src);
    kn_ops_cpu.close(s->device);
}

static enum err load(struct setup *s, int rank, int world, struct mdl_weights **w) {
    return mdl_weights_load(s->src, &kn_ops_cpu, s->device, rank, world, NULL, w, &s->info);
}

// ---- shards

static void read_matrix(const struct mdl_matrix *m, float *to) {
    for (int i = 0; i < m->n_parts; i++) {
        assert_int_equal(kn_ops_cpu.weight_read(m->part[i], 0, m->part_n[i], to), ERR_OK);
        to += (size_t)m->part_n[i] * (size_t)m->k;
    }
}

static float *matrix_values(const struct mdl_matrix *m) {
    float *v = mem_alloc((size_t)m->n * (size_t)m->k * sizeof *v);
    assert_non_null(v);
    read_matrix(m, v);
    return v;
}

// A shard along the outputs: `sizes` rows of each of the whole's n parts, each part cut in two.
static void check_rows(const struct mdl_matrix *whole, const struct mdl_matrix *shard, int rank,
                       const int32_t *sizes, int n) {
    float *a = matrix_values(whole), *b = matrix_values(shard);
    assert_int_equal(shard->n * 2, whole->n);
    assert_int_equal(shard->k, whole->k);
    size_t from = 0, at = 0, k = (size_t)whole->k;
    for (int i = 0; i < n; i++) {
        size_t half = (size_t)sizes[i] / 2;
        assert_memory_equal(b + at * k, a + (from + (size_t)rank * half) * k, half * k * sizeof *a);
        from += 2 * half;
        at += half;
    }
    assert_int_equal(at, shard->n);
    mem_free(a);
    mem_free(b);
}

static void check_columns(const struct mdl_matrix *whole, const struct mdl_matrix *shard,
                          int rank) {
    float *a = matrix_values(whole), *b = matrix_values(shard);
    assert_int_equal(shard->n, whole->n);
    assert_int_equal(shard->k * 2, whole->k);
    size_t k = (size_t)shard->k;
    for (size_t r = 0; r < (size_t)whole->n; r++)
        assert_memory_equal(b + r * k, a + (2 * r + (size_t)rank) * k, k * sizeof *a);
    mem_free(a);
    mem_free(b);
}

static void test_shards(void **state) {
    (void)state;
    static const char *const models[] = {"q4_0.gguf", "bf16.gguf", "llama3.gguf", "hf-llama3"};
    for (size_t m = 0; m < sizeof models / sizeof *models; m++) {
        struct setup s;
        struct mdl_weights *whole, *shard;
        open_setup(&s, models[m]);
        assert_int_equal(load(&s, 0, 1, &whole), ERR_OK);
        const struct mdl_config *c = &whole->config;
        int32_t q = c->n_heads * c->head_dim, kv = c->n_kv_heads * c->head_dim;
        const int32_t qkv[] = {q, kv, kv}, gate_up[] = {c->intermediate, c->intermediate};
        for (int rank = 0; rank < 2; rank++) {
            assert_int_equal(load(&s, rank, 2, &shard), ERR_OK);
            for (int32_t l = 0; l < c->n_layers; l++) {
                const struct mdl_layer *a = &whole->layers[l], *b = &shard->layers[l];
                check_rows(&a->qkv, &b->qkv, rank, qkv, 3);
                check_rows(&a->gate_up, &b->gate_up, rank, gate_up, 2);
                check_columns(&a->o, &b->o, rank);
                check_columns(&a->down, &b->down, rank);
            }
            float *e = matrix_values(&whole->head), *f = matrix_values(&shard->head);
            assert_memory_equal(e, f, (size_t)c->vocab * (size_t)c->hidden * sizeof *e);
            assert_true(shard->bytes < whole->bytes);
            mem_free(e);
            mem_free(f);
            mdl_weights_destroy(shard);
        }
        mdl_weights_destroy(whole);
        close_setup(&s);
    }
}

static void test_shards_that_do_not_divide(void **state) {
    (void)state;
    struct setup s;
    struct mdl_weights *w;
    open_setup(&s, "f32.gguf"); // one KV head
    assert_int_equal(load(&s, 0, 2, &w), ERR_UNSUPPORTED);
    assert_non_null(strstr(s.info.message, "1 key-value heads"));
    assert_int_equal(load(&s, 2, 2, &w), ERR_INVALID);
    assert_int_equal(load(&s, 0, 0, &w), ERR_INVALID);
    close_setup(&s);
}

// ---- what is loaded

static void test_tied_and_untied(void **state) {
    (void)state;
    struct setup s;
    struct mdl_weights *w;
    open_setup(&s, "q8_0.gguf");
    assert_int_equal(load(&s, 0, 1, &w), ERR_OK);
    assert_true(w->config.tied);
    assert_ptr_equal(w->head.part[0], w->embed);
    assert_int_equal(w->layers[1].qkv.n_parts, 1);
    assert_int_equal(w->layers[1].gate_up.n_parts, 1);
    mdl_weights_destroy(w);
    close_setup(&s);
    open_setup(&s, "q4_0.gguf");
    assert_int_equal(load(&s, 0, 1, &w), ERR_OK);
    assert_false(w->config.tied);
    assert_ptr_not_equal(w->head.part[0], w->embed);
    mdl_weights_destroy(w);
    close_setup(&s);
}

// Parts that cannot be stacked stay apart.
static void test_mixed_types(void **state) {
    (void)state;
    struct setup s;
    struct mdl_weights *w;
    open_setup(&s, "mixed.gguf");
    assert_int_equal(load(&s, 0, 1, &w), ERR_OK);
    const struct mdl_config *c = &w->config;
    const struct mdl_layer *y = &w->layers[0];
    assert_int_equal(y->qkv.n_parts, 3);
    assert_int_equal(y->qkv.part_n[0], c->n_heads * c->head_dim);
    assert_int_equal(y->qkv.n, (c->n_heads + 2 * c->n_kv_heads) * c->head_dim);
    assert_int_equal(y->qkv.forms, 1u << KN_FORM_PLAIN | 1u << KN_FORM_Q8);
    assert_int_equal(y->gate_up.n_parts, 2);
    assert_int_equal(y->gate_up.forms, 1u << KN_FORM_Q8);
    assert_int_equal(y->down.forms, 1u << KN_FORM_PLAIN);
    mdl_weights_destroy(w);
    close_setup(&s);
}

// ---- refusals

static struct mdl_tensor *tensor(struct setup *s, const char *name) {
    for (size_t i = 0; i < s->src->n_tensors; i++)
        if (!strcmp(s->src->tensors[i].name, name))
            return &s->src->tensors[i];
    fail_msg("no tensor %s", name);
    return s->src->tensors;
}

static void test_refused_tensors(void **state) {
    (void)state;
    struct setup s;
    struct mdl_weights *w;
    open_setup(&s, "bf16.gguf");
    int64_t live = mem_live_blocks();

    struct mdl_tensor *t = tensor(&s, "model.layers.1.mlp.down_proj.weight"), kept = *t;
    t->dims[0]++;
    assert_int_equal(load(&s, 0, 1, &w), ERR_FORMAT);
    assert_string_equal(s.info.message, "tensor model.layers.1.mlp.down_proj.weight has shape "
                                        "[49, 64] where the config wants [48, 64]");
    *t = kept;
    t->n_dims = 1;
    assert_int_equal(load(&s, 0, 1, &w), ERR_FORMAT);
    assert_non_null(strstr(s.info.message, "down_proj.weight has shape [48]"));
    *t = kept;
    t->dtype = KN_I32;
    assert_int_equal(load(&s, 0, 1, &w), ERR_UNSUPPORTED);
    assert_non_null(strstr(s.info.message, "down_proj.weight"));
    *t = kept;

    t = tensor(&s, "model.norm.weight");
    kept = *t;
    t->dtype = KN_Q8_0;
    assert_int_equal(load(&s, 0, 1, &w), ERR_UNSUPPORTED);
    assert_non_null(strstr(s.info.message, "model.norm.weight has type Q8_0"));
    *t = kept;

    s.src->config.n_layers++;
    assert_int_equal(load(&s, 0, 1, &w), ERR_FORMAT);
    assert_string_equal(s.info.message, "tensor model.layers.2.input_layernorm.weight is missing");
    s.src->config.n_layers--;
    s.src->config.mlp_bias = true;
    assert_int_equal(load(&s, 0, 1, &w), ERR_UNSUPPORTED);
    s.src->config.mlp_bias = false;

    assert_int_equal(mem_live_blocks(), live);
    assert_int_equal(load(&s, 0, 1, &w), ERR_OK);
    mdl_weights_destroy(w);
    assert_int_equal(mem_live_blocks(), live);
    close_setup(&s);
}

// ---- progress, memory

struct ticks {
    size_t done, total, n;
    size_t most; // ticks until loading is to stop; 0: never
};

static bool count_tick(void *arg, size_t done, size_t total) {
    struct ticks *t = arg;
    assert_true(done > t->done && done <= total);
    t->done = done;
    t->total = total;
    t->n++;
    return t->n != t->most;
}

static void test_progress(void **state) {
    (void)state;
    static const char *const models[] = {"q4_1.gguf", "hf-f16"};
    for (size_t i = 0; i < 2; i++) {
        struct setup s;
        struct mdl_weights *w;
        struct ticks t = {0};
        struct mdl_progress p = {count_tick, &t};
        open_setup(&s, models[i]);
        assert_int_equal(mdl_weights_load(s.src, &kn_ops_cpu, s.device, 0, 1, &p, &w, &s.info),
                         ERR_OK);
        assert_int_equal(t.done, t.total);
        assert_int_equal(t.total, mdl_source_bytes(s.src));
        assert_true(t.n > 10);
        mdl_weights_destroy(w);
        close_setup(&s);
    }
}

static void test_cancelled(void **state) {
    (void)state;
    struct setup s;
    struct mdl_weights *w = NULL;
    struct ticks t = {.most = 3};
    struct mdl_progress p = {count_tick, &t};
    open_setup(&s, "q4_1.gguf");
    assert_int_equal(mdl_weights_load(s.src, &kn_ops_cpu, s.device, 0, 1, &p, &w, &s.info),
                     ERR_CANCELLED);
    assert_null(w);
    assert_int_equal(t.n, 3);
    close_setup(&s);
}

static void test_out_of_memory(void **state) {
    (void)state;
    static const char *const models[] = {"mixed.gguf", "hf-llama3"};
    for (size_t i = 0; i < 2; i++) {
        struct setup s;
        struct mdl_weights *w;
        open_setup(&s, models[i]);
        int64_t live = mem_live_blocks();
        for (uint64_t n = 1;; n++) {
            mem_fail_after(n, false);
            enum err e = load(&s, 0, 1, &w);
            mem_fail_after(0, false);
            if (!e)
                break;
            assert_int_equal(e, ERR_NOMEM);
            assert_int_equal(mem_live_blocks(), live);
        }
        mdl_weights_destroy(w);
        assert_int_equal(mem_live_blocks(), live);
        close_setup(&s);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shards),          cmocka_unit_test(test_shards_that_do_not_divide),
        cmocka_unit_test(test_tied_and_untied), cmocka_unit_test(test_mixed_types),
        cmocka_unit_test(test_refused_tensors), cmocka_unit_test(test_progress),
        cmocka_unit_test(test_cancelled),       cmocka_unit_test(test_out_of_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

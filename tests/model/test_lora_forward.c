// SPDX-License-Identifier: Apache-2.0
// Adapters through the layer walk: logits against an independent reference
// (tests/golden/adapters/), many adapters and base rows in one batch with the bits that each has
// alone, changes of slots, the way back to the host, and failing allocations. At every ISA level.
#include "base/mem.h"
#include "model/forward_internal.h"
#include "model/lora.h"
#include "tests/model/logits_file.h"
#include "tests/model/model_fixture.h"
#include "tests/support/assert_ok.h"
#include "tests/support/tolerances.h"
#include <stdio.h>
#include <string.h>

#define MODEL "tests/golden/models/hf-f32"

enum { ADAPTERS = 4, BASE = ADAPTERS }; // prompts of the base come after those of the adapters
static const char *const names[ADAPTERS] = {"all", "qv", "rslora", "patterns"};

struct lx {
    struct fx x;
    struct mdl_adapter *adapters[ADAPTERS];
    struct mdl_lora *loras[ADAPTERS];
    struct mdl_lora_slots *slots;
    struct logits_file golden[ADAPTERS + 1];
    struct fx_batch b;
    int32_t block; // the next free one
};

static void lx_open(struct lx *l, const char *isa) {
    struct err_info info = {.code = ERR_OK};
    memset(l, 0, sizeof *l);
    fx_open(&l->x, MODEL, &(struct fx_options){.isa = isa, .n_blocks = 512});
    struct mdl_weights *w = l->x.weights;
    assert_ok(mdl_lora_slots_create(w, l->x.queue, ADAPTERS, &l->slots, &info), &info);
    for (int i = 0; i < ADAPTERS; i++) {
        char path[128];
        snprintf(path, sizeof path, "tests/golden/adapters/%s", names[i]);
        assert_ok(mdl_adapter_read(path, &w->config, NULL, &l->adapters[i], &info), &info);
        assert_ok(mdl_lora_create(w, l->x.queue, l->adapters[i], &l->loras[i], &info), &info);
        assert_int_equal(mdl_lora_bytes(l->loras[i]), mdl_lora_bytes_for(w, l->adapters[i]));
        logits_file_read(path, isa, &l->golden[i]);
    }
    logits_file_read(MODEL, isa, &l->golden[BASE]);
}

static void lx_close(struct lx *l) {
    mdl_lora_slots_destroy(l->slots);
    for (int i = 0; i < ADAPTERS; i++) {
        mdl_lora_destroy(l->loras[i]);
        mdl_adapter_destroy(l->adapters[i]);
    }
    for (int i = 0; i <= ADAPTERS; i++)
        logits_file_free(&l->golden[i]);
    fx_close(&l->x);
}

static void lx_batch(struct lx *l) {
    fx_batch_init(&l->b);
    l->block = 0;
}

// Adds the prompts of golden file `g` with slot `slot`.
static void lx_add(struct lx *l, int g, int32_t slot) {
    for (int32_t i = 0; i < l->golden[g].n; i++) {
        const struct logits_prompt *p = &l->golden[g].prompts[i];
        struct fx_seq s;
        int32_t first = l->b.b.n_tokens, want = l->b.b.n_want;
        fx_seq_init(&s, p->ids, p->n, l->block);
        l->block += (p->n + KN_KV_BLOCK - 1) / KN_KV_BLOCK;
        l->b.b.n_want = 0;
        fx_batch_add(&l->b, &s, p->n, FX_NONE, false);
        l->b.b.n_want = want;
        for (int32_t j = 0; j < p->kept; j++) {
            struct fx_batch one;
            fx_batch_init(&one);
            fx_batch_add(&one, &s, 1, FX_LAST, false);
            l->b.want[want] = one.want[0];
            l->b.want[want].params.position = (uint32_t)p->pos[j];
            l->b.want[want++].row = first + p->pos[j];
        }
        l->b.b.n_want = want;
        l->b.slot[l->b.b.n_seqs - 1] = slot;
    }
}

// Compares what `at` points to with golden file g, and moves on.
static void lx_check(const struct lx *l, int g, const float **at, const char *what) {
    for (int32_t i = 0; i < l->golden[g].n; i++) {
        const struct logits_prompt *p = &l->golden[g].prompts[i];
        double d = logits_difference(p, *at, l->x.vocab);
        if (!(d <= TOL_LOGITS_ADAPTERS))
            fail_msg("%s, adapter %s, prompt of %d: logits differ by %g", what,
                     g == BASE ? "none" : names[g], p->n, d);
        *at += (size_t)p->kept * (size_t)l->x.vocab;
    }
}

static size_t kept_bytes(const struct lx *l, int g) {
    size_t n = 0;
    for (int32_t i = 0; i < l->golden[g].n; i++)
        n += (size_t)l->golden[g].prompts[i].kept;
    return n * (size_t)l->x.vocab * sizeof(float);
}

static void set_all(struct lx *l) {
    for (int i = 0; i < ADAPTERS; i++)
        assert_int_equal(mdl_lora_set(l->slots, i, l->loras[i]), ERR_OK);
}

// Prompts of golden file g alone, with hooks or without.
static float *alone(struct lx *l, int g, int32_t slot, bool hooks) {
    lx_batch(l);
    lx_add(l, g, slot);
    fx_run(&l->x, &l->b, hooks ? mdl_lora_hooks(l->slots) : NULL, NULL);
    float *copy = mem_dup(l->x.logits, kept_bytes(l, g));
    assert_non_null(copy);
    return copy;
}

static void golden(const char *isa) {
    struct lx l;
    lx_open(&l, isa);
    set_all(&l);
    float *single[ADAPTERS + 1], *bare = alone(&l, BASE, -1, false);
    for (int i = 0; i <= ADAPTERS; i++)
        single[i] = alone(&l, i, i == BASE ? -1 : i, true);
    assert_memory_equal(single[BASE], bare, kept_bytes(&l, BASE));
    lx_batch(&l);
    for (int i = ADAPTERS; i >= 0; i--)
        lx_add(&l, i, i == BASE ? -1 : i);
    fx_run(&l.x, &l.b, mdl_lora_hooks(l.slots), NULL);
    const float *at = l.x.logits, *same = at;
    for (int i = ADAPTERS; i >= 0; i--) {
        lx_check(&l, i, &at, isa);
        assert_memory_equal(same, single[i], kept_bytes(&l, i));
        same = at;
        mem_free(single[i]);
    }
    mem_free(bare);
    lx_close(&l);
}

// An adapter on a base of another type, whose activations are rounded for the base only.
static void quantised(const char *isa) {
    static const char path[] = "tests/golden/adapters/quantised";
    struct lx l;
    struct err_info info = {.code = ERR_OK};
    memset(&l, 0, sizeof l);
    fx_open(&l.x, "tests/golden/models/q4_1.gguf", &(struct fx_options){.isa = isa});
    assert_ok(mdl_lora_slots_create(l.x.weights, l.x.queue, 2, &l.slots, &info), &info);
    assert_ok(mdl_adapter_read(path, &l.x.weights->config, NULL, &l.adapters[0], &info), &info);
    assert_ok(mdl_lora_create(l.x.weights, l.x.queue, l.adapters[0], &l.loras[0], &info), &info);
    logits_file_read(path, isa, &l.golden[0]);
    assert_int_equal(mdl_lora_set(l.slots, 1, l.loras[0]), ERR_OK);
    lx_batch(&l);
    lx_add(&l, 0, 1);
    fx_run(&l.x, &l.b, mdl_lora_hooks(l.slots), NULL);
    const float *at = l.x.logits;
    lx_check(&l, 0, &at, isa);
    lx_close(&l);
}

static void for_levels(void (*fn)(const char *isa)) {
    static const char *const isas[] = {"avx512bf16", "avx512", "avx2", "portable"};
    for (size_t i = 0; i < sizeof isas / sizeof *isas; i++) {
        struct kn_device_config cfg = {.threads = 1, .isa = isas[i]};
        struct kn_device *d;
        if (kn_ops_cpu.open(&cfg, &d, NULL)) {
            print_message("%s: not on this CPU\n", isas[i]);
            continue;
        }
        kn_ops_cpu.close(d);
        fn(isas[i]);
    }
}

static void test_golden(void **state) {
    (void)state;
    for_levels(golden);
}

static void test_quantised(void **state) {
    (void)state;
    for_levels(quantised);
}

static void check_alone(struct lx *l, int g, int32_t slot, const char *what) {
    float *found = alone(l, g, slot, true);
    const float *at = found;
    lx_check(l, g, &at, what);
    mem_free(found);
}

// A slot is what it was set to last; an empty slot is the base.
static void test_slots(void **state) {
    (void)state;
    struct lx l;
    lx_open(&l, "portable");
    check_alone(&l, BASE, 2, "nothing set");
    assert_int_equal(mdl_lora_set(l.slots, 2, l.loras[0]), ERR_OK);
    check_alone(&l, 0, 2, "set");
    check_alone(&l, BASE, 1, "beside it");
    assert_int_equal(mdl_lora_set(l.slots, 2, l.loras[2]), ERR_OK);
    assert_int_equal(mdl_lora_set(l.slots, 1, l.loras[2]), ERR_OK); // in two slots
    check_alone(&l, 2, 2, "changed");
    check_alone(&l, 2, 1, "the same");
    assert_int_equal(mdl_lora_set(l.slots, 2, NULL), ERR_OK);
    check_alone(&l, BASE, 2, "emptied");
    check_alone(&l, 2, 1, "still there");
    assert_int_equal(mdl_lora_set(l.slots, ADAPTERS, l.loras[0]), ERR_INVALID);
    assert_int_equal(mdl_lora_set(l.slots, -1, l.loras[0]), ERR_INVALID);
    lx_close(&l);
}

// Only products that some slot's adapter targets have a command recorded.
static int recorded;
static enum err (*real_lora)(struct kn_queue *q, const struct kn_lora *p);
static enum err counting_lora(struct kn_queue *q, const struct kn_lora *p) {
    recorded++;
    return real_lora(q, p);
}

static enum err (*real_both)(struct kn_queue *q, const struct kn_gemm *g, const struct kn_lora *p);
static enum err counting_both(struct kn_queue *q, const struct kn_gemm *g,
                              const struct kn_lora *p) {
    recorded++;
    return real_both(q, g, p);
}

static void test_recorded(void **state) {
    (void)state;
    struct lx l;
    lx_open(&l, "portable");
    struct kn_ops ops = *l.x.weights->ops;
    const struct kn_ops *real = l.x.weights->ops;
    real_lora = ops.lora;
    ops.lora = counting_lora;
    real_both = ops.gemm_lora;
    ops.gemm_lora = counting_both;
    l.x.weights->ops = &ops;
    recorded = 0;
    mem_free(alone(&l, BASE, -1, true));
    assert_int_equal(recorded, 0);
    assert_int_equal(mdl_lora_set(l.slots, 0, l.loras[2]), ERR_OK); // layer 1: o, gate and up
    mem_free(alone(&l, BASE, -1, true));
    assert_int_equal(recorded, 2);
    assert_int_equal(mdl_lora_set(l.slots, 3, l.loras[1]), ERR_OK); // q and v of both layers
    mem_free(alone(&l, BASE, -1, true));
    assert_int_equal(recorded, 6);
    assert_int_equal(mdl_lora_set(l.slots, 0, NULL), ERR_OK);
    mem_free(alone(&l, BASE, -1, true));
    assert_int_equal(recorded, 8);
    l.x.weights->ops = real;
    lx_close(&l);
}

// Slices call for adapters a few rows at a time; nothing depends on which.
static void test_pieces(void **state) {
    (void)state;
    struct lx l;
    struct err_info info;
    lx_open(&l, "portable");
    set_all(&l);
    lx_batch(&l);
    for (int i = 0; i <= ADAPTERS; i++)
        lx_add(&l, i, i < ADAPTERS ? i : -1);
    assert_true(l.b.b.n_tokens > 64);
    size_t bytes = (size_t)l.b.b.n_want * (size_t)l.x.vocab * sizeof(float);
    struct kn_ops ops = *l.x.weights->ops;
    const struct kn_ops *real = l.x.weights->ops;
    real_lora = ops.lora;
    ops.lora = counting_lora;
    real_both = ops.gemm_lora;
    ops.gemm_lora = counting_both;
    l.x.weights->ops = &ops;
    recorded = 0;
    fx_run(&l.x, &l.b, mdl_lora_hooks(l.slots), NULL);
    int whole = recorded;
    float *found = mem_dup(l.x.logits, bytes);
    assert_non_null(found);
    memset(l.x.logits, 0, bytes);
    recorded = 0;
    assert_ok(mdl_forward_begin(l.x.forward, &l.b.b, &l.x.kv, mdl_lora_hooks(l.slots), NULL, &info),
              &info);
    for (bool done = false; !done;) {
        l.x.forward->scale = 1e9; // each piece is held to be far too large
        assert_ok(mdl_forward_run(l.x.forward, 0, &done, &info), &info);
    }
    assert_true(recorded >= 2 * whole);
    assert_memory_equal(l.x.logits, found, bytes);
    mem_free(found);
    l.x.weights->ops = real;
    lx_close(&l);
}

static void test_download(void **state) {
    (void)state;
    struct lx l;
    struct err_info info = {.code = ERR_OK};
    lx_open(&l, "portable");
    for (int i = 0; i < ADAPTERS; i++) {
        struct mdl_adapter *a = l.adapters[i];
        float *kept = mem_dup(a->memory, a->values * sizeof *kept);
        assert_non_null(kept);
        memset(a->memory, 0x55, a->values * sizeof *kept);
        assert_ok(mdl_lora_download(l.loras[i], l.x.queue, a, &info), &info);
        assert_memory_equal(a->memory, kept, a->values * sizeof *kept);
        mem_free(kept);
    }
    assert_int_equal(mdl_lora_download(l.loras[0], l.x.queue, l.adapters[1], &info), ERR_INVALID);
    const struct kn_lora_entry *e = mdl_lora_module(l.loras[3], 1, MDL_TARGET_UP);
    assert_true(e->a && e->b && e->r == 17 && e->scale > 0.47f && e->scale < 0.471f);
    e = mdl_lora_module(l.loras[3], 0, MDL_TARGET_UP);
    assert_true(!e->a && !e->b && e->r == 0);
    lx_close(&l);
}

// Values that 16 bits hold lie in 16 bits, with the same results as in f32; one that they do not
// hold keeps its module in f32.
static void check_sixteen_bits(enum kn_dtype t) {
    struct lx l;
    struct err_info info;
    struct mdl_lora *narrow, *wide;
    lx_open(&l, "portable");
    struct mdl_adapter *a = l.adapters[0];
    float *all = a->memory;
    for (size_t i = 0; i < a->values; i++)
        all[i] = t == KN_BF16 ? kn_bf16_to_f32(kn_f32_to_bf16(all[i]))
                              : kn_f16_to_f32(kn_f32_to_f16(all[i]));
    a->modules[1][MDL_TARGET_K].b[3] = 1.0f + 0x1p-20f;
    assert_ok(mdl_lora_create(l.x.weights, l.x.queue, a, &narrow, &info), &info);
    assert_ok(mdl_lora_create_f32(l.x.weights, l.x.queue, a, &wide, &info), &info);
    assert_int_equal(mdl_lora_bytes(narrow), mdl_lora_bytes_for(l.x.weights, a));
    assert_true(mdl_lora_bytes(narrow) < mdl_lora_bytes(wide) * 7 / 10);
    for (int i = 0; i < MDL_TARGETS; i++) {
        enum mdl_target k = (enum mdl_target)i;
        assert_int_equal(mdl_lora_module(wide, 1, k)->dtype, KN_F32);
        assert_int_equal(mdl_lora_module(narrow, 1, k)->dtype, k == MDL_TARGET_K ? KN_F32 : t);
    }
    assert_int_equal(mdl_lora_set(l.slots, 0, wide), ERR_OK);
    assert_int_equal(mdl_lora_set(l.slots, 1, narrow), ERR_OK);
    float *one = alone(&l, 0, 0, true), *other = alone(&l, 0, 1, true);
    assert_memory_equal(one, other, kept_bytes(&l, 0));
    float *values = mem_dup(a->memory, a->values * sizeof *values);
    assert_non_null(values);
    memset(a->memory, 0xff, a->values * sizeof *values);
    assert_ok(mdl_lora_download(narrow, l.x.queue, a, &info), &info);
    assert_memory_equal(a->memory, values, a->values * sizeof *values);
    mem_free(values);
    mem_free(one);
    mem_free(other);
    mdl_lora_destroy(narrow);
    mdl_lora_destroy(wide);
    lx_close(&l);
}
static void test_sixteen_bits(void **state) {
    (void)state;
    check_sixteen_bits(KN_BF16);
    check_sixteen_bits(KN_F16);
}

// Training's forward: rows of sequences with keys change with dropout, and are the same again.
static void test_dropout(void **state) {
    (void)state;
    struct lx l;
    lx_open(&l, "portable");
    set_all(&l);
    uint64_t keys[FX_TOKENS];
    for (uint64_t i = 0; i < FX_TOKENS; i++)
        keys[i] = i * 0x9e3779b97f4a7c15u;
    kn_addr at;
    assert_int_equal(l.x.ops->alloc(l.x.device, sizeof keys, &at), ERR_OK);
    assert_int_equal(l.x.ops->upload(l.x.queue, at, keys, sizeof keys), ERR_OK);
    float *plain = alone(&l, 0, 0, true);
    mdl_lora_dropout(l.slots, 0.25f, at);
    float *one = alone(&l, 0, 0, true), *two = alone(&l, 0, 0, true);
    assert_memory_equal(one, two, kept_bytes(&l, 0));
    assert_memory_not_equal(one, plain, kept_bytes(&l, 0));
    mdl_lora_dropout(l.slots, 0, 0);
    float *after = alone(&l, 0, 0, true);
    assert_memory_equal(after, plain, kept_bytes(&l, 0));
    mem_free(plain);
    mem_free(one);
    mem_free(two);
    mem_free(after);
    l.x.ops->free(l.x.device, at, sizeof keys);
    lx_close(&l);
}

static void test_refused(void **state) {
    (void)state;
    struct fx x;
    struct err_info info = {.code = ERR_OK};
    struct mdl_adapter *a;
    struct mdl_lora *l = NULL;
    struct mdl_lora_slots *s = NULL;
    fx_open(&x, MODEL, &(struct fx_options){0});
    struct mdl_config other = x.weights->config;
    other.n_layers = 1;
    assert_ok(mdl_adapter_create(&other, 1, 4, 8, false, &a, &info), &info);
    assert_int_equal(mdl_lora_create(x.weights, x.queue, a, &l, &info), ERR_INVALID);
    assert_int_equal(mdl_lora_slots_create(x.weights, x.queue, 0, &s, &info), ERR_INVALID);
    assert_int_equal(mdl_lora_slots_create(x.weights, x.queue, 1 << 20, &s, &info), ERR_INVALID);
    struct kn_ops ops = *x.weights->ops;
    const struct kn_ops *real = x.weights->ops;
    ops.lora = NULL;
    x.weights->ops = &ops;
    assert_int_equal(mdl_lora_slots_create(x.weights, x.queue, 1, &s, &info), ERR_UNSUPPORTED);
    assert_non_null(strstr(info.message, "'lora'"));
    x.weights->ops = real;
    mdl_adapter_destroy(a);
    fx_close(&x);
}

static void test_nomem(void **state) {
    (void)state;
    struct lx l;
    struct err_info info = {.code = ERR_OK};
    lx_open(&l, "portable");
    int64_t live = mem_live_blocks();
    for (uint64_t n = 1;; n++) {
        struct mdl_lora *again = NULL;
        mem_fail_after(n, false);
        enum err e = mdl_lora_create(l.x.weights, l.x.queue, l.adapters[0], &again, &info);
        mem_fail_after(0, false);
        mdl_lora_destroy(again);
        assert_int_equal(mem_live_blocks(), live);
        if (!e) {
            assert_true(n > 3);
            break;
        }
        assert_int_equal(e, ERR_NOMEM);
    }
    for (uint64_t n = 1;; n++) {
        struct mdl_lora_slots *again = NULL;
        mem_fail_after(n, false);
        enum err e = mdl_lora_slots_create(l.x.weights, l.x.queue, 7, &again, &info);
        mem_fail_after(0, false);
        mdl_lora_slots_destroy(again);
        assert_int_equal(mem_live_blocks(), live);
        if (!e) {
            assert_true(n > 4);
            break;
        }
        assert_int_equal(e, ERR_NOMEM);
    }
    lx_close(&l);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_golden),       cmocka_unit_test(test_quantised),
        cmocka_unit_test(test_slots),        cmocka_unit_test(test_recorded),
        cmocka_unit_test(test_download),     cmocka_unit_test(test_dropout),
        cmocka_unit_test(test_refused),      cmocka_unit_test(test_nomem),
        cmocka_unit_test(test_sixteen_bits), cmocka_unit_test(test_pieces),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

// SPDX-License-Identifier: Apache-2.0
// What a unit promises beside right numbers: the same bits for any number of threads, cut into
// slices, and memory; nothing left of a unit that was dropped or did not fit; packing that changes
// next to nothing; refusals.
#include "base/mem.h"
#include "finetune/lora/unit_internal.h"
#include "model/forward_internal.h"
#include "tests/finetune/train_fixture.h"
#include "tests/model/forward_doubles.h"
#include "tests/support/cmocka_all.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { EXPONENT = 36 };

// Sums after all rows of the golden file, and the losses of the last.
struct outcome {
    int64_t *sums, n;
    float losses[TF_TOKENS];
    int64_t targets;
};

struct how {
    struct tf_options o;
    bool sliced;
    bool small;  // everything is cut as small as it can be
    size_t less; // bytes of the range that are missing
    int drops;   // so many units are dropped on the way, at different places
};

static uint64_t keys[TF_TOKENS];

static void add_row(struct tf *t, const struct tf_row *row, const struct how *h,
                    struct lora_row_result *res) {
    struct lora_row r = tf_lora_row(row, EXPONENT);
    struct err_info info;
    r.keys = h->o.dropout > 0 ? keys : NULL;
    for (int i = 0; i < h->drops; i++) {
        bool done = false;
        assert_int_equal(lora_unit_begin(t->unit, &r, t->range, t->range_bytes, &info), ERR_OK);
        for (int k = 0; k < 1 << i && !done; k++)
            assert_int_equal(lora_unit_run(t->unit, 0, &done, &info), ERR_OK);
        if (done) { // it counts
            lora_unit_result(t->unit, res);
            return;
        }
        lora_unit_drop(t->unit);
    }
    if (!h->small) {
        tf_unit(t, &r, h->sliced, res);
        return;
    }
    assert_int_equal(lora_unit_begin(t->unit, &r, t->range, t->range_bytes, &info), ERR_OK);
    for (bool done = false; !done;) {
        t->unit->scale = t->unit->forward->scale = 1e9; // each piece is held to be far too large
        assert_int_equal(lora_unit_run(t->unit, 0, &done, &info), ERR_OK);
    }
    lora_unit_result(t->unit, res);
}

// The rows of the golden files are shorter than most pieces of work: this one is as long as fits.
static void fill_row(struct tf_row *row, int32_t vocab) {
    static const int32_t starts[] = {0, 3, 37, TF_TOKENS};
    *row = (struct tf_row){.n_tokens = TF_TOKENS, .n_seqs = 3};
    memcpy(row->seq_start, starts, sizeof starts);
    for (int32_t i = 0; i < TF_TOKENS; i++) {
        row->ids[i] = i * 37 % vocab;
        row->mask[i] = i % 5 != 0 && i != 3 && i != 37;
    }
}

static void run(const char *name, const struct how *h, struct outcome *out) {
    struct tf t;
    struct tf_golden g;
    struct lora_row_result res;
    tf_open(&t, name, &h->o);
    t.range_bytes -= h->less;
    tf_golden_read(&g, &t.fx.weights->config, name);
    tf_set(&t, g.start);
    for (int32_t i = 0; i < g.n_rows; i++) {
        add_row(&t, &g.rows[i], h, &res);
        assert_true(res.finite && !res.overflow);
    }
    struct tf_row full;
    fill_row(&full, t.fx.weights->config.vocab);
    add_row(&t, &full, h, &res);
    assert_true(res.finite && !res.overflow);
    out->sums = tf_sums(&t, &out->n);
    out->targets = res.targets;
    memcpy(out->losses, res.losses, (size_t)res.targets * sizeof *res.losses);
    t.range_bytes += h->less;
    tf_golden_fini(&g);
    tf_close(&t);
}

static void assert_same(const char *name, const struct how *a, const struct how *b) {
    struct outcome x, y;
    run(name, a, &x);
    run(name, b, &y);
    assert_int_equal(x.n, y.n);
    assert_int_equal(x.targets, y.targets);
    assert_memory_equal(x.losses, y.losses, (size_t)x.targets * sizeof *x.losses);
    assert_memory_equal(x.sums, y.sums, (size_t)x.n * sizeof *x.sums);
    int64_t other = 0;
    for (int64_t i = 0; i < x.n; i++)
        other |= x.sums[i];
    assert_true(other != 0);
    mem_free(x.sums);
    mem_free(y.sums);
}

static const char *const names[] = {"f32", "bf16", "q8_0", "mixed", "qwen3-bf16", "qwen3-q8_0"};
enum { NAMES = sizeof names / sizeof *names };

static void test_threads(void **state) {
    (void)state;
    for (int i = 0; i < NAMES; i++) {
        struct how one = {.o = {.fx = {.threads = 1}}}, two = {.o = {.fx = {.threads = 2}}},
                   four = {.o = {.fx = {.threads = 4}}};
        assert_same(names[i], &one, &two);
        assert_same(names[i], &one, &four);
    }
}

static void test_memory(void **state) {
    (void)state;
    for (int i = 0; i < NAMES; i++) {
        struct how keep = {0}, forget = {.o = {.forget = true}}, some = {.less = 4096};
        assert_same(names[i], &keep, &forget);
        assert_same(names[i], &keep, &some); // one layer does not fit
    }
}

static void test_slices(void **state) {
    (void)state;
    for (uint64_t seed = 0; seed < 2 * NAMES; seed++) {
        struct ticking_clock clock;
        ticking_clock_init(&clock, seed);
        struct how whole = {0},
                   sliced = {.o = {.clock = &clock.clock, .forget = seed >= NAMES}, .sliced = true};
        assert_same(names[seed % NAMES], &whole, &sliced);
    }
}

static void test_smallest_pieces(void **state) {
    (void)state;
    for (int i = 0; i < TF_TOKENS; i++)
        keys[i] = (uint64_t)i * 0x9e3779b97f4a7c15u;
    for (int i = 0; i < NAMES; i++)
        for (int forget = 0; forget < 2; forget++) {
            struct ticking_clock clock;
            ticking_clock_init(&clock, 11);
            struct how whole = {.o = {.dropout = 0.2F}},
                       small = {.o = {.clock = &clock.clock, .dropout = 0.2F, .forget = forget},
                                .small = true};
            assert_same(names[i], &whole, &small);
        }
}

static void test_dropout(void **state) {
    (void)state;
    for (int i = 0; i < TF_TOKENS; i++)
        keys[i] = (uint64_t)i * 0x9e3779b97f4a7c15u;
    struct ticking_clock clock;
    ticking_clock_init(&clock, 3);
    struct how keep = {.o = {.dropout = 0.3F}},
               forget = {.o = {.dropout = 0.3F, .forget = true, .clock = &clock.clock},
                         .sliced = true},
               none = {0};
    assert_same("f32", &keep, &forget);
    struct outcome x, y;
    run("f32", &keep, &x);
    run("f32", &none, &y);
    assert_true(memcmp(x.sums, y.sums, (size_t)x.n * sizeof *x.sums) != 0);
    mem_free(x.sums);
    mem_free(y.sums);
}

static void test_drop(void **state) {
    (void)state;
    struct ticking_clock clock;
    ticking_clock_init(&clock, 8);
    struct how whole = {0}, dropped = {.o = {.clock = &clock.clock}, .sliced = true, .drops = 9};
    assert_same("f32", &whole, &dropped);
    dropped.o.forget = true;
    assert_same("q8_0", &whole, &dropped);
}

// Dropped while the gradient is being added, after each possible number of slices.
static void test_drop_in_sums(void **state) {
    (void)state;
    struct ticking_clock clock;
    struct tf t;
    struct tf_golden g;
    struct err_info info;
    ticking_clock_init(&clock, 1);
    tf_open(&t, "q8_0", &(struct tf_options){.clock = &clock.clock, .r = 256});
    struct lora_row_result res;
    tf_golden_read(&g, &t.fx.weights->config, "q8_0");
    struct lora_row row = tf_lora_row(&g.rows[0], EXPONENT);
    tf_unit(&t, &row, false, &res);
    int64_t n, *before = tf_sums(&t, &n), *after;
    int free_ranges = 0;
    for (int slices = 1;; slices++) {
        bool done = false;
        assert_int_equal(lora_unit_begin(t.unit, &row, t.range, t.range_bytes, &info), ERR_OK);
        for (int i = 0; i < slices && !done; i++)
            assert_int_equal(lora_unit_run(t.unit, 0, &done, &info), ERR_OK);
        if (done)
            break;
        free_ranges += !lora_unit_holds(t.unit);
        lora_unit_drop(t.unit);
        after = tf_sums(&t, &n);
        assert_memory_equal(before, after, (size_t)n * sizeof *after);
        mem_free(after);
    }
    assert_true(free_ranges > 1);
    after = tf_sums(&t, &n);
    for (int64_t i = 0; i < n; i++)
        assert_int_equal(after[i], 2 * before[i]);
    mem_free(before);
    mem_free(after);
    tf_golden_fini(&g);
    tf_close(&t);
}

static void test_overflow(void **state) {
    (void)state;
    struct tf t;
    struct tf_golden g;
    struct lora_row_result res;
    tf_open(&t, "f32", &(struct tf_options){0});
    tf_golden_read(&g, &t.fx.weights->config, "f32");
    tf_set(&t, g.start);
    struct lora_row row = tf_lora_row(&g.rows[0], 51);
    tf_unit(&t, &row, false, &res);
    assert_true(res.overflow && res.finite);
    int64_t n, *sums = tf_sums(&t, &n), other = 0;
    for (int64_t i = 0; i < n; i++)
        other |= sums[i];
    assert_int_equal(other, 0);
    mem_free(sums);
    // A value that is not finite.
    g.start->modules[1][MDL_TARGET_UP].b[3] = NAN;
    tf_set(&t, g.start);
    row.exponent = EXPONENT;
    tf_unit(&t, &row, true, &res);
    assert_false(res.finite);
    sums = tf_sums(&t, &n);
    for (int64_t i = 0; i < n; i++)
        other |= sums[i];
    assert_int_equal(other, 0);
    mem_free(sums);
    tf_golden_fini(&g);
    tf_close(&t);
}

// Sequences in rows of their own, and in one row: the losses have the same bits, the gradient is
// summed in another order.
static void test_packing(void **state) {
    (void)state;
    struct tf t;
    struct tf_golden g;
    struct lora_row_result res;
    tf_open(&t, "bf16", &(struct tf_options){0});
    tf_golden_read(&g, &t.fx.weights->config, "bf16");
    tf_set(&t, g.start);
    const struct tf_row *packed = &g.rows[1];
    assert_int_equal(packed->n_seqs, 3);
    float losses[TF_TOKENS];
    struct lora_row row = tf_lora_row(packed, EXPONENT);
    tf_unit(&t, &row, false, &res);
    memcpy(losses, res.losses, (size_t)res.targets * sizeof *losses);
    struct mdl_adapter *together = tf_gradient(&t, EXPONENT);
    tf_clear(&t);
    for (int32_t s = 0, at = 0; s < packed->n_seqs; s++) {
        int32_t begin = packed->seq_start[s];
        const int32_t start[2] = {0, packed->seq_start[s + 1] - begin};
        row = (struct lora_row){.n_tokens = start[1],
                                .n_seqs = 1,
                                .ids = packed->ids + begin,
                                .seq_start = start,
                                .mask = packed->mask + begin,
                                .weight = 1,
                                .exponent = EXPONENT,
                                .backward = true};
        tf_unit(&t, &row, false, &res);
        assert_memory_equal(res.losses, losses + at, (size_t)res.targets * sizeof *losses);
        at += (int32_t)res.targets;
    }
    struct mdl_adapter *apart = tf_gradient(&t, EXPONENT);
    const float *x = together->memory, *y = apart->memory;
    double largest = 0;
    for (size_t i = 0; i < apart->values; i++)
        largest = fmax(largest, fabs((double)y[i]));
    for (size_t i = 0; i < apart->values; i++)
        assert_true(fabs((double)x[i] - (double)y[i]) <=
                    1e-6 * largest + 1e-5 * fabs((double)y[i]));
    mdl_adapter_destroy(together);
    mdl_adapter_destroy(apart);
    tf_golden_fini(&g);
    tf_close(&t);
}

// Backward ends where nothing below is trained: what is trained has the same gradient.
static void test_targets(void **state) {
    (void)state;
    const unsigned some[] = {1U << MDL_TARGET_DOWN, 1U << MDL_TARGET_UP, 1U << MDL_TARGET_O,
                             1U << MDL_TARGET_V | 1U << MDL_TARGET_GATE};
    for (size_t i = 0; i < sizeof some / sizeof *some; i++) {
        struct tf all, part;
        struct tf_golden g;
        struct lora_row_result res;
        tf_open(&all, "mixed", &(struct tf_options){0});
        tf_open(&part, "mixed", &(struct tf_options){.targets = some[i]});
        tf_golden_read(&g, &all.fx.weights->config, "mixed");
        // Only the targets are not zero, so that both models are the same.
        struct mdl_adapter *full = tf_adapter(&all), *less = tf_adapter(&part);
        for (int32_t l = 0; l < g.layers; l++)
            for (int t = 0; t < MDL_TARGETS; t++) {
                int32_t n, k;
                mdl_target_shape(&all.fx.weights->config, (enum mdl_target)t, &n, &k);
                const struct mdl_adapter_module *from = &g.start->modules[l][t];
                struct mdl_adapter *to[2] = {full, less};
                for (int j = 0; j < 2 && some[i] >> t & 1; j++) {
                    memcpy(to[j]->modules[l][t].a, from->a, (size_t)(4 * k) * sizeof(float));
                    memcpy(to[j]->modules[l][t].b, from->b, (size_t)(4 * n) * sizeof(float));
                }
            }
        tf_set(&all, full);
        tf_set(&part, less);
        struct lora_row row = tf_lora_row(&g.rows[1], EXPONENT);
        tf_unit(&all, &row, false, &res);
        tf_unit(&part, &row, false, &res);
        struct mdl_adapter *x = tf_gradient(&all, EXPONENT), *y = tf_gradient(&part, EXPONENT);
        for (int32_t l = 0; l < g.layers; l++)
            for (int t = 0; t < MDL_TARGETS; t++) {
                int32_t n, k;
                mdl_target_shape(&all.fx.weights->config, (enum mdl_target)t, &n, &k);
                if (!(some[i] >> t & 1))
                    continue;
                assert_memory_equal(x->modules[l][t].a, y->modules[l][t].a,
                                    (size_t)(4 * k) * sizeof(float));
                assert_memory_equal(x->modules[l][t].b, y->modules[l][t].b,
                                    (size_t)(4 * n) * sizeof(float));
            }
        struct mdl_adapter *const adapters[] = {full, less, x, y};
        for (int j = 0; j < 4; j++)
            mdl_adapter_destroy(adapters[j]);
        tf_golden_fini(&g);
        tf_close(&all);
        tf_close(&part);
    }
}

// A unit's losses are the log-probabilities that serving reports, bit by bit.
static void test_served(void **state) {
    (void)state;
    for (int i = 0; i < NAMES; i++) {
        struct tf t;
        struct tf_golden g;
        struct lora_row_result res;
        struct err_info info;
        struct mdl_lora_slots *slots;
        tf_open(&t, names[i], &(struct tf_options){0});
        tf_golden_read(&g, &t.fx.weights->config, names[i]);
        tf_set(&t, g.start);
        const struct tf_row *row = &g.rows[0];
        struct lora_row r = tf_lora_row(row, EXPONENT);
        tf_unit(&t, &r, false, &res);

        assert_int_equal(mdl_lora_slots_create(t.fx.weights, t.fx.queue, 3, &slots, &info), ERR_OK);
        assert_int_equal(mdl_lora_set(slots, 2, lora_params_resident(t.params)), ERR_OK);
        struct fx_seq s;
        struct fx_batch b;
        fx_seq_init(&s, row->ids, row->n_tokens, 5);
        fx_batch_init(&b);
        fx_batch_add(&b, &s, row->n_tokens - 1, FX_ALL, true);
        b.slot[0] = 2;
        fx_run(&t.fx, &b, mdl_lora_hooks(slots), NULL);
        const struct kn_sample_out *out = mdl_forward_samples(t.fx.forward);
        for (int32_t k = 1, target = 0; k < row->n_tokens; k++)
            if (row->mask[k]) {
                float loss = -out[k - 1].logprob;
                assert_memory_equal(&loss, &res.losses[target++], sizeof loss);
            }
        mdl_lora_slots_destroy(slots);
        tf_golden_fini(&g);
        tf_close(&t);
    }
}

static void test_refusals(void **state) {
    (void)state;
    struct tf t;
    struct tf_golden g;
    struct err_info info;
    tf_open(&t, "f32", &(struct tf_options){0});
    tf_golden_read(&g, &t.fx.weights->config, "f32");
    struct lora_row row = tf_lora_row(&g.rows[1], EXPONENT);
    assert_int_equal(lora_unit_begin(t.unit, &row, t.range, 1000, &info), ERR_LIMIT);
    row.n_tokens = TF_TOKENS + 1;
    assert_int_equal(lora_unit_begin(t.unit, &row, t.range, t.range_bytes, &info), ERR_LIMIT);
    row = tf_lora_row(&g.rows[1], EXPONENT);
    uint8_t mask[TF_TOKENS] = {1};
    row.mask = mask; // a first token is no target
    assert_int_equal(lora_unit_begin(t.unit, &row, t.range, t.range_bytes, &info), ERR_INVALID);
    bool done;
    assert_int_equal(lora_unit_run(t.unit, 0, &done, &info), ERR_INVALID);
    tf_golden_fini(&g);
    tf_close(&t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_threads),      cmocka_unit_test(test_memory),
        cmocka_unit_test(test_slices),       cmocka_unit_test(test_smallest_pieces),
        cmocka_unit_test(test_dropout),      cmocka_unit_test(test_drop),
        cmocka_unit_test(test_drop_in_sums), cmocka_unit_test(test_overflow),
        cmocka_unit_test(test_packing),      cmocka_unit_test(test_targets),
        cmocka_unit_test(test_refusals),     cmocka_unit_test(test_served),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

// SPDX-License-Identifier: Apache-2.0
// The plan: every sample once an epoch, the same plan for the same seed from wherever it is asked,
// uniform order, full rows, and rows of tokens from a cache.
#include "base/hash.h"
#include "base/mem.h"
#include "finetune/batcher.h"
#include "tests/finetune/dataset_support.h"
#include "tests/support/cmocka_all.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

struct lengths {
    int64_t n;
    int32_t *tokens;
};

static int32_t tokens_of(const void *arg, int64_t i) {
    return ((const struct lengths *)arg)->tokens[i];
}

static int32_t supervised_of(const void *arg, int64_t i) {
    return ((const struct lengths *)arg)->tokens[i] / 3 + 1;
}

// Log-normal, as the lengths of instruction data are: median about 180, a long tail.
static struct lengths realistic(int64_t n, int32_t max) {
    struct lengths l = {n, calloc((size_t)n, sizeof(int32_t))};
    assert_non_null(l.tokens);
    for (int64_t i = 0; i < n; i++) {
        double u = ((double)(hash_mix64((uint64_t)i * 2 + 1) >> 11) + 0.5) * 0x1p-53;
        double v = (double)(hash_mix64((uint64_t)i * 2 + 2) >> 11) * 0x1p-53;
        double x = exp(5.2 + 0.8 * sqrt(-2 * log(u)) * cos(2 * acos(-1) * v));
        l.tokens[i] = x < 8 ? 8 : x > max ? max : (int32_t)x;
    }
    return l;
}

static struct ft_plan_config config(const struct lengths *l) {
    return (struct ft_plan_config){
        .data = {l->n, tokens_of, supervised_of, l},
        .epochs = 3,
        .batch_size = 64,
        .row_tokens = 2048,
        .packing = true,
        .shuffle = true,
        .seed = 42,
    };
}

static struct ft_plan *make(const struct ft_plan_config *c) {
    struct ft_plan *p;
    struct err_info info;
    if (ft_plan_create(c, &p, &info))
        fail_msg("%s", info.message);
    return p;
}

static struct ft_plan_step at(struct ft_plan *p, int64_t step) {
    struct ft_plan_step s;
    assert_int_equal(ft_plan_at(p, step, &s, NULL), ERR_OK);
    return s;
}

static void check_epoch(struct ft_plan *p, const struct ft_plan_config *c, int32_t epoch) {
    int64_t n = c->data.n, taken = 0;
    uint8_t *seen = calloc((size_t)n, 1);
    assert_non_null(seen);
    for (int64_t i = 0; i < ft_plan_epoch_steps(p); i++) {
        struct ft_plan_step s = at(p, epoch * ft_plan_epoch_steps(p) + i);
        int64_t tokens = 0, supervised = 0;
        assert_int_equal(s.epoch, epoch);
        assert_int_equal(s.row_start[0], 0);
        assert_int_equal(s.row_start[s.n_rows], s.n_samples);
        for (int32_t j = 0; j < s.n_rows; j++) {
            int64_t row = 0;
            assert_true(s.row_start[j] < s.row_start[j + 1]);
            for (int32_t k = s.row_start[j]; k < s.row_start[j + 1]; k++) {
                assert_int_equal(seen[s.samples[k]]++, 0);
                row += c->data.tokens(c->data.arg, s.samples[k]);
                supervised += c->data.supervised(c->data.arg, s.samples[k]);
            }
            assert_true(row <= c->row_tokens);
            tokens += row;
        }
        assert_int_equal(s.tokens, tokens);
        assert_int_equal(s.supervised, supervised);
        bool last = i + 1 == ft_plan_epoch_steps(p);
        assert_int_equal(s.n_samples, last ? n - taken : c->batch_size);
        taken += s.n_samples;
    }
    assert_int_equal(taken, n);
    free(seen);
}

static void every_sample_once(void **state) {
    (void)state;
    const int64_t sizes[] = {1, 2, 3, 5, 7, 8, 9, 63, 64, 65, 1000, 4097, 100003};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (int mode = 0; mode < 4; mode++) {
            struct lengths l = realistic(sizes[i], 2048);
            struct ft_plan_config c = config(&l);
            c.packing = mode & 1;
            c.shuffle = mode & 2;
            c.batch_size = sizes[i] > 1000 ? 256 : 7;
            struct ft_plan *p = make(&c);
            assert_int_equal(ft_plan_epoch_steps(p), (sizes[i] + c.batch_size - 1) / c.batch_size);
            assert_int_equal(ft_plan_steps(p), 3 * ft_plan_epoch_steps(p));
            for (int32_t e = 0; e < (sizes[i] > 10000 ? 1 : 3); e++)
                check_epoch(p, &c, e);
            ft_plan_destroy(p);
            free(l.tokens);
        }
}

static uint64_t print_of(const struct ft_plan_step *s) {
    uint64_t h = hash_mix64((uint64_t)s->step + 1);
    for (int32_t i = 0; i < s->n_samples; i++)
        h = hash_mix64(h + (uint64_t)s->samples[i]);
    for (int32_t i = 0; i <= s->n_rows; i++)
        h = hash_mix64(h + (uint64_t)s->row_start[i]);
    return h;
}

static void same_from_anywhere(void **state) {
    (void)state;
    struct lengths l = realistic(5000, 2048);
    struct ft_plan_config c = config(&l);
    struct ft_plan *a = make(&c), *b = make(&c);
    int64_t n = ft_plan_steps(a);
    uint64_t *h = calloc((size_t)n, sizeof *h);
    assert_non_null(h);
    for (int64_t i = 0; i < n; i++) {
        struct ft_plan_step s = at(a, i);
        h[i] = print_of(&s);
    }
    for (int64_t i = n - 1; i >= 0; i--) { // backwards, and in another plan
        struct ft_plan_step s = at(b, i);
        assert_true(print_of(&s) == h[i]);
    }
    // Neither packing nor the row's size changes which samples a step has.
    c.packing = false;
    struct ft_plan *loose = make(&c);
    struct ft_plan_step x = at(a, 17), y = at(loose, 17);
    assert_int_equal(x.tokens, y.tokens);
    assert_int_equal(x.supervised, y.supervised);
    assert_int_equal(y.n_rows, y.n_samples);
    // Another seed, another epoch: another order.
    c.seed++;
    struct ft_plan *other = make(&c);
    int same_seed = 0, same_epoch = 0;
    for (int64_t i = 0; i < 5000; i++) {
        same_seed += ft_plan_sample(a, 0, i) == ft_plan_sample(other, 0, i);
        same_epoch += ft_plan_sample(a, 0, i) == ft_plan_sample(a, 1, i);
    }
    assert_true(same_seed < 12 && same_epoch < 12);
    assert_int_equal(ft_plan_at(a, n, &x, NULL), ERR_INVALID);
    assert_int_equal(ft_plan_at(a, -1, &x, NULL), ERR_INVALID);
    ft_plan_destroy(a);
    ft_plan_destroy(b);
    ft_plan_destroy(loose);
    ft_plan_destroy(other);
    free(h);
    free(l.tokens);
}

// The order is part of the promise that a job with a seed can be repeated by a later version: these
// came from the same network written in Python (tests/golden/dataset/order.py).
static void known_orders(void **state) {
    (void)state;
    json_t *golden = ds_json("tests/golden/dataset/order.json");
    for (size_t i = 0; i < json_array_size(golden); i++) {
        const json_t *g = json_array_get(golden, i);
        const json_t *order = json_object_get(g, "order");
        int32_t tokens[1] = {1};
        struct lengths l = {(int64_t)json_array_size(order), tokens};
        struct ft_plan_config c = config(&l);
        c.data.n = l.n;
        l.tokens = calloc((size_t)l.n, sizeof *l.tokens);
        c.seed = (uint64_t)json_integer_value(json_object_get(g, "seed"));
        struct ft_plan *p = make(&c);
        int32_t epoch = (int32_t)json_integer_value(json_object_get(g, "epoch"));
        for (int64_t k = 0; k < l.n; k++)
            assert_int_equal(ft_plan_sample(p, epoch, k),
                             json_integer_value(json_array_get(order, (size_t)k)));
        ft_plan_destroy(p);
        free(l.tokens);
    }
    json_decref(golden);
}

// Where each sample lands over many epochs, and which one follows which: chi-square against
// uniform.
static void order_is_uniform(void **state) {
    (void)state;
    enum { N = 10, EPOCHS = 20000 };
    int32_t tokens[N] = {0};
    struct lengths l = {N, tokens};
    struct ft_plan_config c = config(&l);
    c.epochs = EPOCHS;
    struct ft_plan *p = make(&c);
    double place[N][N] = {{0}}, pair[N][N] = {{0}};
    for (int32_t e = 0; e < EPOCHS; e++) {
        int64_t before = -1;
        for (int64_t i = 0; i < N; i++) {
            int64_t s = ft_plan_sample(p, e, i);
            place[i][s]++;
            if (before >= 0)
                pair[before][s]++;
            before = s;
        }
    }
    double chi_place = 0, chi_pair = 0;
    for (int i = 0; i < N; i++)
        for (int j = 0; j < N; j++) {
            double want = (double)EPOCHS / N, follow = (double)EPOCHS / N;
            chi_place += (place[i][j] - want) * (place[i][j] - want) / want;
            if (i != j)
                chi_pair += (pair[i][j] - follow) * (pair[i][j] - follow) / follow;
        }
    // 81 and about 80 degrees of freedom: 1 in 10,000 lies above 135.
    if (chi_place > 135 || chi_pair > 135)
        fail_msg("chi-square %.1f of places, %.1f of pairs", chi_place, chi_pair);
    ft_plan_destroy(p);
}

static double density(int32_t batch, int32_t row_tokens) {
    struct lengths l = realistic(20000, row_tokens);
    struct ft_plan_config c = config(&l);
    c.batch_size = batch;
    c.row_tokens = row_tokens;
    c.epochs = 1;
    struct ft_plan *p = make(&c);
    int64_t tokens = 0, rows = 0;
    for (int64_t i = 0; i < ft_plan_steps(p); i++) {
        struct ft_plan_step s = at(p, i);
        tokens += s.tokens;
        rows += s.n_rows;
    }
    ft_plan_destroy(p);
    free(l.tokens);
    return (double)tokens / ((double)rows * row_tokens);
}

static void rows_are_full(void **state) {
    (void)state;
    double d64 = density(64, 2048), d256 = density(256, 4096);
    print_message("filled: %.1f%% (64 samples, rows of 2048), %.1f%% (256, 4096)\n", 100 * d64,
                  100 * d256);
    assert_true(d64 > 0.9 && d256 > 0.9);
}

static void limits(void **state) {
    (void)state;
    struct lengths l = realistic(100, 2048);
    struct ft_plan_config c = config(&l);
    c.row_samples = 3;
    struct ft_plan *p = make(&c);
    struct ft_plan_step s = at(p, 0);
    for (int32_t j = 0; j < s.n_rows; j++)
        assert_true(s.row_start[j + 1] - s.row_start[j] <= 3);
    ft_plan_destroy(p);
    struct err_info info;
    c.row_samples = 0;
    l.tokens[77] = 2049;
    assert_int_equal(ft_plan_create(&c, &p, &info), ERR_INVALID);
    assert_string_equal(info.message, "sample 77 has 2049 tokens, a row takes 2048");
    c.row_tokens = 2049;
    struct ft_plan_config bad[] = {c, c, c, c, c};
    bad[0].epochs = 0;
    bad[1].batch_size = 0;
    bad[2].batch_size = FT_MAX_BATCH + 1;
    bad[3].data.n = 0;
    bad[4].row_samples = -1;
    for (int i = 0; i < 5; i++)
        assert_int_equal(ft_plan_create(&bad[i], &p, &info), ERR_INVALID);
    for (uint64_t i = 1; i <= 8; i++) {
        int64_t alive = mem_live_blocks();
        mem_fail_after(i, false);
        assert_int_equal(ft_plan_create(&c, &p, &info), ERR_NOMEM);
        mem_fail_after(0, false);
        assert_int_equal(mem_live_blocks(), alive);
    }
    free(l.tokens);
}

// ---- rows of tokens

static void check_rows(struct ft_dataset *set, struct ft_plan *p, uint64_t seed) {
    struct ft_row row = {0};
    struct ft_sample one = {0};
    struct err_info info;
    for (int64_t i = 0; i < ft_plan_steps(p); i++) {
        struct ft_plan_step s = at(p, i);
        int64_t tokens = 0, targets = 0;
        for (int32_t j = 0; j < s.n_rows; j++) {
            assert_int_equal(ft_row_read(set, &s, j, seed, &row, &info), ERR_OK);
            tokens += row.n_tokens;
            targets += row.targets;
            assert_int_equal(row.seq_start[0], 0);
            assert_int_equal(row.seq_start[row.n_seqs], row.n_tokens);
            for (int32_t q = 0; q < row.n_seqs; q++) {
                int32_t from = row.seq_start[q], n = row.seq_start[q + 1] - from;
                bool second = q && row.sample[q - 1] == row.sample[q];
                assert_int_equal(ft_dataset_read(set, row.sample[q], &one, &info), ERR_OK);
                assert_int_equal(n, second ? one.n2 : one.n);
                size_t size = (size_t)n;
                assert_memory_equal(row.ids + from, second ? one.ids2 : one.ids, 4 * size);
                assert_memory_equal(row.mask + from, second ? one.mask2 : one.mask, size);
                assert_int_equal(row.mask[from], 0);
            }
        }
        assert_int_equal(tokens, s.tokens);
        assert_int_equal(targets, s.supervised);
    }
    ft_row_fini(&row);
    ft_sample_fini(&one);
}

static int compare_keys(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

// Dropout's keys: the same wherever a sample stands, different for all else.
static void check_keys(struct ft_dataset *set, const struct ft_plan_config *c) {
    struct ft_plan_config loose = *c;
    loose.packing = false;
    loose.batch_size = 1;
    loose.shuffle = false;
    struct ft_plan *p = make(&loose);
    struct ft_row row = {0};
    uint64_t all[4000];
    size_t n = 0;
    for (int64_t i = 0; i < ft_plan_steps(p); i++) {
        struct ft_plan_step s = at(p, i);
        assert_int_equal(ft_row_read(set, &s, 0, 5, &row, NULL), ERR_OK);
        assert_true(n + (size_t)row.n_tokens <= 4000);
        memcpy(all + n, row.keys, (size_t)row.n_tokens * 8);
        n += (size_t)row.n_tokens;
    }
    qsort(all, n, sizeof *all, compare_keys);
    for (size_t i = 1; i < n; i++)
        assert_true(all[i] != all[i - 1]);
    struct ft_plan *packed = make(c);
    struct ft_plan_step s = at(packed, 0);
    assert_int_equal(ft_row_read(set, &s, 0, 5, &row, NULL), ERR_OK);
    for (int32_t i = 0; i < row.n_tokens; i++)
        assert_non_null(bsearch(&row.keys[i], all, n, sizeof *all, compare_keys));
    assert_int_equal(ft_row_read(set, &s, 0, 6, &row, NULL), ERR_OK);
    assert_null(bsearch(&row.keys[0], all, n, sizeof *all, compare_keys));
    ft_row_fini(&row);
    ft_plan_destroy(p);
    ft_plan_destroy(packed);
}

#define BOT "{\"role\":\"assistant\",\"content\":\"answer %.*s\"}"

static void rows_from_a_cache(void **state) {
    (void)state;
    for (int preference = 0; preference < 2; preference++) {
        struct ds d;
        struct buf text;
        ds_open_chatml(&d);
        d.opts.preference = preference;
        buf_init(&text, 0);
        for (int i = 0; i < 23; i++) {
            const char *user = "{\"role\":\"user\",\"content\":\"question\"}";
            char a[256], b[256];
            snprintf(a, sizeof a, BOT, i * 3 % 17, "a b c d e f g h i j");
            snprintf(b, sizeof b, BOT, i * 5 % 19, "k l m n o p q r s t");
            if (preference)
                buf_printf(&text,
                           "{\"input\":{\"messages\":[%s]},\"preferred_output\":[%s],"
                           "\"non_preferred_output\":[%s]}\n",
                           user, a, b);
            else
                buf_printf(&text, "{\"messages\":[%s,%s]}\n", user, a);
        }
        assert_int_equal(ds_build(&d, text.data, text.len), ERR_OK);
        struct ft_dataset *set = ds_load(&d, "cache");
        struct ft_plan_config c = {
            .data = ft_dataset_lengths(set),
            .epochs = 2,
            .batch_size = 5,
            .row_tokens = 150,
            .packing = true,
            .shuffle = true,
            .seed = 9,
        };
        struct ft_plan *p = make(&c);
        check_rows(set, p, 5);
        check_keys(set, &c);
        ft_plan_destroy(p);
        ft_dataset_close(set);
        buf_fini(&text);
        ds_close(&d);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_sample_once), cmocka_unit_test(same_from_anywhere),
        cmocka_unit_test(known_orders),      cmocka_unit_test(order_is_uniform),
        cmocka_unit_test(rows_are_full),     cmocka_unit_test(limits),
        cmocka_unit_test(rows_from_a_cache),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

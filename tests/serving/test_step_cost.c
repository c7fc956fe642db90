// SPDX-License-Identifier: Apache-2.0
// The cost model must find out what steps cost from steps alone, follow a machine that changes, and
// never promise less than it knows.
#include "serving/step_cost.h"
#include "tests/support/cmocka_all.h"
#include <math.h>

// Bandwidth-bound up to 12 rows, then 1 ms a row; attention on top.
static int64_t truth(const struct eng__shape *s) {
    int64_t products = s->rows < 12 ? 12000000 : s->rows * 1000000;
    return products + s->decode_reads * 500 + s->prefill_reads * 250;
}

static struct eng__shape shape(int32_t decodes, int32_t context, int32_t prefill, int32_t first) {
    return (struct eng__shape){
        .rows = decodes + prefill,
        .decode_reads = (int64_t)decodes * context,
        .prefill_reads = (int64_t)prefill * first + (int64_t)prefill * (prefill + 1) / 2,
    };
}

static void learn(struct eng__cost *c, struct eng__shape s, int n) {
    for (int i = 0; i < n; i++)
        eng__cost_observe(c, &s, truth(&s));
}

static double error(const struct eng__cost *c, struct eng__shape s) {
    return eng__cost_predict(c, &s) / (double)truth(&s) - 1;
}

static void nothing_is_known_at_first(void **state) {
    (void)state;
    struct eng__cost c = {0};
    struct eng__shape s = shape(4, 100, 0, 0);
    assert_true(eng__cost_predict(&c, &s) < 0);
    assert_false(eng__cost_knows(&c, 4));
    learn(&c, s, 1);
    assert_true(fabs(error(&c, s)) < 0.01);
    assert_true(eng__cost_knows(&c, 4));
    assert_true(eng__cost_knows(&c, 5));
    assert_false(eng__cost_knows(&c, 1));
    assert_false(eng__cost_knows(&c, 100));
}

static void unknown_sizes_are_not_promised_too_cheap(void **state) {
    (void)state;
    struct eng__cost c = {0};
    learn(&c, shape(16, 0, 0, 0), 3);
    assert_true(error(&c, shape(64, 0, 0, 0)) >= 0);
    assert_true(error(&c, shape(2, 0, 0, 0)) >= 0);
}

static void a_long_prompt_is_followed(void **state) {
    (void)state;
    struct eng__cost c = {0};
    learn(&c, shape(8, 200, 0, 0), 10);
    double worst = 0;
    int32_t at = 0;
    for (int step = 0; at < 4000; step++) {
        struct eng__shape base = shape(8, 200 + step, 0, 0);
        double limit = 1.8 * eng__cost_predict(&c, &base);
        int32_t n = eng__cost_prefill(&c, &base, at, limit, 512);
        if (n < 1)
            n = 1;
        struct eng__shape s = shape(8, 200 + step, n, at);
        double e = error(&c, s);
        if (step > 20 && fabs(e) > worst)
            worst = fabs(e);
        eng__cost_observe(&c, &s, truth(&s));
        at += n;
    }
    assert_true(worst < 0.08);
}

static void a_slower_machine_is_noticed(void **state) {
    (void)state;
    struct eng__cost c = {0};
    struct eng__shape s = shape(8, 100, 16, 0);
    learn(&c, s, 5);
    for (int i = 0; i < 12; i++)
        eng__cost_observe(&c, &s, 2 * truth(&s));
    assert_true(fabs(eng__cost_predict(&c, &s) / (2 * (double)truth(&s)) - 1) < 0.1);
    learn(&c, s, 12);
    assert_true(fabs(error(&c, s)) < 0.1);
    // One disturbed step moves it by a quarter at most.
    double before = eng__cost_predict(&c, &s);
    eng__cost_observe(&c, &s, 100 * truth(&s));
    assert_true(eng__cost_predict(&c, &s) < 1.6 * before);
}

static void the_budget_keeps_the_limit(void **state) {
    (void)state;
    struct eng__cost c = {0};
    for (int round = 0; round < 30; round++)
        for (int32_t n = 0; n <= 64; n += 4)
            learn(&c, shape(8, 100, n, 0), 1);
    struct eng__shape base = shape(8, 100, 0, 0);
    for (int ms = 13; ms < 60; ms += 5) {
        double limit = ms * 1e6;
        int32_t n = eng__cost_prefill(&c, &base, 0, limit, 512);
        struct eng__shape s = shape(8, 100, n, 0), more = shape(8, 100, n + 1, 0);
        assert_true(eng__cost_predict(&c, &s) <= limit);
        assert_true(eng__cost_predict(&c, &more) > limit);
        assert_true((double)truth(&s) < limit * 1.1);
    }
    assert_int_equal(eng__cost_prefill(&c, &base, 0, 1, 512), 0);
    assert_int_equal(eng__cost_prefill(&c, &base, 0, 1e12, 512), 512);
}

static void nonsense_changes_nothing(void **state) {
    (void)state;
    struct eng__cost c = {0};
    struct eng__shape none = {0}, s = shape(1, 1, 0, 0);
    eng__cost_observe(&c, &none, 5);
    eng__cost_observe(&c, &s, -5);
    assert_true(eng__cost_predict(&c, &s) < 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_is_known_at_first),
        cmocka_unit_test(unknown_sizes_are_not_promised_too_cheap),
        cmocka_unit_test(a_long_prompt_is_followed),
        cmocka_unit_test(a_slower_machine_is_noticed),
        cmocka_unit_test(the_budget_keeps_the_limit),
        cmocka_unit_test(nonsense_changes_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

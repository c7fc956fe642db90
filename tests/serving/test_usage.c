// SPDX-License-Identifier: Apache-2.0
// Who used the engine's time: shares, quantiles, and what is recent.
#include "serving/usage.h"
#include "tests/support/cmocka_all.h"
#include <math.h>

#define MS INT64_C(1000000)
#define S INT64_C(1000000000)

static void near(double x, double y, double relative) {
    if (!(fabs(x - y) <= relative * fabs(y)))
        fail_msg("%g is not about %g", x, y);
}

static void shares_add_up(void **state) {
    (void)state;
    static struct eng__usage u;
    struct eng_shares recent, all;
    eng__usage_init(&u, 100 * S);
    eng__usage_read(&u, 101 * S, &recent, &all);
    assert_true(all.slices.n == 0 && all.gaps.n == 0 && !(all.slices.p99_s > 0));
    for (int i = 0; i < 200; i++) { // 20 s: half steps, a quarter slices
        int64_t now = 100 * S + i * 100 * MS;
        eng__usage_step(&u, now, 50 * MS);
        for (int k = 0; k < 25; k++)
            eng__usage_slice(&u, now, 1 * MS);
    }
    eng__usage_read(&u, 120 * S, &recent, &all);
    near(all.wall_s, 20, 1e-9);
    near(all.serving_s, 10, 1e-9);
    near(all.background_s, 5, 1e-9);
    assert_int_equal(all.slices.n, 5000);
    near(all.slices.p50_s, 0.001, 0.02);
    near(recent.wall_s, 20, 1e-9);
    near(recent.serving_s, 10, 1e-9);
    // A minute later nothing of it is recent.
    eng__usage_step(&u, 190 * S, 1 * S);
    eng__usage_read(&u, 190 * S, &recent, &all);
    near(recent.serving_s, 1, 1e-9);
    assert_int_equal(recent.slices.n, 0);
    assert_true(recent.wall_s >= 55 && recent.wall_s <= 60);
    near(all.serving_s, 11, 1e-9);
    near(all.wall_s, 90, 1e-9);
    eng__usage_fini(&u);
}

static void quantiles_are_at_most_2_percent_high(void **state) {
    (void)state;
    static struct eng__usage u;
    struct eng_shares recent, all;
    eng__usage_init(&u, 0);
    for (int i = 1; i <= 1000; i++) // 1 to 1,000 ms, in a mixed order
        eng__usage_gap(&u, S, (int64_t)(i * 7 % 1000 + 1) * MS);
    eng__usage_read(&u, 2 * S, &recent, &all);
    assert_int_equal(all.gaps.n, 1000);
    assert_true(all.gaps.p50_s >= 0.5 && all.gaps.p50_s <= 0.5 * 1.0201);
    assert_true(all.gaps.p99_s >= 0.99 && all.gaps.p99_s <= 1);
    near(all.gaps.most_s, 1, 1e-9);
    near(recent.gaps.p99_s, all.gaps.p99_s, 1e-12);
    eng__usage_gap(&u, S, 0); // what fits no bucket
    eng__usage_gap(&u, S, 100000 * S);
    eng__usage_read(&u, 2 * S, &recent, &all);
    near(all.gaps.most_s, 100000, 1e-9);
    eng__usage_fini(&u);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shares_add_up),
        cmocka_unit_test(quantiles_are_at_most_2_percent_high),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

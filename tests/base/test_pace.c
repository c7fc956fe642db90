// SPDX-License-Identifier: Apache-2.0
#include "base/pace.h"
#include "tests/support/cmocka_all.h"

struct resting {
    struct clock_manual clock;
    int rests;
};

static void rest(void *arg) {
    struct resting *r = arg;
    r->rests++;
    clock_manual_advance(&r->clock, 5000); // as long as it sleeps is no part of the next burst
}

static void test_bursts(void **state) {
    (void)state;
    struct resting r = {0};
    clock_manual_init(&r.clock, 100, 0);
    struct pace p = {.clock = &r.clock.clock, .burst_ns = 1000, .rest = rest, .arg = &r};
    pace_begin(&p);
    for (int i = 0; i < 3; i++) {
        clock_manual_advance(&r.clock, 999);
        pace_point(&p);
        assert_int_equal(r.rests, i);
        clock_manual_advance(&r.clock, 1);
        pace_point(&p);
        assert_int_equal(r.rests, i + 1);
        pace_point(&p); // the next burst has just begun
        assert_int_equal(r.rests, i + 1);
    }
    clock_manual_advance(&r.clock, 5000); // idle between two jobs
    pace_begin(&p);
    pace_point(&p);
    assert_int_equal(r.rests, 3);
    pace_begin(NULL);
    pace_point(NULL);
    pace_sleep(1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bursts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

// SPDX-License-Identifier: Apache-2.0
// What the governor allows, on made-up times.
#include "serving/governor.h"
#include "tests/support/cmocka_all.h"

#define MS INT64_C(1000000)

static struct governor governor_of(int64_t itl_ms, int64_t ttft_ms) {
    struct governor g;
    gov_init(&g, &(struct gov_config){itl_ms * MS, ttft_ms * MS});
    return g;
}

static int64_t allowed(struct governor *g, int64_t left_ns) {
    const int64_t now = 1000 * MS;
    const struct gov_view v = {.now_ns = now, .can_step = true, .begin_ns = now + left_ns};
    return gov_allowance(g, &v);
}

static void idle_time_is_given_in_slices(void **state) {
    (void)state;
    struct governor g = governor_of(0, 0);
    const struct gov_view idle = {.now_ns = 5, .can_step = false, .begin_ns = INT64_MIN};
    assert_int_equal(gov_allowance(&g, &idle), GOV_SLICE_LONGEST_NS);
    const struct gov_view at_once = {.now_ns = 5, .can_step = true, .begin_ns = INT64_MIN};
    assert_int_equal(gov_allowance(&g, &at_once), 0);
}

static void tokens_have_time_for_their_way(void **state) {
    (void)state;
    struct governor g = governor_of(16, 0);
    assert_int_equal(g.cfg.itl_ns, 15 * MS);
    assert_int_equal(g.cfg.ttft_ns, 0);
    g = governor_of(0, 500);
    assert_int_equal(g.cfg.itl_ns, 0);
    assert_int_equal(g.cfg.ttft_ns, 498 * MS);
}

static void slack_is_given_but_for_the_margin(void **state) {
    (void)state;
    struct governor g = governor_of(50, 0);
    assert_int_equal(g.margin_ns, GOV_FIRST_MARGIN_NS);
    assert_int_equal(allowed(&g, 40 * MS), GOV_SLICE_LONGEST_NS);
    assert_int_equal(allowed(&g, GOV_FIRST_MARGIN_NS + 1 * MS), 1 * MS);
    assert_int_equal(allowed(&g, GOV_FIRST_MARGIN_NS + GOV_WORTH_NS - 1), 0);
    assert_int_equal(allowed(&g, -5 * MS), 0);
}

static void overrun_shortens_slices(void **state) {
    (void)state;
    struct governor g = governor_of(0, 0);
    for (int i = 0; i < 2000; i++)
        gov_slice(&g, g.slice_ns, g.slice_ns + 200000);
    assert_int_equal(g.slice_ns, GOV_SLICE_LONGEST_NS); // it fits
    // Two in a hundred last 3 ms longer: p99 must be kept all the same.
    for (int i = 0; i < 2000; i++)
        gov_slice(&g, g.slice_ns, g.slice_ns + (i % 50 == 0 ? 3 * MS : 0));
    assert_int_equal(g.slice_ns, GOV_SLICE_MOST_NS - 3 * MS);
    // One in two hundred is none of that.
    for (int i = 0; i < 2000; i++)
        gov_slice(&g, g.slice_ns, g.slice_ns + (i % 200 == 0 ? 3 * MS : 0));
    assert_int_equal(g.slice_ns, GOV_SLICE_LONGEST_NS);
    for (int i = 0; i < 2000; i++)
        gov_slice(&g, g.slice_ns, g.slice_ns + 50 * MS);
    assert_int_equal(g.slice_ns, GOV_SLICE_LEAST_NS);
}

// A machine whose steps are late by 0 to 0.9 ms, one in a hundred by 6 ms.
static int64_t lateness(int i) {
    return i % 100 == 7 ? 6 * MS : (i * 37 % 10) * 100000;
}

static void the_margin_is_what_steps_were_late_by(void **state) {
    (void)state;
    struct governor g = governor_of(50, 0);
    for (int i = 0; i < 2000; i++)
        gov_step(&g, (i * 37 % 10) * 100000);
    assert_int_equal(g.margin_ns, 900000);
    for (int i = 0; i < 2000; i++)
        gov_step(&g, lateness(i));
    assert_int_equal(g.margin_ns, 6 * MS); // one in a hundred is too many
    for (int i = 0; i < 2000; i++)
        gov_step(&g, -1 * MS);
    assert_int_equal(g.margin_ns, GOV_LEAST_MARGIN_NS);
}

// n steps behind background work, one in `late_every` with a token that is late by late_ns.
static void tokens(struct governor *g, int n, int late_every, int64_t late_ns) {
    for (int i = 0; i < n; i++) {
        gov_step(g, 0);
        gov_gap(g, g->cfg.itl_ns + (late_every && i % late_every == 0 ? late_ns : 0));
    }
}

static void late_tokens_widen_the_margin_for_a_while(void **state) {
    (void)state;
    struct governor g = governor_of(40, 0);
    tokens(&g, 1000, 0, 0);
    int64_t before = g.margin_ns;
    tokens(&g, 1, 1, 3 * MS);
    assert_true(g.margin_ns > before + 2 * MS);
    tokens(&g, 200, 0, 0);
    assert_int_equal(g.margin_ns, before);
    tokens(&g, 1000, 1, 3 * MS);
    assert_int_equal(g.margin_ns, before + g.cfg.itl_ns / 8); // bounds it
}

// A machine that stands still now and then, less often than the goal allows: no margin would help.
static void rare_standstills_leave_the_margin_alone(void **state) {
    (void)state;
    struct governor g = governor_of(40, 0);
    tokens(&g, 1000, 0, 0);
    int64_t before = g.margin_ns;
    tokens(&g, 200 * 50, 200, 300 * MS);
    tokens(&g, 150, 0, 0);
    assert_int_equal(g.margin_ns, before);
}

static void tokens_without_background_work_leave_the_margin_alone(void **state) {
    (void)state;
    struct governor g = governor_of(40, 0);
    tokens(&g, 1000, 0, 0);
    int64_t before = g.margin_ns;
    for (int i = 0; i < 1000; i++)
        gov_gap(&g, 90 * MS);
    assert_int_equal(g.margin_ns, before);
}

// A machine that was disturbed for a while: the margin left nothing, so no step tells that it is
// over.
static void a_margin_that_leaves_nothing_is_doubted(void **state) {
    (void)state;
    struct governor g = governor_of(40, 0);
    for (int i = 0; i < 1000; i++)
        gov_step(&g, 30 * MS);
    assert_int_equal(allowed(&g, 20 * MS), 0);
    int steps = 0;
    for (; steps < 10000 && !allowed(&g, 20 * MS); steps++)
        gov_gap(&g, 20 * MS);
    assert_true(steps > 100 && steps < 5000);
    // Where there is no slack in any case, the margin is not to blame.
    g = governor_of(40, 0);
    for (int i = 0; i < 1000; i++)
        gov_step(&g, 30 * MS);
    for (int i = 0; i < 10000; i++) {
        assert_int_equal(allowed(&g, -1 * MS), 0);
        gov_gap(&g, 20 * MS);
    }
    assert_int_equal(g.margin_ns, 30 * MS);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(idle_time_is_given_in_slices),
        cmocka_unit_test(tokens_have_time_for_their_way),
        cmocka_unit_test(slack_is_given_but_for_the_margin),
        cmocka_unit_test(overrun_shortens_slices),
        cmocka_unit_test(the_margin_is_what_steps_were_late_by),
        cmocka_unit_test(late_tokens_widen_the_margin_for_a_while),
        cmocka_unit_test(rare_standstills_leave_the_margin_alone),
        cmocka_unit_test(tokens_without_background_work_leave_the_margin_alone),
        cmocka_unit_test(a_margin_that_leaves_nothing_is_doubted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

// SPDX-License-Identifier: Apache-2.0
#include "base/mem.h"
#include "base/metrics.h"
#include "base/thread.h"
#include "tests/support/cmocka_all.h"
#include <math.h>
#include <string.h>

static void test_exposition(void **state) {
    (void)state;
    static const double bounds[] = {0.1, 1};
    struct metrics *m = metrics_create();
    struct metric *c = metrics_counter(m, "a_total", "k=\"x\"", "Things.");
    struct metric *d = metrics_counter(m, "a_total", "k=\"y\"", "Things.");
    struct metric *g = metrics_gauge(m, "b", NULL, "Level.");
    struct histogram *h = metrics_histogram(m, "h_seconds", NULL, "Times.", bounds, 2);
    metrics_alias(m, g, "other:b", "engine=\"0\"", "Level.");
    metrics_alias_histogram(m, h, "other:h", "engine=\"0\"", "Times.");
    assert_null(metrics_gauge(m, "a_total", NULL, "the same name as another kind"));
    metric_add(c, 2);
    metric_add(d, 0.5);
    metric_set(g, -3);
    metric_add(NULL, 1);
    histogram_observe(h, 0.1); // a bound belongs to its bucket
    histogram_observe(h, 0.5);
    histogram_observe(h, 7);
    assert_int_equal(histogram_count(h), 3);
    struct buf out;
    buf_init(&out, 0);
    metrics_expose(m, &out);
    assert_string_equal(out.data, "# HELP a_total Things.\n# TYPE a_total counter\n"
                                  "a_total{k=\"x\"} 2\na_total{k=\"y\"} 0.5\n"
                                  "# HELP b Level.\n# TYPE b gauge\nb -3\n"
                                  "# HELP h_seconds Times.\n# TYPE h_seconds histogram\n"
                                  "h_seconds_bucket{le=\"0.1\"} 1\nh_seconds_bucket{le=\"1\"} 2\n"
                                  "h_seconds_bucket{le=\"+Inf\"} 3\nh_seconds_sum 7.6\n"
                                  "h_seconds_count 3\n"
                                  "# HELP other:b Level.\n# TYPE other:b gauge\n"
                                  "other:b{engine=\"0\"} -3\n"
                                  "# HELP other:h Times.\n# TYPE other:h histogram\n"
                                  "other:h_bucket{engine=\"0\",le=\"0.1\"} 1\n"
                                  "other:h_bucket{engine=\"0\",le=\"1\"} 2\n"
                                  "other:h_bucket{engine=\"0\",le=\"+Inf\"} 3\n"
                                  "other:h_sum{engine=\"0\"} 7.6\nother:h_count{engine=\"0\"} 3\n");
    buf_clear(&out);
    metrics_escape_label(&out, "a\"b\\c\nd");
    assert_string_equal(out.data, "a\\\"b\\\\c\\nd");
    buf_fini(&out);
    metrics_destroy(m);
    assert_int_equal(mem_live_blocks(), 0);
}

// Series that wait for their first number; an alias waits with what it stands for.
static void test_shown_when_used(void **state) {
    (void)state;
    static const double bounds[] = {1};
    struct metrics *m = metrics_create();
    struct metric *always = metrics_counter(m, "a_total", "s=\"200\"", "A"),
                  *seldom = metrics_counter(m, "a_total", "s=\"500\"", "A");
    struct histogram *h = metrics_histogram(m, "h", NULL, "H", bounds, 1);
    metrics_alias(m, seldom, "b_total", NULL, "B");
    metric_when_used(seldom);
    histogram_when_used(h);
    metric_when_used(NULL);
    histogram_when_used(NULL);
    struct buf out;
    for (int i = 0; i < 3; i++) {
        buf_init(&out, 0);
        metrics_expose(m, &out);
        buf_putc(&out, '\0');
        assert_non_null(strstr(out.data, "\na_total{s=\"200\"} "));
        assert_int_equal(strstr(out.data, "\na_total{s=\"500\"} 1\n") != NULL, i > 0);
        assert_int_equal(strstr(out.data, "\nb_total 1\n") != NULL, i > 0);
        assert_int_equal(strstr(out.data, "\nh_count 1\n") != NULL, i > 1);
        assert_int_equal(strstr(out.data, "\nh_bucket") != NULL, i > 1);
        buf_fini(&out);
        if (i == 0) {
            metric_add(always, 1);
            metric_add(seldom, 1);
        }
        histogram_observe(h, i ? 1 : (double)NAN);
    }
    metrics_destroy(m);
}

static void *add_many(void *arg) {
    for (int i = 0; i < 50000; i++)
        metric_add(arg, 1);
    return NULL;
}

static void test_updates_from_threads_are_not_lost(void **state) {
    (void)state;
    struct metrics *m = metrics_create();
    struct metric *c = metrics_counter(m, "n_total", NULL, "N.");
    struct thread t[3];
    for (int i = 0; i < 3; i++)
        assert_int_equal(thread_start(&t[i], "adder", add_many, c), ERR_OK);
    for (int i = 0; i < 3; i++)
        thread_join(&t[i]);
    assert_true(metric_get(c) == 150000.0);
    metrics_destroy(m);
}

static void test_each_failing_allocation(void **state) {
    (void)state;
    static const double bounds[] = {1};
    for (uint64_t n = 1; n < 40; n++) {
        mem_fail_after(n, false);
        struct metrics *m = metrics_create();
        if (m) {
            metric_add(metrics_counter(m, "a_total", "x=\"1\"", "A."), 1);
            histogram_observe(metrics_histogram(m, "h", NULL, "H.", bounds, 1), 2);
        }
        mem_fail_after(0, false);
        struct buf out;
        buf_init(&out, 0);
        if (m)
            metrics_expose(m, &out);
        assert_int_equal(buf_err(&out), ERR_OK);
        buf_fini(&out);
        metrics_destroy(m);
        assert_int_equal(mem_live_blocks(), 0);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_exposition),
        cmocka_unit_test(test_shown_when_used),
        cmocka_unit_test(test_updates_from_threads_are_not_lost),
        cmocka_unit_test(test_each_failing_allocation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

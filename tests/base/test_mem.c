// SPDX-License-Identifier: Apache-2.0
#include "base/mem.h"
#include "tests/support/cmocka_all.h"
#include <string.h>

static void test_fail_the_nth(void **state) {
    (void)state;
    mem_fail_after(2, false);
    void *a = mem_alloc(1), *b = mem_alloc(1), *c = mem_alloc(1);
    assert_non_null(a);
    assert_null(b);
    assert_non_null(c);
    assert_int_equal(mem_fail_count(), 3);
    assert_int_equal(mem_live_blocks(), 2);
    mem_fail_after(1, true);
    assert_null(mem_zalloc(8));
    assert_null(mem_strdup("x"));
    assert_null(mem_aligned(64, 64));
    assert_null(mem_realloc(a, 100)); // a is still there
    assert_null(mem_map(4096));
    mem_fail_after(0, false);
    mem_free(a);
    mem_free(c);
    mem_free(NULL);
    assert_int_equal(mem_live_blocks(), 0);
}

static void test_overflow(void **state) {
    (void)state;
    size_t out = 7;
    assert_false(mem_mul(SIZE_MAX, 2, &out));
    assert_false(mem_add(SIZE_MAX, 1, &out));
    assert_true(mem_mul(6, 7, &out));
    assert_int_equal(out, 42);
    assert_null(mem_calloc(SIZE_MAX / 2, 4));
}

static void test_mapping(void **state) {
    (void)state;
    size_t n = (3u << 20) + 5;
    char *p = mem_map(n);
    assert_non_null(p);
    assert_int_equal((uintptr_t)p % (2u << 20), 0);
    assert_int_equal(p[n - 1], 0);
    memset(p, 1, n);
    mem_map_discard(p, 2u << 20);
    assert_int_equal(p[0], 0);
    assert_int_equal(p[(2u << 20) + 1], 1);
    mem_unmap(p, n);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fail_the_nth),
        cmocka_unit_test(test_overflow),
        cmocka_unit_test(test_mapping),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

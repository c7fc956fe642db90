// SPDX-License-Identifier: Apache-2.0
#include "base/arena.h"
#include "base/mem.h"
#include "tests/support/cmocka_all.h"
#include <string.h>

static void test_blocks_are_aligned_and_apart(void **state) {
    (void)state;
    struct arena a;
    arena_init(&a, 0);
    char *last = NULL;
    for (size_t n = 1; n < 3000; n += 7) {
        char *p = arena_alloc(&a, n);
        assert_non_null(p);
        assert_int_equal((uintptr_t)p % 16, 0);
        memset(p, 0x5a, n);
        assert_ptr_not_equal(p, last);
        last = p;
    }
    arena_fini(&a);
    assert_int_equal(a.used, 0);
}

static void test_limit(void **state) {
    (void)state;
    struct arena a;
    arena_init(&a, 1000);
    assert_non_null(arena_alloc(&a, 900));
    assert_null(arena_alloc(&a, 200));
    assert_null(arena_alloc(&a, SIZE_MAX));
    assert_null(arena_calloc(&a, SIZE_MAX / 2, 3));
    assert_non_null(arena_alloc(&a, 60));
    arena_reset(&a);
    assert_non_null(arena_alloc(&a, 900));
    arena_fini(&a);
}

static void test_strings_and_zeros(void **state) {
    (void)state;
    struct arena a;
    arena_init(&a, 0);
    assert_string_equal(arena_strndup(&a, "abcdef", 3), "abc");
    assert_string_equal(arena_strdup(&a, ""), "");
    int *zeros = arena_calloc(&a, 100, sizeof *zeros);
    for (int i = 0; i < 100; i++)
        assert_int_equal(zeros[i], 0);
    arena_fini(&a);
}

static void test_failing_allocation(void **state) {
    (void)state;
    struct arena a;
    arena_init(&a, 0);
    mem_fail_after(1, true);
    assert_null(arena_alloc(&a, 10));
    mem_fail_after(0, false);
    assert_non_null(arena_alloc(&a, 10));
    arena_fini(&a);
    assert_int_equal(mem_live_blocks(), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_blocks_are_aligned_and_apart),
        cmocka_unit_test(test_limit),
        cmocka_unit_test(test_strings_and_zeros),
        cmocka_unit_test(test_failing_allocation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

// SPDX-License-Identifier: Apache-2.0
#include "base/utf8.h"
#include "tests/support/cmocka_all.h"
#include <string.h>

static void test_every_scalar_round_trips(void **state) {
    (void)state;
    for (uint32_t cp = 0; cp <= 0x10ffff; cp++) {
        char s[4];
        uint32_t back = 1;
        int n = utf8_encode(cp, s);
        bool scalar = cp < 0xd800 || cp > 0xdfff;
        assert_int_equal(utf8_decode(s, (size_t)n, &back), n);
        assert_int_equal(back, scalar ? cp : 0xfffd);
        for (int cut = 1; cut < n; cut++) {
            uint32_t none;
            assert_int_equal(utf8_decode(s, (size_t)cut, &none), 0);
        }
    }
}

static void test_invalid_sequences(void **state) {
    (void)state;
    static const char *const bad[] = {
        "\x80",         "\xc0\xaf",         "\xc1\xbf",         "\xe0\x80\x80",     "\xed\xa0\x80",
        "\xed\xbf\xbf", "\xf0\x80\x80\x80", "\xf4\x90\x80\x80", "\xf5\x80\x80\x80", "\xff",
        "\xe2\x28\xa1", "a\xc3(",
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_false(utf8_valid(bad[i], strlen(bad[i])));
    assert_int_equal(utf8_valid_prefix("a\xc3\xa9\xc3", 4), 3);
    assert_true(utf8_valid("a\0b", 3));
}

static void test_cut_and_count(void **state) {
    (void)state;
    const char *s = "a\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80z";
    size_t ends[] = {0, 1, 1, 3, 3, 3, 6, 6, 6, 6, 10, 11};
    for (size_t n = 0; n <= 11; n++)
        assert_int_equal(utf8_cut(s, n), ends[n]);
    assert_int_equal(utf8_count(s, 11), 5);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_scalar_round_trips),
        cmocka_unit_test(test_invalid_sequences),
        cmocka_unit_test(test_cut_and_count),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

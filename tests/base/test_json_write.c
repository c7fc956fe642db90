// SPDX-License-Identifier: Apache-2.0
#include "base/json_write.h"
#include "tests/support/cmocka_all.h"
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static void test_shapes(void **state) {
    (void)state;
    struct buf b;
    buf_init(&b, 0);
    struct json_w w = json_w_begin(&b);
    jw_obj(&w);
    jw_kint(&w, "i", -9007199254740993);
    jw_key(&w, "a");
    jw_arr(&w);
    jw_bool(&w, true);
    jw_null(&w);
    jw_obj(&w);
    jw_obj_end(&w);
    jw_arr(&w);
    jw_arr_end(&w);
    jw_str(&w, NULL);
    jw_raw(&w, "{\"r\":1}", 7);
    jw_arr_end(&w);
    jw_kstr(&w, "s", "x");
    jw_knum(&w, "n", (double)NAN);
    jw_obj_end(&w);
    assert_string_equal(b.data, "{\"i\":-9007199254740993,\"a\":[true,null,{},[],null,{\"r\":1}],"
                                "\"s\":\"x\",\"n\":null}");
    buf_fini(&b);
}

// Every byte pair as a string: the output parses, and gives the same text where the input was
// valid.
static void test_every_string_is_valid_json(void **state) {
    (void)state;
    struct buf b;
    buf_init(&b, 0);
    for (int i = 0; i < 65536; i++) {
        char s[2] = {(char)(i >> 8), (char)(i & 255)};
        buf_clear(&b);
        struct json_w w = json_w_begin(&b);
        jw_strn(&w, s, 2);
        json_t *v = json_loadb(b.data, b.len, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
        assert_non_null(v);
        if ((i >> 8) < 128 && (i & 255) < 128) {
            assert_int_equal(json_string_length(v), 2);
            assert_memory_equal(json_string_value(v), s, 2);
        }
        assert_null(memchr(b.data, '\n', b.len));
        json_decref(v);
    }
    buf_fini(&b);
}

static void test_numbers_read_back_equal(void **state) {
    (void)state;
    const double values[] = {0, 1, -1.5, 0.1, 1e300, 5e-324, 123456789.123456789, -9999.0, 1.0 / 3};
    struct buf b;
    buf_init(&b, 0);
    for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
        buf_clear(&b);
        struct json_w w = json_w_begin(&b);
        jw_num(&w, values[i]);
        assert_true(strtod(b.data, NULL) == values[i]);
    }
    buf_fini(&b);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shapes),
        cmocka_unit_test(test_every_string_is_valid_json),
        cmocka_unit_test(test_numbers_read_back_equal),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

// SPDX-License-Identifier: Apache-2.0
// Values written again: what Jansson reads of the text is what it read before, and a number that
// came short leaves short. Failing allocations.
#include "base/json_load.h"
#include "base/json_value.h"
#include "base/mem.h"
#include "tests/support/cmocka_all.h"
#include <stdlib.h>
#include <string.h>

static const char *const documents[] = {
    "{}",
    "[]",
    "{\"a\":[1,-2,true,false,null,\"x\"],\"b\":{\"c\":{},\"d\":[[],[[]]]}}",
    "[\"\xc3\xa9\xf0\x9f\x98\x80\",\"\\\"quoted\\\"\\n\\u0001\",\"\"]",
    "{\"zeta\":1,\"alpha\":2,\"\":3}", // in the order that they came in
    "[0.1,1.0,-0.5,0.0001,123456.0,0.3,2.5e-07,1e+300,-0.0,2.2250738585072014e-308]",
    "[9223372036854775807,-9223372036854775808]",
};

static void comes_back_as_it_was(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof documents / sizeof *documents; i++) {
        char *text;
        json_t *was = json_load_text(documents[i], strlen(documents[i]), 0, NULL);
        assert_non_null(was);
        assert_int_equal(json_value_text(was, 0, &text), ERR_OK);
        assert_string_equal(text, documents[i]);
        json_t *is = json_load_text(text, strlen(text), 0, NULL);
        assert_true(json_equal(is, was));
        mem_free(text);
        json_decref(is);
        json_decref(was);
    }
}

// Any double: the text reads back to its bits, and is no longer than 17 digits need.
static void numbers(void **state) {
    (void)state;
    uint64_t x = 1;
    for (int i = 0; i < 20000; i++) {
        double v;
        char *text;
        x = x * 6364136223846793005u + 1442695040888963407u;
        memcpy(&v, &x, sizeof v);
        json_t *was = json_real(v); // NULL: not finite
        if (!was)
            continue;
        assert_int_equal(json_value_text(was, 0, &text), ERR_OK);
        double back = strtod(text, NULL);
        assert_memory_equal(&back, &v, sizeof v);
        assert_true(strlen(text) < 26);
        json_t *is = json_load_text(text, strlen(text), JSON_DECODE_ANY, NULL);
        assert_true(json_is_real(is));
        mem_free(text);
        json_decref(is);
        json_decref(was);
    }
}

static void bounds_and_memory(void **state) {
    (void)state;
    const char *document = documents[2];
    json_t *v = json_load_text(document, strlen(document), 0, NULL);
    char *text;
    assert_int_equal(json_value_text(v, strlen(document) - 1, &text), ERR_LIMIT);
    assert_null(text);
    assert_int_equal(json_value_text(v, 4096, &text), ERR_OK);
    mem_free(text);
    for (uint64_t i = 1; i <= 2; i++) {
        mem_fail_after(i, false);
        assert_int_equal(json_value_text(v, 0, &text), ERR_NOMEM);
        mem_fail_after(0, false);
        assert_null(text);
    }
    json_decref(v);
    struct buf b;
    buf_init(&b, 0);
    struct json_w w = json_w_begin(&b);
    jw_value(&w, NULL);
    assert_int_equal(b.len, 4);
    assert_memory_equal(b.data, "null", 4);
    buf_fini(&b);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(comes_back_as_it_was),
        cmocka_unit_test(numbers),
        cmocka_unit_test(bounds_and_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

// SPDX-License-Identifier: Apache-2.0
#include "base/err.h"
#include "base/utf8.h"
#include "tests/support/cmocka_all.h"
#include <string.h>

// The contract of the API: status and type for the codes that clients see.
static void test_table(void **state) {
    (void)state;
    static const struct {
        enum err e;
        int http;
        const char *type, *code;
    } rows[] = {
        {ERR_INVALID, 400, "invalid_request_error", NULL},
        {ERR_CONTEXT, 400, "invalid_request_error", "context_length_exceeded"},
        {ERR_NO_KEY, 401, "authentication_error", "invalid_api_key"},
        {ERR_PERMISSION, 403, "permission_error", NULL},
        {ERR_NO_MODEL, 404, "invalid_request_error", "model_not_found"},
        {ERR_METHOD, 405, "invalid_request_error", NULL},
        {ERR_TOO_LARGE, 413, "invalid_request_error", NULL},
        {ERR_QUEUE_FULL, 429, "rate_limit_error", "queue_full"},
        {ERR_DRAINING, 503, "server_error", "draining"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        assert_int_equal(err_http_status(rows[i].e), rows[i].http);
        assert_string_equal(err_openai_type(rows[i].e), rows[i].type);
        if (rows[i].code)
            assert_string_equal(err_openai_code(rows[i].e), rows[i].code);
        else
            assert_null(err_openai_code(rows[i].e));
    }
    assert_string_equal(err_name(ERR_NOMEM), "ERR_NOMEM");
    assert_string_equal(err_name((enum err)9999), "ERR_INTERNAL");
}

static void test_messages_are_cut_at_characters(void **state) {
    (void)state;
    struct err_info info;
    char text[2000];
    for (size_t i = 0; i + 3 < sizeof text; i += 3)
        memcpy(text + i, "\xe2\x82\xac", 4);
    assert_int_equal(err_set(&info, ERR_FORMAT, text, "%s", text), ERR_FORMAT);
    assert_true(utf8_valid(info.message, strlen(info.message)));
    assert_true(utf8_valid(info.param, strlen(info.param)));
    assert_true(strlen(info.message) > 500);
    err_prefix(&info, "file %d", 7);
    assert_memory_equal(info.message, "file 7: \xe2\x82\xac", 11);
    assert_true(utf8_valid(info.message, strlen(info.message)));
    assert_int_equal(err_set(NULL, ERR_IO, NULL, "x"), ERR_IO);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_table),
        cmocka_unit_test(test_messages_are_cut_at_characters),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

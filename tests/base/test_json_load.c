// SPDX-License-Identifier: Apache-2.0
// The oracle is json_loadb: the same values and the same errors, for documents, and for each of
// them cut, with a byte taken out, and with one put in. Without memory there is a value that is the
// document's or none.
#include "base/json_load.h"
#include "base/mem.h"
#include "tests/support/cmocka_all.h"
#include "tests/support/temp_folder.h"
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *const documents[] = {
    "{}",
    "[]",
    " \t\r\n{\"a\":1}\n",
    "{\"a\": [1, 2.5, -3e7, true, false, null, \"x\"], \"b\": {\"c\": {}}}",
    "{\"messages\":[{\"role\":\"user\",\"content\":\"A longer text, with \\\"quotes\\\"\"}]}",
    "[\"\\u00e9\\ud83d\\ude00\\n\\\\\", \"\xc3\xa9\xf0\x9f\x98\x80\", \"\"]",
    "{\"a\":1,\n\"b\":2,\n\"a\":3}",
    "[123456789012345678901234567890]",
    "[0.1234567890123456789012345678901234567890, 1e400]",
    "[01] ",
    "{\"a\":1} x",
    "{\"a\":1}\n{}",
    "[1,]",
    "[1}",
    "{\"a\"}",
    "{1:2}",
    "]",
    "\"text\"",
    "\"a text of more than twenty bytes\" 1",
    "12",
    "-",
    "tru",
    "true false",
    "",
    "  \n ",
    "[\"never closed",
    "[\"a backslash at the end\\",
    "[\"\xff\"]",
    "[\"a\nb\"]",
    "[nul]",
    "[\"\\ud83d\"]",
    "[\"\\x\"]",
    "/* no comment */ {}",
};
enum { N = sizeof documents / sizeof *documents };

static void compare(const char *text, size_t len, size_t flags) {
    json_error_t want, got;
    json_t *a = json_loadb(text, len, flags, &want), *b = json_load_text(text, len, flags, &got);
    // Of bytes that are no UTF-8 behind what is wrong already the one may hear before the other.
    bool bytes = strncmp(want.text, "unable to decode", 16) == 0;
    bool same = bytes && !a ? !b
                : a         ? b && json_equal(a, b)
                            : !b && strcmp(want.text, got.text) == 0 && want.line == got.line &&
                          want.column == got.column && want.position == got.position &&
                          json_error_code(&want) == json_error_code(&got);
    if (!same)
        fail_msg("'%.*s': %s '%s' %d:%d %d, not %s '%s' %d:%d %d", (int)len, text,
                 b ? "read" : "refused", got.text, got.line, got.column, got.position,
                 a ? "read" : "refused", want.text, want.line, want.column, want.position);
    json_decref(a);
    json_decref(b);
}

static void test_equal(void **state) {
    (void)state;
    static const size_t flags[] = {0, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, JSON_DECODE_ANY};
    for (size_t f = 0; f < sizeof flags / sizeof *flags; f++)
        for (size_t i = 0; i < N; i++)
            compare(documents[i], strlen(documents[i]), flags[f]);
}

static void test_damaged(void **state) {
    (void)state;
    static const char put[] = "\"\\{}[],:1a \n\0\xc3";
    char text[256];
    for (size_t i = 0; i < N; i++) {
        size_t n = strlen(documents[i]);
        for (size_t at = 0; at <= n; at++) {
            memcpy(text, documents[i], at);
            compare(text, at, JSON_DECODE_ANY);
            if (at < n) {
                memcpy(text + at, documents[i] + at + 1, n - at - 1);
                compare(text, n - 1, JSON_REJECT_DUPLICATES);
            }
            memcpy(text + at + 1, documents[i] + at, n - at);
            for (size_t k = 0; k < sizeof put - 1; k++) {
                text[at] = put[k];
                compare(text, n + 1, k & 1 ? JSON_DECODE_ANY : JSON_ALLOW_NUL);
            }
        }
    }
}

// Tokens of every length about the sizes at which the reader's buffer grows.
static size_t make(char *to, size_t cap, size_t length, int kind) {
    char token[2200];
    memset(token, kind == 1 ? '7' : 'x', length);
    token[length] = '\0';
    if (kind == 2)
        for (size_t i = 0; i + 1 < length; i += 2)
            memcpy(token + i, "\\n", 2);
    int n = kind == 1   ? snprintf(to, cap, "{\"k\":[0.%s,{}],\"z\":\"end\"}", token)
            : kind == 3 ? snprintf(to, cap, "{\"%s\":{\"a\":[[\"b\"]]}}", token)
                        : snprintf(to, cap, "[\"%s\",[\"%s\"],12]", token, token);
    assert_true(n > 0 && (size_t)n < cap);
    return (size_t)n;
}

static void test_without_memory(void **state) {
    (void)state;
    static const size_t lengths[] = {1,   10,  11,   12,   13,   14,   15,   16,  17,  28,
                                     29,  30,  31,   32,   33,   61,   62,   63,  64,  65,
                                     125, 126, 127,  128,  129,  253,  254,  255, 256, 510,
                                     511, 512, 1021, 1022, 1023, 1024, 1025, 2050};
    static char text[5000];
    json_error_t e;
    json_set_alloc_funcs(mem_alloc, mem_free);
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++)
        for (int kind = 0; kind < 4; kind++)
            for (int all = 0; all < 2; all++) {
                size_t n = make(text, sizeof text, lengths[i], kind);
                json_t *want = json_loadb(text, n, 0, &e);
                assert_non_null(want);
                bool whole = false;
                for (uint64_t nth = 1; !whole; nth++) {
                    mem_fail_after(nth, all != 0);
                    json_t *got = json_load_text(text, n, 0, &e);
                    whole = mem_fail_count() < nth;
                    mem_fail_after(0, false);
                    if (whole)
                        assert_true(json_equal(got, want));
                    else if (got || json_error_code(&e) != json_error_out_of_memory)
                        fail_msg("length %zu, kind %d, allocation %d: %s", lengths[i], kind,
                                 (int)nth, got ? "read" : e.text);
                    json_decref(got);
                }
                json_decref(want);
            }
    assert_int_equal(mem_live_blocks(), 0);
    json_set_alloc_funcs(malloc, free);
}

// Where memory comes back behind the failure the reader would go on with what it has lost.
static void test_long_tokens(void **state) {
    (void)state;
    size_t n = 3 << 20;
    char *text = malloc(n + 8);
    json_error_t e;
    assert_non_null(text);
    memset(text, 'y', n + 8);
    memcpy(text, "[\"", 2);
    memcpy(text + n, "\", 1]", 5);
    json_t *o = json_load_text(text, n + 5, 0, &e);
    assert_non_null(o);
    assert_int_equal(json_string_length(json_array_get(o, 0)), n - 2);
    json_decref(o);
    free(text);
}

static void test_file(void **state) {
    (void)state;
    char folder[TEMP_PATH], path[TEMP_PATH + 8];
    temp_folder(folder, "json");
    snprintf(path, sizeof path, "%s/file", folder);
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    assert_null(json_load_fd(fd, 100, 0)); // empty
    assert_int_equal(write(fd, "{\"a\":1}\n", 8), 8);
    json_t *o = json_load_fd(fd, 8, 0);
    assert_int_equal(json_integer_value(json_object_get(o, "a")), 1);
    json_decref(o);
    assert_null(json_load_fd(fd, 7, 0));
    assert_null(json_load_fd(-1, 100, 0));
    close(fd);
    fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    assert_null(json_load_fd(fd, 100000, 0));
    close(fd);
    temp_remove(folder);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_equal),          cmocka_unit_test(test_damaged),
        cmocka_unit_test(test_without_memory), cmocka_unit_test(test_long_tokens),
        cmocka_unit_test(test_file),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

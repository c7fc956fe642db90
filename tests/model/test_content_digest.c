// SPDX-License-Identifier: Apache-2.0
// Digests of tokenizers and chat templates: the same for the same content, whatever the file's
// format and however often it is read; another for each change of what a text becomes.
#include "base/mem.h"
#include "model/source.h"
#include "tests/model/tokenizer_support.h"
#include "tests/support/cmocka_all.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { HEX = 2 * SHA256_BYTES + 1 };

static void digest_of(const struct tokenizer *t, char hex[HEX]) {
    struct err_info info;
    assert_int_equal(tokenizer_digest(t, hex, &info), ERR_OK);
    assert_int_equal(strspn(hex, "0123456789abcdef"), HEX - 1);
}

static void digest_of_model(const char *path, char hex[HEX]) {
    struct mdl_source *s = NULL;
    struct tokenizer *t = NULL;
    struct err_info info;
    if (mdl_source_open(path, &s, &info) || mdl_source_tokenizer(s, &t, &info))
        fail_msg("%s: %s", path, info.message);
    digest_of(t, hex);
    tokenizer_destroy(t);
    mdl_source_close(s);
}

static void test_formats(void **state) {
    (void)state;
    char gguf[HEX], again[HEX], folder[HEX];
    digest_of_model("tests/golden/models/q8_0.gguf", gguf);
    digest_of_model("tests/golden/models/f32.gguf", again);
    digest_of_model("tests/golden/models/hf-f32", folder);
    assert_string_equal(gguf, again); // although the tables' order is random
    assert_string_equal(gguf, folder);
}

static void digest_of_json(const char *json, char hex[HEX]) {
    struct tokenizer *t = NULL;
    struct err_info info;
    if (tokenizer_from_hf(json, strlen(json), NULL, 0, &t, &info))
        fail_msg("%s: %s", info.message, json);
    digest_of(t, hex);
    tokenizer_destroy(t);
}

// Each part stands once in the text and is replaced by another.
static void test_changes(void **state) {
    (void)state;
    static const char base[] =
        "{\"added_tokens\": [{\"id\": 5, \"content\": \"<s>\", \"single_word\": false, \"lstrip\": "
        "false,"
        " \"rstrip\": false, \"normalized\": false, \"special\": true}],"
        " \"pre_tokenizer\": {\"type\": \"Sequence\", \"pretokenizers\": [{\"type\": \"Digits\","
        " \"individual_digits\": true}, {\"type\": \"ByteLevel\", \"add_prefix_space\": false,"
        " \"use_regex\": true}]}, \"decoder\": {\"type\": \"ByteLevel\"},"
        " \"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 0, \"b\": 1, \"c\": 2, \"ab\": 3, "
        "\"bc\": 4},"
        " \"merges\": [\"a b\", \"b c\"]}}";
    static const struct {
        const char *was, *is;
    } changes[] = {
        {"\"a b\", \"b c\"", "\"b c\", \"a b\""},
        {"\"<s>\"", "\"<t>\""},
        {"\"special\": true", "\"special\": false"},
        {"\"lstrip\": false", "\"lstrip\": true"},
        {"\"individual_digits\": true", "\"individual_digits\": false"},
        {"{\"type\": \"Digits\", \"individual_digits\": true}, ", ""},
        {"\"a\": 0, \"b\": 1", "\"b\": 0, \"a\": 1"},
        {"\"c\": 2, \"ab\": 3, \"bc\": 4", "\"d\": 2, \"c\": 6, \"ab\": 3, \"bc\": 4"},
        {"\"type\": \"BPE\"", "\"type\": \"BPE\", \"ignore_merges\": true"},
    };
    char first[HEX], changed[HEX], text[2048];
    digest_of_json(base, first);
    digest_of_json(base, changed);
    assert_string_equal(first, changed);
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) {
        const char *at = strstr(base, changes[i].was);
        assert_non_null(at);
        snprintf(text, sizeof text, "%.*s%s%s", (int)(at - base), base, changes[i].is,
                 at + strlen(changes[i].was));
        digest_of_json(text, changed);
        if (!strcmp(first, changed))
            fail_msg("the digest does not see %s", changes[i].was);
    }
}

static void test_template(void **state) {
    (void)state;
    // Of Python's hashlib.sha256(b"{{ messages }}\n").
    static const char want[] = "7f3de14b4a359865a98f84be7a9314754b7e14e8e23524e2553e4effaa9d18e1";
    static const char text[] = "{{ messages }}\n";
    struct chat_template *t;
    struct err_info info;
    char hex[HEX];
    size_t len;
    assert_int_equal(chat_template_parse(text, sizeof text - 1, &t, &info), ERR_OK);
    assert_int_equal(chat_template_digest(t, hex, &info), ERR_OK);
    assert_string_equal(hex, want);
    const char *kept = chat_template_text(t, &len);
    assert_int_equal(len, sizeof text - 1);
    assert_memory_equal(kept, text, len);
    chat_template_destroy(t);
}

static void test_no_memory(void **state) {
    (void)state;
    struct tokenizer *t = golden_tokenizer("flags");
    char whole[HEX], hex[HEX];
    struct err_info info;
    digest_of(t, whole);
    for (uint64_t n = 1;; n++) {
        mem_fail_after(n, false);
        enum err e = tokenizer_digest(t, hex, &info);
        mem_fail_after(0, false);
        if (!e)
            break;
        assert_int_equal(e, ERR_NOMEM);
    }
    assert_string_equal(hex, whole);
    tokenizer_destroy(t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_formats), cmocka_unit_test(test_changes),
        cmocka_unit_test(test_template), cmocka_unit_test(test_no_memory)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

// SPDX-License-Identifier: Apache-2.0
// Text assembly against a direct definition: decode everything as Python's errors="replace" does,
// then find the stop string that ends first. Every way of cutting the bytes into tokens must give
// that.
#include "base/mem.h"
#include "base/utf8.h"
#include "serving/assemble.h"
#include "tests/support/cmocka_all.h"
#include <stdio.h>
#include <string.h>

struct example {
    const char *bytes; // what the tokens add up to
    const char *stops[4];
    const char *text;      // what must be sent
    const char *with_stop; // the same with include_stop
    bool stopped;
};

// Expected texts were written by hand; those with broken bytes follow Python's
// bytes.decode("utf-8", "replace").
static const struct example examples[] = {
    {"hello", {0}, "hello", "hello", false},
    {"", {0}, "", "", false},
    {"", {"x"}, "", "", false},
    {"abcd", {"cd"}, "ab", "abcd", true},
    {"abcde", {"cd"}, "ab", "abcd", true},
    {"abcX", {"cd"}, "abcX", "abcX", false},
    {"abc", {"cd"}, "abc", "abc", false},
    {"aaab", {"aab"}, "a", "aaab", true},
    {"ababac", {"abac"}, "ab", "ababac", true},
    {"abcd", {"bcd", "c"}, "ab", "abc", true}, // c ends first
    {"abcd", {"d", "bcd"}, "a", "abcd", true}, // both end here: the longer one
    {"abab", {"b", "ab"}, "", "ab", true},     //
    {"x\n\nUser:", {"\n\nUser:", "\n\n"}, "x", "x\n\n", true},
    {"\xc3\xa9t\xc3\xa9!", {"t\xc3\xa9"}, "\xc3\xa9", "\xc3\xa9t\xc3\xa9", true},
    {"\xf0\x9f\x98\x80\xf0\x9f\x98\x81",
     {"\xf0\x9f\x98\x81"},
     "\xf0\x9f\x98\x80",
     "\xf0\x9f\x98\x80\xf0\x9f\x98\x81",
     true},
    // A stop string that shares its first bytes with another character.
    {"\xf0\x9f\x98\x82.", {"\xf0\x9f\x98\x81"}, "\xf0\x9f\x98\x82.", "\xf0\x9f\x98\x82.", false},
    {"a\xf0\x9f\x98", {0}, "a\xef\xbf\xbd", "a\xef\xbf\xbd", false},
    {"a\xf0\x9f\x98"
     "b",
     {0},
     "a\xef\xbf\xbd"
     "b",
     "a\xef\xbf\xbd"
     "b",
     false},
    {"\xff\x80"
     "b\xc3",
     {0},
     "\xef\xbf\xbd\xef\xbf\xbd"
     "b\xef\xbf\xbd",
     "\xef\xbf\xbd\xef\xbf\xbd"
     "b\xef\xbf\xbd",
     false},
    {"\xe2\x82\xe2\x82\xac", {0}, "\xef\xbf\xbd\xe2\x82\xac", "\xef\xbf\xbd\xe2\x82\xac", false},
    {"\xed\xa0\x80",
     {0},
     "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd",
     "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd",
     false},                                                        // a surrogate
    {"ab\xf0\x9f", {"b\xef\xbf\xbd"}, "a", "ab\xef\xbf\xbd", true}, // found at the very end
    {"end", {"endless"}, "end", "end", false},
};

static void run_split(const struct example *x, const size_t *cuts, size_t n_cuts, bool include) {
    size_t lens[4] = {0}, n = 0;
    while (n < 4 && x->stops[n]) {
        lens[n] = strlen(x->stops[n]);
        n++;
    }
    struct asm_config cfg = {
        .stops = x->stops, .stop_lens = lens, .n_stops = n, .include_stop = include};
    struct assembler a;
    struct buf all, part;
    assembler_init(&a, &cfg);
    buf_init(&all, 0);
    buf_init(&part, 0);
    size_t at = 0, len = strlen(x->bytes);
    for (size_t i = 0; i <= n_cuts; i++) {
        size_t to = i < n_cuts ? cuts[i] : len;
        buf_clear(&part);
        assert_int_equal(assembler_push(&a, x->bytes + at, to - at, &part), ERR_OK);
        assert_true(utf8_valid(part.data, part.len)); // each piece by itself
        buf_append(&all, part.data, part.len);
        at = to;
    }
    buf_clear(&part);
    assert_int_equal(assembler_end(&a, &part), ERR_OK);
    assert_true(utf8_valid(part.data, part.len));
    buf_append(&all, part.data, part.len);
    const char *want = include ? x->with_stop : x->text;
    assert_int_equal(all.len, strlen(want));
    if (all.len)
        assert_memory_equal(all.data, want, all.len);
    assert_int_equal(a.stopped, x->stopped);
    assert_int_equal(a.sent, all.len);
    assembler_fini(&a);
    buf_fini(&all);
    buf_fini(&part);
}

static void every_split_gives_the_same_text(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof examples / sizeof *examples; i++) {
        size_t len = strlen(examples[i].bytes);
        for (uint32_t mask = 0; mask < 1u << (len ? len - 1 : 0); mask++) {
            size_t cuts[16], n = 0;
            for (size_t b = 1; b < len; b++)
                if (mask >> (b - 1) & 1)
                    cuts[n++] = b;
            run_split(&examples[i], cuts, n, false);
            run_split(&examples[i], cuts, n, true);
        }
    }
}

static void only_a_possible_stop_is_held_back(void **state) {
    (void)state;
    const char *stops[] = {"</s>", "STOP"};
    size_t lens[] = {4, 4};
    struct asm_config cfg = {.stops = stops, .stop_lens = lens, .n_stops = 2};
    struct assembler a;
    struct buf out;
    assembler_init(&a, &cfg);
    buf_init(&out, 0);
    const struct {
        const char *in, *sent;
    } steps[] = {
        {"one ", "one "}, {"S", ""},  {"T", ""},         {"A", "STA"},
        {"<", ""},        {"/", ""},  {"b<", "</b"},     {"/s", ""},
        {"S", "</s"},     {"TO", ""}, {"x\xc3", "STOx"}, {"\xa9", "\xc3\xa9"},
    };
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
        buf_clear(&out);
        assert_int_equal(assembler_push(&a, steps[i].in, strlen(steps[i].in), &out), ERR_OK);
        assert_int_equal(out.len, strlen(steps[i].sent));
        if (out.len)
            assert_memory_equal(out.data, steps[i].sent, out.len);
    }
    assembler_fini(&a);
    buf_fini(&out);
}

// min_tokens: what ends in a deaf push does not stop; what only begins in it does.
static void a_deaf_push_does_not_stop(void **state) {
    (void)state;
    const char *stops[] = {"ab"};
    size_t lens[] = {2};
    struct asm_config cfg = {.stops = stops, .stop_lens = lens, .n_stops = 1};
    struct assembler a;
    struct buf out;
    assembler_init(&a, &cfg);
    buf_init(&out, 0);
    a.deaf = true;
    assert_int_equal(assembler_push(&a, "xaby", 4, &out), ERR_OK);
    assert_int_equal(assembler_push(&a, "aba", 3, &out), ERR_OK);
    assert_false(a.stopped);
    a.deaf = false;
    assert_int_equal(assembler_push(&a, "bz", 2, &out), ERR_OK);
    assert_true(a.stopped);
    assert_string_equal(out.data, "xabyab");
    assembler_fini(&a);
    buf_fini(&out);
}

static void text_after_a_stop_is_ignored(void **state) {
    (void)state;
    const char *stops[] = {"."};
    size_t lens[] = {1};
    struct asm_config cfg = {.stops = stops, .stop_lens = lens, .n_stops = 1};
    struct assembler a;
    struct buf out;
    assembler_init(&a, &cfg);
    buf_init(&out, 0);
    assert_int_equal(assembler_push(&a, "a.b", 3, &out), ERR_OK);
    assert_int_equal(assembler_push(&a, "c", 1, &out), ERR_OK);
    assert_int_equal(assembler_end(&a, &out), ERR_OK);
    assert_string_equal(out.data, "a");
    assembler_fini(&a);
    buf_fini(&out);
}

static void a_failed_allocation_is_an_error(void **state) {
    (void)state;
    struct asm_config cfg = {0};
    for (uint64_t n = 1; n <= 2; n++) {
        struct assembler a;
        struct buf out;
        assembler_init(&a, &cfg);
        buf_init(&out, 0);
        mem_fail_after(n, true);
        enum err e = assembler_push(&a, "ab", 2, &out);
        mem_fail_after(0, false);
        assert_int_equal(e, ERR_NOMEM);
        assembler_fini(&a);
        buf_fini(&out);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_split_gives_the_same_text),
        cmocka_unit_test(only_a_possible_stop_is_held_back),
        cmocka_unit_test(a_deaf_push_does_not_stop),
        cmocka_unit_test(text_after_a_stop_is_ignored),
        cmocka_unit_test(a_failed_allocation_is_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

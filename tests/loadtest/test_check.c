// SPDX-License-Identifier: Apache-2.0
// What the load tester says of answers: whole ones, each kind of fault, however the bytes are cut;
// and with each allocation failing, when an answer may be found faulty and nothing else happens.
#include "base/mem.h"
#include "loadtest/check.h"
#include "tests/support/cmocka_all.h"
#include <jansson.h>
#include <string.h>

#define CHUNK(text, finish)                                                                        \
    "data: {\"choices\":[{\"index\":0,\"text\":\"" text "\",\"finish_reason\":" finish "}]}\n\n"
#define USAGE                                                                                      \
    "data: "                                                                                       \
    "{\"choices\":[],\"usage\":{\"prompt_tokens\":3,\"completion_tokens\":2,\"total_tokens\":5}}"  \
    "\n\n"
#define DONE "data: [DONE]\n\n"

static const struct {
    const char *bytes;
    enum lt_fault fault;
} streams[] = {
    {CHUNK("a", "null") CHUNK("b", "\"stop\"") USAGE DONE, LT_FAULT_NONE},
    {": comment\n\n" CHUNK("a", "null") CHUNK("b", "\"length\"") USAGE DONE, LT_FAULT_NONE},
    {CHUNK("a\\u0000b", "null") CHUNK("b", "\"stop\"") USAGE DONE, LT_FAULT_NONE},
    {CHUNK("a", "null") USAGE DONE, LT_FAULT_FINISH},
    {CHUNK("a", "\"stop\"") CHUNK("b", "\"stop\"") USAGE DONE, LT_FAULT_FINISH},
    {CHUNK("a", "\"stop\"") USAGE, LT_FAULT_FINISH},
    {CHUNK("a", "\"stop\"") DONE, LT_FAULT_USAGE},
    {CHUNK("a", "\"stop\"") USAGE DONE USAGE, LT_FAULT_FRAMING},
    {"data: {\"choices\":[}\n\n" DONE, LT_FAULT_JSON},
    {"data: [1]\n\n" DONE, LT_FAULT_JSON},
    {"data: {\"error\":{\"message\":\"no\"}}\n\n" DONE, LT_FAULT_ERROR},
    {"event: x\n\n", LT_FAULT_FRAMING},
    {CHUNK("a", "\"stop\"") USAGE "data: ", LT_FAULT_FRAMING},
};
enum { STREAMS = sizeof streams / sizeof *streams };

static enum lt_fault check(const char *bytes, size_t piece, bool stream) {
    struct lt_answer a;
    size_t n = strlen(bytes);
    lt_answer_init(&a, stream, false);
    for (size_t at = 0; at < n; at += piece)
        (void)lt_answer_feed(&a, bytes + at, n - at < piece ? n - at : piece);
    lt_answer_end(&a, 2);
    enum lt_fault f = a.fault;
    lt_answer_fini(&a);
    return f;
}

static void test_streams(void **state) {
    (void)state;
    static const size_t pieces[] = {1, 7, 4096};
    for (int i = 0; i < STREAMS; i++)
        for (size_t k = 0; k < 3; k++)
            assert_string_equal(lt_fault_name(check(streams[i].bytes, pieces[k], true)),
                                lt_fault_name(streams[i].fault));
}

static const char body[] =
    "{\"choices\":[{\"index\":0,\"text\":\"a\",\"finish_reason\":\"stop\"}],"
    "\"usage\":{\"prompt_tokens\":3,\"completion_tokens\":2,\"total_tokens\":5}}";

static void test_body(void **state) {
    (void)state;
    assert_int_equal(check(body, 10, false), LT_FAULT_NONE);
    assert_int_equal(check("{", 10, false), LT_FAULT_JSON);
    assert_int_equal(check("", 10, false), LT_FAULT_JSON);
}

// Long, so that the reader's buffer has to grow.
#define LONG                                                                                       \
    "a text that is longer than what the reader of strings begins with, and than that twice over"
static const char long_stream[] = CHUNK(LONG, "null") CHUNK("b", "\"stop\"") USAGE DONE;

static void test_failing_allocations(void **state) {
    (void)state;
    int64_t live = mem_live_blocks();
    mem_fail_after(0, false);
    assert_int_equal(check(long_stream, 30, true), LT_FAULT_NONE);
    uint64_t n = mem_fail_count();
    assert_true(n > 20);
    for (uint64_t i = 1; i <= n; i++)
        for (int for_good = 0; for_good < 2; for_good++) {
            mem_fail_after(i, for_good);
            enum lt_fault f = check(long_stream, 30, true);
            mem_fail_after(0, false);
            assert_int_not_equal(f, LT_FAULT_NONE); // what was not read cannot be called right
            assert_int_equal(mem_live_blocks(), live);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_streams),
        cmocka_unit_test(test_body),
        cmocka_unit_test(test_failing_allocations),
    };
    json_set_alloc_funcs(mem_alloc, mem_free);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

// SPDX-License-Identifier: Apache-2.0
// Fuzzes the guarded reading of JSON: the input's first byte says which allocation fails (0: none),
// the rest is the document. Without a failure it must give what json_loadb gives, with one nothing
// or the document. A document that is nested as deep as the library allows is one level too deep
// here.
#include "base/json_load.h"
#include "base/mem.h"
#include "tests/fuzz/fuzz.h"
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { DEEPEST = 2048 }; // JSON_PARSER_MAX_DEPTH of the library

static bool same_error(const json_error_t *a, const json_error_t *b) {
    // Of bytes that are no UTF-8 behind what is wrong already the one may hear before the other.
    if (!strncmp(a->text, "unable to decode", 16))
        return true;
    return !strcmp(a->text, b->text) && a->line == b->line && a->column == b->column &&
           json_error_code(a) == json_error_code(b);
}

static bool is_too_deep(const char *text, size_t n, const json_error_t *e) {
    int opened = 1; // what stands innermost counts as a level, too
    for (size_t i = 0; i < n; i++)
        opened += text[i] == '[' || text[i] == '{';
    return json_error_code(e) == json_error_stack_overflow && opened >= DEEPEST;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size < 1)
        return 0;
    const char *text = (const char *)data + 1;
    const size_t n = size - 1, flags = data[0] & 1 ? JSON_DECODE_ANY : JSON_REJECT_DUPLICATES;
    json_error_t want, got;
    json_set_alloc_funcs(mem_alloc, mem_free);
    json_t *whole = json_loadb(text, n, flags, &want);
    if (data[0] >> 1)
        mem_fail_after(data[0] >> 1, false);
    json_t *value = json_load_text(text, n, flags, &got);
    const bool failed = data[0] >> 1 && mem_fail_count() >= data[0] >> 1;
    mem_fail_after(0, false);
    // Behind a number the library does not see a NUL.
    const bool unlike = memchr(text, 0, n) || (!value && is_too_deep(text, n, &got));
    if (failed)
        fuzz_require(!value);
    else if (!unlike)
        fuzz_require(whole ? value && json_equal(whole, value) : !value && same_error(&want, &got));
    json_decref(value);
    json_decref(whole);
    fuzz_require(mem_live_blocks() == 0);
    return 0;
}

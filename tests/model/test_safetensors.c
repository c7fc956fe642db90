// SPDX-License-Identifier: Apache-2.0
// The header of safetensors files, against the verdicts of the `safetensors` package
// (tests/golden/safetensors/), and what errors say.
#include "base/mem.h"
#include "model/safetensors.h"
#include "tests/support/cmocka_all.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_FILE = 2048 };

// Opens a whole file's bytes as the folder's reader does. The header is copied to a block of its
// own size, so that a sanitizer sees the first byte read beyond it.
static enum err parse_file(const uint8_t *p, size_t n, struct st_header *h, struct err_info *info) {
    uint8_t first[8] = {0};
    size_t len;
    *info = (struct err_info){.code = ERR_OK};
    if (n)
        memcpy(first, p, n < 8 ? n : 8);
    enum err e = st_header_length(first, n, &len, info);
    if (e)
        return e;
    char *json = mem_alloc(len);
    if (!json)
        return ERR_NOMEM;
    memcpy(json, p + 8, len);
    return st_parse(json, len, n, h, info);
}

static size_t file_of(const char *header, size_t data, uint8_t out[MAX_FILE]) {
    size_t n = strlen(header);
    assert_true(8 + n + data <= MAX_FILE);
    memset(out, 0, 8 + n + data);
    out[0] = (uint8_t)n;
    out[1] = (uint8_t)(n >> 8);
    memcpy(out + 8, header, n);
    return 8 + n + data;
}

static size_t unhex(const char *s, uint8_t out[MAX_FILE]) {
    size_t n = 0;
    for (; s[0] && s[1]; s += 2) {
        char two[3] = {s[0], s[1], '\0'};
        assert_true(n < MAX_FILE);
        out[n++] = (uint8_t)strtoul(two, NULL, 16);
    }
    return n;
}

static void test_verdicts(void **state) {
    (void)state;
    static char line[2 * MAX_FILE + 200];
    static uint8_t file[MAX_FILE];
    char verdict[16], name[64], *hex;
    int n_cases = 0, n_taken = 0, at;
    FILE *f = fopen("tests/golden/safetensors/cases.txt", "r");
    assert_non_null(f);
    int64_t live = mem_live_blocks();
    while (fgets(line, sizeof line, f)) {
        struct st_header h;
        struct err_info info;
        line[strcspn(line, "\n")] = '\0';
        assert_int_equal(sscanf(line, "%15s %63s %n", verdict, name, &at), 2);
        hex = line + at;
        size_t n = strcmp(hex, "-") == 0 ? 0 : unhex(hex, file);
        enum err e = parse_file(file, n, &h, &info);
        bool want = strcmp(verdict, "accept") == 0;
        if (want != (e == ERR_OK) || (e && !info.message[0]))
            fail_msg("%s should be %s: %s: %s", name, verdict, err_name(e), info.message);
        if (!e) {
            st_fini(&h);
            n_taken++;
        }
        n_cases++;
        assert_int_equal(mem_live_blocks(), live);
    }
    fclose(f);
    assert_true(n_cases > 80 && n_taken > 20);
}

static void test_content(void **state) {
    (void)state;
    static uint8_t file[MAX_FILE];
    struct st_header h;
    struct err_info info;
    size_t n = file_of("{\"b\":{\"dtype\":\"BF16\",\"shape\":[2,1,3],\"data_offsets\":[8,20]},"
                       "\"__metadata__\":{\"format\":\"pt\",\"a\":\"\\u00e9\\n\"},"
                       "\"a\\/\\\"\":{\"data_offsets\":[0,8],\"shape\":[],\"dtype\":\"F64\"}}  ",
                       20, file);
    assert_int_equal(parse_file(file, n, &h, &info), ERR_OK);
    assert_int_equal(h.n_tensors, 2);
    assert_string_equal(h.tensors[0].name, "a/\"");
    assert_int_equal(h.tensors[0].dtype, ST_F64);
    assert_int_equal(h.tensors[0].n_dims, 0);
    assert_int_equal(h.tensors[0].begin, n - 20);
    assert_int_equal(h.tensors[0].end, n - 12);
    assert_string_equal(h.tensors[1].name, "b");
    assert_string_equal(st_dtype_name(h.tensors[1].dtype), "BF16");
    assert_int_equal(h.tensors[1].n_dims, 3);
    assert_int_equal(h.tensors[1].dims[0], 2);
    assert_int_equal(h.tensors[1].dims[2], 3);
    assert_int_equal(h.tensors[1].end, n);
    assert_int_equal(h.n_meta, 2);
    assert_string_equal(h.meta[0].key, "a");
    assert_string_equal(h.meta[0].value, "\xc3\xa9\n");
    assert_string_equal(h.meta[1].key, "format");
    assert_string_equal(h.meta[1].value, "pt");
    st_fini(&h);
}

#define ENTRY(shape, offsets)                                                                      \
    "{\"layer.x\":{\"dtype\":\"F32\",\"shape\":" shape ",\"data_offsets\":" offsets "}}"

static const struct {
    const char *header;
    size_t data;
    const char *says;
} messages[] = {
    {ENTRY("[2,4]", "[0,24]"), 24,
     "tensor layer.x: shape and dtype make 32 bytes, data_offsets 24 (header byte 62)"},
    {ENTRY("[6]", "[0,24]"), 20, "tensor layer.x ends at 24 of the data, but the file has only 20"},
    {ENTRY("[6]", "[0,24]"), 30, "the tensors end at 24 of the data, but the file has 30"},
    {ENTRY("[6]", "[4,28]"), 28, "tensor layer.x begins at 4 of the data, but the one before"},
    {ENTRY("[4611686018427387910]", "[0,24]"), 24, "layer.x: the shape's product overflows"},
    {ENTRY("[-6]", "[0,24]"), 24, "layer.x: a dimension must be an integer"},
    {"{\"layer.x\":{\"dtype\":\"F4\",\"shape\":[6],\"data_offsets\":[0,24]}}", 24,
     "tensor layer.x: unknown dtype F4"},
    {"{\"layer.x\":1}", 0, "layer.x: a tensor's entry must be an object (header byte 11)"},
};

static void test_messages(void **state) {
    (void)state;
    static uint8_t file[MAX_FILE];
    for (size_t i = 0; i < sizeof messages / sizeof *messages; i++) {
        struct st_header h;
        struct err_info info;
        size_t n = file_of(messages[i].header, messages[i].data, file);
        enum err e = parse_file(file, n, &h, &info);
        assert_true(e == ERR_FORMAT || e == ERR_UNSUPPORTED);
        if (!strstr(info.message, messages[i].says))
            fail_msg("case %zu: %s", i, info.message);
    }
}

static const char sample[] =
    "{\"__metadata__\":{\"format\":\"pt\"},\"a\":{\"dtype\":\"F32\",\"shape\":[2,3],"
    "\"data_offsets\":[0,24]},\"b\\/\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[24,24]},"
    "\"c\":{\"dtype\":\"F16\",\"shape\":[4],\"data_offsets\":[24,32]}}   ";

static void test_every_prefix(void **state) {
    (void)state;
    static uint8_t file[MAX_FILE];
    struct st_header h;
    struct err_info info;
    size_t n = file_of(sample, 32, file);
    int64_t live = mem_live_blocks();
    assert_int_equal(parse_file(file, n, &h, &info), ERR_OK);
    st_fini(&h);
    for (size_t cut = 0; cut < n; cut++) {
        assert_int_equal(parse_file(file, cut, &h, &info), ERR_FORMAT);
        // The length in the file shortened with it: the JSON itself ends early.
        if (cut >= 8) {
            uint8_t keep[2] = {file[0], file[1]};
            file[0] = (uint8_t)(cut - 8);
            file[1] = (uint8_t)((cut - 8) >> 8);
            assert_true(parse_file(file, cut, &h, &info) != ERR_OK);
            memcpy(file, keep, 2);
        }
        assert_int_equal(mem_live_blocks(), live);
    }
}

static void test_flipped_bits(void **state) {
    (void)state;
    static uint8_t file[MAX_FILE];
    struct st_header h;
    struct err_info info;
    size_t n = file_of(sample, 32, file);
    int64_t live = mem_live_blocks();
    for (size_t bit = 0; bit < 8 * (n - 32); bit++) {
        file[bit / 8] ^= (uint8_t)(1u << bit % 8);
        if (parse_file(file, n, &h, &info) == ERR_OK)
            st_fini(&h);
        file[bit / 8] ^= (uint8_t)(1u << bit % 8);
        assert_int_equal(mem_live_blocks(), live);
    }
}

static void test_allocation_failures(void **state) {
    (void)state;
    static uint8_t file[MAX_FILE];
    struct st_header h;
    struct err_info info;
    size_t n = file_of("{\"__metadata__\":{\"a\":\"b\"},\"x\":{\"dtype\":\"U8\",\"shape\":[1],"
                       "\"data_offsets\":[0,1]}}",
                       1, file);
    int64_t live = mem_live_blocks();
    enum err e = ERR_NOMEM;
    uint64_t nth = 1;
    for (; e; nth++) {
        mem_fail_after(nth, false);
        e = parse_file(file, n, &h, &info);
        mem_fail_after(0, false);
        assert_true(e == ERR_OK || e == ERR_NOMEM);
        if (e == ERR_OK)
            st_fini(&h);
        assert_int_equal(mem_live_blocks(), live);
    }
    assert_int_equal(nth, 5); // header, metadata, tensors each failed once
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_verdicts),     cmocka_unit_test(test_content),
        cmocka_unit_test(test_messages),     cmocka_unit_test(test_every_prefix),
        cmocka_unit_test(test_flipped_bits), cmocka_unit_test(test_allocation_failures),
    };
    return cmocka_run_group_tests_name("safetensors", tests, NULL, NULL);
}

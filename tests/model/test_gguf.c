// SPDX-License-Identifier: Apache-2.0
// The structure of GGUF files: what is read, and what is refused and how the error says so. Reading
// whole models is compared with the gguf package in test_source.c.
#include "base/mem.h"
#include "model/gguf.h"
#include "tests/model/gguf_build.h"
#include "tests/support/cmocka_all.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { F32 = 0, Q8_0 = 8 }; // tensor types
enum { U8, I8, U16, I16, U32, I32, FLT32, BOOL, STR, ARR, U64, I64, FLT64 };

static enum err parse(const uint8_t *p, size_t n, struct gguf *g, struct err_info *info) {
    *info = (struct err_info){.code = ERR_OK};
    return gguf_parse(p, n, n, g, info);
}

// A small sound file: every value type, and two tensors.
static void build_sample(struct gguf_build *b) {
    const uint64_t matrix[] = {32, 3}, vector[] = {5};
    const float half = 0.5f;
    const double third = 1.0 / 3;
    gb_init(b);
    gb_str(b, "s", "text");
    gb_u32(b, "u32", 4000000000u);
    gb_key(b, "u8", U8);
    gb_raw(b, "\xff", 1);
    gb_key(b, "i8", I8);
    gb_raw(b, "\xff", 1);
    gb_key(b, "u16", U16);
    gb_raw(b, "\x34\x92", 2);
    gb_key(b, "i16", I16);
    gb_raw(b, "\x34\x92", 2);
    gb_key(b, "i32", I32);
    gb_raw32(b, 0x80000000u);
    gb_key(b, "u64", U64);
    gb_raw64(b, UINT64_MAX);
    gb_key(b, "i64", I64);
    gb_raw64(b, UINT64_MAX);
    gb_key(b, "f32", FLT32);
    gb_raw(b, &half, 4);
    gb_key(b, "f64", FLT64);
    gb_raw(b, &third, 8);
    gb_key(b, "yes", BOOL);
    gb_raw(b, "\1", 1);
    gb_key(b, "strings", ARR);
    gb_raw32(b, STR);
    gb_raw64(b, 3);
    gb_raw_str(b, "a");
    gb_raw_str(b, "");
    gb_raw_str(b, "ccc");
    gb_key(b, "ints", ARR);
    gb_raw32(b, I32);
    gb_raw64(b, 2);
    gb_raw32(b, 7);
    gb_raw32(b, (uint32_t)-7);
    gb_key(b, "nested", ARR); // [[1, 2], []] of uint8
    gb_raw32(b, ARR);
    gb_raw64(b, 2);
    gb_raw32(b, U8);
    gb_raw64(b, 2);
    gb_raw(b, "\1\2", 2);
    gb_raw32(b, U8);
    gb_raw64(b, 0);
    gb_tensor(b, "second", 1, vector, F32, 128);
    gb_tensor(b, "first", 2, matrix, Q8_0, 0);
    b->data_bytes = 148;
}

static void expect_int(const struct gguf *g, const char *key, int64_t want) {
    int64_t v = 12345;
    assert_int_equal(gguf_int(g, key, INT64_MIN, INT64_MAX, &v, NULL), ERR_OK);
    assert_int_equal(v, want);
}

static void test_values(void **state) {
    (void)state;
    struct gguf_build b;
    struct gguf g;
    struct err_info info;
    size_t n;
    build_sample(&b);
    uint8_t *p = gb_finish(&b, &n);
    assert_int_equal(parse(p, n, &g, &info), ERR_OK);
    expect_int(&g, "u8", 255);
    expect_int(&g, "i8", -1);
    expect_int(&g, "u16", 0x9234);
    expect_int(&g, "i16", 0x9234 - 0x10000);
    expect_int(&g, "u32", 4000000000);
    expect_int(&g, "i32", INT32_MIN);
    expect_int(&g, "i64", -1);
    expect_int(&g, "absent", 12345);
    int64_t v = 5;
    assert_int_equal(gguf_int(&g, "u64", 0, INT64_MAX, &v, &info), ERR_FORMAT);
    assert_non_null(strstr(info.message, "u64"));
    assert_int_equal(gguf_int(&g, "u8", 0, 254, &v, &info), ERR_FORMAT);
    assert_int_equal(gguf_int(&g, "i8", 0, 254, &v, &info), ERR_FORMAT);
    assert_int_equal(gguf_int(&g, "f32", 0, 254, &v, &info), ERR_FORMAT);
    assert_int_equal(v, 5);

    float f = 0;
    bool yes = false;
    struct tok_str s = {NULL, 0};
    assert_int_equal(gguf_float(&g, "f32", &f, NULL), ERR_OK);
    assert_true(fabsf(f - 0.5f) < 1e-9f);
    assert_int_equal(gguf_float(&g, "f64", &f, NULL), ERR_OK);
    assert_true(fabsf(f - 1.0f / 3) < 1e-7f);
    assert_int_equal(gguf_float(&g, "u8", &f, NULL), ERR_FORMAT);
    assert_int_equal(gguf_bool(&g, "yes", &yes, NULL), ERR_OK);
    assert_true(yes);
    assert_int_equal(gguf_bool(&g, "u8", &yes, NULL), ERR_FORMAT);
    assert_int_equal(gguf_string(&g, "s", &s, NULL), ERR_OK);
    assert_int_equal(s.n, 4);
    assert_memory_equal(s.p, "text", 4);
    assert_int_equal(gguf_string(&g, "strings", &s, NULL), ERR_FORMAT);
    gguf_fini(&g);
    free(p);
}

static void test_arrays_and_tensors(void **state) {
    (void)state;
    struct gguf_build b;
    struct gguf g;
    struct err_info info;
    struct tok_str *strings = NULL;
    int32_t *ints = NULL;
    size_t n, count = 0;
    build_sample(&b);
    uint8_t *p = gb_finish(&b, &n);
    assert_int_equal(parse(p, n, &g, &info), ERR_OK);
    assert_int_equal(gguf_strings(&g, "strings", &strings, &count, NULL), ERR_OK);
    assert_int_equal(count, 3);
    assert_int_equal(strings[1].n, 0);
    assert_memory_equal(strings[2].p, "ccc", 3);
    assert_int_equal(gguf_int32s(&g, "ints", &ints, &count, NULL), ERR_OK);
    assert_int_equal(count, 2);
    assert_int_equal(ints[0], 7);
    assert_int_equal(ints[1], -7);
    mem_free(strings);
    mem_free(ints);
    assert_int_equal(gguf_strings(&g, "ints", &strings, &count, &info), ERR_FORMAT);
    assert_int_equal(gguf_int32s(&g, "strings", &ints, &count, &info), ERR_FORMAT);
    assert_int_equal(gguf_find(&g, "nested")->count, 2);

    assert_int_equal(g.n_tensors, 2);
    const struct gguf_tensor *t = &g.tensors[0]; // by offset
    assert_memory_equal(t->name.p, "first", 5);
    assert_int_equal(t->dtype, KN_Q8_0);
    assert_int_equal(t->n_dims, 2);
    assert_int_equal(t->dims[0], 3); // outermost first
    assert_int_equal(t->dims[1], 32);
    assert_int_equal(t->bytes, 3 * 34);
    assert_int_equal(t->offset, g.data_begin);
    assert_int_equal(t[1].offset, g.data_begin + 128);
    assert_int_equal(t[1].offset + t[1].bytes, n);
    gguf_fini(&g);
    free(p);
}

// Cut anywhere, the file is malformed; read only that far, it asks for more.
static void test_every_prefix(void **state) {
    (void)state;
    struct gguf_build b;
    struct gguf g;
    struct err_info info;
    size_t n;
    build_sample(&b);
    uint8_t *p = gb_finish(&b, &n);
    assert_int_equal(parse(p, n, &g, &info), ERR_OK);
    size_t header = g.len;
    gguf_fini(&g);
    int64_t live = mem_live_blocks();
    for (size_t cut = 0; cut < n; cut++) {
        uint8_t *q = malloc(cut ? cut : 1);
        assert_non_null(q);
        memcpy(q, p, cut);
        assert_int_equal(parse(q, cut, &g, &info), ERR_FORMAT);
        assert_true(strlen(info.message) > 0);
        enum err want = cut < header ? ERR_AGAIN : ERR_OK;
        assert_int_equal(gguf_parse(q, cut, n, &g, &info), want);
        if (want == ERR_OK)
            gguf_fini(&g);
        assert_int_equal(mem_live_blocks(), live);
        free(q);
    }
    free(p);
}

static void one_tensor(struct gguf_build *b, uint64_t d0, uint64_t d1, uint32_t type,
                       uint64_t offset) {
    const uint64_t dims[] = {d0, d1};
    gb_tensor(b, "the.tensor", 2, dims, type, offset);
    b->data_bytes = 64;
}

static void bad_version_1(struct gguf_build *b) {
    b->version = 1;
}
static void bad_version_4(struct gguf_build *b) {
    b->version = 4;
}
static void bad_big_endian(struct gguf_build *b) {
    b->version = 3u << 24;
}
static void bad_kv_count(struct gguf_build *b) {
    b->n_kv = UINT64_MAX;
}
static void bad_kv_count_one_more(struct gguf_build *b) {
    gb_u32(b, "k", 1);
    b->n_kv++;
}
static void bad_tensor_count(struct gguf_build *b) {
    b->n_tensors = 1ull << 60;
}
static void bad_tensor_count_in_memory(struct gguf_build *b) {
    b->n_tensors = 65536; // would be megabytes of table for a file of a few bytes
}
static void bad_empty_key(struct gguf_build *b) {
    gb_u32(b, "", 1);
}
static void bad_control_key(struct gguf_build *b) {
    gb_u32(b, "a\x1b[2J", 1);
}
static void bad_utf8_key(struct gguf_build *b) {
    gb_u32(b, "a\xff", 1);
}
static void bad_key_twice(struct gguf_build *b) {
    gb_u32(b, "the.key", 1);
    gb_u32(b, "other", 1);
    gb_u32(b, "the.key", 1);
}
static void bad_value_type(struct gguf_build *b) {
    gb_key(b, "the.key", 13);
    gb_raw64(b, 0);
}
static void bad_bool(struct gguf_build *b) {
    gb_key(b, "the.key", BOOL);
    gb_raw(b, "\2", 1);
}
static void bad_string_length(struct gguf_build *b) {
    gb_key(b, "the.key", STR);
    gb_raw64(b, UINT64_MAX - 7);
}
static void bad_array_count(struct gguf_build *b) {
    gb_key(b, "the.key", ARR);
    gb_raw32(b, U64);
    gb_raw64(b, (1ull << 61) + 1); // times 8 is 8
    gb_raw64(b, 0);
}
static void bad_string_array_count(struct gguf_build *b) {
    gb_key(b, "the.key", ARR);
    gb_raw32(b, STR);
    gb_raw64(b, 1ull << 40);
}
static void bad_array_type(struct gguf_build *b) {
    gb_key(b, "the.key", ARR);
    gb_raw32(b, 99);
    gb_raw64(b, 0);
}
static void bad_nesting(struct gguf_build *b) {
    gb_key(b, "the.key", ARR);
    for (int i = 0; i < 5; i++) {
        gb_raw32(b, ARR);
        gb_raw64(b, 1);
    }
    gb_raw32(b, U8);
    gb_raw64(b, 0);
}
static void bad_alignment_zero(struct gguf_build *b) {
    gb_u32(b, "general.alignment", 0);
}
static void bad_alignment_odd(struct gguf_build *b) {
    gb_u32(b, "general.alignment", 24);
}
static void bad_alignment_huge(struct gguf_build *b) {
    gb_u32(b, "general.alignment", 1u << 31);
}
static void bad_alignment_type(struct gguf_build *b) {
    gb_str(b, "general.alignment", "32");
}
static void bad_dims_none(struct gguf_build *b) {
    gb_tensor(b, "the.tensor", 0, NULL, F32, 0);
}
static void bad_dims_five(struct gguf_build *b) {
    const uint64_t dims[] = {1, 1, 1, 1, 1};
    gb_tensor(b, "the.tensor", 5, dims, F32, 0);
}
static void bad_dims_billions(struct gguf_build *b) {
    const uint64_t dims[] = {1};
    gb_tensor(b, "the.tensor", 1, dims, F32, 0);
    b->infos.data[8 + 10 + 3] = 0x40; // n_dims = 2^30 + 1
}
static void bad_dim_zero(struct gguf_build *b) {
    one_tensor(b, 32, 0, F32, 0);
}
static void bad_dim_negative(struct gguf_build *b) {
    one_tensor(b, 32, UINT64_MAX, F32, 0);
}
static void bad_dims_overflow(struct gguf_build *b) {
    one_tensor(b, 1ull << 33, 1ull << 33, F32, 0);
}
static void bad_dims_overflow_to_small(struct gguf_build *b) {
    one_tensor(b, 1ull << 62, 4, F32, 0); // 2^66 bytes, 0 modulo 2^64
}
static void bad_dims_overflow_rows(struct gguf_build *b) {
    const uint64_t dims[] = {32, 1ull << 32, 1ull << 32, 2};
    gb_tensor(b, "the.tensor", 4, dims, Q8_0, 0);
}
static void bad_block(struct gguf_build *b) {
    one_tensor(b, 33, 1, Q8_0, 0);
}
static void bad_type_unknown(struct gguf_build *b) {
    one_tensor(b, 4, 4, 1000, 0);
}
static void bad_type_removed(struct gguf_build *b) {
    one_tensor(b, 32, 1, 4, 0);
}
static void bad_type_k_quant(struct gguf_build *b) {
    one_tensor(b, 256, 1, 12, 0);
}
static void bad_type_integer(struct gguf_build *b) {
    one_tensor(b, 4, 4, 26, 0);
}
static void bad_offset_unaligned(struct gguf_build *b) {
    one_tensor(b, 4, 2, F32, 8);
}
// A tensor that lies beyond the file's end.
static void cve_2026_7482(struct gguf_build *b) {
    one_tensor(b, 4, 2, F32, 4096);
}
static void cve_2026_7482_last_byte(struct gguf_build *b) {
    one_tensor(b, 17, 1, F32, 0); // 68 of 64 bytes
}
// Offset plus size wraps around.
static void cve_2026_27940(struct gguf_build *b) {
    one_tensor(b, 4, 4, F32, UINT64_MAX - 31);
}
static void cve_2026_27940_data_begin(struct gguf_build *b) {
    one_tensor(b, 4, 2, F32, UINT64_MAX - 127); // wraps only when the header's length is added
}
// The sum of all tensors' sizes wraps around to a small number.
static void cve_2025_53630(struct gguf_build *b) {
    const uint64_t dims[] = {1ull << 60};
    gb_tensor(b, "the.tensor.0", 1, dims, F32, 0);
    gb_tensor(b, "the.tensor.1", 1, dims, F32, 1ull << 62);
    gb_tensor(b, "the.tensor.2", 1, dims, F32, 2ull << 62);
    gb_tensor(b, "the.tensor.3", 1, dims, F32, 3ull << 62);
    b->data_bytes = 64;
}
static void bad_overlap(struct gguf_build *b) {
    const uint64_t dims[] = {16};
    gb_tensor(b, "the.tensor.0", 1, dims, F32, 0);
    gb_tensor(b, "the.tensor.1", 1, dims, F32, 32);
    b->data_bytes = 96;
}
static void bad_overlap_same(struct gguf_build *b) {
    const uint64_t dims[] = {4};
    gb_tensor(b, "the.tensor.0", 1, dims, F32, 0);
    gb_tensor(b, "the.tensor.1", 1, dims, F32, 0);
    b->data_bytes = 96;
}
static void bad_tensor_twice(struct gguf_build *b) {
    const uint64_t dims[] = {4};
    gb_tensor(b, "the.tensor", 1, dims, F32, 0);
    gb_tensor(b, "the.tensor", 1, dims, F32, 32);
    b->data_bytes = 96;
}
static void bad_tensor_name_long(struct gguf_build *b) {
    char name[200];
    const uint64_t dims[] = {4};
    memset(name, 'x', sizeof name - 1);
    name[sizeof name - 1] = '\0';
    gb_tensor(b, name, 1, dims, F32, 0);
}

static const struct {
    const char *name;
    void (*build)(struct gguf_build *b);
    enum err want;
    const char *says;
} malformed[] = {
    {"version 1", bad_version_1, ERR_UNSUPPORTED, "version 1"},
    {"version 4", bad_version_4, ERR_UNSUPPORTED, "version 4"},
    {"big-endian", bad_big_endian, ERR_UNSUPPORTED, "big-endian"},
    {"key count", bad_kv_count, ERR_FORMAT, "byte 16"},
    {"key count, one more", bad_kv_count_one_more, ERR_FORMAT, "past the end"},
    {"tensor count", bad_tensor_count, ERR_FORMAT, "byte 8"},
    {"tensor count, memory", bad_tensor_count_in_memory, ERR_FORMAT, "byte 8"},
    {"empty key", bad_empty_key, ERR_FORMAT, "metadata key"},
    {"control character in key", bad_control_key, ERR_FORMAT, "metadata key"},
    {"key not UTF-8", bad_utf8_key, ERR_FORMAT, "metadata key"},
    {"key twice", bad_key_twice, ERR_FORMAT, "the.key: the key is there twice"},
    {"value type", bad_value_type, ERR_FORMAT, "the.key: unknown value type 13 (byte 39)"},
    {"bool", bad_bool, ERR_FORMAT, "the.key: a bool"},
    {"string length", bad_string_length, ERR_FORMAT, "the.key: runs past"},
    {"array count wraps", bad_array_count, ERR_FORMAT, "the.key: more values"},
    {"string array count", bad_string_array_count, ERR_FORMAT, "the.key: more values"},
    {"array type", bad_array_type, ERR_FORMAT, "the.key: unknown value type 99"},
    {"nesting", bad_nesting, ERR_LIMIT, "the.key: arrays are nested"},
    {"alignment 0", bad_alignment_zero, ERR_FORMAT, "general.alignment"},
    {"alignment 24", bad_alignment_odd, ERR_FORMAT, "general.alignment: is no power of two"},
    {"alignment 2^31", bad_alignment_huge, ERR_FORMAT, "general.alignment"},
    {"alignment as text", bad_alignment_type, ERR_FORMAT, "general.alignment: must be an integer"},
    {"no dimensions", bad_dims_none, ERR_FORMAT, "tensor the.tensor: 0 dimensions"},
    {"five dimensions", bad_dims_five, ERR_FORMAT, "tensor the.tensor: 5 dimensions"},
    {"2^30 dimensions", bad_dims_billions, ERR_FORMAT, "tensor the.tensor: 1073741825 dim"},
    {"dimension 0", bad_dim_zero, ERR_FORMAT, "the.tensor: a dimension"},
    {"dimension -1", bad_dim_negative, ERR_FORMAT, "the.tensor: a dimension"},
    {"product overflows", bad_dims_overflow, ERR_FORMAT, "the.tensor: the dimensions' product"},
    {"product overflows to 0", bad_dims_overflow_to_small, ERR_FORMAT, "the.tensor: the dim"},
    {"rows overflow", bad_dims_overflow_rows, ERR_FORMAT, "the.tensor: the dim"},
    {"no whole block", bad_block, ERR_FORMAT, "tensor the.tensor: rows of 33"},
    {"unknown type", bad_type_unknown, ERR_FORMAT, "tensor the.tensor: unknown type 1000"},
    {"removed type", bad_type_removed, ERR_FORMAT, "tensor the.tensor: unknown type 4"},
    {"Q4_K", bad_type_k_quant, ERR_UNSUPPORTED, "tensor the.tensor: type Q4_K is not supported"},
    {"I32", bad_type_integer, ERR_UNSUPPORTED, "F32, F16, BF16, Q8_0, Q4_0 and Q4_1 are"},
    {"unaligned offset", bad_offset_unaligned, ERR_FORMAT, "the.tensor: the tensor's offset"},
    {"CVE-2026-7482", cve_2026_7482, ERR_FORMAT, "tensor the.tensor: its 32 bytes lie beyond"},
    {"CVE-2026-7482, by 4 bytes", cve_2026_7482_last_byte, ERR_FORMAT, "lie beyond the end"},
    {"CVE-2026-27940", cve_2026_27940, ERR_FORMAT, "tensor the.tensor: its 64 bytes lie beyond"},
    {"CVE-2026-27940, data", cve_2026_27940_data_begin, ERR_FORMAT, "lie beyond the end"},
    {"CVE-2025-53630", cve_2025_53630, ERR_FORMAT, "tensor the.tensor.0: its"},
    {"overlap", bad_overlap, ERR_FORMAT, "tensor the.tensor.1: overlaps"},
    {"same place", bad_overlap_same, ERR_FORMAT, "overlaps"},
    {"tensor twice", bad_tensor_twice, ERR_FORMAT, "tensor the.tensor: the name is there twice"},
    {"long tensor name", bad_tensor_name_long, ERR_FORMAT, "tensor name"},
};

static void test_malformed(void **state) {
    (void)state;
    int64_t live = mem_live_blocks();
    for (size_t i = 0; i < sizeof malformed / sizeof *malformed; i++) {
        struct gguf_build b;
        struct gguf g;
        struct err_info info;
        size_t n;
        gb_init(&b);
        malformed[i].build(&b);
        uint8_t *p = gb_finish(&b, &n);
        enum err e = parse(p, n, &g, &info);
        if (e != malformed[i].want || !strstr(info.message, malformed[i].says))
            fail_msg("%s: %s: %s", malformed[i].name, err_name(e), info.message);
        assert_int_equal(info.code, e);
        free(p);
    }
    assert_int_equal(mem_live_blocks(), live);
}

// No magic, and a header that goes on for longer than we read.
static void test_not_gguf_and_endless(void **state) {
    (void)state;
    struct gguf g;
    struct err_info info;
    assert_int_equal(parse((const uint8_t *)"GGML\3\0\0\0", 8, &g, &info), ERR_FORMAT);
    assert_non_null(strstr(info.message, "not a GGUF file"));
    struct gguf_build b;
    size_t n;
    gb_init(&b);
    gb_key(&b, "the.key", STR);
    gb_raw64(&b, 1ull << 40);
    uint8_t *p = gb_finish(&b, &n);
    assert_int_equal(gguf_parse(p, n, 1ull << 41, &g, &info), ERR_LIMIT);
    assert_non_null(strstr(info.message, "the.key: the header is longer"));
    free(p);
}

static void test_flipped_bits(void **state) {
    (void)state;
    struct gguf_build b;
    struct gguf g;
    struct err_info info;
    size_t n;
    build_sample(&b);
    uint8_t *p = gb_finish(&b, &n);
    int64_t live = mem_live_blocks();
    int refused = 0;
    for (size_t bit = 0; bit < 8 * n; bit++) {
        p[bit / 8] ^= (uint8_t)(1u << bit % 8);
        if (parse(p, n, &g, &info) == ERR_OK)
            gguf_fini(&g);
        else
            refused++;
        p[bit / 8] ^= (uint8_t)(1u << bit % 8);
        assert_int_equal(mem_live_blocks(), live);
    }
    assert_true(refused > 1000); // most of the header matters
    free(p);
}

static void test_allocation_failures(void **state) {
    (void)state;
    struct gguf_build b;
    struct gguf g;
    struct err_info info;
    size_t n;
    build_sample(&b);
    uint8_t *p = gb_finish(&b, &n);
    int64_t live = mem_live_blocks();
    enum err e = ERR_NOMEM;
    for (uint64_t nth = 1; e; nth++) {
        mem_fail_after(nth, false);
        e = parse(p, n, &g, &info);
        mem_fail_after(0, false);
        assert_true(e == ERR_OK || e == ERR_NOMEM);
        if (e == ERR_OK)
            gguf_fini(&g);
        assert_int_equal(mem_live_blocks(), live);
        assert_true(nth < 100);
    }
    free(p);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_values),
        cmocka_unit_test(test_arrays_and_tensors),
        cmocka_unit_test(test_every_prefix),
        cmocka_unit_test(test_malformed),
        cmocka_unit_test(test_not_gguf_and_endless),
        cmocka_unit_test(test_flipped_bits),
        cmocka_unit_test(test_allocation_failures),
    };
    return cmocka_run_group_tests_name("gguf", tests, NULL, NULL);
}

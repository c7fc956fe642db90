// SPDX-License-Identifier: Apache-2.0
// Element types against what Python's gguf package makes of them (tests/golden/tensor).
#include "base/mem.h"
#include "kernels/tensor.h"
#include "tests/support/cmocka_all.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

static void read_exactly(FILE *f, void *p, size_t n) {
    assert_int_equal(fread(p, 1, n, f), n);
}

static uint32_t bits(float f) {
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

// 0 and -0 are the same number, and the oracle does not promise a sign for a product that is 0.
static void check_floats(const float *got, const float *want, size_t n, enum kn_dtype t) {
    for (size_t i = 0; i < n; i++)
        if (bits(got[i]) != bits(want[i]) && !(got[i] == 0 && want[i] == 0))
            fail_msg("%s value %zu: %a, not %a", kn_dtype_name(t), i, (double)got[i],
                     (double)want[i]);
}

static void test_golden(void **state) {
    (void)state;
    FILE *f = fopen("tests/golden/tensor/types.bin", "rb");
    assert_non_null(f);
    uint32_t head[3];
    int types = 0;
    for (; fread(head, sizeof head, 1, f) == 1; types++) {
        enum kn_dtype t = (enum kn_dtype)head[0];
        size_t n = head[1], bytes = head[2], row;
        assert_true(kn_row_bytes(t, n, &row));
        assert_int_equal(row, bytes);
        float *x = mem_alloc(n * 4), *want = mem_alloc(n * 4), *got = mem_alloc(n * 4);
        unsigned char *q = mem_alloc(bytes), *mine = mem_alloc(bytes);
        assert_true(x && want && got && q && mine);
        read_exactly(f, x, n * 4);
        for (int random = 0; random < 2; random++) {
            read_exactly(f, q, bytes);
            read_exactly(f, want, n * 4);
            kn_dequantize(t, q, got, n);
            check_floats(got, want, n, t);
            if (random)
                continue;
            kn_quantize(t, x, mine, n);
            for (size_t i = 0; i < bytes; i++)
                if (mine[i] != q[i])
                    fail_msg("%s byte %zu: %d, not %d", kn_dtype_name(t), i, mine[i], q[i]);
        }
        mem_free(x);
        mem_free(want);
        mem_free(got);
        mem_free(q);
        mem_free(mine);
    }
    fclose(f);
    assert_int_equal(types, 5);
}

// Every half there is survives the way to f32 and back.
static void test_f16_round_trip(void **state) {
    (void)state;
    for (uint32_t h = 0; h < 65536; h++) {
        float v = kn_f16_to_f32((uint16_t)h);
        if ((h & 0x7c00) == 0x7c00 && (h & 0x3ff)) {
            assert_true(isnan(v));
            assert_true(isnan(kn_f16_to_f32(kn_f32_to_f16(v))));
        } else {
            assert_int_equal(kn_f32_to_f16(v), h);
        }
    }
}

// Rounding is to nearest even: a value between two neighbours goes to the nearer one.
static void test_f16_rounding(void **state) {
    (void)state;
    for (uint32_t h = 0; h < 0x7bff; h++) { // up to the largest finite one
        double lo = (double)kn_f16_to_f32((uint16_t)h);
        double hi = (double)kn_f16_to_f32((uint16_t)(h + 1));
        float mid = (float)((lo + hi) / 2); // exact in f32
        uint32_t even = h & 1 ? h + 1 : h;
        assert_int_equal(kn_f32_to_f16(mid), even);
        assert_int_equal(kn_f32_to_f16(nextafterf(mid, 0)), h);
        assert_int_equal(kn_f32_to_f16(nextafterf(mid, INFINITY)), h + 1);
        assert_int_equal(kn_f32_to_f16(-mid), even | 0x8000);
    }
    assert_int_equal(kn_f32_to_f16(65519.99f), 0x7bff);
    assert_int_equal(kn_f32_to_f16(65520.0f), 0x7c00);
    assert_int_equal(kn_f32_to_f16(INFINITY), 0x7c00);
    assert_int_equal(kn_f32_to_f16(-1e30f), 0xfc00);
    assert_int_equal(kn_f32_to_f16(1e-10f), 0);
}

static void test_bf16(void **state) {
    (void)state;
    for (uint32_t h = 0; h < 65536; h++) {
        float v = kn_bf16_to_f32((uint16_t)h);
        if (isnan(v))
            assert_true(isnan(kn_bf16_to_f32(kn_f32_to_bf16(v))));
        else
            assert_int_equal(kn_f32_to_bf16(v), h);
    }
    assert_int_equal(kn_f32_to_bf16(1.00390625f), 0x3f80); // a tie, to even
    assert_int_equal(kn_f32_to_bf16(1.01171875f), 0x3f82); // a tie, to even
    assert_int_equal(kn_f32_to_bf16(1.00390637f), 0x3f81); // just above
    assert_int_equal(kn_f32_to_bf16(3.4e38f), 0x7f80);     // rounds to infinity
    float nan;
    uint32_t low_payload = 0x7f800001; // must not become infinity
    memcpy(&nan, &low_payload, sizeof nan);
    assert_true(isnan(kn_bf16_to_f32(kn_f32_to_bf16(nan))));
}

static void test_geometry(void **state) {
    (void)state;
    size_t n;
    assert_true(kn_row_bytes(KN_Q4_1, 64, &n));
    assert_int_equal(n, 40);
    assert_false(kn_row_bytes(KN_Q8_0, 33, &n));
    assert_false(kn_row_bytes(KN_F32, UINT64_MAX / 2, &n));
    assert_false(kn_row_bytes(KN_DTYPES, 32, &n));
    assert_string_equal(kn_dtype_name(KN_BF16), "BF16");
    assert_string_equal(kn_dtype_name((enum kn_dtype)99), "unknown");
    assert_int_equal(kn_dtype_block((enum kn_dtype)99), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_golden),       cmocka_unit_test(test_f16_round_trip),
        cmocka_unit_test(test_f16_rounding), cmocka_unit_test(test_bf16),
        cmocka_unit_test(test_geometry),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

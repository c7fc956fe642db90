// SPDX-License-Identifier: Apache-2.0
// Products with BF16 weights on the level avx512bf16, bit for bit against a scalar model of its
// instructions after the Intel SDM, volume 2: VCVTNE2PS2BF16 and VDPBF16PS.
//
// Measured on an AMD EPYC of family 26 (Zen 5): 10 million random sums, many of them near the
// smallest normal numbers, infinite or NaN, have the bits of this model. Other orders (the even
// product first, both products added up before the sum, one rounding for all) differ in 0.3 to 50%
// of them.
#include "base/mem.h"
#include "matrix_fixture.h"
#include <float.h>
#include <math.h>
#include <string.h>

static uint32_t bits_of(float f) {
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

static float from_bits(uint32_t u) {
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

// A denormal number counts as zero of its sign, as operand and as result.
static float flush(float f) {
    return fabsf(f) < FLT_MIN ? copysignf(0, f) : f;
}

// To nearest even in units of 2^16 of the bits; a NaN becomes quiet.
static float round_bf16(float f) {
    f = flush(f);
    uint32_t u = bits_of(f), rest = u & 0xffff, kept = u - rest;
    if (isnan(f))
        return from_bits(kept | 0x400000);
    bool up = rest > 0x8000 || (rest == 0x8000 && (kept & 0x10000));
    return from_bits(up ? kept + 0x10000 : kept);
}

static float fused(float a, float b, float c) {
    return flush(fmaf(flush(a), flush(b), flush(c)));
}

// One output: pairs of columns in order, in a pair the odd column first.
static float model(const float *x, const float *w, int64_t k) {
    float sum = 0;
    for (int64_t c = 0; c < k; c += 2) {
        float x1 = c + 1 < k ? round_bf16(x[c + 1]) : 0, w1 = c + 1 < k ? w[c + 1] : 0;
        sum = fused(x1, w1, sum);
        sum = fused(round_bf16(x[c]), w[c], sum);
    }
    return sum;
}

static bool same(float a, float b) {
    return isnan(a) ? isnan(b) : bits_of(a) == bits_of(b);
}

enum kind { ORDINARY, TINY, ANY_BITS };

static float value_of(struct kn_rng *r, enum kind kind) {
    uint32_t u = (uint32_t)kn_rng_u64(r);
    if (kind == ORDINARY)
        return kn_rng_normal(r);
    if (kind == TINY) { // products about 2^-127: exponents about 2^-63 and some denormal numbers
        uint32_t exponent = kn_rng_below(r, 20) ? 60 + u / 65536 % 8 : 0;
        return from_bits((u & 0x807fffff) | exponent << 23);
    }
    return from_bits(u);
}

static void check(struct kn_fixture *f, struct kn_rng *r, enum kind kind, int64_t n, int64_t k,
                  int32_t rows) {
    struct test_matrix m = test_matrix_make(r, KN_BF16, n, k);
    size_t nx = (size_t)rows * (size_t)k, ny = (size_t)rows * (size_t)n;
    float *x = mem_alloc(nx * sizeof *x);
    assert_non_null(x);
    for (size_t i = 0; i < nx; i++)
        x[i] = value_of(r, kind);
    if (kind != ORDINARY) {
        uint16_t *file = (uint16_t *)(void *)m.data;
        for (int64_t i = 0; i < n * k; i++)
            file[i] = (uint16_t)(bits_of(value_of(r, kind)) >> 16);
        kn_dequantize(KN_BF16, m.data, m.value, (size_t)(n * k));
    }
    struct kn_weight *w = test_weight(f, &m, 1, KN_STACK);
    kn_addr y = kn_test_alloc(f, ny * sizeof(float));
    struct kn_gemm p = {
        .w = w, .x = kn_test_put(f, x, nx * sizeof *x), .ldx = k, .y = y, .ldy = n, .rows = rows};
    assert_int_equal(f->ops->gemm(f->q, &p), ERR_OK);
    kn_test_wait(f);
    for (int32_t i = 0; i < rows; i++)
        for (int64_t o = 0; o < n; o++) {
            float got = ((const float *)y)[i * n + o], want = model(x + i * k, m.value + o * k, k);
            if (!same(got, want))
                fail_msg("kind %d, k %d, row %d of %d, column %d: %a, not %a", (int)kind, (int)k, i,
                         rows, (int)o, (double)got, (double)want);
        }
    f->ops->weight_destroy(w);
    kn_test_free_all(f);
    mem_free(x);
    test_matrix_free(&m);
}

static bool has_level(void) {
    return strcmp(*kn_test_levels(), "avx512bf16") == 0;
}

static void test_bits(void **state) {
    (void)state;
    if (!has_level())
        skip();
    static const int32_t rows[] = {1, 2, 5, 12, 13, 32, 130};
    static const int64_t ks[] = {1, 2, 31, 33, 288, 577, 1536};
    for (enum kind kind = ORDINARY; kind <= ANY_BITS; kind++) {
        struct kn_rng r = {(uint64_t)kind + 1};
        struct kn_fixture f;
        kn_fixture_open(&f, "avx512bf16", 2);
        for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
            for (size_t j = 0; j < sizeof ks / sizeof *ks; j++)
                check(&f, &r, kind, 40, kind == ANY_BITS && ks[j] > 33 ? 8 : ks[j], rows[i]);
        kn_fixture_close(&f);
    }
}

// So many columns that the scratch memory holds a part of the activations at a time.
static void test_many_columns(void **state) {
    (void)state;
    if (!has_level())
        skip();
    struct kn_rng r = {77};
    struct kn_fixture f;
    kn_fixture_open(&f, "avx512bf16", 2);
    check(&f, &r, ORDINARY, 72, 5001, 128);
    check(&f, &r, ORDINARY, 33, 300001, 1);
    check(&f, &r, ORDINARY, 33, 30001, 9);
    kn_fixture_close(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bits),
        cmocka_unit_test(test_many_columns),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

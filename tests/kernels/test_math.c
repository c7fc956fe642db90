// SPDX-License-Identifier: Apache-2.0
// The vector operations and elementary functions of each ISA level: against scalar C, against the C
// library in double precision, and against the definitions of tensor.h.
#include "isa_probe.h"
#include "kn_fixture.h"
#include <math.h>
#include <string.h>

static void for_levels(void (*fn)(const struct isa_probe *p)) {
    static const struct isa_probe *const all[] = {
#if defined(KN_CPU_X86)
        &isa_probe_avx512bf16,
        &isa_probe_avx512,
        &isa_probe_avx2,
#endif
        &isa_probe_portable
    };
    for (const char *const *isa = kn_test_levels(); *isa; isa++)
        for (size_t i = 0; i < sizeof all / sizeof *all; i++)
            if (strcmp(all[i]->name, *isa) == 0)
                fn(all[i]);
}

static float from_bits(uint32_t u) {
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}
static int32_t bits(float f) {
    int32_t i;
    memcpy(&i, &f, sizeof i);
    return i;
}
static bool same(float a, float b) {
    return bits(a) == bits(b) || (isnan(a) && isnan(b));
}

// ---- functions, over all floats in steps

enum { STEP = 991 }; // a prime, so that all low bits occur

static void check_exp(const struct isa_probe *p) {
    double worst = 0, worst2 = 0, worst_silu = 0;
    for (uint64_t u = 0; u < 1ull << 32; u += 16 * STEP) {
        float x[16], e[16], e2[16], neg[16], silu[16];
        for (uint32_t i = 0; i < 16; i++) {
            x[i] = from_bits((uint32_t)u + i * STEP);
            neg[i] = -fabsf(x[i]);
        }
        p->exp(x, e, 16);
        p->exp2_neg(neg, e2, 16);
        p->silu(x, silu, 16);
        for (int i = 0; i < 16; i++) {
            if (isnan(x[i])) {
                assert_true(isnan(e[i]) && isnan(e2[i]) && isnan(silu[i]));
                continue;
            }
            double want = exp((double)x[i]), want2 = exp2((double)neg[i]);
            if (isinf((float)want))
                assert_true(isinf(e[i]));
            else if (e[i] != (float)want)
                worst = fmax(worst, kn_ulp_error(e[i], want));
            if (neg[i] < -126.0f)
                assert_true(e2[i] == 0.0f);
            else
                worst2 = fmax(worst2, kn_ulp_error(e2[i], want2));
            if (fabsf(x[i]) < 80.0f)
                worst_silu = fmax(worst_silu,
                                  kn_ulp_error(silu[i], (double)x[i] / (1 + exp(-(double)x[i]))));
            else if (x[i] > 0)
                assert_true(silu[i] == x[i]);
            else if (x[i] < -105.0f && !isinf(x[i]))
                assert_true(silu[i] == 0.0f);
        }
    }
    assert_true(worst <= 2 && worst2 <= 2 && worst_silu <= 4);
}
static void test_exp(void **state) {
    (void)state;
    for_levels(check_exp);
}

static void check_exact_points(const struct isa_probe *p) {
    float x[16] = {0, -0.0f, -1, -2, -126, -127, -INFINITY}, y[16];
    p->exp2_neg(x, y, 16);
    static const float two[] = {1, 1, 0.5f, 0.25f, 0x1p-126f, 0, 0};
    assert_memory_equal(y, two, sizeof two);
    float z[16] = {0, -0.0f, -INFINITY, INFINITY, 89, -105};
    p->exp(z, y, 16);
    static const float e[] = {1, 1, 0, INFINITY, INFINITY, 0};
    assert_memory_equal(y, e, sizeof e);
}
static void test_exact_points(void **state) {
    (void)state;
    for_levels(check_exact_points);
}

static void check_log_sincos(const struct isa_probe *p) {
    struct kn_rng rng = {11};
    double log_error = 0, trig_error = 0;
    for (int i = 0; i < 300000; i++) {
        double x = exp((kn_rng_uniform(&rng) - 0.5) * (i % 2 ? 1400 : 2)), want = log(x);
        log_error = fmax(log_error, fabs(p->log(x) - want) / fabs(want));
        double s, c, a = kn_rng_uniform(&rng) * (i % 3 ? 131072 : 8);
        p->sincos(a, &s, &c);
        trig_error = fmax(trig_error, fmax(fabs(s - sin(a)), fabs(c - cos(a))));
    }
    assert_true(log_error < 1e-15);
    assert_true(trig_error < 3e-15);
    double s, c;
    p->sincos(0, &s, &c);
    assert_true(s == 0 && c == 1);
    assert_true(p->log(1) == 0);
}
static void test_log_sincos(void **state) {
    (void)state;
    for_levels(check_log_sincos);
}

// ---- conversions

static void check_halves(const struct isa_probe *p) {
    for (uint32_t u = 0; u < 65536; u += 16) {
        uint16_t h[16], back[16];
        float f16[16], bf16[16];
        for (uint32_t i = 0; i < 16; i++)
            h[i] = (uint16_t)(u + i);
        p->from_f16(h, f16, 16);
        p->from_bf16(h, bf16, 16);
        p->to_bf16(bf16, back, 16);
        for (int i = 0; i < 16; i++) {
            assert_true(same(f16[i], kn_f16_to_f32(h[i])));
            assert_int_equal(bits(bf16[i]), bits(kn_bf16_to_f32(h[i])));
            if (!isnan(bf16[i]))
                assert_int_equal(back[i], h[i]);
        }
    }
    for (uint64_t u = 0; u < 1ull << 32; u += 16 * 4099) {
        float x[16];
        uint16_t y[16];
        for (uint32_t i = 0; i < 16; i++) // with exact halves between two bf16 values
            x[i] = from_bits(((uint32_t)u + i * 4099) & (i % 2 ? ~0u : 0xffff8000u));
        p->to_bf16(x, y, 16);
        for (int i = 0; i < 16; i++)
            if (isnan(x[i]))
                assert_true(isnan(kn_bf16_to_f32(y[i])));
            else
                assert_int_equal(y[i], kn_f32_to_bf16(x[i]));
    }
}
static void test_halves(void **state) {
    (void)state;
    for_levels(check_halves);
}

// ---- lanes

static float scalar(const struct isa_probe *p, int op, float a, float b, float c) {
    volatile float product = a * b; // rounded on its own
    switch (op) {
    case PROBE_ADD:
        return a + b;
    case PROBE_SUB:
        return a - b;
    case PROBE_MUL:
        return product;
    case PROBE_DIV:
        return a / b;
    case PROBE_FMA:
        return p->fma ? fmaf(a, b, c) : product + c;
    case PROBE_FNMA:
        return p->fma ? fmaf(-a, b, c) : c - product;
    case PROBE_MIN:
        return a < b ? a : b;
    case PROBE_MAX:
        return a > b ? a : b;
    case PROBE_SQRT:
        return sqrtf(a);
    case PROBE_RINT:
        return rintf(a);
    case PROBE_LT:
        return a < b ? c : a;
    case PROBE_GT:
        return a > b ? c : a;
    case PROBE_EQ:
        return a == b ? c : a;
    case PROBE_ABS:
        return fabsf(a);
    case PROBE_NEG:
        return -a;
    default:
        return ldexpf(a, (int)b); // PROBE_SCALE2
    }
}

static void check_lanes(const struct isa_probe *p) {
    struct kn_rng rng = {12};
    static const float special[] = {0, -0.0f, INFINITY, -INFINITY, NAN, 1, -1, 2.5f, 3.5f};
    for (int round = 0; round < 3000; round++)
        for (int op = 0; op < PROBE_FLOAT_OPS; op++) {
            float a[16], b[16], c[16], y[16];
            for (int i = 0; i < 16; i++) {
                bool odd = kn_rng_below(&rng, 4) == 0 && op != PROBE_RINT && op != PROBE_SCALE2;
                a[i] = odd ? special[kn_rng_below(&rng, 9)] : 30 * kn_rng_normal(&rng);
                b[i] = odd ? special[kn_rng_below(&rng, 9)] : kn_rng_normal(&rng);
                c[i] = kn_rng_normal(&rng);
                if (op == PROBE_RINT && i % 3 == 0)
                    a[i] = (float)kn_rng_below(&rng, 1 << 22) - (float)(1 << 21) + 0.5f;
                if (op == PROBE_SCALE2) {
                    b[i] = (float)(kn_rng_below(&rng, 300) - 160);
                    a[i] = 1 + (float)kn_rng_uniform(&rng);
                }
            }
            p->lanes(op, a, b, c, y);
            for (int i = 0; i < 16; i++)
                if (!same(y[i], scalar(p, op, a[i], b[i], c[i])) &&
                    !(op == PROBE_RINT && y[i] == 0 && rintf(a[i]) == 0)) // -0 may become 0
                    fail_msg("%s: operation %d, lane %d: %a, %a, %a gave %a", p->name, op, i,
                             (double)a[i], (double)b[i], (double)c[i], (double)y[i]);
        }
}
static void test_lanes(void **state) {
    (void)state;
    for_levels(check_lanes);
}

static int32_t int_scalar(int op, int32_t a, int32_t b) {
    uint32_t u = (uint32_t)a, v = (uint32_t)b;
    switch (op) {
    case PROBE_IADD:
        return (int32_t)(u + v);
    case PROBE_ISUB:
        return (int32_t)(u - v);
    case PROBE_IMUL:
        return (int32_t)(u * v);
    case PROBE_AND:
        return a & b;
    case PROBE_OR:
        return a | b;
    case PROBE_XOR:
        return a ^ b;
    case PROBE_ANDNOT:
        return ~a & b;
    case PROBE_SLL5:
        return (int32_t)(u << 5);
    case PROBE_SRL5:
        return (int32_t)(u >> 5);
    case PROBE_SRA5:
        return a >> 5;
    case PROBE_IMIN:
        return a < b ? a : b;
    case PROBE_IMAX:
        return a > b ? a : b;
    case PROBE_IGT:
        return a > b ? a : b;
    case PROBE_IEQ:
        return a == b ? a : b;
    case PROBE_CVT:
        return (int32_t)lrintf(from_bits(u));
    case PROBE_CVTF:
        return bits((float)a);
    case PROBE_U16:
        return a & 0xffff;
    case PROBE_EVEN:
        return (int32_t)(u << 16);
    case PROBE_ODD:
        return (int32_t)(u & 0xffff0000u);
    default:
        return a; // PROBE_I8
    }
}

static void check_int_lanes(const struct isa_probe *p) {
    struct kn_rng rng = {13};
    for (int round = 0; round < 3000; round++)
        for (int op = 0; op < PROBE_INT_OPS; op++) {
            int32_t a[16], b[16], y[16];
            for (int i = 0; i < 16; i++) {
                a[i] = (int32_t)kn_rng_u64(&rng);
                b[i] = i % 5 ? (int32_t)kn_rng_u64(&rng) : a[i];
                if (op == PROBE_CVT)
                    a[i] = bits((float)(kn_rng_uniform(&rng) * 0x1p22 - 0x1p21));
                if (op == PROBE_I8)
                    a[i] = kn_rng_below(&rng, 256) - 128;
            }
            p->int_lanes(op, a, b, y);
            for (int i = 0; i < 16; i++)
                if (y[i] != int_scalar(op, a[i], b[i]))
                    fail_msg("%s: integer operation %d, lane %d: %d, %d gave %d", p->name, op, i,
                             a[i], b[i], y[i]);
        }
}
static void test_int_lanes(void **state) {
    (void)state;
    for_levels(check_int_lanes);
}

// Sums are a tree of fixed shape, so that levels with equal arithmetic agree bit by bit.
static void check_reductions(const struct isa_probe *p) {
    struct kn_rng rng = {14};
    for (int round = 0; round < 2000; round++) {
        float x[16], y[40];
        int32_t k[16], sum = 0, most = INT32_MIN;
        float top = -INFINITY;
        kn_rng_fill(&rng, x, 16, 5.0f);
        for (int i = 0; i < 16; i++) {
            k[i] = kn_rng_below(&rng, 1 << 20) - (1 << 19);
            sum += k[i];
            most = k[i] > most ? k[i] : most;
            top = x[i] > top ? x[i] : top;
        }
        float t[16];
        memcpy(t, x, sizeof t);
        for (int half = 8; half; half /= 2)
            for (int i = 0; i < half; i++)
                t[i] += t[i + half];
        assert_int_equal(bits(p->reduce(PROBE_SUM, x)), bits(t[0]));
        assert_int_equal(bits(p->reduce(PROBE_HMAX, x)), bits(top));
        assert_int_equal(p->int_reduce(PROBE_SUM, k), sum);
        assert_int_equal(p->int_reduce(PROBE_HMAX, k), most);
        int32_t n = kn_rng_below(&rng, 22) - 3;
        for (int i = 0; i < 40; i++)
            y[i] = -77;
        p->load_store_n(x, y, n);
        for (int i = 0; i < 40; i++)
            assert_true(y[i] == (i < n && i < 16 ? x[i] : -77));
        uint32_t a = kn_rng_u64(&rng) & 0xffff, b = kn_rng_u64(&rng) & 0xffff;
        assert_int_equal(p->mask(PROBE_MAND, a, b), a & b);
        assert_int_equal(p->mask(PROBE_MOR, a, b), a | b);
        assert_int_equal(p->mask(PROBE_MNOT, a, b), ~a & 0xffff);
        assert_int_equal(p->mask(PROBE_FIRST, (uint32_t)n, 0), n <= 0    ? 0u
                                                               : n >= 16 ? 0xffffu
                                                                         : (1u << n) - 1);
    }
}
static void test_reductions(void **state) {
    (void)state;
    for_levels(check_reductions);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_exp),        cmocka_unit_test(test_exact_points),
        cmocka_unit_test(test_log_sincos), cmocka_unit_test(test_halves),
        cmocka_unit_test(test_lanes),      cmocka_unit_test(test_int_lanes),
        cmocka_unit_test(test_reductions),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

// SPDX-License-Identifier: Apache-2.0
// Elementary functions of our own, so that results do not depend on the C library. Elementwise: a
// lane's result does not depend on its neighbours. Errors are against the exact value, in units of
// the last place of the result; tests/kernels/test_math.c checks them.
#pragma once
#include "kernels/cpu/isa/vec.h"

// e^x, at most 2 ulp: 2^n * e^r with n = rint(x / ln 2), |r| <= ln(2) / 2, e^r = 1 + r + r^2 q(r),
// q near-minimax of degree 4. Subnormal results are rounded as such; -inf gives 0, NaN gives NaN.
V_FN v16f v_exp(v16f x) {
    x = v_max(v_set1(-104.0f), v_min(v_set1(89.0f), x)); // operand order lets a NaN through
    v16f n = v_rint(v_mul(x, v_set1(0x1.715476p+0f)));
    v16f r = v_fnma(n, v_set1(0x1.62e4p-1f), x); // exact: the constant has 15 bits
    r = v_fnma(n, v_set1(0x1.7f7d1cp-20f), r);
    v16f q = v_fma(v_set1(0x1.6d117cp-10f), r, v_set1(0x1.120be2p-7f));
    q = v_fma(q, r, v_set1(0x1.555518p-5f));
    q = v_fma(q, r, v_set1(0x1.5554dcp-3f));
    q = v_fma(q, r, v_set1(0.5f));
    v16f e = v_add(v_set1(1.0f), v_fma(v_mul(r, r), q, r));
    return v_scale2(e, n);
}

// 2^x for x <= 0, at most 2 ulp; results below 2^-126 are 0. What softmax uses, with log2(e) in its
// scale: no multiplication and no subnormals. NaN gives NaN.
V_FN v16f v_exp2_neg(v16f x) {
    v16m tiny = v_lt(x, v_set1(-126.0f));
#if !defined(KN_ISA_AVX512)
    x = v_max(v_set1(-126.0f), x); // n + 127 must be an exponent; v_scale2 takes any n
#endif
    v16f n = v_rint(x), r = v_sub(x, n);
    v16f q = v_fma(v_set1(0x1.441412p-13f), r, v_set1(0x1.5f0956p-10f));
    q = v_fma(q, r, v_set1(0x1.3b2a52p-7f));
    q = v_fma(q, r, v_set1(0x1.c6af6cp-5f));
    q = v_fma(q, r, v_set1(0x1.ebfbe0p-3f));
    q = v_fma(q, r, v_set1(0x1.62e430p-1f));
    v16f e = v_fma(q, r, v_set1(1.0f)); // [0.7, 1.42]: adding n to the exponent cannot overflow it
#if defined(KN_ISA_AVX512)
    e = v_scale2(e, n);
#else
    e = v_from_bits(vi_add(v_bits(e), vi_sll(v_cvt_i(n), 23)));
#endif
    return v_select(tiny, v_zero(), e);
}

// x / (1 + e^-x); at most 4 ulp for |x| < 80, and -0 far below.
V_FN v16f v_silu(v16f x) {
    return v_div(x, v_add(v_set1(1.0f), v_exp(v_neg(x))));
}

// ln(x) for positive, finite, normal x; relative error below 1e-15. With x = m * 2^e, m in [sqrt
// 1/2, sqrt 2), ln m = 2 artanh(s), s = (m - 1) / (m + 1), as a series in s^2.
V_FN double m_log(double x) {
    uint64_t u;
    memcpy(&u, &x, sizeof u);
    int e = (int)(u >> 52) - 1022;
    u = (u & 0xfffffffffffffu) | 0x3fe0000000000000u; // m in [0.5, 1)
    double m;
    memcpy(&m, &u, sizeof m);
    if (m < 0x1.6a09e667f3bcdp-1) {
        m += m;
        e--;
    }
    double s = (m - 1.0) / (m + 1.0), z = s * s, p = 0.0;
    for (int k = 23; k >= 3; k -= 2)
        p = (p + 1.0 / k) * z;
    // ln 2 in two parts; the first has 32 bits, so that e times it is exact
    return e * 0x1.62e42feep-1 + (2.0 * s + (2.0 * s * p + e * 0x1.a39ef35793c76p-33));
}

// Sine and cosine of an angle up to 2^24 in magnitude, rounded from f64: below 0.51 ulp unless the
// result is within 1e-9 of zero. Reduced by pi / 2 in two parts (the first has 33 bits, so that n
// times it is exact), then Taylor series, whose rest is below 1e-16 on [-pi/4, pi/4].
V_FN void m_sincos(double x, double *sin_out, double *cos_out) {
    double t = x * 0x1.45f306dc9c883p-1 + 0x1.8p52, n = t - 0x1.8p52;
    uint64_t k; // its low bits are the quadrant
    memcpy(&k, &t, sizeof k);
    double r = (x - n * 0x1.921fb544p+0) - n * 0x1.0b4611a626331p-34, z = r * r;
    double s = -1.0 / 1307674368000.0, c = -1.0 / 87178291200.0;
    s = s * z + 1.0 / 6227020800.0;
    c = c * z + 1.0 / 479001600.0;
    s = s * z - 1.0 / 39916800.0;
    c = c * z - 1.0 / 3628800.0;
    s = s * z + 1.0 / 362880.0;
    c = c * z + 1.0 / 40320.0;
    s = s * z - 1.0 / 5040.0;
    c = c * z - 1.0 / 720.0;
    s = s * z + 1.0 / 120.0;
    c = c * z + 1.0 / 24.0;
    s = s * z - 1.0 / 6.0;
    c = c * z - 0.5;
    s = r + r * (z * s);
    c = 1.0 + z * c;
    double a = k & 1 ? c : s, b = k & 1 ? s : c;
    *sin_out = k & 2 ? -a : a;
    *cos_out = (k + 1) & 2 ? -b : b;
}

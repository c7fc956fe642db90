// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/cpuid.h"

bool cpu_has_portable(void) {
    return true;
}

#if defined(__x86_64__)
#include <cpuid.h>
#include <stdint.h>

// CPUID leaf 1 ECX, leaf 7 EBX, ECX and (subleaf 1) EAX, XCR0: Intel SDM volume 1, 14.3 and 15.2.
enum {
    L1_FMA = 1 << 12,
    L1_OSXSAVE = 1 << 27,
    L1_AVX = 1 << 28,
    L1_F16C = 1 << 29,
    L7B_AVX2 = 1 << 5,
    L7B_AVX512F = 1 << 16,
    L7B_AVX512DQ = 1 << 17,
    L7B_AVX512BW = 1 << 30,
    L7C_AVX512VNNI = 1 << 11,
    L7A1_AVX512BF16 = 1 << 5, // subleaf 1, EAX
    XCR0_YMM = 0x06,          // SSE and AVX state
    XCR0_ZMM = 0xe6,          // and opmask, both ZMM halves
};
#define L7B_AVX512VL (1u << 31)

struct features {
    uint32_t l1c, l7b, l7c, l7a1, xcr0;
};

static struct features read_features(void) {
    struct features f = {0};
    uint32_t a, b, c, d;
    if (!__get_cpuid(1, &a, &b, &c, &d))
        return f;
    f.l1c = c;
    if (__get_cpuid_count(7, 0, &a, &b, &c, &d)) {
        f.l7b = b;
        f.l7c = c;
    }
    if (__get_cpuid_count(7, 1, &a, &b, &c, &d))
        f.l7a1 = a;
    if (f.l1c & L1_OSXSAVE) {
        uint32_t lo, hi;
        __asm__("xgetbv" : "=a"(lo), "=d"(hi) : "c"(0));
        f.xcr0 = lo;
    }
    return f;
}

static bool all(uint32_t have, uint32_t want) {
    return (have & want) == want;
}

bool cpu_has_avx2(void) {
    struct features f = read_features();
    return all(f.xcr0, XCR0_YMM) && all(f.l1c, L1_AVX | L1_FMA | L1_F16C) && all(f.l7b, L7B_AVX2);
}

bool cpu_has_avx512(void) {
    struct features f = read_features();
    return cpu_has_avx2() && all(f.xcr0, XCR0_ZMM) &&
           all(f.l7b, L7B_AVX512F | L7B_AVX512DQ | L7B_AVX512BW | L7B_AVX512VL) &&
           all(f.l7c, L7C_AVX512VNNI);
}

bool cpu_has_avx512bf16(void) {
    return cpu_has_avx512() && all(read_features().l7a1, L7A1_AVX512BF16);
}
#else
bool cpu_has_avx2(void) {
    return false;
}

bool cpu_has_avx512(void) {
    return false;
}

bool cpu_has_avx512bf16(void) {
    return false;
}
#endif

// SPDX-License-Identifier: Apache-2.0
// Vectors of 16 lanes: v16f (float), v16i (int32), v16m (one truth value per lane). The kernels are
// written once over these; avx512 keeps one in a zmm register, avx2 in two ymm, portable in four
// 16-byte vectors of the compiler. Include this header in a file compiled with KN_ISA set.
//
// Names: v_ works on floats, vi_ on integers, vm_ on masks. Every operation here is elementwise or
// has one fixed order, so it gives the same bits wherever it is used within one ISA level. v_fma
// rounds once on avx512 and avx2, twice in portable.
//
// Per level: v_zero set1 load store load_n store_n add sub mul div sqrt fma fnma min max rint
// select lt gt eq bits from_bits cvt_i load_f16 scale2 sum hmax; vi_zero set1 load store load_u16
// store_u16 store_i8 add sub mul and or xor andnot sll srl sra min max gt eq select cvt_f sum hmax;
// vm_first and or not bits from_bits.
#pragma once
#include "kernels/cpu/isa/isa.h"
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define V_FN static inline __attribute__((always_inline))

enum { V_LANES = 16 };

// Before a loop of constant length: unroll it, so that arrays of vectors live in registers.
#if defined(__clang__)
#define V_UNROLL _Pragma("clang loop unroll(full)")
#else
#define V_UNROLL _Pragma("GCC unroll 16")
#endif

// VEC_REGS: how many v16f the register file holds.
#if defined(KN_ISA_AVX512)
#include "kernels/cpu/isa/vec_avx512.h"
enum { VEC_REGS = 32 };
#elif defined(KN_ISA_AVX2)
#include "kernels/cpu/isa/vec_avx2.h"
enum { VEC_REGS = 8 };
#else
#include "kernels/cpu/isa/vec_portable.h"
enum { VEC_REGS = 4 };
#endif

V_FN v16f v_abs(v16f a) {
    return v_from_bits(vi_and(v_bits(a), vi_set1(0x7fffffff)));
}

V_FN v16f v_neg(v16f a) {
    return v_from_bits(vi_xor(v_bits(a), vi_set1(INT32_MIN)));
}

// Sixteen words that hold pairs of bf16: the low half's and the high half's values.
V_FN v16f v_bf16_even(v16i pairs) {
    return v_from_bits(vi_sll(pairs, 16));
}

V_FN v16f v_bf16_odd(v16i pairs) {
    return v_from_bits(vi_and(pairs, vi_set1((int32_t)0xffff0000u)));
}

V_FN v16f v_load_bf16(const uint16_t *p) {
    return v_from_bits(vi_sll(vi_load_u16(p), 16));
}

// bf16 bits in the low half of each lane: round to nearest even; a NaN stays one (made quiet).
V_FN v16i v_to_bf16(v16f a) {
    v16i u = v_bits(a);
    v16i odd = vi_and(vi_srl(u, 16), vi_set1(1));
    v16i rounded = vi_srl(vi_add(u, vi_add(odd, vi_set1(0x7fff))), 16);
    v16i quiet = vi_or(vi_srl(u, 16), vi_set1(0x40));
    v16m nan = vi_gt(vi_and(u, vi_set1(0x7fffffff)), vi_set1(0x7f800000));
    return vi_select(nan, quiet, rounded);
}

V_FN void v_store_bf16(uint16_t *p, v16f a) {
    vi_store_u16(p, v_to_bf16(a));
}

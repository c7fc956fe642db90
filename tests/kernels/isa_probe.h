// SPDX-License-Identifier: Apache-2.0
// The vector operations of one ISA level as plain functions on arrays, for test_math.c.
#pragma once
#include <stdbool.h>
#include <stdint.h>

struct isa_probe {
    const char *name;
    bool fma; // v_fma rounds once
    // n is a multiple of 16
    void (*exp)(const float *x, float *y, int32_t n);
    void (*exp2_neg)(const float *x, float *y, int32_t n);
    void (*silu)(const float *x, float *y, int32_t n);
    void (*from_f16)(const uint16_t *x, float *y, int32_t n);
    void (*from_bf16)(const uint16_t *x, float *y, int32_t n);
    void (*to_bf16)(const float *x, uint16_t *y, int32_t n);
    double (*log)(double x);
    void (*sincos)(double x, double *s, double *c);
    // One operation on 16 lanes; `op` is one of PROBE_...
    void (*lanes)(int op, const float *a, const float *b, const float *c, float *y);
    void (*int_lanes)(int op, const int32_t *a, const int32_t *b, int32_t *y);
    float (*reduce)(int op, const float *a);
    int32_t (*int_reduce)(int op, const int32_t *a);
    void (*load_store_n)(const float *x, float *y, int32_t n);
    uint32_t (*mask)(int op, uint32_t a, uint32_t b); // of bits
};

enum {
    PROBE_ADD,
    PROBE_SUB,
    PROBE_MUL,
    PROBE_DIV,
    PROBE_FMA,
    PROBE_FNMA,
    PROBE_MIN,
    PROBE_MAX,
    PROBE_SQRT,
    PROBE_RINT,
    PROBE_LT, // ? c : a
    PROBE_GT,
    PROBE_EQ,
    PROBE_ABS,
    PROBE_NEG,
    PROBE_SCALE2,
    PROBE_FLOAT_OPS,
};
enum {
    PROBE_IADD,
    PROBE_ISUB,
    PROBE_IMUL,
    PROBE_AND,
    PROBE_OR,
    PROBE_XOR,
    PROBE_ANDNOT,
    PROBE_SLL5,
    PROBE_SRL5,
    PROBE_SRA5,
    PROBE_IMIN,
    PROBE_IMAX,
    PROBE_IGT, // ? a : b
    PROBE_IEQ,
    PROBE_CVT,  // of a as float bits in [-2^22, 2^22]
    PROBE_CVTF, // to float bits
    PROBE_I8,   // stored as bytes, read back
    PROBE_U16,  // stored as halves, read back
    PROBE_EVEN, // bf16 halves as float bits
    PROBE_ODD,
    PROBE_INT_OPS,
};
enum { PROBE_SUM, PROBE_HMAX };
enum { PROBE_MAND, PROBE_MOR, PROBE_MNOT, PROBE_FIRST };

extern const struct isa_probe isa_probe_avx512bf16, isa_probe_avx512, isa_probe_avx2,
    isa_probe_portable;

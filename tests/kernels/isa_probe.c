// SPDX-License-Identifier: Apache-2.0
// Compiled once per ISA level, with that level's flags.
#include "isa_probe.h"
#include "kernels/cpu/isa/math.h"

#define MAP(load, store, f)                                                                        \
    for (int32_t i = 0; i < n; i += V_LANES)                                                       \
    store(y + i, f(load(x + i)))

static void probe_exp(const float *x, float *y, int32_t n) {
    MAP(v_load, v_store, v_exp);
}
static void probe_exp2_neg(const float *x, float *y, int32_t n) {
    MAP(v_load, v_store, v_exp2_neg);
}
static void probe_silu(const float *x, float *y, int32_t n) {
    MAP(v_load, v_store, v_silu);
}
static void probe_from_f16(const uint16_t *x, float *y, int32_t n) {
    MAP(v_load_f16, v_store, );
}
static void probe_from_bf16(const uint16_t *x, float *y, int32_t n) {
    MAP(v_load_bf16, v_store, );
}
static void probe_to_bf16(const float *x, uint16_t *y, int32_t n) {
    MAP(v_load, v_store_bf16, );
}

static double probe_log(double x) {
    return m_log(x);
}
static void probe_sincos(double x, double *s, double *c) {
    m_sincos(x, s, c);
}

static void probe_lanes(int op, const float *pa, const float *pb, const float *pc, float *y) {
    v16f a = v_load(pa), b = v_load(pb), c = v_load(pc), r = v_zero();
    switch (op) {
    case PROBE_ADD:
        r = v_add(a, b);
        break;
    case PROBE_SUB:
        r = v_sub(a, b);
        break;
    case PROBE_MUL:
        r = v_mul(a, b);
        break;
    case PROBE_DIV:
        r = v_div(a, b);
        break;
    case PROBE_FMA:
        r = v_fma(a, b, c);
        break;
    case PROBE_FNMA:
        r = v_fnma(a, b, c);
        break;
    case PROBE_MIN:
        r = v_min(a, b);
        break;
    case PROBE_MAX:
        r = v_max(a, b);
        break;
    case PROBE_SQRT:
        r = v_sqrt(a);
        break;
    case PROBE_RINT:
        r = v_rint(a);
        break;
    case PROBE_LT:
        r = v_select(v_lt(a, b), c, a);
        break;
    case PROBE_GT:
        r = v_select(v_gt(a, b), c, a);
        break;
    case PROBE_EQ:
        r = v_select(v_eq(a, b), c, a);
        break;
    case PROBE_ABS:
        r = v_abs(a);
        break;
    case PROBE_NEG:
        r = v_neg(a);
        break;
    case PROBE_SCALE2:
        r = v_scale2(a, b);
        break;
    default:
        break;
    }
    v_store(y, r);
}

static void probe_int_lanes(int op, const int32_t *pa, const int32_t *pb, int32_t *y) {
    v16i a = vi_load(pa), b = vi_load(pb), r = vi_zero();
    int8_t bytes[V_LANES];
    uint16_t halves[V_LANES];
    switch (op) {
    case PROBE_IADD:
        r = vi_add(a, b);
        break;
    case PROBE_ISUB:
        r = vi_sub(a, b);
        break;
    case PROBE_IMUL:
        r = vi_mul(a, b);
        break;
    case PROBE_AND:
        r = vi_and(a, b);
        break;
    case PROBE_OR:
        r = vi_or(a, b);
        break;
    case PROBE_XOR:
        r = vi_xor(a, b);
        break;
    case PROBE_ANDNOT:
        r = vi_andnot(a, b);
        break;
    case PROBE_SLL5:
        r = vi_sll(a, 5);
        break;
    case PROBE_SRL5:
        r = vi_srl(a, 5);
        break;
    case PROBE_SRA5:
        r = vi_sra(a, 5);
        break;
    case PROBE_IMIN:
        r = vi_min(a, b);
        break;
    case PROBE_IMAX:
        r = vi_max(a, b);
        break;
    case PROBE_IGT:
        r = vi_select(vi_gt(a, b), a, b);
        break;
    case PROBE_IEQ:
        r = vi_select(vi_eq(a, b), a, b);
        break;
    case PROBE_CVT:
        r = v_cvt_i(v_from_bits(a));
        break;
    case PROBE_CVTF:
        r = v_bits(vi_cvt_f(a));
        break;
    case PROBE_EVEN:
        r = v_bits(v_bf16_even(a));
        break;
    case PROBE_ODD:
        r = v_bits(v_bf16_odd(a));
        break;
    case PROBE_U16:
        vi_store_u16(halves, a);
        r = vi_load_u16(halves);
        break;
    case PROBE_I8:
        vi_store_i8(bytes, a);
        for (int i = 0; i < V_LANES; i++)
            y[i] = bytes[i]; // NOLINT(bugprone-signed-char-misuse): numbers, not characters
        return;
    default:
        break;
    }
    vi_store(y, r);
}

static float probe_reduce(int op, const float *a) {
    return op == PROBE_SUM ? v_sum(v_load(a)) : v_hmax(v_load(a));
}
static int32_t probe_int_reduce(int op, const int32_t *a) {
    return op == PROBE_SUM ? vi_sum(vi_load(a)) : vi_hmax(vi_load(a));
}
static void probe_load_store_n(const float *x, float *y, int32_t n) {
    v_store_n(y, n, v_load_n(x, n));
}
static uint32_t probe_mask(int op, uint32_t a, uint32_t b) {
    v16m x = vm_from_bits(a), y = vm_from_bits(b);
    return vm_bits(op == PROBE_MAND   ? vm_and(x, y)
                   : op == PROBE_MOR  ? vm_or(x, y)
                   : op == PROBE_MNOT ? vm_not(x)
                                      : vm_first((int32_t)a));
}

#define STRING2(x) #x
#define STRING(x) STRING2(x)
const struct isa_probe ISA(isa_probe) = {
    .name = STRING(KN_ISA),
#if defined(KN_ISA_AVX512) || defined(KN_ISA_AVX2)
    .fma = true,
#endif
    .exp = probe_exp,
    .exp2_neg = probe_exp2_neg,
    .silu = probe_silu,
    .from_f16 = probe_from_f16,
    .from_bf16 = probe_from_bf16,
    .to_bf16 = probe_to_bf16,
    .log = probe_log,
    .sincos = probe_sincos,
    .lanes = probe_lanes,
    .int_lanes = probe_int_lanes,
    .reduce = probe_reduce,
    .int_reduce = probe_int_reduce,
    .load_store_n = probe_load_store_n,
    .mask = probe_mask,
};

// SPDX-License-Identifier: Apache-2.0
// Products with Q8_0, Q4_0 and Q4_1 weights: integer dot products per block of 32 columns, then
// both scales. A tile is up to D_ROWS rows times a pair of panels; its integer sums and its float
// sums are in registers. For many rows, 4-bit weights are unpacked once per block of rows.
#include "kernels/cpu/isa/dot.h"
#include "kernels/cpu/isa/gemm_internal.h"

enum {
    SUMS_BYTES = 256 << 10, // of the scratch memory; the unpacked weights follow
    X_BYTES = 384 << 10,    // of x that a strip keeps in the second cache
    // From here on unpacking once pays; the other levels' dot products want nibbles.
    UNPACK_ROWS = VEC_REGS >= 32 ? 96 : INT32_MAX,
    UNPACK_BLOCKS = 512, // columns of an unpacked pair, in blocks
    BLOCK_ROWS = 144,
    AHEAD = 8192, // bytes that a stream is prefetched ahead: the latency of memory
    LINE = 64,
};

// Kinds of blocks that the tiles read. U4 is a 4-bit type unpacked to bytes.
enum kind { KIND_Q8_0, KIND_Q4_0, KIND_Q4_1, KIND_U4_0, KIND_U4_1, KINDS };

struct tile {
    const uint8_t *w; // the pair's first block
    int32_t blocks;
    const struct cpu_q8_block *x;
    int64_t ldx; // blocks between rows
    float *sums;
    int64_t ld_sums;
    bool add; // on top of earlier blocks
    // With each block, bytes [ahead_lo, ahead_hi) of a block there are prefetched.
    const uint8_t *ahead;
    size_t ahead_step;
    uint32_t ahead_lo, ahead_hi;
    struct gemm_fetch *fetch; // never NULL
};

V_FN size_t kind_quants(const enum kind k) { // bytes of both panels' quants
    return k == KIND_Q4_0 || k == KIND_Q4_1 ? 512 : 1024;
}

V_FN size_t kind_block(const enum kind k) {
    return kind_quants(k) + (k == KIND_Q4_1 || k == KIND_U4_1 ? 128 : 64);
}

V_FN const uint16_t *halves(const uint8_t *p) {
    return (const uint16_t *)(const void *)p;
}

// What one block adds to the float sums f[.][2] of mr rows.
V_FN void scale_block(const enum kind k, const int mr, const uint8_t *scales,
                      const struct cpu_q8_block *x, int64_t ldx, v16i acc[][2], v16f f[][2]) {
    v16f s0 = v_load_f16(halves(scales)), s1 = v_load_f16(halves(scales + 32));
    V_UNROLL
    for (int i = 0; i < mr; i++) {
        v16f d = v_set1(x[i * ldx].d);
        f[i][0] = v_fma(vi_cvt_f(acc[i][0]), v_mul(s0, d), f[i][0]);
        f[i][1] = v_fma(vi_cvt_f(acc[i][1]), v_mul(s1, d), f[i][1]);
    }
    if (k != KIND_Q4_1 && k != KIND_U4_1)
        return;
    v16f m0 = v_load_f16(halves(scales + 64)), m1 = v_load_f16(halves(scales + 96));
    V_UNROLL
    for (int i = 0; i < mr; i++) {
        v16f sum = v_set1(x[i * ldx].dsum);
        f[i][0] = v_fma(m0, sum, f[i][0]);
        f[i][1] = v_fma(m1, sum, f[i][1]);
    }
}

V_FN void all_blocks(const enum kind k, const int mr, const struct tile *a) {
    const int bits = k == KIND_Q4_0 || k == KIND_Q4_1 ? 4 : 8;
    const enum dot_start start = k == KIND_Q8_0                     ? DOT_FROM_OFF8
                                 : k == KIND_Q4_0 || k == KIND_U4_0 ? DOT_FROM_OFF4
                                                                    : DOT_FROM_0;
    v16i acc[D_ROWS][2];
    v16f f[D_ROWS][2];
    const uint8_t *w = a->w, *ahead = a->ahead;
    uint32_t fetched = a->fetch->done;
    V_UNROLL
    for (int i = 0; i < mr; i++) {
        const float *at = a->sums + i * a->ld_sums;
        f[i][0] = a->add ? v_load(at) : v_zero();
        f[i][1] = a->add ? v_load(at + V_LANES) : v_zero();
    }
    for (int32_t b = 0; b < a->blocks; b++, w += kind_block(k), ahead += a->ahead_step) {
        for (uint32_t o = a->ahead_lo; o < a->ahead_hi; o += LINE)
            __builtin_prefetch(ahead + o, 0, 3);
        fetched = gemm_fetch_step(a->fetch, fetched);
        dot_block(bits, start, mr, w, a->x + b, a->ldx, acc);
        dot_outliers(bits, mr, w, a->x + b, a->ldx, acc);
        scale_block(k, mr, w + kind_quants(k), a->x + b, a->ldx, acc, f);
    }
    a->fetch->done = fetched;
    V_UNROLL
    for (int i = 0; i < mr; i++) {
        v_store(a->sums + i * a->ld_sums, f[i][0]);
        v_store(a->sums + i * a->ld_sums + V_LANES, f[i][1]);
    }
}

// ---- one function per kind and height

#if defined(KN_ISA_AVX512)
#define HEIGHTS(K, X) X(K, 1) X(K, 2) X(K, 3) X(K, 4) X(K, 5) X(K, 6)
#elif defined(KN_ISA_AVX2)
#define HEIGHTS(K, X) X(K, 1) X(K, 2) X(K, 3) X(K, 4)
#else
#define HEIGHTS(K, X) X(K, 1) X(K, 2)
#endif

#define TILE_FN(K, mr)                                                                             \
    static void tile_##K##_##mr(const struct tile *a) {                                            \
        all_blocks(KIND_##K, mr, a);                                                               \
    }
HEIGHTS(Q8_0, TILE_FN)
HEIGHTS(Q4_0, TILE_FN)
HEIGHTS(Q4_1, TILE_FN)
HEIGHTS(U4_0, TILE_FN)
HEIGHTS(U4_1, TILE_FN)

typedef void (*tile_fn)(const struct tile *a);
#define TILE_ENTRY(K, mr) [KIND_##K][mr - 1] = tile_##K##_##mr,
static const tile_fn tiles[KINDS][D_ROWS] = {HEIGHTS(Q8_0, TILE_ENTRY) HEIGHTS(Q4_0, TILE_ENTRY)
                                                 HEIGHTS(Q4_1, TILE_ENTRY) HEIGHTS(U4_0, TILE_ENTRY)
                                                     HEIGHTS(U4_1, TILE_ENTRY)};

// ---- strips

// A pair's 4-bit blocks to bytes, in the order of columns; scales and minima are copied.
static void unpack(enum kind k, const uint8_t *w, int32_t blocks, uint8_t *out) {
    const v16i low = vi_set1(0x0f0f0f0f);
    size_t tail = k == KIND_Q4_1 ? 128 : 64;
    for (int32_t b = 0; b < blocks; b++, w += 512 + tail, out += 1024 + tail) {
        for (size_t h = 0; h < 2; h++)
            for (size_t t = 0; t < 4; t++) {
                v16i q = vi_load(w + h * 256 + t * LINE);
                vi_store(out + h * 512 + t * LINE, vi_and(q, low));
                vi_store(out + h * 512 + (t + 4) * LINE, vi_and(vi_srl(q, 4), low));
            }
        memcpy(out + 1024, w + 512, tail);
    }
}

static enum kind kind_of(enum kn_dtype t) {
    return t == KN_Q8_0 ? KIND_Q8_0 : t == KN_Q4_0 ? KIND_Q4_0 : KIND_Q4_1;
}

int32_t ISA(gemm_quant_rows)(const struct kn_weight *w) {
    (void)w;
    return BLOCK_ROWS;
}

// All rows of the strip times blocks of one pair. One tile prefetches its own stream; several share
// the work of fetching the same blocks of the next pair, so that memory is never idle.
static void rows_of_tiles(enum kind k, struct tile a, int32_t rows) {
    int32_t n = (rows + D_ROWS - 1) / D_ROWS;
    const struct cpu_q8_block *x = a.x;
    float *sums = a.sums;
    uint32_t lines = a.ahead_hi / LINE;
    for (int32_t i = 0; i < n; i++) {
        int32_t r0 = gemm_tile_row(rows, n, i), r1 = gemm_tile_row(rows, n, i + 1);
        a.x = x + r0 * a.ldx;
        a.sums = sums + r0 * a.ld_sums;
        a.ahead_lo = lines * (uint32_t)i / (uint32_t)n * LINE;
        a.ahead_hi = lines * (uint32_t)(i + 1) / (uint32_t)n * LINE;
        tiles[k][r1 - r0 - 1](&a);
    }
}

// Blocks [b, b + n) for pairs [pair0, pair0 + pairs): sums [rows][pairs][32].
static void add_blocks(const struct gemm_strip *s, int32_t pair0, int32_t pairs, int32_t b,
                       int32_t n, float *sums) {
    const struct kn_gemm *p = s->p;
    enum kind k = kind_of(s->seg->dtype);
    size_t block = kind_block(k), pair_bytes = s->seg->pair_bytes;
    int64_t nb = p->w->k / CPU_QBLOCK;
    bool one_tile = s->rows <= D_ROWS;
    uint8_t *unpacked = (uint8_t *)s->scratch + SUMS_BYTES;
    bool unpacks = k != KIND_Q8_0 && s->rows >= UNPACK_ROWS;
    struct gemm_fetch nothing = {0};
    for (int32_t i = 0; i < pairs; i++) {
        const uint8_t *w = s->seg->data + (size_t)(pair0 + i) * pair_bytes + (size_t)b * block;
        struct tile a = {.w = w,
                         .blocks = n,
                         .x = (const struct cpu_q8_block *)p->x + s->row0 * nb + b,
                         .ldx = nb,
                         .sums = sums + i * CPU_PAIR,
                         .ld_sums = (int64_t)pairs * CPU_PAIR,
                         .add = b > 0,
                         .ahead = w + (one_tile ? AHEAD : pair_bytes),
                         .ahead_step = block,
                         .ahead_hi = (uint32_t)block,
                         .fetch = s->fetch ? s->fetch : &nothing};
        if (unpacks) {
            unpack(k, w, n, unpacked);
            a.w = unpacked;
        }
        rows_of_tiles(unpacks ? (k == KIND_Q4_0 ? KIND_U4_0 : KIND_U4_1) : k, a, s->rows);
    }
}

void ISA(gemm_quant)(const struct gemm_strip *s) {
    int32_t nb = s->p->w->k / CPU_QBLOCK;
    int32_t most = SUMS_BYTES / (s->rows * CPU_PAIR * (int32_t)sizeof(float));
    int32_t blocks = nb; // at once
    if (s->rows > D_ROWS) {
        blocks = X_BYTES / (s->rows * (int32_t)sizeof(struct cpu_q8_block));
        blocks = blocks < UNPACK_BLOCKS ? blocks : UNPACK_BLOCKS;
    }
    float *sums = (float *)(void *)s->scratch;
    if (s->fetch)
        gemm_fetch_plan(s->fetch, (uint32_t)((s->rows + D_ROWS - 1) / D_ROWS * nb * s->pairs));
    for (int32_t i = 0, n; i < s->pairs; i += n) {
        n = s->pairs - i < most ? s->pairs - i : most;
        for (int32_t b = 0; b < nb; b += blocks)
            add_blocks(s, s->pair0 + i, n, b, nb - b < blocks ? nb - b : blocks, sums);
        ISA(gemm_finish)(s, s->pair0 + i, n, sums);
    }
}

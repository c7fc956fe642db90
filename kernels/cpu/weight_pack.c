// SPDX-License-Identifier: Apache-2.0
// From file blocks to panels, bit by bit the same quants. Nearly every type is a transposition of
// 32-bit words: a word of a row goes to the row's lane.
#include "kernels/cpu/weight.h"
#include <string.h>

enum { VECTOR = CPU_VECTOR, STEP = 2 * VECTOR, TILE = 16 };

size_t cpu_pair_bytes(enum kn_dtype t, int32_t k) {
    size_t cols = (size_t)k;
    if (cpu_dtype_quantised(t))
        return cols / CPU_QBLOCK * cpu_block_bytes(t);
    return (t == KN_F32 ? cols : (cols + 1) / 2) * STEP;
}

static uint32_t load_word(const uint8_t *p) {
    uint32_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

static void store_word(uint8_t *p, uint32_t v) {
    memcpy(p, &v, sizeof v);
}

// ---- plain types

// n words of each row to the panel's vectors, which alternate with the other panel's. In tiles of
// 16 words: a tile of the rows and one of the vectors stay in the nearest cache.
static void pack_words(const uint8_t *const rows[CPU_PANEL], size_t n, uint8_t *dst) {
    for (size_t w0 = 0; w0 < n; w0 += TILE) {
        size_t len = n - w0 < TILE ? n - w0 : TILE;
        for (size_t lane = 0; lane < CPU_PANEL; lane++) {
            if (!rows[lane])
                continue;
            const uint8_t *src = rows[lane] + w0 * 4;
            uint8_t *out = dst + w0 * STEP + lane * 4;
            for (size_t w = 0; w < len; w++)
                store_word(out + w * STEP, load_word(src + w * 4));
        }
    }
}

static void pack_bf16(const uint8_t *const rows[CPU_PANEL], size_t k, uint8_t *dst) {
    pack_words(rows, k / 2, dst);
    if (k % 2)
        for (size_t lane = 0; lane < CPU_PANEL; lane++)
            if (rows[lane])
                memcpy(dst + k / 2 * STEP + lane * 4, rows[lane] + (k - 1) * 2, 2);
}

static void pack_f16(const uint8_t *const rows[CPU_PANEL], size_t k, uint8_t *dst) {
    for (size_t c0 = 0; c0 < k; c0 += TILE) {
        size_t end = k - c0 < TILE ? k : c0 + TILE;
        for (size_t lane = 0; lane < CPU_PANEL; lane++)
            for (size_t c = c0; rows[lane] && c < end; c++)
                memcpy(dst + c / 2 * STEP + c % 2 * (VECTOR / 2) + lane * 2, rows[lane] + c * 2, 2);
    }
}

static void pack_plain(enum kn_dtype t, size_t k, const uint8_t *const rows[CPU_PAIR],
                       uint8_t *dst) {
    for (int h = 0; h < 2; h++, rows += CPU_PANEL, dst += VECTOR) {
        if (t == KN_F32)
            pack_words(rows, k, dst);
        else if (t == KN_BF16)
            pack_bf16(rows, k, dst);
        else
            pack_f16(rows, k, dst);
    }
}

// ---- quantised types

// One row's block: f16 scale, (Q4_1) f16 minimum, quants; to its lane of a pair's block.
static inline void pack_block(enum kn_dtype t, const uint8_t *src, uint8_t *blk, size_t row) {
    const size_t quants = cpu_quant_bytes(t), words = quants / VECTOR, head = t == KN_Q4_1 ? 4 : 2;
    const uint32_t flip = t == KN_Q8_0 ? 0x80808080u : 0; // signed to offset by 128
    uint8_t *out = blk + row / CPU_PANEL * quants + row % CPU_PANEL * 4;
    for (size_t w = 0; w < words; w++)
        store_word(out + w * VECTOR, load_word(src + head + w * 4) ^ flip);
    memcpy(blk + 2 * quants + row * 2, src, 2);
    if (t == KN_Q4_1)
        memcpy(blk + 2 * quants + 64 + row * 2, src + 2, 2);
}

static inline void pack_blocks(enum kn_dtype t, size_t nb, const uint8_t *const rows[CPU_PAIR],
                               uint8_t *dst) {
    const size_t src_bytes = kn_dtype_block_bytes(t), dst_bytes = cpu_block_bytes(t);
    for (size_t b = 0; b < nb; b++)
        for (size_t row = 0; row < CPU_PAIR; row++)
            if (rows[row])
                pack_block(t, rows[row] + b * src_bytes, dst + b * dst_bytes, row);
}

void cpu_pack_pair(enum kn_dtype t, int32_t k, const uint8_t *const rows[CPU_PAIR], uint8_t *dst) {
    size_t nb = (size_t)k / CPU_QBLOCK;
    // The type is a constant in each call, so that each gets loops of its own.
    if (t == KN_Q8_0)
        pack_blocks(KN_Q8_0, nb, rows, dst);
    else if (t == KN_Q4_0)
        pack_blocks(KN_Q4_0, nb, rows, dst);
    else if (t == KN_Q4_1)
        pack_blocks(KN_Q4_1, nb, rows, dst);
    else
        pack_plain(t, (size_t)k, rows, dst);
}

// ---- back to rows

static void unpack_block(enum kn_dtype t, const uint8_t *blk, int half, int lane, float *out) {
    size_t quants = cpu_quant_bytes(t), row = (size_t)half * CPU_PANEL + (size_t)lane;
    const uint8_t *q = blk + (size_t)half * quants + (size_t)lane * 4;
    uint8_t file[40]; // the block as the file has it
    size_t head = t == KN_Q4_1 ? 4 : 2;
    uint32_t flip = t == KN_Q8_0 ? 0x80808080u : 0;
    memcpy(file, blk + 2 * quants + row * 2, 2);
    if (t == KN_Q4_1)
        memcpy(file + 2, blk + 2 * quants + 64 + row * 2, 2);
    for (size_t w = 0; w < quants / VECTOR; w++)
        store_word(file + head + w * 4, load_word(q + w * VECTOR) ^ flip);
    kn_dequantize(t, file, out, CPU_QBLOCK);
}

void cpu_unpack_row(enum kn_dtype t, int32_t k, const uint8_t *pair, int half, int lane,
                    float *out) {
    if (cpu_dtype_quantised(t)) {
        for (int32_t b = 0; b < k / CPU_QBLOCK; b++)
            unpack_block(t, pair + (size_t)b * cpu_block_bytes(t), half, lane,
                         out + b * CPU_QBLOCK);
        return;
    }
    const uint8_t *panel = pair + (size_t)half * VECTOR;
    for (int32_t c = 0; c < k; c++) {
        size_t col = (size_t)c, at;
        if (t == KN_F32)
            at = col * STEP + (size_t)lane * 4;
        else if (t == KN_BF16)
            at = col / 2 * STEP + (size_t)lane * 4 + col % 2 * 2;
        else
            at = col / 2 * STEP + col % 2 * (VECTOR / 2) + (size_t)lane * 2;
        kn_dequantize(t, panel + at, out + c, 1);
    }
}

// SPDX-License-Identifier: Apache-2.0
// Resident weights in panel layout: one layout per type that serves one row, many rows and the
// transposed product. Immutable after creation; any thread may read.
//
// Layout
// 1. A panel is 16 rows (outputs), one per 32-bit lane of a vector of 64 bytes. Panels come in
//    pairs that are one stream of memory; every pair, and every vector, is 64-byte aligned. Lanes
//    beyond the last row are zero.
// 2. Plain types: a vector of the first panel, one of the second, and so on.
//    F32: vector c has the 16 rows' values of column c.
//    BF16: vector i has columns 2i (low half of a lane) and 2i + 1 (high half).
//    F16: vector i has the 16 halves of column 2i, then those of column 2i + 1.
//    An odd last column of two bytes has zeros beside it.
// 3. Quantised: per block of 32 columns, the quants of the first panel, of the second, 32 f16
//    scales and (Q4_1) 32 f16 minima: 1088, 576 and 640 bytes. Quants are unsigned: Q8_0 as q +
//    128, Q4 as in the file. A vector holds 16 rows x 4 bytes: Q8_0 vector t has columns 4t..4t+3;
//    Q4 vector t has columns 4t..4t+3 in the low nibbles and 4t+16..4t+19 in the high ones, which
//    is the file's own order.
// 4. A part of a stack starts a new pair. KN_STACK_GATE_UP alternates: a pair is one panel of gate
//    rows and one of the same up rows.
#pragma once
#include "base/err.h"
#include "kernels/device.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    CPU_PANEL = 16, // rows of a panel
    CPU_PAIR = 32,  // rows of a pair
    CPU_WEIGHT_PARTS = 8,
    CPU_QBLOCK = 32, // columns of a quantised block
    CPU_VECTOR = 64, // bytes
};

struct cpu_segment { // rows of one type: a part of a stack, or gate and up together
    enum kn_dtype dtype;
    bool gate_up;
    int32_t n;     // rows of the part; of gate alone if gate_up
    int32_t col;   // y column of its first row
    int32_t pairs; // pairs of panels
    size_t pair_bytes;
    const uint8_t *data;
};

struct kn_weight {
    int32_t n, k; // outputs (all parts) and inputs
    enum kn_form form;
    bool gate_up;
    int32_t pairs; // of all segments
    int n_segments;
    struct cpu_segment segments[CPU_WEIGHT_PARTS];
    size_t bytes; // resident
    uint8_t *data;
    struct cpu_slab *slab; // where data lies
    struct kn_device *device;
};

static inline bool cpu_dtype_quantised(enum kn_dtype t) {
    return t == KN_Q8_0 || t == KN_Q4_0 || t == KN_Q4_1;
}

// Bytes of one panel's quants in one block of 32 columns, and of the block of a pair.
static inline size_t cpu_quant_bytes(enum kn_dtype t) {
    return t == KN_Q8_0 ? 512 : 256;
}
static inline size_t cpu_block_bytes(enum kn_dtype t) {
    return 2 * cpu_quant_bytes(t) + (t == KN_Q4_1 ? 128 : 64);
}
// Plain types: bytes of a column of a pair; two-byte types have two columns side by side.
static inline size_t cpu_column_bytes(enum kn_dtype t) {
    return t == KN_F32 ? 2 * CPU_VECTOR : CPU_VECTOR;
}
size_t cpu_pair_bytes(enum kn_dtype t, int32_t k);

// The y columns that panel `half` (0, 1) of a pair makes: [*col, *col + count), count 0..16.
static inline int32_t cpu_panel_columns(const struct cpu_segment *s, int32_t pair, int half,
                                        int32_t *col) {
    int32_t row = s->gate_up ? pair * CPU_PANEL : pair * CPU_PAIR + half * CPU_PANEL;
    *col = s->col + row + (s->gate_up ? half * s->n : 0);
    int32_t left = s->n - row;
    return left < 0 ? 0 : left > CPU_PANEL ? CPU_PANEL : left;
}

// Row `row` (in the order of y's columns) dequantised: out[k]. The row must exist.
void cpu_weight_row(const struct kn_weight *w, int32_t row, float *out);

enum err cpu_weight_create(struct kn_device *d, const struct kn_weight_spec *spec,
                           struct kn_weight **out, struct err_info *info);
void cpu_weight_destroy(struct kn_weight *w); // NULL is legal
size_t cpu_weight_bytes(const struct kn_weight *w);
enum kn_form cpu_weight_form(const struct kn_weight *w);
enum err cpu_weight_read(const struct kn_weight *w, int64_t row, int64_t n, float *out);

// weight_pack.c. Packs one pair: rows[i] is where the row in lane i % 16 of panel i / 16 starts in
// the file (at this shard's first column), NULL for a lane without a row. dst is zeroed.
void cpu_pack_pair(enum kn_dtype t, int32_t k, const uint8_t *const rows[CPU_PAIR], uint8_t *dst);
// The row in one lane of a panel, dequantised: out[k].
void cpu_unpack_row(enum kn_dtype t, int32_t k, const uint8_t *pair, int half, int lane,
                    float *out);

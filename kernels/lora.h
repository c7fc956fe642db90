// SPDX-License-Identifier: Apache-2.0
// Low-rank adapters (LoRA; Hu et al., 2021) on a device: y += scale * B (A x), for a ragged batch
// whose sequences use different adapters, and its backward for training.
//
// A [r, k] and B [n, r] of one target module lie in device memory in a layout of the backend's own,
// f32, padded with zeros (kn_ops.lora_bytes, lora_pack, lora_unpack). Gradients and optimizer state
// have the layout of what they belong to, so element-wise operations need not know it; padding
// stays zero. A slot may have them in 16 bits (KN_BF16, KN_F16; kn_ops.lora_narrow) that hold the
// values exactly: half the memory to read, the same bits.
//
// Order of the sums: fixed by the shape alone, the same for any batch, thread count and cut.
// Gradients are one chain over the rows in order.
#pragma once
#include "kernels/batch.h"
#include "kernels/tensor.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { KN_LORA_PARTS = 3, KN_LORA_MAX_RANK = 256 };

enum kn_lora_side { KN_LORA_A, KN_LORA_B }; // A: [r, k]; B: [n, r]

// What a slot holds for one target module. In device memory. r = 0: nothing.
struct kn_lora_entry {
    kn_addr a, b;
    int32_t r;
    float scale;         // alpha / r, or alpha / sqrt(r)
    enum kn_dtype dtype; // of A and B: KN_F32 (which is 0), KN_BF16 or KN_F16
};

// Inverted dropout on x, in training only: feature f of row t is kept, times 1 / (1 - p), where the
// noise of (keys[t], module, f) is at least p. The noise is a word of Philox (kernels/philox.h)
// over 2^32: word f / 16 mod 4 for the counter {f / 64 * 16 + f mod 16, module, 0, 0} and the key
// {low, high half of keys[t]}. The same for forward and backward.
struct kn_dropout {
    float p;         // 0: none; below 1
    uint32_t module; // layer and target; in kn_lora of part 0, part j has module + j
    kn_addr keys;    // u64 [rows]: made of seed, epoch, sample and token
};

// For each row of a sequence whose slot s >= 0 and each part j with entries[j * n_slots + s].r > 0:
//   y[row, col[j] .. col[j] + n[j]) += scale * B (A x[row]).
// Other rows and columns are not touched. Parts are the modules that share x: q, k, v; gate, up.
struct kn_lora {
    const struct kn_batch *batch;
    kn_addr x; // PLAIN [rows, k]
    int64_t ldx;
    kn_addr y; // PLAIN
    int64_t ldy;
    int32_t rows, k;
    kn_addr entries; // struct kn_lora_entry [n_parts][n_slots]
    int32_t n_slots, n_parts;
    int32_t col[KN_LORA_PARTS], n[KN_LORA_PARTS];
    struct kn_dropout dropout;
};

// ---- backward, for one module and rows that all use it. Padded rank: rp = r rounded up to 16.

// u[rows, rp] = A dropout(x);  du[rows, rp] = scale * dy B. Columns beyond r are zero.
struct kn_lora_shrink_back {
    kn_addr x, dy; // [rows, k], [rows, n]
    int64_t ldx, lddy;
    kn_addr a, b;
    int32_t rows, k, n, r;
    float scale;
    struct kn_dropout dropout;
    kn_addr u, du;
    int32_t row_begin, row_end; // rows to do; 0, 0: all
};

// dx[rows, k] += dropout'(du A), columns [k_begin, k_end) (multiples of 16; 0, 0: all).
struct kn_lora_dx {
    kn_addr du, a, dx;
    int64_t lddx;
    int32_t rows, k, r;
    struct kn_dropout dropout;
    int32_t k_begin, k_end;
};

// side A: dA[r, k] = duᵀ dropout(x), columns [begin, end) of k; side B: dB[n, r] = scale * dyᵀ u,
// rows [begin, end) of n. Multiples of 16, 0, 0: all. Written, not added, in the layout of A or B.
struct kn_lora_grad {
    enum kn_lora_side side;
    kn_addr left;  // du or u: [rows, rp]
    kn_addr right; // x [rows, k] or dy [rows, n]
    int64_t ld_right;
    int32_t rows, width, r;    // width: k or n
    float scale;               // side B; side A has it in du
    struct kn_dropout dropout; // side A
    kn_addr grad;
    int32_t begin, end;
};

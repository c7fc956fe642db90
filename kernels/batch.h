// SPDX-License-Identifier: Apache-2.0
// One step's ragged batch in device memory: prefill chunks and decodes mixed. Counts that vary lie
// in device memory too (`header`), so that a step can be recorded once and replayed; the host
// copies here size grids.
#pragma once
#include <stdint.h>

typedef uintptr_t kn_addr; // opaque device address; 0: none. Byte offsets may be added.

enum { KN_KV_BLOCK = 16 }; // positions in one KV block

// Geometry of the paged KV cache. One block holds KN_KV_BLOCK positions of all layers in one
// contiguous range, bf16; how K and V lie inside is the backend's own. Block b starts at pool + b *
// block_bytes.
struct kn_kv_shape {
    int32_t layers, kv_heads, head_dim;
};

struct kn_batch {
    int32_t n_tokens, n_seqs, n_out; // n_out: positions that want logits
    kn_addr header;                  // i32 [4]: n_tokens, n_seqs, n_out, 0
    kn_addr ids; // i32 [n_tokens]; >= 0 a token id, else entry ~id of the previous step's samples
    kn_addr pos; // i32 [n_tokens], position in its sequence
    kn_addr seq; // i32 [n_tokens], which sequence
    kn_addr seq_start;   // i32 [n_seqs + 1], first token of each sequence
    kn_addr kv_len;      // i32 [n_seqs], cached positions after this step, this step's own included
    kn_addr block_table; // i32 [n_seqs][max_blocks]
    int32_t max_blocks;
    kn_addr slot;     // i32 [n_seqs], adapter slot, -1 for the base alone
    kn_addr out_rows; // i32 [n_out], index of a token
};

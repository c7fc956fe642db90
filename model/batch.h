// SPDX-License-Identifier: Apache-2.0
// One step's batch as the host builds it (serving and training alike); `forward` uploads it. All
// arrays are the builder's and must stay unchanged until the forward of this batch has ended.
#pragma once
#include "kernels/sample.h"
#include <stdint.h>

// What one wanted position asks for: kn_sample_row with host pointers.
struct mdl_want {
    int32_t row; // index of the token in the batch
    struct kn_sample_row
        params; // bias, counts and mask addresses are ignored; the three below count
    const struct kn_token_bias *bias;    // params.n_bias entries
    const struct kn_token_count *counts; // params.n_counts entries
    const uint32_t *mask;                // (vocab + 31) / 32 words, or NULL
};

struct mdl_batch {
    int32_t n_tokens, n_seqs, n_want;
    const int32_t
        *ids; // [n_tokens]; >= 0 token id; < 0: sample ~id of the previous step, on the device
    const int32_t *pos;         // [n_tokens]
    const int32_t *seq_start;   // [n_seqs + 1]
    const int32_t *kv_len;      // [n_seqs], after this step
    const int32_t *block_table; // [n_seqs][max_blocks]
    int32_t max_blocks;
    const int32_t *slot;         // [n_seqs] adapter slot or -1; NULL: all -1
    const struct mdl_want *want; // [n_want]
};

// SPDX-License-Identifier: Apache-2.0
// Sampling as a device operation: one row of logits -> one token, with log-probabilities of the
// unmodified distribution. Also scores a given token instead of choosing one. Order of the steps,
// as in vLLM: allowed-token mask, logit bias, min-tokens bans, repetition penalty, frequency and
// presence penalties, (greedy: argmax), temperature, top-k, top-p, min-p, choice. Ties go to the
// lower id. Noise is Philox4x32-10 (Salmon et al., 2011) keyed by seed, counted by (choice,
// position): batch-invariant and reproducible.
#pragma once
#include "kernels/batch.h"
#include <stdint.h>

enum { KN_MAX_TOP_LOGPROBS = 20 };

struct kn_token_bias { // host order by ids is not required
    int32_t id;
    float bias; // -INFINITY bans
};

struct kn_token_count {
    int32_t id;
    int32_t out;    // times generated
    int32_t prompt; // 1 if it stands in the prompt
};

struct kn_sample_row { // lies in device memory, one per row that wants logits
    uint64_t seed;
    uint32_t choice;
    uint32_t position;
    float temperature; // 0: greedy
    float top_p;       // 1: off
    float min_p;       // 0: off
    int32_t top_k;     // 0: off
    float presence, frequency;
    float repetition;   // 1: off
    int32_t target;     // >= 0: score this token, choose nothing
    int32_t n_logprobs; // -1: none; 0: the token's own; else also that many most likely ones
    int32_t n_bias, n_counts;
    kn_addr bias;   // struct kn_token_bias [n_bias]
    kn_addr counts; // struct kn_token_count [n_counts], distinct ids
    kn_addr mask;   // u32 [(vocab + 31) / 32], bit set = allowed; 0: all
};

enum kn_sample_flag {
    KN_SAMPLE_NONFINITE = 1, // a NaN or +-Inf logit: the row has no token
    KN_SAMPLE_EMPTY = 2,     // nothing was allowed
};

struct kn_sample_out { // lies in device memory, one per row
    int32_t token;     // chosen or scored
    uint32_t flags;
    float logprob; // of `token`; valid if n_logprobs >= 0 or target >= 0
    int32_t rank;  // 1 + number of more likely tokens; valid as above
    int32_t n_top;
    int32_t top_id[KN_MAX_TOP_LOGPROBS]; // most likely first
    float top_logprob[KN_MAX_TOP_LOGPROBS];
};

struct kn_sample {
    kn_addr logits; // f32 [rows, vocab], PLAIN; may be overwritten
    int64_t ld;
    int32_t rows, vocab;
    kn_addr params; // struct kn_sample_row [rows]
    kn_addr out;    // struct kn_sample_out [rows]
    kn_addr tokens; // i32 [rows]: the chosen ids again, what kn_embed's prev_tokens reads; may be 0
};

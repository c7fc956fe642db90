// SPDX-License-Identifier: Apache-2.0
// What tests of paged attention share: sequences of random queries, keys and values, a device that
// holds their cache in blocks, and the ways to serve them: each alone, or mixed in chunks.
// Single-threaded; failure fails the running cmocka test.
#pragma once
#include "kn_fixture.h"

// Of the cache's layers one is used; the sequences of a world at most.
enum { ATTN_LAYERS = 2, ATTN_LAYER = 1, ATTN_SEQS = 5 };

struct attn_shape {
    int32_t heads, kv_heads, dim, window;
};

struct attn_sequence {
    int32_t len;
    float *qkv;  // [len][(heads + 2 kv_heads) * dim]
    float *out;  // [len][heads * dim], what the last run made
    uint8_t *q8; // [len][attn_q8_bytes], the same in Q8 blocks
};

struct attn_world {
    struct attn_shape s;
    int n;
    struct attn_sequence seq[ATTN_SEQS];
};

struct attn_device {
    struct kn_fixture f;
    struct kn_kv_shape kv;
    kn_addr pool, freq;
    int32_t *blocks; // block table of all sequences, one after the other
    int32_t n_blocks;
};

int32_t attn_width(const struct attn_shape *s);     // of a row of qkv
int32_t attn_out_width(const struct attn_shape *s); // of a row of out
size_t attn_q8_bytes(const struct attn_shape *s);   // 0: rows that Q8 blocks do not fill

// Sequences of the lengths in `lens`, which ends with 0.
void attn_world_init(struct attn_world *w, struct attn_shape s, const int32_t *lens, uint64_t seed);
void attn_world_free(struct attn_world *w);

// A pool full of NaN and a table of blocks in random order (in order for seed 0).
void attn_device_open(struct attn_device *d, const struct attn_world *w, const char *isa,
                      int threads, uint64_t seed);
void attn_device_close(struct attn_device *d);

// One step: seqs[i] of the world gets n[i] tokens from position pos[i]. Results go to the world.
void attn_step(struct attn_device *d, struct attn_world *w, int count, const int *seqs,
               const int32_t *pos, const int32_t *n);
// Each sequence alone, its whole length in one chunk.
void attn_serve_alone(struct attn_world *w, const char *isa, int threads);
// All sequences mixed, chunks of random length, blocks in random order.
void attn_serve_mixed(struct attn_world *w, const char *isa, int threads, uint64_t seed);

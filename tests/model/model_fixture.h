// SPDX-License-Identifier: Apache-2.0
// What tests of the layer walk share: a device with a model's weights, a KV pool of plain numbered
// blocks, and a batch that is put together sequence by sequence. Functions fail the running cmocka
// test where something does not succeed.
#pragma once
#include "model/forward.h"
#include <stdbool.h>

enum { FX_TOKENS = 512, FX_SEQS = 64, FX_BLOCKS = 128 };

struct fx {
    const struct kn_ops *ops;
    struct kn_device *device;
    struct kn_queue *queue;
    struct mdl_weights *weights;
    struct mdl_forward *forward;
    struct mdl_kv kv;
    int32_t n_blocks;
    size_t kv_bytes;
    float *logits; // [FX_TOKENS][vocab], filled by fx_run
    int32_t vocab;
};

struct fx_options {
    int threads;      // 0: 2
    const char *isa;  // NULL: best
    int32_t n_blocks; // 0: 256
    const struct clock *clock;
    void (*prepare)(struct mdl_source *src); // before the weights are loaded; NULL: nothing
};

bool fx_slow_build(void); // sanitizers, or no optimisation
void fx_open(struct fx *x, const char *path, const struct fx_options *o);
void fx_close(struct fx *x);

// A sequence as a test keeps it: its tokens and the blocks where its cache lies.
struct fx_seq {
    const int32_t *ids;
    int32_t n_cached; // positions in the cache already
    int32_t blocks[FX_BLOCKS];
};
// Blocks first, first + 1, ... for a sequence of n tokens.
void fx_seq_init(struct fx_seq *s, const int32_t *ids, int32_t n, int32_t first_block);

struct fx_batch {
    struct mdl_batch b;
    int32_t ids[FX_TOKENS], pos[FX_TOKENS];
    int32_t seq_start[FX_SEQS + 1], kv_len[FX_SEQS], slot[FX_SEQS];
    int32_t table[FX_SEQS * FX_BLOCKS];
    struct mdl_want want[FX_TOKENS];
};
enum fx_wants { FX_NONE, FX_LAST, FX_ALL };

void fx_batch_init(struct fx_batch *b);
// Adds the sequence's next n tokens; greedy, or scoring the token that follows if `score`. Does not
// change s->n_cached.
void fx_batch_add(struct fx_batch *b, const struct fx_seq *s, int32_t n, enum fx_wants wants,
                  bool score);
// Runs to the end without a deadline, with the logits of the wanted positions in x->logits.
void fx_run(struct fx *x, struct fx_batch *b, const struct mdl_hooks *hooks,
            const struct mdl_tape *tape);
// The whole of ids[0..n) as one sequence in chunks, from block `first_block` on; the logits of all
// positions go to `to` [n][vocab].
void fx_run_plain(struct fx *x, const int32_t *ids, int32_t n, int32_t chunk, int32_t first_block,
                  float *to);

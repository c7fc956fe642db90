// SPDX-License-Identifier: Apache-2.0
// Backward of attention for some query rows of one (sequence, kv head): the parts that attn_back.c
// puts together. A row is (query token, query head of the kv head's group), tokens first; its
// position is that of its token. With p = softmax(q kᵀ scale) and dp = dout vᵀ:
//   dv += pᵀ dout,  ds = p (dp - rowsum(dout out)),  dq = scale ds k,  dk += scale dsᵀ q
// (Dao et al., 2022). Order of the sums, for any cut into tiles of rows and of keys:
//   scores, dp  one chain of v_fma over the head's dimensions
//   softmax     the row's maximum, then 16 lanes of sums over its tiles of 64 keys in order
//   dq          one chain over the keys in order
//   dk, dv      one chain over the rows in order
// What a row does not see has p = ds = 0, which as a term of a chain changes nothing.
#pragma once
#include "kernels/cpu/isa/isa.h"
#include "kernels/cpu/kv.h"

enum {
    BACK_ROWS = 96, // rows of a tile at most
    BACK_KEYS = 64, // keys of a tile, counted from position 0
    BACK_BLOCKS = BACK_KEYS / KN_KV_BLOCK,
    BACK_STATS_BYTES = 256 << 10, // of each thread's scratch, see attn_back.c
};

struct back_stats { // of a row
    float max, inv_sum, delta;
};

struct back_scratch {
    _Alignas(64) float q[BACK_ROWS * KV_MAX_HEAD_DIM]; // times scale; rows of `dims`
    float dout[BACK_ROWS * KV_MAX_HEAD_DIM];
    float dq[BACK_ROWS * KV_MAX_HEAD_DIM];
    float dp[BACK_ROWS * BACK_KEYS];
    float kt[KV_MAX_HEAD_DIM * BACK_KEYS], vt[KV_MAX_HEAD_DIM * BACK_KEYS]; // [dims][64]
    float k[BACK_KEYS * KV_MAX_HEAD_DIM];                                   // [64][dims]
    struct back_stats stats[BACK_ROWS];
    float p[]; // scores, then weights, then ds: one [rows][64] per tile of keys
};
enum {
    BACK_P_VALUES =
        (int)((CPU_SCRATCH_BYTES - BACK_STATS_BYTES - sizeof(struct back_scratch)) / sizeof(float)),
};

// (sequence, kv head) and its rows that are asked for.
struct back_unit {
    const struct kn_attn_back *p;
    int32_t seq, head;
    int32_t start;      // token of position 0
    int32_t begin, end; // positions of the query tokens
    int32_t group;      // query heads of the kv head
};

// Rows [row, row + rows) of a unit; row / group is a position.
struct back_rows {
    const struct back_unit *u;
    int32_t row, rows;
};

static inline int32_t back_first_seen(const struct kn_attn_back *p, int32_t pos) {
    return p->window > 0 && pos >= p->window ? pos - p->window + 1 : 0;
}

void ISA(back_load_rows)(const struct back_rows *r, bool delta, struct back_scratch *x);
// Which of k and vᵀ are wanted beside kᵀ, for the positions [lo, hi) of the tile; blocks with none
// of them become zeros in k, as their terms of a chain are multiplied with 0. False: the table has
// no block for one of the positions.
bool ISA(back_load_keys)(const struct back_unit *u, int32_t at, int32_t lo, int32_t hi, bool k,
                         bool vt, struct back_scratch *x);
// Scores of one tile of keys, which starts at `at`.
void ISA(back_scores)(const struct back_rows *r, int32_t at, const struct back_scratch *x,
                      float *scores);
// Whole rows: scores of `tiles` tiles from position `at` on become exp(score - max); stats are
// made.
void ISA(back_softmax)(const struct back_rows *r, int32_t at, int32_t tiles,
                       struct back_scratch *x);
// One tile's scores become exp(score - max), stats are known.
void ISA(back_softmax_tile)(const struct back_rows *r, int32_t at, struct back_scratch *x,
                            float *scores);
// Weights of one tile -> its ds in place; dv and dk (if `keys`), dq (if `queries`) go on.
void ISA(back_tile)(const struct back_rows *r, int32_t at, bool keys, bool queries,
                    struct back_scratch *x, float *weights);
void ISA(back_store_dq)(const struct back_rows *r, const struct back_scratch *x);
// dk and dv of the positions [lo, hi) start at zero.
void ISA(back_clear_keys)(const struct back_unit *u, int32_t lo, int32_t hi);

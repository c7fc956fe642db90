// SPDX-License-Identifier: Apache-2.0
// Operations of training beside kernels/lora.h: the loss, the backward of each operation of the
// layer walk, exact sums of gradients, the optimizer. All take f32 and cut along output elements
// (the transposed product along its sums, too), so that a caller can bound each call's time; a
// result is the same chain of operations however it is cut. Quantisation (of weights, activations,
// keys and values) counts as the identity in backward.
#pragma once
#include "kernels/batch.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct kn_weight; // device.h

// dx[rows, k] = dy[rows, n] * W[n, k] on dequantised weights: the product backward needs, on the
// same resident layout. Sums are f32; a level may round both factors to bf16 where W is not f32.
//
// add: each sum goes on from what dx holds. n_begin, n_end (0, 0: all) are columns of dy: rows of W
// are taken in runs of KN_GEMM_T_RUN, counted from the begin of each part of a stack (of gate, of
// up), and a range takes the runs that begin in it. So ranges of n from first to last, all but the
// first with `add`, give the bits of one call, wherever they end. A part whose begin is inside a
// range needs none of its own. k_begin, k_end: columns of dx, multiples of 32.
//
// What ranges cost: one of n dequantises its part of W once for 128 to 256 rows, as the whole
// product does, and reads and writes dx. One of k rounds and packs all of dy again (bf16), so it
// should be wide: 512 columns cost a tenth more than all at once.
enum { KN_GEMM_T_RUN = 256 };
struct kn_gemm_t {
    const struct kn_weight *w;
    kn_addr dy;
    int64_t lddy;
    kn_addr dx;
    int64_t lddx;
    int32_t rows;
    int32_t n_begin, n_end;
    int32_t k_begin, k_end;
    bool add;
};

// loss[i] = -log softmax(logits[i])[target[i]], the same bits as the log-probability that sampling
// reports; hit[i] = whether target[i] is the greedy choice. grad: logits[i] becomes
// (softmax(logits[i]) - onehot(target[i])) * weight[i]. A row with a logit that is not finite has
// loss NaN, no hit and a gradient of NaN.
struct kn_xent {
    kn_addr logits; // [rows, vocab]
    int64_t ld;
    int32_t rows, vocab;
    kn_addr target; // i32 [rows]
    kn_addr weight; // f32 [rows]; read if grad
    kn_addr loss;   // f32 [rows]
    kn_addr hit;    // i32 [rows], may be 0
    bool grad;
};

// Backward of y = x / rms(x) * weight: dx (+)= weight dy / rms - x (sum(dy weight x) / k) / rms^3.
// dx may be dy.
struct kn_rmsnorm_back {
    kn_addr x, dy, dx;
    int64_t ldx, lddy, lddx;
    kn_addr weight; // f32 [k]
    float eps;
    int32_t rows, k;
    int32_t heads; // a row is so many vectors of k values, each with a norm of its own; 0: one
    bool add;
    int32_t row_begin, row_end; // 0, 0: all
};

// Backward of silu(gate) * up; x = [gate | up] [rows, 2k]. dx may be x.
struct kn_swiglu_back {
    kn_addr x, dy, dx;
    int64_t ldx, lddy, lddx;
    int32_t rows, k;
    int32_t row_begin, row_end; // 0, 0: all
};

// Backward of attention for sequences that lie wholly in the batch, from position 0 (training). q
// comes from the rotated qkv buffer, keys and values from the cache. Makes dqkv[rows, (heads + 2
// kv_heads) * head_dim], still rotated. A range is one of query tokens: it makes their dq, and adds
// their share to dk and dv of the tokens before them, whose own ranges must have been done. So
// ranges go from the first token to the last, in order; where they end changes no bit. Work for
// token i grows with its position.
struct kn_attn_back {
    const struct kn_batch *batch;
    kn_addr q;
    int64_t ldq;
    kn_addr pool;
    struct kn_kv_shape shape;
    int32_t layer, heads, window;
    float scale;
    kn_addr out, dout; // attention's output and its gradient [rows, heads * head_dim]
    int64_t ldout, lddout;
    kn_addr dqkv;
    int64_t lddqkv;
    int32_t token_begin, token_end; // 0, 0: all
};

// Backward of the rotation of q and k, in place on dqkv (v's part stays).
struct kn_rope_back {
    const struct kn_batch *batch;
    kn_addr dqkv;
    int64_t lddqkv;
    kn_addr table; // from kn_rope_table
    int32_t heads, kv_heads, head_dim;
};

// dst[rows[i], :] = src[i, :] for i < n; other rows of dst [n_dst, k] become zero.
struct kn_scatter {
    kn_addr src, dst;
    int64_t ld_src, ld_dst;
    kn_addr rows; // i32 [n], different
    int32_t n, n_dst, k;
};

// acc[i] += round(g[i] * 2^exponent), exact in any order. A value that is not finite or whose
// magnitude would be 2^52 or more sets *flag (i32) to 1 and leaves acc[i] as it is. Rounding is to
// nearest, so that SUBTRACT takes away exactly what ADD added. CHECK sets the flag only; acc may
// be 0.
enum kn_grad_mode { KN_GRAD_ADD, KN_GRAD_SUBTRACT, KN_GRAD_CHECK };
struct kn_grad_add {
    kn_addr g;   // f32 [n]
    kn_addr acc; // i64 [n]
    int64_t n;
    int32_t exponent;
    kn_addr flag;
    enum kn_grad_mode mode;
    int64_t begin, end; // 0, 0: all
};

// out[c] = sum over chunk c of (acc[i] * factor)^2 in f64, chunks of KN_SUMSQ_CHUNK elements: the
// caller adds them in order. largest[c] = the largest |acc[i] * factor|, f64.
enum { KN_SUMSQ_CHUNK = 4096 };
struct kn_sumsq {
    kn_addr acc;
    int64_t n;
    double factor;
    kn_addr out, largest; // f64 [(n + chunk - 1) / chunk]
    int64_t begin, end;   // multiples of the chunk; 0, 0: all
};

// AdamW (Loshchilov and Hutter, 2019), as torch.optim.AdamW: g = acc * factor; w -= lr * decay * w;
// m = b1 m + (1 - b1) g; v = b2 v + (1 - b2) g^2; w -= lr * (m / c1) / (sqrt(v / c2) + eps), with
// c1 = 1 - b1^t, c2 = 1 - b2^t. Sets acc to zero.
struct kn_adamw {
    kn_addr w, m, v; // f32 [n]
    kn_addr acc;     // i64 [n]
    int64_t n;
    double factor; // 2^-exponent times the clip's and the loss's normalisation
    double lr, beta1, beta2, eps, decay; // as torch has them; the update is made in f32
    double c1, c2;
    int64_t begin, end; // 0, 0: all
};

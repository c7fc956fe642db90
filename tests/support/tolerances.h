// SPDX-License-Identifier: Apache-2.0
// How far our numbers may be from an independent implementation's: every test against a golden
// file, or against formulas in double precision, takes its tolerance from here. A comparison is
// |ours - theirs| <= ATOL + RTOL * |theirs| where both are named.
//
// What has no tolerance because it is compared bit for bit: batches against single sequences,
// chunks, caches, ranges and threads against one call, a run against itself resumed. A test that
// derives a formula by central differences has its own bound beside the step that it chose.
#pragma once

// Gradients and the operations of the backward pass in f32, with sums in another order than theirs.
#define TOL_GRAD_RTOL 1e-4
#define TOL_GRAD_ATOL 1e-6
// What a sum of large terms adds to that, as a part of the largest element of the matrix: f32
// noise; and on the ISA level whose backward rounds to bf16, the elements that fall to the other
// side.
#define TOL_GRAD_NOISE 1e-5
#define TOL_GRAD_NOISE_BF16 3e-4
// The same as a part of the size of what one product added up, known where a test works it out
// itself.
#define TOL_SUM_NOISE 1e-6
// Attention's backward adds over keys and heads.
#define TOL_ATTN_BACK_ATOL 3e-6

// A token's loss from logits that are given; and from a whole forward pass.
#define TOL_LOSS_RTOL 1e-5
#define TOL_ROW_LOSS_RTOL 2e-5
#define TOL_XENT_ATOL 1e-7 // of the gradient of the logits, whose elements are at most 1
// A run's loss and norm at each step. To each comes TOL_SPREADS times what f32 noise did to it in
// the script's repetitions; and from the second step on TOL_CURVE_RARE of the loss (ten times that
// of the norm) for a key or value that falls to the other side of its rounding, which few
// repetitions show.
#define TOL_CURVE_RTOL 1e-5
#define TOL_CURVE_NORM_RTOL 1e-4
#define TOL_SPREADS 3
#define TOL_CURVE_RARE 5e-4
// Sums of log-probabilities of a trained policy over its reference.
#define TOL_LOG_RATIO_RTOL 1e-3
#define TOL_LOG_RATIO_ATOL 1e-2
// Weights and moments of AdamW, step by step.
#define TOL_ADAMW_RTOL 1e-5
#define TOL_ADAMW_ATOL 1e-9

// One operation of the forward pass on random values. A product is compared relative to the size of
// what it added up; attention over thousands of keys has longer sums; TOL_PARTS: a product that was
// added in parts.
#define TOL_NORM_RTOL 1e-6
#define TOL_NORM_ATOL 1e-9
#define TOL_SWIGLU_RTOL 5e-7
#define TOL_SWIGLU_ATOL 1e-30
#define TOL_ROPE 2e-6
#define TOL_GEMM 2e-6
#define TOL_PARTS 1e-5
#define TOL_LORA 2e-5
#define TOL_ATTN_RTOL 1e-5
#define TOL_ATTN_ATOL 2e-6
#define TOL_ATTN_LONG_RTOL 1e-4
#define TOL_ATTN_LONG_ATOL 1e-6

// Logits of tiny models, a few units wide, whose modelled rounding has no near ties; with adapters
// they are wider.
#define TOL_LOGITS 2e-4
#define TOL_LOGITS_ADAPTERS 5e-4
// One operation of the layer walk, as a part of the largest value of its result.
#define TOL_WALK 1e-4
// A token's log-probability from logits that are given.
#define TOL_LOGPROB 1e-5

// Perplexity on the real model, as a part of that of the dequantised f32 weights: unquantised,
// quantised, and in slow builds, which read less of the passage.
#define TOL_PERPLEXITY 0.001
#define TOL_PERPLEXITY_QUANTISED 0.005
#define TOL_PERPLEXITY_SLOW 0.015

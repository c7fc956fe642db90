// SPDX-License-Identifier: Apache-2.0
// A device and its operations: what model code may ask of a backend. There is no graph: each
// operation is recorded on a queue and runs in order; nothing has run for certain before queue_wait
// returns.
//
// Rules
// 1. One queue is driven by one host thread. Two devices share nothing but weights, so two engines
//    fit in one process: a weight is read by the queues of every device of its backend that has the
//    same kernel set, and lives until the device that made it is closed. All other memory is used
//    on the device that gave it.
// 2. Device addresses (kn_addr) are opaque: callers add byte offsets, and never read through them.
// 3. Parameter structs are copied when an operation is recorded; what they point to by kn_addr must
//    stay alive until the queue has passed the operation.
// 4. An error in an operation is sticky on its queue: later operations are skipped, queue_wait
//    reports it and clears it. Recording itself fails only for lack of memory; parameters that are
//    wrong are such an error in the place of their operation.
// 5. A NULL operation is not supported; kn_require refuses it by name at start.
// 6. Results are bit-identical whatever the number of rows, the split of rows over calls, and the
//    number of threads: one output element is always the same chain of operations in the same
//    order.
#pragma once
#include "base/err.h"
#include "kernels/batch.h"
#include "kernels/lora.h"
#include "kernels/sample.h"
#include "kernels/tensor.h"
#include "kernels/train.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct kn_device;
struct kn_queue;
struct kn_weight; // resident matrix in the device's own layout; immutable, shared by all queues

struct kn_device_config {
    int threads;     // CPU: 0 = smaller of affinity and cgroup limit
    const char *isa; // CPU: NULL = best of "avx512bf16", "avx512", "avx2", "portable"
    bool pin;        // CPU: keep the pool on the process's CPUs
    int part, parts; // CPU, with pin: on the part-th of so many equal parts of them; 0, 0: on all
};

struct kn_device_info {
    char backend[16];    // "cpu"
    char kernel_set[96]; // what bit-equality is promised for: backend, ISA level, build
    int threads;
    size_t memory_bytes; // what this process may use (physical or cgroup limit)
};

// Activations between operations have one of two forms.
//   PLAIN: the device's plain type (CPU: f32), rows of k values
//   Q8:    blocks of 32 values as int8 with their scale, what quantised weights multiply
enum kn_form { KN_FORM_PLAIN, KN_FORM_Q8 };

enum kn_shard_axis { KN_SHARD_NONE, KN_SHARD_N, KN_SHARD_K };

// One matrix [n, k] of a file: row-major, each row in blocks of `dtype`. Read during weight_create
// only.
struct kn_weight_src {
    enum kn_dtype dtype;
    int64_t n, k;
    const void *data;
    // Llama GGUF files store the rows of q and k so that RoPE pairs are neighbours. > 0: rows of
    // each of that many heads are put back into the half-split order that all our operations use.
    int32_t unpermute_heads;
};

enum kn_stack {
    KN_STACK,         // parts follow one another: y = [part0 | part1 | ...]  (q, k, v)
    KN_STACK_GATE_UP, // exactly two parts of equal shape, gate then up, laid out so that
                      // GEMM_SWIGLU works
};

struct kn_weight_spec {
    // Same k. Types may differ as long as all multiply x in the same form: a stack of plain and of
    // quantised parts is ERR_UNSUPPORTED, and so are gate and up of different types. The caller
    // then makes a weight of each part and lets their outputs lie side by side.
    const struct kn_weight_src *parts;
    int n_parts;
    enum kn_stack stack;
    // Shard: rows (N) of each part, or columns (K), [size * rank / world, size * (rank + 1) /
    // world). K shards must fall on block boundaries; refused otherwise.
    enum kn_shard_axis axis;
    int rank, world;
    const char *name; // for errors
};

enum kn_epilogue {
    KN_GEMM_STORE,  // y = x Wt
    KN_GEMM_ADD,    // y += x Wt (the residual stream)
    KN_GEMM_SWIGLU, // y[n/2] = silu(x gateᵀ) * (x upᵀ); weight made with KN_STACK_GATE_UP
};

// y[rows, n] = epilogue(x[rows, k] * W[n, k]ᵀ + bias), x in the form that weight_form(w) says. ld
// in elements. n_begin, n_end: columns of y to make, multiples of 32 or y's width; 0, 0 = all. With
// STORE or ADD a GATE_UP weight makes y = [gate | up]; bias is in that order, too, and a range
// counts columns of gate: it makes these and the same of up, whose weights lie beside them.
//
// A range reads its part of W, and x once more: on the CPU each thread that comes packs its rows of
// x anew (plain types; 2% to 7% of a product of 512 rows cut into pieces of 250 us).
struct kn_gemm {
    const struct kn_weight *w;
    kn_addr x;
    int64_t ldx; // PLAIN: elements between rows; Q8: ignored (rows are dense)
    kn_addr y;   // PLAIN
    int64_t ldy;
    kn_addr bias; // f32 [n] or 0
    int32_t rows;
    int32_t n_begin, n_end;
    enum kn_epilogue epilogue;
};

// y = x / sqrt(mean(x^2) + eps) * weight (Zhang and Sennrich, 2019), per row of k values. Either
// output may be 0. yq is KN_FORM_Q8.
struct kn_rmsnorm {
    kn_addr x;
    int64_t ldx;
    kn_addr weight; // f32 [k]
    float eps;
    int32_t rows, k;
    kn_addr y;
    int64_t ldy;
    kn_addr yq;
};

// Rows of x[rows, k] -> KN_FORM_Q8.
struct kn_quantize {
    kn_addr x;
    int64_t ldx;
    kn_addr yq;
    int32_t rows, k;
};

// y[rows, k] = silu(gate) * up, gate = x[:, 0:k], up = x[:, k:2k]; what GEMM_SWIGLU fuses, same
// bits.
struct kn_swiglu {
    kn_addr x;
    int64_t ldx;
    kn_addr y;
    int64_t ldy;
    int32_t rows, k;
};

// x[rows, k] = rows of the embedding `w`; ids from the batch, or from `prev_tokens` where negative.
struct kn_embed {
    const struct kn_weight *w;
    const struct kn_batch *batch;
    kn_addr prev_tokens; // i32: output of the previous step's sampling; may be 0
    kn_addr x;
    int64_t ldx;
    int32_t token_begin, token_end; // tokens of the batch to do; 0, 0: all; also below
};

// dst[i, :] = src[rows[i], :] for i < n: the hidden rows that want logits.
struct kn_gather {
    kn_addr src, dst;
    int64_t ld_src, ld_dst;
    kn_addr rows; // i32 [n]
    int32_t n, k;
};

// cos/sin of position * inv_freq[i] for every token of the batch: table [n_tokens, 2, dim / 2] f32,
// cosines first. One per step, shared by all layers (Su et al., 2021). Angles are reduced in f64.
struct kn_rope_table {
    const struct kn_batch *batch;
    kn_addr inv_freq; // f32 [dim / 2], scaling already applied
    float scale;      // multiplies cos and sin (attention factor), 1 for most families
    int32_t dim;
    kn_addr table;
    int32_t token_begin, token_end;
};

// qkv[rows, (heads + 2 * kv_heads) * head_dim]: rotates q (in place) and k in the half-split
// convention, optionally after a per-head RMS norm (Qwen3), and writes k and v, rounded to bf16,
// into the cache.
struct kn_rope_kv {
    const struct kn_batch *batch;
    kn_addr qkv;
    int64_t ldqkv;
    kn_addr table;          // from kn_rope_table
    kn_addr q_norm, k_norm; // f32 [head_dim] or 0
    float eps;
    kn_addr q_in; // PLAIN [rows, heads * head_dim], dense: q as it came is kept there; 0: nowhere
    kn_addr pool;
    struct kn_kv_shape shape;
    int32_t layer, heads;
    int32_t token_begin, token_end;
};

// out[token, head * head_dim] = softmax(q kᵀ * scale) v over the sequence's own cache, causal, for
// a ragged batch of prefill chunks and decodes. Walks the cache in fixed tiles from position 0 with
// an online softmax (Milakov and Gimelshein, 2018); reads k and v from the cache only. window > 0:
// only the last `window` positions, the query's own included. outq (KN_FORM_Q8 of the whole row)
// may be 0.
struct kn_attn {
    const struct kn_batch *batch;
    kn_addr q; // the rotated qkv buffer
    int64_t ldq;
    kn_addr pool;
    struct kn_kv_shape shape;
    int32_t layer, heads, window;
    float scale;
    kn_addr out;
    int64_t ldout;
    kn_addr outq;
    int32_t token_begin, token_end;
};

struct kn_kv_copy { // copy-on-write and moving: whole blocks, all layers
    kn_addr pool;
    struct kn_kv_shape shape;
    const int32_t *src, *dst; // host arrays, copied when recorded
    int32_t n;
};

// One operation table per backend. `d` is the device, `q` a queue of it.
struct kn_ops {
    const char *backend;

    enum err (*open)(const struct kn_device_config *cfg, struct kn_device **out,
                     struct err_info *info);
    void (*close)(struct kn_device *d);
    void (*info)(const struct kn_device *d, struct kn_device_info *out);

    enum err (*alloc)(struct kn_device *d, size_t bytes, kn_addr *out); // zeroed, 64-byte aligned
    void (*free)(struct kn_device *d, kn_addr a, size_t bytes);
    // Gives physical memory of a range back; its content is then zero.
    void (*discard)(struct kn_device *d, kn_addr a, size_t bytes);
    // Gets a range's physical memory now instead of at its first use, in time that grows with
    // `bytes`. Zeros stay; other content is undefined then. NULL: what is allocated is there.
    void (*touch)(struct kn_device *d, kn_addr a, size_t bytes);

    enum err (*queue_create)(struct kn_device *d, struct kn_queue **out);
    void (*queue_destroy)(struct kn_queue *q);
    struct kn_device *(*queue_device)(const struct kn_queue *q); // that made it
    enum err (*queue_submit)(struct kn_queue *q); // starts what was recorded; optional before wait
    enum err (*queue_wait)(struct kn_queue *q,
                           struct err_info *info); // runs to the end; sticky error
    enum err (*upload)(struct kn_queue *q, kn_addr dst, const void *src,
                       size_t bytes);                                               // copies now
    enum err (*download)(struct kn_queue *q, void *dst, kn_addr src, size_t bytes); // done at wait

    enum err (*weight_create)(struct kn_device *d, const struct kn_weight_spec *spec,
                              struct kn_weight **out, struct err_info *info);
    void (*weight_destroy)(struct kn_weight *w);
    size_t (*weight_bytes)(const struct kn_weight *w);
    enum kn_form (*weight_form)(const struct kn_weight *w); // the form of x it multiplies
    // Dequantised rows [row, row + n) -> out[n, k]; tests and digests.
    enum err (*weight_read)(const struct kn_weight *w, int64_t row, int64_t n, float *out);
    size_t (*form_row_bytes)(enum kn_form form, int64_t k);
    size_t (*kv_block_bytes)(const struct kn_kv_shape *shape);

    enum err (*embed)(struct kn_queue *q, const struct kn_embed *p);
    enum err (*rmsnorm)(struct kn_queue *q, const struct kn_rmsnorm *p);
    enum err (*quantize)(struct kn_queue *q, const struct kn_quantize *p);
    enum err (*gemm)(struct kn_queue *q, const struct kn_gemm *p);
    enum err (*gemm_t)(struct kn_queue *q, const struct kn_gemm_t *p);
    enum err (*swiglu)(struct kn_queue *q, const struct kn_swiglu *p);
    enum err (*rope_table)(struct kn_queue *q, const struct kn_rope_table *p);
    enum err (*rope_kv)(struct kn_queue *q, const struct kn_rope_kv *p);
    enum err (*attn)(struct kn_queue *q, const struct kn_attn *p);
    enum err (*gather)(struct kn_queue *q, const struct kn_gather *p);
    enum err (*kv_copy)(struct kn_queue *q, const struct kn_kv_copy *p);
    enum err (*sample)(struct kn_queue *q, const struct kn_sample *p);

    // Adapters (kernels/lora.h). rows, cols: [r, k] for A, [n, r] for B.
    size_t (*lora_bytes)(enum kn_lora_side side, int32_t rows, int32_t cols);
    void (*lora_pack)(enum kn_lora_side side, int32_t rows, int32_t cols, const float *src,
                      void *dst); // host memory to what `upload` brings to the device
    void (*lora_unpack)(enum kn_lora_side side, int32_t rows, int32_t cols, const void *src,
                        float *dst); // what `download` brought
    // Packed f32 of so many bytes to and from half of them in KN_BF16 or KN_F16. dst of lora_narrow
    // may be src. NULL: the backend has f32 only.
    void (*lora_narrow)(enum kn_dtype t, const void *src, size_t bytes, void *dst);
    void (*lora_widen)(enum kn_dtype t, const void *src, size_t bytes, void *dst);
    enum err (*lora)(struct kn_queue *q, const struct kn_lora *p);
    // gemm, then lora, with the bits of the two: a backend may let them overlap. lora->y is gemm->y
    // or a part of it, lora->x is nothing that the product writes. NULL: the caller records both.
    enum err (*gemm_lora)(struct kn_queue *q, const struct kn_gemm *gemm,
                          const struct kn_lora *lora);
    enum err (*lora_shrink_back)(struct kn_queue *q, const struct kn_lora_shrink_back *p);
    enum err (*lora_dx)(struct kn_queue *q, const struct kn_lora_dx *p);
    enum err (*lora_grad)(struct kn_queue *q, const struct kn_lora_grad *p);

    // Training (kernels/train.h).
    enum err (*xent)(struct kn_queue *q, const struct kn_xent *p);
    enum err (*rmsnorm_back)(struct kn_queue *q, const struct kn_rmsnorm_back *p);
    enum err (*swiglu_back)(struct kn_queue *q, const struct kn_swiglu_back *p);
    enum err (*attn_back)(struct kn_queue *q, const struct kn_attn_back *p);
    enum err (*rope_back)(struct kn_queue *q, const struct kn_rope_back *p);
    enum err (*scatter)(struct kn_queue *q, const struct kn_scatter *p);
    enum err (*grad_add)(struct kn_queue *q, const struct kn_grad_add *p);
    enum err (*sumsq)(struct kn_queue *q, const struct kn_sumsq *p);
    enum err (*adamw)(struct kn_queue *q, const struct kn_adamw *p);

    // Collectives over ranks; NULL where only world = 1 works.
    enum err (*all_reduce)(struct kn_queue *q, kn_addr x, size_t n);
};

extern const struct kn_ops kn_ops_cpu;

enum kn_need { // operations a caller cannot do without
    KN_NEED_SERVE = 1,
    KN_NEED_BACKWARD = 2, // gemm_t
    KN_NEED_SHARDED = 4,  // all_reduce
    KN_NEED_LORA = 8,     // adapters in serving
    KN_NEED_TRAIN = 16,   // training's operations, and those of BACKWARD and LORA
};
// ERR_UNSUPPORTED with the first missing operation's name.
enum err kn_require(const struct kn_ops *ops, unsigned needs, struct err_info *info);

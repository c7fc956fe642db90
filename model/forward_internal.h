// SPDX-License-Identifier: Apache-2.0
// Inside the layer walk: the cursor, its workspace, and the stages it goes through.
//
//   forward.c          create, begin, run; what a slice of work costs; errors
//   forward_upload.c   checks a batch and uploads it
//   forward_stages.c   the walk itself: one function per stage
//   forward_linear.c   its products with their hooks; what a piece of work costs
//
// Invariants
// 1. Between two calls nothing of the cursor is on the queue.
// 2. What is computed never depends on where the cursor stopped: a stage is cut along outputs only.
// 3. Nothing is allocated after create, but for `extra` when a batch asks for more than any before.
#pragma once
#include "model/forward.h"

enum mdl__stage {
    STAGE_NONE, // no batch, or it was lost
    STAGE_EMBED,
    // of one layer
    STAGE_ATTN_NORM,
    STAGE_QKV,
    STAGE_ROPE_KV,
    STAGE_ATTN,
    STAGE_PRUNE, // last layer: go on with the wanted rows only
    STAGE_O,
    STAGE_FFN_NORM,
    STAGE_GATE_UP,
    STAGE_ACT,
    STAGE_DOWN,
    // after the layers
    STAGE_FINAL,
    STAGE_HEAD_NORM, // of one slice of wanted rows, as the next two
    STAGE_LOGITS,
    STAGE_SAMPLE,
    STAGE_RESULTS,
    STAGE_DONE,
};

// Where the walk stands.
struct mdl__cursor {
    enum mdl__stage stage;
    int32_t layer;
    int32_t done; // of the stage: output columns of a product's block of rows, tokens of attention
    int32_t row, block; // of a product: first row of the block in hand, its rows
    int32_t want;       // first wanted position of the slice in hand
    int32_t rows;       // rows that go through the layers: n_tokens, n_want after STAGE_PRUNE
    bool again;         // one layer for backward: ends after gate | up
};

// Device addresses in the workspace. Three phases share one range: attention (qkv, attn, attnq),
// MLP (gate_up, actq) and head (logits). ld_* count elements, rows are padded to 64 bytes.
struct mdl__buffers {
    kn_addr x, xn, xnq;                       // residual, its norm in both forms
    kn_addr qkv, attn, attnq;                 // attention
    kn_addr gate_up, actq;                    // MLP; the activation lies in gate_up's place
    kn_addr h, hn, hnq, logits;               // one slice of wanted rows
    kn_addr rope, identity;                   // rotation table; i32 0, 1, 2, ...
    kn_addr meta, block_table;                // the batch
    kn_addr sample_rows, sample_outs, tokens; // per wanted position
    int64_t ld_hidden, ld_qkv, ld_attn, ld_inter, ld_gate_up, ld_vocab;
};

// Byte offsets of the batch's arrays in `meta` and in its host image.
struct mdl__meta {
    size_t header, ids, pos, seq, seq_start, kv_len, slot, out_rows, bytes;
};

struct mdl_forward {
    const struct mdl_weights *w;
    const struct kn_ops *ops;
    struct kn_queue *q;
    struct kn_device *device; // the queue's
    const struct clock *clock;
    struct mdl_forward_limits limits;

    kn_addr workspace;
    size_t workspace_bytes;
    size_t plain_bytes; // of one PLAIN element
    int32_t slice_rows; // wanted positions whose logits exist at a time
    struct mdl__buffers buf;
    struct mdl__meta meta;
    unsigned char *stage;          // host image of meta
    struct kn_sample_row *rows;    // host image of sample_rows
    struct kn_sample_out *samples; // results
    kn_addr extra;                 // biases, counts and masks of the wanted positions
    unsigned char *extra_stage;    // its host image
    size_t extra_bytes;

    // the batch in hand
    struct kn_batch batch;
    struct mdl_kv kv;
    const struct mdl_hooks *hooks; // NULL without a `linear`
    const struct mdl_tape *tape;
    float *capture;
    bool rows_are_wants; // wanted position i is token i, for all tokens
    int32_t previous;    // wanted positions of the last batch that ended
    struct mdl__cursor at;
    kn_addr residual, spare; // buf.x and buf.xn, changed about by STAGE_PRUNE
    kn_addr taped[MDL_TAPE_KINDS];
    kn_addr again_from; // the residual stream that the layer which goes again begins with

    double attn_work; // query-key pairs of one layer and head
    int32_t cut_rows; // a product with more rows is cut into blocks of so many
    double slice_ns;  // work recorded between two looks at the clock
    double scale;     // measured time of a slice over its estimate
};

// One slice's account: a stage records work worth about `budget` more nanoseconds, or all of its
// rest.
struct mdl__account {
    double spent, budget; // estimated ns; a budget of MDL__UNLIMITED: nothing is cut
};
#define MDL__UNLIMITED 1e300
static inline bool mdl__sliced(const struct mdl__account *a) {
    return a->budget < MDL__UNLIMITED;
}

// What a two-core server does; `scale` corrects it as slices are measured.
#define MDL__NS_PER_BYTE 0.05
#define MDL__NS_PER_FLOP 0.005
void mdl__spend(struct mdl_forward *f, struct mdl__account *a, double bytes, double flops);
// How many of `n` units that cost `ns` together, unscaled, fit the budget: a multiple of `unit`, or
// all.
int32_t mdl__cut(const struct mdl_forward *f, const struct mdl__account *a, int32_t n, double ns,
                 int32_t unit);
// The stage is done.
void mdl__next(struct mdl_forward *f);

// A product of the walk: y = epilogue(x Wᵀ + bias).
struct mdl__product {
    const struct mdl_matrix *m;
    kn_addr x, xq; // PLAIN and Q8; what no part multiplies may be 0
    int64_t ldx;
    kn_addr y;
    int64_t ldy;
    kn_addr bias;
    int32_t rows;
    enum kn_epilogue epilogue;
    bool gate_up; // of one weight: columns are counted in pairs of both
};
// Whether a hook follows this product of the layer in hand.
bool mdl__hooked(const struct mdl_forward *f, enum mdl_linear which);
// Records columns and rows from the cursor on; true in *all once every one is recorded.
enum err mdl__product(struct mdl_forward *f, struct mdl__account *a, const struct mdl__product *p,
                      bool *all);
// A product with its hook; moves on when both are recorded.
enum err mdl__linear(struct mdl_forward *f, struct mdl__account *a, const struct mdl__product *p,
                     enum mdl_linear which);

// Records the next part of the walk and moves the cursor.
enum err mdl__forward_stage(struct mdl_forward *f, struct mdl__account *a);

// ERR_INVALID or ERR_LIMIT with the reason; changes nothing.
enum err mdl__forward_check(const struct mdl_forward *f, const struct mdl_batch *b,
                            const struct mdl_kv *kv, struct err_info *info);
// Records the upload of a checked batch and fills f->batch.
enum err mdl__forward_upload(struct mdl_forward *f, const struct mdl_batch *b);
void mdl__forward_meta_layout(const struct mdl_forward_limits *l, struct mdl__meta *m);

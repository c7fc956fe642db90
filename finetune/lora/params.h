// SPDX-License-Identifier: Apache-2.0
// The adapter that is being trained, in device memory: matrices, the gradient of the unit in hand,
// the sums of gradients, AdamW's moments; f32 in the layout of kernels/lora.h, sums int64. One
// range of memory for each kind, modules at the same offsets in each, so that element-wise
// operations run over all of them at once. All of it is one range, "the state":
//
//   gradient | sums | m | v | matrices | flag
//
// The gradient comes first: it is needed only while a unit has one (executor.c). Driven by the
// queue's thread.
#pragma once
#include "model/adapter.h"
#include "model/lora.h"
#include <stdint.h>

struct lora_config {
    unsigned targets; // bit t: enum mdl_target
    int32_t r;
    float alpha;
    bool rslora;
    float dropout;
    uint64_t seed; // of A's initial values: U(-1/sqrt(k), 1/sqrt(k)), counter-based; B is zero
};

struct lora_params;
// In memory of its own, with the first values.
enum err lora_params_create(const struct mdl_weights *w, struct kn_queue *q,
                            const struct lora_config *cfg, struct lora_params **out,
                            struct err_info *info);
void lora_params_destroy(struct lora_params *p);
size_t lora_params_bytes(const struct lora_params *p);

// The same in memory of somebody else's, which is not always there: first what it takes, then where
// it is. The store reads and writes n bytes at an offset of the state, wherever they are, and is
// used by _place (for the first values; all else is zero there), _get and _set; it outlives the
// parameters.
struct lora_store {
    enum err (*read)(void *arg, size_t at, void *to, size_t n, struct err_info *info);
    enum err (*write)(void *arg, size_t at, const void *from, size_t n, struct err_info *info);
    void *arg;
};
enum err lora_params_describe(const struct mdl_weights *w, struct kn_queue *q,
                              const struct lora_config *cfg, struct lora_params **out,
                              struct err_info *info);
enum err lora_params_place(struct lora_params *p, struct kn_queue *q, kn_addr at,
                           const struct lora_store *store, struct err_info *info);
int64_t lora_params_count(const struct lora_params *p); // trainable values, padding not counted

// The matrices as a resident adapter, for slots: training's forward is serving's.
const struct mdl_lora *lora_params_resident(const struct lora_params *p);

struct lora_module { // addresses of one module; r = 0: not trained
    int32_t r, n, k;
    float scale;
    kn_addr a, b;           // matrices
    kn_addr grad_a, grad_b; // f32, of the unit in hand
    kn_addr acc_a, acc_b;   // i64 sums of gradients
    int64_t len_a, len_b;   // values with padding
};
void lora_params_module(const struct lora_params *p, int32_t layer, enum mdl_target t,
                        struct lora_module *out);

// Whole ranges, for element-wise operations: n values each.
struct lora_ranges {
    kn_addr state; // where all of them begin, with the gradient
    int64_t n;
    kn_addr w, m, v; // f32
    kn_addr grad;    // f32: the gradient of the unit in hand
    kn_addr acc;     // i64
};
void lora_params_ranges(const struct lora_params *p, struct lora_ranges *out);

kn_addr lora_params_flag(const struct lora_params *p); // i32, for kn_grad_add
float lora_params_dropout(const struct lora_params *p);

// State to and from host memory, of one layer, or of all with layer < 0 (waits for the queue). m,
// v: adapters with the moments in the matrices' places; NULL: not wanted (get), zero (set).
enum err lora_params_get(struct lora_params *p, struct kn_queue *q, int32_t layer,
                         struct mdl_adapter *w, struct mdl_adapter *m, struct mdl_adapter *v,
                         struct err_info *info);
enum err lora_params_set(struct lora_params *p, struct kn_queue *q, int32_t layer,
                         const struct mdl_adapter *w, const struct mdl_adapter *m,
                         const struct mdl_adapter *v, struct err_info *info);

// SPDX-License-Identifier: Apache-2.0
// Adapters in device memory and the hook that applies them in the layer walk. A *resident* adapter
// has its matrices in the device's layout; a *slot* is what a batch's sequence names. Slots are
// changed between steps by the thread that drives the queue.
//
//   mdl_adapter -> mdl_lora_create -> resident
//               -> mdl_lora_set(slots, s, resident) -> batch.slot = s
#pragma once
#include "kernels/lora.h"
#include "model/adapter.h"
#include "model/forward.h"

struct mdl_lora; // resident; immutable for serving, its matrices change in training

// Copies and packs, into memory of the queue's device; the adapter may be freed afterwards. Runs on
// the queue (upload), so by its thread, or by any thread with a queue of its own.
// Matrices whose values all are bf16 or f16 (as files of these types have them) lie in 16 bits,
// which changes no result.
enum err mdl_lora_create(const struct mdl_weights *w, struct kn_queue *q,
                         const struct mdl_adapter *a, struct mdl_lora **out, struct err_info *info);
// The same in the memory of one that nobody uses any more, if it has just the size. That one is
// destroyed in any case; NULL: none. pace: of the calling thread, or NULL.
enum err mdl_lora_create_in(const struct mdl_weights *w, struct kn_queue *q,
                            const struct mdl_adapter *a, struct mdl_lora *spare, struct pace *pace,
                            struct mdl_lora **out, struct err_info *info);
// For training, whose matrices change: all in f32.
enum err mdl_lora_create_f32(const struct mdl_weights *w, struct kn_queue *q,
                             const struct mdl_adapter *a, struct mdl_lora **out,
                             struct err_info *info);
// The same in memory of the caller's, which may not be there yet: nothing is allocated, copied or
// written. mdl_lora_bytes says how much it takes; until mdl_lora_place no slot may hold it.
enum err mdl_lora_create_unplaced(const struct mdl_weights *w, struct kn_queue *q,
                                  const struct mdl_adapter *a, struct mdl_lora **out,
                                  struct err_info *info);
void mdl_lora_place(struct mdl_lora *l, kn_addr at);
void mdl_lora_destroy(struct mdl_lora *l); // no slot may hold it, no queued work use it
size_t mdl_lora_bytes(const struct mdl_lora *l);
// Device memory that this adapter needs for serving; looks at all its values.
size_t mdl_lora_bytes_for(const struct mdl_weights *w, const struct mdl_adapter *a);
// The resident matrices of one module; r is 0 where it is no target.
const struct kn_lora_entry *mdl_lora_module(const struct mdl_lora *l, int32_t layer,
                                            enum mdl_target t);
// Copies the matrices back (waits for the queue).
enum err mdl_lora_download(const struct mdl_lora *l, struct kn_queue *q, struct mdl_adapter *to,
                           struct err_info *info);

struct mdl_lora_slots;
enum { MDL_LORA_MAX_SLOTS = 1024 };
enum err mdl_lora_slots_create(const struct mdl_weights *w, struct kn_queue *q, int32_t n_slots,
                               struct mdl_lora_slots **out, struct err_info *info);
void mdl_lora_slots_destroy(struct mdl_lora_slots *s);
// What slot i holds from the next step on; NULL: nothing. Borrowed. An adapter that a slot let go
// may be destroyed once the queue has been waited for. On error the slot holds what it held.
enum err mdl_lora_set(struct mdl_lora_slots *s, int32_t i, const struct mdl_lora *l);
// Hooks for mdl_forward_begin: rows of sequences with slot -1 keep their bits. Linears that no slot
// targets cost nothing.
const struct mdl_hooks *mdl_lora_hooks(struct mdl_lora_slots *s);
// Training: dropout for the following forwards, keys u64 [rows] in device memory; p = 0: none.
void mdl_lora_dropout(struct mdl_lora_slots *s, float p, kn_addr keys);

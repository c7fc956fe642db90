// SPDX-License-Identifier: Apache-2.0
// A LoRA adapter in host memory: the matrices of each target module, natural layout, f32. Read from
// and written to the folder format of Hugging Face PEFT (adapter_config.json,
// adapter_model.safetensors). Immutable once it is read. Reading checks everything against the
// base's shape before anything is used and refuses, never skips: DoRA, bias, modules_to_save,
// fan_in_fan_out, a missing A or B, an unknown tensor, a wrong shape, a module that the base does
// not have, values that are not finite, a rank over the limit. Blocks on files; any thread.
#pragma once
#include "base/err.h"
#include "base/pace.h"
#include "model/config.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum mdl_target {
    MDL_TARGET_Q,
    MDL_TARGET_K,
    MDL_TARGET_V,
    MDL_TARGET_O,
    MDL_TARGET_GATE,
    MDL_TARGET_UP,
    MDL_TARGET_DOWN,
    MDL_TARGETS
};
const char *mdl_target_name(enum mdl_target t); // "q_proj"
// Shape of the base's weight [n, k] of a target.
void mdl_target_shape(const struct mdl_config *c, enum mdl_target t, int32_t *n, int32_t *k);

struct mdl_adapter_module {
    int32_t r;    // 0: not a target
    float alpha;  // from lora_alpha or alpha_pattern
    float scale;  // alpha / r, or alpha / sqrt(r) with rslora
    float *a, *b; // [r, k], [n, r]
};

struct mdl_adapter {
    int32_t n_layers;
    struct mdl_adapter_module (*modules)[MDL_TARGETS]; // [n_layers]
    int32_t max_r;
    bool rslora;
    float dropout;  // of its training; serving ignores it
    size_t values;  // floats in all matrices
    char base[256]; // base_model_name_or_path, "" if null
    void *memory;   // of all matrices
};

struct mdl_adapter_limits {
    int32_t max_rank;  // 0: KN_LORA_MAX_RANK
    size_t max_bytes;  // of the tensors file, 0: no limit but the shapes'
    struct pace *pace; // of the reading thread, NULL: none
};

enum err mdl_adapter_read(const char *dir, const struct mdl_config *c,
                          const struct mdl_adapter_limits *limits, struct mdl_adapter **out,
                          struct err_info *info);
void mdl_adapter_destroy(struct mdl_adapter *a);
// The shape of a base that the folder's tensors would fit, as far as they tell it, for checks where
// the base is not at hand: mdl_adapter_read against it finds what does not fit together. Only
// layers and the widths that mdl_target_shape uses are set.
enum err mdl_adapter_shape(const char *dir, struct mdl_config *out, struct err_info *info);
// An adapter with A and B zero for `targets` (bit t: enum mdl_target) of every layer, to be filled.
enum err mdl_adapter_create(const struct mdl_config *c, unsigned targets, int32_t r, float alpha,
                            bool rslora, struct mdl_adapter **out, struct err_info *info);
// SHA-256, in hex, of what it computes: ranks, scales and matrices of its modules. ERR_NOMEM.
enum err mdl_adapter_digest(const struct mdl_config *c, const struct mdl_adapter *a, char out[65]);
enum err mdl_adapter_digest_paced(const struct mdl_config *c, const struct mdl_adapter *a,
                                  struct pace *pace, char out[65]);

// Writes both files into an existing folder in the plainest form that PEFT and vLLM read, tensors
// as f32 in the order of their names; each file is written aside, synced and renamed (durable.h),
// and what a process that died has left aside goes. digest: SHA-256 of adapter_model.safetensors in
// hex, may be NULL. Patterns are written where ranks or alphas differ.
enum err mdl_adapter_write(const char *dir, const struct mdl_config *c, const struct mdl_adapter *a,
                           const char *base_name, char digest[65], struct err_info *info);
enum err mdl_adapter_write_paced(const char *dir, const struct mdl_config *c,
                                 const struct mdl_adapter *a, const char *base_name,
                                 struct pace *pace, char digest[65], struct err_info *info);

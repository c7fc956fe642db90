// SPDX-License-Identifier: Apache-2.0
// Internal to the tokenizer: reading the parts of a tokenizer.json.
#pragma once
#include "model/tokenizer_internal.h"
#include <jansson.h>

// The pipeline around the model (tokenizer_hf_pipeline.c). Each takes the value of its field, which
// may be NULL or null, and refuses by name what byte-level BPE does not need.
enum err tok__hf_normalizer(const json_t *v, struct err_info *info);
enum err tok__hf_pre_tokenizer(struct tokenizer *t, const json_t *v, struct err_info *info);
enum err tok__hf_post_processor(struct tokenizer *t, const json_t *v, struct err_info *info);
enum err tok__hf_decoder(const json_t *v, struct err_info *info);

// A boolean that may be absent or null.
enum err tok__hf_bool(const json_t *object, const char *key, bool absent, bool *out,
                      struct err_info *info);

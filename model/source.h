// SPDX-License-Identifier: Apache-2.0
// A model on disk, whatever its format: one GGUF file, or a Hugging Face folder with one or more
// safetensors files. Opening checks structure and bounds of everything before anything is used. The
// mapping lives as long as the source; close it once the weights are resident. Used by one thread.
#pragma once
#include "base/err.h"
#include "kernels/tensor.h"
#include "model/chat_template.h"
#include "model/config.h"
#include "model/tokenizer.h"

enum { MDL_MAX_DIMS = 4 };

struct mdl_tensor { // a view into the mapped file
    const char *name;
    enum kn_dtype dtype;
    int32_t n_dims;
    int64_t dims[MDL_MAX_DIMS]; // outermost first: [n, k]
    const void *data;
    size_t bytes;
};

struct mdl_source;

// path: a .gguf file, or a folder with config.json. The format is told by content, not by name.
enum err mdl_source_open(const char *path, struct mdl_source **out, struct err_info *info);
void mdl_source_close(struct mdl_source *s);

const struct mdl_config *mdl_source_config(const struct mdl_source *s);
// By Hugging Face name ("model.layers.0.self_attn.q_proj.weight") in both formats; NULL if absent.
const struct mdl_tensor *mdl_source_tensor(const struct mdl_source *s, const char *name);
size_t mdl_source_tensor_count(const struct mdl_source *s);
// Llama GGUF files store q and k permuted for interleaved RoPE.
bool mdl_source_rope_permuted(const struct mdl_source *s);
size_t mdl_source_bytes(const struct mdl_source *s); // of all tensors

enum err mdl_source_tokenizer(const struct mdl_source *s, struct tokenizer **out,
                              struct err_info *info);
// The chat template's text; *text NULL if the model has none. Borrowed from the source.
void mdl_source_chat_template(const struct mdl_source *s, const char **text, size_t *len);
// The name a served model gets by default: general.name or the file's or folder's base name.
const char *mdl_source_name(const struct mdl_source *s);

// Files that make up the model, for the content digest (path, size), in a fixed order.
size_t mdl_source_file_count(const struct mdl_source *s);
const char *mdl_source_file(const struct mdl_source *s, size_t i);

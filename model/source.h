// SPDX-License-Identifier: Apache-2.0
// A model on disk, whatever its format: one GGUF file, or a Hugging Face folder with one or more
// safetensors files. Opening checks structure and bounds of everything before anything is used;
// that the tensors' names and shapes are what the config asks for is for the loader to check.
// Tensors that the model's computation does not use (a tied head's copy, stored RoPE frequencies)
// are not listed. Used by one thread, but for mdl_source_read, which any thread may call.
//
// Files are read with pread, never mapped: a mapped file that someone truncates kills the process
// with SIGBUS, a read that comes back short is an error that names the tensor. Reading a tensor
// into a scratch buffer that is used again and again costs about what the page faults of a mapping
// would. The source keeps its files open, so a file that is replaced by rename is read as it was;
// close the source once the weights are resident.
#pragma once
#include "base/err.h"
#include "kernels/tensor.h"
#include "model/chat_template.h"
#include "model/config.h"
#include "model/tokenizer.h"

enum { MDL_MAX_DIMS = 4 };

struct mdl_tensor { // a range of one of the model's files; read it with mdl_source_read
    const char *name;
    enum kn_dtype dtype;
    int32_t n_dims;
    int64_t dims[MDL_MAX_DIMS]; // outermost first: [n, k]
    int32_t file;               // index, see mdl_source_file
    uint64_t offset;            // in that file
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
const struct mdl_tensor *mdl_source_tensor_at(const struct mdl_source *s, size_t i); // by name
// Copies bytes [offset, offset + n) of the tensor to dst. Blocks on the file; ERR_IO, naming the
// tensor, where the file has become shorter or cannot be read.
enum err mdl_source_read(const struct mdl_source *s, const struct mdl_tensor *t, uint64_t offset,
                         size_t n, void *dst, struct err_info *info);
// ERR_IO, naming the file, if a file has another size or modification time than when it was opened.
// The loader asks once it has read everything.
enum err mdl_source_check_unchanged(const struct mdl_source *s, struct err_info *info);
// Llama GGUF files store q and k permuted for interleaved RoPE.
bool mdl_source_rope_permuted(const struct mdl_source *s);
size_t mdl_source_bytes(const struct mdl_source *s); // of all tensors

enum err mdl_source_tokenizer(const struct mdl_source *s, struct tokenizer **out,
                              struct err_info *info);
// The chat template's text; *text NULL if the model has none. Borrowed from the source.
void mdl_source_chat_template(const struct mdl_source *s, const char **text, size_t *len);
// The name a served model gets by default: the last part of the path it was opened with, without
// ".gguf".
const char *mdl_source_name(const struct mdl_source *s);

// Files that make up the model, in a fixed order; model/digest.h hashes them.
size_t mdl_source_file_count(const struct mdl_source *s);
const char *mdl_source_file(const struct mdl_source *s, size_t i); // path
int mdl_source_file_fd(const struct mdl_source *s, size_t i);      // borrowed

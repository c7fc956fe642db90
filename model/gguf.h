// SPDX-License-Identifier: Apache-2.0
// The structure of a GGUF file, version 2 or 3, little-endian: metadata and tensor infos. Parsing
// works on bytes in memory and allocates two tables; strings and arrays stay views into those
// bytes. Everything is bounded by what the file can hold before memory is taken for it, and every
// error names the key or tensor and the byte offset. Stateless; a parsed file is immutable.
//
// After gguf_parse succeeds:
//   1. kv is sorted by key, keys are unique; every value lies inside the header bytes
//   2. tensors are sorted by offset, names are unique; every tensor lies inside the file, is
//   aligned
//      and overlaps no other
//   3. each tensor's bytes are what its type and dimensions ask for
#pragma once
#include "base/err.h"
#include "kernels/tensor.h"
#include "model/tokenizer.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum gguf_type {
    GGUF_U8,
    GGUF_I8,
    GGUF_U16,
    GGUF_I16,
    GGUF_U32,
    GGUF_I32,
    GGUF_F32,
    GGUF_BOOL,
    GGUF_STRING,
    GGUF_ARRAY,
    GGUF_U64,
    GGUF_I64,
    GGUF_F64,
    GGUF_TYPES
};

enum {
    GGUF_MAX_KEYS = 1 << 16,
    GGUF_MAX_TENSORS = 1 << 16,
    GGUF_MAX_KEY = 65535,     // bytes of a key
    GGUF_MAX_NAME = 127,      // bytes of a tensor name
    GGUF_MAX_DEPTH = 4,       // arrays in arrays
    GGUF_MAX_HEADER = 1 << 28 // bytes before the tensor data
};

struct gguf_kv {
    struct tok_str key;
    enum gguf_type type;
    enum gguf_type elem; // of an array
    uint64_t count;      // of an array's elements, else 1
    size_t at;           // where the value (an array's first element) begins
};

struct gguf_tensor {
    struct tok_str name;
    enum kn_dtype dtype;
    int32_t n_dims;
    int64_t dims[4]; // outermost first, unlike in the file
    uint64_t offset; // in the file
    size_t bytes;
    size_t at; // where its info begins
};

struct gguf {
    const uint8_t *p; // the header's bytes; the caller keeps them alive
    size_t len;       // that were needed
    uint32_t version, alignment;
    struct gguf_kv *kv;
    size_t n_kv;
    struct gguf_tensor *tensors;
    size_t n_tensors;
    uint64_t data_begin;
};

// Parses the first `have` bytes of a file of file_size bytes. ERR_AGAIN, and nothing to free: the
// header is longer than `have` (and `have` is less than file_size): read more and call again.
enum err gguf_parse(const void *p, size_t have, uint64_t file_size, struct gguf *out,
                    struct err_info *info);
void gguf_fini(struct gguf *g);

const struct gguf_kv *gguf_find(const struct gguf *g, const char *key); // NULL if absent
// The getters leave *out as it is where the key is absent. A value of another type, or outside
// [min, max], is ERR_FORMAT with the key's name. Any integer type will do for gguf_int.
enum err gguf_int(const struct gguf *g, const char *key, int64_t min, int64_t max, int64_t *out,
                  struct err_info *info);
enum err gguf_float(const struct gguf *g, const char *key, float *out,
                    struct err_info *info); // finite
enum err gguf_bool(const struct gguf *g, const char *key, bool *out, struct err_info *info);
enum err gguf_string(const struct gguf *g, const char *key, struct tok_str *out,
                     struct err_info *info);
// The next string of an array of strings, *at standing at its length; moves *at behind it.
struct tok_str gguf_next_string(const uint8_t **at);
// Arrays: *out is freed with mem_free; its strings are views into the header.
enum err gguf_strings(const struct gguf *g, const char *key, struct tok_str **out, size_t *n,
                      struct err_info *info);
enum err gguf_int32s(const struct gguf *g, const char *key, int32_t **out, size_t *n,
                     struct err_info *info);

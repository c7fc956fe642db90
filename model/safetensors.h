// SPDX-License-Identifier: Apache-2.0
// The header of a safetensors file: 8 bytes little-endian length N, N bytes of JSON, tensor data.
// Parsing works on bytes in memory and checks the whole file's layout before anything of it is
// used:
//
//   1. the JSON begins with '{', is valid UTF-8, has no duplicate keys and may end in white space
//   2. tensors sorted by offset begin at 0, each begins where the previous one ends
//   3. a tensor's bytes are what its dtype and shape ask for; all products are checked
//   4. 8 + N + the last end is exactly the file's size
//   5. __metadata__ maps strings to strings
//
// Stateless; a parsed header is immutable.
#pragma once
#include "base/err.h"
#include <stddef.h>
#include <stdint.h>

enum {
    ST_MAX_HEADER = 100000000, // bytes of JSON
    ST_MAX_TENSORS = 1 << 18,
    ST_MAX_METADATA = 1 << 16,
    ST_MAX_DIMS = 8,
    ST_MAX_NAME = 255,
};

enum st_dtype { // the format's own names follow the prefix
    ST_BOOL,
    ST_U8,
    ST_I8,
    ST_F8_E5M2,
    ST_F8_E4M3,
    ST_I16,
    ST_U16,
    ST_F16,
    ST_BF16,
    ST_I32,
    ST_U32,
    ST_F32,
    ST_F64,
    ST_I64,
    ST_U64,
    ST_DTYPES
};
const char *st_dtype_name(enum st_dtype t);
size_t st_dtype_bytes(enum st_dtype t);

struct st_tensor {
    const char *name; // NUL-terminated, printable
    enum st_dtype dtype;
    int32_t n_dims;
    uint64_t dims[ST_MAX_DIMS]; // outermost first
    uint64_t begin, end;        // in the file
};

struct st_meta {
    const char *key, *value; // NUL-terminated; value may hold anything but NUL
};

struct st_header {
    char *json;                // owned; names point into it
    struct st_tensor *tensors; // sorted by begin
    size_t n_tensors;
    struct st_meta *meta; // sorted by key
    size_t n_meta;
};

// Length of the JSON from the file's first 8 bytes, checked against the file's size.
enum err st_header_length(const uint8_t first[8], uint64_t file_size, size_t *n,
                          struct err_info *info);
// Parses the JSON, which is taken over (and changed), also on failure; it is freed with mem_free.
enum err st_parse(char *json, size_t n, uint64_t file_size, struct st_header *out,
                  struct err_info *info);
void st_fini(struct st_header *h);

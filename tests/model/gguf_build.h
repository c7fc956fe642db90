// SPDX-License-Identifier: Apache-2.0
// Puts GGUF files together piece by piece, sound or not, for tests.
#pragma once
#include "base/buf.h"
#include <stdint.h>

struct gguf_build {
    struct buf kv, infos;
    uint64_t n_kv, n_tensors;
    uint32_t version;   // 3
    uint32_t alignment; // of the data, 32; the key is the caller's
    size_t data_bytes;  // behind the header, zeroed
};

void gb_init(struct gguf_build *b);
void gb_key(struct gguf_build *b, const char *key, uint32_t type); // the value follows as raw bytes
void gb_raw(struct gguf_build *b, const void *p, size_t n);
void gb_raw32(struct gguf_build *b, uint32_t v);
void gb_raw64(struct gguf_build *b, uint64_t v);
void gb_raw_str(struct gguf_build *b, const char *s);
void gb_u32(struct gguf_build *b, const char *key, uint32_t v);
void gb_str(struct gguf_build *b, const char *key, const char *v);
void gb_tensor(struct gguf_build *b, const char *name, uint32_t n_dims, const uint64_t *dims,
               uint32_t type, uint64_t offset);
// The file in a block of exactly its size (free with free), so that a sanitizer sees the first byte
// read beyond it. Ends the builder.
uint8_t *gb_finish(struct gguf_build *b, size_t *len);

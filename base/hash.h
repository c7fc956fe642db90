// SPDX-License-Identifier: Apache-2.0
// Hashes. hash_bytes is SipHash-2-4 (Aumasson and Bernstein, 2012) for tables keyed by outsiders'
// data; hash_mix64 is the finaliser of SplitMix64 (Steele et al., 2014); sha256 is OpenSSL's.
// Thread-safe.
#pragma once
#include "base/err.h"
#include <stddef.h>
#include <stdint.h>

struct hash_key {
    uint64_t k0, k1;
};
enum err hash_key_random(struct hash_key *k); // from the system's generator

uint64_t hash_bytes(const struct hash_key *k, const void *p, size_t n);
uint64_t hash_mix64(uint64_t x);

enum { SHA256_BYTES = 32 };
enum err sha256(const void *p, size_t n, uint8_t out[SHA256_BYTES]);
struct sha256_ctx; // opaque, for data that comes in pieces
struct sha256_ctx *sha256_begin(void);
enum err sha256_update(struct sha256_ctx *c, const void *p, size_t n);
enum err sha256_end(struct sha256_ctx *c, uint8_t out[SHA256_BYTES]); // frees c, also on failure
void hex_encode(const uint8_t *p, size_t n, char *out);               // 2n characters and a NUL
int hex_value(char c);                                                // of a digit; -1: it is none
int mem_equal_ct(const void *a, const void *b, size_t n);             // constant time; 1 if equal
enum err random_bytes(void *p, size_t n);

// SPDX-License-Identifier: Apache-2.0
// UTF-8 (RFC 3629): no surrogates, no overlong forms, nothing above U+10FFFF. Stateless,
// thread-safe.
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// Decodes one character of s[0..n): its length 1..4 and *cp; 0 if s is cut inside a character that
// could still become valid; -1 if the bytes can never be valid.
int utf8_decode(const char *s, size_t n, uint32_t *cp);
int utf8_encode(uint32_t cp, char out[4]); // length; U+FFFD for what is no scalar value
bool utf8_valid(const char *s, size_t n);
// Bytes of the longest prefix of s[0..n) that is whole, valid characters.
size_t utf8_valid_prefix(const char *s, size_t n);
// Largest m <= n such that s[0..m) does not end inside a character; s is valid UTF-8 and s[n]
// readable.
size_t utf8_cut(const char *s, size_t n);
size_t utf8_count(const char *s, size_t n); // code points of valid UTF-8

// SPDX-License-Identifier: Apache-2.0
// A strict JSON reader that goes forward over bytes in memory and allocates nothing, for headers
// whose grammar is known (safetensors). Strings are decoded in place: the escapes of a string only
// ever make it shorter, so its text is written over its source. Not for general documents; those go
// through jansson. Not thread-safe; its owner is whoever declared it.
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct json_scan {
    char *p; // UTF-8, checked by the caller; strings inside are overwritten
    size_t n, at;
};

void json_scan_space(struct json_scan *s);        // skips white space
bool json_scan_char(struct json_scan *s, char c); // skips white space and c, if c is next
bool json_scan_end(struct json_scan *s);          // only white space is left
// A string: its decoded text (not NUL-terminated). False: malformed, or a lone surrogate.
bool json_scan_string(struct json_scan *s, const char **text, size_t *len);
// A non-negative integer without fraction, exponent or leading zero that fits 64 bits.
bool json_scan_u64(struct json_scan *s, uint64_t *v);

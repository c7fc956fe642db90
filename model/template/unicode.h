// SPDX-License-Identifier: Apache-2.0
// Character properties and case mappings as Python's str methods define them (Unicode 14), for the
// template interpreter. Stateless, thread-safe.
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum tpl_uc_prop {
    TPL_UC_ALPHA,
    TPL_UC_DECIMAL,
    TPL_UC_DIGIT,
    TPL_UC_NUMERIC,
    TPL_UC_ALNUM,
    TPL_UC_SPACE,
    TPL_UC_PRINTABLE,
    TPL_UC_UPPER,
    TPL_UC_LOWER,
    TPL_UC_TITLE,
    TPL_UC_CASED,     // cased and not case-ignorable
    TPL_UC_IGNORABLE, // case-ignorable
};
bool tpl_uc_is(enum tpl_uc_prop prop, uint32_t cp);
int tpl_uc_decimal_value(uint32_t cp); // 0..9, or -1

enum tpl_uc_case_to { TPL_UC_TO_UPPER, TPL_UC_TO_LOWER, TPL_UC_TO_TITLE };
size_t tpl_uc_map(enum tpl_uc_case_to to, uint32_t cp, uint32_t out[3]); // 1..3 code points

// Valid UTF-8 only: the character at s[0..n), n > 0, and its length; the character that ends at
// s[n).
size_t tpl_uc_next(const char *s, size_t n, uint32_t *cp);
size_t tpl_uc_prev(const char *s, size_t n, uint32_t *cp);

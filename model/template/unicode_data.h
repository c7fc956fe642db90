// SPDX-License-Identifier: Apache-2.0
// The tables in unicode_data.c. Used by unicode.c only.
#pragma once
#include <stddef.h>
#include <stdint.h>

struct tpl_uc_case { // code points first, first + step, ..., last map to themselves + delta
    uint32_t first, last;
    uint32_t step;
    int32_t delta;
};
struct tpl_uc_special { // mappings to two or three code points, zero-padded
    uint32_t cp;
    uint32_t to[3];
};

extern const uint32_t tpl_uc_alpha[], tpl_uc_decimal[], tpl_uc_digit[], tpl_uc_numeric[];
extern const uint32_t tpl_uc_printable[], tpl_uc_upper[], tpl_uc_lower[], tpl_uc_title[];
extern const uint32_t tpl_uc_ignorable[], tpl_uc_cased[];
extern const size_t tpl_uc_alpha_n, tpl_uc_decimal_n, tpl_uc_digit_n, tpl_uc_numeric_n;
extern const size_t tpl_uc_printable_n, tpl_uc_upper_n, tpl_uc_lower_n, tpl_uc_title_n;
extern const size_t tpl_uc_ignorable_n, tpl_uc_cased_n;

extern const struct tpl_uc_case tpl_uc_to_upper[], tpl_uc_to_lower[], tpl_uc_to_title[];
extern const size_t tpl_uc_to_upper_n, tpl_uc_to_lower_n, tpl_uc_to_title_n;
extern const struct tpl_uc_special tpl_uc_to_upper_special[], tpl_uc_to_lower_special[];
extern const struct tpl_uc_special tpl_uc_to_title_special[];
extern const size_t tpl_uc_to_upper_special_n, tpl_uc_to_lower_special_n;
extern const size_t tpl_uc_to_title_special_n;

// SPDX-License-Identifier: Apache-2.0
// Numbers as text, for "%" formatting and str.format alike.
#pragma once
#include "model/template/ctx.h"
#include "model/template/str.h"

enum { TPL_MAX_PRECISION = 1000, TPL_UINT_CHARS = 72 };

// |f| as printf's e, f, g, E, F or G writes it; "inf" and "nan" otherwise. In the arena.
enum err tpl_num_float(struct tpl_ctx *c, double f, char conv, int64_t precision, bool alternate,
                       char **out);
// Digits of a base up to 16; returns their number.
size_t tpl_num_uint(uint64_t v, unsigned base, bool upper, char out[TPL_UINT_CHARS]);

struct tpl_padding {
    uint32_t fill; // character
    char align;    // < > ^ =
    int64_t width; // characters
};
// prefix (sign, 0x) and body; with '=' the fill goes between them.
enum err tpl_pad_number(struct tpl_sb *b, const struct tpl_padding *p, const char *prefix,
                        const char *body, bool literal);
enum err tpl_pad_text(struct tpl_sb *b, const struct tpl_padding *p, const struct tpl_str *s);

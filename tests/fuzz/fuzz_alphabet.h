// SPDX-License-Identifier: Apache-2.0
// The first 256 tokens of a byte-level vocabulary: each byte under the character that stands for
// it.
#pragma once
#include "base/utf8.h"
#include "model/tokenizer.h"

// Fills tokens[0..256) and their types; `alphabet` holds their text and must outlive them.
static inline void fuzz_alphabet(struct tok_str *tokens, int32_t *types, char alphabet[256][3]) {
    uint32_t next = 256;
    for (uint32_t b = 0; b < 256; b++) {
        bool prints = (b >= 0x21 && b <= 0x7e) || (b >= 0xa1 && b != 0xad);
        tokens[b] =
            (struct tok_str){alphabet[b], (size_t)utf8_encode(prints ? b : next, alphabet[b])};
        next += !prints;
        types[b] = 1;
    }
}

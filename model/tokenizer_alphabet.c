// SPDX-License-Identifier: Apache-2.0
// The byte alphabet of GPT-2: bytes that print stand for themselves, the other 68 are U+0100
// upwards in the order of their values.
#include "base/utf8.h"
#include "model/tokenizer_internal.h"

static bool prints(uint32_t b) {
    return (b >= 0x21 && b <= 0x7e) || (b >= 0xa1 && b <= 0xac) || (b >= 0xae && b <= 0xff);
}

// The byte that a character stands for, or -1.
static int byte_of(uint32_t cp) {
    if (cp < 0x100)
        return prints(cp) ? (int)cp : -1;
    // The 68 others are 0x00-0x20, 0x7f-0xa0 and 0xad.
    uint32_t k = cp - 0x100;
    if (k <= 0x20)
        return (int)k;
    if (k <= 0x42)
        return (int)(k - 0x21 + 0x7f);
    return k == 0x43 ? 0xad : -1;
}

bool tok__alphabet_decode(const char *text, size_t len, char *out, size_t *n) {
    size_t made = 0;
    for (size_t at = 0; at < len;) {
        uint32_t cp;
        int step = utf8_decode(text + at, len - at, &cp);
        int b = step > 0 ? byte_of(cp) : -1;
        if (b < 0)
            return false;
        out[made++] = (char)b;
        at += (size_t)step;
    }
    *n = made;
    return true;
}

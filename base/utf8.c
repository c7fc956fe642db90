// SPDX-License-Identifier: Apache-2.0
#include "base/utf8.h"

int utf8_decode(const char *s, size_t n, uint32_t *cp) {
    if (n == 0)
        return 0;
    uint8_t b0 = (uint8_t)s[0];
    if (b0 < 0x80) {
        *cp = b0;
        return 1;
    }
    // The second byte's legal range excludes overlong forms, surrogates and values over U+10FFFF.
    uint8_t lo = 0x80, hi = 0xbf;
    int len;
    uint32_t v;
    if (b0 >= 0xc2 && b0 <= 0xdf) {
        len = 2;
        v = b0 & 0x1fu;
    } else if (b0 >= 0xe0 && b0 <= 0xef) {
        len = 3;
        v = b0 & 0x0fu;
        lo = b0 == 0xe0 ? 0xa0 : 0x80;
        hi = b0 == 0xed ? 0x9f : 0xbf;
    } else if (b0 >= 0xf0 && b0 <= 0xf4) {
        len = 4;
        v = b0 & 0x07u;
        lo = b0 == 0xf0 ? 0x90 : 0x80;
        hi = b0 == 0xf4 ? 0x8f : 0xbf;
    } else {
        return -1;
    }
    for (int i = 1; i < len; i++) {
        if ((size_t)i >= n)
            return 0;
        uint8_t b = (uint8_t)s[i];
        if (b < lo || b > hi)
            return -1;
        lo = 0x80;
        hi = 0xbf;
        v = v << 6 | (b & 0x3fu);
    }
    *cp = v;
    return len;
}

int utf8_encode(uint32_t cp, char out[4]) {
    if (cp > 0x10ffff || (cp >= 0xd800 && cp <= 0xdfff))
        cp = 0xfffd;
    if (cp < 0x80) {
        out[0] = (char)cp;
        return 1;
    }
    if (cp < 0x800) {
        out[0] = (char)(0xc0 | cp >> 6);
        out[1] = (char)(0x80 | (cp & 0x3f));
        return 2;
    }
    if (cp < 0x10000) {
        out[0] = (char)(0xe0 | cp >> 12);
        out[1] = (char)(0x80 | (cp >> 6 & 0x3f));
        out[2] = (char)(0x80 | (cp & 0x3f));
        return 3;
    }
    out[0] = (char)(0xf0 | cp >> 18);
    out[1] = (char)(0x80 | (cp >> 12 & 0x3f));
    out[2] = (char)(0x80 | (cp >> 6 & 0x3f));
    out[3] = (char)(0x80 | (cp & 0x3f));
    return 4;
}

size_t utf8_valid_prefix(const char *s, size_t n) {
    size_t at = 0;
    while (at < n) {
        uint32_t cp;
        int len = utf8_decode(s + at, n - at, &cp);
        if (len <= 0)
            break;
        at += (size_t)len;
    }
    return at;
}

bool utf8_valid(const char *s, size_t n) {
    return utf8_valid_prefix(s, n) == n;
}

size_t utf8_cut(const char *s, size_t n) {
    while (n > 0 && ((uint8_t)s[n] & 0xc0) == 0x80)
        n--;
    return n;
}

size_t utf8_count(const char *s, size_t n) {
    size_t count = 0;
    for (size_t i = 0; i < n; i++)
        count += ((uint8_t)s[i] & 0xc0) != 0x80;
    return count;
}

// SPDX-License-Identifier: Apache-2.0
#include "model/json_scan.h"
#include "base/utf8.h"
#include <string.h>

void json_scan_space(struct json_scan *s) {
    while (s->at < s->n && strchr(" \t\n\r", s->p[s->at]) && s->p[s->at])
        s->at++;
}

bool json_scan_char(struct json_scan *s, char c) {
    json_scan_space(s);
    if (s->at == s->n || s->p[s->at] != c)
        return false;
    s->at++;
    return true;
}

bool json_scan_end(struct json_scan *s) {
    json_scan_space(s);
    return s->at == s->n;
}

static bool hex4(const char *p, uint32_t *v) {
    *v = 0;
    for (int i = 0; i < 4; i++) {
        char c = p[i];
        uint32_t d;
        if (c >= '0' && c <= '9')
            d = (uint32_t)(c - '0');
        else if (c >= 'a' && c <= 'f')
            d = (uint32_t)(c - 'a' + 10);
        else if (c >= 'A' && c <= 'F')
            d = (uint32_t)(c - 'A' + 10);
        else
            return false;
        *v = *v << 4 | d;
    }
    return true;
}

// The character of \uXXXX, or of a pair of them; s->at stands behind the 'u'.
static bool unicode_escape(struct json_scan *s, uint32_t *cp) {
    uint32_t low;
    if (s->n - s->at < 4 || !hex4(s->p + s->at, cp))
        return false;
    s->at += 4;
    if (*cp < 0xd800 || *cp > 0xdfff)
        return true;
    if (*cp > 0xdbff || s->n - s->at < 6 || s->p[s->at] != '\\' || s->p[s->at + 1] != 'u' ||
        !hex4(s->p + s->at + 2, &low) || low < 0xdc00 || low > 0xdfff)
        return false;
    s->at += 6;
    *cp = 0x10000 + ((*cp & 0x3ff) << 10) + (low & 0x3ff);
    return true;
}

// One escape, s->at behind the backslash; its text goes to `to`. Returns its length, 0 if
// malformed.
static size_t escape(struct json_scan *s, char *to) {
    static const char names[] = "\"\\/bfnrt", values[] = "\"\\/\b\f\n\r\t";
    if (s->at == s->n)
        return 0;
    char c = s->p[s->at++];
    if (c == 'u') {
        uint32_t cp;
        return unicode_escape(s, &cp) ? (size_t)utf8_encode(cp, to) : 0;
    }
    const char *at = c ? strchr(names, c) : NULL;
    if (!at)
        return 0;
    *to = values[at - names];
    return 1;
}

bool json_scan_string(struct json_scan *s, const char **text, size_t *len) {
    if (!json_scan_char(s, '"'))
        return false;
    char *const begin = s->p + s->at;
    char *to = begin;
    while (s->at < s->n) {
        char c = s->p[s->at++];
        if (c == '"') {
            *text = begin;
            *len = (size_t)(to - begin);
            return true;
        }
        if ((unsigned char)c < 0x20)
            return false;
        if (c != '\\') {
            *to++ = c;
            continue;
        }
        char out[4];
        size_t n = escape(s, out);
        if (!n)
            return false;
        memcpy(to, out, n);
        to += n;
    }
    return false;
}

bool json_scan_u64(struct json_scan *s, uint64_t *v) {
    json_scan_space(s);
    const size_t first = s->at;
    *v = 0;
    for (; s->at < s->n && s->p[s->at] >= '0' && s->p[s->at] <= '9'; s->at++)
        if (__builtin_mul_overflow(*v, 10, v) ||
            __builtin_add_overflow(*v, (uint64_t)(s->p[s->at] - '0'), v))
            return false;
    if (s->at == first || (s->p[first] == '0' && s->at - first > 1))
        return false;
    return s->at == s->n || !strchr(".eE", s->p[s->at]) || !s->p[s->at];
}

// SPDX-License-Identifier: Apache-2.0
// String and number literals, read as Python reads them.
#include "base/hash.h"
#include "base/utf8.h"
#include "model/template/lexer.h"
#include "model/template/str.h"
#include "model/template/unicode.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool is_digit(char ch) {
    return ch >= '0' && ch <= '9';
}

// Digits of a base with single underscores between them; `lead`: one may stand before the first.
static size_t scan_digits(const char *p, size_t n, int base, bool lead) {
    size_t end = 0;
    for (size_t i = 0; i < n;) {
        if (p[i] == '_' && (i > 0 || lead) && i + 1 < n)
            i++;
        int v = hex_value(p[i]);
        if (v < 0 || v >= base)
            break;
        end = ++i;
    }
    return end;
}

static size_t scan_float(const char *p, size_t n) {
    size_t at = scan_digits(p, n, 10, false);
    bool fraction = false;
    if (at == 0)
        return 0;
    if (at < n && p[at] == '.') {
        size_t more = scan_digits(p + at + 1, n - at - 1, 10, false);
        if (more) {
            at += 1 + more;
            fraction = true;
        }
    }
    if (at < n && (p[at] == 'e' || p[at] == 'E')) {
        size_t sign = at + 1 < n && (p[at + 1] == '+' || p[at + 1] == '-') ? 1 : 0;
        size_t more = scan_digits(p + at + 1 + sign, n - at - 1 - sign, 10, false);
        if (more)
            return at + 1 + sign + more;
    }
    return fraction ? at : 0;
}

static int prefix_base(const char *p, size_t n) {
    if (n < 2 || p[0] != '0')
        return 10;
    switch (p[1] | 0x20) {
    case 'b':
        return 2;
    case 'o':
        return 8;
    case 'x':
        return 16;
    default:
        return 10;
    }
}

size_t tpl_scan_number(const char *p, size_t n, bool after_dot, bool *is_float) {
    *is_float = false;
    if (n == 0 || !is_digit(p[0]))
        return 0;
    if (!after_dot) {
        size_t len = scan_float(p, n);
        if (len) {
            *is_float = true;
            return len;
        }
    }
    int base = prefix_base(p, n);
    if (base != 10) {
        size_t len = scan_digits(p + 2, n - 2, base, true);
        if (len)
            return len + 2;
    }
    if (p[0] != '0')
        return scan_digits(p, n, 10, false);
    return scan_digits(p, n, 1, false); // zeros only, as in Python
}

enum err tpl_literal_number(struct arena *a, const char *p, size_t len, bool is_float,
                            struct tpl_val *out, struct err_info *info) {
    if (is_float) {
        char *digits = arena_alloc(a, len + 1);
        if (!digits)
            return err_set(info, ERR_NOMEM, NULL, "out of memory");
        size_t n = 0;
        for (size_t i = 0; i < len; i++) {
            if (p[i] != '_')
                digits[n++] = p[i];
        }
        digits[n] = '\0';
        *out = tpl_float(strtod(digits, NULL));
        return ERR_OK;
    }
    int base = prefix_base(p, len);
    int64_t v = 0;
    for (size_t i = base == 10 ? 0 : 2; i < len; i++) {
        if (p[i] == '_')
            continue;
        if (__builtin_mul_overflow(v, (int64_t)base, &v) ||
            __builtin_add_overflow(v, (int64_t)hex_value(p[i]), &v))
            return err_set(info, ERR_TEMPLATE, NULL, "the integer %.*s is over 64 bits",
                           len < 40 ? (int)len : 40, p);
    }
    *out = tpl_int(v);
    return ERR_OK;
}

// One escape after a backslash: writes its text, returns the bytes read, 0 on a bad escape.
static size_t escape_hex(const char *p, size_t n, size_t digits, char **to) {
    uint32_t cp = 0;
    if (n < digits + 1)
        return 0;
    for (size_t i = 1; i <= digits; i++) {
        int v = hex_value(p[i]);
        if (v < 0)
            return 0;
        cp = cp << 4 | (uint32_t)v;
    }
    if (cp > 0x10ffff || (cp >= 0xd800 && cp < 0xe000))
        return 0;
    *to += utf8_encode(cp, *to);
    return digits + 1;
}

static size_t escape_octal(const char *p, size_t n, char **to) {
    uint32_t cp = 0;
    size_t i = 0;
    while (i < 3 && i < n && p[i] >= '0' && p[i] <= '7')
        cp = cp << 3 | (uint32_t)(p[i++] - '0');
    *to += utf8_encode(cp, *to);
    return i;
}

// Python's unicode-escape codec sees a character beyond ASCII as an escape of its own, so a
// backslash before one escapes that escape's backslash and its text stays.
static size_t escape_wide(const char *p, size_t n, char **to) {
    uint32_t cp;
    size_t len = tpl_uc_next(p, n, &cp);
    char text[16];
    int wrote = cp < 0x100     ? snprintf(text, sizeof text, "\\x%02x", (unsigned)cp)
                : cp < 0x10000 ? snprintf(text, sizeof text, "\\u%04x", (unsigned)cp)
                               : snprintf(text, sizeof text, "\\U%08x", (unsigned)cp);
    memcpy(*to, text, (size_t)wrote);
    *to += wrote;
    return len;
}

static size_t escape_one(const char *p, size_t n, char **to) {
    static const char from[] = "\\'\"abfnrtv", into[] = "\\'\"\a\b\f\n\r\t\v";
    if (p[0] == '\n')
        return 1;
    if ((unsigned char)p[0] >= 0x80)
        return escape_wide(p, n, to);
    const char *simple = p[0] ? strchr(from, p[0]) : NULL;
    if (simple) {
        *(*to)++ = into[simple - from];
        return 1;
    }
    if (p[0] >= '0' && p[0] <= '7')
        return escape_octal(p, n, to);
    switch (p[0]) {
    case 'x':
        return escape_hex(p, n, 2, to);
    case 'u':
        return escape_hex(p, n, 4, to);
    case 'U':
        return escape_hex(p, n, 8, to);
    case 'N':
        return 0;
    default: // an unknown escape stays as it is
        *(*to)++ = '\\';
        *(*to)++ = p[0];
        return 1;
    }
}

enum err tpl_literal_string(struct arena *a, const char *p, size_t len, struct tpl_val *out,
                            struct err_info *info) {
    // What an escape becomes is at most twice as long as it was (escape_wide: 6 bytes for 3).
    char *text = arena_alloc(a, len * 2 + 16);
    if (!text)
        return err_set(info, ERR_NOMEM, NULL, "out of memory");
    char *to = text;
    for (size_t i = 0; i < len;) {
        if (p[i] != '\\') {
            *to++ = p[i++];
            continue;
        }
        size_t read = i + 1 < len ? escape_one(p + i + 1, len - i - 1, &to) : 0;
        if (!read)
            return err_set(info, ERR_TEMPLATE, NULL, "a bad or unsupported escape in a string");
        i += 1 + read;
    }
    struct tpl_str *s = tpl_str_const(a, text, (size_t)(to - text));
    if (!s)
        return err_set(info, ERR_NOMEM, NULL, "out of memory");
    *out = tpl_str(s);
    return ERR_OK;
}

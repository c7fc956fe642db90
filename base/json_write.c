// SPDX-License-Identifier: Apache-2.0
#include "base/json_write.h"
#include "base/utf8.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void before_value(struct json_w *w) {
    if (w->comma)
        buf_putc(w->out, ',');
    w->comma = true;
}

static void open_with(struct json_w *w, char c) {
    before_value(w);
    buf_putc(w->out, c);
    w->comma = false;
}

static void close_with(struct json_w *w, char c) {
    buf_putc(w->out, c);
    w->comma = true;
}

void jw_obj(struct json_w *w) {
    open_with(w, '{');
}

void jw_obj_end(struct json_w *w) {
    close_with(w, '}');
}

void jw_arr(struct json_w *w) {
    open_with(w, '[');
}

void jw_arr_end(struct json_w *w) {
    close_with(w, ']');
}

static void escape_byte(struct buf *out, unsigned char c) {
    static const char hex[] = "0123456789abcdef";
    switch (c) {
    case '"':
        buf_append(out, "\\\"", 2);
        return;
    case '\\':
        buf_append(out, "\\\\", 2);
        return;
    case '\n':
        buf_append(out, "\\n", 2);
        return;
    case '\r':
        buf_append(out, "\\r", 2);
        return;
    case '\t':
        buf_append(out, "\\t", 2);
        return;
    default: {
        char u[6] = {'\\', 'u', '0', '0', hex[c >> 4], hex[c & 15]};
        buf_append(out, u, sizeof u);
    }
    }
}

static void string_body(struct buf *out, const char *s, size_t n) {
    size_t from = 0, at = 0;
    while (at < n) {
        unsigned char c = (unsigned char)s[at];
        if (c >= 0x20 && c < 0x7f && c != '"' && c != '\\') {
            at++;
            continue;
        }
        if (c >= 0x80) {
            uint32_t cp;
            int len = utf8_decode(s + at, n - at, &cp);
            if (len > 0) {
                at += (size_t)len;
                continue;
            }
        }
        buf_append(out, s + from, at - from);
        if (c >= 0x80)
            buf_append(out, "\xef\xbf\xbd", 3);
        else
            escape_byte(out, c);
        from = ++at;
    }
    buf_append(out, s + from, n - from);
}

void jw_strn(struct json_w *w, const char *s, size_t n) {
    before_value(w);
    buf_putc(w->out, '"');
    string_body(w->out, s, n);
    buf_putc(w->out, '"');
}

void jw_str(struct json_w *w, const char *s) {
    if (s)
        jw_strn(w, s, strlen(s));
    else
        jw_null(w);
}

void jw_key(struct json_w *w, const char *key) {
    jw_str(w, key);
    buf_putc(w->out, ':');
    w->comma = false;
}

void jw_int(struct json_w *w, int64_t v) {
    char text[24];
    int n = snprintf(text, sizeof text, "%lld", (long long)v);
    jw_raw(w, text, (size_t)n);
}

size_t jw_num_text(double v, char out[JW_NUM_TEXT]) {
    int n = 0;
    for (int digits = 6; digits <= 17; digits++) {
        n = snprintf(out, JW_NUM_TEXT, "%.*g", digits, v);
        if (strtod(out, NULL) == v)
            break;
    }
    return (size_t)n;
}

void jw_num(struct json_w *w, double v) {
    if (!isfinite(v)) {
        jw_null(w);
        return;
    }
    char text[JW_NUM_TEXT];
    jw_raw(w, text, jw_num_text(v, text));
}

void jw_bool(struct json_w *w, bool v) {
    if (v)
        jw_raw(w, "true", 4);
    else
        jw_raw(w, "false", 5);
}

void jw_null(struct json_w *w) {
    jw_raw(w, "null", 4);
}

void jw_raw(struct json_w *w, const char *json, size_t n) {
    before_value(w);
    buf_append(w->out, json, n);
}

void jw_kstr(struct json_w *w, const char *key, const char *s) {
    jw_key(w, key);
    jw_str(w, s);
}

void jw_kint(struct json_w *w, const char *key, int64_t v) {
    jw_key(w, key);
    jw_int(w, v);
}

void jw_knum(struct json_w *w, const char *key, double v) {
    jw_key(w, key);
    jw_num(w, v);
}

void jw_kbool(struct json_w *w, const char *key, bool v) {
    jw_key(w, key);
    jw_bool(w, v);
}

void jw_knull(struct json_w *w, const char *key) {
    jw_key(w, key);
    jw_null(w);
}

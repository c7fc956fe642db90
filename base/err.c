// SPDX-License-Identifier: Apache-2.0
#include "base/err.h"
#include "base/utf8.h"
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

struct err_row {
    const char *name, *text, *type, *code;
    int http;
};

static const struct err_row rows[ERR_COUNT] = {
#define X(name, text, http, type, code) [ERR_##name] = {"ERR_" #name, text, type, code, http},
    ERR_TABLE(X)
#undef X
};

static const struct err_row *row(enum err e) {
    return &rows[(unsigned)e < ERR_COUNT ? e : ERR_INTERNAL];
}

const char *err_name(enum err e) {
    return row(e)->name;
}

const char *err_text(enum err e) {
    return row(e)->text;
}

int err_http_status(enum err e) {
    return row(e)->http;
}

const char *err_openai_type(enum err e) {
    return row(e)->type;
}

const char *err_openai_code(enum err e) {
    return row(e)->code;
}

static void copy_cut(char *dst, size_t cap, const char *src) {
    size_t n = strlen(src);
    if (n >= cap)
        n = utf8_cut(src, cap - 1);
    memmove(dst, src, n);
    dst[n] = '\0';
}

enum err err_set(struct err_info *info, enum err e, const char *param, const char *fmt, ...) {
    if (!info)
        return e;
    char text[sizeof info->message * 2];
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    info->code = e;
    copy_cut(info->message, sizeof info->message, n < 0 ? err_text(e) : text);
    copy_cut(info->param, sizeof info->param, param ? param : "");
    return e;
}

void err_prefix(struct err_info *info, const char *fmt, ...) {
    if (!info)
        return;
    char text[sizeof info->message * 2];
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(text, sizeof info->message, fmt, ap);
    va_end(ap);
    size_t at = n < 0 ? 0 : strnlen(text, sizeof info->message);
    snprintf(text + at, sizeof text - at, ": %s", info->message);
    copy_cut(info->message, sizeof info->message, text);
}

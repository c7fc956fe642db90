// SPDX-License-Identifier: Apache-2.0
#include "base/buf.h"
#include "base/mem.h"
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

void buf_init(struct buf *b, size_t max) {
    *b = (struct buf){.max = max};
}

void buf_fini(struct buf *b) {
    mem_free(b->data);
    *b = (struct buf){.max = b->max};
}

void buf_clear(struct buf *b) {
    b->len = 0;
    b->failed = ERR_OK;
    if (b->data)
        b->data[0] = '\0';
}

enum err buf_err(const struct buf *b) {
    return b->failed;
}

char *buf_reserve(struct buf *b, size_t n) {
    if (b->failed)
        return NULL;
    size_t need;
    if (!mem_add(b->len, n, &need) || need == SIZE_MAX || (b->max && need > b->max)) {
        b->failed = ERR_LIMIT;
        return NULL;
    }
    if (++need > b->cap) { // one more for the NUL
        size_t cap = b->cap < 64 ? 64 : b->cap;
        while (cap < need)
            cap = cap > SIZE_MAX / 2 ? need : cap * 2;
        char *p = mem_realloc(b->data, cap);
        if (!p) {
            b->failed = ERR_NOMEM;
            return NULL;
        }
        b->data = p;
        b->cap = cap;
    }
    return b->data + b->len;
}

void buf_append(struct buf *b, const void *p, size_t n) {
    char *to = buf_reserve(b, n);
    if (!to)
        return;
    if (n)
        memcpy(to, p, n);
    b->len += n;
    to[n] = '\0';
}

void buf_puts(struct buf *b, const char *s) {
    buf_append(b, s, strlen(s));
}

void buf_putc(struct buf *b, char c) {
    buf_append(b, &c, 1);
}

void buf_vprintf(struct buf *b, const char *fmt, va_list ap) {
    va_list again;
    va_copy(again, ap);
    int n = vsnprintf(NULL, 0, fmt, ap);
    char *to = n < 0 ? NULL : buf_reserve(b, (size_t)n);
    if (to) {
        vsnprintf(to, (size_t)n + 1, fmt, again);
        b->len += (size_t)n;
    } else if (n < 0) {
        b->failed = ERR_INVALID;
    }
    va_end(again);
}

void buf_printf(struct buf *b, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    buf_vprintf(b, fmt, ap);
    va_end(ap);
}

enum err buf_read(struct buf *b, int fd) {
    enum { PIECE = 1 << 16 };
    for (;;) {
        size_t room = b->max ? b->max - b->len : PIECE, n = room < PIECE ? room : PIECE;
        char beyond, *to = n ? buf_reserve(b, n) : &beyond;
        if (!to)
            return buf_err(b);
        ssize_t got = read(fd, to, n ? n : 1);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return ERR_IO;
        if (got > 0 && !n)
            return b->failed = ERR_LIMIT;
        b->len += (size_t)got;
        if (b->data)
            b->data[b->len] = '\0';
        if (got == 0)
            return ERR_OK;
    }
}

void buf_consume(struct buf *b, size_t n) {
    if (n >= b->len) {
        b->len = 0;
    } else {
        memmove(b->data, b->data + n, b->len - n);
        b->len -= n;
    }
    if (b->data)
        b->data[b->len] = '\0';
}

char *buf_take(struct buf *b, size_t *len) {
    char *p = b->data;
    if (len)
        *len = b->len;
    *b = (struct buf){.max = b->max};
    return p;
}

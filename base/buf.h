// SPDX-License-Identifier: Apache-2.0
// A growable byte buffer with a hard limit. One sticky failure flag: a chain of appends is checked
// once at its end with buf_err. Not thread-safe; its owner is whoever declared it.
#pragma once
#include "base/err.h"
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

struct buf {
    char *data; // NUL-terminated once anything was appended (the NUL is not counted in len)
    size_t len;
    size_t cap;
    size_t max;      // 0: no limit
    enum err failed; // ERR_NOMEM or ERR_LIMIT once an append failed
};

void buf_init(struct buf *b, size_t max);
void buf_fini(struct buf *b);
void buf_clear(struct buf *b); // length 0, memory kept, failure forgotten
enum err buf_err(const struct buf *b);
// Room for n more bytes; returns where they go (not yet counted in len), or NULL.
char *buf_reserve(struct buf *b, size_t n);
void buf_append(struct buf *b, const void *p, size_t n);
void buf_puts(struct buf *b, const char *s);
void buf_putc(struct buf *b, char c);
void buf_printf(struct buf *b, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void buf_vprintf(struct buf *b, const char *fmt, va_list ap) __attribute__((format(printf, 2, 0)));
// Appends what `fd` still gives, to its end. ERR_IO: errno says why; else as buf_err, ERR_LIMIT
// where there is more than `max`. Blocks.
enum err buf_read(struct buf *b, int fd);
void buf_consume(struct buf *b, size_t n); // drops the first n bytes
// Hands the bytes over to the caller (free with mem_free) and leaves the buffer empty.
char *buf_take(struct buf *b, size_t *len);

// SPDX-License-Identifier: Apache-2.0
#include "tests/model/gguf_build.h"
#include "tests/support/cmocka_all.h"
#include <stdlib.h>
#include <string.h>

static void put(struct buf *b, uint64_t v, size_t n) {
    for (size_t i = 0; i < n; i++)
        buf_putc(b, (char)(v >> 8 * i));
}

static void put_str(struct buf *b, const char *s) {
    put(b, strlen(s), 8);
    buf_puts(b, s);
}

void gb_init(struct gguf_build *b) {
    *b = (struct gguf_build){.version = 3, .alignment = 32};
    buf_init(&b->kv, 0);
    buf_init(&b->infos, 0);
}

void gb_key(struct gguf_build *b, const char *key, uint32_t type) {
    put_str(&b->kv, key);
    put(&b->kv, type, 4);
    b->n_kv++;
}

void gb_raw(struct gguf_build *b, const void *p, size_t n) {
    buf_append(&b->kv, p, n);
}

void gb_raw32(struct gguf_build *b, uint32_t v) {
    put(&b->kv, v, 4);
}

void gb_raw64(struct gguf_build *b, uint64_t v) {
    put(&b->kv, v, 8);
}

void gb_raw_str(struct gguf_build *b, const char *s) {
    put_str(&b->kv, s);
}

void gb_u32(struct gguf_build *b, const char *key, uint32_t v) {
    gb_key(b, key, 4);
    gb_raw32(b, v);
}

void gb_str(struct gguf_build *b, const char *key, const char *v) {
    gb_key(b, key, 8);
    gb_raw_str(b, v);
}

void gb_tensor(struct gguf_build *b, const char *name, uint32_t n_dims, const uint64_t *dims,
               uint32_t type, uint64_t offset) {
    put_str(&b->infos, name);
    put(&b->infos, n_dims, 4);
    for (uint32_t i = 0; i < n_dims; i++)
        put(&b->infos, dims[i], 8);
    put(&b->infos, type, 4);
    put(&b->infos, offset, 8);
    b->n_tensors++;
}

uint8_t *gb_finish(struct gguf_build *b, size_t *len) {
    struct buf out;
    buf_init(&out, 0);
    buf_puts(&out, "GGUF");
    put(&out, b->version, 4);
    put(&out, b->n_tensors, 8);
    put(&out, b->n_kv, 8);
    buf_append(&out, b->kv.data ? b->kv.data : "", b->kv.len);
    buf_append(&out, b->infos.data ? b->infos.data : "", b->infos.len);
    if (b->data_bytes)
        while (out.len % b->alignment)
            buf_putc(&out, '\0');
    for (size_t i = 0; i < b->data_bytes; i++)
        buf_putc(&out, '\0');
    assert_int_equal(buf_err(&out) | buf_err(&b->kv) | buf_err(&b->infos), ERR_OK);
    uint8_t *p = malloc(out.len);
    assert_non_null(p);
    memcpy(p, out.data, out.len);
    *len = out.len;
    buf_fini(&out);
    buf_fini(&b->kv);
    buf_fini(&b->infos);
    return p;
}

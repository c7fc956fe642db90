// SPDX-License-Identifier: Apache-2.0
#include "base/mem.h"
#include "finetune/dataset_internal.h"
#include <fcntl.h>
#include <string.h>

enum { CHUNK = 256 << 10 };

static enum err no_memory(struct err_info *info) {
    return err_set(info, ERR_NOMEM, NULL, "out of memory while reading the training data");
}

enum err ft__lines_open(struct ft__lines *l, const char *path, const char *shown, uint64_t max_line,
                        struct err_info *info) {
    *l = (struct ft__lines){.file.fd = -1, .max_line = max_line};
    buf_init(&l->line, 0);
    enum err rc = mdl_file_open(AT_FDCWD, path, shown, &l->file, info);
    if (rc)
        return rc;
    l->chunk = mem_alloc(CHUNK);
    l->sha = sha256_begin();
    return l->chunk && l->sha ? ERR_OK : no_memory(info);
}

void ft__lines_close(struct ft__lines *l) {
    uint8_t unused[SHA256_BYTES];
    if (l->sha)
        (void)sha256_end(l->sha, unused);
    mdl_file_close(&l->file);
    mem_free(l->chunk);
    buf_fini(&l->line);
    *l = (struct ft__lines){.file.fd = -1};
}

static enum err fill(struct ft__lines *l, struct err_info *info) {
    uint64_t left = l->file.size - l->at;
    size_t n = left < CHUNK ? (size_t)left : CHUNK;
    enum err rc = mdl_file_read(&l->file, l->at, n, l->chunk, info);
    if (!rc && sha256_update(l->sha, l->chunk, n))
        rc = err_set(info, ERR_INTERNAL, NULL, "the digest of %s failed", l->file.path);
    l->at += n;
    l->chunk_at = 0;
    l->chunk_n = rc ? 0 : n;
    return rc;
}

// What people's editors leave around a line's JSON.
static void trim(struct ft__line *out) {
    static const char bom[] = "\xef\xbb\xbf";
    if (out->number == 1 && out->len >= 3 && !memcmp(out->text, bom, 3)) {
        out->text += 3;
        out->len -= 3;
    }
    if (out->len && out->text[out->len - 1] == '\r')
        out->len--;
    out->blank = true;
    for (size_t i = 0; out->blank && i < out->len; i++)
        out->blank = out->text[i] == ' ' || out->text[i] == '\t' || out->text[i] == '\r';
}

enum err ft__lines_next(struct ft__lines *l, struct ft__line *out, bool *more,
                        struct err_info *info) {
    bool any = false, ended = false;
    buf_clear(&l->line);
    *out = (struct ft__line){.text = ""};
    while (!ended) {
        if (l->chunk_at == l->chunk_n) {
            if (l->at == l->file.size)
                break;
            enum err rc = fill(l, info);
            if (rc)
                return rc;
        }
        const char *p = l->chunk + l->chunk_at;
        size_t n = l->chunk_n - l->chunk_at;
        const char *end = memchr(p, '\n', n);
        if (end)
            n = (size_t)(end - p);
        any = true;
        ended = end != NULL;
        l->chunk_at += n + ended;
        if (out->too_long || n > l->max_line - l->line.len) {
            out->too_long = true; // the rest is read over
            continue;
        }
        buf_append(&l->line, p, n);
        if (buf_err(&l->line))
            return no_memory(info);
    }
    *more = any;
    if (!any)
        return ERR_OK;
    out->number = ++l->number;
    if (out->too_long)
        return ERR_OK;
    out->text = l->line.data ? l->line.data : "";
    out->len = l->line.len;
    trim(out);
    return ERR_OK;
}

enum err ft__lines_end(struct ft__lines *l, uint8_t digest[32], struct err_info *info) {
    enum err rc = sha256_end(l->sha, digest);
    l->sha = NULL;
    if (rc)
        return err_set(info, rc, NULL, "the digest of %s failed", l->file.path);
    return mdl_file_check_unchanged(&l->file, info);
}

// SPDX-License-Identifier: Apache-2.0
#include "base/mem.h"
#include "finetune/dataset_internal.h"
#include "model/bytes.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { BLOCK = 256 << 10 };

static enum err no_memory(struct err_info *info) {
    return err_set(info, ERR_NOMEM, NULL, "out of memory while writing the training data's cache");
}

void ft__put32(uint8_t *p, uint32_t v) {
    for (int i = 0; i < 4; i++)
        p[i] = (uint8_t)(v >> 8 * i);
}

void ft__put64(uint8_t *p, uint64_t v) {
    ft__put32(p, (uint32_t)v);
    ft__put32(p + 4, (uint32_t)(v >> 32));
}

void ft__entry_put(uint8_t *p, const struct ft__entry *e) {
    ft__put64(p, e->offset);
    ft__put32(p + 8, (uint32_t)e->n);
    ft__put32(p + 12, (uint32_t)e->n2);
    ft__put32(p + 16, (uint32_t)e->supervised);
    ft__put32(p + 20, 0);
    ft__put64(p + 24, (uint64_t)e->line);
    memcpy(p + 32, e->hash, FT__HASH);
}

void ft__entry_get(const uint8_t *p, struct ft__entry *e) {
    e->offset = le64(p);
    e->n = (int32_t)le32(p + 8);
    e->n2 = (int32_t)le32(p + 12);
    e->supervised = (int32_t)le32(p + 16);
    e->line = (int64_t)le64(p + 24);
    memcpy(e->hash, p + 32, FT__HASH);
}

void ft__head_put(uint8_t p[FT__HEAD]) {
    memset(p, 0, FT__HEAD);
    memcpy(p, FT__MAGIC, 8);
    ft__put32(p + 8, FT__VERSION);
}

// ---- the trailer: magic, then 64-bit numbers, then digests

enum { AT_NUMBERS = 8, N_NUMBERS = 16, AT_DIGESTS = 256, AT_SEAL = FT__TRAILER - 32 };

enum err ft__trailer_put(uint8_t p[FT__TRAILER], const struct ft__trailer *t) {
    const struct ft_dataset_report *r = &t->report;
    const int64_t numbers[N_NUMBERS] = {
        FT__VERSION,
        r->kind,
        r->lines,
        r->samples,
        r->tokens,
        r->supervised,
        r->longest,
        r->truncated,
        r->dropped,
        r->emptied,
        r->duplicates,
        t->vocab,
        t->max_seq_len,
        (int64_t)t->index_at,
        (int64_t)t->file_bytes,
        0,
    };
    memset(p, 0, FT__TRAILER);
    memcpy(p, FT__MAGIC, 8);
    for (int i = 0; i < N_NUMBERS; i++)
        ft__put64(p + AT_NUMBERS + 8 * i, (uint64_t)numbers[i]);
    memcpy(p + AT_DIGESTS, r->digest, 32);
    memcpy(p + AT_DIGESTS + 32, t->key, 32);
    memcpy(p + AT_DIGESTS + 64, t->index_sha, 32);
    return sha256(p, AT_SEAL, p + AT_SEAL);
}

enum err ft__trailer_get(const uint8_t p[FT__TRAILER], struct ft__trailer *t,
                         struct err_info *info) {
    uint8_t seal[32];
    *t = (struct ft__trailer){0};
    enum err rc = sha256(p, AT_SEAL, seal);
    if (rc)
        return err_set(info, rc, NULL, "the digest failed");
    if (memcmp(p, FT__MAGIC, 8) != 0 || memcmp(seal, p + AT_SEAL, 32) != 0)
        return err_set(info, ERR_FORMAT, NULL, "its end is missing or damaged");
    int64_t v[N_NUMBERS];
    for (int i = 0; i < N_NUMBERS; i++) {
        v[i] = (int64_t)le64(p + AT_NUMBERS + 8 * i);
        if (v[i] < 0)
            return err_set(info, ERR_FORMAT, NULL, "a count is negative");
    }
    if (v[0] != FT__VERSION || v[1] > FT_PREFERENCE || v[3] > FT_MAX_SAMPLES || v[11] > INT32_MAX ||
        v[12] > FT_MAX_SEQ_LEN)
        return err_set(info, ERR_FORMAT, NULL, "a count is out of range");
    t->report = (struct ft_dataset_report){
        .kind = (enum ft_kind)v[1],
        .lines = v[2],
        .samples = v[3],
        .tokens = v[4],
        .supervised = v[5],
        .longest = v[6],
        .truncated = v[7],
        .dropped = v[8],
        .emptied = v[9],
        .duplicates = v[10],
    };
    t->vocab = (int32_t)v[11];
    t->max_seq_len = (int32_t)v[12];
    t->index_at = (uint64_t)v[13];
    t->file_bytes = (uint64_t)v[14];
    memcpy(t->report.digest, p + AT_DIGESTS, 32);
    memcpy(t->key, p + AT_DIGESTS + 32, 32);
    memcpy(t->index_sha, p + AT_DIGESTS + 64, 32);
    return ERR_OK;
}

// ---- writing

// Opens the folder that the cache will stand in.
static enum err open_folder(const char *cache, int *dir, const char **name, struct err_info *info) {
    const char *slash = strrchr(cache, '/');
    *name = slash ? slash + 1 : cache;
    char *folder =
        slash ? mem_strndup(cache, slash == cache ? 1 : (size_t)(slash - cache)) : mem_strdup(".");
    if (!folder)
        return no_memory(info);
    *dir = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    enum err rc = *dir < 0 ? durable_errno(info, errno, "open", folder) : ERR_OK;
    mem_free(folder);
    return rc;
}

static enum err put(struct ft__writer *w, const uint8_t *p, size_t n, struct err_info *info) {
    if (!w->on)
        return ERR_OK;
    w->at += n;
    while (n) {
        size_t some = BLOCK - w->block_n < n ? BLOCK - w->block_n : n;
        memcpy(w->block + w->block_n, p, some);
        w->block_n += some;
        p += some;
        n -= some;
        if (w->block_n == BLOCK) {
            enum err rc = durable_write(&w->file, w->block, BLOCK, info);
            if (rc)
                return rc;
            w->block_n = 0;
        }
    }
    return ERR_OK;
}

enum err ft__writer_begin(struct ft__writer *w, const char *cache, struct err_info *info) {
    *w = (struct ft__writer){.dir = -1, .file.fd = -1};
    if (!cache)
        return ERR_OK;
    const char *name;
    enum err rc = open_folder(cache, &w->dir, &name, info);
    if (rc)
        return rc;
    w->block = mem_alloc(BLOCK);
    if (!w->block)
        return no_memory(info);
    rc = durable_begin(&w->file, w->dir, name, info);
    if (rc)
        return rc;
    w->on = true;
    uint8_t head[FT__HEAD];
    ft__head_put(head);
    return put(w, head, sizeof head, info);
}

void ft__writer_drop(struct ft__writer *w) {
    if (w->on)
        durable_abort(&w->file);
    w->on = false;
}

void ft__writer_fini(struct ft__writer *w) {
    ft__writer_drop(w);
    if (w->dir >= 0)
        close(w->dir);
    mem_free(w->block);
    mem_free(w->sample);
    mem_free(w->entries);
    *w = (struct ft__writer){.dir = -1, .file.fd = -1};
}

static size_t put_words(uint8_t *p, const struct ft__seq *s) {
    for (size_t i = 0; i < s->ids.n; i++)
        ft__put32(p + 4 * i, (uint32_t)s->ids.ids[i] | (s->mask[i] ? FT__TARGET : 0));
    return 4 * s->ids.n;
}

static enum err grow(struct ft__writer *w, size_t bytes, struct err_info *info) {
    if (bytes > w->sample_cap) {
        mem_free(w->sample);
        w->sample_cap = 0;
        w->sample = mem_alloc(2 * bytes);
        if (!w->sample)
            return no_memory(info);
        w->sample_cap = 2 * bytes;
    }
    if (w->n == w->cap) {
        size_t cap = w->cap ? 2 * w->cap : 256;
        struct ft__entry *more = mem_realloc(w->entries, cap * sizeof *more);
        if (!more)
            return no_memory(info);
        w->entries = more;
        w->cap = cap;
    }
    return ERR_OK;
}

enum err ft__writer_add(struct ft__writer *w, const struct ft__seq *a, const struct ft__seq *b,
                        int64_t line, struct err_info *info) {
    size_t n2 = b ? b->ids.n : 0, bytes = 8 + 4 * (a->ids.n + n2);
    enum err rc = grow(w, bytes, info);
    if (rc)
        return rc;
    ft__put32(w->sample, (uint32_t)a->ids.n);
    ft__put32(w->sample + 4, (uint32_t)n2);
    size_t at = 8 + put_words(w->sample + 8, a);
    if (b)
        put_words(w->sample + at, b);
    uint8_t sum[SHA256_BYTES];
    if (sha256(w->sample, bytes, sum))
        return err_set(info, ERR_INTERNAL, NULL, "the digest of a sample failed");
    struct ft__entry *e = &w->entries[w->n++];
    *e = (struct ft__entry){
        .offset = w->at,
        .n = (int32_t)a->ids.n,
        .n2 = (int32_t)n2,
        .supervised = (int32_t)(a->targets + (b ? b->targets : 0)),
        .line = line,
    };
    memcpy(e->hash, sum, FT__HASH);
    return put(w, w->sample, bytes, info);
}

static int compare_hashes(const void *a, const void *b) {
    return memcmp(a, b, FT__HASH);
}

void ft__hashes_sort(uint8_t *h, size_t n) {
    if (n)
        qsort(h, n, FT__HASH, compare_hashes);
}

enum err ft__writer_duplicates(const struct ft__writer *w, int64_t *n) {
    *n = 0;
    uint8_t *h = mem_calloc(w->n ? w->n : 1, FT__HASH);
    if (!h)
        return ERR_NOMEM;
    for (size_t i = 0; i < w->n; i++)
        memcpy(h + i * FT__HASH, w->entries[i].hash, FT__HASH);
    ft__hashes_sort(h, w->n);
    for (size_t i = 1; i < w->n; i++)
        *n += !compare_hashes(h + i * FT__HASH, h + (i - 1) * FT__HASH);
    mem_free(h);
    return ERR_OK;
}

static enum err put_index(struct ft__writer *w, uint8_t sum[SHA256_BYTES], struct err_info *info) {
    struct sha256_ctx *sha = sha256_begin();
    if (!sha)
        return no_memory(info);
    enum err rc = ERR_OK;
    for (size_t i = 0; !rc && i < w->n; i++) {
        uint8_t entry[FT__ENTRY];
        ft__entry_put(entry, &w->entries[i]);
        rc = sha256_update(sha, entry, sizeof entry);
        if (rc)
            err_set(info, rc, NULL, "the digest of the index failed");
        else
            rc = put(w, entry, sizeof entry, info);
    }
    enum err end = sha256_end(sha, sum);
    return rc || !end ? rc : err_set(info, end, NULL, "the digest of the index failed");
}

enum err ft__writer_commit(struct ft__writer *w, struct ft__trailer *t, struct err_info *info) {
    static const uint8_t zeros[8];
    uint8_t trailer[FT__TRAILER];
    if (!w->on)
        return ERR_OK;
    enum err rc = put(w, zeros, (8 - w->at % 8) % 8, info);
    t->index_at = w->at;
    t->file_bytes = w->at + w->n * FT__ENTRY + FT__TRAILER;
    if (!rc)
        rc = put_index(w, t->index_sha, info);
    if (!rc && (rc = ft__trailer_put(trailer, t)))
        err_set(info, rc, NULL, "the digest of the cache failed");
    if (!rc)
        rc = put(w, trailer, sizeof trailer, info);
    if (!rc)
        rc = durable_write(&w->file, w->block, w->block_n, info);
    if (rc)
        return rc;
    w->on = false; // commit ends the file, whatever comes of it
    return durable_commit(&w->file, info);
}

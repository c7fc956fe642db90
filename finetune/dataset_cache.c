// SPDX-License-Identifier: Apache-2.0
#include "base/mem.h"
#include "finetune/dataset_internal.h"
#include "model/bytes.h"
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

enum { INDEX_CHUNK = 1024 }; // entries

struct place { // of one sample
    uint64_t offset;
    int32_t n, n2, supervised;
    int64_t line;
};

struct ft_dataset {
    struct mdl_file file;
    struct ft__trailer trailer;
    struct place *places;
    uint8_t *chunk; // INDEX_CHUNK entries
};

static enum err no_memory(struct err_info *info) {
    return err_set(info, ERR_NOMEM, NULL, "out of memory for the training data's cache");
}

static enum err damaged(struct err_info *info, const char *what) {
    return err_set(info, ERR_FORMAT, NULL, "%s", what);
}

static enum err check_head(const struct ft_dataset *d, struct err_info *info) {
    uint8_t head[FT__HEAD], want[FT__HEAD];
    if (d->file.size < FT__HEAD + FT__TRAILER)
        return damaged(info, "it is too short");
    enum err rc = mdl_file_read(&d->file, 0, sizeof head, head, info);
    if (rc)
        return rc;
    ft__head_put(want);
    if (memcmp(head, want, 8) != 0)
        return damaged(info, "it is not a cache of training data");
    if (le32(head + 8) != FT__VERSION)
        return err_set(info, ERR_UNSUPPORTED, NULL, "it is of version %u, this program reads %d",
                       le32(head + 8), FT__VERSION);
    return memcmp(head, want, sizeof head) ? damaged(info, "its head is damaged") : ERR_OK;
}

static enum err check_trailer(struct ft_dataset *d, struct err_info *info) {
    uint8_t bytes[FT__TRAILER];
    struct ft__trailer *t = &d->trailer;
    uint64_t size = d->file.size;
    enum err rc = mdl_file_read(&d->file, size - FT__TRAILER, sizeof bytes, bytes, info);
    if (!rc)
        rc = ft__trailer_get(bytes, t, info);
    if (rc)
        return rc;
    uint64_t index_bytes = (uint64_t)t->report.samples * FT__ENTRY;
    if (t->file_bytes != size || index_bytes > size - FT__HEAD - FT__TRAILER ||
        t->index_at != size - FT__TRAILER - index_bytes)
        return damaged(info, "its size is not what it says");
    return ERR_OK;
}

// Samples lie one behind the other, without a gap, in the file's order of lines.
static bool entry_ok(const struct ft_dataset *d, const struct ft__entry *e, uint64_t at,
                     int64_t line) {
    const struct ft__trailer *t = &d->trailer;
    bool pair = t->report.kind == FT_PREFERENCE;
    if (e->offset != at || e->n < 1 || e->n > t->max_seq_len || e->n2 < pair ||
        e->n2 > (pair ? t->max_seq_len : 0))
        return false;
    uint64_t bytes = 8 + 4 * ((uint64_t)e->n + (uint64_t)e->n2);
    return e->supervised >= 1 + pair && e->supervised <= e->n + e->n2 && e->line > line &&
           e->line <= t->report.lines && bytes <= t->index_at - at;
}

static enum err read_chunk(const struct ft_dataset *d, int64_t first, size_t n,
                           struct err_info *info) {
    return mdl_file_read(&d->file, d->trailer.index_at + (uint64_t)first * FT__ENTRY, n * FT__ENTRY,
                         d->chunk, info);
}

static size_t chunk_size(const struct ft_dataset *d, int64_t first) {
    int64_t left = d->trailer.report.samples - first;
    return left < INDEX_CHUNK ? (size_t)left : INDEX_CHUNK;
}

static enum err check_index(struct ft_dataset *d, struct sha256_ctx *sha, struct err_info *info) {
    const struct ft_dataset_report *r = &d->trailer.report;
    uint64_t at = FT__HEAD;
    int64_t line = 0, tokens = 0, supervised = 0, longest = 0;
    for (int64_t i = 0; i < r->samples;) {
        size_t n = chunk_size(d, i);
        enum err rc = read_chunk(d, i, n, info);
        if (!rc && sha256_update(sha, d->chunk, n * FT__ENTRY))
            rc = err_set(info, ERR_INTERNAL, NULL, "the digest failed");
        if (rc)
            return rc;
        for (size_t j = 0; j < n; j++, i++) {
            struct ft__entry e;
            ft__entry_get(d->chunk + j * FT__ENTRY, &e);
            if (!entry_ok(d, &e, at, line))
                return err_set(info, ERR_FORMAT, NULL, "entry %lld of its index is out of range",
                               (long long)i);
            d->places[i] = (struct place){e.offset, e.n, e.n2, e.supervised, e.line};
            at += 8 + 4 * ((uint64_t)e.n + (uint64_t)e.n2);
            line = e.line;
            tokens += e.n + e.n2;
            supervised += e.supervised;
            longest = e.n > longest ? e.n : longest;
            longest = e.n2 > longest ? e.n2 : longest;
        }
    }
    if (d->trailer.index_at - at >= 8 || tokens != r->tokens || supervised != r->supervised ||
        longest != r->longest)
        return damaged(info, "its index does not add up");
    return ERR_OK;
}

static enum err read_index(struct ft_dataset *d, struct err_info *info) {
    uint8_t sum[SHA256_BYTES];
    size_t n = (size_t)d->trailer.report.samples;
    d->places = mem_calloc(n ? n : 1, sizeof *d->places);
    d->chunk = mem_calloc(INDEX_CHUNK, FT__ENTRY);
    struct sha256_ctx *sha = sha256_begin();
    enum err rc = d->places && d->chunk && sha ? ERR_OK : no_memory(info);
    if (!rc)
        rc = check_index(d, sha, info);
    if (sha && sha256_end(sha, sum) && !rc)
        rc = err_set(info, ERR_INTERNAL, NULL, "the digest failed");
    if (!rc && memcmp(sum, d->trailer.index_sha, sizeof sum) != 0)
        rc = damaged(info, "its index is damaged");
    return rc;
}

enum err ft_dataset_open(const char *cache, struct ft_dataset **out, struct err_info *info) {
    *out = NULL;
    struct ft_dataset *d = mem_zalloc(sizeof *d);
    if (!d)
        return no_memory(info);
    d->file.fd = -1;
    enum err rc = mdl_file_open(AT_FDCWD, cache, cache, &d->file, info);
    if (!rc) {
        (void)((rc = check_head(d, info)) || (rc = check_trailer(d, info)) ||
               (rc = read_index(d, info)));
        if (rc == ERR_FORMAT || rc == ERR_UNSUPPORTED)
            err_prefix(info, "%.200s", cache);
    }
    if (rc)
        ft_dataset_close(d);
    else
        *out = d;
    return rc;
}

void ft_dataset_close(struct ft_dataset *d) {
    if (!d)
        return;
    mdl_file_close(&d->file);
    mem_free(d->places);
    mem_free(d->chunk);
    mem_free(d);
}

const struct ft_dataset_report *ft_dataset_report(const struct ft_dataset *d) {
    return &d->trailer.report;
}

const uint8_t *ft_dataset_key_of(const struct ft_dataset *d) {
    return d->trailer.key;
}

int32_t ft_dataset_vocab(const struct ft_dataset *d) {
    return d->trailer.vocab;
}

int64_t ft_dataset_samples(const struct ft_dataset *d) {
    return d->trailer.report.samples;
}

int32_t ft_dataset_length(const struct ft_dataset *d, int64_t i) {
    return d->places[i].n + d->places[i].n2;
}

int32_t ft_dataset_supervised(const struct ft_dataset *d, int64_t i) {
    return d->places[i].supervised;
}

int64_t ft_dataset_line(const struct ft_dataset *d, int64_t i) {
    return d->places[i].line;
}

// ---- samples

void ft_sample_fini(struct ft_sample *s) {
    mem_free(s->ids);
    mem_free(s->mask);
    mem_free(s->bytes);
    *s = (struct ft_sample){0};
}

static enum err grow(struct ft_sample *s, size_t tokens, size_t bytes, struct err_info *info) {
    if (tokens > s->cap) {
        mem_free(s->ids);
        mem_free(s->mask);
        s->cap = 0;
        s->ids = mem_calloc(tokens, sizeof *s->ids);
        s->mask = mem_alloc(tokens);
        if (!s->ids || !s->mask)
            return no_memory(info);
        s->cap = tokens;
    }
    if (bytes > s->bytes_cap) {
        mem_free(s->bytes);
        s->bytes_cap = 0;
        s->bytes = mem_alloc(bytes);
        if (!s->bytes)
            return no_memory(info);
        s->bytes_cap = bytes;
    }
    return ERR_OK;
}

static enum err decode(const struct ft_dataset *d, const struct place *p, struct ft_sample *s,
                       struct err_info *info) {
    size_t n = (size_t)p->n + (size_t)p->n2;
    int64_t targets = 0;
    if (le32(s->bytes) != (uint32_t)p->n || le32(s->bytes + 4) != (uint32_t)p->n2)
        return damaged(info, "its lengths are not those of the index");
    for (size_t i = 0; i < n; i++) {
        uint32_t word = le32(s->bytes + 8 + 4 * i), id = word & ~FT__TARGET;
        if (id >= (uint32_t)d->trailer.vocab)
            return damaged(info, "a token is not of the vocabulary");
        s->ids[i] = (int32_t)id;
        s->mask[i] = (word & FT__TARGET) != 0;
        targets += s->mask[i];
    }
    if (targets != p->supervised || s->mask[0] || (p->n2 && s->mask[p->n]))
        return damaged(info, "its mask is not what the index says");
    s->n = p->n;
    s->n2 = p->n2;
    s->ids2 = p->n2 ? s->ids + p->n : NULL;
    s->mask2 = p->n2 ? s->mask + p->n : NULL;
    return ERR_OK;
}

enum err ft_dataset_read(struct ft_dataset *d, int64_t i, struct ft_sample *s,
                         struct err_info *info) {
    if (i < 0 || i >= ft_dataset_samples(d))
        return err_set(info, ERR_INVALID, NULL, "there is no sample %lld", (long long)i);
    const struct place *p = &d->places[i];
    size_t tokens = (size_t)p->n + (size_t)p->n2, bytes = 8 + 4 * tokens;
    uint8_t entry[FT__ENTRY], sum[SHA256_BYTES];
    struct ft__entry e;
    s->n = s->n2 = 0;
    enum err rc = grow(s, tokens, bytes, info);
    if (!rc)
        rc = mdl_file_read(&d->file, p->offset, bytes, s->bytes, info);
    if (!rc)
        rc = mdl_file_read(&d->file, d->trailer.index_at + (uint64_t)i * FT__ENTRY, FT__ENTRY,
                           entry, info);
    if (!rc && sha256(s->bytes, bytes, sum))
        rc = err_set(info, ERR_INTERNAL, NULL, "the digest failed");
    if (rc)
        return rc;
    ft__entry_get(entry, &e);
    if (memcmp(sum, e.hash, FT__HASH) != 0)
        rc = damaged(info, "its bytes have changed");
    else
        rc = decode(d, p, s, info);
    if (rc)
        err_prefix(info, "%.200s: sample %lld (line %lld)", d->file.path, (long long)i,
                   (long long)p->line);
    return rc;
}

// ---- overlap

typedef void (*hash_fn)(void *arg, const uint8_t *hash);

static enum err each_hash(struct ft_dataset *d, hash_fn fn, void *arg) {
    struct err_info info;
    for (int64_t i = 0; i < ft_dataset_samples(d);) {
        size_t n = chunk_size(d, i);
        enum err rc = read_chunk(d, i, n, &info);
        if (rc)
            return rc;
        for (size_t j = 0; j < n; j++)
            fn(arg, d->chunk + j * FT__ENTRY + FT__ENTRY - FT__HASH);
        i += (int64_t)n;
    }
    return ERR_OK;
}

struct hashes {
    uint8_t *h;
    size_t n;
    int64_t found;
};

static void collect(void *arg, const uint8_t *hash) {
    struct hashes *all = arg;
    memcpy(all->h + all->n++ * FT__HASH, hash, FT__HASH);
}

static int compare(const void *a, const void *b) {
    return memcmp(a, b, FT__HASH);
}

static void look_up(void *arg, const uint8_t *hash) {
    struct hashes *all = arg;
    all->found += bsearch(hash, all->h, all->n, FT__HASH, compare) != NULL;
}

enum err ft_dataset_overlap(struct ft_dataset *a, struct ft_dataset *b, int64_t *n) {
    size_t most = (size_t)ft_dataset_samples(a);
    struct hashes all = {.h = mem_calloc(most ? most : 1, FT__HASH)};
    enum err rc = all.h ? each_hash(a, collect, &all) : ERR_NOMEM;
    if (!rc) {
        ft__hashes_sort(all.h, all.n);
        rc = each_hash(b, look_up, &all);
    }
    *n = rc ? 0 : all.found;
    mem_free(all.h);
    return rc;
}

// SPDX-License-Identifier: Apache-2.0
#include "model/digest.h"
#include "base/hash.h"
#include "base/mem.h"
#include "model/file.h"
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { CHUNK = 256 << 10, HEX = 2 * SHA256_BYTES, MAX_ENTRY = 256, SETTLED_SECONDS = 2 };

struct mdl_digest {
    const struct clock *clock;
    char *cache_dir;
    struct mdl_file *files;
    char (*hex)[HEX + 1]; // of each file
    size_t n_files, file; // file: the one being hashed, n_files when all are
    struct sha256_ctx *ctx;
    uint64_t offset; // in that file
    uint64_t done_bytes, total_bytes;
    char *chunk;
    char result[HEX + 1];
};

static enum err no_memory(struct err_info *info) {
    return err_set(info, ERR_NOMEM, NULL, "out of memory for the digest");
}

// What a cache entry says: the file's identity, then the digest. One entry per inode, so that a
// changed file replaces its old one.
static void entry_text(const struct mdl_file *f, const char *hex, char out[MAX_ENTRY]) {
    snprintf(out, MAX_ENTRY, "%llu %lld.%09ld %lld.%09ld %s\n", (unsigned long long)f->size,
             (long long)f->mtime.tv_sec, f->mtime.tv_nsec, (long long)f->ctime.tv_sec,
             f->ctime.tv_nsec, hex);
}

static bool entry_path(const struct mdl_digest *d, const struct mdl_file *f, const char *suffix,
                       char *out, size_t cap) {
    int n = snprintf(out, cap, "%s/digest-%llu-%llu%s", d->cache_dir, (unsigned long long)f->dev,
                     (unsigned long long)f->ino, suffix);
    return n > 0 && (size_t)n < cap;
}

static bool is_hex(const char *s) {
    return strspn(s, "0123456789abcdef") == HEX && s[HEX] == '\0';
}

// True if the cache knows the file as it is now.
static bool cache_load(const struct mdl_digest *d, const struct mdl_file *f, char hex[HEX + 1]) {
    char path[4096], have[MAX_ENTRY], want[MAX_ENTRY];
    if (!d->cache_dir || !entry_path(d, f, "", path, sizeof path))
        return false;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0)
        return false;
    ssize_t n = read(fd, have, sizeof have - 1);
    close(fd);
    if (n < HEX + 1 || have[n - 1] != '\n')
        return false;
    have[n - 1] = '\0';
    const char *digest = have + n - 1 - HEX;
    if (!is_hex(digest))
        return false;
    memcpy(hex, digest, HEX + 1);
    have[n - 1] = '\n';
    have[n] = '\0';
    entry_text(f, hex, want);
    return strcmp(have, want) == 0;
}

static bool is_settled(const struct mdl_digest *d, const struct mdl_file *f) {
    int64_t now = clock_wall_ns(d->clock) / 1000000000;
    return now - f->mtime.tv_sec > SETTLED_SECONDS && now - f->ctime.tv_sec > SETTLED_SECONDS;
}

static void cache_store(const struct mdl_digest *d, const struct mdl_file *f, const char *hex) {
    char path[4096], aside[4096], suffix[32], text[MAX_ENTRY];
    snprintf(suffix, sizeof suffix, ".%ld", (long)getpid());
    if (!d->cache_dir || !is_settled(d, f) || !entry_path(d, f, "", path, sizeof path) ||
        !entry_path(d, f, suffix, aside, sizeof aside))
        return;
    entry_text(f, hex, text);
    int fd = open(aside, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600);
    if (fd < 0)
        return;
    bool whole = write(fd, text, strlen(text)) == (ssize_t)strlen(text);
    close(fd);
    if (!whole || rename(aside, path) != 0)
        unlink(aside);
}

// Own handles of the source's files. The identity is taken now and compared at the end; the source
// compared its own with what it opened.
static enum err adopt_files(struct mdl_digest *d, const struct mdl_source *s,
                            struct err_info *info) {
    size_t n = mdl_source_file_count(s);
    d->files = mem_calloc(n, sizeof *d->files);
    d->hex = mem_calloc(n, sizeof *d->hex);
    if (!d->files || !d->hex)
        return no_memory(info);
    enum err e = mdl_source_check_unchanged(s, info);
    for (size_t i = 0; !e && i < n; i++) {
        struct mdl_file *f = &d->files[i];
        struct stat st;
        f->fd = fcntl(mdl_source_file_fd(s, i), F_DUPFD_CLOEXEC, 0);
        d->n_files = i + 1;
        if (f->fd < 0 || fstat(f->fd, &st) != 0)
            return err_set(info, ERR_IO, NULL, "cannot keep %s open", mdl_source_file(s, i));
        f->path = mem_strdup(mdl_source_file(s, i));
        if (!f->path)
            return no_memory(info);
        f->size = (uint64_t)st.st_size;
        f->dev = st.st_dev;
        f->ino = st.st_ino;
        f->mtime = st.st_mtim;
        f->ctime = st.st_ctim;
        d->total_bytes += f->size;
    }
    return e;
}

enum err mdl_digest_create(const struct mdl_source *s, const char *cache_dir,
                           struct mdl_digest **out, struct err_info *info) {
    struct mdl_digest *d = mem_zalloc(sizeof *d);
    if (!d)
        return no_memory(info);
    enum err e = ERR_OK;
    d->clock = &clock_system;
    d->chunk = mem_alloc(CHUNK);
    d->cache_dir = cache_dir ? mem_strdup(cache_dir) : NULL;
    if (!d->chunk || (cache_dir && !d->cache_dir))
        e = no_memory(info);
    if (!e)
        e = adopt_files(d, s, info);
    if (e) {
        mdl_digest_destroy(d);
        return e;
    }
    *out = d;
    return ERR_OK;
}

void mdl_digest_destroy(struct mdl_digest *d) {
    uint8_t unused[SHA256_BYTES];
    if (!d)
        return;
    if (d->ctx)
        (void)sha256_end(d->ctx, unused);
    for (size_t i = 0; i < d->n_files; i++)
        mdl_file_close(&d->files[i]);
    mem_free(d->files);
    mem_free(d->hex);
    mem_free(d->cache_dir);
    mem_free(d->chunk);
    mem_free(d);
}

void mdl_digest_set_clock(struct mdl_digest *d, const struct clock *clock) {
    d->clock = clock;
}

static enum err finish_file(struct mdl_digest *d, struct err_info *info) {
    const struct mdl_file *f = &d->files[d->file];
    uint8_t sum[SHA256_BYTES];
    enum err e = sha256_end(d->ctx, sum);
    d->ctx = NULL;
    if (!e)
        e = mdl_file_check_unchanged(f, info);
    if (e)
        return e;
    hex_encode(sum, sizeof sum, d->hex[d->file]);
    cache_store(d, f, d->hex[d->file]);
    d->file++;
    return ERR_OK;
}

// One chunk of the current file, or its beginning, or its end.
static enum err advance(struct mdl_digest *d, size_t *budget, struct err_info *info) {
    const struct mdl_file *f = &d->files[d->file];
    if (!d->ctx) {
        if (cache_load(d, f, d->hex[d->file])) {
            d->done_bytes += f->size;
            d->file++;
            return ERR_OK;
        }
        d->offset = 0;
        d->ctx = sha256_begin();
        return d->ctx ? ERR_OK : no_memory(info);
    }
    if (d->offset == f->size)
        return finish_file(d, info);
    size_t n = f->size - d->offset < CHUNK ? (size_t)(f->size - d->offset) : CHUNK;
    enum err e = mdl_file_read(f, d->offset, n, d->chunk, info);
    if (!e)
        e = sha256_update(d->ctx, d->chunk, n);
    d->offset += n;
    d->done_bytes += n;
    *budget = *budget > n ? *budget - n : 0;
    return e;
}

static enum err combine(struct mdl_digest *d, struct err_info *info) {
    uint8_t sum[SHA256_BYTES];
    if (d->n_files == 1) {
        memcpy(d->result, d->hex[0], sizeof d->result);
        return ERR_OK;
    }
    struct sha256_ctx *c = sha256_begin();
    if (!c)
        return no_memory(info);
    enum err e = ERR_OK;
    for (size_t i = 0; !e && i < d->n_files; i++) {
        const char *slash = strrchr(d->files[i].path, '/');
        const char *name = slash ? slash + 1 : d->files[i].path;
        if (!(e = sha256_update(c, d->hex[i], HEX)) && !(e = sha256_update(c, "  ", 2)) &&
            !(e = sha256_update(c, name, strlen(name))))
            e = sha256_update(c, "\n", 1);
    }
    enum err end = sha256_end(c, sum);
    if (!e && !end)
        hex_encode(sum, sizeof sum, d->result);
    return e ? e : end;
}

enum err mdl_digest_step(struct mdl_digest *d, size_t max_bytes, bool *done,
                         struct err_info *info) {
    size_t budget = max_bytes ? max_bytes : 1;
    *done = false;
    while (d->file < d->n_files && budget) {
        enum err e = advance(d, &budget, info);
        if (e)
            return e;
    }
    if (d->file < d->n_files)
        return ERR_OK;
    *done = true;
    return d->result[0] ? ERR_OK : combine(d, info);
}

void mdl_digest_progress(const struct mdl_digest *d, uint64_t *done_bytes, uint64_t *total_bytes) {
    *done_bytes = d->done_bytes;
    *total_bytes = d->total_bytes;
}

const char *mdl_digest_hex(const struct mdl_digest *d) {
    return d->result;
}

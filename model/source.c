// SPDX-License-Identifier: Apache-2.0
#include "model/source.h"
#include "base/mem.h"
#include "base/utf8.h"
#include "model/shown.h"
#include "model/source_internal.h"
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int by_name(const void *a, const void *b) {
    return strcmp(((const struct mdl_tensor *)a)->name, ((const struct mdl_tensor *)b)->name);
}

enum err mdl__finish_tensors(struct mdl_source *s, struct err_info *info) {
    struct mdl_shown shown;
    if (s->n_tensors)
        qsort(s->tensors, s->n_tensors, sizeof *s->tensors, by_name);
    for (size_t i = 0; i < s->n_tensors; i++) {
        const struct mdl_tensor *t = &s->tensors[i];
        if (i && strcmp(t[-1].name, t->name) == 0)
            return err_set(info, ERR_FORMAT, NULL, "tensor %s is there twice",
                           mdl_shown(&shown, t->name, strlen(t->name)));
        if (!mem_add(s->bytes, t->bytes, &s->bytes))
            return err_set(info, ERR_FORMAT, NULL, "the tensors are larger than the address space");
    }
    return ERR_OK;
}

enum err mdl__set_template(struct mdl_source *s, const char *text, size_t len,
                           struct err_info *info) {
    if (len > MDL__MAX_TEMPLATE)
        return err_set(info, ERR_LIMIT, NULL, "the chat template is longer than %d bytes",
                       MDL__MAX_TEMPLATE);
    if (!utf8_valid(text, len) || memchr(text, 0, len))
        return err_set(info, ERR_FORMAT, NULL, "the chat template is not UTF-8 text");
    s->chat_template = text;
    s->chat_template_len = len;
    return ERR_OK;
}

// The last part of a path; *n: its length, without slashes behind it.
static const char *last_part(const char *path, size_t *n) {
    size_t end = strlen(path);
    while (end && path[end - 1] == '/')
        end--;
    size_t at = end;
    while (at && path[at - 1] != '/')
        at--;
    *n = end - at;
    return path + at;
}

// The last part of the path as it was given, without ".gguf": it may be a link into a cache whose
// files are called by digests.
static enum err make_name(struct mdl_source *s, const char *path, struct err_info *info) {
    char real[PATH_MAX];
    size_t n;
    const char *base = last_part(path, &n);
    bool none = !n || (n == 1 && base[0] == '.') || (n == 2 && !memcmp(base, "..", 2));
    if (none && realpath(path, real))
        base = last_part(real, &n);
    if (!n) {
        base = "model";
        n = strlen(base);
    }
    if (n > 5 && memcmp(base + n - 5, ".gguf", 5) == 0)
        n -= 5;
    struct mdl_shown shown;
    s->name = arena_strdup(&s->arena, mdl_shown(&shown, base, n));
    return s->name ? ERR_OK : err_set(info, ERR_NOMEM, NULL, "out of memory");
}

static enum err open_file(struct mdl_source *s, const char *path, struct err_info *info) {
    uint8_t magic[8] = {0};
    s->files = mem_calloc(1, sizeof *s->files);
    if (!s->files)
        return err_set(info, ERR_NOMEM, NULL, "out of memory");
    enum err e = mdl_file_open(AT_FDCWD, path, path, &s->files[0], info);
    if (e)
        return e;
    s->n_files = 1;
    size_t n = s->files[0].size < sizeof magic ? (size_t)s->files[0].size : sizeof magic;
    if ((e = mdl_file_read(&s->files[0], 0, n, magic, info)))
        return e;
    if (memcmp(magic, "GGUF", 4) != 0)
        return err_set(info, ERR_UNSUPPORTED, NULL,
                       "%s: not a GGUF file; a model is one GGUF file, or a folder with "
                       "config.json and safetensors files",
                       path);
    if ((e = mdl__open_gguf(s, info)))
        err_prefix(info, "%s", path);
    return e;
}

enum err mdl_source_open(const char *path, struct mdl_source **out, struct err_info *info) {
    struct mdl_source *s = mem_zalloc(sizeof *s);
    if (!s)
        return err_set(info, ERR_NOMEM, NULL, "out of memory");
    arena_init(&s->arena, 0);
    s->tokenizer_file = -1;
    enum err e;
    int dirfd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (dirfd < 0) {
        e = open_file(s, path, info);
    } else {
        if ((e = mdl__open_folder(s, dirfd, path, info)))
            err_prefix(info, "%s", path);
        close(dirfd);
    }
    if (!e)
        e = make_name(s, path, info);
    if (e) {
        mdl_source_close(s);
        return e;
    }
    *out = s;
    return ERR_OK;
}

void mdl_source_close(struct mdl_source *s) {
    if (!s)
        return;
    for (size_t i = 0; i < s->n_files; i++)
        mdl_file_close(&s->files[i]);
    mem_free(s->files);
    mem_free(s->tensors);
    gguf_fini(&s->gguf);
    mem_free(s->header);
    mem_free(s->tokenizer_config);
    mem_free(s->template_text);
    arena_fini(&s->arena);
    mem_free(s);
}

const struct mdl_config *mdl_source_config(const struct mdl_source *s) {
    return &s->config;
}

const struct mdl_tensor *mdl_source_tensor(const struct mdl_source *s, const char *name) {
    const struct mdl_tensor key = {.name = name};
    return s->n_tensors ? bsearch(&key, s->tensors, s->n_tensors, sizeof key, by_name) : NULL;
}

size_t mdl_source_tensor_count(const struct mdl_source *s) {
    return s->n_tensors;
}

const struct mdl_tensor *mdl_source_tensor_at(const struct mdl_source *s, size_t i) {
    return i < s->n_tensors ? &s->tensors[i] : NULL;
}

enum err mdl_source_read(const struct mdl_source *s, const struct mdl_tensor *t, uint64_t offset,
                         size_t n, void *dst, struct err_info *info) {
    struct mdl_shown shown;
    const char *name = mdl_shown(&shown, t->name, strlen(t->name));
    if (offset > t->bytes || n > t->bytes - offset)
        return err_set(info, ERR_INTERNAL, NULL, "tensor %s: read beyond its end", name);
    enum err e = mdl_file_read(&s->files[t->file], t->offset + offset, n, dst, info);
    if (e)
        err_prefix(info, "tensor %s", name);
    return e;
}

enum err mdl_source_check_unchanged(const struct mdl_source *s, struct err_info *info) {
    enum err e = ERR_OK;
    for (size_t i = 0; !e && i < s->n_files; i++)
        e = mdl_file_check_unchanged(&s->files[i], info);
    return e;
}

bool mdl_source_rope_permuted(const struct mdl_source *s) {
    return s->rope_permuted;
}

size_t mdl_source_bytes(const struct mdl_source *s) {
    return s->bytes;
}

enum err mdl_source_tokenizer(const struct mdl_source *s, struct tokenizer **out,
                              struct err_info *info) {
    return s->make_tokenizer(s, out, info);
}

void mdl_source_chat_template(const struct mdl_source *s, const char **text, size_t *len) {
    *text = s->chat_template;
    *len = s->chat_template_len;
}

const char *mdl_source_name(const struct mdl_source *s) {
    return s->name;
}

size_t mdl_source_file_count(const struct mdl_source *s) {
    return s->n_files;
}

const char *mdl_source_file(const struct mdl_source *s, size_t i) {
    return i < s->n_files ? s->files[i].path : NULL;
}

int mdl_source_file_fd(const struct mdl_source *s, size_t i) {
    return i < s->n_files ? s->files[i].fd : -1;
}

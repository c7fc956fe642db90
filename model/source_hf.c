// SPDX-License-Identifier: Apache-2.0
// A Hugging Face folder: mdl__open_folder reads the small JSON files, then the headers of the
// safetensors files. Every shard's header is checked as a whole, and the index and the shards must
// name the same tensors.
#include "base/json_load.h"
#include "base/mem.h"
#include "model/safetensors.h"
#include "model/shown.h"
#include "model/source_internal.h"
#include <jansson.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { OTHER_FILES = 6 };

// What is known while a folder is being opened.
struct folder {
    struct mdl_source *s;
    int dirfd;
    const char *path;
    json_t *map; // weight_map of the index, or NULL
    size_t cap_tensors;
    size_t n_seen; // tensors in the shards so far, also those that are not listed
    struct err_info *info;
};

// Opens path/name as the source's next file and sets *index; a missing file leaves it at -1.
static enum err open_optional(struct folder *f, const char *name, int *index) {
    char path[PATH_MAX];
    struct mdl_shown shown;
    struct mdl_source *s = f->s;
    *index = -1;
    int n = snprintf(path, sizeof path, "%s/%s", f->path, name);
    if (n < 0 || (size_t)n >= sizeof path)
        return err_set(f->info, ERR_LIMIT, NULL, "the path of %s is too long",
                       mdl_shown(&shown, name, strlen(name)));
    struct err_info why; // not the caller's: a missing file is no error
    enum err e = mdl_file_open(f->dirfd, name, path, &s->files[s->n_files], &why);
    if (e == ERR_NOT_FOUND)
        return ERR_OK;
    if (e)
        return err_set(f->info, e, NULL, "%s", why.message);
    *index = (int)s->n_files++;
    return ERR_OK;
}

// As above, and the text; *text stays NULL where the file is missing.
static enum err read_optional(struct folder *f, const char *name, size_t max, char **text,
                              size_t *len) {
    int i;
    enum err e = open_optional(f, name, &i);
    return e || i < 0 ? e : mdl_file_read_all(&f->s->files[i], max, text, len, f->info);
}

static enum err parse_object(struct folder *f, const char *name, const char *text, size_t len,
                             json_t **out) {
    json_error_t je;
    struct mdl_shown shown;
    *out = json_load_text(text, len, JSON_REJECT_DUPLICATES, &je);
    if (!*out)
        return err_set(f->info, json_load_err(&je), NULL, "%s: line %d: %s", name, je.line,
                       mdl_shown(&shown, je.text, strlen(je.text)));
    if (!json_is_object(*out))
        return err_set(f->info, ERR_FORMAT, NULL, "%s: must be an object", name);
    return ERR_OK;
}

static enum err read_config(struct folder *f) {
    char *config = NULL, *generation = NULL;
    size_t n_config = 0, n_generation = 0;
    enum err e = read_optional(f, "config.json", MDL__MAX_SMALL_JSON, &config, &n_config);
    if (!e && !config)
        e = err_set(f->info, ERR_NOT_FOUND, NULL,
                    "no config.json; a model is a folder with config.json and safetensors files, "
                    "or one GGUF file");
    if (!e)
        e = read_optional(f, "generation_config.json", MDL__MAX_SMALL_JSON, &generation,
                          &n_generation);
    if (!e)
        e = mdl_config_from_hf(config, n_config, generation, n_generation, &f->s->config, f->info);
    mem_free(config);
    mem_free(generation);
    return e;
}

// The template in tokenizer_config.json: a string, or a list of {name, template} of which the one
// called "default" counts.
static const json_t *inline_template(const json_t *config) {
    const json_t *t = json_object_get(config, "chat_template");
    if (!json_is_array(t))
        return t;
    size_t i;
    json_t *entry;
    json_array_foreach(t, i, entry) {
        const char *name = json_string_value(json_object_get(entry, "name"));
        if (name && strcmp(name, "default") == 0)
            return json_object_get(entry, "template");
    }
    return NULL;
}

// The text of a special token: a string, or {"content": ...}.
static const char *special_text(const json_t *config, const char *name) {
    const json_t *t = json_object_get(config, name);
    return json_string_value(json_is_object(t) ? json_object_get(t, "content") : t);
}

// Where neither config names an end-of-sequence id: the tokenizer's own, if its configuration has
// the id beside the text.
static void eos_from_tokenizer(struct mdl_config *c, const json_t *config) {
    const char *eos = special_text(config, "eos_token"), *key;
    json_t *added = json_object_get(config, "added_tokens_decoder"), *entry;
    if (c->n_eos || !eos)
        return;
    json_object_foreach(added, key, entry) {
        const char *content = json_string_value(json_object_get(entry, "content"));
        char *end;
        long id = strtol(key, &end, 10);
        if (content && strcmp(content, eos) == 0 && *key && !*end && id >= 0 && id < c->vocab) {
            c->eos[c->n_eos++] = (int32_t)id;
            return;
        }
    }
}

static enum err own_template(struct folder *f, const char *text, size_t len) {
    struct mdl_source *s = f->s;
    s->template_text = mem_strndup(text, len);
    if (!s->template_text)
        return err_set(f->info, ERR_NOMEM, NULL, "out of memory for the chat template");
    return mdl__set_template(s, s->template_text, len, f->info);
}

static enum err read_tokenizer_config(struct folder *f) {
    struct mdl_source *s = f->s;
    json_t *config = NULL;
    char *jinja = NULL;
    size_t n_jinja = 0;
    enum err e = open_optional(f, "tokenizer.json", &s->tokenizer_file);
    if (!e)
        e = read_optional(f, "tokenizer_config.json", MDL__MAX_TOKENIZER_CONFIG,
                          &s->tokenizer_config, &s->tokenizer_config_len);
    if (!e)
        e = read_optional(f, "chat_template.jinja", MDL__MAX_TEMPLATE, &jinja, &n_jinja);
    if (!e && s->tokenizer_config)
        e = parse_object(f, "tokenizer_config.json", s->tokenizer_config, s->tokenizer_config_len,
                         &config);
    if (!e)
        eos_from_tokenizer(&s->config, config);
    const json_t *t = inline_template(config);
    if (!e && jinja)
        e = own_template(f, jinja, n_jinja);
    else if (!e && json_is_string(t))
        e = own_template(f, json_string_value(t), json_string_length(t));
    else if (!e && t && !json_is_null(t))
        e = err_set(f->info, ERR_FORMAT, NULL,
                    "tokenizer_config.json: chat_template must be a string or a list of "
                    "{name, template}");
    mem_free(jinja);
    json_decref(config);
    return e;
}

// Tensors that old or tied checkpoints hold although nothing reads them.
static bool is_unused(const struct mdl_config *c, const char *name) {
    static const char stored[] = ".self_attn.rotary_emb.inv_freq";
    size_t n = strlen(name), m = sizeof stored - 1;
    return (n > m && strcmp(name + n - m, stored) == 0) ||
           (c->tied && strcmp(name, "lm_head.weight") == 0);
}

static enum err tensor_dtype(struct folder *f, const struct st_tensor *t, enum kn_dtype *out) {
    struct mdl_shown shown;
    switch (t->dtype) {
    case ST_F32:
        *out = KN_F32;
        return ERR_OK;
    case ST_F16:
        *out = KN_F16;
        return ERR_OK;
    case ST_BF16:
        *out = KN_BF16;
        return ERR_OK;
    default:
        return err_set(f->info, ERR_UNSUPPORTED, NULL,
                       "tensor %s: dtype %s is not supported; F32, F16 and BF16 are",
                       mdl_shown(&shown, t->name, strlen(t->name)), st_dtype_name(t->dtype));
    }
}

static enum err add_tensor(struct folder *f, const struct st_tensor *from, int file) {
    struct mdl_source *s = f->s;
    struct mdl_shown shown;
    enum kn_dtype dtype = KN_F32;
    enum err e = tensor_dtype(f, from, &dtype);
    if (e)
        return e;
    if (from->n_dims > MDL_MAX_DIMS)
        return err_set(f->info, ERR_UNSUPPORTED, NULL, "tensor %s: more than %d dimensions",
                       mdl_shown(&shown, from->name, strlen(from->name)), MDL_MAX_DIMS);
    if (s->n_tensors == f->cap_tensors) {
        size_t cap = f->cap_tensors ? 2 * f->cap_tensors : 256;
        void *p = mem_realloc(s->tensors, cap * sizeof *s->tensors);
        if (!p)
            return err_set(f->info, ERR_NOMEM, NULL, "out of memory for %zu tensors", cap);
        s->tensors = p;
        f->cap_tensors = cap;
    }
    struct mdl_tensor *t = &s->tensors[s->n_tensors];
    *t = (struct mdl_tensor){.name = arena_strdup(&s->arena, from->name),
                             .dtype = dtype,
                             .n_dims = from->n_dims,
                             .file = file,
                             .offset = from->begin,
                             .bytes = (size_t)(from->end - from->begin)};
    if (!t->name)
        return err_set(f->info, ERR_NOMEM, NULL, "out of memory for tensor names");
    for (int i = 0; i < from->n_dims; i++) {
        if (from->dims[i] > INT64_MAX)
            return err_set(f->info, ERR_FORMAT, NULL, "tensor %s: a dimension is too large",
                           mdl_shown(&shown, from->name, strlen(from->name)));
        t->dims[i] = (int64_t)from->dims[i];
    }
    s->n_tensors++;
    return ERR_OK;
}

static enum err read_header(struct folder *f, const struct mdl_file *file, struct st_header *out) {
    uint8_t first[8] = {0};
    size_t n = 0;
    enum err e = mdl_file_read(file, 0, file->size < 8 ? (size_t)file->size : 8, first, f->info);
    if (!e)
        e = st_header_length(first, file->size, &n, f->info);
    if (e)
        return e;
    char *json = mem_alloc(n);
    if (!json)
        return err_set(f->info, ERR_NOMEM, NULL, "out of memory for a header of %zu bytes", n);
    e = mdl_file_read(file, 8, n, json, f->info);
    if (e) {
        mem_free(json);
        return e;
    }
    return st_parse(json, n, file->size, out, f->info);
}

// Lists the tensors of the source's file `index`, which is called `name`.
static enum err add_file(struct folder *f, const char *name, int index) {
    struct st_header h;
    struct mdl_shown shown;
    enum err e = read_header(f, &f->s->files[index], &h);
    if (e) {
        err_prefix(f->info, "%s", name);
        return e;
    }
    for (size_t i = 0; !e && i < h.n_tensors; i++) {
        const struct st_tensor *t = &h.tensors[i];
        if (f->map) {
            const char *shard = json_string_value(json_object_get(f->map, t->name));
            if (!shard || strcmp(shard, name) != 0)
                e = err_set(f->info, ERR_FORMAT, NULL,
                            "%s holds tensor %s, which weight_map does not place there", name,
                            mdl_shown(&shown, t->name, strlen(t->name)));
        }
        f->n_seen++;
        if (!e && !is_unused(&f->s->config, t->name))
            e = add_tensor(f, t, index);
    }
    st_fini(&h);
    return e;
}

// A plain file name: no folder, nothing hidden.
static bool shard_name_valid(const char *name) {
    static const char suffix[] = ".safetensors";
    size_t n = strlen(name), m = sizeof suffix - 1;
    if (n <= m || n > 255 || name[0] == '.' || strcmp(name + n - m, suffix) != 0)
        return false;
    for (size_t i = 0; i < n; i++)
        if (name[i] == '/' || name[i] == '\\' || (unsigned char)name[i] < 0x20)
            return false;
    return true;
}

static int by_text(const void *a, const void *b) {
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

// The names of the shards, sorted, each once: views into the map. *out is freed with mem_free.
static enum err shard_names(struct folder *f, const char ***out, size_t *n_out) {
    const char *key;
    json_t *value;
    struct mdl_shown shown;
    size_t n = 0, unique = 0;
    const char **names = mem_calloc(json_object_size(f->map), sizeof *names);
    if (!names)
        return err_set(f->info, ERR_NOMEM, NULL, "out of memory for the index");
    json_object_foreach(f->map, key, value) {
        const char *name = json_string_value(value);
        if (!name || !shard_name_valid(name)) {
            enum err e = err_set(f->info, ERR_FORMAT, NULL,
                                 "model.safetensors.index.json: weight_map: the file of tensor %s "
                                 "must be a plain name that ends in .safetensors",
                                 mdl_shown(&shown, key, strlen(key)));
            mem_free(names);
            return e;
        }
        names[n++] = name;
    }
    if (n)
        qsort(names, n, sizeof *names, by_text);
    for (size_t i = 0; i < n; i++)
        if (i == 0 || strcmp(names[i], names[unique - 1]) != 0)
            names[unique++] = names[i];
    *out = names;
    *n_out = unique;
    return ERR_OK;
}

// Every tensor of the map was in its shard; if not, names one that was missing.
static enum err check_complete(struct folder *f) {
    const char *key;
    json_t *value;
    struct mdl_shown shown;
    if (f->n_seen == json_object_size(f->map))
        return ERR_OK;
    json_object_foreach(f->map, key, value) {
        if (!is_unused(&f->s->config, key) && !mdl_source_tensor(f->s, key))
            return err_set(f->info, ERR_FORMAT, NULL, "%s holds no tensor %s, as weight_map says",
                           json_string_value(value), mdl_shown(&shown, key, strlen(key)));
    }
    return err_set(f->info, ERR_FORMAT, NULL, "weight_map names tensors that no file holds");
}

static enum err add_shards(struct folder *f) {
    const char **names = NULL;
    size_t n = 0;
    enum err e = shard_names(f, &names, &n);
    if (!e && n > MDL__MAX_SHARDS)
        e = err_set(f->info, ERR_LIMIT, NULL, "weight_map names %zu files, more than %d", n,
                    MDL__MAX_SHARDS);
    for (size_t i = 0; !e && i < n; i++) {
        int index;
        e = open_optional(f, names[i], &index);
        if (!e && index < 0)
            e = err_set(f->info, ERR_NOT_FOUND, NULL, "%s, which weight_map names, is missing",
                        names[i]);
        if (!e)
            e = add_file(f, names[i], index);
    }
    mem_free(names);
    return e;
}

static enum err read_weights(struct folder *f) {
    static const char index_name[] = "model.safetensors.index.json";
    char *text = NULL;
    size_t len = 0;
    json_t *index = NULL;
    int file;
    enum err e = open_optional(f, "model.safetensors", &file);
    if (!e && file >= 0) {
        e = add_file(f, "model.safetensors", file);
        return e ? e : mdl__finish_tensors(f->s, f->info);
    }
    if (!e)
        e = read_optional(f, index_name, MDL__MAX_INDEX, &text, &len);
    if (!e && !text)
        e = err_set(f->info, ERR_NOT_FOUND, NULL,
                    "neither model.safetensors nor %s is there; other weight files are not "
                    "supported",
                    index_name);
    if (!e)
        e = parse_object(f, index_name, text, len, &index);
    f->map = json_object_get(index, "weight_map");
    if (!e && !json_is_object(f->map))
        e = err_set(f->info, ERR_FORMAT, NULL, "%s: weight_map must be an object", index_name);
    if (!e)
        e = add_shards(f);
    if (!e)
        e = mdl__finish_tensors(f->s, f->info);
    if (!e)
        e = check_complete(f);
    json_decref(index);
    mem_free(text);
    return e;
}

static enum err make_tokenizer(const struct mdl_source *s, struct tokenizer **out,
                               struct err_info *info) {
    char *text;
    size_t len;
    if (s->tokenizer_file < 0)
        return err_set(info, ERR_NOT_FOUND, NULL,
                       "no tokenizer.json; other tokenizer files are not supported");
    enum err e =
        mdl_file_read_all(&s->files[s->tokenizer_file], MDL__MAX_TOKENIZER_JSON, &text, &len, info);
    if (e)
        return e;
    e = tokenizer_from_hf(text, len, s->tokenizer_config, s->tokenizer_config_len, out, info);
    mem_free(text);
    return e;
}

enum err mdl__open_folder(struct mdl_source *s, int dirfd, const char *path,
                          struct err_info *info) {
    struct folder f = {.s = s, .dirfd = dirfd, .path = path, .info = info};
    s->make_tokenizer = make_tokenizer;
    s->files = mem_calloc(OTHER_FILES + MDL__MAX_SHARDS, sizeof *s->files);
    if (!s->files)
        return err_set(info, ERR_NOMEM, NULL, "out of memory");
    enum err e = read_config(&f);
    if (!e)
        e = read_tokenizer_config(&f);
    if (!e)
        e = read_weights(&f);
    return e;
}

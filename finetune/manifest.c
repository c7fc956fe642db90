// SPDX-License-Identifier: Apache-2.0
#include "finetune/manifest.h"
#include "base/durable.h"
#include "base/json_value.h"
#include "base/mem.h"
#include "finetune/checkpoint_internal.h"
#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <unistd.h>

#define MANIFEST "manifest.json"
#define COMPLETE FT_COMPLETE_FILE

enum { VERSION = 2, FIELD_MAX = 4096 };

static const char *const kind_names[FT_MANIFEST_KIND_COUNT] = {
#define X(name, text) [FT_MANIFEST_##name] = text,
    FT_MANIFEST_KINDS(X)
#undef X
};

// ---- write

static enum err put_files(int dir, struct json_w *w, const char *const *files, size_t n,
                          struct pace *pace, struct err_info *info) {
    enum err e = ERR_OK;
    jw_key(w, "files");
    jw_obj(w);
    for (size_t i = 0; i < n && !e; i++) {
        char hex[FT_SHA256_HEX] = "";
        uint64_t bytes = 0;
        e = ft_file_hash_paced(dir, files[i], pace, hex, &bytes, info);
        jw_key(w, files[i]);
        jw_obj(w);
        jw_kstr(w, "sha256", hex);
        jw_kint(w, "bytes", (int64_t)bytes);
        jw_obj_end(w);
    }
    jw_obj_end(w);
    return e;
}

static void put_json(struct json_w *w, const char *key, const char *json) {
    jw_key(w, key);
    if (json)
        jw_raw(w, json, strlen(json));
    else
        jw_null(w);
}

void ft_manifest_origin(struct json_w *w, const struct ft_manifest *m) {
    const struct {
        const char *key, *value;
    } texts[] = {{"run_id", m->run_id},
                 {"base_model", m->base_model},
                 {"base_digest", m->base_digest},
                 {"tokenizer_digest", m->tokenizer_digest},
                 {"template_digest", m->template_digest},
                 {"dataset_digest", m->dataset_digest},
                 {"validation_digest", m->validation_digest},
                 {"code_version", m->code_version},
                 {"kernel_set", m->kernel_set},
                 {"method", m->method},
                 {"precision", m->precision},
                 {"parent", m->parent},
                 {"retention_class", m->retention_class}};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        jw_kstr(w, texts[i].key, texts[i].value);
    if (m->no_seed)
        jw_knull(w, "seed");
    else
        jw_kint(w, "seed", (int64_t)m->seed);
    jw_kint(w, "created_at", m->created_at);
    put_json(w, "kernel_sets", m->kernel_sets);
    put_json(w, "hyperparameters", m->hyperparameters);
}

static enum err put_marker(int dir, struct err_info *info) {
    char hex[FT_SHA256_HEX];
    uint64_t bytes;
    enum err e = ft_file_hash(dir, MANIFEST, hex, &bytes, info);
    if (e)
        return e;
    hex[FT_SHA256_HEX - 1] = '\n';
    return durable_put(dir, COMPLETE, hex, FT_SHA256_HEX, info); // syncs the folder
}

enum err ft_manifest_write(int dir, enum ft_manifest_kind kind, const struct ft_manifest *m,
                           const struct ft_state *s, const char *const *files, size_t n,
                           struct err_info *info) {
    struct buf b;
    buf_init(&b, FT_MANIFEST_BYTES);
    struct json_w w = json_w_begin(&b);
    jw_obj(&w);
    jw_kint(&w, "version", VERSION);
    jw_kstr(&w, "kind", kind_names[kind]);
    ft_manifest_origin(&w, m);
    if (s) {
        jw_key(&w, "metrics");
        jw_obj(&w);
        ft__state_fields(&w, s);
        jw_obj_end(&w);
    } else {
        put_json(&w, "metrics", m->metrics);
    }
    enum err e = put_files(dir, &w, files, n, m->pace, info);
    jw_obj_end(&w);
    buf_putc(&b, '\n');
    if (!e && buf_err(&b))
        e = err_set(info, buf_err(&b), NULL, MANIFEST ": %s", err_text(buf_err(&b)));
    if (!e)
        e = durable_put(dir, MANIFEST, b.data, b.len, info);
    buf_fini(&b);
    return e ? e : put_marker(dir, info);
}

// ---- read

static enum err bad(struct err_info *info, const char *what) {
    return err_set(info, ERR_FORMAT, NULL, MANIFEST ": %s", what);
}

static bool is_digest(const json_t *v) {
    const char *s = json_string_value(v);
    size_t n = json_string_length(v);
    return s && n == FT_SHA256_HEX - 1 && strspn(s, "0123456789abcdef") == n;
}

static enum err check_files(json_t *files, struct err_info *info) {
    const char *name;
    json_t *v;
    if (!json_is_object(files) || !json_object_size(files))
        return bad(info, "files must be an object that names the files");
    if (json_object_size(files) > FT_MANIFEST_FILES)
        return bad(info, "files has too many entries");
    json_object_foreach(files, name, v) {
        if (!ft_path_ok(name))
            return err_set(info, ERR_FORMAT, NULL,
                           MANIFEST ": files: '%.100s' is no name of a file below the folder",
                           name);
        const json_t *bytes = json_object_get(v, "bytes");
        if (!is_digest(json_object_get(v, "sha256")) || !json_is_integer(bytes) ||
            json_integer_value(bytes) < 0)
            return err_set(info, ERR_FORMAT, NULL,
                           MANIFEST ": files: %.100s must have sha256 (64 hex digits) and bytes",
                           name);
    }
    return ERR_OK;
}

// Texts are texts, and short; what else a field must be is for those who use it.
enum err ft_manifest_check_origin(const json_t *m, const char *file, struct err_info *info) {
    static const char *const texts[] = {
        "run_id",          "base_model",     "base_digest",       "tokenizer_digest",
        "template_digest", "dataset_digest", "validation_digest", "code_version",
        "kernel_set",      "method",         "precision",         "parent",
        "retention_class"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        const json_t *v = json_object_get(m, texts[i]);
        bool text = json_is_string(v) && json_string_length(v) < FIELD_MAX &&
                    strlen(json_string_value(v)) == json_string_length(v);
        if (v && !json_is_null(v) && !text)
            return err_set(info, ERR_FORMAT, NULL, "%s: %s must be a text or null", file, texts[i]);
    }
    const json_t *hyper = json_object_get(m, "hyperparameters"),
                 *sets = json_object_get(m, "kernel_sets");
    if (hyper && !json_is_null(hyper) && !json_is_object(hyper))
        return err_set(info, ERR_FORMAT, NULL, "%s: hyperparameters must be an object or null",
                       file);
    if (sets && !json_is_null(sets) && !json_is_array(sets))
        return err_set(info, ERR_FORMAT, NULL, "%s: kernel_sets must be a list or null", file);
    return ERR_OK;
}

static enum err check(const json_t *m, struct err_info *info) {
    const json_t *version = json_object_get(m, "version");
    if (!json_is_integer(version))
        return bad(info, "version is missing");
    if (json_integer_value(version) != VERSION)
        return err_set(info, ERR_UNSUPPORTED, NULL,
                       MANIFEST ": it is of version %lld; this build reads version %d",
                       (long long)json_integer_value(version), VERSION);
    if (ft_manifest_kind_of(m) == FT_MANIFEST_KIND_COUNT)
        return bad(info, "kind must be checkpoint, adapter or export");
    enum err e = ft_manifest_check_origin(m, MANIFEST, info);
    return e ? e : check_files(json_object_get(m, "files"), info);
}

// *out is NULL for what is not there.
static enum err dump(const json_t *o, const char *key, char **out) {
    const json_t *v = json_object_get(o, key);
    *out = NULL;
    return v && !json_is_null(v) ? json_value_text(v, 0, out) : ERR_OK;
}

enum err ft_manifest_take(const json_t *o, struct ft_manifest *out, struct ft_manifest_json *own,
                          struct err_info *info) {
    const json_t *seed = json_object_get(o, "seed");
    *own = (struct ft_manifest_json){0};
    *out = (struct ft_manifest){0};
    enum err e;
    if ((e = dump(o, "hyperparameters", &own->hyperparameters)) ||
        (e = dump(o, "kernel_sets", &own->kernel_sets)) || (e = dump(o, "metrics", &own->metrics)))
        return err_set(info, e, NULL, "out of memory for a manifest");
#define TEXT(key) .key = json_string_value(json_object_get(o, #key))
    *out = (struct ft_manifest){
        TEXT(run_id),
        TEXT(base_model),
        TEXT(base_digest),
        TEXT(tokenizer_digest),
        TEXT(template_digest),
        TEXT(dataset_digest),
        TEXT(validation_digest),
        TEXT(code_version),
        TEXT(kernel_set),
        TEXT(method),
        TEXT(precision),
        TEXT(parent),
        TEXT(retention_class),
        .hyperparameters = own->hyperparameters,
        .kernel_sets = own->kernel_sets,
        .metrics = own->metrics,
        .seed = (uint64_t)json_integer_value(seed),
        .no_seed = !json_is_integer(seed),
        .created_at = json_integer_value(json_object_get(o, "created_at")),
    };
#undef TEXT
    return ERR_OK;
}

void ft_manifest_drop(struct ft_manifest_json *own) {
    mem_free(own->hyperparameters);
    mem_free(own->kernel_sets);
    mem_free(own->metrics);
    *own = (struct ft_manifest_json){0};
}

enum err ft_manifest_parse(const char *text, size_t len, json_t **out, struct err_info *info) {
    enum err e = ft_json_object(text, len, MANIFEST, out, info);
    if (e)
        return e;
    e = check(*out, info);
    if (e) {
        json_decref(*out);
        *out = NULL;
    }
    return e;
}

enum ft_manifest_kind ft_manifest_kind_of(const json_t *m) {
    const char *kind = json_string_value(json_object_get(m, "kind"));
    int i = 0;
    while (i < FT_MANIFEST_KIND_COUNT && (!kind || strcmp(kind, kind_names[i]) != 0))
        i++;
    return (enum ft_manifest_kind)i;
}

static enum err check_marker(int dir, struct err_info *info) {
    char expected[FT_SHA256_HEX], found[FT_SHA256_HEX + 1];
    uint64_t bytes;
    int fd;
    struct err_info why;
    enum err e = ft_file_hash(dir, MANIFEST, expected, &bytes, info);
    if (e)
        return e;
    e = ft_file_open_below(dir, COMPLETE, &fd, &why);
    if (e == ERR_NOT_FOUND)
        return err_set(info, ERR_FORMAT, NULL, "it was not completed (no COMPLETE)");
    if (e) {
        *info = why;
        return e;
    }
    ssize_t n = read(fd, found, sizeof found);
    int failed = n < 0 ? errno : 0;
    close(fd);
    if (failed)
        return durable_errno(info, failed, "read", COMPLETE);
    expected[FT_SHA256_HEX - 1] = '\n';
    if (n != FT_SHA256_HEX || memcmp(found, expected, FT_SHA256_HEX) != 0)
        return err_set(info, ERR_FORMAT, NULL, MANIFEST " is not what COMPLETE says");
    return ERR_OK;
}

enum err ft_manifest_read(int dir, json_t **out, struct err_info *info) {
    struct buf text;
    *out = NULL;
    enum err e = check_marker(dir, info);
    if (e)
        return e;
    buf_init(&text, FT_MANIFEST_BYTES);
    e = ft_file_text(dir, MANIFEST, &text, info);
    if (!e)
        e = ft_manifest_parse(text.data ? text.data : "", text.len, out, info);
    buf_fini(&text);
    return e;
}

enum err ft_manifest_check_paced(int dir, const json_t *m, const char *file, struct pace *pace,
                                 struct err_info *info) {
    const json_t *entry = json_object_get(json_object_get(m, "files"), file);
    char hex[FT_SHA256_HEX];
    uint64_t bytes;
    if (!entry)
        return err_set(info, ERR_NOT_FOUND, NULL, "%s is not in the manifest", file);
    enum err e = ft_file_hash_paced(dir, file, pace, hex, &bytes, info);
    if (e)
        return e;
    uint64_t expected = (uint64_t)json_integer_value(json_object_get(entry, "bytes"));
    if (bytes != expected)
        return err_set(info, ERR_FORMAT, NULL,
                       "%s has %" PRIu64 " bytes, and %" PRIu64 " in the manifest", file, bytes,
                       expected);
    if (strcmp(hex, json_string_value(json_object_get(entry, "sha256"))) != 0)
        return err_set(info, ERR_FORMAT, NULL, "%s is not what the manifest says (SHA-256)", file);
    return ERR_OK;
}

enum err ft_manifest_check(int dir, const json_t *m, const char *file, struct err_info *info) {
    return ft_manifest_check_paced(dir, m, file, NULL, info);
}

// SPDX-License-Identifier: Apache-2.0
// A folder with a manifest is checked against it. An exported set lists everything below it; where
// a folder in it has a manifest of its own, that one is compared with the set's list and then
// believed for its files, so that each file is hashed once.
#include "finetune/verify.h"
#include "base/durable.h"
#include "finetune/verify_internal.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { RUN_JSON_BYTES = 1 << 20 };
#define MANIFEST "manifest.json"

struct walk {
    const struct ft_verify *v;
    struct ft_verify_result *r;
    enum err rc; // ERR_NOMEM: there is no verdict
};

struct folder {
    int dir;
    const char *path, *prefix; // prefix: of names in lines, "" or "adapter/"
};

static void line(struct walk *w, const struct folder *f, const char *file, enum err e,
                 const char *what) {
    char name[2 * FT_PATH_MAX];
    if (e == ERR_NOMEM)
        w->rc = e;
    if (w->rc)
        return;
    snprintf(name, sizeof name, "%s%s", f->prefix, file);
    w->r->files++;
    w->r->wrong += e != ERR_OK;
    w->v->tell(w->v->arg, name, e, what);
}

// "cannot open x: ..." names the file once more; it stays, since it says what was tried.
static void line_of(struct walk *w, const struct folder *f, const char *file, enum err e,
                    const struct err_info *why) {
    const char *what = why->message;
    size_t n = strlen(file);
    if (e && !strncmp(what, file, n) && what[n] == ' ')
        what += n + 1;
    else if (e && !strncmp(what, file, n) && what[n] == ':')
        what += n + 2;
    line(w, f, file, e, e ? what : "");
}

// ---- a folder with a manifest

static void inspect(const struct walk *w, const struct folder *f, enum ft_manifest_kind kind,
                    struct ft__flaw *flaw) {
    const struct mdl_config *base = w->v->base ? w->v->base->config : NULL;
    *flaw = (struct ft__flaw){.e = ERR_OK};
    if (kind == FT_MANIFEST_CHECKPOINT)
        ft__inspect_checkpoint(f->path, base, flaw);
    else if (kind == FT_MANIFEST_ADAPTER)
        ft__inspect_adapter(f->path, base, flaw);
}

// A listed file against its entry; then what was found in it.
static void check_file(struct walk *w, const struct folder *f, const json_t *m, const char *file,
                       const struct ft__flaw *flaw) {
    struct err_info why = {0};
    enum err e = ft_manifest_check(f->dir, m, file, &why);
    if (!e && flaw->e && !strcmp(flaw->file, file)) {
        e = flaw->e;
        snprintf(why.message, sizeof why.message, "%s", flaw->what);
    }
    line_of(w, f, file, e, &why);
}

// What nobody vouches for: no damage, but to be known of.
static void tell_unlisted(struct walk *w, const struct folder *f, const json_t *m) {
    const json_t *files = json_object_get(m, "files");
    struct ft_names names = {0};
    struct err_info why;
    enum err e = ft_names_read(f->dir, "", false, &names, &why);
    if (e)
        line(w, f, ".", e, why.message);
    for (size_t i = 0; i < names.n && !e; i++) {
        const char *name = names.items[i];
        bool own = !strcmp(name, MANIFEST) || !strcmp(name, "COMPLETE");
        if (!own && !json_object_get(files, name))
            line(w, f, name, ERR_OK, "not in the manifest");
    }
    ft_names_fini(&names);
}

// Marker, manifest, model. NULL: its line has said what is wrong.
static json_t *open_manifest(struct walk *w, const struct folder *f, enum ft_manifest_kind kind) {
    json_t *m;
    struct err_info why = {0};
    enum err e = ft_manifest_read(f->dir, &m, &why);
    if (e == ERR_NOT_FOUND)
        e = err_set(&why, ERR_FORMAT, NULL, "it is not there: the folder was not completed");
    if (!e && kind != FT_MANIFEST_KIND_COUNT && ft_manifest_kind_of(m) != kind)
        e = err_set(&why, ERR_FORMAT, NULL, "it is not of the kind that stands in this place");
    if (!e && w->v->base)
        e = ft__compare_base(m, w->v->base, &why);
    line_of(w, f, MANIFEST, e, &why);
    if (e && m && e != ERR_INVALID) {
        json_decref(m);
        m = NULL;
    }
    if (m)
        line(w, f, "COMPLETE", ERR_OK, "");
    return m;
}

static void check_folder(struct walk *w, const struct folder *f, enum ft_manifest_kind kind) {
    struct ft__flaw flaw;
    const char *file;
    json_t *v, *m = open_manifest(w, f, kind);
    if (!m)
        return;
    inspect(w, f, ft_manifest_kind_of(m), &flaw);
    if (flaw.e == ERR_NOMEM)
        w->rc = flaw.e;
    json_object_foreach(json_object_get(m, "files"), file, v) check_file(w, f, m, file, &flaw);
    if (flaw.e && !json_object_get(json_object_get(m, "files"), flaw.file))
        line(w, f, flaw.file, flaw.e, flaw.what);
    tell_unlisted(w, f, m);
    json_decref(m);
}

// ---- folders below

static bool open_below(struct walk *w, const struct folder *f, const char *name, char *path,
                       char *prefix, struct folder *out) {
    int dir = openat(f->dir, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    if (dir < 0) {
        struct err_info why;
        line(w, f, name, durable_errno(&why, errno, "open", name), why.message);
        return false;
    }
    snprintf(path, FT__PATH, "%s/%s", f->path, name);
    snprintf(prefix, FT_PATH_MAX + 2, "%s%s/", f->prefix, name);
    *out = (struct folder){dir, path, prefix};
    return true;
}

static void check_below(struct walk *w, const struct folder *f, const char *name,
                        enum ft_manifest_kind kind) {
    char path[FT__PATH], prefix[FT_PATH_MAX + 2];
    struct folder sub;
    if (!open_below(w, f, name, path, prefix, &sub))
        return;
    check_folder(w, &sub, kind);
    close(sub.dir);
}

// ---- an exported set

// The folder of `file` if that has a manifest in the set's list; false: it has none.
static bool own_manifest(const json_t *files, const char *file, char folder[FT_PATH_MAX]) {
    const char *slash = strrchr(file, '/');
    char manifest[FT_PATH_MAX + sizeof MANIFEST];
    if (!slash)
        return false;
    snprintf(folder, FT_PATH_MAX, "%.*s", (int)(slash - file), file);
    snprintf(manifest, sizeof manifest, "%s/" MANIFEST, folder);
    return json_object_get(files, manifest) != NULL;
}

// The folder's own list must say of each file what the set's says.
static enum err compare_lists(const struct folder *f, const char *folder, const json_t *files,
                              struct err_info *info) {
    char path[FT_PATH_MAX + sizeof MANIFEST];
    json_t *m = NULL, *own;
    const char *name;
    snprintf(path, sizeof path, "%s/" MANIFEST, folder);
    enum err e = ft_file_json(f->dir, path, FT_MANIFEST_BYTES, &m, info);
    if (e)
        return e;
    json_object_foreach(json_object_get(m, "files"), name, own) {
        char full[2 * FT_PATH_MAX];
        snprintf(full, sizeof full, "%s/%s", folder, name);
        if (!e && !json_equal(own, json_object_get(files, full)))
            e = err_set(info, ERR_FORMAT, NULL, "says of %.100s what the set's manifest does not",
                        name);
    }
    size_t n = json_object_size(json_object_get(m, "files")), listed = 0, len = strlen(folder);
    json_object_foreach((json_t *)(uintptr_t)files, name, own) listed +=
        !strncmp(name, folder, len) && name[len] == '/';
    if (!e && listed != n + 2) // with manifest and marker
        e = err_set(info, ERR_FORMAT, NULL, "the set's manifest lists other files of this folder");
    json_decref(m);
    return e;
}

static enum ft_manifest_kind kind_below(const char *folder) {
    return !strcmp(folder, "adapter") ? FT_MANIFEST_ADAPTER : FT_MANIFEST_CHECKPOINT;
}

// What the run's origin says of files by their names.
static void blame_origin(const json_t *m, const char *file, const char *sha,
                         struct ft__flaw *flaw) {
    static const struct {
        const char *file, *key, *what;
    } all[] = {{"data/training.jsonl", "dataset_digest", "the file that the run was trained on"},
               {"data/validation.jsonl", "validation_digest", "the run's validation file"},
               {"chat_template.jinja", "template_digest", "the run's chat template"}};
    *flaw = (struct ft__flaw){.e = ERR_OK};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        const char *is = json_string_value(json_object_get(m, all[i].key));
        if (strcmp(file, all[i].file) != 0 || (is && sha && !strcmp(is, sha)))
            continue;
        flaw->e = ERR_FORMAT;
        snprintf(flaw->file, sizeof flaw->file, "%s", file);
        snprintf(flaw->what, sizeof flaw->what, "it is not %s (%s)", all[i].what, all[i].key);
    }
}

static void check_listed(struct walk *w, const struct folder *f, const json_t *m, const char *file,
                         const json_t *entry) {
    const json_t *files = json_object_get(m, "files");
    struct ft__flaw flaw;
    struct err_info why = {0};
    char folder[FT_PATH_MAX];
    blame_origin(m, file, json_string_value(json_object_get(entry, "sha256")), &flaw);
    if (!own_manifest(files, file, folder)) {
        check_file(w, f, m, file, &flaw);
        return;
    }
    if (strcmp(strrchr(file, '/') + 1, MANIFEST) != 0)
        return; // that folder's manifest has its line
    enum err e = ft_manifest_check(f->dir, m, file, &why);
    if (!e)
        e = compare_lists(f, folder, files, &why);
    if (e)
        line_of(w, f, file, e, &why);
    else
        check_below(w, f, folder, kind_below(folder));
}

static void check_set(struct walk *w, const struct folder *f) {
    const char *file;
    json_t *entry, *m = open_manifest(w, f, FT_MANIFEST_EXPORT);
    if (!m)
        return;
    json_object_foreach(json_object_get(m, "files"), file, entry)
        check_listed(w, f, m, file, entry);
    tell_unlisted(w, f, m);
    json_decref(m);
}

// ---- the folder of a run

static void check_tokens(struct walk *w, const struct folder *f, const char *name,
                         const json_t *run) {
    const char *key = !strcmp(name, "training.tokens") ? "dataset_digest" : "validation_digest";
    const char *is = json_string_value(json_object_get(run, key));
    char path[FT__PATH], digest[FT_SHA256_HEX];
    struct err_info why = {0};
    snprintf(path, sizeof path, "%s/%s", f->path, name);
    enum err e = ft__inspect_tokens(path, digest, &why);
    if (!e && run && (!is || strcmp(is, digest) != 0))
        e = err_set(&why, ERR_FORMAT, NULL, "it was made from another file than the run's (%s)",
                    key);
    line_of(w, f, name, e, &why);
}

static void check_plain(struct walk *w, const struct folder *f, const char *name,
                        const json_t *run) {
    char hex[FT_SHA256_HEX];
    uint64_t bytes;
    struct ft__flaw flaw = {.e = ERR_OK};
    struct err_info why = {0};
    size_t n = strlen(name);
    if (n > 7 && !strcmp(name + n - 7, ".tokens")) {
        check_tokens(w, f, name, run);
        return;
    }
    enum err e = ft_file_hash(f->dir, name, hex, &bytes, &why);
    if (!e && run)
        blame_origin(run, name, hex, &flaw);
    if (e || flaw.e) {
        line(w, f, name, e ? e : flaw.e, e ? why.message : flaw.what);
        return;
    }
    bool known = !strcmp(name, "chat_template.jinja");
    line(w, f, name, ERR_OK, known ? "" : "no digest to compare with");
}

static json_t *read_run(struct walk *w, const struct folder *f) {
    json_t *run;
    struct err_info why = {0};
    enum err e = ft_file_json(f->dir, "run.json", RUN_JSON_BYTES, &run, &why);
    if (!e)
        e = ft_manifest_check_origin(run, "run.json", &why);
    if (!e && w->v->base)
        e = ft__compare_base(run, w->v->base, &why);
    line_of(w, f, "run.json", e, &why);
    return run;
}

static void check_checkpoints(struct walk *w, const struct folder *f) {
    char path[FT__PATH], prefix[FT_PATH_MAX + 2];
    struct folder sub;
    struct ft_names names = {0};
    struct err_info why;
    if (!open_below(w, f, "checkpoints", path, prefix, &sub))
        return;
    enum err e = ft_names_read(sub.dir, "", true, &names, &why);
    if (e)
        line(w, &sub, ".", e, why.message);
    for (size_t i = 0; i < names.n && !e; i++)
        check_below(w, &sub, names.items[i], FT_MANIFEST_CHECKPOINT);
    ft_names_fini(&names);
    close(sub.dir);
}

static void check_folder_of_run(struct walk *w, const struct folder *f, const char *name) {
    if (!strcmp(name, "adapter"))
        check_below(w, f, name, FT_MANIFEST_ADAPTER);
    else if (!strcmp(name, "checkpoints"))
        check_checkpoints(w, f);
    else
        line(w, f, name, ERR_OK, "a folder that is not of the run");
}

static void check_run(struct walk *w, const struct folder *f) {
    struct ft_names files = {0}, folders = {0};
    struct err_info why;
    json_t *run = read_run(w, f);
    enum err e = ft_names_read(f->dir, "", false, &files, &why);
    if (!e)
        e = ft_names_read(f->dir, "", true, &folders, &why);
    if (e)
        line(w, f, ".", e, why.message);
    for (size_t i = 0; i < files.n && !e; i++)
        if (strcmp(files.items[i], "run.json") != 0)
            check_plain(w, f, files.items[i], run);
    for (size_t i = 0; i < folders.n && !e; i++)
        check_folder_of_run(w, f, folders.items[i]);
    ft_names_fini(&files);
    ft_names_fini(&folders);
    json_decref(run);
}

// ---- an adapter as others write it

static void check_bare(struct walk *w, const struct folder *f) {
    static const char *const files[] = {"adapter_config.json", "adapter_model.safetensors"};
    struct ft__flaw flaw;
    inspect(w, f, FT_MANIFEST_ADAPTER, &flaw);
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        bool bad = flaw.e && !strcmp(flaw.file, files[i]);
        line(w, f, files[i], bad ? flaw.e : ERR_OK, bad ? flaw.what : "no digest to compare with");
    }
}

// ---- entry

static bool has(const struct folder *f, const char *name) {
    return !faccessat(f->dir, name, F_OK, AT_SYMLINK_NOFOLLOW);
}

// A set's, an adapter's or a checkpoint's folder is told by what else is in it, so that a manifest
// that is damaged or gone is missed.
static enum err check_any(struct walk *w, const struct folder *f, struct err_info *info) {
    bool adapter = has(f, "adapter_config.json") || has(f, "adapter_model.safetensors");
    bool state = has(f, "trainer_state.json") || has(f, "optimizer.safetensors");
    bool manifest = has(f, MANIFEST) || has(f, "COMPLETE");
    if (state) {
        w->r->kind = "checkpoint";
        check_folder(w, f, FT_MANIFEST_CHECKPOINT);
    } else if (adapter && manifest) {
        w->r->kind = "adapter";
        check_folder(w, f, FT_MANIFEST_ADAPTER);
    } else if (adapter) {
        w->r->kind = "adapter";
        check_bare(w, f);
    } else if (manifest) {
        w->r->kind = "exported set";
        check_set(w, f);
    } else if (has(f, "data")) { // no run's folder has it
        w->r->kind = "exported set";
        line(w, f, MANIFEST, ERR_FORMAT,
             "the set was not completed (no manifest.json, no COMPLETE)");
    } else if (has(f, "run.json")) {
        w->r->kind = "run";
        check_run(w, f);
    } else {
        return err_set(info, ERR_INVALID, NULL,
                       "%.200s is no exported set, no run's folder, no checkpoint and no adapter: "
                       "it has neither manifest.json nor run.json nor adapter_config.json",
                       f->path);
    }
    return w->rc ? err_set(info, w->rc, NULL, "%s", err_text(w->rc)) : ERR_OK;
}

enum err ft_verify(const char *path, const struct ft_verify *v, struct ft_verify_result *out,
                   struct err_info *info) {
    *out = (struct ft_verify_result){.kind = "folder"};
    struct walk w = {.v = v, .r = out};
    if (strlen(path) > FT__PATH / 2)
        return err_set(info, ERR_INVALID, NULL, "the folder's name is too long");
    struct folder f = {open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC), path, ""};
    if (f.dir < 0)
        return durable_errno(info, errno, "open", path);
    enum err e = check_any(&w, &f, info);
    close(f.dir);
    return e;
}

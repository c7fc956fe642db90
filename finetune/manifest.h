// SPDX-License-Identifier: Apache-2.0
// manifest.json: where a folder's files come from, with the SHA-256 and the size of each; and
// COMPLETE, which holds the SHA-256 of the manifest and is written last. A checkpoint, a finished
// adapter and an exported set have one each. Reading believes nothing: lengths, names and numbers
// are bounded. Any thread; blocks on files.
#pragma once
#include "base/err.h"
#include "base/json_write.h"
#include "finetune/folder_files.h"
#include "finetune/trainer.h"
#include <jansson.h>

// X(name, text)
// Written last, and dropped first: a folder that has it is whole.
#define FT_COMPLETE_FILE "COMPLETE"

#define FT_MANIFEST_KINDS(X)                                                                       \
    X(CHECKPOINT, "checkpoint")                                                                    \
    X(ADAPTER, "adapter")                                                                          \
    X(EXPORT, "export")
enum ft_manifest_kind {
#define X(name, text) FT_MANIFEST_##name,
    FT_MANIFEST_KINDS(X)
#undef X
        FT_MANIFEST_KIND_COUNT
};

enum {
    FT_MANIFEST_BYTES = 16 << 20,
    FT_MANIFEST_FILES = 1 << 16,
};

// Where it comes from. Strings may be NULL: null in the file.
struct ft_manifest {
    const char *run_id, *base_model, *base_digest, *tokenizer_digest, *template_digest;
    const char *dataset_digest, *validation_digest;
    const char *code_version, *kernel_set, *method, *precision, *parent, *retention_class;
    // JSON: an object, which on resume must be the same; a list of {from_step, kernel_set}
    const char *hyperparameters, *kernel_sets;
    const char *metrics; // JSON, where ft_manifest_write gets no state
    uint64_t seed;
    bool no_seed;       // null in the file
    int64_t created_at; // Unix seconds
    struct pace *pace;  // of the thread that writes it; NULL: none
};

// Writes manifest.json of `files` (paths below `dir`, each there and synced), then COMPLETE, each
// synced with the folder. s: the run's numbers; NULL: null in the file.
enum err ft_manifest_write(int dir, enum ft_manifest_kind kind, const struct ft_manifest *m,
                           const struct ft_state *s, const char *const *files, size_t n,
                           struct err_info *info);

// The fields of struct ft_manifest, into an object; run.json of a run's folder has them too.
void ft_manifest_origin(struct json_w *w, const struct ft_manifest *m);
// Those fields of an object from outside: texts are texts without NUL, and short. `file` is for the
// error.
enum err ft_manifest_check_origin(const json_t *o, const char *file, struct err_info *info);

// The other way: what an object that was checked says of where something comes from. Texts point
// into it. Ended by drop, also after an error (ERR_NOMEM).
struct ft_manifest_json {
    char *hyperparameters, *kernel_sets, *metrics;
};
enum err ft_manifest_take(const json_t *o, struct ft_manifest *out, struct ft_manifest_json *own,
                          struct err_info *info);
void ft_manifest_drop(struct ft_manifest_json *own);

// The manifest, compared with COMPLETE and checked: its kind, and the name, size and digest of each
// file. *out is the caller's. ERR_FORMAT: what is wrong; ERR_NOT_FOUND: the folder has no
// manifest.json.
enum err ft_manifest_read(int dir, json_t **out, struct err_info *info);
enum err ft_manifest_parse(const char *text, size_t len, json_t **out, struct err_info *info);
enum ft_manifest_kind ft_manifest_kind_of(const json_t *m);
// Compares a file with what the manifest says of it. ERR_NOT_FOUND: it is not listed, or not there.
enum err ft_manifest_check(int dir, const json_t *m, const char *file, struct err_info *info);
enum err ft_manifest_check_paced(int dir, const json_t *m, const char *file, struct pace *pace,
                                 struct err_info *info);

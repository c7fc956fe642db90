// SPDX-License-Identifier: Apache-2.0
// Internal to the model source: what both formats fill in.
#pragma once
#include "base/arena.h"
#include "model/file.h"
#include "model/gguf.h"
#include "model/source.h"

enum {
    MDL__MAX_SHARDS = 512,
    MDL__MAX_TEMPLATE = 1 << 20,
    MDL__MAX_SMALL_JSON = 1 << 20,     // config.json, generation_config.json
    MDL__MAX_TOKENIZER_JSON = 1 << 28, // tokenizer.json
    MDL__MAX_TOKENIZER_CONFIG = 1 << 24,
    MDL__MAX_INDEX = 1 << 24,
};

struct mdl_source {
    struct arena arena; // tensor names, the default name
    struct mdl_file *files;
    size_t n_files;
    struct mdl_tensor *tensors; // sorted by name
    size_t n_tensors;
    size_t bytes;
    struct mdl_config config;
    bool rope_permuted;
    const char *name;
    const char *chat_template; // NULL: none
    size_t chat_template_len;
    enum err (*make_tokenizer)(const struct mdl_source *s, struct tokenizer **out,
                               struct err_info *info);
    // GGUF
    uint8_t *header;
    struct gguf gguf;
    // Hugging Face
    int tokenizer_file;     // index in files, -1: no tokenizer.json
    char *tokenizer_config; // text or NULL
    size_t tokenizer_config_len;
    char *template_text; // owner of chat_template where that is no view
};

// Both fill an all-zero source; on failure mdl_source_close frees what is there.
// For GGUF files[0] is open. For a folder dirfd is open and stays the caller's.
enum err mdl__open_gguf(struct mdl_source *s, struct err_info *info);
enum err mdl__open_folder(struct mdl_source *s, int dirfd, const char *path, struct err_info *info);

// The Hugging Face name of a GGUF tensor of a llama model, written to out. False: there is none.
bool mdl__hf_name(struct tok_str gguf_name, char out[96]);

// Sorts the tensors and sums their bytes; a name that is there twice is refused.
enum err mdl__finish_tensors(struct mdl_source *s, struct err_info *info);
// Valid UTF-8 of at most MDL__MAX_TEMPLATE bytes becomes the chat template.
enum err mdl__set_template(struct mdl_source *s, const char *text, size_t len,
                           struct err_info *info);

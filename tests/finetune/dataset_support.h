// SPDX-License-Identifier: Apache-2.0
// What the tests of training data share: a folder for files, a small tokenizer and a template.
#pragma once
#include "finetune/dataset.h"
#include "tests/support/temp_folder.h"
#include <jansson.h>

struct ds {
    char folder[TEMP_PATH];
    struct tokenizer *tokenizer;
    struct chat_template *chat_template;
    struct ft_dataset_opts opts;
    struct ft_dataset_report report;
    struct err_info info;
};
extern const char ds_chatml[]; // ends each turn with <|im_end|> and a newline

// The tokenizer tests/golden/tokenizer/NAME.json. Template text may be NULL.
void ds_open(struct ds *d, const char *tokenizer, const char *bos, const char *eos,
             const char *template_text);
void ds_open_chatml(struct ds *d);
void ds_close(struct ds *d); // removes the folder and what is in it

const char *ds_path(const struct ds *d, const char *name); // valid until the third next call
void ds_write(const struct ds *d, const char *name, const void *p, size_t n);
// Writes text to "data.jsonl" and builds it into "cache".
enum err ds_build(struct ds *d, const void *text, size_t n);
enum err ds_build_text(struct ds *d, const char *text);
struct ft_dataset *ds_load(struct ds *d, const char *name);
json_t *ds_json(const char *path);
// Ids and mask equal to a golden case's; fails the test, naming it, if not.
void ds_check_seq(const char *name, size_t i, int32_t n, const int32_t *ids, const uint8_t *mask,
                  const json_t *want);

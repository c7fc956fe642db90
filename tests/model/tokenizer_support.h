// SPDX-License-Identifier: Apache-2.0
// Golden files of the tokenizer tests. A file that cannot be read fails the running test.
#pragma once
#include "model/tokenizer.h"
#include <stddef.h>

struct golden_texts {
    char **text;
    size_t *len;
    size_t n;
};
struct golden_texts *golden_texts_load(void);
void golden_texts_free(struct golden_texts *g);

struct golden_rows { // the lines of tests/golden/tokenizer/<name>.<kind>
    char **row;
    size_t n;
    char *file;
};
struct golden_rows *golden_rows_load(const char *name, const char *kind);
void golden_rows_free(struct golden_rows *r);

char *golden_file(const char *name, size_t *len);          // free() it; NUL-terminated
struct tokenizer *golden_tokenizer(const char *name);      // from <name>.json
void golden_hash(const struct tok_ids *ids, char hash[8]); // as make_golden.py's hash_ids
// Encodes each of the texts and compares with tests/golden/tokenizer/<name>.expect and .ids.
void golden_check(const struct tokenizer *t, const char *name);

// SPDX-License-Identifier: Apache-2.0
// Inside verification: verify.c goes through the folders, verify_content.c looks into their files.
#pragma once
#include "finetune/manifest.h"
#include "finetune/verify.h"

enum { FT__FLAW_FILE = 64, FT__PATH = 4096 };

// What is wrong inside a folder whose digests may well be right.
struct ft__flaw {
    enum err e; // ERR_OK: nothing
    char file[FT__FLAW_FILE];
    char what[400];
};

// An adapter's folder, and a checkpoint's. base: NULL where the shapes have to fit one another
// only.
void ft__inspect_adapter(const char *path, const struct mdl_config *base, struct ft__flaw *out);
void ft__inspect_checkpoint(const char *path, const struct mdl_config *base, struct ft__flaw *out);
// A cache of tokens: every checksum. *digest: of the file that it was made from.
enum err ft__inspect_tokens(const char *path, char digest[FT_SHA256_HEX], struct err_info *info);
// Whether manifest or run.json `m` belongs to the model.
enum err ft__compare_base(const json_t *m, const struct ft_verify_base *base,
                          struct err_info *info);

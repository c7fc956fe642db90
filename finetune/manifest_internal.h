// SPDX-License-Identifier: Apache-2.0
// Inside manifests: manifest.c is their content, folder_files.c the files below a folder.
#pragma once
#include "base/buf.h"
#include "base/json_write.h"
#include "finetune/manifest.h"

#define FT__MANIFEST "manifest.json"
#define FT__COMPLETE "COMPLETE"

void ft__manifest_origin(struct json_w *w, const struct ft_manifest *m);
// Appends the whole file to `out`, whose limit holds.
enum err ft__file_text(int dir, const char *path, struct buf *out, struct err_info *info);
// A JSON object; `name` is for the error.
enum err ft__json_parse(const char *text, size_t len, const char *name, json_t **out,
                        struct err_info *info);

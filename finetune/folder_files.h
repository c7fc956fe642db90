// SPDX-License-Identifier: Apache-2.0
// Plain files below a folder: names that stay inside it, hashing, copying, reading. No part of a
// path may be a link. Any thread; blocks on files.
#pragma once
#include "base/buf.h"
#include "base/err.h"
#include "base/hash.h"
#include "base/pace.h"
#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    FT_PATH_MAX = 512, // bytes of a path below a folder, with the NUL
    FT_SHA256_HEX = 2 * SHA256_BYTES + 1,
    FT_NAMES_MAX = 1 << 16,
};

// A relative path of plain names: no "..", no name that begins with a dot, no control characters.
bool ft_path_ok(const char *path);
// Opens a plain file below `dir`; no part of the path may be a link.
enum err ft_file_open_below(int dir, const char *path, int *fd, struct err_info *info);
enum err ft_file_hash(int dir, const char *path, char hex[FT_SHA256_HEX], uint64_t *bytes,
                      struct err_info *info);
enum err ft_file_hash_paced(int dir, const char *path, struct pace *pace, char hex[FT_SHA256_HEX],
                            uint64_t *bytes, struct err_info *info);
// A copy, durable once the function returns. name: plain.
enum err ft_file_copy(int from, const char *path, int to, const char *name, struct err_info *info);
enum err ft_file_text(int dir, const char *path, struct buf *out, struct err_info *info); // appends
// A JSON object of at most `most` bytes.
enum err ft_file_json(int dir, const char *path, size_t most, json_t **out, struct err_info *info);
enum err ft_json_object(const char *text, size_t len, const char *name, json_t **out,
                        struct err_info *info);

// Names, sorted.
struct ft_names {
    char **items;
    size_t n, cap;
};
// Adds the names in a folder, each behind `prefix`: its plain files, or its folders; none that
// begins with a dot. ERR_LIMIT: too many, or too long.
enum err ft_names_read(int dir, const char *prefix, bool folders, struct ft_names *out,
                       struct err_info *info);
void ft_names_fini(struct ft_names *n); // also of zeros

// SPDX-License-Identifier: Apache-2.0
// Inside checkpoints: checkpoint.c writes and reads folders, checkpoint_verify.c checks, chooses
// and removes them, checkpoint_optimizer.c is the file of moments, checkpoint_copy.c copies
// folders.
#pragma once
#include "base/json_write.h"
#include "finetune/checkpoint.h"
#include <jansson.h>

enum { FT__FILES = 4 };
extern const char *const ft__files[FT__FILES]; // those that the manifest lists

// Marker, manifest and digests; *manifest (may be NULL) is to be freed.
enum err ft__verify(int dir, json_t **manifest, struct err_info *info);
void ft__state_fields(struct json_w *w, const struct ft_state *s);

enum err ft__write_moments(int dir, const struct mdl_config *c, const struct ft_moments *x,
                           struct err_info *info);
// Into adapters of the right shape.
enum err ft__read_moments(int dir, const struct mdl_config *c, const struct ft_moments *x,
                          struct err_info *info);

enum err ft__open_folder(int parent, const char *path, int *fd, struct err_info *info);
enum err ft__remove_folder(int parent, const char *name, struct err_info *info);
// Renames a folder that is whole; an older whole one of that name stays, a broken one makes room.
enum err ft__publish(int parent, const char *aside, const char *name, struct err_info *info);

// SPDX-License-Identifier: Apache-2.0
// Checkpoints: folders step-<n> that are whole or not there.
//
//   adapter_model.safetensors, adapter_config.json   the adapter, as PEFT and serving read it
//   optimizer.safetensors                            AdamW's moments
//   trainer_state.json                               where the run stands
//   manifest.json                                    what it comes from; SHA-256 of each file above
//   COMPLETE                                         last; SHA-256 of the manifest
//
// Written aside under a name that begins with a dot, each file and the folder synced, then renamed,
// and the parent synced. Whatever a crash leaves is either not named step-<n>, or whole. Reading
// believes nothing: every digest is checked before anything is used. Trainer's thread; blocks on
// files.
#pragma once
#include "finetune/manifest.h"
#include "model/adapter.h"

enum { FT_CHECKPOINT_NAME = 40 };

struct ft_moments { // of one checkpoint: matrices, m and v
    struct mdl_adapter *w, *m, *v;
};
void ft_moments_fini(struct ft_moments *x);

// Writes step-<state->step> into the folder `dir` (a path; must be there). An older whole
// checkpoint of that step stays. ERR_DISK_FULL, ERR_IO; ERR_NONFINITE where a matrix has such a
// value.
enum err ft_checkpoint_write(const char *dir, const struct mdl_config *c, const struct ft_state *s,
                             const struct ft_moments *x, const struct ft_manifest *m,
                             char name[FT_CHECKPOINT_NAME], struct err_info *info);

// Checks the folder `path`: marker, manifest, digest of each file. ERR_FORMAT says what is wrong.
enum err ft_checkpoint_verify(const char *path, struct err_info *info);

// The newest step-<n> of `dir` that is whole and was made by the same run: base, dataset, template
// and hyperparameters as in `m` (NULL: any). Others are skipped, each told of. ERR_NOT_FOUND: none.
struct ft_skip {
    void (*tell)(void *arg, const char *name, const char *why);
    void *arg;
};
enum err ft_checkpoint_newest(const char *dir, const struct ft_manifest *m,
                              const struct ft_skip *skip, char name[FT_CHECKPOINT_NAME],
                              struct err_info *info);

// Reads the checkpoint at `path`, which is verified first. *x has new adapters, freed by fini.
enum err ft_checkpoint_read(const char *path, const struct mdl_config *c, struct ft_state *s,
                            struct ft_moments *x, struct err_info *info);
// The manifest of the checkpoint at `path`, compared with its marker. *out is the caller's.
enum err ft_checkpoint_manifest(const char *path, json_t **out, struct err_info *info);

// Copies a folder with a manifest and all that it lists: a checkpoint, or a finished adapter. It is
// whole, or not there; what was copied is compared with the manifest. `from` and `to` are open
// folders. ERR_NOT_FOUND: there is none of that name (any more); ERR_FORMAT: it is not whole.
enum err ft_checkpoint_copy(int from, int to, const char *name, struct err_info *info);

// Removes all but the newest `keep` checkpoints (0: keeps all) and what crashes have left aside.
enum err ft_checkpoint_prune(const char *dir, int64_t keep, struct err_info *info);

// SPDX-License-Identifier: Apache-2.0
// The manifest of a version in the data folder: what its adapter comes from, as the folder that it
// was loaded from says (a job's, a checkpoint, an exported one), and the SHA-256 of the copy's own
// files; `graft verify` checks it. An adapter that brings no manifest of its own, or one that its
// files do not match, has the base that it is served on, and null for what is not known. Any thread
// that may block on files.
#pragma once
#include "gateway/app.h"

struct adapter_manifest {
    const struct app *app;
    const struct log *log;
};
// Of struct adapter_host (seal); arg: the above. `dir`: the copy, its files written and synced.
enum err adapter_manifest_write(void *arg, int dir, const char *source, struct pace *pace,
                                struct err_info *info);

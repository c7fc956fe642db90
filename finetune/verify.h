// SPDX-License-Identifier: Apache-2.0
// Checks a folder that a run or an export has left: an exported set, a checkpoint, an adapter, or
// the whole folder of a run. Every digest and size of its manifests, the markers, the structure of
// adapters and moments, finite values, shapes that fit together, the caches' own checksums; on
// request whether a model is the one that they belong to. Changes nothing. Any thread; blocks on
// files.
#pragma once
#include "base/err.h"
#include "model/config.h"
#include <stdint.h>

struct ft_verify_base { // the model to compare with; digests in hex, "" where there is none
    const struct mdl_config *config;
    const char *base_digest, *tokenizer_digest, *template_digest;
};

struct ft_verify {
    // Once for each file: what is wrong, or a remark ("" if there is none).
    void (*tell)(void *arg, const char *file, enum err e, const char *what);
    void *arg;
    const struct ft_verify_base *base; // NULL: not compared
};

struct ft_verify_result {
    const char *kind; // "exported set", "checkpoint", "adapter", "run"; static
    int64_t files, wrong;
};

// ERR_OK also where files are wrong. ERR_NOT_FOUND, ERR_INVALID: there is no such folder, or it is
// none of these; ERR_NOMEM.
enum err ft_verify(const char *path, const struct ft_verify *v, struct ft_verify_result *out,
                   struct err_info *info);

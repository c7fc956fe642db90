// SPDX-License-Identifier: Apache-2.0
// The probe set: the first lines of the validation file, or of the training file where there is
// none, whose losses are computed twice before an adapter is published: by the trainer
// (evaluate.h), from the tokens it trained on, and by serving, from the uploaded file, which is
// rendered and tokenised anew for that. A sequence that is longer than serving takes is cut; one
// that has no target then is left out.
//
// At most FT_PROBE_SAMPLES samples and FT_PROBE_TOKENS tokens, but one sample whatever its length.
// Control and trainer's thread; blocks on files.
#pragma once
#include "finetune/dataset.h"

enum { FT_PROBE_SAMPLES = 32, FT_PROBE_TOKENS = 4096 };

struct ft_probe_seq {
    int64_t line;         // of the file, from 1
    int32_t n, n_targets; // tokens; those of the mask
    int32_t *ids;
    uint8_t *mask;
    float *losses; // [n_targets], in order
};

struct ft_probe {
    struct ft_probe_seq *seqs; // in the file's order; a preference sample has two
    size_t n, cap;
    int64_t last_line; // of the file that was looked at
    double loss;       // f64 sum of all losses, in order
};
void ft_probe_fini(struct ft_probe *p); // also of zeros

// From the trainer's cache; losses are zeros. max_tokens: the most that serving takes.
enum err ft_probe_take(struct ft_dataset *d, int32_t max_tokens, struct ft_probe *out,
                       struct err_info *info);
// The same lines from the uploaded file. ERR_FORMAT: a line is no longer what it was, and `info`
// says which.
enum err ft_probe_again(const struct ft_probe *p, const char *path,
                        const struct ft_dataset_opts *opts, int32_t max_tokens,
                        struct ft_probe *out, struct err_info *info);

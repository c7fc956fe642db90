// SPDX-License-Identifier: Apache-2.0
// Loss and token accuracy of a data file, by serving's operations on the resident weights: no
// dropout, every sequence for itself. Several sequences share a row where they fit, which changes
// no bit (law of batch invariance), and the sum is taken in the file's order. A file of preferences
// has DPO's loss instead, of each pair. Trainer's thread; blocks.
#pragma once
#include "finetune/dataset.h"
#include "finetune/executor.h"
#include <stdatomic.h>

struct ft_evaluation {
    double loss;     // f64 sum of the losses of all targets (DPO: pairs), in the file's order
    int64_t targets; // mean loss: loss / targets
    int64_t hits; // targets that were the greedy choice; pairs whose preferred answer gained more
};

struct ft_evaluate_config {
    struct ft_exec *exec;
    struct ft_dataset *data;
    int32_t row_tokens, row_seqs; // the executor's limits
    bool base;                    // without the adapter
    double beta_dpo;              // of a file of preferences; 0: the answers' tokens instead
    int64_t max_samples;          // 0: all
    _Atomic bool *stop;           // may be NULL
    // Called for each sequence, in the file's order, with the losses of its targets; may be NULL.
    void (*each)(void *arg, const float *losses, int64_t n);
    void *arg;
};
// ERR_CANCELLED once *stop is set; ERR_NONFINITE names the line.
enum err ft_evaluate(const struct ft_evaluate_config *cfg, struct ft_evaluation *out,
                     struct err_info *info);

// -log sigmoid(z) (DPO; Rafailov et al., 2023), where z is beta times what the preferred answer's
// log-ratio to the base has more than the other's.
double ft_dpo_loss(double z);

// The same of a probe set (probe.h), whose losses are filled in; `data` and `max_samples` are not
// looked at.
struct ft_probe;
enum err ft_evaluate_probe(const struct ft_evaluate_config *cfg, struct ft_probe *p,
                           struct err_info *info);

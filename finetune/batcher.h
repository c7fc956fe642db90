// SPDX-License-Identifier: Apache-2.0
// The plan of a training run: which samples each optimizer step takes, and how they share rows. It
// is a function of the samples' lengths, the configuration and the seed, and of nothing else, and
// any step can be asked for at any time: resuming, and several members, need no other state. The
// rules are numbered in finetune/README.md. Used by one thread.
//
// An epoch is a permutation of all samples, computed and not stored. Step s takes the next
// batch_size of them (the epoch's last step what is left). With packing the samples of one step
// share rows of at most row_tokens tokens, first-fit by falling length; without, each has a row.
// Packing thus never changes which samples a step has. In a row each sequence stands for itself:
// positions restart and no sequence sees another.
//
// Memory: of one step, whatever the number of samples.
#pragma once
#include "base/err.h"
#include "finetune/dataset.h"
#include <stdbool.h>
#include <stdint.h>

enum { FT_MAX_BATCH = 4096, FT_MAX_EPOCHS = 1 << 20 };

struct ft_lengths { // of samples 0 .. n - 1; they must not change while a plan uses them
    int64_t n;
    int32_t (*tokens)(const void *arg, int64_t i);
    int32_t (*supervised)(const void *arg, int64_t i);
    const void *arg;
};
struct ft_lengths ft_dataset_lengths(const struct ft_dataset *d);

struct ft_plan_config {
    struct ft_lengths data;
    int32_t epochs;      // 1 .. FT_MAX_EPOCHS
    int32_t batch_size;  // samples of a step, 1 .. FT_MAX_BATCH
    int32_t row_tokens;  // most tokens of a row; no sample may have more (a preference sample
                         // counts both its sequences)
    int32_t row_samples; // most samples of a row; 0: no limit
    bool packing;
    bool shuffle; // false: in the file's order (validation)
    uint64_t seed;
};

struct ft_plan;
enum err ft_plan_create(const struct ft_plan_config *cfg, struct ft_plan **out,
                        struct err_info *info);
void ft_plan_destroy(struct ft_plan *p);
int64_t ft_plan_epoch_steps(const struct ft_plan *p);
int64_t ft_plan_steps(const struct ft_plan *p); // of all epochs
// The sample at place i of an epoch's order; 0 <= i < n.
int64_t ft_plan_sample(const struct ft_plan *p, int32_t epoch, int64_t i);

struct ft_plan_step {
    int64_t step;  // from 0, over all epochs
    int32_t epoch; // from 0
    int32_t n_samples, n_rows;
    const int64_t *samples;     // [n_samples], row by row
    const int32_t *row_start;   // [n_rows + 1]: row j has samples[row_start[j] .. row_start[j + 1])
    int64_t tokens, supervised; // of all samples: what the step's loss is divided by
};
// *out points into the plan and is valid until the next call. ERR_INVALID: no such step.
enum err ft_plan_at(struct ft_plan *p, int64_t step, struct ft_plan_step *out,
                    struct err_info *info);

// A row's tokens, as a ragged batch.
struct ft_row {
    int32_t n_tokens, n_seqs;
    int32_t *ids;       // [n_tokens]
    uint8_t *mask;      // [n_tokens]: a target
    uint64_t *keys;     // [n_tokens]: of (seed, epoch, sample, token), for dropout
    int32_t *seq_start; // [n_seqs + 1]
    int64_t *sample;    // [n_seqs]; a preference sample is two sequences, the preferred one first
    int64_t targets;
    // Private.
    struct ft_sample one;
    int32_t cap_tokens, cap_seqs;
};
// Reads row j of a step. *row starts as zeros, keeps its memory from call to call, and is freed by
// fini.
enum err ft_row_read(struct ft_dataset *d, const struct ft_plan_step *s, int32_t j, uint64_t seed,
                     struct ft_row *row, struct err_info *info);
void ft_row_fini(struct ft_row *row);

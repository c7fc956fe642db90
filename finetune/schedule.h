// SPDX-License-Identifier: Apache-2.0
// The learning rate of each step: a linear warm-up, then constant, linear or cosine. Step 1 has
// lr / warm-up steps, never zero, and the last step of the run is the last that changes anything.
// Thread-safe: no state.
#pragma once
#include "base/err.h"
#include <stdint.h>

enum ft_schedule_kind { FT_SCHEDULE_CONSTANT, FT_SCHEDULE_LINEAR, FT_SCHEDULE_COSINE };

struct ft_schedule {
    enum ft_schedule_kind kind;
    double lr;      // at the end of the warm-up
    int64_t warmup; // steps, 0: none
    int64_t steps;  // of the run
};

const char *ft_schedule_name(enum ft_schedule_kind k); // "cosine"
enum err ft_schedule_parse(const char *name, enum ft_schedule_kind *out);
// warmup_ratio of all steps, rounded up.
int64_t ft_schedule_warmup(double warmup_ratio, int64_t steps);
// Rate of step t, 1 <= t <= steps: lr * t / warmup while t <= warmup; then with x = (t - 1 -
// warmup) / (steps - warmup), in [0, 1): lr, lr (1 - x), or lr (1 + cos(pi x)) / 2. The cosine is
// ours, not libm's, so that a job has the same bits everywhere.
double ft_schedule_lr(const struct ft_schedule *s, int64_t t);

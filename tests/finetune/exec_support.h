// SPDX-License-Identifier: Apache-2.0
// Steps of an executor over the golden rows, and their results in bits.
#pragma once
#include "finetune/executor.h"
#include "tests/finetune/train_fixture.h"

enum { EXPONENT = 40, ALL_TARGETS = (1 << MDL_TARGETS) - 1 };

struct ft_exec_config exec_config(const struct fx *x, bool keep);

struct walk {
    struct ft_exec *x;
    const struct tf_golden *g;
    int32_t first;  // row
    bool backwards; // rows in the other order
};

// One step over the rows; returns its targets.
int64_t exec_step(const struct walk *w, int32_t step, double *loss, double *norm);

// The end of a step whose rows had so many targets.
void exec_commit(const struct walk *w, int32_t step, int64_t targets, double *norm);

// Results of one way to run, to be compared.
struct outcome {
    float *w, *m, *v;
    size_t n;
    double loss[3], norm[3];
};

void exec_take(struct ft_exec *x, const struct mdl_config *c, struct outcome *o);
// From the golden start.
void exec_three_steps(const struct walk *w, const struct mdl_config *c, struct outcome *o);
void exec_assert_same(const struct outcome *a, const struct outcome *b);
void exec_drop(struct outcome *o);

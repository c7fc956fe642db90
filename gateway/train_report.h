// SPDX-License-Identifier: Apache-2.0
// What a person sees of a run: a progress bar on a terminal or plain lines elsewhere, metrics.csv,
// and at the end a plot of the loss in the terminal and as loss.svg. Main thread.
#pragma once
#include "base/buf.h"
#include "base/durable.h"
#include "finetune/trainer.h"

struct train_point {
    int64_t step;
    double loss, valid; // valid: NAN where there is none
};

struct train_report {
    bool terminal;
    bool quiet; // files only
    int folder;
    struct durable csv;
    struct train_point *points;
    size_t n, cap;
    int64_t last_line_ns; // plain lines: not too many
    const struct clock *clock;
};

// The folder's metrics.csv is written anew, or with `from_step` > 0 kept as far as that step.
enum err train_report_open(struct train_report *r, const char *folder, int64_t from_step,
                           const struct clock *clock, struct err_info *info);
void train_report_close(struct train_report *r);
enum err train_report_step(struct train_report *r, const struct ft_progress *p,
                           struct err_info *info);
// The lines so far last. Before a checkpoint is written: a run that goes on from it has them all.
enum err train_report_sync(struct train_report *r, struct err_info *info);
void train_report_clear_line(const struct train_report *r); // before other output
// Plots; nothing with less than two steps.
void train_report_plot(const struct train_report *r, struct buf *out, int columns, int rows);
void train_report_svg(const struct train_report *r, struct buf *out);

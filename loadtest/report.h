// SPDX-License-Identifier: Apache-2.0
// The result of a load test, for people and as JSON.
#pragma once
#include "loadtest/options.h"
#include "loadtest/stats.h"

void lt_report_text(const struct lt_options *o, struct lt_stats *s, struct buf *out);
void lt_report_json(const struct lt_options *o, const char *model, struct lt_stats *s,
                    struct buf *out);

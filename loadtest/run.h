// SPDX-License-Identifier: Apache-2.0
// The load itself: a closed loop of users, or an open loop of Poisson arrivals, on one thread.
#pragma once
#include "loadtest/options.h"
#include "loadtest/stats.h"

// Asks the server for its first model's name. *out is freed with mem_free.
// What to add to a message where nothing answers as it should: "" if the address ends in /v1.
const char *lt_url_hint(const struct lt_options *o);
enum err lt_run_find_model(const struct lt_options *o, char **out, struct err_info *info);
enum err lt_run(const struct lt_options *o, const char *model, struct lt_stats *stats,
                struct err_info *info);

// SPDX-License-Identifier: Apache-2.0
// `graft export JOB`: the complete set of a job, from the data folder of a server that runs or not.
#pragma once
#include "base/options.h"

extern const struct opt_table export_option_table;
int export_main(int argc, char **argv); // argv[0]: "export". Returns the exit status.

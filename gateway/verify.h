// SPDX-License-Identifier: Apache-2.0
// `graft verify DIR`: whether an exported set, a checkpoint, an adapter or a run's folder is whole.
#pragma once
#include "base/options.h"

extern const struct opt_table verify_option_table;
int verify_main(int argc, char **argv); // argv[0]: "verify". Returns the exit status.

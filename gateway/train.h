// SPDX-License-Identifier: Apache-2.0
// `graft train`: the trainer without a server. Main thread; training's device work runs on the
// executor's own.
//
//   options -> model -> data -> [newest checkpoint] -> steps -> adapter, plots -> exit 0
//   SIGINT or SIGTERM: the last committed step becomes a checkpoint, exit 3; a second ends at once
#pragma once

int train_main(int argc, char **argv); // exit status

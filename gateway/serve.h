// SPDX-License-Identifier: Apache-2.0
// `graft serve`: start-up, signals, drain, shutdown. Runs on the main thread.
//
//   options -> listen (probes answer, the API says 503) -> load -> ready
//           -> SIGTERM or /admin/v1/drain -> not ready, no new work, streams finish or
//              --drain-timeout -> exit 0
#pragma once

int serve_main(int argc, char **argv); // exit status

// SPDX-License-Identifier: Apache-2.0
// `graft loadtest`: a load generator for any OpenAI-compatible server.
#pragma once

int loadtest_main(int argc, char **argv); // exit status

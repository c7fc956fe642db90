// SPDX-License-Identifier: Apache-2.0
// Names from files as they may stand in an error or a log line: printable ASCII, cut when long.
// Stateless, thread-safe.
#pragma once
#include <stddef.h>

struct mdl_shown {
    char s[100];
};

// Writes p[0..n) to out->s with every byte outside 0x20..0x7e as '?', and returns out->s.
const char *mdl_shown(struct mdl_shown *out, const char *p, size_t n);

// SPDX-License-Identifier: Apache-2.0
#include "model/shown.h"

const char *mdl_shown(struct mdl_shown *out, const char *p, size_t n) {
    const size_t room = sizeof out->s - 1;
    size_t m = n <= room ? n : room - 3;
    size_t at = 0;
    for (; at < m; at++)
        out->s[at] = p[at] >= 0x20 && p[at] < 0x7f ? p[at] : '?';
    if (m < n)
        for (int i = 0; i < 3; i++)
            out->s[at++] = '.';
    out->s[at] = '\0';
    return out->s;
}

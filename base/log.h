// SPDX-License-Identifier: Apache-2.0
// Log lines to a file descriptor, as text for people or as JSON for machines. One write(2) per
// line, so lines of several threads do not mix. Thread-safe. Prompts and answers never go into a
// log.
#pragma once
#include "base/buf.h"
#include "base/clock.h"
#include <stdbool.h>

enum log_level { LOG_DEBUG, LOG_INFO, LOG_WARN, LOG_ERROR };

struct log {
    int fd; // -1: silent
    enum log_level level;
    bool json;
    const struct clock *clock;
};

void log_init(struct log *l, int fd, enum log_level level, bool json, const struct clock *clock);
bool log_level_parse(const char *s, enum log_level *out); // debug, info, warn, error
// `l` may be NULL: silent.
void log_write(const struct log *l, enum log_level level, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
// A ready-made line without its newline (the access log).
void log_line(const struct log *l, const char *line, size_t len);

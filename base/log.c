// SPDX-License-Identifier: Apache-2.0
#include "base/log.h"
#include "base/json_write.h"
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { MAX_LINE = 16 << 10 };

static const char *const level_names[] = {"debug", "info", "warn", "error"};

void log_init(struct log *l, int fd, enum log_level level, bool json, const struct clock *clock) {
    *l = (struct log){fd, level, json, clock};
}

bool log_level_parse(const char *s, enum log_level *out) {
    for (size_t i = 0; i < sizeof level_names / sizeof *level_names; i++)
        if (!strcmp(s, level_names[i])) {
            *out = (enum log_level)i;
            return true;
        }
    return false;
}

static void write_all(int fd, const char *p, size_t n) {
    while (n) {
        ssize_t done = write(fd, p, n);
        if (done < 0 && errno == EINTR)
            continue;
        if (done <= 0)
            return; // nobody to tell
        p += done;
        n -= (size_t)done;
    }
}

static void timestamp(const struct clock *clock, char out[32]) {
    int64_t ns = clock_wall_ns(clock);
    time_t sec = (time_t)(ns / 1000000000);
    struct tm tm;
    gmtime_r(&sec, &tm);
    size_t n = strftime(out, 32, "%Y-%m-%dT%H:%M:%S", &tm);
    snprintf(out + n, 32 - n, ".%03dZ", (int)(ns / 1000000 % 1000));
}

void log_write(const struct log *l, enum log_level level, const char *fmt, ...) {
    if (!l || l->fd < 0 || level < l->level)
        return;
    char when[32], text[2048];
    timestamp(l->clock, when);
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    struct buf line;
    buf_init(&line, MAX_LINE);
    if (l->json) {
        struct json_w w = json_w_begin(&line);
        jw_obj(&w);
        jw_kstr(&w, "ts", when);
        jw_kstr(&w, "level", level_names[level]);
        jw_kstr(&w, "message", text);
        jw_obj_end(&w);
    } else {
        for (char *c = text; *c; c++) // one message is one line
            if (*c == '\n' || *c == '\r')
                *c = ' ';
        buf_printf(&line, "%s %-5s %s", when, level_names[level], text);
    }
    if (!buf_err(&line))
        log_line(l, line.data, line.len);
    buf_fini(&line);
}

void log_line(const struct log *l, const char *line, size_t len) {
    if (!l || l->fd < 0)
        return;
    struct buf out;
    buf_init(&out, 0);
    buf_append(&out, line, len);
    buf_putc(&out, '\n');
    if (!buf_err(&out))
        write_all(l->fd, out.data, out.len);
    buf_fini(&out);
}

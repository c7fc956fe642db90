// SPDX-License-Identifier: Apache-2.0
// strftime_now: the directives of C's strftime in the C locale with glibc's flags, on the time that
// the render was given, in UTC. Own, since the C library's depends on the process's locale and time
// zone.
#include "model/template/builtins.h"
#include "model/template/ctx.h"
#include "model/template/str.h"
#include <stdio.h>
#include <string.h>
#include <time.h>

static const char *const months[] = {"January",   "February", "March",    "April",
                                     "May",       "June",     "July",     "August",
                                     "September", "October",  "November", "December"};
static const char *const days[] = {"Sunday",   "Monday", "Tuesday", "Wednesday",
                                   "Thursday", "Friday", "Saturday"};

struct piece {
    char flag; // - _ 0 or none
    bool upper, swap;
    int width; // -1: the directive's own
};

// Days of a year that starts on weekday `start` (0: Sunday) make ISO weeks; the week of day `yday`.
static int iso_week(const struct tm *t, int *year) {
    int wday = (t->tm_wday + 6) % 7; // Monday is 0
    *year = t->tm_year + 1900;
    int week = (t->tm_yday - wday + 10) / 7;
    if (week < 1) {
        (*year)--;
        int y = *year, p = (y + y / 4 - y / 100 + y / 400) % 7, q = y - 1;
        int before = (q + q / 4 - q / 100 + q / 400) % 7;
        return p == 4 || before == 3 ? 53 : 52;
    }
    int y = *year, p = (y + y / 4 - y / 100 + y / 400) % 7, q = y - 1;
    int before = (q + q / 4 - q / 100 + q / 400) % 7;
    if (week == 53 && p != 4 && before != 3) {
        (*year)++;
        return 1;
    }
    return week;
}

static int number_text(char *to, size_t room, const struct piece *p, long v, int width, char pad) {
    if (p->flag == '-')
        width = 0;
    else if (p->width >= 0)
        width = p->width;
    if (p->flag == '_')
        pad = ' ';
    else if (p->flag == '0')
        pad = '0';
    return pad == '0' ? snprintf(to, room, "%0*ld", width, v)
                      : snprintf(to, room, "%*ld", width, v);
}

static int text_of(char *to, size_t room, const struct piece *p, const char *s, int len) {
    int n = snprintf(to, room, "%*.*s", p->width > 0 ? p->width : 0, len, s);
    for (int i = 0; i < n && (p->upper || p->swap); i++) {
        if (to[i] >= 'a' && to[i] <= 'z')
            to[i] = (char)(to[i] - 32);
    }
    return n;
}

static int hour12(const struct tm *t) {
    return t->tm_hour % 12 ? t->tm_hour % 12 : 12;
}

// Directives that are a number.
static int numeric(char *to, size_t room, const struct piece *p, char ch, const struct tm *t,
                   int64_t now) {
    int iso_year, week = iso_week(t, &iso_year), year = t->tm_year + 1900;
    switch (ch) {
    case 'd':
        return number_text(to, room, p, t->tm_mday, 2, '0');
    case 'e':
        return number_text(to, room, p, t->tm_mday, 2, ' ');
    case 'm':
        return number_text(to, room, p, t->tm_mon + 1, 2, '0');
    case 'y':
        return number_text(to, room, p, year % 100, 2, '0');
    case 'Y':
        return number_text(to, room, p, year, 1, '0');
    case 'C':
        return number_text(to, room, p, year / 100, 2, '0');
    case 'H':
        return number_text(to, room, p, t->tm_hour, 2, '0');
    case 'k':
        return number_text(to, room, p, t->tm_hour, 2, ' ');
    case 'I':
        return number_text(to, room, p, hour12(t), 2, '0');
    case 'l':
        return number_text(to, room, p, hour12(t), 2, ' ');
    case 'M':
        return number_text(to, room, p, t->tm_min, 2, '0');
    case 'S':
        return number_text(to, room, p, t->tm_sec, 2, '0');
    case 'j':
        return number_text(to, room, p, t->tm_yday + 1, 3, '0');
    case 'w':
        return number_text(to, room, p, t->tm_wday, 1, '0');
    case 'u':
        return number_text(to, room, p, t->tm_wday ? t->tm_wday : 7, 1, '0');
    case 'U':
        return number_text(to, room, p, (t->tm_yday + 7 - t->tm_wday) / 7, 2, '0');
    case 'W':
        return number_text(to, room, p, (t->tm_yday + 7 - (t->tm_wday + 6) % 7) / 7, 2, '0');
    case 'V':
        return number_text(to, room, p, week, 2, '0');
    case 'G':
        return number_text(to, room, p, iso_year, 1, '0');
    case 'g':
        return number_text(to, room, p, iso_year % 100, 2, '0');
    case 's':
        return number_text(to, room, p, (long)now, 1, '0');
    default:
        return -1;
    }
}

// Directives that are words or whole dates.
static int textual(char *to, size_t room, const struct piece *p, char ch, const struct tm *t) {
    char s[64];
    int d = t->tm_mday, h = t->tm_hour, m = t->tm_min, sec = t->tm_sec, year = t->tm_year + 1900;
    const char *day = days[t->tm_wday], *month = months[t->tm_mon], *half = h < 12 ? "AM" : "PM";
    switch (ch) {
    case 'a':
        return text_of(to, room, p, day, 3);
    case 'A':
        return text_of(to, room, p, day, 20);
    case 'b':
    case 'h':
        return text_of(to, room, p, month, 3);
    case 'B':
        return text_of(to, room, p, month, 20);
    case 'p':
        return p->swap ? snprintf(to, room, "%s", h < 12 ? "am" : "pm")
                       : text_of(to, room, p, half, 2);
    case 'P':
        return text_of(to, room, p, h < 12 ? "am" : "pm", 2);
    case 'c':
        (void)snprintf(s, sizeof s, "%.3s %.3s %2d %02d:%02d:%02d %d", day, month, d, h, m, sec,
                       year);
        return text_of(to, room, p, s, 63);
    case 'D':
    case 'x':
        (void)snprintf(s, sizeof s, "%02d/%02d/%02d", t->tm_mon + 1, d, year % 100);
        return text_of(to, room, p, s, 63);
    case 'F':
        (void)snprintf(s, sizeof s, "%d-%02d-%02d", year, t->tm_mon + 1, d);
        return text_of(to, room, p, s, 63);
    case 'T':
    case 'X':
        (void)snprintf(s, sizeof s, "%02d:%02d:%02d", h, m, sec);
        return text_of(to, room, p, s, 63);
    case 'R':
        (void)snprintf(s, sizeof s, "%02d:%02d", h, m);
        return text_of(to, room, p, s, 63);
    case 'r':
        (void)snprintf(s, sizeof s, "%02d:%02d:%02d %s", hour12(t), m, sec, half);
        return text_of(to, room, p, s, 63);
    case 'f': // Python's own: microseconds, which the time given does not have
        return snprintf(to, room, "000000");
    case 'z':
    case 'Z':
        return snprintf(to, room, "%s", "");
    case 'n':
    case 't':
    case '%':
        return snprintf(to, room, "%c", ch == 'n' ? '\n' : ch == 't' ? '\t' : '%');
    default:
        return -1;
    }
}

static enum err add_directive(struct tpl_sb *b, const struct tpl_str *fmt, size_t *at,
                              const struct tm *t, int64_t now, bool literal) {
    struct piece p = {.width = -1};
    char text[256];
    size_t begin = *at, i = begin + 1;
    for (; i < fmt->len && memchr("-_0^#", fmt->p[i], 5); i++) {
        p.upper = p.upper || fmt->p[i] == '^';
        p.swap = p.swap || fmt->p[i] == '#';
        if (memchr("-_0", fmt->p[i], 3))
            p.flag = fmt->p[i];
    }
    for (; i < fmt->len && fmt->p[i] >= '0' && fmt->p[i] <= '9'; i++) {
        p.width = (p.width < 0 ? 0 : p.width) * 10 + (fmt->p[i] - '0');
        if (p.width > 100)
            return tpl_fail(b->c, "strftime_now: a width over 100 is not supported");
    }
    int n = -1;
    if (i < fmt->len) {
        n = numeric(text, sizeof text, &p, fmt->p[i], t, now);
        if (n < 0)
            n = textual(text, sizeof text, &p, fmt->p[i], t);
    }
    if (n < 0) { // not a directive: it stays as it is
        *at = i < fmt->len ? i : fmt->len;
        return tpl_sb_sub(b, fmt, begin, *at);
    }
    *at = i + 1;
    return tpl_sb_add(b, text, (size_t)n, literal);
}

enum err tpl_strftime(struct tpl_ctx *c, const struct tpl_str *fmt, struct tpl_val *out) {
    struct tpl_sb b;
    struct tm t;
    time_t now = (time_t)c->now;
    if (!gmtime_r(&now, &t) || t.tm_year < -1900 + 1000 || t.tm_year > 9999 - 1900)
        return tpl_fail(c, "strftime_now: the time is out of range");
    tpl_sb_init(&b, c);
    enum err e = tpl_step(c, fmt->len);
    for (size_t at = 0; !e && at < fmt->len;) {
        const char *hit = memchr(fmt->p + at, '%', fmt->len - at);
        size_t end = hit ? (size_t)(hit - fmt->p) : fmt->len;
        e = tpl_sb_sub(&b, fmt, at, end);
        at = end;
        if (!e && hit)
            e = add_directive(&b, fmt, &at, &t, c->now, tpl_str_literal(fmt));
    }
    return e ? e : tpl_sb_finish(&b, out);
}

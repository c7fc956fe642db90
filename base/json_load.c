// SPDX-License-Identifier: Apache-2.0
// What is read is "[1.000...,", a line end, the document and "]". Errors of the document are as
// they would be without the rest: it has its own lines, "]" is there only where the document's
// brackets are closed, and what follows them is found here.
#include "base/json_load.h"
#include "base/mem.h"
#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    FIRST_GROWTH =
        16,       // the token's byte at which the buffer grows first; then at each power of two
    NEAR_MAX = 20 // longer tokens are not shown in errors
};

// ---- one look over the text

struct shape {
    size_t first, end; // of the document's value; end 0: it is not closed
    size_t longest;    // bytes of a token
};

static bool is_blank(char c) {
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

static bool is_letter(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

static bool is_digit(char c) {
    return c >= '0' && c <= '9';
}

static size_t digits_end(const char *s, size_t i, size_t n) {
    while (i < n && is_digit(s[i]))
        i++;
    return i;
}

static size_t number_end(const char *s, size_t i, size_t n) {
    i += s[i] == '-';
    i = i < n && s[i] == '0' ? i + 1 : digits_end(s, i, n);
    if (i < n && s[i] == '.')
        i = digits_end(s, i + 1, n);
    if (i < n && (s[i] == 'e' || s[i] == 'E')) {
        i++;
        if (i < n && (s[i] == '+' || s[i] == '-'))
            i++;
        i = digits_end(s, i, n);
    }
    return i;
}

// The end of a string whose first quote is at `i`; n if there is none.
static size_t string_end(const char *s, size_t i, size_t n) {
    for (i++; i < n; i++) {
        if (s[i] == '\\')
            i++;
        else if (s[i] == '"')
            return i + 1;
    }
    return n + 1; // also where the last byte is a backslash
}

static size_t token_end(const char *s, size_t i, size_t n) {
    if (s[i] == '"')
        return string_end(s, i, n);
    if (is_letter(s[i])) {
        while (i < n && is_letter(s[i]))
            i++;
        return i;
    }
    if (is_digit(s[i]) || s[i] == '-')
        return number_end(s, i, n);
    bool more = (unsigned char)s[i++] >= 0xc0; // one character
    while (more && i < n && ((unsigned char)s[i] & 0xc0) == 0x80)
        i++;
    return i;
}

static struct shape look(const char *s, size_t n) {
    struct shape sh = {.first = n};
    size_t depth = 0, at = 0;
    while (at < n) {
        if (is_blank(s[at])) {
            at++;
            continue;
        }
        size_t next = token_end(s, at, n);
        bool open = s[at] == '{' || s[at] == '[', close = s[at] == '}' || s[at] == ']';
        if (sh.first == n)
            sh.first = at;
        if (next - at > sh.longest)
            sh.longest = next - at;
        if (open)
            depth++;
        else if (close && depth)
            depth--;
        if (!depth && next <= n) { // what follows is not the document's
            sh.end = next;
            break;
        }
        at = next;
    }
    return sh;
}

// ---- what Jansson reads

struct feed {
    const char *text;
    size_t len, at;  // of the document
    size_t zeros;    // yet to be given
    int stage;       // 0: "[1.", 1: zeros, 2: ",\n", 3: document, 4: "]", 5: nothing
    bool closed;     // "]" is given
    uint64_t failed; // mem_failures before
};

static size_t give(void *buffer, const char *s, size_t n) {
    memcpy(buffer, s, n);
    return n;
}

// Every piece is given in a call of its own, so that the one after a failure is never read.
static size_t next_piece(void *buffer, size_t cap, void *data) {
    struct feed *f = data;
    size_t n;
    if (f->stage <= 3 && mem_failures() != f->failed)
        return 0;
    switch (f->stage) {
    case 0:
        f->stage = 1;
        return give(buffer, "[1.", 3);
    case 1:
        n = f->zeros < cap ? f->zeros : cap;
        memset(buffer, 0x30, n); // '0'
        f->zeros -= n;
        f->stage = f->zeros ? 1 : 2;
        return n;
    case 2:
        f->stage = 3;
        return give(buffer, ",\n", 2);
    case 3:
        n = f->len - f->at < cap ? f->len - f->at : cap;
        memcpy(buffer, f->text + f->at, n);
        f->at += n;
        f->stage = f->at < f->len ? 3 : f->closed ? 4 : 5;
        return n;
    case 4:
        f->stage = 5;
        return give(buffer, "]", 1);
    default:
        return 0;
    }
}

// ---- errors

static void say(json_error_t *e, enum json_error_code code, const char *text) {
    snprintf(e->text, sizeof e->text - 1, "%s", text);
    e->text[sizeof e->text - 1] = (char)code;
}

static json_t *out_of_memory(json_error_t *e, json_t *value) {
    json_decref(value);
    say(e, json_error_out_of_memory, "out of memory");
    return NULL;
}

// Where the token at `at` is not what the document may have there.
static json_t *refuse(const char *s, size_t n, size_t at, enum json_error_code code,
                      const char *expected, json_error_t *e) {
    char text[JSON_ERROR_TEXT_LENGTH - 1];
    size_t end = at < n ? token_end(s, at, n) : at;
    e->line = 1;
    e->column = 0;
    for (size_t i = 0; i < end && i < n; i++) {
        e->line += s[i] == '\n';
        e->column = s[i] == '\n' ? 0 : e->column + (((unsigned char)s[i] & 0xc0) != 0x80);
    }
    e->position = (int)(end < n ? end : n);
    if (at >= n) {
        code = json_error_premature_end_of_input;
        snprintf(text, sizeof text, "%s near end of file", expected);
    } else if (end - at <= NEAR_MAX && end <= n) {
        snprintf(text, sizeof text, "%s near '%.*s'", expected, (int)(end - at), s + at);
    } else {
        snprintf(text, sizeof text, "%s", expected);
    }
    say(e, code, text);
    return NULL;
}

// ---- reading

// As many as the buffer has grown by when the longest token has room in it; the last is behind the
// byte at which it grows, and so is the comma.
static size_t zeros_for(size_t longest) {
    size_t at = FIRST_GROWTH;
    while (2 * at <= longest + 1)
        at *= 2;
    return at + 1 - 2; // "1." are the first
}

static json_t *read_whole(const char *text, size_t len, const struct shape *sh, size_t flags,
                          json_error_t *e) {
    struct feed f = {.text = text,
                     .len = sh->end ? sh->end : len,
                     .zeros = zeros_for(sh->longest),
                     .closed = sh->end != 0,
                     .failed = mem_failures()};
    const int before = (int)(f.zeros + 5); // "[1." and ",\n"
    json_t *list = json_load_callback(next_piece, &f, flags, e);
    if (mem_failures() != f.failed)
        return out_of_memory(e, list);
    e->line -= e->line > 1;
    e->position -= e->position > before ? before : e->position;
    json_t *value = json_incref(json_array_get(list, 1));
    json_decref(list);
    return value;
}

// Another beginning of the error's text.
static void reword(json_error_t *e, const char *begins, enum json_error_code code,
                   const char *expected) {
    char text[JSON_ERROR_TEXT_LENGTH - 1];
    size_t n = strlen(begins);
    if (strncmp(e->text, begins, n) != 0)
        return;
    snprintf(text, sizeof text, "%s%.100s", expected, e->text + n);
    say(e, code, text);
}

// A document that is no object and no list. What the reader says of its one token comes first, but
// for where it says that it may not stand there.
static json_t *refuse_scalar(const char *text, size_t len, const struct shape *sh, size_t flags,
                             json_error_t *e) {
    static const char expected[] = "'[' or '{' expected";
    json_t *value = sh->first < len ? read_whole(text, len, sh, flags, e) : NULL;
    if (value || sh->first == len) {
        json_decref(value);
        return refuse(text, len, sh->first, json_error_invalid_syntax, expected, e);
    }
    reword(e, "invalid token", json_error_code(e), expected);
    reword(e, "unexpected token", json_error_code(e), expected);
    return NULL;
}

// The document has ended, and something stands behind it, at `rest`.
static json_t *refuse_rest(const char *text, size_t len, struct shape sh, size_t rest, size_t flags,
                           json_error_t *e) {
    static const char expected[] = "end of file expected";
    size_t token = token_end(text, rest, len) - rest;
    if (text[rest] == ',' || text[rest] == ']') // which may stand behind it in a list
        return refuse(text, len, rest, json_error_end_of_input_expected, expected, e);
    sh.longest = token > sh.longest ? token : sh.longest;
    sh.end = 0;
    memset(e, 0, sizeof *e);
    json_decref(read_whole(text, len, &sh, flags, e)); // a list that is not closed: never one
    reword(e, "']' expected", json_error_end_of_input_expected, expected);
    return NULL;
}

json_t *json_load_text(const char *text, size_t len, size_t flags, json_error_t *error) {
    json_error_t own, *e = error ? error : &own;
    memset(e, 0, sizeof *e);
    const struct shape sh = look(text, len);
    if (!(flags & JSON_DECODE_ANY) &&
        (sh.first == len || (text[sh.first] != '{' && text[sh.first] != '[')))
        return refuse_scalar(text, len, &sh, flags, e);
    if (sh.first == len)
        return refuse(text, len, len, json_error_invalid_syntax, "unexpected token", e);
    json_t *value = read_whole(text, len, &sh, flags, e);
    size_t rest = sh.end;
    while (rest < len && is_blank(text[rest]))
        rest++;
    if (!value || rest >= len || !sh.end)
        return value;
    json_decref(value);
    return refuse_rest(text, len, sh, rest, flags, e);
}

static bool read_all(int fd, char *to, size_t n) {
    for (size_t at = 0; at < n;) {
        ssize_t got = pread(fd, to + at, n - at, (off_t)at);
        if (got <= 0 && !(got < 0 && errno == EINTR))
            return false;
        at += got > 0 ? (size_t)got : 0;
    }
    return true;
}

json_t *json_load_fd(int fd, size_t most, size_t flags) {
    struct stat st;
    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode) || st.st_size <= 0 ||
        (uintmax_t)st.st_size > most)
        return NULL;
    size_t n = (size_t)st.st_size;
    char *text = mem_alloc(n);
    json_t *value = text && read_all(fd, text, n) ? json_load_text(text, n, flags, NULL) : NULL;
    mem_free(text);
    return value;
}

enum err json_load_err(const json_error_t *error) {
    return json_error_code(error) == json_error_out_of_memory ? ERR_NOMEM : ERR_FORMAT;
}

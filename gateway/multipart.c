// SPDX-License-Identifier: Apache-2.0
//   SCAN -> BOUNDARY -> (blanks) LINE_END -> HEAD -> SCAN ...    delimiter line, head, content
//           BOUNDARY -> DASH -> CLOSED -> CLOSE_END -> EPILOGUE  the last one
//   any of BOUNDARY .. CLOSE_END -> SCAN                         it was content after all
//
// Invariants
// 1. From a CR that may begin a delimiter on, all bytes are in `held`, until it is known what they
//    are.
// 2. A delimiter begins with its only CR, so after a mismatch the search goes on at the byte that
//    did not match: nothing in `held` can begin another one but its last byte, and a CR there was
//    the end of a line, whose next byte is looked at again.
// 3. At the beginning, and where a part's content begins, a CR LF counts as read that was not there
//    or belonged to the head: the first `phantom` bytes of `held` are no content.
#include "gateway/multipart.h"
#include "base/hash.h"
#include "base/utf8.h"
#include <ctype.h>
#include <string.h>
#include <strings.h>

enum { SCAN, BOUNDARY, DASH, LINE_END, CLOSED, CLOSE_END, HEAD, EPILOGUE };

static enum err malformed(struct err_info *info, const char *why) {
    return err_set(info, ERR_INVALID, NULL, "malformed multipart body: %s", why);
}

static bool token_char(char c) {
    return isalnum((unsigned char)c) || (c && strchr("!#$%&'*+-.^_`|~", c));
}

static bool blank(char c) {
    return c == ' ' || c == '\t';
}

// ---- parameters of a field: ; name=token ; name="quoted"

struct param {
    char *name, *value;
    size_t name_len, len;
};

// Reads the one at *s, in place. 1: there was one, 0: the field has ended, -1: malformed.
static int next_param(char **s, struct param *out) {
    char *p = *s + strspn(*s, " \t");
    if (*p == '\0')
        return 0;
    if (*p++ != ';')
        return -1;
    p += strspn(p, " \t");
    out->name = p;
    while (token_char(*p))
        p++;
    out->name_len = (size_t)(p - out->name);
    if (out->name_len == 0 || *p++ != '=')
        return -1;
    if (*p != '"') {
        out->value = p;
        while (token_char(*p))
            p++;
        out->len = (size_t)(p - out->value);
        *s = p;
        return out->len ? 1 : -1; // what follows is looked at by the next call
    }
    char *to = ++p;
    out->value = to;
    while (*p && *p != '"') {
        // Only these two: browsers once sent paths with lone backslashes.
        if (*p == '\\' && (p[1] == '"' || p[1] == '\\'))
            p++;
        *to++ = *p++;
    }
    if (*p != '"')
        return -1;
    out->len = (size_t)(to - out->value);
    *s = p + 1;
    return 1;
}

static bool named(const struct param *p, const char *name) {
    return p->name_len == strlen(name) && !strncasecmp(p->name, name, p->name_len);
}

// The value ends with a NUL; only once the field was read to its end.
static char *text(const struct param *p) {
    if (p->value)
        p->value[p->len] = '\0';
    return p->value;
}

static bool clean(const char *s, size_t n) {
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)s[i] < ' ' || s[i] == 0x7f)
            return false;
    return utf8_valid(s, n);
}

// RFC 5987: UTF-8'language'percent-encoded, decoded in place.
static bool decode_extended(struct param *p) {
    char *s = text(p), *quote;
    if (strncasecmp(s, "utf-8'", 6) != 0 || (quote = strchr(s + 6, '\'')) == NULL)
        return false;
    char *to = p->value;
    for (s = quote + 1; *s; s++) {
        if (*s == '%') {
            int hi = hex_value(s[1]), lo = hi < 0 ? -1 : hex_value(s[2]);
            if (lo < 0)
                return false;
            *to++ = (char)(hi << 4 | lo);
            s += 2;
        } else {
            *to++ = *s;
        }
    }
    p->len = (size_t)(to - p->value);
    return true;
}

// form-data; name="..."; filename="..."
static enum err read_disposition(char *s, struct mp_part *part, struct err_info *info) {
    static const char kind[] = "form-data";
    struct param p, name = {0}, filename = {0}, extended = {0};
    int more;
    if (strncasecmp(s, kind, sizeof kind - 1) != 0)
        return malformed(info, "a part's Content-Disposition is not form-data");
    s += sizeof kind - 1;
    while ((more = next_param(&s, &p)) > 0) {
        struct param *into = named(&p, "name")        ? &name
                             : named(&p, "filename")  ? &filename
                             : named(&p, "filename*") ? &extended
                                                      : NULL;
        if (into && into->value)
            return malformed(info, "a Content-Disposition parameter is given more than once");
        if (into)
            *into = p;
    }
    if (more < 0)
        return malformed(info, "a part's Content-Disposition is not name=value; ...");
    if (extended.value && !decode_extended(&extended))
        return malformed(info, "a part's filename* is not percent-encoded UTF-8");
    struct param *file = extended.value ? &extended : &filename;
    if (!name.len)
        return malformed(info, "a part has no name");
    if (!clean(name.value, name.len) || (file->value && !clean(file->value, file->len)))
        return malformed(info, "a part's name or filename is not plain UTF-8 text");
    part->name = text(&name);
    part->filename = text(file);
    return ERR_OK;
}

// ---- a part's head

static enum err read_field(char *line, struct mp_part *part, bool *disposed,
                           struct err_info *info) {
    char *s = line;
    while (token_char(*s))
        s++;
    if (s == line || *s != ':')
        return malformed(info, "a part's head holds a line that is no field");
    *s++ = '\0';
    s += strspn(s, " \t");
    size_t n = strlen(s);
    while (n && blank(s[n - 1]))
        s[--n] = '\0';
    if (!strcasecmp(line, "content-disposition")) {
        if (*disposed)
            return malformed(info, "a part has two Content-Dispositions");
        *disposed = true;
        return read_disposition(s, part, info);
    }
    if (!strcasecmp(line, "content-type")) {
        if (part->content_type || !clean(s, n))
            return malformed(info, "a part has two Content-Types or a bad one");
        part->content_type = s;
    } else if (!strcasecmp(line, "content-transfer-encoding") && strcasecmp(s, "binary") != 0 &&
               strcasecmp(s, "8bit") != 0 && strcasecmp(s, "7bit") != 0) {
        return malformed(info, "a part's Content-Transfer-Encoding is not binary");
    }
    return ERR_OK;
}

static enum err head_ended(struct multipart *m, struct err_info *info) {
    struct mp_part part = {0};
    bool disposed = false;
    char *s = m->head, *end = m->head + m->head_len - 2; // the empty line
    while (s < end) {
        char *next = memchr(s, '\r', (size_t)(end - s));
        *next = '\0';
        enum err e = read_field(s, &part, &disposed, info);
        if (e)
            return e;
        s = next + 2;
    }
    if (!disposed)
        return malformed(info, "a part has no Content-Disposition");
    if (++m->parts > MP_PARTS_MAX)
        return err_set(info, ERR_INVALID, NULL, "the multipart body has more than %d parts",
                       MP_PARTS_MAX);
    m->in_part = true;
    m->state = SCAN;
    memcpy(m->held, "\r\n", 2);
    m->held_len = m->phantom = 2;
    return m->calls->begin(m->arg, &part, info);
}

static enum err head_byte(struct multipart *m, char c, struct err_info *info) {
    if (m->head_len == sizeof m->head)
        return err_set(info, ERR_INVALID, NULL, "a part's head is longer than %d bytes",
                       MP_HEAD_MAX);
    bool after_cr = m->head_len > 0 && m->head[m->head_len - 1] == '\r';
    m->head[m->head_len++] = c;
    if (c == '\n') {
        bool empty = m->head_line == 1; // its CR
        if (!after_cr)
            return malformed(info, "a line of a part's head does not end in CR LF");
        m->head_line = 0;
        return empty ? head_ended(m, info) : ERR_OK;
    }
    if (after_cr || (c != '\r' && c != '\t' && ((unsigned char)c < ' ' || c == 0x7f)))
        return malformed(info, "a part's head holds a control character");
    if (m->head_line == 0 && blank(c))
        return malformed(info, "a part's head holds a folded line");
    m->head_line++;
    return ERR_OK;
}

// ---- content and delimiters

static enum err outside(struct multipart *m, size_t n, struct err_info *info) {
    m->outside += n;
    return m->outside <= MP_OUTSIDE_MAX
               ? ERR_OK
               : malformed(info, "too much stands before the first or after the last part");
}

static enum err emit(struct multipart *m, const char *p, size_t n, struct err_info *info) {
    if (n == 0)
        return ERR_OK;
    return m->in_part ? m->calls->content(m->arg, p, n, info) : outside(m, n, info);
}

// What was held is content.
static enum err release(struct multipart *m, struct err_info *info) {
    size_t from = m->phantom, n = m->held_len - from;
    m->held_len = m->phantom = 0;
    m->state = SCAN;
    return emit(m, m->held + from, n, info);
}

static enum err part_ended(struct multipart *m, struct err_info *info) {
    bool was = m->in_part;
    m->in_part = false;
    m->held_len = m->phantom = m->head_len = m->head_line = 0;
    return was ? m->calls->end(m->arg, info) : ERR_OK;
}

// The next byte of what may be a delimiter line. False: it is none, and the byte was not used.
static bool line_byte(struct multipart *m, char c) {
    if (blank(c) && (m->state == BOUNDARY || m->state == CLOSED)) {
        // After blanks no dash comes: "--boundary --" is content.
        if (++m->blanks > MP_BLANKS_MAX)
            return false;
    } else if (m->state == BOUNDARY && c == '-' && m->blanks == 0) {
        m->state = DASH;
    } else if (m->state == DASH && c == '-') {
        m->state = CLOSED;
    } else if (m->state == BOUNDARY && c == '\r') {
        m->state = LINE_END;
    } else if (m->state == CLOSED && c == '\r') {
        m->state = CLOSE_END;
    } else if (m->state == LINE_END && c == '\n') {
        m->state = HEAD;
    } else if (m->state == CLOSE_END && c == '\n') {
        m->state = EPILOGUE;
    } else {
        return false;
    }
    m->held[m->held_len++] = c;
    return true;
}

static enum err candidate(struct multipart *m, char c, bool *used, struct err_info *info) {
    *used = true;
    if (m->state == SCAN && c == m->delimiter[m->held_len]) {
        m->held[m->held_len++] = c;
        if (m->held_len == m->delimiter_len) {
            m->state = BOUNDARY;
            m->blanks = 0;
        }
        return ERR_OK;
    }
    if (m->state == SCAN || !line_byte(m, c)) {
        *used = false;
        return release(m, info);
    }
    return m->state == HEAD || m->state == EPILOGUE ? part_ended(m, info) : ERR_OK;
}

// How much of p[0..n) is surely content: up to the CR of what may be a delimiter.
static size_t plain_run(const struct multipart *m, const char *p, size_t n) {
    for (size_t i = 0; i < n;) {
        const char *cr = memchr(p + i, '\r', n - i);
        if (!cr)
            break;
        i = (size_t)(cr - p);
        size_t len = n - i < m->delimiter_len ? n - i : m->delimiter_len;
        if (!memcmp(cr, m->delimiter, len))
            return i;
        i++;
    }
    return n;
}

enum err mp_feed(struct multipart *m, const char *p, size_t n, struct err_info *info) {
    enum err e = ERR_OK;
    for (size_t i = 0; i < n && !e;) {
        if (m->state == HEAD) {
            e = head_byte(m, p[i++], info);
        } else if (m->state == EPILOGUE) {
            e = outside(m, n - i, info);
            i = n;
        } else if (m->held_len == 0) {
            size_t run = plain_run(m, p + i, n - i);
            e = emit(m, p + i, run, info);
            i += run;
            if (!e && i < n) {
                m->held[m->held_len++] = p[i++];
            }
        } else {
            bool used;
            e = candidate(m, p[i], &used, info);
            i += used;
        }
    }
    return e;
}

enum err mp_finish(struct multipart *m, struct err_info *info) {
    if (m->state == CLOSED) { // the last line needs no end
        m->state = EPILOGUE;
        enum err e = part_ended(m, info);
        if (e)
            return e;
    }
    if (m->state != EPILOGUE)
        return malformed(info, "it ends before the last boundary");
    return ERR_OK;
}

void mp_init(struct multipart *m, const char *boundary, const struct mp_calls *calls, void *arg) {
    size_t n = strnlen(boundary, MP_BOUNDARY_MAX);
    m->calls = calls;
    m->arg = arg;
    m->state = SCAN;
    m->head_len = m->head_line = m->parts = m->outside = m->blanks = 0;
    m->in_part = false;
    memcpy(m->delimiter, "\r\n--", 4);
    memcpy(m->delimiter + 4, boundary, n);
    m->delimiter_len = 4 + n;
    memcpy(m->held, "\r\n", 2);
    m->held_len = m->phantom = 2;
}

// ---- the request's Content-Type

// RFC 2046, 5.1.1: 1 to 70 of these, no blank at the end.
static bool boundary_ok(const char *s, size_t n) {
    if (n == 0 || n > MP_BOUNDARY_MAX || s[n - 1] == ' ')
        return false;
    for (size_t i = 0; i < n; i++)
        if (!isalnum((unsigned char)s[i]) && (!s[i] || !strchr("'()+_,-./:=? ", s[i])))
            return false;
    return true;
}

enum err mp_boundary(const char *content_type, char out[MP_BOUNDARY_MAX + 1],
                     struct err_info *info) {
    static const char type[] = "multipart/form-data";
    char copy[512], *s = copy + sizeof type - 1;
    struct param p, boundary = {0};
    int more;
    if (!content_type || strncasecmp(content_type, type, sizeof type - 1) != 0 ||
        token_char(content_type[sizeof type - 1]))
        return err_set(info, ERR_MEDIA_TYPE, NULL, "the Content-Type must be multipart/form-data");
    if (strlen(content_type) >= sizeof copy)
        return err_set(info, ERR_INVALID, NULL, "the Content-Type is too long");
    strcpy(copy, content_type);
    while ((more = next_param(&s, &p)) > 0)
        if (named(&p, "boundary")) {
            if (boundary.value)
                return err_set(info, ERR_INVALID, NULL, "the Content-Type has two boundaries");
            boundary = p;
        }
    if (more < 0 || !boundary_ok(boundary.value, boundary.len))
        return err_set(info, ERR_INVALID, NULL,
                       "the Content-Type has no valid boundary: 1 to %d characters of RFC 2046",
                       MP_BOUNDARY_MAX);
    memcpy(out, boundary.value, boundary.len);
    out[boundary.len] = '\0';
    return ERR_OK;
}

// SPDX-License-Identifier: Apache-2.0
// `held` is text of whole characters, then at most three bytes of a character that is not complete
// yet. Bytes become characters one at a time, and the stop strings are compared after each, so the
// result cannot depend on how tokens were grouped: the stop string that ends first wins, and of two
// that end at the same character the longer one.
#include "serving/assemble.h"
#include "base/utf8.h"
#include <string.h>

static const char replacement[] = "\xef\xbf\xbd"; // U+FFFD

void assembler_init(struct assembler *a, const struct asm_config *c) {
    *a = (struct assembler){.config = c};
    buf_init(&a->held, 0);
}

void assembler_fini(struct assembler *a) {
    buf_fini(&a->held);
}

static void send(struct assembler *a, size_t n, struct buf *out) {
    if (n == 0)
        return;
    buf_append(out, a->held.data, n);
    buf_consume(&a->held, n);
    a->sent += n;
}

// Bytes of the longest stop string that the first `len` bytes of held end with; 0: none.
static size_t stop_at_end(const struct assembler *a, size_t len) {
    size_t longest = 0;
    if (a->deaf)
        return 0;
    for (size_t i = 0; i < a->config->n_stops; i++) {
        size_t n = a->config->stop_lens[i];
        if (n <= len && n > longest && !memcmp(a->held.data + len - n, a->config->stops[i], n))
            longest = n;
    }
    return longest;
}

// Bytes at the end of held that could still become a stop string.
static size_t stop_begun(const struct assembler *a, size_t len) {
    size_t most = 0;
    for (size_t i = 0; i < a->config->n_stops; i++) {
        size_t n = a->config->stop_lens[i] - 1;
        for (n = n < len ? n : len; n > most; n--)
            if (!memcmp(a->held.data + len - n, a->config->stops[i], n))
                most = n;
    }
    return most;
}

static void stop_here(struct assembler *a, size_t text, size_t stop, struct buf *out) {
    a->stopped = true;
    send(a, a->config->include_stop ? text : text - stop, out);
    buf_clear(&a->held);
}

// Puts U+FFFD in the place of n bytes of held.
static void replace_bytes(struct assembler *a, size_t at, size_t n) {
    char tail[4];
    size_t rest = a->held.len - at - n;
    memcpy(tail, a->held.data + at + n, rest);
    a->held.len = at;
    buf_append(&a->held, replacement, 3);
    buf_append(&a->held, tail, rest);
}

// Goes over what is complete from byte *text on; true if a stop string was found.
static bool scan(struct assembler *a, size_t *text, bool end, struct buf *out) {
    while (*text < a->held.len && !buf_err(&a->held)) {
        uint32_t cp;
        int n = utf8_decode(a->held.data + *text, a->held.len - *text, &cp);
        if (n == 0 && !end)
            return false;
        if (n <= 0) {
            // Unicode's "maximal subpart" practice: the bytes that could have begun a character
            // become one U+FFFD. Bytes come singly, so it was the last one that broke it.
            size_t left = a->held.len - *text, bad = n == 0 || left == 1 ? left : left - 1;
            replace_bytes(a, *text, bad);
            n = 3;
        }
        *text += (size_t)n;
        size_t stop = stop_at_end(a, *text);
        if (stop) {
            stop_here(a, *text, stop, out);
            return true;
        }
    }
    return false;
}

enum err assembler_push(struct assembler *a, const char *bytes, size_t n, struct buf *out) {
    if (a->stopped)
        return ERR_OK;
    size_t text = utf8_valid_prefix(a->held.data, a->held.len);
    for (size_t i = 0; i < n; i++) {
        buf_append(&a->held, bytes + i, 1);
        if (scan(a, &text, false, out))
            return buf_err(out);
    }
    size_t keep = stop_begun(a, text);
    if (!buf_err(&a->held) && text > keep)
        send(a, text - keep, out);
    return buf_err(&a->held) ? buf_err(&a->held) : buf_err(out);
}

enum err assembler_end(struct assembler *a, struct buf *out) {
    if (a->stopped)
        return ERR_OK;
    size_t text = utf8_valid_prefix(a->held.data, a->held.len);
    if (scan(a, &text, true, out))
        return buf_err(out);
    if (a->held.len)
        send(a, a->held.len, out);
    return buf_err(&a->held) ? buf_err(&a->held) : buf_err(out);
}

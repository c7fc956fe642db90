// SPDX-License-Identifier: Apache-2.0
// Runs the split stages: each stage cuts its piece into matches and the gaps between them, and each
// of those is a piece, seen alone, for the next stage. After the last one a piece is a word.
#include "base/utf8.h"
#include "model/tokenizer_internal.h"

// The next match of the stage in p[0..n) from `at` on. *found false: none.
static enum err next_match(struct tok__encoder *e, const struct tok__stage *s, const char *p,
                           size_t n, size_t at, bool *found) {
    PCRE2_SPTR subject = (PCRE2_SPTR)p;
    int rc = PCRE2_ERROR_JIT_STACKLIMIT;
    if (s->jit)
        rc = pcre2_jit_match(s->code, subject, n, at, PCRE2_NO_UTF_CHECK, e->match, e->match_ctx);
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT) // the interpreter's frames are on the heap
        rc = pcre2_match(s->code, subject, n, at, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, e->match,
                         e->match_ctx);
    *found = rc >= 0;
    if (rc >= 0 || rc == PCRE2_ERROR_NOMATCH)
        return ERR_OK;
    if (rc == PCRE2_ERROR_NOMEMORY)
        return err_set(e->info, ERR_NOMEM, NULL, "out of memory while splitting the text");
    return err_set(e->info, ERR_LIMIT, NULL,
                   "the tokenizer's split pattern takes too long on this text");
}

enum err tok__split_stages(struct tok__encoder *e, size_t stage, const char *p, size_t n) {
    if (n == 0)
        return ERR_OK;
    if (stage == e->t->n_stages)
        return tok__encode_word(e, p, n);
    const PCRE2_SIZE *span = pcre2_get_ovector_pointer(e->match);
    size_t done = 0; // pieces handed on
    for (size_t at = 0; at < n;) {
        bool found;
        enum err err = next_match(e, &e->t->stages[stage], p, n, at, &found);
        if (err != ERR_OK)
            return err;
        if (!found)
            break;
        size_t begin = span[0], end = span[1]; // the later stages overwrite span
        err = tok__split_stages(e, stage + 1, p + done, begin - done);
        if (err == ERR_OK)
            err = tok__split_stages(e, stage + 1, p + begin, end - begin);
        if (err != ERR_OK)
            return err;
        done = end;
        at = end;
        if (begin == end) { // an empty match: look again one character on
            uint32_t cp;
            int step = utf8_decode(p + at, n - at, &cp);
            at += step > 0 ? (size_t)step : 1;
        }
    }
    return tok__split_stages(e, stage + 1, p + done, n - done);
}

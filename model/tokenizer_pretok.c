// SPDX-License-Identifier: Apache-2.0
// Runs the split stages: each stage cuts its piece into matches and the gaps between them, and each
// of those is a piece, seen alone, for the next stage. After the last one a piece is a word.
#include "base/utf8.h"
#include "model/tokenizer_internal.h"

enum { FEW_STEPS = 1000, MORE = 8 };

static int match(struct tok__encoder *e, const struct tok__stage *s, const char *p, size_t n,
                 size_t at) {
    PCRE2_SPTR subject = (PCRE2_SPTR)p;
    int rc = PCRE2_ERROR_JIT_STACKLIMIT;
    if (s->jit)
        rc = pcre2_jit_match(s->code, subject, n, at, PCRE2_NO_UTF_CHECK, e->match, e->match_ctx);
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT) // the interpreter's frames are on the heap
        rc = pcre2_match(s->code, subject, n, at, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, e->match,
                         e->match_ctx);
    return rc;
}

// The next match of the stage in p[0..n) from `at` on. *found false: none.
//
// A match may take FEW_STEPS. One that needs more, as \s*[\r\n]+ does to give back a long run,
// draws on the call's budget, which is linear in the text: so is the time, whatever the pattern.
static enum err next_match(struct tok__encoder *e, const struct tok__stage *s, const char *p,
                           size_t n, size_t at, bool *found) {
    size_t steps = FEW_STEPS;
    int rc = match(e, s, p, n, at);
    while (rc == PCRE2_ERROR_MATCHLIMIT && e->steps_left) {
        steps = MORE * steps < e->steps_left ? MORE * steps : e->steps_left;
        if (steps > UINT32_MAX)
            steps = UINT32_MAX;
        e->steps_left -= steps;
        pcre2_set_match_limit(e->match_ctx, (uint32_t)steps);
        rc = match(e, s, p, n, at);
    }
    if (steps != FEW_STEPS)
        pcre2_set_match_limit(e->match_ctx, FEW_STEPS);
    *found = rc >= 0;
    if (rc >= 0 || rc == PCRE2_ERROR_NOMATCH)
        return ERR_OK;
    if (rc == PCRE2_ERROR_NOMEMORY)
        return err_set(e->info, ERR_NOMEM, NULL, "out of memory while splitting the text");
    return err_set(e->info, ERR_LIMIT, NULL,
                   "the tokenizer's split pattern takes too long on this text");
}

// What PCRE2 needs for one call of encode.
enum err tok__match_init(struct tok__encoder *e) {
    enum { HEAP_KIB = 64 * 1024, BUDGET = 10000000, PER_BYTE = 16 };
    pcre2_general_context *memory = tok__pcre2_memory();
    if (memory) {
        e->match = pcre2_match_data_create(1, memory);
        e->match_ctx = pcre2_match_context_create(memory);
    }
    pcre2_general_context_free(memory);
    if (!e->match || !e->match_ctx)
        return ERR_NOMEM;
    e->steps_left = BUDGET + PER_BYTE * e->len;
    pcre2_set_match_limit(e->match_ctx, FEW_STEPS);
    pcre2_set_heap_limit(e->match_ctx, HEAP_KIB);
    return ERR_OK;
}

void tok__match_fini(struct tok__encoder *e) {
    pcre2_match_data_free(e->match);
    pcre2_match_context_free(e->match_ctx);
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

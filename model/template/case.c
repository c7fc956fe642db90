// SPDX-License-Identifier: Apache-2.0
// upper, lower, capitalize, title and swapcase of whole strings.
#include "base/utf8.h"
#include "model/template/builtins.h"
#include "model/template/ctx.h"
#include "model/template/str.h"
#include "model/template/unicode.h"
#include <string.h>

enum { SIGMA = 0x3a3, SMALL_SIGMA = 0x3c3, FINAL_SIGMA = 0x3c2 };

static bool is_cased(uint32_t cp) {
    return tpl_uc_is(TPL_UC_CASED, cp) || tpl_uc_is(TPL_UC_LOWER, cp) ||
           tpl_uc_is(TPL_UC_UPPER, cp) || tpl_uc_is(TPL_UC_TITLE, cp);
}

// A capital sigma at `at` ends a word: a cased character comes before it and none after it, looking
// through what has no case of its own, such as an apostrophe.
static bool is_final_sigma(const struct tpl_str *s, size_t at) {
    uint32_t cp = 0;
    size_t i = at;
    bool cased = false;
    while (i > 0) {
        i -= tpl_uc_prev(s->p, i, &cp);
        if (tpl_uc_is(TPL_UC_IGNORABLE, cp))
            continue;
        cased = is_cased(cp);
        break;
    }
    if (!cased)
        return false;
    for (i = at + 2; i < s->len;) {
        i += tpl_uc_next(s->p + i, s->len - i, &cp);
        if (!tpl_uc_is(TPL_UC_IGNORABLE, cp))
            return !is_cased(cp);
    }
    return true;
}

struct mapper {
    const struct tpl_str *s;
    enum tpl_case how;
    bool after_cased; // title: inside a word
};

static size_t map_one(struct mapper *m, size_t at, uint32_t cp, uint32_t out[3]) {
    enum tpl_uc_case_to to = TPL_UC_TO_LOWER;
    switch (m->how) {
    case TPL_UPPER:
        to = TPL_UC_TO_UPPER;
        break;
    case TPL_LOWER:
        break;
    case TPL_CAPITALIZE:
        to = at == 0 ? TPL_UC_TO_TITLE : TPL_UC_TO_LOWER;
        break;
    case TPL_TITLE:
        to = m->after_cased ? TPL_UC_TO_LOWER : TPL_UC_TO_TITLE;
        m->after_cased = is_cased(cp);
        break;
    case TPL_SWAPCASE:
        if (tpl_uc_is(TPL_UC_LOWER, cp)) {
            to = TPL_UC_TO_UPPER;
        } else if (!tpl_uc_is(TPL_UC_UPPER, cp)) {
            out[0] = cp;
            return 1;
        }
        break;
    }
    if (to == TPL_UC_TO_LOWER && cp == SIGMA) {
        out[0] = is_final_sigma(m->s, at) ? FINAL_SIGMA : SMALL_SIGMA;
        return 1;
    }
    return tpl_uc_map(to, cp, out);
}

enum err tpl_str_case(struct tpl_ctx *c, const struct tpl_str *s, enum tpl_case how,
                      struct tpl_val *out) {
    struct mapper m = {.s = s, .how = how};
    struct tpl_sb b;
    enum err e = tpl_step(c, s->len * 4); // the tables are searched for each character
    tpl_sb_init(&b, c);
    for (size_t r = 0; !e && r < tpl_str_n_runs(s); r++) {
        char chunk[256];
        size_t n = 0, at, end;
        bool literal = tpl_str_run(s, r, &at, &end);
        while (!e && at < end) {
            uint32_t cp, to[3];
            size_t len = tpl_uc_next(s->p + at, end - at, &cp);
            size_t k = map_one(&m, at, cp, to);
            at += len;
            for (size_t i = 0; i < k; i++)
                n += (size_t)utf8_encode(to[i], chunk + n);
            if (n > sizeof chunk - 16 || at == end) {
                e = tpl_sb_add(&b, chunk, n, literal);
                n = 0;
            }
        }
    }
    if (!e)
        e = tpl_sb_finish(&b, out);
    return !e && s->markup ? tpl_str_markup(c, out->u.s, true, out) : e;
}

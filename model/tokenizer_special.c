// SPDX-License-Identifier: Apache-2.0
// Finds added tokens in a text, as Hugging Face defines it: leftmost, then longest; those that are
// not normalized in a first pass, the others in a second pass over what that left; `single_word`
// drops a match that touches a word character; `lstrip` and `rstrip` take the white space beside
// it.
//
// Where text is literal no special token is matched in it or across its edge. A special token that
// stands wholly inside literal text is stepped over as a whole, as Hugging Face's
// encode_special_tokens does; one that would cross the edge must not hide a shorter one that ends
// before it.
#include "base/utf8.h"
#include "model/tokenizer_internal.h"
#include <string.h>

// The run that holds byte `at`.
static const struct tok__run *run_at(const struct tok__encoder *e, size_t at) {
    size_t lo = 0, hi = e->n_runs - 1;
    while (lo < hi) {
        size_t mid = (lo + hi) / 2;
        if (e->runs[mid].end > at)
            hi = mid;
        else
            lo = mid + 1;
    }
    return &e->runs[lo];
}

struct candidate {
    const struct tok__added *best; // longest that may be matched here, or NULL
    size_t skip;                   // or else: bytes to step over
};

// Looks for tokens of the set at `at`. The items that begin with the bytes read so far are lo ..
// hi.
static struct candidate look_at(const struct tok__encoder *e, const struct tok__added_set *set,
                                size_t at, size_t end) {
    const char *p = e->text + at, *blob = e->t->blob;
    size_t lo = set->bucket[(uint8_t)*p], hi = set->bucket[(uint8_t)*p + 1];
    const struct tok__run *run = run_at(e, at);
    struct candidate c = {.skip = 1};
    size_t depth = 1;
    for (;;) {
        if (lo < hi && set->items[lo].len == depth) {
            const struct tok__added *item = &set->items[lo++];
            if (!item->special || (!run->literal && at + depth <= run->end))
                c = (struct candidate){.best = item};
            else if (run->literal && at + depth <= run->end)
                c = (struct candidate){.skip = depth};
        }
        if (lo == hi || at + depth == end)
            return c;
        uint8_t want = (uint8_t)p[depth];
        size_t a = lo, b = hi;
        while (a < b) {
            size_t mid = (a + b) / 2;
            if ((uint8_t)blob[set->items[mid].off + depth] < want)
                a = mid + 1;
            else
                b = mid;
        }
        lo = a;
        b = hi;
        while (a < b) {
            size_t mid = (a + b) / 2;
            if ((uint8_t)blob[set->items[mid].off + depth] <= want)
                a = mid + 1;
            else
                b = mid;
        }
        hi = a;
        depth++;
    }
}

static size_t char_before(const char *text, size_t at) {
    do
        at--;
    while (((uint8_t)text[at] & 0xc0) == 0x80);
    return at;
}

static bool word_char_at(const struct tok__encoder *e, size_t at, size_t end) {
    return pcre2_match(e->t->word_char, (PCRE2_SPTR)e->text + at, end - at, 0,
                       PCRE2_NO_UTF_CHECK | PCRE2_ANCHORED, e->match, e->match_ctx) >= 0;
}

// What stands beside text[from..to) inside [begin, end). For a special token only its own run
// counts, or literal text could keep it from being matched.
static bool stands_alone(const struct tok__encoder *e, const struct tok__added *token, size_t from,
                         size_t begin, size_t end) {
    size_t to = from + token->len;
    if (token->special) {
        const struct tok__run *run = run_at(e, from);
        size_t run_begin = run > e->runs ? run[-1].end : 0;
        begin = begin > run_begin ? begin : run_begin;
        end = end < run->end ? end : run->end;
    }
    if (from > begin && word_char_at(e, char_before(e->text, from), from))
        return false;
    return to == end || !word_char_at(e, to, end);
}

static size_t space_begin(const struct tok__encoder *e, size_t at, size_t begin) {
    while (at > begin) {
        size_t before = char_before(e->text, at);
        uint32_t cp;
        if (utf8_decode(e->text + before, at - before, &cp) <= 0 || !tok__is_space(cp))
            break;
        at = before;
    }
    return at;
}

static size_t space_end(const struct tok__encoder *e, size_t at, size_t end) {
    while (at < end) {
        uint32_t cp;
        int step = utf8_decode(e->text + at, end - at, &cp);
        if (step <= 0 || !tok__is_space(cp))
            break;
        at += (size_t)step;
    }
    return at;
}

static enum err split_rest(struct tok__encoder *e, int pass, size_t begin, size_t end) {
    if (begin >= end)
        return ERR_OK;
    if (pass == 0)
        return tok__split_added(e, 1, begin, end);
    return tok__split_stages(e, 0, e->text + begin, end - begin);
}

enum err tok__split_added(struct tok__encoder *e, int pass, size_t begin, size_t end) {
    const struct tok__added_set *set = &e->t->added[pass];
    size_t done = begin;        // text handed on
    size_t space_known = begin; // white space from the last rstrip up to here, so it is read once
    for (size_t at = begin; at < end && set->n;) {
        uint8_t b = (uint8_t)e->text[at];
        if (set->bucket[b] == set->bucket[b + 1]) {
            at++;
            continue;
        }
        struct candidate c = look_at(e, set, at, end);
        if (!c.best) {
            at += c.skip;
            continue;
        }
        size_t from = at, to = at + c.best->len;
        at = to;
        if (c.best->single_word && !stands_alone(e, c.best, from, begin, end))
            continue;
        // `done` may be beyond `from`: an rstrip takes white space that another token begins with.
        if (c.best->lstrip)
            from = done < from ? space_begin(e, from, done) : done;
        if (c.best->rstrip) {
            if (to < space_known)
                to = space_known;
            else
                to = space_known = space_end(e, to, end);
        }
        if (from >= to)
            continue; // stripped away: nothing of it is left
        enum err err = split_rest(e, pass, done, from);
        if (err == ERR_OK)
            err = tok__emit(e, c.best->id);
        if (err != ERR_OK)
            return err;
        done = to;
    }
    return split_rest(e, pass, done, end);
}

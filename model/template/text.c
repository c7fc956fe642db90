// SPDX-License-Identifier: Apache-2.0
// Stripping, replacing, splitting into lines and padding, shared by filters and methods.
#include "model/template/builtins.h"
#include "model/template/ctx.h"
#include "model/template/str.h"
#include "model/template/unicode.h"
#include <string.h>

struct char_set {
    const struct tpl_str *chars; // NULL: white space
    uint64_t ascii[2];
};

static enum err in_set(struct tpl_ctx *c, const struct char_set *set, uint32_t cp, const char *p,
                       size_t len, bool *out) {
    if (!set->chars) {
        *out = tpl_uc_is(TPL_UC_SPACE, cp);
        return ERR_OK;
    }
    if (cp < 0x80) {
        *out = set->ascii[cp / 64] >> (cp % 64) & 1;
        return ERR_OK;
    }
    *out = tpl_str_find(set->chars, 0, set->chars->len, p, len) != SIZE_MAX;
    return tpl_step(c, set->chars->len);
}

enum err tpl_str_strip(struct tpl_ctx *c, const struct tpl_str *s, const struct tpl_str *chars,
                       int sides, struct tpl_val *out) {
    struct char_set set = {.chars = chars};
    size_t begin = 0, end = s->len;
    bool in = true;
    uint32_t cp;
    enum err e = tpl_step(c, chars ? chars->len : 0);
    for (size_t i = 0; chars && i < chars->len; i++) {
        unsigned char ch = (unsigned char)chars->p[i];
        if (ch < 0x80)
            set.ascii[ch / 64] |= UINT64_C(1) << (ch % 64);
    }
    while (!e && (sides & 1) && begin < end) {
        size_t len = tpl_uc_next(s->p + begin, end - begin, &cp);
        e = in_set(c, &set, cp, s->p + begin, len, &in);
        if (!in)
            break;
        begin += len;
    }
    while (!e && (sides & 2) && begin < end) {
        size_t len = tpl_uc_prev(s->p + begin, end - begin, &cp);
        e = in_set(c, &set, cp, s->p + end - len, len, &in);
        if (!in)
            break;
        end -= len;
    }
    if (!e)
        e = tpl_step(c, s->len - (end - begin));
    return e ? e : tpl_str_sub(c, s, begin, end, out);
}

static enum err replace_empty(struct tpl_sb *b, const struct tpl_str *s, const struct tpl_str *to,
                              int64_t count) {
    enum err e = ERR_OK;
    size_t at = 0;
    uint32_t cp;
    for (; !e && count != 0; count--) {
        e = tpl_sb_str(b, to);
        if (e || at >= s->len)
            break;
        size_t len = tpl_uc_next(s->p + at, s->len - at, &cp);
        e = tpl_sb_sub(b, s, at, at + len);
        at += len;
    }
    return e ? e : tpl_sb_sub(b, s, at, s->len);
}

enum err tpl_str_replace(struct tpl_ctx *c, const struct tpl_str *s, const struct tpl_str *from,
                         const struct tpl_str *to, int64_t count, struct tpl_val *out) {
    struct tpl_sb b;
    size_t at = 0;
    enum err e = tpl_step(c, s->len);
    if (count < 0)
        count = -1;
    tpl_sb_init(&b, c);
    if (!e && from->len == 0) {
        e = replace_empty(&b, s, to, count);
        at = s->len;
    }
    for (; !e && from->len && count != 0; count--) {
        size_t hit = tpl_str_find(s, at, s->len, from->p, from->len);
        if (hit == SIZE_MAX)
            break;
        e = tpl_sb_sub(&b, s, at, hit);
        if (!e)
            e = tpl_sb_str(&b, to);
        if (!e)
            e = tpl_step(c, from->len);
        at = hit + from->len;
    }
    if (!e && at == 0 && from->len) { // nothing was found
        *out = tpl_str(s);
        return ERR_OK;
    }
    if (!e)
        e = tpl_sb_sub(&b, s, at, s->len);
    return e ? e : tpl_sb_finish(&b, out);
}

static bool ends_line(uint32_t cp) {
    return (cp >= 0x0a && cp <= 0x0d) || (cp >= 0x1c && cp <= 0x1e) || cp == 0x85 || cp == 0x2028 ||
           cp == 0x2029;
}

enum err tpl_str_splitlines(struct tpl_ctx *c, const struct tpl_str *s, bool keep_ends,
                            struct tpl_list **out) {
    struct tpl_list_builder b = {0};
    struct tpl_val line;
    size_t begin = 0;
    enum err e = tpl_list_push(c, &b, NULL);
    if (!e)
        e = tpl_step(c, s->len);
    for (size_t at = 0; !e && at < s->len;) {
        uint32_t cp;
        size_t len = tpl_uc_next(s->p + at, s->len - at, &cp);
        if (!ends_line(cp)) {
            at += len;
            continue;
        }
        if (cp == '\r' && at + 1 < s->len && s->p[at + 1] == '\n')
            len = 2;
        e = tpl_str_sub(c, s, begin, keep_ends ? at + len : at, &line);
        if (!e)
            e = tpl_list_push(c, &b, &line);
        begin = at += len;
    }
    if (!e && begin < s->len) {
        e = tpl_str_sub(c, s, begin, s->len, &line);
        if (!e)
            e = tpl_list_push(c, &b, &line);
    }
    *out = b.list;
    return e;
}

enum err tpl_str_pad(struct tpl_ctx *c, const struct tpl_str *s, int64_t left, int64_t right,
                     const struct tpl_str *fill, struct tpl_val *out) {
    static const struct tpl_str space = {.p = " ", .len = 1, .chars = 1};
    struct tpl_sb b;
    if (left <= 0 && right <= 0) {
        *out = tpl_str(s);
        return ERR_OK;
    }
    if (!fill)
        fill = &space;
    tpl_sb_init(&b, c);
    enum err e = tpl_sb_fill(&b, fill, left > 0 ? (size_t)left : 0);
    if (!e)
        e = tpl_sb_str(&b, s);
    if (!e)
        e = tpl_sb_fill(&b, fill, right > 0 ? (size_t)right : 0);
    if (!e)
        e = tpl_sb_finish(&b, out);
    return !e && s->markup ? tpl_str_markup(c, out->u.s, true, out) : e;
}

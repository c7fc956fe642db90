// SPDX-License-Identifier: Apache-2.0
#include "model/template/str.h"
#include "base/mem.h"
#include "base/utf8.h"
#include "model/template/ctx.h"
#include "model/template/unicode.h"
#include <string.h>

struct tpl_str *tpl_str_const(struct arena *a, const char *p, size_t len) {
    struct tpl_str *s = arena_zalloc(a, sizeof *s);
    char *copy = arena_strndup(a, p, len);
    if (!s || !copy)
        return NULL;
    s->p = copy;
    s->len = len;
    s->chars = utf8_count(copy, len);
    return s;
}

static enum err new_header(struct tpl_ctx *c, struct tpl_str s, struct tpl_val *out) {
    struct tpl_str *to;
    enum err e = tpl_alloc(c, 1, sizeof *to, &to);
    if (e)
        return e;
    *to = s;
    *out = tpl_str(to);
    return ERR_OK;
}

enum err tpl_str_new(struct tpl_ctx *c, const char *p, size_t len, bool literal,
                     struct tpl_val *out) {
    char *copy;
    enum err e = tpl_alloc(c, len + 1, 1, &copy);
    if (e)
        return e;
    if (len)
        memcpy(copy, p, len);
    struct tpl_str s = {.p = copy, .len = len, .chars = utf8_count(copy, len), .literal = literal};
    return new_header(c, s, out);
}

enum err tpl_str_z(struct tpl_ctx *c, const char *s, struct tpl_val *out) {
    return tpl_str_new(c, s, strlen(s), false, out);
}

enum err tpl_str_markup(struct tpl_ctx *c, const struct tpl_str *s, bool markup,
                        struct tpl_val *out) {
    if (s->markup == markup) {
        *out = tpl_str(s);
        return ERR_OK;
    }
    struct tpl_str copy = *s;
    copy.markup = markup;
    return new_header(c, copy, out);
}

bool tpl_str_literal(const struct tpl_str *s) {
    if (s->n_runs == 0)
        return s->literal && s->len;
    for (size_t i = 0; i < s->n_runs; i++) {
        if (s->runs[i].literal)
            return true;
    }
    return false;
}

static size_t run_end(const struct tpl_str *s, size_t i) {
    return i + 1 == s->n_runs ? s->len : s->runs[i].end;
}

bool tpl_str_run(const struct tpl_str *s, size_t i, size_t *begin, size_t *end) {
    *begin = i ? s->runs[i - 1].end : 0;
    *end = s->n_runs ? run_end(s, i) : s->len;
    return s->n_runs ? s->runs[i].literal : s->literal;
}

enum err tpl_str_sub(struct tpl_ctx *c, const struct tpl_str *s, size_t begin, size_t end,
                     struct tpl_val *out) {
    if (begin == 0 && end == s->len) {
        *out = tpl_str(s);
        return ERR_OK;
    }
    struct tpl_str v = {
        .p = s->p + begin, .len = end - begin, .literal = s->literal, .markup = s->markup};
    // Counting characters and finding runs is linear, which a loop could make expensive.
    enum err e = tpl_step(c, (s->chars == s->len ? 0 : v.len) + s->n_runs * sizeof *s->runs);
    if (e)
        return e;
    v.chars = s->chars == s->len ? v.len : utf8_count(v.p, v.len);
    if (s->n_runs) {
        size_t first = 0, last;
        while (run_end(s, first) <= begin && first + 1 < s->n_runs)
            first++;
        for (last = first; last + 1 < s->n_runs && run_end(s, last) < end;)
            last++;
        v.literal = s->runs[first].literal;
        if (last > first) {
            struct tpl_run *runs;
            e = tpl_alloc(c, last - first + 1, sizeof *runs, &runs);
            if (e)
                return e;
            for (size_t i = first; i <= last; i++)
                runs[i - first] = (struct tpl_run){run_end(s, i) - begin, s->runs[i].literal};
            v.runs = runs;
            v.n_runs = last - first + 1;
        }
    }
    return new_header(c, v, out);
}

size_t tpl_str_offset(const struct tpl_str *s, size_t chars) {
    if (chars >= s->chars)
        return s->len;
    if (s->chars == s->len)
        return chars;
    size_t at = 0;
    while (chars--) {
        at++;
        while (at < s->len && ((unsigned char)s->p[at] & 0xc0) == 0x80)
            at++;
    }
    return at;
}

bool tpl_str_is(const struct tpl_str *s, const char *z) {
    return strlen(z) == s->len && memcmp(s->p, z, s->len) == 0;
}

bool tpl_str_same(const struct tpl_str *a, const struct tpl_str *b) {
    return a == b || (a->len == b->len && (a->p == b->p || memcmp(a->p, b->p, a->len) == 0));
}

size_t tpl_str_find(const struct tpl_str *s, size_t from, size_t to, const char *needle, size_t n) {
    const char *hit = to - from >= n ? memmem(s->p + from, to - from, needle, n) : NULL;
    return hit ? (size_t)(hit - s->p) : SIZE_MAX;
}

enum err tpl_str_rfind(struct tpl_ctx *c, const struct tpl_str *s, size_t from, size_t to,
                       const char *needle, size_t n, size_t *at) {
    *at = SIZE_MAX;
    while (to - from >= n) {
        const char *hit = memrchr(s->p + from, needle[0], to - n + 1 - from);
        size_t same = 0;
        if (!hit)
            break;
        while (same < n && hit[same] == needle[same])
            same++;
        enum err e = tpl_step(c, same); // what makes this quadratic is paid for
        if (e)
            return e;
        if (same == n) {
            *at = (size_t)(hit - s->p);
            break;
        }
        to = (size_t)(hit - s->p) + n - 1;
    }
    return ERR_OK;
}

// --- growing storage
// -------------------------------------------------------------------------------

static enum err grow_data(struct tpl_ctx *c, struct tpl_tail *t, size_t more) {
    if (more <= t->cap - t->len)
        return ERR_OK;
    size_t need, cap;
    char *data;
    if (!mem_add(t->len, more, &need) || need > SIZE_MAX / 4)
        return tpl_fail_limit(c, "much memory");
    // Small strings are seldom appended to, so they get no spare room.
    cap = need < 64 ? need : need + need / 2;
    if (c->arena.max && cap > c->arena.max)
        cap = need;
    enum err e = tpl_alloc(c, cap, 1, &data);
    if (e)
        return e;
    if (t->len)
        memcpy(data, t->data, t->len);
    t->data = data;
    t->cap = cap;
    return ERR_OK;
}

static enum err push_run(struct tpl_ctx *c, struct tpl_tail *t, struct tpl_run r) {
    if (t->n_runs == t->cap_runs) {
        size_t cap = t->cap_runs ? t->cap_runs * 2 : 4;
        struct tpl_run *v;
        enum err e = tpl_alloc(c, cap, sizeof *v, &v);
        if (e)
            return e;
        if (t->n_runs)
            memcpy(v, t->runs, t->n_runs * sizeof *v);
        t->runs = v;
        t->cap_runs = cap;
    }
    t->runs[t->n_runs++] = r;
    return ERR_OK;
}

// Appends n bytes of one provenance; *uniform is that of everything so far while there are no runs.
static enum err tail_add(struct tpl_ctx *c, struct tpl_tail *t, const char *p, size_t n,
                         bool literal, bool *uniform) {
    enum err e = n ? grow_data(c, t, n) : ERR_OK;
    if (e || n == 0)
        return e;
    size_t before = t->len;
    if (before == 0) {
        *uniform = literal;
    } else if (t->n_runs == 0 && literal != *uniform) {
        e = push_run(c, t, (struct tpl_run){before, *uniform});
        if (!e)
            e = push_run(c, t, (struct tpl_run){before + n, literal});
    } else if (t->n_runs && t->runs[t->n_runs - 1].literal == literal) {
        t->runs[t->n_runs - 1].end = before + n; // older strings end at their own length
    } else if (t->n_runs) {
        e = push_run(c, t, (struct tpl_run){before + n, literal});
    }
    if (e)
        return e;
    memcpy(t->data + before, p, n);
    t->len += n;
    return ERR_OK;
}

static enum err tail_add_part(struct tpl_ctx *c, struct tpl_tail *t, const struct tpl_str *s,
                              size_t begin, size_t end, bool *uniform) {
    if (s->n_runs == 0)
        return tail_add(c, t, s->p + begin, end - begin, s->literal, uniform);
    size_t at = begin;
    for (size_t i = 0; i < s->n_runs && at < end; i++) {
        size_t stop = run_end(s, i) < end ? run_end(s, i) : end;
        if (stop <= at)
            continue;
        enum err e = tail_add(c, t, s->p + at, stop - at, s->runs[i].literal, uniform);
        if (e)
            return e;
        at = stop;
    }
    return ERR_OK;
}

// True if nothing was appended to a's storage since a was made, so that a may grow in place.
static bool newest(const struct tpl_str *a) {
    const struct tpl_tail *t = a->tail;
    return t && a->p == t->data && a->len == t->len && a->n_runs == t->n_runs &&
           (a->n_runs == 0 || a->runs == t->runs);
}

enum err tpl_str_concat(struct tpl_ctx *c, const struct tpl_str *a, const struct tpl_str *b,
                        struct tpl_val *out) {
    bool markup = a->markup || b->markup;
    if (a->len == 0 || b->len == 0)
        return tpl_str_markup(c, a->len ? a : b, markup, out);
    struct tpl_tail *t = a->tail;
    bool uniform = a->literal;
    enum err e = tpl_step(c, b->len);
    if (!e && !(newest(a) && t->cap - t->len >= b->len)) {
        e = tpl_alloc(c, 1, sizeof *t, &t);
        if (!e)
            e = grow_data(c, t, a->len + b->len);
        if (!e)
            e = tail_add_part(c, t, a, 0, a->len, &uniform);
        if (!e)
            e = tpl_step(c, a->len);
    }
    if (!e)
        e = tail_add_part(c, t, b, 0, b->len, &uniform);
    if (e)
        return e;
    struct tpl_str s = {.p = t->data,
                        .len = t->len,
                        .chars = a->chars + b->chars,
                        .runs = t->runs,
                        .n_runs = t->n_runs,
                        .tail = t,
                        .literal = uniform,
                        .markup = markup};
    return new_header(c, s, out);
}

// --- builder
// ---------------------------------------------------------------------------------------

void tpl_sb_init(struct tpl_sb *b, struct tpl_ctx *c) {
    *b = (struct tpl_sb){.c = c};
}

void tpl_sb_init_output(struct tpl_sb *b, struct tpl_ctx *c, struct chat_output *out) {
    *b = (struct tpl_sb){.c = c, .top = out};
}

static enum err output_add(struct tpl_sb *b, const char *p, size_t n, bool literal) {
    struct chat_output *o = b->top;
    size_t begin = o->text.len;
    buf_append(&o->text, p, n);
    enum err e = buf_err(&o->text);
    if (e)
        return e == ERR_LIMIT ? tpl_fail_limit(b->c, "much output")
                              : err_set(b->c->info, e, NULL, "out of memory");
    if (o->n_spans && o->spans[o->n_spans - 1].literal == literal) {
        o->spans[o->n_spans - 1].end = begin + n;
        return ERR_OK;
    }
    if (o->n_spans == b->cap_spans) {
        size_t cap = b->cap_spans ? b->cap_spans * 2 : 16;
        struct chat_span *v = mem_realloc(o->spans, cap * sizeof *v);
        if (!v)
            return err_set(b->c->info, ERR_NOMEM, NULL, "out of memory");
        o->spans = v;
        b->cap_spans = cap;
    }
    o->spans[o->n_spans++] = (struct chat_span){begin, begin + n, literal};
    return ERR_OK;
}

enum err tpl_sb_add(struct tpl_sb *b, const char *p, size_t n, bool literal) {
    if (n == 0)
        return ERR_OK;
    enum err e = tpl_step(b->c, n);
    if (e)
        return e;
    if (b->top)
        return output_add(b, p, n, literal);
    if (!b->tail) {
        e = tpl_alloc(b->c, 1, sizeof *b->tail, &b->tail);
        if (e)
            return e;
    }
    // A builder is written to piece by piece, so it starts with some room.
    if (b->tail->cap == 0)
        e = grow_data(b->c, b->tail, n < 48 ? 48 : n);
    if (!e)
        e = tail_add(b->c, b->tail, p, n, literal, &b->literal);
    if (!e)
        b->chars += utf8_count(p, n);
    return e;
}

enum err tpl_sb_puts(struct tpl_sb *b, const char *s) {
    return tpl_sb_add(b, s, strlen(s), false);
}

enum err tpl_sb_sub(struct tpl_sb *b, const struct tpl_str *s, size_t begin, size_t end) {
    if (s->n_runs == 0)
        return tpl_sb_add(b, s->p + begin, end - begin, s->literal);
    size_t at = begin;
    for (size_t i = 0; i < s->n_runs && at < end; i++) {
        size_t stop = run_end(s, i) < end ? run_end(s, i) : end;
        if (stop <= at)
            continue;
        enum err e = tpl_sb_add(b, s->p + at, stop - at, s->runs[i].literal);
        if (e)
            return e;
        at = stop;
    }
    return ERR_OK;
}

enum err tpl_sb_str(struct tpl_sb *b, const struct tpl_str *s) {
    return tpl_sb_sub(b, s, 0, s->len);
}

enum err tpl_sb_char(struct tpl_sb *b, uint32_t cp, bool literal) {
    char u[4];
    return tpl_sb_add(b, u, (size_t)utf8_encode(cp, u), literal);
}

enum err tpl_sb_fill(struct tpl_sb *b, const struct tpl_str *s, size_t times) {
    size_t total;
    if (!mem_mul(s->len, times, &total) || (b->c->arena.max && total > b->c->arena.max))
        return tpl_fail_limit(b->c, "much memory");
    for (size_t i = 0; i < times && s->len; i++) {
        enum err e = tpl_sb_str(b, s);
        if (e)
            return e;
    }
    return ERR_OK;
}

enum err tpl_sb_finish(struct tpl_sb *b, struct tpl_val *out) {
    const struct tpl_tail *t = b->tail;
    struct tpl_str s = {.p = "", .tail = b->tail, .chars = b->chars, .literal = b->literal};
    if (t) {
        s.p = t->data;
        s.len = t->len;
        s.runs = t->runs;
        s.n_runs = t->n_runs;
    }
    return new_header(b->c, s, out);
}

enum err tpl_sb_escaped(struct tpl_sb *b, const struct tpl_str *s) {
    size_t from = 0;
    if (s->markup)
        return tpl_sb_str(b, s);
    for (size_t i = 0; i <= s->len; i++) {
        const char *entity = NULL;
        switch (i < s->len ? s->p[i] : '\0') {
        case '&':
            entity = "&amp;";
            break;
        case '<':
            entity = "&lt;";
            break;
        case '>':
            entity = "&gt;";
            break;
        case '\'':
            entity = "&#39;";
            break;
        case '"':
            entity = "&#34;";
            break;
        default:
            break;
        }
        if (!entity && i < s->len)
            continue;
        enum err e = tpl_sb_sub(b, s, from, i);
        if (!e && entity)
            e = tpl_sb_add(b, entity, strlen(entity), tpl_str_literal(s));
        if (e)
            return e;
        from = i + 1;
    }
    return ERR_OK;
}

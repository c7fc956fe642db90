// SPDX-License-Identifier: Apache-2.0
// Members: attributes, elements, slices, and the paths that filters take ("a.b.0").
#include "model/template/builtins.h"
#include "model/template/eval.h"
#include "model/template/unicode.h"
#include <stdio.h>
#include <string.h>

static enum err unsafe(struct tpl_ctx *c, const struct tpl_val *of, const struct tpl_str *name,
                       struct tpl_val *out) {
    char *text;
    enum err e = tpl_alloc(c, 200, 1, &text);
    if (e)
        return e;
    (void)snprintf(text, 200, "access to attribute '%.*s' of '%s' object is unsafe.",
                   (int)(name->len < 80 ? name->len : 80), name->p, tpl_type_name(of));
    return tpl_undef_hint(c, text, out);
}

// Attributes that every Python object has, or the ones here have. They exist, but may not be used.
static bool is_internal(const struct tpl_str *name) {
    static const char *const names[] = {
        "__class__",     "__init__",   "__doc__",          "__len__",
        "__getitem__",   "__iter__",   "__add__",          "__mul__",
        "__contains__",  "__str__",    "__repr__",         "__eq__",
        "__ne__",        "__hash__",   "__lt__",           "__le__",
        "__gt__",        "__ge__",     "__new__",          "__dir__",
        "__reduce__",    "__sizeof__", "__getattribute__", "__setattr__",
        "__delattr__",   "__format__", "__subclasshook__", "__init_subclass__",
        "__reduce_ex__", NULL};
    if (name->len < 5 || memcmp(name->p, "__", 2) != 0)
        return false;
    for (size_t i = 0; names[i]; i++) {
        if (tpl_str_is(name, names[i]))
            return true;
    }
    return false;
}

static bool tuple_attribute(const struct tpl_list *l, const struct tpl_str *name,
                            struct tpl_val *out) {
    if (!l->group || !(tpl_str_is(name, "grouper") || tpl_str_is(name, "list")))
        return false;
    *out = l->v[tpl_str_is(name, "list")];
    return true;
}

static bool range_attribute(const struct tpl_range *r, const struct tpl_str *name,
                            struct tpl_val *out) {
    if (tpl_str_is(name, "start"))
        *out = tpl_int(r->start);
    else if (tpl_str_is(name, "stop"))
        *out = tpl_int(r->stop);
    else if (tpl_str_is(name, "step"))
        *out = tpl_int(r->step);
    else
        return false;
    return true;
}

static bool macro_attribute(const struct tpl_macro *m, const struct tpl_str *name,
                            struct tpl_val *out) {
    const struct tpl_def *d = m->node->u.def;
    if (tpl_str_is(name, "name"))
        *out = d->name ? tpl_str(d->name) : tpl_none();
    else if (tpl_str_is(name, "caller"))
        *out = tpl_bool(d->caller);
    else if (tpl_str_is(name, "catch_kwargs"))
        *out = tpl_bool(d->kwargs);
    else if (tpl_str_is(name, "catch_varargs"))
        *out = tpl_bool(d->varargs);
    else
        return false;
    return true;
}

static bool cycler_attribute(const struct tpl_cycler *cy, const struct tpl_str *name,
                             struct tpl_val *out) {
    if (tpl_str_is(name, "current"))
        *out = cy->items.u.l->v[cy->pos];
    else if (tpl_str_is(name, "items"))
        *out = cy->items;
    else if (tpl_str_is(name, "pos"))
        *out = tpl_int((int64_t)cy->pos);
    else
        return false;
    return true;
}

static enum err plain_attribute(struct tpl_ctx *c, const struct tpl_val *of,
                                const struct tpl_str *name, struct tpl_val *out, bool *found) {
    *found = false;
    switch (of->kind) {
    case TPL_TUPLE:
        *found = tuple_attribute(of->u.l, name, out);
        return ERR_OK;
    case TPL_RANGE:
        *found = range_attribute(of->u.range, name, out);
        return ERR_OK;
    case TPL_MACRO:
        *found = macro_attribute(of->u.macro, name, out);
        return ERR_OK;
    case TPL_CYCLER:
        *found = cycler_attribute(of->u.cycler, name, out);
        return ERR_OK;
    case TPL_LOOP:
        return tpl_loop_attribute(c, of->u.loop, name, out, found);
    case TPL_NS: {
        const struct tpl_val key = tpl_str(name), *hit;
        enum err e = tpl_dict_get(c, of->u.d, &key, &hit);
        *found = !e && hit;
        if (*found)
            *out = *hit;
        return e;
    }
    default:
        return ERR_OK;
    }
}

enum err tpl_attribute(struct tpl_ctx *c, const struct tpl_val *of, const struct tpl_str *name,
                       struct tpl_val *out, bool *found) {
    bool refused;
    struct tpl_method *m;
    *found = false;
    if (of->kind == TPL_UNDEF)
        return tpl_fail_undef(c, of);
    enum err e = plain_attribute(c, of, name, out, found);
    if (e || *found)
        return e;
    const struct tpl_fn *fn = tpl_find_method(of, name->p, name->len, &refused);
    if (refused ||
        (!fn && is_internal(name) && (of->kind != TPL_NS || tpl_str_is(name, "__class__")))) {
        *found = true;
        return unsafe(c, of, name, out);
    }
    if (!fn)
        return ERR_OK;
    *found = true;
    e = tpl_alloc(c, 1, sizeof *m, &m);
    if (e)
        return e;
    *m = (struct tpl_method){.self = *of, .fn = fn};
    *out = (struct tpl_val){.kind = TPL_METHOD, .u.method = m};
    return ERR_OK;
}

static bool hashable(const struct tpl_val *v) {
    if (v->kind == TPL_LIST || v->kind == TPL_DICT || v->kind == TPL_VIEW)
        return false;
    for (size_t i = 0; v->kind == TPL_TUPLE && i < v->u.l->n; i++) {
        const struct tpl_val *item = &v->u.l->v[i];
        // Tuples in tuples are left to tpl_hash, which is bounded in depth.
        if (item->kind == TPL_LIST || item->kind == TPL_DICT || item->kind == TPL_VIEW)
            return false;
    }
    return true;
}

// The element number i of a sequence, counted from the end if negative; false if there is none.
static bool position(int64_t i, size_t n, size_t *out) {
    if (i < 0)
        i += (int64_t)n;
    if (i < 0 || (uint64_t)i >= n)
        return false;
    *out = (size_t)i;
    return true;
}

static enum err str_element(struct tpl_ctx *c, const struct tpl_str *s, size_t at,
                            struct tpl_val *out) {
    uint32_t cp;
    size_t begin = tpl_str_offset(s, at);
    enum err e = s->chars == s->len ? ERR_OK : tpl_step(c, begin);
    return e ? e
             : tpl_str_sub(c, s, begin, begin + tpl_uc_next(s->p + begin, s->len - begin, &cp),
                           out);
}

// of[key]; *found is false where Python raises TypeError or LookupError.
static enum err element(struct tpl_ctx *c, const struct tpl_val *of, const struct tpl_val *key,
                        struct tpl_val *out, bool *found) {
    const struct tpl_val *hit = NULL;
    enum err e = ERR_OK;
    int64_t i;
    size_t n, at;
    *found = false;
    if (of->kind == TPL_UNDEF)
        return tpl_fail_undef(c, of);
    if (of->kind == TPL_DICT) {
        if (hashable(key))
            e = tpl_dict_get(c, of->u.d, key, &hit);
        *found = !e && hit;
        if (*found)
            *out = *hit;
        return e;
    }
    if (!tpl_as_int(key, &i) || !tpl_len(of, &n) || !position(i, n, &at))
        return ERR_OK;
    *found = true;
    switch (of->kind) {
    case TPL_LIST:
    case TPL_TUPLE:
        *out = of->u.l->v[at];
        return ERR_OK;
    case TPL_STR:
        return str_element(c, of->u.s, at, out);
    case TPL_RANGE:
        *out = tpl_int(of->u.range->start + of->u.range->step * (int64_t)at);
        return ERR_OK;
    default:
        *found = false;
        return ERR_OK;
    }
}

enum err tpl_getattr(struct tpl_ctx *c, const struct tpl_val *of, const struct tpl_str *name,
                     struct tpl_val *out) {
    bool found;
    const struct tpl_val key = tpl_str(name);
    enum err e = tpl_attribute(c, of, name, out, &found);
    if (!e && !found)
        e = element(c, of, &key, out, &found);
    return e || found ? e : tpl_undef_member(c, of, &key, out);
}

enum err tpl_getitem(struct tpl_ctx *c, const struct tpl_val *of, const struct tpl_val *key,
                     struct tpl_val *out) {
    bool found;
    enum err e = element(c, of, key, out, &found);
    if (!e && !found && key->kind == TPL_STR)
        e = tpl_attribute(c, of, key->u.s, out, &found);
    return e || found ? e : tpl_undef_member(c, of, key, out);
}

// --- slices
// ----------------------------------------------------------------------------------------

struct span {
    int64_t start, step;
    size_t n;
};

// Python's slice.indices, and how many elements that is.
static enum err slice_span(struct tpl_ctx *c, const struct tpl_val bound[3], size_t len,
                           struct span *out) {
    int64_t v[3] = {0, 0, 1}, n = (int64_t)len;
    for (int i = 0; i < 3; i++) {
        if (bound[i].kind != TPL_NONE && !tpl_as_int(&bound[i], &v[i]))
            return tpl_fail(c, "slice indices must be integers or None, not %s",
                            tpl_type_name(&bound[i]));
    }
    int64_t step = v[2];
    if (step == 0)
        return tpl_fail(c, "slice step cannot be zero");
    if (step < -INT64_MAX)
        step = -INT64_MAX;
    int64_t low = step < 0 ? -1 : 0, high = step < 0 ? n - 1 : n;
    for (int i = 0; i < 2; i++) {
        if (bound[i].kind == TPL_NONE) {
            v[i] = (i == 0) == (step > 0) ? low : high;
            continue;
        }
        if (v[i] < 0)
            v[i] += n;
        v[i] = v[i] < low ? low : v[i] > high ? high : v[i];
    }
    out->start = v[0];
    out->step = step;
    out->n = 0;
    if (step > 0 && v[0] < v[1])
        out->n = (size_t)((v[1] - v[0] - 1) / step + 1);
    else if (step < 0 && v[0] > v[1])
        out->n = (size_t)((v[0] - v[1] - 1) / -step + 1);
    return ERR_OK;
}

static enum err slice_list(struct tpl_ctx *c, const struct tpl_val *of, const struct span *s,
                           struct tpl_val *out) {
    struct tpl_list *l;
    enum err e = tpl_step(c, s->n * sizeof *l->v);
    if (!e)
        e = tpl_list_new(c, s->n, &l);
    if (e)
        return e;
    for (size_t i = 0; i < s->n; i++)
        l->v[i] = of->u.l->v[s->start + (int64_t)i * s->step];
    *out = of->kind == TPL_LIST ? tpl_list(l) : tpl_tuple(l);
    return ERR_OK;
}

static enum err slice_range(struct tpl_ctx *c, const struct tpl_range *r, const struct span *s,
                            struct tpl_val *out) {
    struct tpl_range *to;
    enum err e = tpl_alloc(c, 1, sizeof *to, &to);
    if (e)
        return e;
    *to = (struct tpl_range){.start = r->start, .stop = r->start, .step = 1};
    *out = (struct tpl_val){.kind = TPL_RANGE, .u.range = to};
    if (s->n == 0)
        return ERR_OK;
    // Every element that exists fits; a step that is never taken may not.
    if (__builtin_mul_overflow(r->step, s->step, &to->step))
        to->step = 1;
    to->start = r->start + r->step * s->start;
    to->n = (int64_t)s->n;
    if (__builtin_mul_overflow(to->step, to->n, &to->stop) ||
        __builtin_add_overflow(to->start, to->stop, &to->stop))
        to->stop = to->start;
    return ERR_OK;
}

static enum err slice_str(struct tpl_ctx *c, const struct tpl_str *s, const struct span *sp,
                          struct tpl_val *out) {
    struct tpl_sb b;
    enum err e = tpl_step(c, s->len);
    if (e)
        return e;
    size_t at = tpl_str_offset(s, sp->n ? (size_t)sp->start : 0);
    if (sp->step == 1 || sp->n == 0) {
        size_t end = sp->n ? tpl_str_offset(s, (size_t)sp->start + sp->n) : at;
        return tpl_str_sub(c, s, at, end, out);
    }
    tpl_sb_init(&b, c);
    for (size_t i = 0; !e && i < sp->n; i++) {
        uint32_t cp;
        e = tpl_sb_sub(&b, s, at, at + tpl_uc_next(s->p + at, s->len - at, &cp));
        if (i + 1 == sp->n)
            break;
        for (int64_t k = 0; k < sp->step; k++)
            at += tpl_uc_next(s->p + at, s->len - at, &cp);
        for (int64_t k = 0; k > sp->step; k--)
            at -= tpl_uc_prev(s->p, at, &cp);
    }
    if (!e)
        e = tpl_sb_finish(&b, out);
    return !e && s->markup ? tpl_str_markup(c, out->u.s, true, out) : e;
}

enum err tpl_slice(struct tpl_ctx *c, const struct tpl_val *of, const struct tpl_val bound[3],
                   struct tpl_val *out) {
    struct span s = {0};
    size_t n;
    if (of->kind == TPL_UNDEF)
        return tpl_fail_undef(c, of);
    if (of->kind != TPL_LIST && of->kind != TPL_TUPLE && of->kind != TPL_STR &&
        of->kind != TPL_RANGE)
        return tpl_fail(c, "'%s' object is not subscriptable with a slice", tpl_type_name(of));
    (void)tpl_len(of, &n);
    enum err e = slice_span(c, bound, n, &s);
    if (e)
        return e;
    if (of->kind == TPL_STR)
        return slice_str(c, of->u.s, &s, out);
    return of->kind == TPL_RANGE ? slice_range(c, of->u.range, &s, out)
                                 : slice_list(c, of, &s, out);
}

// --- paths
// -----------------------------------------------------------------------------------------

static enum err path_part(struct tpl_ctx *c, const struct tpl_str *s, size_t begin, size_t end,
                          struct tpl_val *out) {
    bool digits = end > begin, ok = false;
    for (size_t i = begin; i < end && digits;) {
        uint32_t cp;
        i += tpl_uc_next(s->p + i, end - i, &cp);
        digits = tpl_uc_is(TPL_UC_DIGIT, cp);
    }
    enum err e = tpl_str_sub(c, s, begin, end, out);
    if (e || !digits)
        return e;
    int64_t v;
    e = tpl_parse_int(c, out->u.s, 10, &v, &ok);
    if (!e && !ok)
        return tpl_fail(c, "invalid number in the attribute '%.*s'",
                        (int)(s->len < 80 ? s->len : 80), s->p);
    *out = tpl_int(v);
    return e;
}

enum err tpl_path_parse(struct tpl_ctx *c, const struct tpl_val *attribute, struct tpl_path *out) {
    struct tpl_list_builder b = {0};
    enum err e = ERR_OK;
    *out = (struct tpl_path){0};
    if (attribute->kind == TPL_ABSENT || attribute->kind == TPL_NONE)
        return ERR_OK;
    const struct tpl_str *s = attribute->kind == TPL_STR ? attribute->u.s : NULL;
    e = s ? tpl_step(c, s->len) : tpl_list_push(c, &b, attribute);
    for (size_t begin = 0, i = 0; !e && s && i <= s->len; i++) {
        struct tpl_val part;
        if (i < s->len && s->p[i] != '.')
            continue;
        e = path_part(c, s, begin, i, &part);
        if (!e)
            e = tpl_list_push(c, &b, &part);
        begin = i + 1;
    }
    if (e)
        return e;
    out->n = b.list->n;
    out->part = b.list->v;
    return ERR_OK;
}

enum err tpl_path_get(struct tpl_ctx *c, const struct tpl_path *p, const struct tpl_val *item,
                      const struct tpl_val *missing, struct tpl_val *out) {
    struct tpl_val v = *item;
    for (size_t i = 0; i < p->n; i++) {
        enum err e = tpl_getitem(c, &v, &p->part[i], out);
        if (e)
            return e;
        v = *out;
        if (v.kind == TPL_UNDEF && missing && missing->kind != TPL_ABSENT &&
            missing->kind != TPL_NONE)
            v = *missing;
    }
    *out = v;
    return ERR_OK;
}

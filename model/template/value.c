// SPDX-License-Identifier: Apache-2.0
// Truth, length, equality and order, as Python defines them.
#include "model/template/value.h"
#include "model/template/builtins.h"
#include "model/template/ctx.h"
#include "model/template/eval.h"
#include "model/template/str.h"
#include <math.h>
#include <string.h>

const char *tpl_type_name(const struct tpl_val *v) {
    switch (v->kind) {
    case TPL_ABSENT:
    case TPL_UNDEF:
        return "Undefined";
    case TPL_NONE:
        return "NoneType";
    case TPL_BOOL:
        return "bool";
    case TPL_INT:
        return "int";
    case TPL_FLOAT:
        return "float";
    case TPL_STR:
        return v->u.s->markup ? "Markup" : "str";
    case TPL_LIST:
        return "list";
    case TPL_TUPLE:
        return "tuple";
    case TPL_DICT:
        return "dict";
    case TPL_VIEW:
        return v->u.view->kind == TPL_VIEW_KEYS     ? "dict_keys"
               : v->u.view->kind == TPL_VIEW_VALUES ? "dict_values"
                                                    : "dict_items";
    case TPL_RANGE:
        return "range";
    case TPL_ITER:
        return v->u.it->type;
    case TPL_NS:
        return "Namespace";
    case TPL_LOOP:
        return "LoopContext";
    case TPL_MACRO:
        return "Macro";
    case TPL_FUNC:
        return "function";
    case TPL_METHOD:
        return "method";
    case TPL_CYCLER:
        return "Cycler";
    case TPL_JOINER:
        return "Joiner";
    }
    return "object";
}

bool tpl_len(const struct tpl_val *v, size_t *n) {
    switch (v->kind) {
    case TPL_UNDEF:
        *n = 0;
        return true;
    case TPL_STR:
        *n = v->u.s->chars;
        return true;
    case TPL_LIST:
    case TPL_TUPLE:
        *n = v->u.l->n;
        return true;
    case TPL_DICT:
        *n = v->u.d->n;
        return true;
    case TPL_VIEW:
        *n = v->u.view->d->n;
        return true;
    case TPL_RANGE:
        *n = (size_t)v->u.range->n;
        return true;
    default:
        return false;
    }
}

bool tpl_truth(const struct tpl_val *v) {
    size_t n;
    switch (v->kind) {
    case TPL_ABSENT:
    case TPL_UNDEF:
    case TPL_NONE:
        return false;
    case TPL_BOOL:
        return v->u.b;
    case TPL_INT:
        return v->u.i != 0;
    case TPL_FLOAT:
        return v->u.f < 0 || v->u.f > 0 || isnan(v->u.f);
    default:
        return !tpl_len(v, &n) || n > 0;
    }
}

bool tpl_is_number(const struct tpl_val *v) {
    return v->kind == TPL_INT || v->kind == TPL_FLOAT || v->kind == TPL_BOOL;
}

bool tpl_as_int(const struct tpl_val *v, int64_t *out) {
    if (v->kind != TPL_INT && v->kind != TPL_BOOL)
        return false;
    *out = v->kind == TPL_INT ? v->u.i : v->u.b;
    return true;
}

double tpl_as_double(const struct tpl_val *v) {
    int64_t i;
    return tpl_as_int(v, &i) ? (double)i : v->u.f;
}

// -1, 0, 1, or 2 where a NaN takes part. Exact for integers beyond 2^53 too.
static int compare_numbers(const struct tpl_val *a, const struct tpl_val *b) {
    int64_t x, y;
    bool a_int = tpl_as_int(a, &x), b_int = tpl_as_int(b, &y);
    if (a_int && b_int)
        return (x > y) - (x < y);
    long double p = a_int ? (long double)x : (long double)a->u.f;
    long double q = b_int ? (long double)y : (long double)b->u.f;
    if (isnan(p) || isnan(q))
        return 2;
    return (p > q) - (p < q);
}

static int compare_strings(const struct tpl_str *a, const struct tpl_str *b) {
    // Bytes of UTF-8 are in the order of code points.
    size_t n = a->len < b->len ? a->len : b->len;
    int r = n ? memcmp(a->p, b->p, n) : 0;
    return r < 0 ? -1 : r > 0 ? 1 : (a->len > b->len) - (a->len < b->len);
}

static enum err equal_lists(struct tpl_ctx *c, const struct tpl_list *a, const struct tpl_list *b,
                            bool *out) {
    *out = a->n == b->n;
    for (size_t i = 0; *out && i < a->n; i++) {
        enum err e = tpl_equal(c, &a->v[i], &b->v[i], out);
        if (e)
            return e;
    }
    return ERR_OK;
}

static enum err equal_dicts(struct tpl_ctx *c, const struct tpl_dict *a, const struct tpl_dict *b,
                            bool *out) {
    *out = a->n == b->n;
    for (size_t i = 0; *out && i < a->n; i++) {
        const struct tpl_val *other;
        enum err e = tpl_dict_get(c, b, &a->e[i].key, &other);
        if (e)
            return e;
        *out = other != NULL;
        if (other)
            e = tpl_equal(c, &a->e[i].val, other, out);
        if (e)
            return e;
    }
    return ERR_OK;
}

static bool equal_ranges(const struct tpl_range *a, const struct tpl_range *b) {
    return a->n == b->n &&
           (a->n == 0 || (a->start == b->start && (a->n == 1 || a->step == b->step)));
}

static bool same_object(const struct tpl_val *a, const struct tpl_val *b) {
    switch (a->kind) {
    case TPL_VIEW:
        return a->u.view == b->u.view;
    case TPL_ITER:
        return a->u.it == b->u.it;
    case TPL_NS:
        return a->u.d == b->u.d;
    case TPL_LOOP:
        return a->u.loop == b->u.loop;
    case TPL_MACRO:
        return a->u.macro == b->u.macro;
    case TPL_FUNC:
        return a->u.fn == b->u.fn;
    case TPL_METHOD:
        return a->u.method == b->u.method;
    case TPL_CYCLER:
    case TPL_JOINER:
        return a->u.cycler == b->u.cycler;
    default:
        return false;
    }
}

static enum err equal_same_kind(struct tpl_ctx *c, const struct tpl_val *a, const struct tpl_val *b,
                                bool *out) {
    enum err e;
    switch (a->kind) {
    case TPL_ABSENT:
    case TPL_UNDEF:
    case TPL_NONE:
        *out = true;
        return ERR_OK;
    case TPL_STR:
        *out = tpl_str_same(a->u.s, b->u.s);
        return a->u.s->len == b->u.s->len ? tpl_step(c, a->u.s->len) : ERR_OK;
    case TPL_LIST:
    case TPL_TUPLE:
    case TPL_DICT:
        e = tpl_enter(c);
        if (e)
            return e;
        e = a->kind == TPL_DICT ? equal_dicts(c, a->u.d, b->u.d, out)
                                : equal_lists(c, a->u.l, b->u.l, out);
        tpl_leave(c);
        return e;
    case TPL_RANGE:
        *out = equal_ranges(a->u.range, b->u.range);
        return ERR_OK;
    default:
        *out = same_object(a, b);
        return ERR_OK;
    }
}

enum err tpl_equal(struct tpl_ctx *c, const struct tpl_val *a, const struct tpl_val *b, bool *out) {
    *out = false;
    enum err e = tpl_step(c, 0);
    if (e)
        return e;
    if (tpl_is_number(a) && tpl_is_number(b)) {
        *out = compare_numbers(a, b) == 0;
        return ERR_OK;
    }
    return a->kind == b->kind ? equal_same_kind(c, a, b, out) : ERR_OK;
}

static const char *op_text(enum tpl_cmp op) {
    static const char *const text[] = {"<", "<=", ">", ">=", "==", "!=", "in", "not in"};
    return text[op];
}

static bool ordered(enum tpl_cmp op, int sign) {
    switch (op) {
    case TPL_LT:
        return sign < 0;
    case TPL_LE:
        return sign <= 0;
    case TPL_GT:
        return sign > 0 && sign != 2;
    case TPL_GE:
        return sign >= 0 && sign != 2;
    default:
        return false;
    }
}

static enum err order_lists(struct tpl_ctx *c, enum tpl_cmp op, const struct tpl_list *a,
                            const struct tpl_list *b, bool *out) {
    for (size_t i = 0; i < a->n && i < b->n; i++) {
        bool same;
        enum err e = tpl_equal(c, &a->v[i], &b->v[i], &same);
        if (e)
            return e;
        if (!same)
            return tpl_compare(c, op, &a->v[i], &b->v[i], out);
    }
    *out = ordered(op, (a->n > b->n) - (a->n < b->n));
    return ERR_OK;
}

static enum err order(struct tpl_ctx *c, enum tpl_cmp op, const struct tpl_val *a,
                      const struct tpl_val *b, bool *out) {
    if (a->kind == TPL_UNDEF || b->kind == TPL_UNDEF)
        return tpl_fail_undef(c, a->kind == TPL_UNDEF ? a : b);
    if (tpl_is_number(a) && tpl_is_number(b)) {
        *out = ordered(op, compare_numbers(a, b));
        return ERR_OK;
    }
    if (a->kind == TPL_STR && b->kind == TPL_STR) {
        *out = ordered(op, compare_strings(a->u.s, b->u.s));
        return tpl_step(c, a->u.s->len < b->u.s->len ? a->u.s->len : b->u.s->len);
    }
    if ((a->kind == TPL_LIST || a->kind == TPL_TUPLE) && a->kind == b->kind) {
        enum err e = tpl_enter(c);
        if (e)
            return e;
        e = order_lists(c, op, a->u.l, b->u.l, out);
        tpl_leave(c);
        return e;
    }
    return tpl_fail(c, "'%s' not supported between instances of '%s' and '%s'", op_text(op),
                    tpl_type_name(a), tpl_type_name(b));
}

enum err tpl_compare(struct tpl_ctx *c, enum tpl_cmp op, const struct tpl_val *a,
                     const struct tpl_val *b, bool *out) {
    enum err e;
    switch (op) {
    case TPL_EQ:
    case TPL_NE:
        e = tpl_equal(c, a, b, out);
        *out = *out == (op == TPL_EQ);
        return e;
    case TPL_IN:
    case TPL_NOT_IN:
        e = tpl_contains(c, b, a, out);
        *out = *out == (op == TPL_IN);
        return e;
    default:
        e = tpl_step(c, 0);
        return e ? e : order(c, op, a, b, out);
    }
}

static enum err contains_by_reading(struct tpl_ctx *c, const struct tpl_val *box,
                                    const struct tpl_val *item, bool *out) {
    struct tpl_iter *it;
    struct tpl_val v;
    bool done = false;
    enum err e = tpl_iter_open(c, box, &it);
    while (!e && !*out) {
        e = tpl_iter_next(c, it, &v, &done);
        if (e || done)
            break;
        e = tpl_equal(c, &v, item, out);
    }
    return e;
}

enum err tpl_contains(struct tpl_ctx *c, const struct tpl_val *box, const struct tpl_val *item,
                      bool *out) {
    *out = false;
    if (box->kind == TPL_STR) {
        if (item->kind != TPL_STR)
            return tpl_fail(c, "'in <string>' requires string as left operand, not %s",
                            tpl_type_name(item));
        const struct tpl_str *s = box->u.s, *n = item->u.s;
        *out = n->len == 0 || tpl_str_find(s, 0, s->len, n->p, n->len) != SIZE_MAX;
        return tpl_step(c, s->len);
    }
    if (box->kind == TPL_DICT || (box->kind == TPL_VIEW && box->u.view->kind == TPL_VIEW_KEYS)) {
        const struct tpl_val *hit;
        const struct tpl_dict *d = box->kind == TPL_DICT ? box->u.d : box->u.view->d;
        enum err e = tpl_dict_get(c, d, item, &hit);
        *out = !e && hit;
        return e;
    }
    if (!tpl_iterable(box))
        return tpl_fail(c, "argument of type '%s' is not iterable", tpl_type_name(box));
    return contains_by_reading(c, box, item, out);
}

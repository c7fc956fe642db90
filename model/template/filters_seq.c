// SPDX-License-Identifier: Apache-2.0
// Filters on sequences and mappings as a whole.
#include "model/template/builtins.h"
#include "model/template/ctx.h"
#include "model/template/str.h"

static enum err do_length(struct tpl_ctx *c, const struct tpl_call *call, struct tpl_val *out) {
    size_t n;
    if (!tpl_len(&call->self, &n))
        return tpl_fail(c, "object of type '%s' has no len()", tpl_type_name(&call->self));
    *out = tpl_int((int64_t)n);
    return ERR_OK;
}

static enum err do_default(struct tpl_ctx *c, const struct tpl_call *call, struct tpl_val *out) {
    bool missing = call->self.kind == TPL_UNDEF;
    *out = call->self;
    if (!missing && !(tpl_arg_true(call, 1) && !tpl_truth(&call->self)))
        return ERR_OK;
    *out = call->arg[0];
    return out->kind == TPL_ABSENT ? tpl_str_z(c, "", out) : ERR_OK;
}

static enum err do_first(struct tpl_ctx *c, const struct tpl_call *call, struct tpl_val *out) {
    struct tpl_iter *it;
    bool done = false;
    enum err e = tpl_iter_open(c, &call->self, &it);
    if (!e)
        e = tpl_iter_next(c, it, out, &done);
    return !e && done ? tpl_undef_hint(c, "No first item, sequence was empty.", out) : e;
}

static bool reversible(const struct tpl_val *v) {
    size_t n;
    return tpl_len(v, &n);
}

static void reverse(struct tpl_list *l) {
    for (size_t i = 0; i < l->n / 2; i++) {
        struct tpl_val v = l->v[i];
        l->v[i] = l->v[l->n - 1 - i];
        l->v[l->n - 1 - i] = v;
    }
}

static enum err do_last(struct tpl_ctx *c, const struct tpl_call *call, struct tpl_val *out) {
    const struct tpl_val *v = &call->self, last = tpl_int(-1);
    struct tpl_list *l;
    size_t n;
    if (!reversible(v))
        return tpl_fail(c, "'%s' object is not reversible", tpl_type_name(v));
    if (tpl_len(v, &n) && n == 0)
        return tpl_undef_hint(c, "No last item, sequence was empty.", out);
    if (v->kind == TPL_LIST || v->kind == TPL_TUPLE || v->kind == TPL_STR)
        return tpl_getitem(c, v, &last, out);
    enum err e = tpl_to_list(c, v, &l);
    if (!e)
        *out = l->v[l->n - 1];
    return e;
}

static enum err do_list(struct tpl_ctx *c, const struct tpl_call *call, struct tpl_val *out) {
    struct tpl_list *l;
    enum err e = tpl_to_list(c, &call->self, &l);
    if (!e)
        *out = tpl_list(l);
    return e;
}

// An iterator over a list, under the name that Python gives it.
static enum err iterator_over(struct tpl_ctx *c, struct tpl_list *l, const char *type,
                              struct tpl_val *out) {
    struct tpl_iter *it;
    const struct tpl_val v = tpl_list(l);
    enum err e = tpl_iter_open(c, &v, &it);
    if (e)
        return e;
    it->type = type;
    *out = (struct tpl_val){.kind = TPL_ITER, .u.it = it};
    return ERR_OK;
}

// A generator: what it goes through is made once its first element is asked for.
struct deferred {
    struct tpl_call call;
    enum err (*make)(struct tpl_ctx *c, const struct tpl_call *call, struct tpl_list **out);
    struct tpl_list *made;
};

static enum err next_deferred(struct tpl_ctx *c, struct tpl_iter *it, struct tpl_val *out,
                              bool *done) {
    struct deferred *d = it->state;
    enum err e = d->made ? ERR_OK : d->make(c, &d->call, &d->made);
    if (e)
        return e;
    *done = it->pos >= d->made->n;
    if (!*done)
        *out = d->made->v[it->pos++];
    return ERR_OK;
}

static enum err defer(struct tpl_ctx *c, const struct tpl_call *call,
                      enum err (*make)(struct tpl_ctx *, const struct tpl_call *,
                                       struct tpl_list **),
                      struct tpl_val *out) {
    struct tpl_iter *it;
    struct deferred *d;
    enum err e = tpl_alloc(c, 1, sizeof *d, &d);
    if (!e)
        e = tpl_iter_new(c, "generator", next_deferred, &call->self, d, &it);
    if (e)
        return e;
    d->call = *call;
    d->make = make;
    *out = (struct tpl_val){.kind = TPL_ITER, .u.it = it};
    return ERR_OK;
}

static enum err do_reverse(struct tpl_ctx *c, const struct tpl_call *call, struct tpl_val *out) {
    const struct tpl_val *v = &call->self, back[3] = {tpl_none(), tpl_none(), tpl_int(-1)};
    struct tpl_list *l;
    if (v->kind == TPL_STR)
        return tpl_slice(c, v, back, out);
    if (!tpl_iterable(v))
        return tpl_fail(c, "argument must be iterable");
    enum err e = tpl_to_list(c, v, &l);
    if (e)
        return e;
    reverse(l);
    if (reversible(v))
        return iterator_over(c, l, "list_reverseiterator", out);
    *out = tpl_list(l);
    return ERR_OK;
}

static enum err do_join(struct tpl_ctx *c, const struct tpl_call *call, struct tpl_val *out) {
    const struct tpl_str *between = NULL, *part;
    struct tpl_path path;
    struct tpl_iter *it;
    struct tpl_sb b;
    bool done = false;
    enum err e = tpl_path_parse(c, &call->arg[1], &path);
    if (!e && call->arg[0].kind != TPL_ABSENT)
        e = tpl_to_str(c, &call->arg[0], &between);
    if (!e)
        e = tpl_iter_open(c, &call->self, &it);
    tpl_sb_init(&b, c);
    for (bool first = true; !e; first = false) {
        struct tpl_val item;
        e = tpl_iter_next(c, it, &item, &done);
        if (e || done)
            break;
        e = tpl_path_get(c, &path, &item, NULL, &item);
        if (!e)
            e = tpl_to_str(c, &item, &part);
        if (!e && !first && between)
            e = tpl_sb_str(&b, between);
        if (!e)
            e = tpl_sb_str(&b, part);
    }
    return e ? e : tpl_sb_finish(&b, out);
}

// --- order
// -----------------------------------------------------------------------------------------

static enum err fold_case(struct tpl_ctx *c, bool case_sensitive, struct tpl_val *v) {
    if (case_sensitive || v->kind != TPL_STR)
        return ERR_OK;
    return tpl_str_case(c, v->u.s, TPL_LOWER, v);
}

// The key of one item for sort: one element per comma-separated attribute.
static enum err sort_key(struct tpl_ctx *c, const struct tpl_path *paths, size_t n,
                         bool case_sensitive, const struct tpl_val *item, struct tpl_val *out) {
    struct tpl_list *l;
    enum err e = tpl_list_new(c, n, &l);
    for (size_t i = 0; !e && i < n; i++) {
        e = tpl_path_get(c, &paths[i], item, NULL, &l->v[i]);
        if (!e)
            e = fold_case(c, case_sensitive, &l->v[i]);
    }
    *out = tpl_list(l);
    return e;
}

static enum err sort_paths(struct tpl_ctx *c, const struct tpl_val *attribute,
                           struct tpl_path **out, size_t *n) {
    *n = 1;
    const struct tpl_str *s = attribute->kind == TPL_STR ? attribute->u.s : NULL;
    for (size_t i = 0; s && i < s->len; i++)
        *n += s->p[i] == ',';
    enum err e = tpl_alloc(c, *n, sizeof **out, out);
    if (!e && s)
        e = tpl_step(c, s->len);
    if (!e && !s)
        return tpl_path_parse(c, attribute, &(*out)[0]);
    for (size_t i = 0, begin = 0, k = 0; !e && i <= s->len; i++) {
        struct tpl_val part;
        if (i < s->len && s->p[i] != ',')
            continue;
        e = tpl_str_sub(c, s, begin, i, &part);
        if (!e)
            e = tpl_path_parse(c, &part, &(*out)[k++]);
        begin = i + 1;
    }
    return e;
}

static enum err do_sort(struct tpl_ctx *c, const struct tpl_call *call, struct tpl_val *out) {
    struct tpl_list *items;
    struct tpl_path *paths;
    struct tpl_val *keys;
    size_t n;
    enum err e = sort_paths(c, &call->arg[2], &paths, &n);
    if (!e)
        e = tpl_to_list(c, &call->self, &items);
    if (!e)
        e = tpl_alloc(c, items->n, sizeof *keys, &keys);
    for (size_t i = 0; !e && i < items->n; i++)
        e = sort_key(c, paths, n, tpl_arg_true(call, 1), &items->v[i], &keys[i]);
    if (!e)
        e = tpl_sort(c, items->v, keys, items->n, tpl_arg_true(call, 0));
    if (!e)
        *out = tpl_list(items);
    return e;
}

static enum err do_dictsort(struct tpl_ctx *c, const struct tpl_call *call, struct tpl_val *out) {
    static const struct tpl_str key_text = {.p = "key", .len = 3, .chars = 3};
    const struct tpl_str *by;
    struct tpl_list *items;
    struct tpl_val *keys;
    enum err e = tpl_arg_str(c, call, 1, &key_text, &by);
    if (e)
        return e;
    if (!tpl_str_is(by, "key") && !tpl_str_is(by, "value"))
        return tpl_fail(c, "You can only sort by either \"key\" or \"value\"");
    if (call->self.kind == TPL_UNDEF)
        return tpl_fail_undef(c, &call->self);
    if (call->self.kind != TPL_DICT)
        return tpl_fail(c, "'%s' object has no attribute 'items'", tpl_type_name(&call->self));
    const struct tpl_view view = {.kind = TPL_VIEW_ITEMS, .d = call->self.u.d};
    const struct tpl_val pairs = {.kind = TPL_VIEW, .u.view = &view};
    e = tpl_to_list(c, &pairs, &items);
    if (!e)
        e = tpl_alloc(c, items->n, sizeof *keys, &keys);
    for (size_t i = 0; !e && i < items->n; i++) {
        keys[i] = items->v[i].u.l->v[tpl_str_is(by, "value")];
        e = fold_case(c, tpl_arg_true(call, 0), &keys[i]);
    }
    if (!e)
        e = tpl_sort(c, items->v, keys, items->n, tpl_arg_true(call, 2));
    if (!e)
        *out = tpl_list(items);
    return e;
}

static enum err extreme(struct tpl_ctx *c, const struct tpl_call *call, enum tpl_cmp better,
                        struct tpl_val *out) {
    struct tpl_path path;
    struct tpl_iter *it;
    struct tpl_val item, key, best_key;
    bool done = false, wins;
    enum err e = tpl_path_parse(c, &call->arg[1], &path);
    if (!e)
        e = tpl_iter_open(c, &call->self, &it);
    for (bool first = true; !e; first = false) {
        e = tpl_iter_next(c, it, &item, &done);
        if (!e && done)
            return first ? tpl_undef_hint(c, "No aggregated item, sequence was empty.", out)
                         : ERR_OK;
        if (!e)
            e = tpl_path_get(c, &path, &item, NULL, &key);
        if (!e)
            e = fold_case(c, tpl_arg_true(call, 0), &key);
        wins = first;
        if (!e && !first)
            e = tpl_compare(c, better, &key, &best_key, &wins);
        if (!e && wins) {
            *out = item;
            best_key = key;
        }
    }
    return e;
}

static enum err do_min(struct tpl_ctx *c, const struct tpl_call *call, struct tpl_val *out) {
    return extreme(c, call, TPL_LT, out);
}

static enum err do_max(struct tpl_ctx *c, const struct tpl_call *call, struct tpl_val *out) {
    return extreme(c, call, TPL_GT, out);
}

static enum err do_sum(struct tpl_ctx *c, const struct tpl_call *call, struct tpl_val *out) {
    struct tpl_path path;
    struct tpl_iter *it;
    struct tpl_val item, total = call->arg[1];
    bool done = false;
    enum err e = tpl_path_parse(c, &call->arg[0], &path);
    if (total.kind == TPL_ABSENT)
        total = tpl_int(0);
    if (!e && total.kind == TPL_STR)
        return tpl_fail(c, "sum() can't sum strings");
    if (!e)
        e = tpl_iter_open(c, &call->self, &it);
    while (!e) {
        e = tpl_iter_next(c, it, &item, &done);
        if (e || done)
            break;
        e = tpl_path_get(c, &path, &item, NULL, &item);
        if (!e)
            e = tpl_binary(c, '+', &total, &item, out);
        if (!e)
            total = *out;
    }
    *out = total;
    return e;
}

// --- groups
// ----------------------------------------------------------------------------------------

static enum err do_groupby(struct tpl_ctx *c, const struct tpl_call *call, struct tpl_val *out) {
    struct tpl_path path;
    struct tpl_list *items, *pair;
    struct tpl_list_builder groups = {0}, members = {0};
    struct tpl_val *keys, v;
    enum err e = tpl_path_parse(c, &call->arg[0], &path);
    if (!e)
        e = tpl_to_list(c, &call->self, &items);
    if (!e)
        e = tpl_alloc(c, items->n, sizeof *keys, &keys);
    if (!e)
        e = tpl_list_push(c, &groups, NULL);
    for (size_t i = 0; !e && i < items->n; i++) {
        e = tpl_path_get(c, &path, &items->v[i], &call->arg[1], &keys[i]);
        if (!e)
            e = fold_case(c, tpl_arg_true(call, 2), &keys[i]);
    }
    if (!e)
        e = tpl_sort(c, items->v, keys, items->n, false);
    for (size_t i = 0; !e && i < items->n; i++) {
        bool same = false;
        if (i)
            e = tpl_equal(c, &keys[i - 1], &keys[i], &same);
        if (!e && !same) { // the group is named as its first member is, in that one's case
            members = (struct tpl_list_builder){0};
            e = tpl_list_new(c, 2, &pair);
            if (!e)
                e = tpl_path_get(c, &path, &items->v[i], &call->arg[1], &pair->v[0]);
            if (!e)
                e = tpl_list_push(c, &members, NULL);
            if (e)
                break;
            pair->group = true;
            pair->v[1] = tpl_list(members.list);
            v = tpl_tuple(pair);
            e = tpl_list_push(c, &groups, &v);
        }
        if (!e)
            e = tpl_list_push(c, &members, &items->v[i]);
    }
    if (!e)
        *out = tpl_list(groups.list);
    return e;
}

static enum err part_of(struct tpl_ctx *c, const struct tpl_list *from, size_t begin, size_t end,
                        const struct tpl_val *fill, size_t n_fill, struct tpl_val *out) {
    struct tpl_list *l;
    size_t n = end - begin;
    enum err e = tpl_list_new(c, n + n_fill, &l);
    if (!e)
        e = tpl_step(c, l->n * sizeof *l->v);
    for (size_t i = 0; !e && i < l->n; i++)
        l->v[i] = i < n ? from->v[begin + i] : *fill;
    *out = tpl_list(l);
    return e;
}

static bool fills(const struct tpl_call *call) {
    return call->arg[1].kind != TPL_ABSENT && call->arg[1].kind != TPL_NONE;
}

static enum err make_batches(struct tpl_ctx *c, const struct tpl_call *call,
                             struct tpl_list **out) {
    struct tpl_list *items;
    struct tpl_list_builder rows = {0};
    int64_t size;
    enum err e = tpl_arg_int(c, call, 0, 0, &size);
    if (!e)
        e = tpl_to_list(c, &call->self, &items);
    if (!e)
        e = tpl_list_push(c, &rows, NULL);
    if (e)
        return e;
    if (size > TPL_MAX_PAD)
        return tpl_fail_limit(c, "much memory");
    // Python's loop never ends a row of zero or fewer after its first item; before that one, the
    // empty row is as long as a row of zero.
    size_t step = size > 0 ? (size_t)size : items->n ? items->n : 1;
    if (size == 0 && items->n) {
        struct tpl_val none;
        e = part_of(c, items, 0, 0, &call->arg[1], 0, &none);
        if (!e)
            e = tpl_list_push(c, &rows, &none);
    }
    for (size_t i = 0; !e && i < items->n; i += step) {
        size_t end = i + step < items->n ? i + step : items->n;
        struct tpl_val row;
        e = part_of(c, items, i, end, &call->arg[1], fills(call) && size > 0 ? step - (end - i) : 0,
                    &row);
        if (!e)
            e = tpl_list_push(c, &rows, &row);
    }
    *out = rows.list;
    return e;
}

static enum err do_batch(struct tpl_ctx *c, const struct tpl_call *call, struct tpl_val *out) {
    return defer(c, call, make_batches, out);
}

static enum err make_slices(struct tpl_ctx *c, const struct tpl_call *call, struct tpl_list **out) {
    struct tpl_list *items;
    struct tpl_list_builder rows = {0};
    int64_t slices;
    enum err e = tpl_arg_int(c, call, 0, 0, &slices);
    if (!e)
        e = tpl_to_list(c, &call->self, &items);
    if (!e)
        e = tpl_list_push(c, &rows, NULL);
    if (e)
        return e;
    if (slices == 0)
        return tpl_fail(c, "integer division or modulo by zero");
    if (slices > TPL_MAX_RANGE)
        return tpl_fail_limit(c, "many steps");
    size_t n = slices > 0 ? (size_t)slices : 0, begin = 0;
    for (size_t i = 0; !e && i < n; i++) {
        bool longer = i < items->n % n;
        size_t end = begin + items->n / n + longer;
        struct tpl_val row;
        e = part_of(c, items, begin, end, &call->arg[1], fills(call) && !longer, &row);
        if (!e)
            e = tpl_list_push(c, &rows, &row);
        begin = end;
    }
    *out = rows.list;
    return e;
}

static enum err do_slice(struct tpl_ctx *c, const struct tpl_call *call, struct tpl_val *out) {
    return defer(c, call, make_slices, out);
}

static enum err make_items(struct tpl_ctx *c, const struct tpl_call *call, struct tpl_list **out) {
    const struct tpl_view view = {.kind = TPL_VIEW_ITEMS, .d = call->self.u.d};
    const struct tpl_val v = {.kind = TPL_VIEW, .u.view = &view};
    if (call->self.kind == TPL_UNDEF)
        return tpl_list_new(c, 0, out);
    if (call->self.kind != TPL_DICT)
        return tpl_fail(c, "Can only get item pairs from a mapping.");
    return tpl_to_list(c, &v, out);
}

static enum err do_items(struct tpl_ctx *c, const struct tpl_call *call, struct tpl_val *out) {
    return defer(c, call, make_items, out);
}

static enum err do_attr(struct tpl_ctx *c, const struct tpl_call *call, struct tpl_val *out) {
    const struct tpl_str *name;
    bool found;
    enum err e = tpl_arg_str(c, call, 0, NULL, &name);
    if (!e)
        e = tpl_attribute(c, &call->self, name, out, &found);
    return e || found ? e : tpl_undef_member(c, &call->self, &call->arg[0], out);
}

const struct tpl_fn tpl_filters_seq[] = {
    {"length", do_length, 0, 0, {NULL}},
    {"count", do_length, 0, 0, {NULL}},
    {"default", do_default, 0, 0, {"default_value", "boolean"}},
    {"d", do_default, 0, 0, {"default_value", "boolean"}},
    {"first", do_first, 0, 0, {NULL}},
    {"last", do_last, 0, 0, {NULL}},
    {"list", do_list, 0, 0, {NULL}},
    {"reverse", do_reverse, 0, 0, {NULL}},
    {"join", do_join, 0, 0, {"d", "attribute"}},
    {"sort", do_sort, 0, 0, {"reverse", "case_sensitive", "attribute"}},
    {"dictsort", do_dictsort, 0, 0, {"case_sensitive", "by", "reverse"}},
    {"min", do_min, 0, 0, {"case_sensitive", "attribute"}},
    {"max", do_max, 0, 0, {"case_sensitive", "attribute"}},
    {"sum", do_sum, 0, 0, {"attribute", "start"}},
    {"groupby", do_groupby, 1, 0, {"attribute", "default", "case_sensitive"}},
    {"batch", do_batch, 1, 0, {"linecount", "fill_with"}},
    {"slice", do_slice, 1, 0, {"slices", "fill_with"}},
    {"items", do_items, 0, 0, {NULL}},
    {"attr", do_attr, 1, 0, {"name"}},
    {.name = NULL},
};

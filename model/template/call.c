// SPDX-License-Identifier: Apache-2.0
// Finding builtins by name, binding their arguments, and calling any value.
#include "model/template/builtins.h"
#include "model/template/eval.h"
#include <string.h>

const struct tpl_fn *tpl_find_in(const struct tpl_fn *table, const char *name, size_t len) {
    for (; table->name; table++) {
        if (strlen(table->name) == len && memcmp(table->name, name, len) == 0)
            return table;
    }
    return NULL;
}

static const struct tpl_fn *find_in_all(const struct tpl_fn *const *tables, size_t n,
                                        const char *name, size_t len) {
    const struct tpl_fn *fn = NULL;
    for (size_t i = 0; i < n && !fn; i++)
        fn = tpl_find_in(tables[i], name, len);
    return fn;
}

const struct tpl_fn *tpl_find_filter(const char *name, size_t len) {
    static const struct tpl_fn *const tables[] = {tpl_filters_text, tpl_filters_seq,
                                                  tpl_filters_pick, tpl_filters_num};
    return find_in_all(tables, sizeof tables / sizeof(struct tpl_fn *), name, len);
}

static enum err call_unsupported(struct tpl_ctx *c, const struct tpl_call *call,
                                 struct tpl_val *out) {
    (void)out;
    return tpl_fail(c, "this method of '%s' is not supported in chat templates",
                    tpl_type_name(&call->self));
}

const struct tpl_fn tpl_fn_unsupported = {
    .name = "unsupported", .call = call_unsupported, .flags = TPL_FN_RAW};

static bool is_one_of(const char *const *names, const char *name, size_t len) {
    for (; *names; names++) {
        if (strlen(*names) == len && memcmp(*names, name, len) == 0)
            return true;
    }
    return false;
}

static const struct tpl_fn *find_str_method(const char *name, size_t len) {
    static const struct tpl_fn *const tables[] = {tpl_methods_str, tpl_methods_split,
                                                  tpl_methods_is};
    static const char *const unsupported[] = {"casefold",  "encode",     "maketrans",
                                              "translate", "format_map", NULL};
    const struct tpl_fn *fn =
        find_in_all(tables, sizeof tables / sizeof(struct tpl_fn *), name, len);
    return fn || !is_one_of(unsupported, name, len) ? fn : &tpl_fn_unsupported;
}

const struct tpl_fn *tpl_find_method(const struct tpl_val *self, const char *name, size_t len,
                                     bool *refused) {
    static const char *const list_changers[] = {"append", "clear",  "pop",    "reverse", "insert",
                                                "sort",   "extend", "remove", NULL};
    static const char *const dict_changers[] = {"clear",      "pop",    "popitem",
                                                "setdefault", "update", NULL};
    *refused = false;
    switch (self->kind) {
    case TPL_STR:
        return find_str_method(name, len);
    case TPL_LIST:
        *refused = is_one_of(list_changers, name, len);
        return tpl_find_in(tpl_methods_list, name, len);
    case TPL_TUPLE:
        if (len == 4 && memcmp(name, "copy", 4) == 0)
            return NULL;
        return tpl_find_in(tpl_methods_list, name, len);
    case TPL_DICT:
        *refused = is_one_of(dict_changers, name, len);
        return tpl_find_in(tpl_methods_dict, name, len);
    case TPL_RANGE:
        return tpl_find_in(tpl_methods_range, name, len);
    case TPL_LOOP:
        return tpl_find_in(tpl_methods_loop, name, len);
    case TPL_CYCLER:
        return tpl_find_in(tpl_methods_cycler, name, len);
    default:
        return NULL;
    }
}

static enum err bind(struct tpl_ctx *c, const struct tpl_fn *fn, const struct tpl_args *args,
                     struct tpl_call *call) {
    size_t n = 0;
    while (n < TPL_MAX_PARAMS && fn->params[n])
        n++;
    if (args->n > n)
        return tpl_fail(c, "%s() takes at most %zu argument(s) (%zu given)", fn->name, n, args->n);
    for (size_t i = 0; i < args->n; i++)
        call->arg[i] = args->v[i];
    for (size_t k = 0; k < args->n_kw; k++) {
        const struct tpl_str *name = args->kw[k].name;
        size_t i = 0;
        while (i < n && !tpl_str_is(name, fn->params[i]))
            i++;
        if (i == n || (fn->flags & TPL_FN_POSITIONAL))
            return tpl_fail(c, "%s() got an unexpected keyword argument '%.*s'", fn->name,
                            (int)(name->len < 80 ? name->len : 80), name->p);
        if (call->arg[i].kind != TPL_ABSENT)
            return tpl_fail(c, "%s() got multiple values for argument '%s'", fn->name,
                            fn->params[i]);
        call->arg[i] = args->kw[k].val;
    }
    for (size_t i = 0; i < fn->min; i++) {
        if (call->arg[i].kind == TPL_ABSENT)
            return tpl_fail(c, "%s() missing required argument '%s'", fn->name, fn->params[i]);
    }
    return ERR_OK;
}

enum err tpl_call_fn(struct tpl_ctx *c, const struct tpl_fn *fn, const struct tpl_val *self,
                     const struct tpl_args *args, struct tpl_val *out) {
    struct tpl_call call = {.self = *self, .args = args};
    enum err e = tpl_enter(c);
    if (e)
        return e;
    e = fn->flags & TPL_FN_RAW ? ERR_OK : bind(c, fn, args, &call);
    if (!e)
        e = fn->call(c, &call, out);
    tpl_leave(c);
    return e;
}

enum err tpl_arg_str(struct tpl_ctx *c, const struct tpl_call *call, size_t i,
                     const struct tpl_str *missing, const struct tpl_str **out) {
    const struct tpl_val *v = &call->arg[i];
    if (v->kind == TPL_ABSENT) {
        *out = missing;
        return ERR_OK;
    }
    if (v->kind != TPL_STR)
        return tpl_fail(c, "an argument must be str, not %s", tpl_type_name(v));
    *out = v->u.s;
    return ERR_OK;
}

enum err tpl_arg_int(struct tpl_ctx *c, const struct tpl_call *call, size_t i, int64_t missing,
                     int64_t *out) {
    const struct tpl_val *v = &call->arg[i];
    *out = missing;
    if (v->kind == TPL_ABSENT || tpl_as_int(v, out))
        return ERR_OK;
    return tpl_fail(c, "'%s' object cannot be interpreted as an integer", tpl_type_name(v));
}

enum err tpl_arg_index(struct tpl_ctx *c, const struct tpl_call *call, size_t i, int64_t missing,
                       int64_t *out) {
    *out = missing;
    return call->arg[i].kind == TPL_NONE ? ERR_OK : tpl_arg_int(c, call, i, missing, out);
}

bool tpl_arg_true(const struct tpl_call *call, size_t i) {
    return call->arg[i].kind != TPL_ABSENT && tpl_truth(&call->arg[i]);
}

bool tpl_callable(const struct tpl_val *v) {
    switch (v->kind) {
    case TPL_UNDEF:
    case TPL_LOOP:
    case TPL_MACRO:
    case TPL_FUNC:
    case TPL_METHOD:
    case TPL_JOINER:
        return true;
    default:
        return false;
    }
}

static enum err call_joiner(struct tpl_ctx *c, struct tpl_cycler *j, const struct tpl_args *args,
                            struct tpl_val *out) {
    if (args->n || args->n_kw)
        return tpl_fail(c, "a joiner takes no arguments");
    if (j->pos == 0) {
        j->pos = 1;
        return tpl_str_z(c, "", out);
    }
    *out = j->items;
    return ERR_OK;
}

enum err tpl_call_value(struct tpl_ctx *c, const struct tpl_val *callee,
                        const struct tpl_args *args, struct tpl_val *out) {
    const struct tpl_val none = tpl_none();
    switch (callee->kind) {
    case TPL_UNDEF:
        return tpl_fail_undef(c, callee);
    case TPL_FUNC:
        return tpl_call_fn(c, callee->u.fn, &none, args, out);
    case TPL_METHOD:
        return tpl_call_fn(c, callee->u.method->fn, &callee->u.method->self, args, out);
    case TPL_MACRO:
        return tpl_call_macro(c, callee->u.macro, args, out);
    case TPL_LOOP:
        return tpl_loop_call(c, callee->u.loop, args, out);
    case TPL_JOINER:
        return call_joiner(c, callee->u.cycler, args, out);
    default:
        return tpl_fail(c, "'%s' object is not callable", tpl_type_name(callee));
    }
}

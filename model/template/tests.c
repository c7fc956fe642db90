// SPDX-License-Identifier: Apache-2.0
// What can stand after `is`.
#include "model/template/builtins.h"
#include "model/template/ctx.h"
#include "model/template/str.h"

static enum err answer(bool yes, struct tpl_val *out) {
    *out = tpl_bool(yes);
    return ERR_OK;
}

// Tests that look at the kind of value only.
#define KIND_TEST(name, condition)                                                                 \
    static enum err is_##name(struct tpl_ctx *c, const struct tpl_call *call,                      \
                              struct tpl_val *out) {                                               \
        const struct tpl_val *v = &call->self;                                                     \
        (void)c;                                                                                   \
        return answer(condition, out);                                                             \
    }
KIND_TEST(defined, v->kind != TPL_UNDEF)
KIND_TEST(undefined, v->kind == TPL_UNDEF)
KIND_TEST(none, v->kind == TPL_NONE)
KIND_TEST(boolean, v->kind == TPL_BOOL)
KIND_TEST(true, v->kind == TPL_BOOL && v->u.b)
KIND_TEST(false, v->kind == TPL_BOOL && !v->u.b)
KIND_TEST(integer, v->kind == TPL_INT)
KIND_TEST(float, v->kind == TPL_FLOAT)
KIND_TEST(number, tpl_is_number(v))
KIND_TEST(string, v->kind == TPL_STR)
KIND_TEST(mapping, v->kind == TPL_DICT)
KIND_TEST(iterable, tpl_iterable(v))
KIND_TEST(sequence, v->kind == TPL_STR || v->kind == TPL_LIST || v->kind == TPL_TUPLE ||
                        v->kind == TPL_DICT || v->kind == TPL_RANGE || v->kind == TPL_UNDEF)
KIND_TEST(callable, tpl_callable(v))
KIND_TEST(escaped, v->kind == TPL_STR && v->u.s->markup)
#undef KIND_TEST

static enum err rest_is(struct tpl_ctx *c, const struct tpl_val *v, int64_t by, int64_t want,
                        struct tpl_val *out) {
    const struct tpl_val divisor = tpl_int(by), wanted = tpl_int(want);
    struct tpl_val rest;
    bool same;
    enum err e = tpl_binary(c, '%', v, &divisor, &rest);
    if (!e)
        e = tpl_equal(c, &rest, &wanted, &same);
    return e ? e : answer(same, out);
}

static enum err is_even(struct tpl_ctx *c, const struct tpl_call *call, struct tpl_val *out) {
    return rest_is(c, &call->self, 2, 0, out);
}

static enum err is_odd(struct tpl_ctx *c, const struct tpl_call *call, struct tpl_val *out) {
    return rest_is(c, &call->self, 2, 1, out);
}

static enum err is_divisibleby(struct tpl_ctx *c, const struct tpl_call *call,
                               struct tpl_val *out) {
    const struct tpl_val zero = tpl_int(0);
    struct tpl_val rest;
    bool same;
    enum err e = tpl_binary(c, '%', &call->self, &call->arg[0], &rest);
    if (!e)
        e = tpl_equal(c, &rest, &zero, &same);
    return e ? e : answer(same, out);
}

static enum err has_case(struct tpl_ctx *c, const struct tpl_call *call, const char *method,
                         size_t len, struct tpl_val *out) {
    const struct tpl_str *s;
    const struct tpl_args none = {0};
    enum err e = tpl_to_str(c, &call->self, &s);
    const struct tpl_val text = tpl_str(s);
    return e ? e : tpl_call_fn(c, tpl_find_in(tpl_methods_is, method, len), &text, &none, out);
}

static enum err is_lower(struct tpl_ctx *c, const struct tpl_call *call, struct tpl_val *out) {
    return has_case(c, call, "islower", 7, out);
}

static enum err is_upper(struct tpl_ctx *c, const struct tpl_call *call, struct tpl_val *out) {
    return has_case(c, call, "isupper", 7, out);
}

// Python's `is`. Small integers and equal strings are one object here.
static enum err is_sameas(struct tpl_ctx *c, const struct tpl_call *call, struct tpl_val *out) {
    const struct tpl_val *a = &call->self, *b = &call->arg[0];
    bool same = a->kind == b->kind;
    if (!same)
        return answer(false, out);
    switch (a->kind) {
    case TPL_LIST:
    case TPL_TUPLE:
        return answer(a->u.l == b->u.l, out);
    case TPL_DICT:
        return answer(a->u.d == b->u.d, out);
    case TPL_UNDEF:
        return answer(a->u.undef == b->u.undef, out);
    default: {
        enum err e = tpl_equal(c, a, b, &same);
        return e ? e : answer(same, out);
    }
    }
}

static enum err compare(struct tpl_ctx *c, const struct tpl_call *call, enum tpl_cmp op,
                        struct tpl_val *out) {
    bool holds;
    enum err e = tpl_compare(c, op, &call->self, &call->arg[0], &holds);
    return e ? e : answer(holds, out);
}

#define COMPARE_TEST(name, op)                                                                     \
    static enum err is_##name(struct tpl_ctx *c, const struct tpl_call *call,                      \
                              struct tpl_val *out) {                                               \
        return compare(c, call, op, out);                                                          \
    }
COMPARE_TEST(eq, TPL_EQ)
COMPARE_TEST(ne, TPL_NE)
COMPARE_TEST(lt, TPL_LT)
COMPARE_TEST(le, TPL_LE)
COMPARE_TEST(gt, TPL_GT)
COMPARE_TEST(ge, TPL_GE)
COMPARE_TEST(in, TPL_IN)
#undef COMPARE_TEST

static enum err is_known(struct tpl_ctx *c, const struct tpl_call *call,
                         const struct tpl_fn *(*find)(const char *, size_t), struct tpl_val *out) {
    if (call->self.kind == TPL_LIST || call->self.kind == TPL_DICT)
        return tpl_fail(c, "unhashable type: '%s'", tpl_type_name(&call->self));
    return answer(call->self.kind == TPL_STR && find(call->self.u.s->p, call->self.u.s->len), out);
}

static enum err is_filter(struct tpl_ctx *c, const struct tpl_call *call, struct tpl_val *out) {
    return is_known(c, call, tpl_find_filter, out);
}

static enum err is_test(struct tpl_ctx *c, const struct tpl_call *call, struct tpl_val *out) {
    return is_known(c, call, tpl_find_test, out);
}

static const struct tpl_fn tests[] = {
    {"defined", is_defined, 0, 0, {NULL}},
    {"undefined", is_undefined, 0, 0, {NULL}},
    {"none", is_none, 0, 0, {NULL}},
    {"string", is_string, 0, 0, {NULL}},
    {"mapping", is_mapping, 0, 0, {NULL}},
    {"iterable", is_iterable, 0, 0, {NULL}},
    {"sequence", is_sequence, 0, 0, {NULL}},
    {"boolean", is_boolean, 0, 0, {NULL}},
    {"true", is_true, 0, 0, {NULL}},
    {"false", is_false, 0, 0, {NULL}},
    {"integer", is_integer, 0, 0, {NULL}},
    {"float", is_float, 0, 0, {NULL}},
    {"number", is_number, 0, 0, {NULL}},
    {"callable", is_callable, 0, 0, {NULL}},
    {"escaped", is_escaped, 0, 0, {NULL}},
    {"even", is_even, 0, 0, {NULL}},
    {"odd", is_odd, 0, 0, {NULL}},
    {"divisibleby", is_divisibleby, 1, 0, {"num"}},
    {"lower", is_lower, 0, 0, {NULL}},
    {"upper", is_upper, 0, 0, {NULL}},
    {"sameas", is_sameas, 1, 0, {"other"}},
    {"eq", is_eq, 1, TPL_FN_POSITIONAL, {"other"}},
    {"equalto", is_eq, 1, TPL_FN_POSITIONAL, {"other"}},
    {"==", is_eq, 1, TPL_FN_POSITIONAL, {"other"}},
    {"ne", is_ne, 1, TPL_FN_POSITIONAL, {"other"}},
    {"!=", is_ne, 1, TPL_FN_POSITIONAL, {"other"}},
    {"lt", is_lt, 1, TPL_FN_POSITIONAL, {"other"}},
    {"lessthan", is_lt, 1, TPL_FN_POSITIONAL, {"other"}},
    {"<", is_lt, 1, TPL_FN_POSITIONAL, {"other"}},
    {"le", is_le, 1, TPL_FN_POSITIONAL, {"other"}},
    {"<=", is_le, 1, TPL_FN_POSITIONAL, {"other"}},
    {"gt", is_gt, 1, TPL_FN_POSITIONAL, {"other"}},
    {"greaterthan", is_gt, 1, TPL_FN_POSITIONAL, {"other"}},
    {">", is_gt, 1, TPL_FN_POSITIONAL, {"other"}},
    {"ge", is_ge, 1, TPL_FN_POSITIONAL, {"other"}},
    {">=", is_ge, 1, TPL_FN_POSITIONAL, {"other"}},
    {"in", is_in, 1, 0, {"seq"}},
    {"filter", is_filter, 0, 0, {NULL}},
    {"test", is_test, 0, 0, {NULL}},
    {.name = NULL},
};

const struct tpl_fn *tpl_find_test(const char *name, size_t len) {
    return tpl_find_in(tests, name, len);
}

// SPDX-License-Identifier: Apache-2.0
// The tables of filters, tests, methods and global functions, and how their arguments are bound.
#pragma once
#include "model/template/value.h"

enum { TPL_MAX_PARAMS = 6 };

struct tpl_kwarg {
    const struct tpl_str *name;
    struct tpl_val val;
};
struct tpl_args { // evaluated arguments
    size_t n;
    struct tpl_val *v;
    size_t n_kw;
    struct tpl_kwarg *kw;
};
struct tpl_call {                       // one call of a builtin
    struct tpl_val self;                // a filter's input, a test's subject, a method's object
    struct tpl_val arg[TPL_MAX_PARAMS]; // in the order of fn->params; TPL_ABSENT if not given
    const struct tpl_args *args;        // all of them, for TPL_FN_RAW
};
enum {
    TPL_FN_RAW = 1,        // takes any arguments, binds them itself
    TPL_FN_POSITIONAL = 2, // takes no keywords
};
struct tpl_fn {
    const char *name;
    enum err (*call)(struct tpl_ctx *c, const struct tpl_call *call, struct tpl_val *out);
    unsigned char min; // arguments that must be given
    unsigned char flags;
    const char *params[TPL_MAX_PARAMS]; // NULL after the last
};

const struct tpl_fn *tpl_find_filter(const char *name, size_t len); // NULL: there is none
const struct tpl_fn *tpl_find_test(const char *name, size_t len);
const struct tpl_fn *tpl_find_global(const char *name, size_t len);
// A method of the value's type. *refused: Python has the method, but it changes the object.
const struct tpl_fn *tpl_find_method(const struct tpl_val *self, const char *name, size_t len,
                                     bool *refused);
// Tables of the several files, each ended by a NULL name.
extern const struct tpl_fn tpl_filters_text[], tpl_filters_seq[], tpl_filters_pick[],
    tpl_filters_num[];
extern const struct tpl_fn tpl_methods_str[], tpl_methods_split[], tpl_methods_is[];
extern const struct tpl_fn tpl_methods_list[], tpl_methods_dict[], tpl_methods_range[],
    tpl_methods_loop[], tpl_methods_cycler[];
extern const struct tpl_fn tpl_fn_unsupported; // a method that Python has and this language lacks
const struct tpl_fn *tpl_find_in(const struct tpl_fn *table, const char *name, size_t len);

// A bound argument of the type that Python demands; an absent one is `missing`, and so is None for
// tpl_arg_index.
enum err tpl_arg_str(struct tpl_ctx *c, const struct tpl_call *call, size_t i,
                     const struct tpl_str *missing, const struct tpl_str **out);
enum err tpl_arg_int(struct tpl_ctx *c, const struct tpl_call *call, size_t i, int64_t missing,
                     int64_t *out);
enum err tpl_arg_index(struct tpl_ctx *c, const struct tpl_call *call, size_t i, int64_t missing,
                       int64_t *out);
bool tpl_arg_true(const struct tpl_call *call, size_t i); // given and true

// Binds the arguments and calls.
enum err tpl_call_fn(struct tpl_ctx *c, const struct tpl_fn *fn, const struct tpl_val *self,
                     const struct tpl_args *args, struct tpl_val *out);
// Calls any value. ERR_TEMPLATE where it cannot be called.
enum err tpl_call_value(struct tpl_ctx *c, const struct tpl_val *callee,
                        const struct tpl_args *args, struct tpl_val *out);
bool tpl_callable(const struct tpl_val *v);

// a.name and a[key], with jinja2's fallbacks; what is missing is undefined, not an error.
enum err tpl_getattr(struct tpl_ctx *c, const struct tpl_val *of, const struct tpl_str *name,
                     struct tpl_val *out);
enum err tpl_getitem(struct tpl_ctx *c, const struct tpl_val *of, const struct tpl_val *key,
                     struct tpl_val *out);
// The attribute alone, without the fallback to an element; *found is false where there is none.
enum err tpl_attribute(struct tpl_ctx *c, const struct tpl_val *of, const struct tpl_str *name,
                       struct tpl_val *out, bool *found);
// a[start:stop:step]; an absent bound is TPL_NONE.
enum err tpl_slice(struct tpl_ctx *c, const struct tpl_val *of, const struct tpl_val bound[3],
                   struct tpl_val *out);
enum err tpl_binary(struct tpl_ctx *c, char op, const struct tpl_val *a, const struct tpl_val *b,
                    struct tpl_val *out);
enum err tpl_unary(struct tpl_ctx *c, char op, const struct tpl_val *a, struct tpl_val *out);

// Path of an attribute argument: "a.b.0", an int, or none.
struct tpl_path {
    size_t n;
    struct tpl_val *part;
};
enum err tpl_path_parse(struct tpl_ctx *c, const struct tpl_val *attribute, struct tpl_path *out);
enum err tpl_path_get(struct tpl_ctx *c, const struct tpl_path *p, const struct tpl_val *item,
                      const struct tpl_val *missing, struct tpl_val *out);
// Python's sorted(): stable; keys[i] orders item[i].
enum err tpl_sort(struct tpl_ctx *c, struct tpl_val *items, struct tpl_val *keys, size_t n,
                  bool reverse);

// Formatting. "%" and str.format follow Python; args of percent is a tuple, a dict or one value.
enum err tpl_percent(struct tpl_ctx *c, const struct tpl_str *fmt, const struct tpl_val *args,
                     struct tpl_val *out);
enum err tpl_format(struct tpl_ctx *c, const struct tpl_str *fmt, const struct tpl_args *args,
                    struct tpl_val *out);
enum err tpl_tojson(struct tpl_ctx *c, const struct tpl_call *call, struct tpl_val *out);
enum err tpl_strftime(struct tpl_ctx *c, const struct tpl_str *fmt, struct tpl_val *out);

// Case mapping of a whole string, with the final sigma.
enum tpl_case { TPL_UPPER, TPL_LOWER, TPL_CAPITALIZE, TPL_TITLE, TPL_SWAPCASE };
enum err tpl_str_case(struct tpl_ctx *c, const struct tpl_str *s, enum tpl_case how,
                      struct tpl_val *out);
// Python's strip family: chars NULL means white space; sides: 1 left, 2 right.
enum err tpl_str_strip(struct tpl_ctx *c, const struct tpl_str *s, const struct tpl_str *chars,
                       int sides, struct tpl_val *out);
enum err tpl_str_replace(struct tpl_ctx *c, const struct tpl_str *s, const struct tpl_str *from,
                         const struct tpl_str *to, int64_t count, struct tpl_val *out);
enum err tpl_str_splitlines(struct tpl_ctx *c, const struct tpl_str *s, bool keep_ends,
                            struct tpl_list **out);
enum err tpl_str_pad(struct tpl_ctx *c, const struct tpl_str *s, int64_t left, int64_t right,
                     const struct tpl_str *fill, struct tpl_val *out);
// Numbers out of text, as int() and float() read it; *ok is false where they raise ValueError.
enum err tpl_parse_int(struct tpl_ctx *c, const struct tpl_str *s, int64_t base, int64_t *out,
                       bool *ok);
enum err tpl_parse_float(struct tpl_ctx *c, const struct tpl_str *s, double *out, bool *ok);
// Truncation towards zero, as int(float); *ok is false for what is not finite.
enum err tpl_float_to_int(struct tpl_ctx *c, double f, int64_t *out, bool *ok);

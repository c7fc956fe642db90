// SPDX-License-Identifier: Apache-2.0
// Values of the template language: Python's, as far as a template can see them.
//
// 1. A value is 16 bytes and is copied freely. What it points to lives in the render's arena (or,
//    for a constant, in the template's) and never moves.
// 2. Strings, lists, tuples and dictionaries are immutable once made. A namespace is the exception.
// 3. A string is valid UTF-8 and knows its number of code points. It also knows where it came from:
//    a run is `literal` if it came out of a variable, otherwise it is the template's own text.
//    n_runs == 0 means that the whole string is one run.
// 4. Strings and lists that grow at the end share their storage (struct tpl_tail, struct
//    tpl_list.room): x = x + y costs the length of y. Only the newest of the sharers may grow in
//    place.
#pragma once
#include "base/err.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct tpl_ctx;
struct tpl_node;
struct tpl_frame;
struct tpl_fn;

enum tpl_kind {
    TPL_ABSENT, // an argument that was not given, a variable that was never set
    TPL_UNDEF,
    TPL_NONE,
    TPL_BOOL,
    TPL_INT,
    TPL_FLOAT,
    TPL_STR,
    TPL_LIST,
    TPL_TUPLE,
    TPL_DICT,
    TPL_VIEW, // dict.keys(), values(), items()
    TPL_RANGE,
    TPL_ITER, // a generator or another iterator: can be read once
    TPL_NS,   // namespace()
    TPL_LOOP, // the variable of a for loop
    TPL_MACRO,
    TPL_FUNC, // a global function
    TPL_METHOD,
    TPL_CYCLER,
    TPL_JOINER,
};

struct tpl_run {
    size_t end; // bytes from the string's start; the last run's end counts as the string's length
    bool literal;
};
struct tpl_tail {
    char *data;
    size_t len, cap;
    struct tpl_run *runs;
    size_t n_runs, cap_runs;
};
struct tpl_str {
    const char *p;
    size_t len;   // bytes
    size_t chars; // code points
    const struct tpl_run *runs;
    size_t n_runs;
    struct tpl_tail *tail; // NULL, or the storage that the string starts at
    bool literal;          // meaningful where n_runs == 0
    bool markup;           // marked as safe HTML: joining it with other text escapes that text
};

struct tpl_val {
    enum tpl_kind kind;
    union {
        bool b;
        int64_t i;
        double f;
        const struct tpl_undef *undef;
        const struct tpl_str *s;
        const struct tpl_list *l; // lists and tuples
        struct tpl_dict *d;       // dictionaries and namespaces
        const struct tpl_view *view;
        const struct tpl_range *range;
        struct tpl_iter *it;
        struct tpl_loop *loop;
        const struct tpl_macro *macro;
        const struct tpl_fn *fn;
        const struct tpl_method *method;
        struct tpl_cycler *cycler; // cyclers and joiners
    } u;
};

// Why a value is undefined; the message appears only once the value is used.
struct tpl_undef {
    const char *hint;           // the whole message, or NULL
    const char *owner;          // "dict object", or NULL for a variable
    const struct tpl_str *name; // of the variable or attribute, or NULL
    int64_t index;              // of the element, where there is an owner and no name
};

struct tpl_list {
    size_t n;
    struct tpl_val *v;
    struct tpl_list_room *room; // NULL, or the storage that v starts at
    bool group;                 // a tuple of groupby: has .grouper and .list
};
struct tpl_list_room {
    size_t n, cap;
};

struct tpl_entry {
    uint64_t hash;
    struct tpl_val key, val;
};
struct tpl_dict { // in insertion order; the index exists from 9 entries on
    size_t n, cap;
    struct tpl_entry *e;
    uint32_t *index; // open addressing, entry number + 1, 0: free
    size_t index_cap;
};

enum tpl_view_kind { TPL_VIEW_KEYS, TPL_VIEW_VALUES, TPL_VIEW_ITEMS };
struct tpl_view {
    enum tpl_view_kind kind;
    const struct tpl_dict *d;
};
struct tpl_range {
    int64_t start, stop, step;
    int64_t n;
};
struct tpl_iter {
    const char *type; // Python's name of it
    enum err (*next)(struct tpl_ctx *c, struct tpl_iter *it, struct tpl_val *out, bool *done);
    struct tpl_val src;
    size_t pos;
    void *state; // the next function's own
};
struct tpl_macro {
    const struct tpl_node *node; // a macro or a call block
    struct tpl_frame *outer;     // where it was defined
};
struct tpl_method {
    struct tpl_val self;
    const struct tpl_fn *fn;
};
struct tpl_cycler {
    struct tpl_val items; // tuple; a joiner's separator
    size_t pos;           // a joiner's: 1 once used
};

static inline struct tpl_val tpl_none(void) {
    return (struct tpl_val){.kind = TPL_NONE};
}
static inline struct tpl_val tpl_bool(bool b) {
    return (struct tpl_val){.kind = TPL_BOOL, .u.b = b};
}
static inline struct tpl_val tpl_int(int64_t i) {
    return (struct tpl_val){.kind = TPL_INT, .u.i = i};
}
static inline struct tpl_val tpl_float(double f) {
    return (struct tpl_val){.kind = TPL_FLOAT, .u.f = f};
}
static inline struct tpl_val tpl_str(const struct tpl_str *s) {
    return (struct tpl_val){.kind = TPL_STR, .u.s = s};
}
static inline struct tpl_val tpl_list(const struct tpl_list *l) {
    return (struct tpl_val){.kind = TPL_LIST, .u.l = l};
}
static inline struct tpl_val tpl_tuple(const struct tpl_list *l) {
    return (struct tpl_val){.kind = TPL_TUPLE, .u.l = l};
}
static inline struct tpl_val tpl_dict(struct tpl_dict *d) {
    return (struct tpl_val){.kind = TPL_DICT, .u.d = d};
}

const char *tpl_type_name(const struct tpl_val *v); // Python's: "str", "NoneType", ...
bool tpl_truth(const struct tpl_val *v);
bool tpl_is_number(const struct tpl_val *v); // int, float or bool
// The integer of an int or a bool; false for anything else.
bool tpl_as_int(const struct tpl_val *v, int64_t *out);
double tpl_as_double(const struct tpl_val *v); // of a number
// The length that len() gives; false where Python raises TypeError.
bool tpl_len(const struct tpl_val *v, size_t *n);

// Equality and order follow Python. Both are bounded in depth and count their work as steps.
enum err tpl_equal(struct tpl_ctx *c, const struct tpl_val *a, const struct tpl_val *b, bool *out);
enum tpl_cmp { TPL_LT, TPL_LE, TPL_GT, TPL_GE, TPL_EQ, TPL_NE, TPL_IN, TPL_NOT_IN };
enum err tpl_compare(struct tpl_ctx *c, enum tpl_cmp op, const struct tpl_val *a,
                     const struct tpl_val *b, bool *out);
enum err tpl_contains(struct tpl_ctx *c, const struct tpl_val *box, const struct tpl_val *item,
                      bool *out);

enum err tpl_dict_new(struct tpl_ctx *c, size_t room, struct tpl_dict **out);
enum err tpl_dict_set(struct tpl_ctx *c, struct tpl_dict *d, const struct tpl_val *key,
                      const struct tpl_val *val);
// *out is NULL where the key is missing. A key that cannot be hashed is an error.
enum err tpl_dict_get(struct tpl_ctx *c, const struct tpl_dict *d, const struct tpl_val *key,
                      const struct tpl_val **out);
enum err tpl_hash(struct tpl_ctx *c, const struct tpl_val *v, uint64_t *out);

enum err tpl_list_new(struct tpl_ctx *c, size_t n, struct tpl_list **out); // n absent elements
enum err tpl_list_concat(struct tpl_ctx *c, const struct tpl_list *a, const struct tpl_list *b,
                         const struct tpl_list **out);
enum err tpl_pair(struct tpl_ctx *c, const struct tpl_val *a, const struct tpl_val *b,
                  struct tpl_val *out);
// A list that grows; `list` is valid after each push.
struct tpl_list_builder {
    struct tpl_list *list;
    size_t cap;
};
enum err tpl_list_push(struct tpl_ctx *c, struct tpl_list_builder *b, const struct tpl_val *v);

// Iteration over anything that Python iterates over. A TPL_ITER is consumed by it.
enum err tpl_iter_open(struct tpl_ctx *c, const struct tpl_val *v, struct tpl_iter **out);
enum err tpl_iter_next(struct tpl_ctx *c, struct tpl_iter *it, struct tpl_val *out, bool *done);
bool tpl_iterable(const struct tpl_val *v);
// A fresh iterator with its own step function, as a value.
enum err tpl_iter_new(struct tpl_ctx *c, const char *type,
                      enum err (*next)(struct tpl_ctx *, struct tpl_iter *, struct tpl_val *,
                                       bool *),
                      const struct tpl_val *src, void *state, struct tpl_iter **out);
enum err tpl_to_list(struct tpl_ctx *c, const struct tpl_val *v, struct tpl_list **out);

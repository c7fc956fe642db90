// SPDX-License-Identifier: Apache-2.0
// The caller's variables as values. Strings point into the JSON, which outlives the render.
#include "base/utf8.h"
#include "model/template/eval.h"
#include <string.h>

static enum err borrow(struct tpl_ctx *c, const char *p, size_t len, bool literal,
                       struct tpl_val *out) {
    struct tpl_str *s;
    enum err e = tpl_step(c, len);
    if (!e && !utf8_valid(p, len))
        return tpl_fail(c, "a variable's text is not valid UTF-8");
    if (!e)
        e = tpl_alloc(c, 1, sizeof *s, &s);
    if (e)
        return e;
    *s = (struct tpl_str){.p = p, .len = len, .chars = utf8_count(p, len), .literal = literal};
    *out = tpl_str(s);
    return ERR_OK;
}

static enum err convert(struct tpl_ctx *c, const json_t *j, bool literal, struct tpl_val *out);

static enum err convert_array(struct tpl_ctx *c, const json_t *j, struct tpl_val *out) {
    struct tpl_list *l;
    enum err e = tpl_list_new(c, json_array_size(j), &l);
    for (size_t i = 0; !e && i < l->n; i++)
        e = convert(c, json_array_get(j, i), true, &l->v[i]);
    if (!e)
        *out = tpl_list(l);
    return e;
}

// jansson iterates over objects that it does not change, but takes them without const.
static enum err convert_object(struct tpl_ctx *c, json_t *j, bool top, struct tpl_dict **out) {
    static const char *const trusted[] = {"bos_token", "eos_token", "pad_token", "unk_token"};
    enum err e = tpl_dict_new(c, json_object_size(j), out);
    for (void *it = json_object_iter(j); !e && it; it = json_object_iter_next(j, it)) {
        struct tpl_val key, val;
        bool literal = true;
        e = borrow(c, json_object_iter_key(it), json_object_iter_key_len(it), true, &key);
        for (size_t i = 0; !e && top && i < sizeof trusted / sizeof(char *); i++)
            literal = literal && !tpl_str_is(key.u.s, trusted[i]);
        if (!e)
            e = convert(c, json_object_iter_value(it), literal, &val);
        if (!e)
            e = tpl_dict_set(c, *out, &key, &val);
    }
    return e;
}

static enum err convert_nested(struct tpl_ctx *c, const json_t *j, struct tpl_val *out) {
    struct tpl_dict *d;
    json_t *object;
    enum err e = tpl_enter(c);
    if (e)
        return e;
    if (json_is_array(j)) {
        e = convert_array(c, j, out);
    } else {
        memcpy(&object, &j, sizeof j);
        e = convert_object(c, object, false, &d);
        if (!e)
            *out = tpl_dict(d);
    }
    tpl_leave(c);
    return e;
}

static enum err convert(struct tpl_ctx *c, const json_t *j, bool literal, struct tpl_val *out) {
    enum err e = tpl_step(c, 0);
    if (e)
        return e;
    switch (json_typeof(j)) {
    case JSON_NULL:
        *out = tpl_none();
        return ERR_OK;
    case JSON_TRUE:
    case JSON_FALSE:
        *out = tpl_bool(json_is_true(j));
        return ERR_OK;
    case JSON_INTEGER:
        *out = tpl_int(json_integer_value(j));
        return ERR_OK;
    case JSON_REAL:
        *out = tpl_float(json_real_value(j));
        return ERR_OK;
    case JSON_STRING:
        return borrow(c, json_string_value(j), json_string_length(j), literal, out);
    case JSON_ARRAY:
    case JSON_OBJECT:
        break;
    }
    return convert_nested(c, j, out);
}

enum err tpl_vars_from_json(struct tpl_ctx *c, json_t *vars, struct tpl_dict **out) {
    if (!vars)
        return tpl_dict_new(c, 0, out);
    if (!json_is_object(vars))
        return err_set(c->info, ERR_INVALID, NULL, "the template's variables are not an object");
    return convert_object(c, vars, true, out);
}

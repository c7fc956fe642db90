// SPDX-License-Identifier: Apache-2.0
#include "base/json_value.h"
#include "base/mem.h"
#include <string.h>

// A decimal stays one, so that whoever reads it again finds the kind of value that there was.
static void write_real(struct json_w *w, double v) {
    char text[JW_NUM_TEXT + 2];
    size_t n = jw_num_text(v, text);
    if (strspn(text, "-0123456789") == n)
        memcpy(text + n, ".0", 2), n += 2;
    jw_raw(w, text, n);
}

void jw_value(struct json_w *w, const json_t *v) {
    const char *key;
    const json_t *item;
    size_t i;
    if (json_is_object(v)) {
        jw_obj(w);
        json_object_foreach((json_t *)(uintptr_t)v, key, item) {
            jw_key(w, key);
            jw_value(w, item);
        }
        jw_obj_end(w);
    } else if (json_is_array(v)) {
        jw_arr(w);
        json_array_foreach(v, i, item) {
            jw_value(w, item);
        }
        jw_arr_end(w);
    } else if (json_is_string(v)) {
        jw_strn(w, json_string_value(v), json_string_length(v));
    } else if (json_is_integer(v)) {
        jw_int(w, json_integer_value(v));
    } else if (json_is_real(v)) {
        write_real(w, json_real_value(v));
    } else if (json_is_boolean(v)) {
        jw_bool(w, json_is_true(v));
    } else {
        jw_null(w);
    }
}

enum err json_value_text(const json_t *v, size_t most, char **out) {
    struct buf b;
    *out = NULL;
    buf_init(&b, most);
    struct json_w w = json_w_begin(&b);
    jw_value(&w, v);
    enum err e = buf_err(&b);
    if (!e && !(*out = mem_alloc(b.len + 1)))
        e = ERR_NOMEM;
    if (!e) {
        memcpy(*out, b.data, b.len);
        (*out)[b.len] = '\0';
    }
    buf_fini(&b);
    return e;
}

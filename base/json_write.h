// SPDX-License-Identifier: Apache-2.0
// Writes JSON into a buffer, compact, on one line. Commas are placed by themselves. Failure is the
// buffer's sticky flag. Invalid UTF-8 in a string becomes U+FFFD, so that the output is always
// valid.
#pragma once
#include "base/buf.h"
#include <stdbool.h>
#include <stdint.h>

enum { JW_NUM_TEXT = 32 };
// The shortest text that reads back as the same number; its length.
size_t jw_num_text(double v, char out[JW_NUM_TEXT]);

struct json_w {
    struct buf *out;
    bool comma; // the next value needs one before it
};

static inline struct json_w json_w_begin(struct buf *out) {
    return (struct json_w){out, false};
}
void jw_obj(struct json_w *w); // {
void jw_obj_end(struct json_w *w);
void jw_arr(struct json_w *w); // [
void jw_arr_end(struct json_w *w);
void jw_key(struct json_w *w, const char *key);
void jw_str(struct json_w *w, const char *s); // NULL: null
void jw_strn(struct json_w *w, const char *s, size_t n);
void jw_int(struct json_w *w, int64_t v);
void jw_num(struct json_w *w, double v); // shortest that reads back equal; not finite: null
void jw_bool(struct json_w *w, bool v);
void jw_null(struct json_w *w);
void jw_raw(struct json_w *w, const char *json, size_t n); // a ready-made value
// key and value at once
void jw_kstr(struct json_w *w, const char *key, const char *s);
void jw_kint(struct json_w *w, const char *key, int64_t v);
void jw_knum(struct json_w *w, const char *key, double v);
void jw_kbool(struct json_w *w, const char *key, bool v);
void jw_knull(struct json_w *w, const char *key);

// SPDX-License-Identifier: Apache-2.0
#include "gateway/api_json.h"
#include "model/json_doc.h"
#include <math.h>
#include <string.h>

enum err api_json_parse(const char *body, size_t len, json_t **out, struct err_info *info) {
    static const struct json_doc_limits limits = {API_JSON_MAX_DEPTH, API_JSON_MAX_ELEMENTS, false};
    if (len == 0)
        return err_set(info, ERR_INVALID, NULL,
                       "the request body is empty; a JSON object is expected");
    struct json_doc_error e;
    json_t *root;
    switch (json_doc_parse(body, len, &limits, &root, &e)) {
    case JSON_DOC_OK:
        break;
    case JSON_DOC_NOMEM:
        return err_set(info, ERR_NOMEM, NULL, "out of memory while reading the request");
    case JSON_DOC_UTF8:
        return err_set(info, ERR_INVALID, NULL, "the request body is not valid UTF-8 (byte %zu)",
                       e.at);
    case JSON_DOC_DEEP:
        return err_set(info, ERR_INVALID, NULL, "the request body nests deeper than %d levels",
                       API_JSON_MAX_DEPTH);
    case JSON_DOC_MANY:
        return err_set(info, ERR_INVALID, NULL, "the request body has more than %d elements",
                       API_JSON_MAX_ELEMENTS);
    case JSON_DOC_SYNTAX:
        return err_set(info, ERR_INVALID, NULL, "invalid JSON at line %d column %d: %s",
                       e.json.line, e.json.column, e.json.text);
    }
    if (!json_is_object(root)) {
        enum err rc =
            err_set(info, ERR_INVALID, NULL, "the request body must be a JSON object, not %s",
                    json_doc_type_name(root));
        json_decref(root);
        return rc;
    }
    *out = root;
    return ERR_OK;
}

const char *api_json_type_name(const json_t *v) {
    return json_doc_type_name(v);
}

static const json_t *present(const json_t *o, const char *name) {
    const json_t *v = json_object_get(o, name);
    return v && !json_is_null(v) ? v : NULL;
}

bool api_json_has(const json_t *o, const char *name) {
    return present(o, name) != NULL;
}

enum err api_json_bool(const json_t *o, const char *name, bool dflt, bool *out,
                       struct err_info *info) {
    const json_t *v = present(o, name);
    *out = v ? json_is_true(v) : dflt;
    if (v && !json_is_boolean(v))
        return err_set(info, ERR_INVALID, name, "%s must be a boolean, not %s", name,
                       api_json_type_name(v));
    return ERR_OK;
}

enum err api_json_int(const json_t *o, const char *name, int64_t min, int64_t max, int64_t dflt,
                      int64_t *out, struct err_info *info) {
    const json_t *v = present(o, name);
    *out = dflt;
    if (!v)
        return ERR_OK;
    double real = json_is_real(v) ? json_real_value(v) : 0.5;
    bool whole = json_is_integer(v) || (real == floor(real) && fabs(real) < 0x1p53);
    if (!whole)
        return err_set(info, ERR_INVALID, name, "%s must be an integer, not %s", name,
                       json_is_real(v) ? "a fraction" : api_json_type_name(v));
    int64_t i = json_is_integer(v) ? json_integer_value(v) : (int64_t)real;
    if (i < min || i > max) {
        if (max == INT64_MAX)
            return err_set(info, ERR_INVALID, name, "%s must be at least %lld, got %lld", name,
                           (long long)min, (long long)i);
        return err_set(info, ERR_INVALID, name, "%s must be from %lld to %lld, got %lld", name,
                       (long long)min, (long long)max, (long long)i);
    }
    *out = i;
    return ERR_OK;
}

enum err api_json_num(const json_t *o, const char *name, double min, double max, double dflt,
                      double *out, struct err_info *info) {
    const json_t *v = present(o, name);
    *out = dflt;
    if (!v)
        return ERR_OK;
    if (!json_is_number(v))
        return err_set(info, ERR_INVALID, name, "%s must be a number, not %s", name,
                       api_json_type_name(v));
    double x = json_number_value(v);
    if (!(x >= min && x <= max))
        return err_set(info, ERR_INVALID, name, "%s must be from %g to %g, got %g", name, min, max,
                       x);
    *out = x;
    return ERR_OK;
}

enum err api_json_str(const json_t *o, const char *name, bool nul, const char **out, size_t *len,
                      struct err_info *info) {
    const json_t *v = present(o, name);
    *out = NULL;
    if (len)
        *len = 0;
    if (!v)
        return ERR_OK;
    if (!json_is_string(v))
        return err_set(info, ERR_INVALID, name, "%s must be a string, not %s", name,
                       api_json_type_name(v));
    if (!nul && strlen(json_string_value(v)) != json_string_length(v))
        return err_set(info, ERR_INVALID, name, "%s must not contain NUL characters", name);
    *out = json_string_value(v);
    if (len)
        *len = json_string_length(v);
    return ERR_OK;
}

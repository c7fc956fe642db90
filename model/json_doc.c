// SPDX-License-Identifier: Apache-2.0
#include "model/json_doc.h"
#include "base/json_load.h"
#include "base/utf8.h"

// One pass over the text outside of strings: nesting and the number of elements bound what the
// parser builds.
static enum json_doc_fault check_shape(const char *s, size_t n, const struct json_doc_limits *l) {
    size_t depth = 0, elements = 0;
    bool in_string = false;
    for (size_t i = 0; i < n; i++) {
        char c = s[i];
        if (in_string) {
            if (c == '\\')
                i++;
            else if (c == '"')
                in_string = false;
            continue;
        }
        if (c == '"') {
            in_string = true;
        } else if (c == '{' || c == '[') {
            if (++depth > l->depth)
                return JSON_DOC_DEEP;
            elements++;
        } else if (c == '}' || c == ']') {
            depth -= depth > 0;
        } else if (c == ',') {
            elements++;
        }
        if (elements > l->elements)
            return JSON_DOC_MANY;
    }
    return JSON_DOC_OK;
}

static enum json_doc_fault parse(const char *text, size_t len, const struct json_doc_limits *limits,
                                 json_t **out, struct json_doc_error *error) {
    if (!utf8_valid(text, len)) {
        error->at = utf8_valid_prefix(text, len);
        return JSON_DOC_UTF8;
    }
    enum json_doc_fault fault = check_shape(text, len, limits);
    if (fault)
        return fault;
    size_t flags = JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL;
    if (limits->scalars)
        flags |= JSON_DECODE_ANY;
    *out = json_load_text(text, len, flags, &error->json);
    if (*out)
        return JSON_DOC_OK;
    return json_error_code(&error->json) == json_error_out_of_memory ? JSON_DOC_NOMEM
                                                                     : JSON_DOC_SYNTAX;
}

enum json_doc_fault json_doc_parse(const char *text, size_t len,
                                   const struct json_doc_limits *limits, json_t **out,
                                   struct json_doc_error *error) {
    *out = NULL;
    *error = (struct json_doc_error){0};
    error->fault = parse(text, len, limits, out, error);
    return error->fault;
}

const char *json_doc_type_name(const json_t *v) {
    switch (json_typeof(v)) {
    case JSON_OBJECT:
        return "an object";
    case JSON_ARRAY:
        return "an array";
    case JSON_STRING:
        return "a string";
    case JSON_INTEGER:
    case JSON_REAL:
        return "a number";
    case JSON_TRUE:
    case JSON_FALSE:
        return "a boolean";
    case JSON_NULL:
        break;
    }
    return "null";
}

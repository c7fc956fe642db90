// SPDX-License-Identifier: Apache-2.0
// A JSON document from outside: encoding, nesting and the number of elements are bounded before
// anything is built, and keys that come twice are refused. The caller words the error. Stateless;
// any thread.
#pragma once
#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

struct json_doc_limits {
    size_t depth, elements; // nesting; objects, arrays and what follows a comma
    bool scalars;           // the document may be a string, a number ...
};
enum json_doc_fault {
    JSON_DOC_OK,
    JSON_DOC_NOMEM,
    JSON_DOC_UTF8, // `at`: the first bad byte, from 0
    JSON_DOC_DEEP,
    JSON_DOC_MANY,
    JSON_DOC_SYNTAX, // `json` says what and where
};
struct json_doc_error {
    enum json_doc_fault fault;
    size_t at;
    json_error_t json;
};
// *out is owned by the caller; NULL on failure. Strings may hold NUL characters.
enum json_doc_fault json_doc_parse(const char *text, size_t len,
                                   const struct json_doc_limits *limits, json_t **out,
                                   struct json_doc_error *error);
// "an object", "a string" ... for messages
const char *json_doc_type_name(const json_t *v);

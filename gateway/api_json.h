// SPDX-License-Identifier: Apache-2.0
// Reading a request's JSON body. Depth, element count, duplicate keys and numbers are bounded
// before anything is built; each getter checks type and range and names the field in its error.
// null is the same as absent. Stateless; any thread.
#pragma once
#include "base/err.h"
#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { API_JSON_MAX_DEPTH = 64, API_JSON_MAX_ELEMENTS = 2 << 20 };

// ERR_INVALID for an empty body, invalid UTF-8, bad JSON, or anything but an object. *out is owned.
enum err api_json_parse(const char *body, size_t len, json_t **out, struct err_info *info);

bool api_json_has(const json_t *o, const char *name); // present and not null
enum err api_json_bool(const json_t *o, const char *name, bool dflt, bool *out,
                       struct err_info *info);
enum err api_json_int(const json_t *o, const char *name, int64_t min, int64_t max, int64_t dflt,
                      int64_t *out, struct err_info *info);
enum err api_json_num(const json_t *o, const char *name, double min, double max, double dflt,
                      double *out, struct err_info *info);
// *out NULL if absent. Borrowed from o. Text may hold NUL characters only if `nul` is set.
enum err api_json_str(const json_t *o, const char *name, bool nul, const char **out, size_t *len,
                      struct err_info *info);
// "an object", "a string" ... for messages
const char *api_json_type_name(const json_t *v);

// SPDX-License-Identifier: Apache-2.0
// The parameters of a request's query: a=1&b=two, percent-encoded, '+' for a blank. Each name comes
// at most once; what is not asked for is ignored. Stateless; any thread.
#pragma once
#include "base/arena.h"
#include "base/err.h"
#include <stddef.h>
#include <stdint.h>

enum { API_QUERY_MAX = 64 }; // parameters

struct api_query {
    struct {
        const char *name, *value;
    } items[API_QUERY_MAX];
    size_t n;
};
// Strings lie in the arena. ERR_INVALID (param: the name): bad encoding, given twice; too many.
enum err api_query_parse(struct arena *a, const char *text, struct api_query *out,
                         struct err_info *info);
const char *api_query_get(const struct api_query *q, const char *name); // NULL: not given
enum err api_query_int(const struct api_query *q, const char *name, int64_t min, int64_t max,
                       int64_t dflt, int64_t *out, struct err_info *info);

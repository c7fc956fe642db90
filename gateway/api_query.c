// SPDX-License-Identifier: Apache-2.0
#include "gateway/api_query.h"
#include "base/hash.h"
#include "base/utf8.h"
#include <string.h>

// In place. False: bad encoding, a NUL or invalid UTF-8.
static bool decode(char *s) {
    char *to = s, *from = s;
    for (; *from; from++) {
        char c = *from == '+' ? ' ' : *from;
        if (c == '%') {
            int hi = hex_value(from[1]), lo = hi < 0 ? -1 : hex_value(from[2]);
            if (lo < 0 || (hi | lo) == 0)
                return false;
            c = (char)(hi << 4 | lo);
            from += 2;
        }
        *to++ = c;
    }
    *to = '\0';
    return utf8_valid(s, (size_t)(to - s));
}

enum err api_query_parse(struct arena *a, const char *text, struct api_query *out,
                         struct err_info *info) {
    char *copy = arena_strdup(a, text), *save = NULL;
    out->n = 0;
    if (!copy)
        return err_set(info, ERR_NOMEM, NULL, "out of memory");
    for (char *s = strtok_r(copy, "&", &save); s; s = strtok_r(NULL, "&", &save)) {
        char *value = strchr(s, '=');
        if (value)
            *value++ = '\0';
        else
            value = s + strlen(s);
        if (out->n == API_QUERY_MAX)
            return err_set(info, ERR_INVALID, NULL, "the query has more than %d parameters",
                           API_QUERY_MAX);
        if (!decode(s) || !decode(value))
            return err_set(info, ERR_INVALID, NULL, "the query is not percent-encoded UTF-8 text");
        if (api_query_get(out, s))
            return err_set(info, ERR_INVALID, s, "%.64s is given more than once", s);
        out->items[out->n].name = s;
        out->items[out->n++].value = value;
    }
    return ERR_OK;
}

const char *api_query_get(const struct api_query *q, const char *name) {
    for (size_t i = 0; i < q->n; i++)
        if (!strcmp(q->items[i].name, name))
            return q->items[i].value;
    return NULL;
}

enum err api_query_int(const struct api_query *q, const char *name, int64_t min, int64_t max,
                       int64_t dflt, int64_t *out, struct err_info *info) {
    const char *s = api_query_get(q, name);
    int64_t v = 0;
    *out = dflt;
    if (!s)
        return ERR_OK;
    bool ok = *s != '\0';
    for (; *s && ok; s++)
        ok = *s >= '0' && *s <= '9' && !__builtin_mul_overflow(v, 10, &v) &&
             !__builtin_add_overflow(v, *s - '0', &v);
    if (!ok || v < min || v > max)
        return err_set(info, ERR_INVALID, name, "%s must be an integer from %lld to %lld", name,
                       (long long)min, (long long)max);
    *out = v;
    return ERR_OK;
}

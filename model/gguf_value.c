// SPDX-License-Identifier: Apache-2.0
// Typed reads of a parsed GGUF file's metadata. gguf_parse has walked every value, so bounds hold
// here; types and ranges are the caller's wish and are checked here.
#include "base/mem.h"
#include "model/bytes.h"
#include "model/gguf.h"
#include <float.h>
#include <math.h>
#include <string.h>

const struct gguf_kv *gguf_find(const struct gguf *g, const char *key) {
    const size_t n = strlen(key);
    size_t lo = 0, hi = g->n_kv;
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        const struct tok_str k = g->kv[mid].key;
        int r = memcmp(k.p, key, k.n < n ? k.n : n);
        if (r == 0)
            r = (k.n > n) - (k.n < n);
        if (r == 0)
            return &g->kv[mid];
        if (r < 0)
            lo = mid + 1;
        else
            hi = mid;
    }
    return NULL;
}

static enum err wrong_type(const struct gguf_kv *kv, const char *key, const char *wanted,
                           struct err_info *info) {
    return err_set(info, ERR_FORMAT, NULL, "%s: must be %s (byte %zu)", key, wanted, kv->at);
}

// The integer as two's complement in 64 bits, *negative its sign; false for what is no integer.
static bool load_int(enum gguf_type t, const uint8_t *p, uint64_t *v, bool *negative) {
    *negative = false;
    switch (t) {
    case GGUF_U8:
        *v = p[0];
        return true;
    case GGUF_U16:
        *v = (uint64_t)(p[0] | p[1] << 8);
        return true;
    case GGUF_U32:
        *v = le32(p);
        return true;
    case GGUF_U64:
        *v = le64(p);
        return true;
    case GGUF_I8:
        *v = (uint64_t)(int64_t)(int8_t)p[0];
        break;
    case GGUF_I16:
        *v = (uint64_t)(int64_t)(int16_t)(p[0] | p[1] << 8);
        break;
    case GGUF_I32:
        *v = (uint64_t)(int64_t)(int32_t)le32(p);
        break;
    case GGUF_I64:
        *v = le64(p);
        break;
    default:
        return false;
    }
    *negative = *v >> 63;
    return true;
}

enum err gguf_int(const struct gguf *g, const char *key, int64_t min, int64_t max, int64_t *out,
                  struct err_info *info) {
    const struct gguf_kv *kv = gguf_find(g, key);
    if (!kv)
        return ERR_OK;
    uint64_t v;
    bool negative;
    if (!load_int(kv->type, g->p + kv->at, &v, &negative))
        return wrong_type(kv, key, "an integer", info);
    if ((!negative && v > INT64_MAX) || (int64_t)v < min || (int64_t)v > max)
        return err_set(info, ERR_FORMAT, NULL, "%s: must be between %lld and %lld (byte %zu)", key,
                       (long long)min, (long long)max, kv->at);
    *out = (int64_t)v;
    return ERR_OK;
}

enum err gguf_float(const struct gguf *g, const char *key, float *out, struct err_info *info) {
    const struct gguf_kv *kv = gguf_find(g, key);
    if (!kv)
        return ERR_OK;
    double d;
    if (kv->type == GGUF_F32) {
        uint32_t bits = le32(g->p + kv->at);
        float f;
        memcpy(&f, &bits, sizeof f);
        d = (double)f;
    } else if (kv->type == GGUF_F64) {
        uint64_t bits = le64(g->p + kv->at);
        memcpy(&d, &bits, sizeof d);
    } else {
        return wrong_type(kv, key, "a float", info);
    }
    if (!isfinite(d) || fabs(d) > (double)FLT_MAX)
        return wrong_type(kv, key, "a finite number", info);
    *out = (float)d;
    return ERR_OK;
}

enum err gguf_bool(const struct gguf *g, const char *key, bool *out, struct err_info *info) {
    const struct gguf_kv *kv = gguf_find(g, key);
    if (!kv)
        return ERR_OK;
    if (kv->type != GGUF_BOOL)
        return wrong_type(kv, key, "a bool", info);
    *out = g->p[kv->at] != 0;
    return ERR_OK;
}

enum err gguf_string(const struct gguf *g, const char *key, struct tok_str *out,
                     struct err_info *info) {
    const struct gguf_kv *kv = gguf_find(g, key);
    if (!kv)
        return ERR_OK;
    if (kv->type != GGUF_STRING)
        return wrong_type(kv, key, "a string", info);
    const uint8_t *at = g->p + kv->at;
    *out = gguf_next_string(&at);
    return ERR_OK;
}

struct tok_str gguf_next_string(const uint8_t **at) {
    struct tok_str s = {(const char *)*at + 8, (size_t)le64(*at)};
    *at += 8 + s.n;
    return s;
}

enum err gguf_strings(const struct gguf *g, const char *key, struct tok_str **out, size_t *n,
                      struct err_info *info) {
    const struct gguf_kv *kv = gguf_find(g, key);
    if (!kv)
        return ERR_OK;
    if (kv->type != GGUF_ARRAY || kv->elem != GGUF_STRING)
        return wrong_type(kv, key, "an array of strings", info);
    struct tok_str *s = mem_calloc((size_t)kv->count, sizeof *s);
    if (!s)
        return err_set(info, ERR_NOMEM, NULL, "out of memory for %s", key);
    const uint8_t *at = g->p + kv->at;
    for (size_t i = 0; i < kv->count; i++)
        s[i] = gguf_next_string(&at);
    *out = s;
    *n = (size_t)kv->count;
    return ERR_OK;
}

enum err gguf_int32s(const struct gguf *g, const char *key, int32_t **out, size_t *n,
                     struct err_info *info) {
    const struct gguf_kv *kv = gguf_find(g, key);
    if (!kv)
        return ERR_OK;
    if (kv->type != GGUF_ARRAY || (kv->elem != GGUF_I32 && kv->elem != GGUF_U32))
        return wrong_type(kv, key, "an array of int32", info);
    int32_t *v = mem_calloc((size_t)kv->count, sizeof *v);
    if (!v)
        return err_set(info, ERR_NOMEM, NULL, "out of memory for %s", key);
    for (size_t i = 0; i < kv->count; i++) {
        uint32_t u = le32(g->p + kv->at + 4 * i);
        if (kv->elem == GGUF_U32 && u > INT32_MAX) {
            mem_free(v);
            return wrong_type(kv, key, "an array of int32", info);
        }
        v[i] = (int32_t)u;
    }
    *out = v;
    *n = (size_t)kv->count;
    return ERR_OK;
}

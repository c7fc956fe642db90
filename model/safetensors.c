// SPDX-License-Identifier: Apache-2.0
#include "model/safetensors.h"
#include "base/mem.h"
#include "base/utf8.h"
#include "model/bytes.h"
#include "model/json_scan.h"
#include "model/shown.h"
#include <stdlib.h>
#include <string.h>

static const struct {
    const char *name;
    size_t bytes;
} dtypes[ST_DTYPES] = {
    [ST_BOOL] = {"BOOL", 1},       [ST_U8] = {"U8", 1},           [ST_I8] = {"I8", 1},
    [ST_F8_E5M2] = {"F8_E5M2", 1}, [ST_F8_E4M3] = {"F8_E4M3", 1}, [ST_I16] = {"I16", 2},
    [ST_U16] = {"U16", 2},         [ST_F16] = {"F16", 2},         [ST_BF16] = {"BF16", 2},
    [ST_I32] = {"I32", 4},         [ST_U32] = {"U32", 4},         [ST_F32] = {"F32", 4},
    [ST_F64] = {"F64", 8},         [ST_I64] = {"I64", 8},         [ST_U64] = {"U64", 8},
};

struct parser {
    struct json_scan scan;
    struct st_header *h;
    size_t cap_tensors, cap_meta;
    const char *what; // the tensor being read, for errors
    struct mdl_shown shown;
    struct err_info *info;
};

const char *st_dtype_name(enum st_dtype t) {
    return (unsigned)t < ST_DTYPES ? dtypes[t].name : "?";
}

size_t st_dtype_bytes(enum st_dtype t) {
    return (unsigned)t < ST_DTYPES ? dtypes[t].bytes : 0;
}

static enum err bad(const struct parser *p, enum err e, const char *why) {
    return err_set(p->info, e, NULL, "%s: %s (header byte %zu)", p->what, why, p->scan.at);
}

static enum err no_memory(const struct parser *p) {
    return err_set(p->info, ERR_NOMEM, NULL, "out of memory for %zu tensors", p->h->n_tensors);
}

enum err st_header_length(const uint8_t first[8], uint64_t file_size, size_t *n,
                          struct err_info *info) {
    uint64_t len = le64(first);
    if (len > ST_MAX_HEADER)
        return err_set(info, ERR_FORMAT, NULL,
                       "a safetensors header of %llu bytes is longer than %d (byte 0)",
                       (unsigned long long)len, ST_MAX_HEADER);
    if (file_size < 8 || len > file_size - 8)
        return err_set(info, ERR_FORMAT, NULL,
                       "the safetensors header's %llu bytes run past the end of the file (byte 0)",
                       (unsigned long long)len);
    if (len < 2)
        return err_set(info, ERR_FORMAT, NULL, "the safetensors header is empty (byte 0)");
    *n = (size_t)len;
    return ERR_OK;
}

// A string that C code can use: decoded, without NUL, terminated. Its closing quote, or what its
// escapes left free, makes room for the NUL.
static enum err text(struct parser *p, size_t max, const char **out, size_t *len) {
    if (!json_scan_string(&p->scan, out, len))
        return bad(p, ERR_FORMAT, "expected a string");
    if (*len > max)
        return bad(p, ERR_LIMIT, "a string is too long");
    if (memchr(*out, 0, *len))
        return bad(p, ERR_FORMAT, "a string contains NUL");
    p->scan.p[(size_t)(*out - p->scan.p) + *len] = '\0';
    return ERR_OK;
}

static enum err expect(struct parser *p, char c, const char *why) {
    return json_scan_char(&p->scan, c) ? ERR_OK : bad(p, ERR_FORMAT, why);
}

// One more element of a table that doubles.
static enum err grow(struct parser *p, void **table, size_t n, size_t *cap, size_t size,
                     size_t max) {
    if (n == max)
        return bad(p, ERR_LIMIT, "too many entries");
    if (n < *cap)
        return ERR_OK;
    size_t want = *cap ? *cap * 2 : 64;
    void *t = mem_realloc(*table, want * size);
    if (!t)
        return no_memory(p);
    *table = t;
    *cap = want;
    return ERR_OK;
}

static enum err parse_metadata(struct parser *p) {
    enum err e = expect(p, '{', "__metadata__ must be an object");
    if (e || json_scan_char(&p->scan, '}'))
        return e;
    for (;;) {
        size_t n;
        void *table = p->h->meta;
        e = grow(p, &table, p->h->n_meta, &p->cap_meta, sizeof *p->h->meta, ST_MAX_METADATA);
        p->h->meta = table;
        if (e)
            return e;
        struct st_meta *m = &p->h->meta[p->h->n_meta];
        if ((e = text(p, ST_MAX_HEADER, &m->key, &n)) ||
            (e = expect(p, ':', "expected ':' in __metadata__")) ||
            (e = text(p, ST_MAX_HEADER, &m->value, &n)))
            return e;
        p->h->n_meta++;
        if (json_scan_char(&p->scan, '}'))
            return ERR_OK;
        if ((e = expect(p, ',', "expected ',' or '}' in __metadata__")))
            return e;
    }
}

static enum err parse_dtype(struct parser *p, struct st_tensor *t) {
    const char *name;
    size_t n;
    enum err e = text(p, 32, &name, &n);
    if (e)
        return e;
    for (int i = 0; i < ST_DTYPES; i++) {
        if (strcmp(dtypes[i].name, name) == 0) {
            t->dtype = (enum st_dtype)i;
            return ERR_OK;
        }
    }
    struct mdl_shown s;
    return err_set(p->info, ERR_UNSUPPORTED, NULL,
                   "tensor %s: unknown dtype %s; F32, F16 and BF16 can be served (header byte %zu)",
                   p->what, mdl_shown(&s, name, n), p->scan.at);
}

static enum err parse_shape(struct parser *p, struct st_tensor *t) {
    enum err e = expect(p, '[', "shape must be an array");
    if (e || json_scan_char(&p->scan, ']'))
        return e;
    for (;;) {
        if (t->n_dims == ST_MAX_DIMS)
            return bad(p, ERR_LIMIT, "more than 8 dimensions");
        if (!json_scan_u64(&p->scan, &t->dims[t->n_dims++]))
            return bad(p, ERR_FORMAT, "a dimension must be an integer of at most 64 bits");
        if (json_scan_char(&p->scan, ']'))
            return ERR_OK;
        if ((e = expect(p, ',', "expected ',' or ']' in shape")))
            return e;
    }
}

static enum err parse_offsets(struct parser *p, struct st_tensor *t) {
    enum err e = expect(p, '[', "data_offsets must be an array");
    if (e)
        return e;
    if (!json_scan_u64(&p->scan, &t->begin) || !json_scan_char(&p->scan, ',') ||
        !json_scan_u64(&p->scan, &t->end) || !json_scan_char(&p->scan, ']'))
        return bad(p, ERR_FORMAT, "data_offsets must be two integers of at most 64 bits");
    return t->end >= t->begin ? ERR_OK : bad(p, ERR_FORMAT, "data_offsets end before they begin");
}

static enum err check_size(const struct parser *p, const struct st_tensor *t) {
    uint64_t bytes = st_dtype_bytes(t->dtype);
    for (int i = 0; i < t->n_dims; i++)
        if (__builtin_mul_overflow(bytes, t->dims[i], &bytes))
            return bad(p, ERR_FORMAT, "the shape's product overflows");
    if (bytes != t->end - t->begin)
        return err_set(p->info, ERR_FORMAT, NULL,
                       "tensor %s: shape and dtype make %llu bytes, data_offsets %llu "
                       "(header byte %zu)",
                       p->what, (unsigned long long)bytes, (unsigned long long)(t->end - t->begin),
                       p->scan.at);
    return ERR_OK;
}

static enum err parse_tensor(struct parser *p, struct st_tensor *t) {
    enum { DTYPE = 1, SHAPE = 2, OFFSETS = 4 };
    unsigned seen = 0;
    enum err e = expect(p, '{', "a tensor's entry must be an object");
    while (!e) {
        const char *key;
        size_t n;
        unsigned field = 0;
        if ((e = text(p, 64, &key, &n)) || (e = expect(p, ':', "expected ':'")))
            break;
        if (strcmp(key, "dtype") == 0)
            field = DTYPE;
        else if (strcmp(key, "shape") == 0)
            field = SHAPE;
        else if (strcmp(key, "data_offsets") == 0)
            field = OFFSETS;
        if (!field)
            return bad(p, ERR_FORMAT, "a field is none of dtype, shape, data_offsets");
        if (seen & field)
            return bad(p, ERR_FORMAT, "a field is there twice");
        seen |= field;
        e = field == DTYPE   ? parse_dtype(p, t)
            : field == SHAPE ? parse_shape(p, t)
                             : parse_offsets(p, t);
        if (e || json_scan_char(&p->scan, '}'))
            break;
        e = expect(p, ',', "expected ',' or '}'");
    }
    if (e)
        return e;
    if (seen != (DTYPE | SHAPE | OFFSETS))
        return bad(p, ERR_FORMAT, "dtype, shape or data_offsets is missing");
    return check_size(p, t);
}

static enum err parse_entry(struct parser *p, bool *have_metadata) {
    const char *name;
    size_t n;
    p->what = "safetensors header";
    enum err e = text(p, ST_MAX_NAME, &name, &n);
    if (e)
        return e;
    if ((e = expect(p, ':', "expected ':'")))
        return e;
    if (strcmp(name, "__metadata__") == 0) {
        if (*have_metadata)
            return bad(p, ERR_FORMAT, "__metadata__ is there twice");
        *have_metadata = true;
        return parse_metadata(p);
    }
    p->what = mdl_shown(&p->shown, name, n);
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)name[i] < 0x20 || name[i] == 0x7f)
            return bad(p, ERR_FORMAT, "the tensor's name has a control character");
    void *table = p->h->tensors;
    e = grow(p, &table, p->h->n_tensors, &p->cap_tensors, sizeof *p->h->tensors, ST_MAX_TENSORS);
    p->h->tensors = table;
    if (e)
        return e;
    struct st_tensor *t = &p->h->tensors[p->h->n_tensors++];
    *t = (struct st_tensor){.name = name};
    return parse_tensor(p, t);
}

static enum err parse_json(struct parser *p) {
    bool have_metadata = false;
    p->what = "safetensors header";
    if (!utf8_valid(p->scan.p, p->scan.n))
        return bad(p, ERR_FORMAT, "is not UTF-8");
    if (p->scan.p[0] != '{')
        return bad(p, ERR_FORMAT, "must begin with '{'");
    p->scan.at = 1;
    if (!json_scan_char(&p->scan, '}')) {
        for (;;) {
            enum err e = parse_entry(p, &have_metadata);
            if (e)
                return e;
            p->what = "safetensors header";
            if (json_scan_char(&p->scan, '}'))
                break;
            if ((e = expect(p, ',', "expected ',' or '}'")))
                return e;
        }
    }
    return json_scan_end(&p->scan) ? ERR_OK : bad(p, ERR_FORMAT, "something follows the '}'");
}

static int by_name(const void *a, const void *b) {
    return strcmp(((const struct st_tensor *)a)->name, ((const struct st_tensor *)b)->name);
}

static int by_key(const void *a, const void *b) {
    return strcmp(((const struct st_meta *)a)->key, ((const struct st_meta *)b)->key);
}

static int by_offset(const void *a, const void *b) {
    const struct st_tensor *x = a, *y = b;
    if (x->begin != y->begin)
        return x->begin < y->begin ? -1 : 1;
    return (x->end > y->end) - (x->end < y->end);
}

static enum err check_unique(const struct parser *p) {
    struct st_header *h = p->h;
    struct mdl_shown s;
    if (h->n_tensors)
        qsort(h->tensors, h->n_tensors, sizeof *h->tensors, by_name);
    for (size_t i = 1; i < h->n_tensors; i++)
        if (by_name(&h->tensors[i - 1], &h->tensors[i]) == 0)
            return err_set(p->info, ERR_FORMAT, NULL, "tensor %s is there twice",
                           mdl_shown(&s, h->tensors[i].name, strlen(h->tensors[i].name)));
    if (h->n_meta)
        qsort(h->meta, h->n_meta, sizeof *h->meta, by_key);
    for (size_t i = 1; i < h->n_meta; i++)
        if (by_key(&h->meta[i - 1], &h->meta[i]) == 0)
            return err_set(p->info, ERR_FORMAT, NULL, "__metadata__: the key %s is there twice",
                           mdl_shown(&s, h->meta[i].key, strlen(h->meta[i].key)));
    return ERR_OK;
}

// Rules 2 and 4; offsets within the data become offsets in the file.
static enum err check_layout(const struct parser *p, uint64_t file_size) {
    struct st_header *h = p->h;
    struct mdl_shown s;
    const uint64_t data = 8 + (uint64_t)p->scan.n;
    uint64_t end = 0;
    if (h->n_tensors)
        qsort(h->tensors, h->n_tensors, sizeof *h->tensors, by_offset);
    for (size_t i = 0; i < h->n_tensors; i++) {
        struct st_tensor *t = &h->tensors[i];
        const char *name = mdl_shown(&s, t->name, strlen(t->name));
        if (t->begin != end)
            return err_set(p->info, ERR_FORMAT, NULL,
                           "tensor %s begins at %llu of the data, but the one before ends at %llu",
                           name, (unsigned long long)t->begin, (unsigned long long)end);
        end = t->end;
        if (end > file_size - data)
            return err_set(p->info, ERR_FORMAT, NULL,
                           "tensor %s ends at %llu of the data, but the file has only %llu", name,
                           (unsigned long long)end, (unsigned long long)(file_size - data));
        t->begin += data;
        t->end += data;
    }
    if (end != file_size - data)
        return err_set(p->info, ERR_FORMAT, NULL,
                       "the tensors end at %llu of the data, but the file has %llu",
                       (unsigned long long)end, (unsigned long long)(file_size - data));
    return ERR_OK;
}

enum err st_parse(char *json, size_t n, uint64_t file_size, struct st_header *out,
                  struct err_info *info) {
    *out = (struct st_header){.json = json};
    struct parser p = {.scan = {.p = json, .n = n}, .h = out, .info = info};
    enum err e = ERR_OK;
    if (n < 2 || file_size < 8 || n > file_size - 8)
        e = err_set(info, ERR_FORMAT, NULL, "the safetensors header does not fit the file");
    if (!e)
        e = parse_json(&p);
    if (!e)
        e = check_unique(&p);
    if (!e)
        e = check_layout(&p, file_size);
    if (e)
        st_fini(out);
    return e;
}

void st_fini(struct st_header *h) {
    mem_free(h->json);
    mem_free(h->tensors);
    mem_free(h->meta);
    *h = (struct st_header){0};
}

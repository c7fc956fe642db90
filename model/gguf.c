// SPDX-License-Identifier: Apache-2.0
#include "model/gguf.h"
#include "base/mem.h"
#include "base/utf8.h"
#include "model/bytes.h"
#include "model/shown.h"
#include <stdlib.h>
#include <string.h>

// A position in the header. `have` bytes are in memory; `end` is where the file, or what we are
// willing to read of it, ends.
struct cursor {
    const uint8_t *p;
    size_t at, have;
    uint64_t end;
    bool capped;      // end is our limit, not the file's
    const char *what; // the key or tensor being read, for errors
    enum err failed;  // why the last take found nothing
    struct mdl_shown shown;
    struct err_info *info;
};

enum { MIN_KV = 8 + 1 + 4 + 1, MIN_TENSOR = 8 + 1 + 4 + 8 + 4 + 8 };

static const uint8_t type_bytes[GGUF_TYPES] = {1, 1, 2, 2, 4, 4, 4, 1, 8, 12, 8, 8, 8};

static bool is_scalar(enum gguf_type t) {
    return t != GGUF_STRING && t != GGUF_ARRAY;
}

static enum err bad(const struct cursor *c, enum err e, const char *why) {
    err_set(c->info, e, NULL, "%s: %s (byte %zu)", c->what, why, c->at);
    return e;
}

static enum err too_long(const struct cursor *c) {
    err_set(c->info, ERR_LIMIT, NULL, "%s: the header is longer than %d bytes (byte %zu)", c->what,
            GGUF_MAX_HEADER, c->at);
    return ERR_LIMIT;
}

// The next n bytes, which are consumed; NULL if they are not there, with c->failed set.
static const uint8_t *take(struct cursor *c, uint64_t n) {
    c->failed = ERR_AGAIN;
    if (n > c->end - c->at)
        c->failed = c->capped ? too_long(c) : bad(c, ERR_FORMAT, "runs past the end of the file");
    else if (n <= c->have - c->at) {
        c->at += (size_t)n;
        return c->p + (c->at - (size_t)n);
    }
    return NULL;
}

static enum err take_u32(struct cursor *c, uint32_t *out) {
    const uint8_t *p = take(c, 4);
    if (!p)
        return c->failed;
    *out = le32(p);
    return ERR_OK;
}

static enum err take_u64(struct cursor *c, uint64_t *out) {
    const uint8_t *p = take(c, 8);
    if (!p)
        return c->failed;
    *out = le64(p);
    return ERR_OK;
}

static enum err take_string(struct cursor *c, struct tok_str *out) {
    uint64_t n = 0;
    enum err e = take_u64(c, &n);
    if (e)
        return e;
    const uint8_t *p = take(c, n);
    if (!p)
        return c->failed;
    *out = (struct tok_str){(const char *)p, (size_t)n};
    return ERR_OK;
}

static enum err take_type(struct cursor *c, enum gguf_type *out) {
    uint32_t t = 0;
    enum err e = take_u32(c, &t);
    if (e)
        return e;
    if (t >= GGUF_TYPES) {
        err_set(c->info, ERR_FORMAT, NULL, "%s: unknown value type %u (byte %zu)", c->what, t,
                c->at - 4);
        return ERR_FORMAT;
    }
    *out = (enum gguf_type)t;
    return ERR_OK;
}

static enum err skip_bools(struct cursor *c, uint64_t n) {
    const uint8_t *p = take(c, n);
    if (!p)
        return c->failed;
    for (uint64_t i = 0; i < n; i++)
        if (p[i] > 1)
            return bad(c, ERR_FORMAT, "a bool is neither 0 nor 1");
    return ERR_OK;
}

static enum err skip_array(struct cursor *c, enum gguf_type elem, uint64_t n, int depth);

// Walks over n values of type t. The count is checked against the bytes that are left first, so
// that the loops are bounded by the file's size.
static enum err skip_values(struct cursor *c, enum gguf_type t, uint64_t n, int depth) {
    if (n > (c->end - c->at) / type_bytes[t])
        return bad(c, ERR_FORMAT, "more values than the file can hold");
    if (t == GGUF_BOOL)
        return skip_bools(c, n);
    if (is_scalar(t))
        return take(c, n * type_bytes[t]) ? ERR_OK : c->failed;
    enum err e = ERR_OK;
    struct tok_str s;
    for (uint64_t i = 0; !e && i < n; i++) {
        if (t == GGUF_STRING) {
            e = take_string(c, &s);
            continue;
        }
        enum gguf_type elem = GGUF_U8;
        uint64_t count = 0;
        if ((e = take_type(c, &elem)) || (e = take_u64(c, &count)))
            break;
        e = skip_array(c, elem, count, depth + 1);
    }
    return e;
}

static enum err skip_array(struct cursor *c, enum gguf_type elem, uint64_t n, int depth) {
    if (depth > GGUF_MAX_DEPTH)
        return bad(c, ERR_LIMIT, "arrays are nested too deeply");
    return skip_values(c, elem, n, depth);
}

static bool key_valid(struct tok_str s) {
    if (s.n == 0 || s.n > GGUF_MAX_KEY || !utf8_valid(s.p, s.n))
        return false;
    for (size_t i = 0; i < s.n; i++)
        if ((unsigned char)s.p[i] < 0x20 || s.p[i] == 0x7f)
            return false;
    return true;
}

static enum err parse_kv(struct cursor *c, struct gguf_kv *kv) {
    c->what = "metadata key";
    enum err e = take_string(c, &kv->key);
    if (e)
        return e;
    if (!key_valid(kv->key))
        return bad(c, ERR_FORMAT, "is empty, too long, or no plain text");
    c->what = mdl_shown(&c->shown, kv->key.p, kv->key.n);
    kv->count = 1;
    kv->elem = GGUF_TYPES;
    if ((e = take_type(c, &kv->type)))
        return e;
    if (kv->type == GGUF_ARRAY) {
        if ((e = take_type(c, &kv->elem)) || (e = take_u64(c, &kv->count)))
            return e;
        kv->at = c->at;
        return skip_array(c, kv->elem, kv->count, 1);
    }
    kv->at = c->at;
    return skip_values(c, kv->type, 1, 0);
}

static int compare_str(struct tok_str a, struct tok_str b) {
    int r = memcmp(a.p, b.p, a.n < b.n ? a.n : b.n);
    return r ? r : (a.n > b.n) - (a.n < b.n);
}

static int compare_kv(const void *a, const void *b) {
    return compare_str(((const struct gguf_kv *)a)->key, ((const struct gguf_kv *)b)->key);
}

static int compare_name(const void *a, const void *b) {
    return compare_str(((const struct gguf_tensor *)a)->name,
                       ((const struct gguf_tensor *)b)->name);
}

static int compare_offset(const void *a, const void *b) {
    uint64_t x = ((const struct gguf_tensor *)a)->offset;
    uint64_t y = ((const struct gguf_tensor *)b)->offset;
    return (x > y) - (x < y);
}

static enum err parse_metadata(struct cursor *c, struct gguf *g) {
    enum err e = ERR_OK;
    g->kv = mem_calloc(g->n_kv, sizeof *g->kv);
    if (!g->kv)
        return err_set(c->info, ERR_NOMEM, NULL, "out of memory for %zu metadata keys", g->n_kv);
    for (size_t i = 0; !e && i < g->n_kv; i++)
        e = parse_kv(c, &g->kv[i]);
    if (e)
        return e;
    qsort(g->kv, g->n_kv, sizeof *g->kv, compare_kv);
    for (size_t i = 1; i < g->n_kv; i++) {
        if (compare_kv(&g->kv[i - 1], &g->kv[i]) == 0) {
            struct mdl_shown s;
            return err_set(c->info, ERR_FORMAT, NULL, "%s: the key is there twice (byte %zu)",
                           mdl_shown(&s, g->kv[i].key.p, g->kv[i].key.n), g->kv[i].at);
        }
    }
    int64_t align = 32;
    if ((e = gguf_int(g, "general.alignment", 8, 1 << 16, &align, c->info)))
        return e;
    if (align & (align - 1)) {
        c->what = "general.alignment";
        return bad(c, ERR_FORMAT, "is no power of two");
    }
    g->alignment = (uint32_t)align;
    return ERR_OK;
}

// GGUF's numbers of the types that exist, so that one we cannot compute with is refused by name.
static const struct {
    uint32_t id;
    int dtype; // enum kn_dtype, or -1
    const char *name;
} tensor_types[] = {
    {0, KN_F32, "F32"},    {1, KN_F16, "F16"}, {2, KN_Q4_0, "Q4_0"}, {3, KN_Q4_1, "Q4_1"},
    {6, -1, "Q5_0"},       {7, -1, "Q5_1"},    {8, KN_Q8_0, "Q8_0"}, {9, -1, "Q8_1"},
    {10, -1, "Q2_K"},      {11, -1, "Q3_K"},   {12, -1, "Q4_K"},     {13, -1, "Q5_K"},
    {14, -1, "Q6_K"},      {15, -1, "Q8_K"},   {16, -1, "IQ2_XXS"},  {17, -1, "IQ2_XS"},
    {18, -1, "IQ3_XXS"},   {19, -1, "IQ1_S"},  {20, -1, "IQ4_NL"},   {21, -1, "IQ3_S"},
    {22, -1, "IQ2_S"},     {23, -1, "IQ4_XS"}, {24, -1, "I8"},       {25, -1, "I16"},
    {26, -1, "I32"},       {27, -1, "I64"},    {28, -1, "F64"},      {29, -1, "IQ1_M"},
    {30, KN_BF16, "BF16"}, {34, -1, "TQ1_0"},  {35, -1, "TQ2_0"},    {39, -1, "MXFP4"},
    {40, -1, "NVFP4"},
};

static enum err parse_tensor_type(struct cursor *c, enum kn_dtype *out) {
    uint32_t id = 0;
    enum err e = take_u32(c, &id);
    if (e)
        return e;
    const char *name = NULL;
    for (size_t i = 0; i < sizeof tensor_types / sizeof *tensor_types; i++) {
        if (tensor_types[i].id != id)
            continue;
        if (tensor_types[i].dtype >= 0) {
            *out = (enum kn_dtype)tensor_types[i].dtype;
            return ERR_OK;
        }
        name = tensor_types[i].name;
    }
    if (!name)
        return err_set(c->info, ERR_FORMAT, NULL, "tensor %s: unknown type %u (byte %zu)", c->what,
                       id, c->at - 4);
    return err_set(c->info, ERR_UNSUPPORTED, NULL,
                   "tensor %s: type %s is not supported; F32, F16, BF16, Q8_0, Q4_0 and Q4_1 are "
                   "(byte %zu)",
                   c->what, name, c->at - 4);
}

// Bytes of the whole tensor, every product checked.
static enum err tensor_bytes(struct cursor *c, struct gguf_tensor *t) {
    uint64_t rows = 1;
    for (int i = 0; i + 1 < t->n_dims; i++)
        if (__builtin_mul_overflow(rows, (uint64_t)t->dims[i], &rows))
            return bad(c, ERR_FORMAT, "the dimensions' product overflows");
    uint64_t k = (uint64_t)t->dims[t->n_dims - 1];
    if (k % kn_dtype_block(t->dtype))
        return err_set(c->info, ERR_FORMAT, NULL,
                       "tensor %s: rows of %llu values are no multiple of %s's block of %u "
                       "(byte %zu)",
                       c->what, (unsigned long long)k, kn_dtype_name(t->dtype),
                       kn_dtype_block(t->dtype), c->at);
    size_t row = 0;
    if (!kn_row_bytes(t->dtype, k, &row) || !mem_mul(row, rows, &t->bytes))
        return bad(c, ERR_FORMAT, "the dimensions' product overflows");
    return ERR_OK;
}

static enum err parse_tensor(struct cursor *c, uint32_t alignment, struct gguf_tensor *t) {
    c->what = "tensor name";
    t->at = c->at;
    enum err e = take_string(c, &t->name);
    if (e)
        return e;
    if (!key_valid(t->name) || t->name.n > GGUF_MAX_NAME)
        return bad(c, ERR_FORMAT, "is empty, too long, or no plain text");
    c->what = mdl_shown(&c->shown, t->name.p, t->name.n);
    uint32_t n = 0;
    if ((e = take_u32(c, &n)))
        return e;
    if (n < 1 || n > 4)
        return err_set(c->info, ERR_FORMAT, NULL,
                       "tensor %s: %u dimensions, must be 1 to 4 (byte %zu)", c->what, n,
                       c->at - 4);
    t->n_dims = (int32_t)n;
    for (int i = t->n_dims - 1; i >= 0; i--) {
        uint64_t d = 0;
        if ((e = take_u64(c, &d)))
            return e;
        if (d == 0 || d > INT64_MAX)
            return bad(c, ERR_FORMAT, "a dimension is zero or too large");
        t->dims[i] = (int64_t)d;
    }
    if ((e = parse_tensor_type(c, &t->dtype)) || (e = tensor_bytes(c, t)))
        return e;
    if ((e = take_u64(c, &t->offset))) // within the data; place_tensors makes it the file's
        return e;
    if (t->offset % alignment)
        return bad(c, ERR_FORMAT, "the tensor's offset is not aligned");
    return ERR_OK;
}

static enum err parse_tensors(struct cursor *c, struct gguf *g) {
    enum err e = ERR_OK;
    g->tensors = mem_calloc(g->n_tensors, sizeof *g->tensors);
    if (!g->tensors)
        return err_set(c->info, ERR_NOMEM, NULL, "out of memory for %zu tensors", g->n_tensors);
    for (size_t i = 0; !e && i < g->n_tensors; i++)
        e = parse_tensor(c, g->alignment, &g->tensors[i]);
    if (e)
        return e;
    qsort(g->tensors, g->n_tensors, sizeof *g->tensors, compare_name);
    for (size_t i = 1; i < g->n_tensors; i++) {
        const struct gguf_tensor *t = &g->tensors[i];
        struct mdl_shown s;
        if (compare_name(t - 1, t) == 0)
            return err_set(c->info, ERR_FORMAT, NULL,
                           "tensor %s: the name is there twice "
                           "(byte %zu)",
                           mdl_shown(&s, t->name.p, t->name.n), t->at);
    }
    return ERR_OK;
}

// Turns offsets within the data into offsets in the file; nothing may leave the file or overlap.
static enum err place_tensors(struct cursor *c, uint64_t file_size, struct gguf *g) {
    const uint64_t a = g->alignment;
    g->data_begin = (c->at + a - 1) / a * a;
    qsort(g->tensors, g->n_tensors, sizeof *g->tensors, compare_offset);
    uint64_t end = 0;
    for (size_t i = 0; i < g->n_tensors; i++) {
        struct gguf_tensor *t = &g->tensors[i];
        struct mdl_shown s;
        const char *name = mdl_shown(&s, t->name.p, t->name.n);
        if (t->offset < end)
            return err_set(c->info, ERR_FORMAT, NULL,
                           "tensor %s: overlaps another tensor (info at byte %zu)", name, t->at);
        // Both sums are checked: offset and bytes are numbers from the file (CVE-2026-27940).
        if (__builtin_add_overflow(t->offset, t->bytes, &end) ||
            __builtin_add_overflow(t->offset, g->data_begin, &t->offset) || t->offset > file_size ||
            t->bytes > file_size - t->offset)
            return err_set(c->info, ERR_FORMAT, NULL,
                           "tensor %s: its %zu bytes lie beyond the end of the file (info at byte "
                           "%zu)",
                           name, t->bytes, t->at);
    }
    return ERR_OK;
}

// Magic, version and the two counts, each bounded by what the file can hold.
static enum err parse_fixed(struct cursor *c, uint64_t file_size, struct gguf *g) {
    uint64_t n_tensors = 0, n_kv = 0;
    enum err e;
    c->what = "file header";
    const uint8_t *magic = take(c, 4);
    if (!magic)
        return c->failed;
    if (memcmp(magic, "GGUF", 4) != 0)
        return err_set(c->info, ERR_FORMAT, NULL, "not a GGUF file (byte 0)");
    if ((e = take_u32(c, &g->version)))
        return e;
    if (g->version == 2u << 24 || g->version == 3u << 24)
        return err_set(c->info, ERR_UNSUPPORTED, NULL, "big-endian GGUF files are not supported");
    if (g->version < 2 || g->version > 3)
        return err_set(c->info, ERR_UNSUPPORTED, NULL,
                       "GGUF version %u is not supported; 2 and 3 are (byte 4)", g->version);
    if ((e = take_u64(c, &n_tensors)) || (e = take_u64(c, &n_kv)))
        return e;
    if (n_tensors > GGUF_MAX_TENSORS || n_tensors > file_size / MIN_TENSOR)
        return err_set(c->info, ERR_FORMAT, NULL, "a tensor count of %llu is too large (byte 8)",
                       (unsigned long long)n_tensors);
    if (n_kv > GGUF_MAX_KEYS || n_kv > file_size / MIN_KV)
        return err_set(c->info, ERR_FORMAT, NULL,
                       "a metadata key count of %llu is too large (byte 16)",
                       (unsigned long long)n_kv);
    g->n_tensors = (size_t)n_tensors;
    g->n_kv = (size_t)n_kv;
    return ERR_OK;
}

enum err gguf_parse(const void *p, size_t have, uint64_t file_size, struct gguf *out,
                    struct err_info *info) {
    struct cursor c = {.p = p, .end = file_size, .info = info};
    if (file_size > GGUF_MAX_HEADER) {
        c.end = GGUF_MAX_HEADER;
        c.capped = true;
    }
    c.have = have < c.end ? have : (size_t)c.end;
    *out = (struct gguf){.p = p};
    enum err e = parse_fixed(&c, file_size, out);
    if (!e)
        e = parse_metadata(&c, out);
    if (!e)
        e = parse_tensors(&c, out);
    if (!e)
        e = place_tensors(&c, file_size, out);
    out->len = c.at;
    if (e)
        gguf_fini(out);
    return e;
}

void gguf_fini(struct gguf *g) {
    mem_free(g->kv);
    mem_free(g->tensors);
    *g = (struct gguf){0};
}

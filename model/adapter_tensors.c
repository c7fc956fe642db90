// SPDX-License-Identifier: Apache-2.0
// The matrices of an adapter from its safetensors file. All names, shapes and types are checked
// before memory is asked for, so that a small file cannot ask for much.
#include "base/mem.h"
#include "kernels/tensor.h"
#include "model/adapter_internal.h"
#include "model/shown.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

// Where a module's A and B lie in the file.
struct place {
    const struct st_tensor *side[2];
};

struct reader {
    const struct mdl_file *f;
    const struct mdl_config *c;
    struct mdl_adapter *a;
    struct st_header h;
    struct place (*places)[MDL_TARGETS]; // [n_layers]
    struct pace *pace;
    struct err_info *info;
};

enum err mdl__adapter_read_header(const struct mdl_file *f, struct st_header *out,
                                  struct err_info *info) {
    uint8_t first[8] = {0};
    size_t n = 0;
    enum err e = mdl_file_read(f, 0, f->size < 8 ? (size_t)f->size : 8, first, info);
    if (!e)
        e = st_header_length(first, f->size, &n, info);
    if (e)
        return e;
    char *json = mem_alloc(n);
    if (!json)
        return err_set(info, ERR_NOMEM, NULL, "out of memory for a header of %zu bytes", n);
    e = mdl_file_read(f, 8, n, json, info);
    if (e) {
        mem_free(json);
        return e;
    }
    return st_parse(json, n, f->size, out, info);
}

static enum err bad(const struct reader *r, enum err e, const struct st_tensor *t,
                    const char *why) {
    struct mdl_shown s;
    return err_set(r->info, e, NULL, "tensor %s: %s", mdl_shown(&s, t->name, strlen(t->name)), why);
}

// Tensors of what is not supported, which their names give away.
static const char *reason(const char *name) {
    static const struct {
        const char *part, *why;
    } known[] = {
        {"lora_magnitude_vector", "DoRA is not supported"},
        {"lora_embedding_", "an adapter on the embedding is not supported"},
        {"modules_to_save", "modules_to_save is not supported"},
        {"lm_head", "an adapter on the output head is not supported"},
        {".bias", "a bias is not supported"},
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strstr(name, known[i].part))
            return known[i].why;
    return "is no lora_A or lora_B weight of a linear layer that this model has";
}

static enum err check_shape(const struct reader *r, const struct st_tensor *t, int32_t rows,
                            int32_t cols) {
    char text[200];
    size_t at = 0;
    if (t->n_dims == 2 && t->dims[0] == (uint64_t)rows && t->dims[1] == (uint64_t)cols)
        return ERR_OK;
    text[0] = '\0';
    for (int i = 0; i < t->n_dims && at < sizeof text - 24; i++)
        at += (size_t)snprintf(text + at, sizeof text - at, "%s%llu", i ? ", " : "",
                               (unsigned long long)t->dims[i]);
    struct mdl_shown s;
    return err_set(r->info, ERR_FORMAT, NULL, "tensor %s: the shape is [%s], expected [%d, %d]",
                   mdl_shown(&s, t->name, strlen(t->name)), text, rows, cols);
}

static enum err place_tensor(struct reader *r, const struct st_tensor *t) {
    int32_t layer, n, k;
    enum mdl_target target;
    bool is_b;
    char why[96];
    if (!mdl__adapter_parse_name(t->name, &layer, &target, &is_b))
        return bad(r, ERR_FORMAT, t, reason(t->name));
    if (layer >= r->a->n_layers) {
        snprintf(why, sizeof why, "the model has %d layers", r->a->n_layers);
        return bad(r, ERR_FORMAT, t, why);
    }
    const struct mdl_adapter_module *m = &r->a->modules[layer][target];
    if (!m->r)
        return bad(r, ERR_FORMAT, t, "adapter_config.json does not target this module");
    if (t->dtype != ST_F32 && t->dtype != ST_F16 && t->dtype != ST_BF16) {
        snprintf(why, sizeof why, "dtype %s is not supported; F32, F16 and BF16 are",
                 st_dtype_name(t->dtype));
        return bad(r, ERR_UNSUPPORTED, t, why);
    }
    const struct st_tensor **at = &r->places[layer][target].side[is_b];
    if (*at) // spelt with and without "default"
        return bad(r, ERR_FORMAT, t, "is there twice");
    *at = t;
    mdl_target_shape(r->c, target, &n, &k);
    return is_b ? check_shape(r, t, n, m->r) : check_shape(r, t, m->r, k);
}

static enum err place_all(struct reader *r) {
    enum err e = ERR_OK;
    for (size_t i = 0; !e && i < r->h.n_tensors; i++)
        e = place_tensor(r, &r->h.tensors[i]);
    for (int32_t i = 0; !e && i < r->a->n_layers; i++)
        for (int t = 0; !e && t < MDL_TARGETS; t++)
            for (int b = 0; !e && b < 2; b++)
                if (r->a->modules[i][t].r && !r->places[i][t].side[b]) {
                    char name[MDL__ADAPTER_NAME];
                    int32_t n, k, rank = r->a->modules[i][t].r;
                    mdl__adapter_tensor_name(name, i, (enum mdl_target)t, b == 1);
                    mdl_target_shape(r->c, (enum mdl_target)t, &n, &k);
                    e = err_set(r->info, ERR_FORMAT, NULL,
                                "tensor %s is missing; expected with shape [%d, %d]", name,
                                b ? n : rank, b ? rank : k);
                }
    return e;
}

// Sixteen-bit values lie at the end of their place and are widened from its begin on.
static void widen(enum st_dtype dtype, float *to, size_t n) {
    const unsigned char *from = (const unsigned char *)to + n * sizeof(uint16_t);
    for (size_t i = 0; i < n; i++) {
        uint16_t h;
        memcpy(&h, from + i * sizeof h, sizeof h);
        to[i] = dtype == ST_F16 ? kn_f16_to_f32(h) : kn_bf16_to_f32(h);
    }
}

static enum err read_matrix(const struct reader *r, const struct st_tensor *t, float *to,
                            size_t n) {
    size_t skip = t->dtype == ST_F32 ? 0 : n * sizeof(uint16_t);
    enum err e =
        mdl_file_read(r->f, t->begin, (size_t)(t->end - t->begin), (char *)to + skip, r->info);
    if (e)
        return e;
    if (t->dtype != ST_F32)
        widen(t->dtype, to, n);
    for (size_t i = 0; i < n; i++)
        if (!isfinite(to[i]))
            return bad(r, ERR_FORMAT, t, "holds a value that is not finite");
    pace_point(r->pace);
    return ERR_OK;
}

static enum err read_all(struct reader *r) {
    enum err e = ERR_OK;
    for (int32_t i = 0; !e && i < r->a->n_layers; i++)
        for (int t = 0; !e && t < MDL_TARGETS; t++) {
            const struct mdl_adapter_module *m = &r->a->modules[i][t];
            int32_t n, k;
            if (!m->r)
                continue;
            mdl_target_shape(r->c, (enum mdl_target)t, &n, &k);
            e = read_matrix(r, r->places[i][t].side[0], m->a, (size_t)m->r * (size_t)k);
            if (!e)
                e = read_matrix(r, r->places[i][t].side[1], m->b, (size_t)m->r * (size_t)n);
        }
    return e;
}

enum err mdl__adapter_read_tensors(const struct mdl_file *f, const struct mdl_config *c,
                                   struct mdl_adapter *a, struct pace *pace,
                                   struct err_info *info) {
    struct reader r = {.f = f, .c = c, .a = a, .pace = pace, .info = info};
    enum err e = mdl__adapter_read_header(f, &r.h, info);
    if (e) {
        err_prefix(info, "%s", MDL__ADAPTER_TENSORS_NAME);
        return e;
    }
    r.places = mem_calloc((size_t)a->n_layers, sizeof *r.places);
    if (!r.places)
        e = err_set(info, ERR_NOMEM, NULL, "out of memory for an adapter");
    if (!e)
        e = place_all(&r);
    if (!e)
        e = mdl__adapter_lay_out(a, c, info);
    if (!e)
        e = read_all(&r);
    mem_free(r.places);
    st_fini(&r.h);
    return e;
}

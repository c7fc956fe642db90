// SPDX-License-Identifier: Apache-2.0
#include "model/adapter.h"
#include "base/mem.h"
#include "kernels/lora.h"
#include "model/adapter_internal.h"
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static const struct {
    const char *name, *parent;
} targets[MDL_TARGETS] = {
    [MDL_TARGET_Q] = {"q_proj", "self_attn"}, [MDL_TARGET_K] = {"k_proj", "self_attn"},
    [MDL_TARGET_V] = {"v_proj", "self_attn"}, [MDL_TARGET_O] = {"o_proj", "self_attn"},
    [MDL_TARGET_GATE] = {"gate_proj", "mlp"}, [MDL_TARGET_UP] = {"up_proj", "mlp"},
    [MDL_TARGET_DOWN] = {"down_proj", "mlp"},
};

const char *mdl_target_name(enum mdl_target t) {
    return (unsigned)t < MDL_TARGETS ? targets[t].name : "?";
}

void mdl_target_shape(const struct mdl_config *c, enum mdl_target t, int32_t *n, int32_t *k) {
    int32_t q = c->n_heads * c->head_dim, kv = c->n_kv_heads * c->head_dim;
    *n = t == MDL_TARGET_Q                            ? q
         : t == MDL_TARGET_K || t == MDL_TARGET_V     ? kv
         : t == MDL_TARGET_GATE || t == MDL_TARGET_UP ? c->intermediate
                                                      : c->hidden;
    *k = t == MDL_TARGET_O ? q : t == MDL_TARGET_DOWN ? c->intermediate : c->hidden;
}

void mdl__adapter_module_name(char out[MDL__ADAPTER_NAME], int32_t layer, enum mdl_target t) {
    snprintf(out, MDL__ADAPTER_NAME, "model.layers.%d.%s.%s", layer, targets[t].parent,
             targets[t].name);
}

void mdl__adapter_tensor_name(char out[MDL__ADAPTER_NAME], int32_t layer, enum mdl_target t,
                              bool is_b) {
    snprintf(out, MDL__ADAPTER_NAME, "base_model.model.model.layers.%d.%s.%s.lora_%c.weight", layer,
             targets[t].parent, targets[t].name, is_b ? 'B' : 'A');
}

// Takes `text` off the front of *s.
static bool take(const char **s, const char *text) {
    size_t n = strlen(text);
    if (strncmp(*s, text, n) != 0)
        return false;
    *s += n;
    return true;
}

// One spelling per number, so that two names never become one.
static bool take_number(const char **s, int32_t *out) {
    size_t n = 0;
    *out = 0;
    while (n < 6 && (*s)[n] >= '0' && (*s)[n] <= '9')
        *out = *out * 10 + ((*s)[n++] - '0');
    if (n == 0 || n == 6 || (n > 1 && **s == '0'))
        return false;
    *s += n;
    return true;
}

bool mdl__adapter_parse_name(const char *name, int32_t *layer, enum mdl_target *t, bool *is_b) {
    if (!take(&name, "base_model.model.model.layers.") || !take_number(&name, layer) ||
        !take(&name, "."))
        return false;
    for (int i = 0; i < MDL_TARGETS; i++) {
        const char *s = name;
        if (!take(&s, targets[i].parent) || !take(&s, ".") || !take(&s, targets[i].name) ||
            !take(&s, ".lora_"))
            continue;
        *t = (enum mdl_target)i;
        *is_b = *s == 'B';
        if (*s != 'A' && *s != 'B')
            return false;
        s++;
        (void)take(&s, ".default");
        return strcmp(s, ".weight") == 0;
    }
    return false;
}

// ---- memory

struct mdl_adapter *mdl__adapter_new(const struct mdl_config *c) {
    struct mdl_adapter *a = mem_zalloc(sizeof *a);
    if (!a)
        return NULL;
    a->n_layers = c->n_layers;
    a->modules = mem_calloc((size_t)c->n_layers, sizeof *a->modules);
    if (!a->modules) {
        mem_free(a);
        return NULL;
    }
    return a;
}

void mdl_adapter_destroy(struct mdl_adapter *a) {
    if (!a)
        return;
    mem_free(a->memory);
    mem_free(a->modules);
    mem_free(a);
}

void mdl__adapter_target(struct mdl_adapter *a, int32_t layer, enum mdl_target t, int32_t r,
                         double alpha) {
    float f = (float)alpha;
    double divisor = a->rslora ? sqrt((double)r) : (double)r;
    a->modules[layer][t] =
        (struct mdl_adapter_module){.r = r, .alpha = f, .scale = (float)((double)f / divisor)};
    a->max_r = r > a->max_r ? r : a->max_r;
}

enum err mdl__adapter_lay_out(struct mdl_adapter *a, const struct mdl_config *c,
                              struct err_info *info) {
    enum { LINE = 16 }; // floats of a cache line
    size_t total = 0;
    float *at = NULL;
    for (int pass = 0; pass < 2; pass++) {
        for (int32_t i = 0; i < a->n_layers; i++)
            for (int t = 0; t < MDL_TARGETS; t++) {
                struct mdl_adapter_module *m = &a->modules[i][t];
                int32_t n, k;
                mdl_target_shape(c, (enum mdl_target)t, &n, &k);
                size_t size_a = (size_t)m->r * (size_t)k, size_b = (size_t)m->r * (size_t)n;
                if (pass == 0) {
                    a->values += size_a + size_b;
                } else if (m->r) {
                    m->a = at;
                    m->b = at + size_a;
                    at += size_a + size_b;
                }
            }
        if (pass == 1)
            break;
        if (!mem_mul(a->values, sizeof(float), &total) ||
            !(a->memory = mem_aligned(LINE * sizeof(float), total ? total : 1)))
            return err_set(info, ERR_NOMEM, NULL, "out of memory for an adapter of %zu values",
                           a->values);
        at = a->memory;
    }
    return ERR_OK;
}

enum err mdl_adapter_create(const struct mdl_config *c, unsigned which, int32_t r, float alpha,
                            bool rslora, struct mdl_adapter **out, struct err_info *info) {
    if (!which || which >> MDL_TARGETS)
        return err_set(info, ERR_INVALID, "target_modules", "an adapter needs known targets");
    if (r < 1 || r > KN_LORA_MAX_RANK)
        return err_set(info, ERR_INVALID, "r", "the rank must be between 1 and %d, not %d",
                       KN_LORA_MAX_RANK, r);
    if (!isfinite(alpha))
        return err_set(info, ERR_INVALID, "lora_alpha", "lora_alpha must be finite");
    struct mdl_adapter *a = mdl__adapter_new(c);
    if (!a)
        return err_set(info, ERR_NOMEM, NULL, "out of memory for an adapter");
    a->rslora = rslora;
    for (int32_t i = 0; i < c->n_layers; i++)
        for (int t = 0; t < MDL_TARGETS; t++)
            if (which >> t & 1)
                mdl__adapter_target(a, i, (enum mdl_target)t, r, (double)alpha);
    enum err e = mdl__adapter_lay_out(a, c, info);
    if (e) {
        mdl_adapter_destroy(a);
        return e;
    }
    memset(a->memory, 0, a->values * sizeof(float));
    *out = a;
    return ERR_OK;
}

// ---- a folder

static enum err open_in(int dirfd, const char *name, struct mdl_file *f, struct err_info *info) {
    enum err e = mdl_file_open(dirfd, name, name, f, info);
    if (e != ERR_NOT_FOUND)
        return e;
    if (strcmp(name, MDL__ADAPTER_TENSORS_NAME) == 0 &&
        faccessat(dirfd, "adapter_model.bin", F_OK, 0) == 0)
        return err_set(info, ERR_UNSUPPORTED, NULL,
                       "adapter_model.bin is not read; save the adapter as %s", name);
    return err_set(info, ERR_NOT_FOUND, NULL,
                   "%s is missing; a PEFT adapter is a folder with %s "
                   "and %s",
                   name, MDL__ADAPTER_CONFIG_NAME, MDL__ADAPTER_TENSORS_NAME);
}

static enum err read_config(int dirfd, const struct mdl_config *c,
                            const struct mdl_adapter_limits *limits, struct mdl_adapter **out,
                            struct err_info *info) {
    struct mdl_file f;
    char *json = NULL;
    size_t n = 0;
    enum err e = open_in(dirfd, MDL__ADAPTER_CONFIG_NAME, &f, info);
    if (e)
        return e;
    e = mdl_file_read_all(&f, MDL__ADAPTER_CONFIG, &json, &n, info);
    if (!e)
        e = mdl__adapter_read_config(json, n, c, limits, out, info);
    mem_free(json);
    mdl_file_close(&f);
    return e;
}

static enum err read_tensors(int dirfd, const struct mdl_config *c,
                             const struct mdl_adapter_limits *limits, struct mdl_adapter *a,
                             struct err_info *info) {
    struct mdl_file f;
    enum err e = open_in(dirfd, MDL__ADAPTER_TENSORS_NAME, &f, info);
    if (e)
        return e;
    if (limits && limits->max_bytes && f.size > limits->max_bytes)
        e = err_set(info, ERR_LIMIT, NULL, "%s has %llu bytes, more than %zu",
                    MDL__ADAPTER_TENSORS_NAME, (unsigned long long)f.size, limits->max_bytes);
    if (!e)
        e = mdl__adapter_read_tensors(&f, c, a, limits ? limits->pace : NULL, info);
    if (!e)
        e = mdl_file_check_unchanged(&f, info);
    mdl_file_close(&f);
    return e;
}

enum err mdl_adapter_read(const char *dir, const struct mdl_config *c,
                          const struct mdl_adapter_limits *limits, struct mdl_adapter **out,
                          struct err_info *info) {
    struct mdl_adapter *a = NULL;
    char why[80];
    int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return err_set(info, errno == ENOENT || errno == ENOTDIR ? ERR_NOT_FOUND : ERR_IO, NULL,
                       "the adapter's folder cannot be opened: %s",
                       strerror_r(errno, why, sizeof why));
    enum err e = read_config(fd, c, limits, &a, info);
    if (!e)
        e = read_tensors(fd, c, limits, a, info);
    close(fd);
    if (e) {
        mdl_adapter_destroy(a);
        return e;
    }
    *out = a;
    return ERR_OK;
}

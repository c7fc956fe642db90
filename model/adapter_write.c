// SPDX-License-Identifier: Apache-2.0
// The folder of an adapter: adapter_config.json with sorted keys, adapter_model.safetensors with
// the tensors in the order of their names. The same adapter gives the same bytes.
#include "base/buf.h"
#include "base/durable.h"
#include "base/hash.h"
#include "base/json_write.h"
#include "base/mem.h"
#include "model/adapter_internal.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { CONFIG_MOST = MDL__ADAPTER_CONFIG, HEADER_MOST = 1 << 26, HEADER_UNIT = 8, FLUSH = 1 << 20 };

// ---- files

struct output {
    struct durable file;
    const char *name;
    struct sha256_ctx *sum; // NULL: none
    struct pace *pace;      // NULL: none
    struct err_info *info;
};

static enum err output_write(struct output *o, const void *p, size_t n) {
    enum err e = o->sum ? sha256_update(o->sum, p, n) : ERR_OK;
    return e ? err_set(o->info, e, NULL, "%s: no digest can be made", o->name)
             : durable_write(&o->file, p, n, o->info);
}

// Kept if all went well so far, else dropped.
static enum err output_close(struct output *o, enum err e) {
    if (!e)
        return durable_commit(&o->file, o->info);
    durable_abort(&o->file);
    return e;
}

// ---- adapter_config.json

static const struct mdl_adapter_module *first_module(const struct mdl_adapter *a) {
    for (int32_t i = 0; i < a->n_layers; i++)
        for (int t = 0; t < MDL_TARGETS; t++)
            if (a->modules[i][t].r)
                return &a->modules[i][t];
    return NULL;
}

// Whether each layer has the target or none has it.
static bool in_all_or_none(const struct mdl_adapter *a, int t) {
    for (int32_t i = 1; i < a->n_layers; i++)
        if (!a->modules[i][t].r != !a->modules[0][t].r)
            return false;
    return true;
}

static int by_name(const void *a, const void *b) {
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

// Sorted, for a file that does not depend on the order of our enum.
static void put_targets(struct json_w *w, const struct mdl_adapter *a, bool everywhere) {
    const char *names[MDL_TARGETS];
    int n = 0;
    jw_arr(w);
    for (int t = 0; everywhere && t < MDL_TARGETS; t++)
        if (a->modules[0][t].r)
            names[n++] = mdl_target_name((enum mdl_target)t);
    qsort(names, (size_t)n, sizeof *names, by_name);
    for (int i = 0; i < n; i++)
        jw_str(w, names[i]);
    for (int32_t i = 0; !everywhere && i < a->n_layers; i++)
        for (int t = 0; t < MDL_TARGETS; t++)
            if (a->modules[i][t].r) {
                char name[MDL__ADAPTER_NAME];
                mdl__adapter_module_name(name, i, (enum mdl_target)t);
                jw_str(w, name);
            }
    jw_arr_end(w);
}

static bool differs(const struct mdl_adapter_module *m, const struct mdl_adapter_module *usual,
                    bool alpha) {
    if (!m->r)
        return false;
    return alpha ? m->alpha < usual->alpha || m->alpha > usual->alpha : m->r != usual->r;
}

// Modules whose rank or alpha is not the usual one, by their full names.
static void put_pattern(struct json_w *w, const struct mdl_adapter *a,
                        const struct mdl_adapter_module *usual, bool alpha) {
    jw_obj(w);
    for (int32_t i = 0; i < a->n_layers; i++)
        for (int t = 0; t < MDL_TARGETS; t++) {
            const struct mdl_adapter_module *m = &a->modules[i][t];
            char name[MDL__ADAPTER_NAME];
            if (!differs(m, usual, alpha))
                continue;
            mdl__adapter_module_name(name, i, (enum mdl_target)t);
            if (alpha)
                jw_knum(w, name, (double)m->alpha);
            else
                jw_kint(w, name, m->r);
        }
    jw_obj_end(w);
}

static void put_config(struct buf *b, const struct mdl_adapter *a, const char *base_name) {
    const struct mdl_adapter_module *usual = first_module(a);
    bool everywhere = true;
    for (int t = 0; t < MDL_TARGETS; t++)
        everywhere = everywhere && in_all_or_none(a, t);
    struct json_w w = json_w_begin(b);
    jw_obj(&w);
    jw_key(&w, "alpha_pattern");
    put_pattern(&w, a, usual, true);
    jw_knull(&w, "auto_mapping");
    jw_kstr(&w, "base_model_name_or_path", base_name && *base_name ? base_name : NULL);
    jw_kstr(&w, "bias", "none");
    jw_knull(&w, "exclude_modules");
    jw_kbool(&w, "fan_in_fan_out", false);
    jw_kbool(&w, "inference_mode", true);
    jw_kbool(&w, "init_lora_weights", true);
    jw_knull(&w, "layers_pattern");
    jw_knull(&w, "layers_to_transform");
    jw_knum(&w, "lora_alpha", (double)usual->alpha);
    jw_knum(&w, "lora_dropout", (double)a->dropout);
    jw_knull(&w, "modules_to_save");
    jw_kstr(&w, "peft_type", "LORA");
    jw_kint(&w, "r", usual->r);
    jw_key(&w, "rank_pattern");
    put_pattern(&w, a, usual, false);
    jw_knull(&w, "revision");
    jw_key(&w, "target_modules");
    put_targets(&w, a, everywhere);
    jw_kstr(&w, "task_type", "CAUSAL_LM");
    jw_kbool(&w, "use_dora", false);
    jw_kbool(&w, "use_rslora", a->rslora);
    jw_obj_end(&w);
    buf_putc(b, '\n');
}

static enum err write_config(int dirfd, const struct mdl_adapter *a, const char *base_name,
                             struct err_info *info) {
    struct output o = {.file.fd = -1, .name = MDL__ADAPTER_CONFIG_NAME, .info = info};
    struct buf b;
    buf_init(&b, CONFIG_MOST);
    put_config(&b, a, base_name);
    enum err e = buf_err(&b);
    if (e)
        err_set(info, e, NULL, "%s cannot be made: %s", o.name, err_text(e));
    if (!e)
        e = durable_begin_public(&o.file, dirfd, o.name, info);
    if (!e)
        e = output_write(&o, b.data, b.len);
    e = output_close(&o, e);
    buf_fini(&b);
    return e;
}

// ---- adapter_model.safetensors

struct tensor {
    char name[MDL__ADAPTER_NAME];
    const float *data;
    int32_t rows, cols;
};

static int by_tensor_name(const void *a, const void *b) {
    return strcmp(((const struct tensor *)a)->name, ((const struct tensor *)b)->name);
}

static struct tensor *list_tensors(const struct mdl_config *c, const struct mdl_adapter *a,
                                   size_t *n_out) {
    size_t n = 0;
    struct tensor *list = mem_calloc((size_t)a->n_layers * MDL_TARGETS * 2, sizeof *list);
    for (int32_t i = 0; list && i < a->n_layers; i++)
        for (int t = 0; t < MDL_TARGETS; t++) {
            const struct mdl_adapter_module *m = &a->modules[i][t];
            int32_t wide[2]; // n, k
            if (!m->r)
                continue;
            mdl_target_shape(c, (enum mdl_target)t, &wide[0], &wide[1]);
            list[n] = (struct tensor){.data = m->a, .rows = m->r, .cols = wide[1]};
            list[n + 1] = (struct tensor){.data = m->b, .rows = wide[0], .cols = m->r};
            mdl__adapter_tensor_name(list[n++].name, i, (enum mdl_target)t, false);
            mdl__adapter_tensor_name(list[n++].name, i, (enum mdl_target)t, true);
        }
    if (list)
        qsort(list, n, sizeof *list, by_tensor_name);
    *n_out = n;
    return list;
}

static size_t tensor_bytes(const struct tensor *t) {
    return (size_t)t->rows * (size_t)t->cols * sizeof *t->data;
}

static void put_header(struct buf *b, const struct tensor *list, size_t n) {
    struct json_w w = json_w_begin(b);
    size_t at = 0;
    jw_obj(&w);
    jw_key(&w, "__metadata__");
    jw_obj(&w);
    jw_kstr(&w, "format", "pt");
    jw_obj_end(&w);
    for (size_t i = 0; i < n; i++) {
        size_t end = at + tensor_bytes(&list[i]);
        jw_key(&w, list[i].name);
        jw_obj(&w);
        jw_kstr(&w, "dtype", "F32");
        jw_key(&w, "shape");
        jw_arr(&w);
        jw_int(&w, list[i].rows);
        jw_int(&w, list[i].cols);
        jw_arr_end(&w);
        jw_key(&w, "data_offsets");
        jw_arr(&w);
        jw_int(&w, (int64_t)at);
        jw_int(&w, (int64_t)end);
        jw_arr_end(&w);
        jw_obj_end(&w);
        at = end;
    }
    jw_obj_end(&w);
    while (b->len % HEADER_UNIT && !buf_err(b))
        buf_putc(b, ' ');
}

static enum err write_all(struct output *o, const struct tensor *list, size_t n) {
    struct buf b;
    unsigned char length[8];
    buf_init(&b, HEADER_MOST);
    put_header(&b, list, n);
    enum err e = buf_err(&b);
    for (int i = 0; i < 8; i++)
        length[i] = (unsigned char)((uint64_t)b.len >> (8 * i));
    if (e)
        err_set(o->info, e, NULL, "%s: its header cannot be made: %s", o->name, err_text(e));
    if (!e)
        e = output_write(o, length, sizeof length);
    if (!e)
        e = output_write(o, b.data, b.len);
    size_t unflushed = 0;
    for (size_t i = 0; !e && i < n; i++) {
        e = output_write(o, list[i].data, tensor_bytes(&list[i]));
        unflushed += tensor_bytes(&list[i]);
        if (o->pace && unflushed >= FLUSH) { // or the sync does all of it in one burst
            durable_flush(&o->file);
            unflushed = 0;
        }
        pace_point(o->pace);
    }
    buf_fini(&b);
    return e;
}

static enum err write_tensors(int dirfd, const struct mdl_config *c, const struct mdl_adapter *a,
                              struct pace *pace, char digest[65], struct err_info *info) {
    struct output o = {
        .file.fd = -1, .name = MDL__ADAPTER_TENSORS_NAME, .pace = pace, .info = info};
    uint8_t sum[SHA256_BYTES];
    size_t n = 0;
    struct tensor *list = list_tensors(c, a, &n);
    o.sum = digest ? sha256_begin() : NULL;
    enum err e = ERR_OK;
    if (!list || (digest && !o.sum))
        e = err_set(info, ERR_NOMEM, NULL, "out of memory for %s", o.name);
    if (!e)
        e = durable_begin_public(&o.file, dirfd, o.name, info);
    if (!e)
        e = write_all(&o, list, n);
    e = output_close(&o, e);
    if (o.sum) {
        enum err of_sum = sha256_end(o.sum, sum);
        if (!e && of_sum)
            e = err_set(info, of_sum, NULL, "%s: no digest can be made", o.name);
        if (!e)
            hex_encode(sum, sizeof sum, digest);
    }
    mem_free(list);
    return e;
}

enum err mdl_adapter_write_paced(const char *dir, const struct mdl_config *c,
                                 const struct mdl_adapter *a, const char *base_name,
                                 struct pace *pace, char digest[65], struct err_info *info) {
    char why[80];
    if (a->n_layers != c->n_layers || !first_module(a))
        return err_set(info, ERR_INVALID, NULL, "the adapter is not one of this model");
    int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return err_set(info, errno == ENOENT ? ERR_NOT_FOUND : ERR_IO, NULL,
                       "the adapter's folder cannot be opened: %s",
                       strerror_r(errno, why, sizeof why));
    enum err e = durable_clean(fd, info); // what a process that died has left
    if (!e)
        e = write_config(fd, a, base_name, info);
    if (!e)
        e = write_tensors(fd, c, a, pace, digest, info);
    close(fd);
    return e;
}

enum err mdl_adapter_write(const char *dir, const struct mdl_config *c, const struct mdl_adapter *a,
                           const char *base_name, char digest[65], struct err_info *info) {
    return mdl_adapter_write_paced(dir, c, a, base_name, NULL, digest, info);
}

// SPDX-License-Identifier: Apache-2.0
#include "finetune/checkpoint.h"
#include "base/diskio.h"
#include "base/durable.h"
#include "base/json_write.h"
#include "base/mem.h"
#include "finetune/checkpoint_internal.h"
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { STATE_VERSION = 1, STATE_BYTES = 1 << 16 };

void ft_moments_fini(struct ft_moments *x) {
    mdl_adapter_destroy(x->w);
    mdl_adapter_destroy(x->m);
    mdl_adapter_destroy(x->v);
    *x = (struct ft_moments){0};
}

// ---- trainer_state.json

static enum err put_buf(int dir, const char *name, struct buf *b, struct err_info *info) {
    buf_putc(b, '\n');
    enum err e = buf_err(b) ? err_set(info, buf_err(b), NULL, "out of memory")
                            : durable_put(dir, name, b->data, b->len, info);
    buf_fini(b);
    return e;
}

void ft__state_fields(struct json_w *w, const struct ft_state *s) {
    jw_kint(w, "step", s->step);
    jw_kint(w, "exponent", s->exponent);
    jw_kint(w, "trained_tokens", s->trained_tokens);
    jw_kint(w, "repeats", s->repeats);
    jw_knum(w, "train_loss", s->train_loss);
    jw_knum(w, "train_accuracy", s->train_accuracy);
    jw_knum(w, "grad_norm", s->grad_norm);
    jw_knum(w, "valid_loss", s->valid_loss); // NAN becomes null
    jw_knum(w, "valid_accuracy", s->valid_accuracy);
}

static enum err write_state(int dir, const struct ft_state *s, struct err_info *info) {
    struct buf b;
    buf_init(&b, 0);
    struct json_w w = json_w_begin(&b);
    jw_obj(&w);
    jw_kint(&w, "version", STATE_VERSION);
    jw_kstr(&w, "optimizer", "adamw");
    ft__state_fields(&w, s);
    jw_obj_end(&w);
    return put_buf(dir, "trainer_state.json", &b, info);
}

static bool get_int(const json_t *o, const char *key, int64_t min, int64_t max, int64_t *out) {
    const json_t *v = json_object_get(o, key);
    *out = json_integer_value(v);
    return json_is_integer(v) && *out >= min && *out <= max;
}

static bool get_num(const json_t *o, const char *key, double *out) {
    const json_t *v = json_object_get(o, key);
    *out = json_is_null(v) ? (double)NAN : json_number_value(v);
    return json_is_number(v) || json_is_null(v);
}

static enum err read_state(int dir, struct ft_state *s, struct err_info *info) {
    json_t *o;
    enum err e = ft_file_json(dir, "trainer_state.json", STATE_BYTES, &o, info);
    if (e)
        return e;
    int64_t version, exponent;
    bool ok = get_int(o, "version", STATE_VERSION, STATE_VERSION, &version) &&
              get_int(o, "step", 0, INT64_MAX, &s->step) &&
              get_int(o, "exponent", -1000, 1000, &exponent) &&
              get_int(o, "trained_tokens", 0, INT64_MAX, &s->trained_tokens) &&
              get_int(o, "repeats", 0, INT64_MAX, &s->repeats) &&
              get_num(o, "train_loss", &s->train_loss) &&
              get_num(o, "train_accuracy", &s->train_accuracy) &&
              get_num(o, "grad_norm", &s->grad_norm) && get_num(o, "valid_loss", &s->valid_loss) &&
              get_num(o, "valid_accuracy", &s->valid_accuracy);
    json_decref(o);
    if (!ok)
        return err_set(info, ERR_FORMAT, NULL, "trainer_state.json lacks a field, or it is wrong");
    s->exponent = (int32_t)exponent;
    return ERR_OK;
}

// ---- write

static bool finite_matrix(const float *x, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (!isfinite(x[i]))
            return false;
    return true;
}

static enum err check_finite(const struct mdl_config *c, const struct mdl_adapter *a,
                             struct err_info *info) {
    for (int32_t l = 0; l < a->n_layers; l++)
        for (int t = 0; t < MDL_TARGETS; t++) {
            const struct mdl_adapter_module *m = &a->modules[l][t];
            int32_t n, k;
            mdl_target_shape(c, (enum mdl_target)t, &n, &k);
            size_t r = (size_t)m->r;
            if (r && (!finite_matrix(m->a, r * (size_t)k) || !finite_matrix(m->b, r * (size_t)n)))
                return err_set(info, ERR_NONFINITE, NULL,
                               "layer %d %s: the adapter has a value that is not finite", l,
                               mdl_target_name((enum mdl_target)t));
        }
    return ERR_OK;
}

static enum err write_files(int dir, const char *path, const struct mdl_config *c,
                            const struct ft_state *s, const struct ft_moments *x,
                            const struct ft_manifest *m, struct err_info *info) {
    enum err e = mdl_adapter_write(path, c, x->w, m->base_model, NULL, info);
    if (!e)
        e = ft__write_moments(dir, c, x, info);
    if (!e)
        e = write_state(dir, s, info);
    return e ? e : ft_manifest_write(dir, FT_MANIFEST_CHECKPOINT, m, s, ft__files, FT__FILES, info);
}

// A whole one of that name stays, a broken one makes room.
static enum err make_room(int parent, const char *name, bool *there, struct err_info *info) {
    int fd;
    struct err_info why;
    *there = false;
    enum err e = ft__open_folder(parent, name, &fd, &why);
    if (e == ERR_NOT_FOUND)
        return ERR_OK;
    if (!e) {
        *there = !ft__verify(fd, NULL, &why);
        close(fd);
    }
    return *there ? ERR_OK : ft__remove_folder(parent, name, info);
}

enum err ft__publish(int parent, const char *aside, const char *name, struct err_info *info) {
    bool there;
    enum err e = make_room(parent, name, &there, info);
    if (e || there) {
        enum err removed = ft__remove_folder(parent, aside, e ? NULL : info);
        return e ? e : removed;
    }
    if (diskio_rename(parent, aside, name))
        return durable_errno(info, errno, "rename", name);
    return durable_sync_dir(parent, info);
}

enum err ft_checkpoint_write(const char *dir, const struct mdl_config *c, const struct ft_state *s,
                             const struct ft_moments *x, const struct ft_manifest *m,
                             char name[FT_CHECKPOINT_NAME], struct err_info *info) {
    char aside[FT_CHECKPOINT_NAME + 1], path[PATH_MAX];
    snprintf(name, FT_CHECKPOINT_NAME, "step-%lld", (long long)s->step);
    snprintf(aside, sizeof aside, ".%s", name);
    if ((size_t)snprintf(path, sizeof path, "%s/%s", dir, aside) >= sizeof path)
        return err_set(info, ERR_INVALID, NULL, "the path %.80s... is too long", dir);
    int parent, fd = -1;
    enum err e = check_finite(c, x->w, info);
    if (!e)
        e = ft__open_folder(AT_FDCWD, dir, &parent, info);
    if (e)
        return e;
    e = ft__remove_folder(parent, aside, info);
    if (!e && diskio_mkdir(parent, aside, 0700))
        e = durable_errno(info, errno, "make", aside);
    if (!e)
        e = ft__open_folder(parent, aside, &fd, info);
    if (!e)
        e = write_files(fd, path, c, s, x, m, info);
    if (fd >= 0)
        close(fd);
    if (e)
        ft__remove_folder(parent, aside, NULL);
    else
        e = ft__publish(parent, aside, name, info);
    close(parent);
    return e;
}

// ---- read

// An adapter of the same shape, for moments.
static enum err same_shape(const struct mdl_config *c, const struct mdl_adapter *a,
                           struct mdl_adapter **out, struct err_info *info) {
    unsigned targets = 0;
    float alpha = 1;
    for (int t = 0; t < MDL_TARGETS; t++)
        if (a->modules[0][t].r) {
            targets |= 1U << t;
            alpha = a->modules[0][t].alpha;
        }
    for (int32_t l = 0; l < a->n_layers; l++)
        for (int t = 0; t < MDL_TARGETS; t++)
            if (a->modules[l][t].r != (targets >> t & 1 ? a->max_r : 0))
                return err_set(info, ERR_FORMAT, NULL,
                               "the adapter's ranks differ from layer to layer");
    return mdl_adapter_create(c, targets, a->max_r, alpha, a->rslora, out, info);
}

enum err ft_checkpoint_read(const char *path, const struct mdl_config *c, struct ft_state *s,
                            struct ft_moments *x, struct err_info *info) {
    int dir;
    *x = (struct ft_moments){0};
    enum err e = ft__open_folder(AT_FDCWD, path, &dir, info);
    if (e)
        return e;
    struct mdl_adapter_limits limits = {0};
    e = ft__verify(dir, NULL, info);
    if (!e)
        e = read_state(dir, s, info);
    if (!e)
        e = mdl_adapter_read(path, c, &limits, &x->w, info);
    if (!e)
        e = same_shape(c, x->w, &x->m, info);
    if (!e)
        e = same_shape(c, x->w, &x->v, info);
    if (!e)
        e = ft__read_moments(dir, c, x, info);
    close(dir);
    if (e)
        ft_moments_fini(x);
    return e;
}

enum err ft_checkpoint_manifest(const char *path, json_t **out, struct err_info *info) {
    int dir;
    enum err e = ft__open_folder(AT_FDCWD, path, &dir, info);
    if (e)
        return e;
    e = ft_manifest_read(dir, out, info);
    close(dir);
    return e;
}

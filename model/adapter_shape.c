// SPDX-License-Identifier: Apache-2.0
// What base an adapter fits, from the header of its tensors alone.
#include "model/adapter_internal.h"
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

enum { MAX_LAYERS = 1024 };

// The widths that shapes are made of; 0: not told yet.
struct widths {
    int32_t layers, hidden, q, kv, inner;
};

// The first tensor tells; one that says otherwise is found by whoever reads the adapter.
static void tell(int32_t *width, const struct st_tensor *t, int dim) {
    if (!*width && t->n_dims == 2 && t->dims[dim] >= 1 && t->dims[dim] <= INT32_MAX)
        *width = (int32_t)t->dims[dim];
}

static void look_at(struct widths *w, const struct st_tensor *t) {
    int32_t layer, *n, *k;
    enum mdl_target target;
    bool is_b;
    if (!mdl__adapter_parse_name(t->name, &layer, &target, &is_b) || layer >= MAX_LAYERS)
        return;
    if (layer >= w->layers)
        w->layers = layer + 1;
    n = target == MDL_TARGET_Q                                 ? &w->q
        : target == MDL_TARGET_K || target == MDL_TARGET_V     ? &w->kv
        : target == MDL_TARGET_GATE || target == MDL_TARGET_UP ? &w->inner
                                                               : &w->hidden;
    k = target == MDL_TARGET_O ? &w->q : target == MDL_TARGET_DOWN ? &w->inner : &w->hidden;
    if (is_b)
        tell(n, t, 0);
    else
        tell(k, t, 1);
}

static int32_t or_one(int32_t width) {
    return width ? width : 1;
}

static enum err shape_of(const struct mdl_file *f, struct mdl_config *out, struct err_info *info) {
    struct st_header h = {0};
    struct widths w = {0};
    enum err e = mdl__adapter_read_header(f, &h, info);
    if (e) {
        err_prefix(info, "%s", MDL__ADAPTER_TENSORS_NAME);
        return e;
    }
    for (size_t i = 0; i < h.n_tensors; i++)
        look_at(&w, &h.tensors[i]);
    st_fini(&h);
    if (!w.layers)
        return err_set(info, ERR_FORMAT, NULL,
                       "%s: no tensor is lora_A or lora_B of a layer's linear module",
                       MDL__ADAPTER_TENSORS_NAME);
    *out = (struct mdl_config){.n_layers = w.layers,
                               .hidden = or_one(w.hidden),
                               .intermediate = or_one(w.inner),
                               .n_heads = or_one(w.q),
                               .n_kv_heads = or_one(w.kv),
                               .head_dim = 1};
    return ERR_OK;
}

enum err mdl_adapter_shape(const char *dir, struct mdl_config *out, struct err_info *info) {
    struct mdl_file f;
    int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return err_set(info, errno == ENOENT || errno == ENOTDIR ? ERR_NOT_FOUND : ERR_IO, NULL,
                       "the adapter's folder cannot be opened");
    enum err e = mdl_file_open(fd, MDL__ADAPTER_TENSORS_NAME, MDL__ADAPTER_TENSORS_NAME, &f, info);
    close(fd);
    if (e)
        return e;
    e = shape_of(&f, out, info);
    mdl_file_close(&f);
    return e;
}

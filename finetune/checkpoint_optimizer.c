// SPDX-License-Identifier: Apache-2.0
// optimizer.safetensors: exp_avg and exp_avg_sq of each A and B, f32, under names like
// "exp_avg.layers.0.q_proj.lora_A". Layout and header follow from the adapter's shape alone, so a
// reader makes the header that it expects and compares.
#include "base/durable.h"
#include "base/json_write.h"
#include "base/mem.h"
#include "finetune/checkpoint_internal.h"
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { NAME_BYTES = 96, ALIGN = 8, KINDS = 2 };
static const char *const file_name = "optimizer.safetensors";
static const char *const kinds[KINDS] = {"exp_avg", "exp_avg_sq"};

// One tensor of the file, in its order.
struct tensor {
    const char *kind;
    int32_t layer, side;
    enum mdl_target target;
    int32_t rows, cols;
    float *data;
};
typedef enum err (*visit_fn)(void *arg, const struct tensor *t);

static enum err visit_module(const struct mdl_config *c, const struct mdl_adapter *a,
                             struct tensor *t, visit_fn visit, void *arg) {
    const struct mdl_adapter_module *m = &a->modules[t->layer][t->target];
    int32_t n, k;
    mdl_target_shape(c, t->target, &n, &k);
    enum err e = ERR_OK;
    for (t->side = 0; t->side < 2 && m->r && !e; t->side++) {
        t->rows = t->side ? n : m->r;
        t->cols = t->side ? m->r : k;
        t->data = t->side ? m->b : m->a;
        e = visit(arg, t);
    }
    return e;
}

static enum err visit_all(const struct mdl_config *c, const struct ft_moments *x, visit_fn visit,
                          void *arg) {
    const struct mdl_adapter *const moments[KINDS] = {x->m, x->v};
    enum err e = ERR_OK;
    for (int i = 0; i < KINDS; i++)
        for (int32_t l = 0; l < x->m->n_layers; l++)
            for (int t = 0; t < MDL_TARGETS && !e; t++) {
                struct tensor at = {.kind = kinds[i], .layer = l, .target = (enum mdl_target)t};
                e = visit_module(c, moments[i], &at, visit, arg);
            }
    return e;
}

static size_t bytes_of(const struct tensor *t) {
    return (size_t)t->rows * (size_t)t->cols * sizeof(float);
}

// ---- header

struct header {
    struct json_w w;
    uint64_t at;
};

static enum err describe(void *arg, const struct tensor *t) {
    struct header *h = arg;
    char name[NAME_BYTES];
    snprintf(name, sizeof name, "%s.layers.%d.%s.lora_%c", t->kind, t->layer,
             mdl_target_name(t->target), t->side ? 'B' : 'A');
    jw_key(&h->w, name);
    jw_obj(&h->w);
    jw_kstr(&h->w, "dtype", "F32");
    jw_key(&h->w, "shape");
    jw_arr(&h->w);
    jw_int(&h->w, t->rows);
    jw_int(&h->w, t->cols);
    jw_arr_end(&h->w);
    jw_key(&h->w, "data_offsets");
    jw_arr(&h->w);
    jw_int(&h->w, (int64_t)h->at);
    h->at += bytes_of(t);
    jw_int(&h->w, (int64_t)h->at);
    jw_arr_end(&h->w);
    jw_obj_end(&h->w);
    return ERR_OK;
}

// Length and JSON, as they stand in front of the data.
static enum err make_header(const struct mdl_config *c, const struct ft_moments *x,
                            struct buf *out) {
    struct buf json;
    buf_init(&json, 0);
    struct header h = {.w = json_w_begin(&json)};
    jw_obj(&h.w);
    visit_all(c, x, describe, &h);
    jw_obj_end(&h.w);
    while (!buf_err(&json) && json.len % ALIGN)
        buf_putc(&json, ' ');
    enum err e = buf_err(&json);
    uint8_t length[8];
    for (int i = 0; i < 8; i++)
        length[i] = (uint8_t)((uint64_t)json.len >> 8 * i);
    buf_append(out, length, sizeof length);
    if (!e)
        buf_append(out, json.data, json.len);
    buf_fini(&json);
    return e ? e : buf_err(out);
}

// ---- write

struct writer {
    struct durable d;
    struct err_info *info;
};

static enum err write_tensor(void *arg, const struct tensor *t) {
    struct writer *w = arg;
    return durable_write(&w->d, t->data, bytes_of(t), w->info);
}

enum err ft__write_moments(int dir, const struct mdl_config *c, const struct ft_moments *x,
                           struct err_info *info) {
    struct writer w = {.info = info};
    struct buf header;
    buf_init(&header, 0);
    enum err e = make_header(c, x, &header);
    if (e) {
        buf_fini(&header);
        return err_set(info, e, NULL, "out of memory");
    }
    if (!(e = durable_begin(&w.d, dir, file_name, info)) &&
        !(e = durable_write(&w.d, header.data, header.len, info)) &&
        !(e = visit_all(c, x, write_tensor, &w)))
        e = durable_commit(&w.d, info);
    durable_abort(&w.d);
    buf_fini(&header);
    return e;
}

// ---- read

struct reader {
    int fd;
};

static enum err read_all(int fd, void *to, size_t n) {
    char *at = to;
    while (n) {
        ssize_t got = read(fd, at, n);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return got < 0 ? ERR_IO : ERR_FORMAT;
        at += got;
        n -= (size_t)got;
    }
    return ERR_OK;
}

static enum err read_tensor(void *arg, const struct tensor *t) {
    return read_all(((struct reader *)arg)->fd, t->data, bytes_of(t));
}

static enum err check_header(int fd, const struct buf *expected) {
    char *found = mem_alloc(expected->len);
    if (!found)
        return ERR_NOMEM;
    enum err e = read_all(fd, found, expected->len);
    if (!e && memcmp(found, expected->data, expected->len) != 0)
        e = ERR_FORMAT;
    mem_free(found);
    return e;
}

enum err ft__read_moments(int dir, const struct mdl_config *c, const struct ft_moments *x,
                          struct err_info *info) {
    struct buf header;
    buf_init(&header, 0);
    struct reader r = {-1};
    enum err e = durable_open(dir, file_name, &r.fd, info);
    if (e)
        return e;
    e = make_header(c, x, &header);
    if (!e)
        e = check_header(r.fd, &header);
    if (!e)
        e = visit_all(c, x, read_tensor, &r);
    char more;
    ssize_t n = e ? 0 : read(r.fd, &more, 1);
    if (n)
        e = n < 0 ? ERR_IO : ERR_FORMAT;
    close(r.fd);
    buf_fini(&header);
    return e ? err_set(info, e, NULL, "%s: %s", file_name,
                       e == ERR_FORMAT ? "not the moments of this adapter" : err_text(e))
             : ERR_OK;
}

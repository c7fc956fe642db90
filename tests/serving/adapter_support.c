// SPDX-License-Identifier: Apache-2.0
#include "tests/serving/adapter_support.h"
#include "base/hash.h"
#include "base/mem.h"
#include "tests/support/cmocka_all.h"
#include "tests/support/temp_folder.h"
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

void adapter_dir_open(struct adapter_dir *d) {
    temp_folder(d->path, "adapters");
}

void adapter_dir_close(struct adapter_dir *d) {
    temp_remove(d->path);
}

static void write_out(const struct adapter_dir *d, const char *name, const struct mdl_config *c,
                      struct mdl_adapter *a) {
    char path[128];
    struct err_info info = {0};
    snprintf(path, sizeof path, "%s/%s", d->path, name);
    mkdir(path, 0700);
    if (mdl_adapter_write(path, c, a, "test", NULL, &info))
        fail_msg("%s", info.message);
    mdl_adapter_destroy(a);
}

static float noise(uint64_t *state, float width) {
    *state += 0x9e3779b97f4a7c15u;
    return ((float)(hash_mix64(*state) >> 40) / (float)(1 << 23) - 1) * width;
}

void adapter_make_random(const struct adapter_dir *d, const char *name, const struct mdl_config *c,
                         uint64_t seed) {
    struct mdl_adapter *a;
    struct err_info info = {0};
    int32_t r = 1 + (int32_t)(seed % 7);
    if (mdl_adapter_create(c, (1u << MDL_TARGETS) - 1, r, 2, false, &a, &info))
        fail_msg("%s", info.message);
    for (int32_t i = 0; i < a->n_layers; i++)
        for (int t = 0; t < MDL_TARGETS; t++) {
            int32_t n, k;
            mdl_target_shape(c, (enum mdl_target)t, &n, &k);
            for (int32_t j = 0; j < r * k; j++)
                a->modules[i][t].a[j] = noise(&seed, 0.5f);
            for (int32_t j = 0; j < n * r; j++)
                a->modules[i][t].b[j] = noise(&seed, 0.5f);
        }
    write_out(d, name, c, a);
}

static void rows_of_head(const struct mdl_weights *w, int64_t row, int64_t n, float *out) {
    assert_int_equal(w->ops->weight_read(w->head.part[0], row, n, out), ERR_OK);
}

void adapter_make_forcing(const struct adapter_dir *d, const char *name,
                          const struct mdl_weights *w, int32_t token) {
    const struct mdl_config *c = &w->config;
    const unsigned targets = 1u << MDL_TARGET_GATE | 1u << MDL_TARGET_UP | 1u << MDL_TARGET_DOWN;
    struct mdl_adapter *a;
    struct err_info info = {0};
    enum { RANK = 4 }; // one s could be nearly 0; four are not
    if (mdl_adapter_create(c, targets, RANK, RANK, false, &a, &info))
        fail_msg("%s", info.message);
    struct mdl_adapter_module *m = a->modules[c->n_layers - 1];
    float *row = mem_calloc((size_t)c->hidden, sizeof *row);
    assert_non_null(row);
    rows_of_head(w, token, 1, row);
    uint64_t seed = 1;
    for (int32_t j = 0; j < RANK; j++) {
        for (int32_t i = 0; i < c->hidden; i++)
            m[MDL_TARGET_GATE].a[j * c->hidden + i] = m[MDL_TARGET_UP].a[j * c->hidden + i] =
                noise(&seed, 3);
        for (int t = MDL_TARGET_GATE; t <= MDL_TARGET_UP; t++) {
            m[t].b[2 * j * RANK + j] = 30;
            m[t].b[(2 * j + 1) * RANK + j] = -30;
        }
        m[MDL_TARGET_DOWN].a[2 * j] = m[MDL_TARGET_DOWN].a[2 * j + 1] = 30;
    }
    for (int32_t i = 0; i < c->hidden; i++)
        m[MDL_TARGET_DOWN].b[i * RANK] = 30 * row[i];
    mem_free(row);
    write_out(d, name, c, a);
}

void adapter_forcible(const struct mdl_weights *w, struct kn_queue *q, int32_t *out, int32_t n) {
    const struct mdl_config *c = &w->config;
    size_t h = (size_t)c->hidden;
    float *head = mem_calloc((size_t)c->vocab * h, sizeof *head);
    float *norm = mem_calloc(h, sizeof *norm);
    assert_true(head && norm);
    rows_of_head(w, 0, c->vocab, head);
    assert_int_equal(w->ops->download(q, norm, w->final_norm, h * sizeof *norm), ERR_OK);
    assert_int_equal(w->ops->queue_wait(q, NULL), ERR_OK);
    int32_t found = 0;
    for (int32_t t = c->n_eos ? c->eos[0] + 1 : 0; t < c->vocab && found < n; t++) {
        double own = 0, other = (double)-INFINITY, length = 0;
        for (int32_t v = 0; v < c->vocab; v++) {
            double s = 0;
            for (size_t i = 0; i < h; i++)
                s += (double)head[(size_t)v * h + i] * (double)norm[i] *
                     (double)head[(size_t)t * h + i];
            if (v == t)
                own = s;
            else if (s > other)
                other = s;
        }
        for (size_t i = 0; i < h; i++)
            length += (double)head[(size_t)t * h + i] * (double)head[(size_t)t * h + i];
        if (own > other + 0.2 * length)
            out[found++] = t;
    }
    mem_free(head);
    mem_free(norm);
    assert_int_equal(found, n);
}

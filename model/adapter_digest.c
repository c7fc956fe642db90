// SPDX-License-Identifier: Apache-2.0
#include "base/hash.h"
#include "model/adapter.h"

static enum err add(struct sha256_ctx *c, const void *p, size_t n) {
    return n ? sha256_update(c, p, n) : ERR_OK;
}

static enum err add_module(struct sha256_ctx *c, const struct mdl_config *m, int32_t layer,
                           enum mdl_target t, const struct mdl_adapter_module *mod) {
    int32_t n, k;
    mdl_target_shape(m, t, &n, &k);
    const int32_t head[3] = {layer, (int32_t)t, mod->r};
    size_t r = (size_t)mod->r;
    enum err e;
    (void)((e = add(c, head, sizeof head)) || (e = add(c, &mod->scale, sizeof mod->scale)) ||
           (e = add(c, mod->a, r * (size_t)k * sizeof(float))) ||
           (e = add(c, mod->b, r * (size_t)n * sizeof(float))));
    return e;
}

enum err mdl_adapter_digest_paced(const struct mdl_config *m, const struct mdl_adapter *a,
                                  struct pace *pace, char out[65]) {
    struct sha256_ctx *c = sha256_begin();
    uint8_t sum[SHA256_BYTES];
    if (!c)
        return ERR_NOMEM;
    enum err e = ERR_OK;
    for (int32_t i = 0; i < a->n_layers && !e; i++)
        for (int t = 0; t < MDL_TARGETS && !e; t++) {
            if (a->modules[i][t].r)
                e = add_module(c, m, i, (enum mdl_target)t, &a->modules[i][t]);
            pace_point(pace);
        }
    enum err ended = sha256_end(c, sum);
    hex_encode(sum, sizeof sum, out);
    return e ? e : ended;
}

enum err mdl_adapter_digest(const struct mdl_config *m, const struct mdl_adapter *a, char out[65]) {
    return mdl_adapter_digest_paced(m, a, NULL, out);
}

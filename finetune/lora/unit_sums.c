// SPDX-License-Identifier: Apache-2.0
// The end of a unit: losses to the host, then its gradient into the int64 sums, all of it or
// nothing. The range is not needed for that.
#include "finetune/lora/unit_internal.h"

enum {
    CUT_VALUES = 4096,
    COARSE_EXPONENT = -100, // every finite f32 fits
};

static enum err stage_results(struct lora_unit *u) {
    size_t n = (size_t)u->n_targets;
    enum err e = u->ops->download(u->q, u->losses, u->buf.losses, n * sizeof *u->losses);
    if (!e)
        e = u->ops->download(u->q, u->hits, u->buf.hits, n * sizeof *u->hits);
    u->holds = false;
    // Without a target there is no gradient: what the ranges hold is of another unit.
    lora__goto(u, u->row.backward && n ? UNIT_CHECK : UNIT_DONE);
    return e;
}

// Values from at.at on; true in *all when the last is recorded.
static enum err pass(struct lora_unit *u, struct lora__account *a, enum kn_grad_mode mode,
                     int32_t exponent, bool *all) {
    struct lora_ranges r;
    lora_params_ranges(u->params, &r);
    double bytes = mode == KN_GRAD_CHECK ? 4 : 20;
    int64_t left = r.n - u->at.at, n = left;
    while (n > CUT_VALUES && lora__cut(u, a, 2, bytes * (double)n, 0, 1) < 2)
        n = n / 2 / CUT_VALUES * CUT_VALUES + CUT_VALUES * (n < 2 * CUT_VALUES);
    n = n < left ? n : left;
    struct kn_grad_add p = {.g = r.grad,
                            .acc = r.acc,
                            .n = r.n,
                            .exponent = exponent,
                            .flag = lora_params_flag(u->params),
                            .mode = mode,
                            .begin = u->at.at,
                            .end = u->at.at + n};
    lora__spend(u, a, bytes * (double)n, 0);
    u->at.at += n;
    *all = u->at.at == r.n;
    return u->ops->grad_add(u->q, &p);
}

static enum err stage_check(struct lora_unit *u, struct lora__account *a) {
    bool all;
    enum err e = pass(u, a, KN_GRAD_CHECK, u->row.exponent, &all);
    if (e || !all)
        return e;
    e = u->ops->download(u->q, &u->flag, lora_params_flag(u->params), sizeof u->flag);
    lora__next(u);
    lora__sync(a);
    return e;
}

// Tells too large from not finite.
static enum err stage_checked(struct lora_unit *u, struct lora__account *a) {
    if (!u->flag) {
        lora__next(u);
        return ERR_OK;
    }
    bool all;
    const int32_t clear = 0;
    enum err e = ERR_OK;
    if (!u->at.at)
        e = u->ops->upload(u->q, lora_params_flag(u->params), &clear, sizeof clear);
    if (!e)
        e = pass(u, a, KN_GRAD_CHECK, COARSE_EXPONENT, &all);
    if (e || !all)
        return e;
    e = u->ops->download(u->q, &u->bad, lora_params_flag(u->params), sizeof u->bad);
    lora__goto(u, UNIT_DONE);
    return e;
}

static enum err stage_add(struct lora_unit *u, struct lora__account *a) {
    bool all;
    enum err e = pass(u, a, KN_GRAD_ADD, u->row.exponent, &all);
    if (all)
        lora__goto(u, UNIT_DONE);
    return e;
}

// What was added before the cursor goes away again, to the last bit.
void lora__undo_sums(struct lora_unit *u) {
    struct lora_ranges r;
    lora_params_ranges(u->params, &r);
    struct kn_grad_add p = {.g = r.grad,
                            .acc = r.acc,
                            .n = r.n,
                            .exponent = u->row.exponent,
                            .flag = lora_params_flag(u->params),
                            .mode = KN_GRAD_SUBTRACT,
                            .end = u->at.at};
    if (u->at.at)
        u->ops->grad_add(u->q, &p);
}

enum err lora__stage_sums(struct lora_unit *u, struct lora__account *a) {
    switch (u->at.stage) {
    case UNIT_RESULTS:
        return stage_results(u);
    case UNIT_CHECK:
        return stage_check(u, a);
    case UNIT_CHECKED:
        return stage_checked(u, a);
    default:
        return stage_add(u, a);
    }
}

// SPDX-License-Identifier: Apache-2.0
#include "tests/finetune/exec_support.h"
#include "base/mem.h"
#include "tests/support/assert_ok.h"

struct ft_exec_config exec_config(const struct fx *x, bool keep) {
    return (struct ft_exec_config){.weights = x->weights,
                                   .lora = {.targets = ALL_TARGETS, .r = 4, .alpha = 8},
                                   .limits = {TF_TOKENS, TF_SEQS, keep},
                                   .clock = &clock_system};
}

void exec_commit(const struct walk *w, int32_t step, int64_t targets, double *norm) {
    const struct tf_golden *g = w->g;
    struct err_info info = {0};
    struct ft_step s = {.divisor = (double)targets,
                        .max_grad_norm = g->max_norm,
                        .lr = g->lr,
                        .beta1 = g->beta1,
                        .beta2 = g->beta2,
                        .eps = g->eps,
                        .decay = g->decay,
                        .t = step + 1,
                        .exponent = EXPONENT};
    struct ft_step_result res;
    assert_ok(ft_exec_step(w->x, &s, &res, &info), &info);
    assert_true(res.clip <= 1 && res.largest > 0);
    *norm = res.grad_norm;
}

int64_t exec_step(const struct walk *w, int32_t step, double *loss, double *norm) {
    const struct tf_golden *g = w->g;
    struct err_info info = {0};
    double sum = 0;
    int64_t targets = 0;
    for (int32_t i = w->first; i < g->n_rows; i++) {
        struct lora_row row = tf_lora_row(&g->rows[w->backwards ? g->n_rows - 1 - i : i], EXPONENT);
        struct lora_row_result res;
        assert_ok(ft_exec_unit(w->x, &row, &res, &info), &info);
        assert_true(res.finite && !res.overflow);
        sum += res.loss;
        targets += res.targets;
    }
    exec_commit(w, step, targets, norm);
    *loss = sum / (double)targets;
    return targets;
}

void exec_take(struct ft_exec *x, const struct mdl_config *c, struct outcome *o) {
    struct mdl_adapter *a[3];
    struct err_info info;
    for (int i = 0; i < 3; i++)
        assert_ok(mdl_adapter_create(c, ALL_TARGETS, 4, 8, false, &a[i], &info), &info);
    assert_ok(ft_exec_get(x, a[0], a[1], a[2], &info), &info);
    float **const to[3] = {&o->w, &o->m, &o->v};
    o->n = a[0]->values * sizeof(float);
    for (int i = 0; i < 3; i++) {
        *to[i] = mem_dup(a[i]->memory, o->n);
        assert_non_null(*to[i]);
        mdl_adapter_destroy(a[i]);
    }
}

void exec_assert_same(const struct outcome *a, const struct outcome *b) {
    assert_int_equal(a->n, b->n);
    assert_memory_equal(a->w, b->w, a->n);
    assert_memory_equal(a->m, b->m, a->n);
    assert_memory_equal(a->v, b->v, a->n);
    assert_memory_equal(a->norm, b->norm, sizeof a->norm);
}

void exec_drop(struct outcome *o) {
    mem_free(o->w);
    mem_free(o->m);
    mem_free(o->v);
}

void exec_three_steps(const struct walk *w, const struct mdl_config *c, struct outcome *o) {
    struct err_info info;
    assert_ok(ft_exec_set(w->x, w->g->start, NULL, NULL, &info), &info);
    assert_ok(ft_exec_clear(w->x, &info), &info);
    for (int32_t i = 0; i < 3; i++)
        exec_step(w, i, &o->loss[i], &o->norm[i]);
    exec_take(w->x, c, o);
}

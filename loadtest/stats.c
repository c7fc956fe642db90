// SPDX-License-Identifier: Apache-2.0
#include "loadtest/stats.h"
#include "base/mem.h"
#include <math.h>
#include <stdlib.h>

enum err lt_series_add(struct lt_series *s, double v) {
    if (s->n == s->cap) {
        size_t cap = s->cap ? s->cap * 2 : 256;
        double *grown = mem_realloc(s->v, cap * sizeof *grown);
        if (!grown)
            return ERR_NOMEM;
        s->v = grown;
        s->cap = cap;
    }
    s->v[s->n++] = v;
    return ERR_OK;
}

void lt_series_fini(struct lt_series *s) {
    mem_free(s->v);
    *s = (struct lt_series){0};
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double rank(const struct lt_series *s, double p) {
    size_t i = (size_t)ceil(p * (double)s->n);
    return s->v[i ? i - 1 : 0];
}

struct lt_summary lt_series_summary(struct lt_series *s) {
    struct lt_summary out = {.n = s->n};
    if (!s->n)
        return out;
    qsort(s->v, s->n, sizeof *s->v, by_value);
    double sum = 0;
    for (size_t i = 0; i < s->n; i++)
        sum += s->v[i];
    out.mean = sum / (double)s->n;
    out.p50 = rank(s, 0.5);
    out.p90 = rank(s, 0.9);
    out.p99 = rank(s, 0.99);
    out.max = s->v[s->n - 1];
    return out;
}

void lt_stats_fini(struct lt_stats *s) {
    lt_series_fini(&s->ttft);
    lt_series_fini(&s->itl);
    lt_series_fini(&s->e2e);
}

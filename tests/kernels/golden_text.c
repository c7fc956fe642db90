// SPDX-License-Identifier: Apache-2.0
#include "golden_text.h"
#include "base/mem.h"
#include "tests/support/cmocka_all.h"
#include <stdio.h>
#include <string.h>

enum { ARRAYS = 128 };

struct golden_text {
    int n;
    struct {
        char name[40];
        int32_t n;
        double *v;
    } a[ARRAYS];
};

struct golden_text *golden_open(const char *path) {
    FILE *in = fopen(path, "r");
    struct golden_text *g = mem_zalloc(sizeof *g);
    assert_non_null(in);
    assert_non_null(g);
    while (g->n < ARRAYS && fscanf(in, "%39s %d", g->a[g->n].name, &g->a[g->n].n) == 2) {
        int32_t n = g->a[g->n].n;
        assert_true(n > 0 && n < 1 << 20);
        g->a[g->n].v = mem_calloc((size_t)n, sizeof(double));
        assert_non_null(g->a[g->n].v);
        for (int32_t i = 0; i < n; i++)
            assert_int_equal(fscanf(in, "%lf", &g->a[g->n].v[i]), 1);
        g->n++;
    }
    assert_true(g->n > 0 && feof(in));
    fclose(in);
    return g;
}

void golden_close(struct golden_text *g) {
    for (int i = 0; i < g->n; i++)
        mem_free(g->a[i].v);
    mem_free(g);
}

const double *golden_array(const struct golden_text *g, const char *name, int32_t *n) {
    for (int i = 0; i < g->n; i++)
        if (strcmp(g->a[i].name, name) == 0) {
            *n = g->a[i].n;
            return g->a[i].v;
        }
    fail_msg("no array '%s'", name);
    return NULL;
}

float *golden_f32(const struct golden_text *g, const char *name, int32_t *n) {
    const double *v = golden_array(g, name, n);
    float *x = mem_calloc((size_t)*n, sizeof *x);
    assert_non_null(x);
    for (int32_t i = 0; i < *n; i++)
        x[i] = (float)v[i];
    return x;
}

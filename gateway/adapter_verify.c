// SPDX-License-Identifier: Apache-2.0
#include "gateway/adapter_verify.h"
#include "base/mem.h"
#include "serving/adapter_registry.h"
#include <math.h>
#include <string.h>

static const double across_sets = 1e-4;

static double sum(const float *x, int32_t n) {
    double s = 0;
    for (int32_t i = 0; i < n; i++)
        s += (double)x[i];
    return s;
}

static enum err differs(const struct ft_probe_seq *s, const float *served, struct err_info *info) {
    double was = sum(s->losses, s->n_targets), is = sum(served, s->n_targets);
    int32_t t = 0;
    while (t < s->n_targets - 1 && s->losses[t] == served[t])
        t++;
    return err_set(info, ERR_FORMAT, NULL,
                   "line %lld has another loss when it is served: %.9g, and the trainer found %.9g "
                   "(supervised token %d: %.9g and %.9g)",
                   (long long)s->line, is, was, (int)t, (double)served[t], (double)s->losses[t]);
}

// The first sequence that is another. Sums are in f64 in the file's order, as the trainer's is.
static enum err compare(const struct adapter_verify *a, const struct ask_item *items,
                        struct err_info *info) {
    const struct ft_probe *p = a->trained;
    double total = 0;
    size_t first = p->n;
    for (size_t i = 0; i < p->n; i++) {
        const struct ft_probe_seq *s = &p->seqs[i];
        const float *served = items[i].losses;
        for (int32_t t = 0; t < s->n_targets; t++)
            total += (double)served[t];
        double was = sum(s->losses, s->n_targets), is = sum(served, s->n_targets);
        bool same = a->same_kernels
                        ? !memcmp(s->losses, served, (size_t)s->n_targets * sizeof *served)
                        : fabs(is - was) <= across_sets * fabs(was);
        if (!same && first == p->n)
            first = i;
    }
    bool same = a->same_kernels ? first == p->n && total == p->loss
                                : fabs(total - p->loss) <= across_sets * fabs(p->loss);
    if (same)
        return ERR_OK;
    if (first < p->n)
        return differs(&p->seqs[first], items[first].losses, info);
    return err_set(
        info, ERR_FORMAT, NULL,
        "the probe set has another loss when it is served: %.9g, and the trainer found %.9g", total,
        p->loss);
}

enum err adapter_verify(const struct adapter_verify *a, struct eng *engine, struct adp_version *v,
                        struct err_info *info) {
    const struct ft_probe *p = a->served;
    size_t floats = 0;
    bool alike = p->n == a->trained->n; // as ft_probe_again leaves them
    for (size_t i = 0; i < p->n && alike; i++) {
        floats += (size_t)p->seqs[i].n_targets;
        alike = p->seqs[i].n_targets == a->trained->seqs[i].n_targets;
    }
    if (!alike)
        return err_set(info, ERR_INTERNAL, NULL, "two probe sets that are not the same lines");
    struct ask_item *items = mem_calloc(p->n, sizeof *items);
    float *losses = mem_calloc(floats, sizeof *losses), *at = losses;
    enum err e = items && losses ? ERR_OK : err_set(info, ERR_NOMEM, NULL, "out of memory");
    for (size_t i = 0; i < p->n && !e; i++) {
        const struct ft_probe_seq *s = &p->seqs[i];
        items[i] = (struct ask_item){.ids = s->ids, .n = s->n, .mask = s->mask, .losses = at};
        at += s->n_targets;
    }
    const struct ask ask = {engine, v, a->tenant, a->stop};
    if (!e)
        e = ask_all(&ask, items, p->n, info);
    if (!e)
        e = compare(a, items, info);
    // What no loss shows; or weights that give none.
    if ((!e || e == ERR_NONFINITE) && a->digest && strcmp(a->digest, adp_digest(v)) != 0)
        e = err_set(info, ERR_FORMAT, NULL,
                    "the adapter is not the one that was trained: its content has the digest "
                    "%.16s..., and the trained one %.16s...",
                    adp_digest(v), a->digest);
    mem_free(items);
    mem_free(losses);
    return e;
}

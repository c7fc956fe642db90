// SPDX-License-Identifier: Apache-2.0
// Families are a list in the order of their making; each has a list of series. A series owns its
// numbers or, for an alias, points to another's. Numbers are doubles in atomic 64-bit words.
#include "base/metrics.h"
#include "base/json_write.h"
#include "base/mem.h"
#include <math.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum kind { COUNTER, GAUGE, HISTOGRAM };

struct metric {
    _Atomic uint64_t bits;
    bool when_used;
};

struct histogram {
    size_t n;
    double *bounds;
    _Atomic uint64_t *buckets; // n + 1, not cumulative
    _Atomic uint64_t sum_bits;
    bool when_used;
};

struct series {
    struct series *next;
    char *labels;
    struct metric own;
    struct histogram own_hist;
    const struct metric *number; // its own or an alias's target
    const struct histogram *hist;
};

struct family {
    struct family *next;
    char *name, *help;
    enum kind kind;
    struct series *series, **tail;
};

struct metrics {
    struct family *families, **tail;
};

struct metrics *metrics_create(void) {
    struct metrics *m = mem_zalloc(sizeof *m);
    if (m)
        m->tail = &m->families;
    return m;
}

static void series_free(struct series *s) {
    mem_free(s->labels);
    mem_free(s->own_hist.bounds);
    mem_free(s->own_hist.buckets);
    mem_free(s);
}

void metrics_destroy(struct metrics *m) {
    if (!m)
        return;
    for (struct family *f = m->families, *next; f; f = next) {
        next = f->next;
        for (struct series *s = f->series, *after; s; s = after) {
            after = s->next;
            series_free(s);
        }
        mem_free(f->name);
        mem_free(f->help);
        mem_free(f);
    }
    mem_free(m);
}

static struct family *family_of(struct metrics *m, const char *name, enum kind kind,
                                const char *help) {
    for (struct family *f = m->families; f; f = f->next)
        if (!strcmp(f->name, name))
            return f->kind == kind ? f : NULL;
    struct family *f = mem_zalloc(sizeof *f);
    if (!f)
        return NULL;
    f->name = mem_strdup(name);
    f->help = mem_strdup(help);
    if (!f->name || !f->help) {
        mem_free(f->name);
        mem_free(f->help);
        mem_free(f);
        return NULL;
    }
    f->kind = kind;
    f->tail = &f->series;
    *m->tail = f;
    m->tail = &f->next;
    return f;
}

static struct series *series_add(struct metrics *m, const char *name, const char *labels,
                                 enum kind kind, const char *help) {
    struct series *s = m ? mem_zalloc(sizeof *s) : NULL;
    if (!s)
        return NULL;
    s->labels = mem_strdup(labels ? labels : "");
    struct family *f = s->labels ? family_of(m, name, kind, help) : NULL;
    if (!f) {
        series_free(s);
        return NULL;
    }
    s->number = &s->own;
    s->hist = &s->own_hist;
    *f->tail = s;
    f->tail = &s->next;
    return s;
}

struct metric *metrics_counter(struct metrics *m, const char *name, const char *labels,
                               const char *help) {
    struct series *s = series_add(m, name, labels, COUNTER, help);
    return s ? &s->own : NULL;
}

struct metric *metrics_gauge(struct metrics *m, const char *name, const char *labels,
                             const char *help) {
    struct series *s = series_add(m, name, labels, GAUGE, help);
    return s ? &s->own : NULL;
}

struct histogram *metrics_histogram(struct metrics *m, const char *name, const char *labels,
                                    const char *help, const double *bounds, size_t n) {
    // The numbers are made before the series is in the list: a half-made one is never exposed.
    double *copy = mem_dup(bounds, n * sizeof *bounds);
    _Atomic uint64_t *buckets = mem_calloc(n + 1, sizeof *buckets);
    struct series *s = copy && buckets ? series_add(m, name, labels, HISTOGRAM, help) : NULL;
    if (!s) {
        mem_free(copy);
        mem_free(buckets);
        return NULL;
    }
    s->own_hist.n = n;
    s->own_hist.bounds = copy;
    s->own_hist.buckets = buckets;
    return &s->own_hist;
}

static const struct series *series_of(const struct metrics *m, const void *numbers,
                                      enum kind *kind) {
    for (const struct family *f = m->families; f; f = f->next)
        for (const struct series *s = f->series; s; s = s->next)
            if (numbers == &s->own || numbers == &s->own_hist) {
                *kind = f->kind;
                return s;
            }
    return NULL;
}

void metrics_alias(struct metrics *m, const struct metric *of, const char *name, const char *labels,
                   const char *help) {
    enum kind kind;
    if (!m || !of || !series_of(m, of, &kind))
        return;
    struct series *s = series_add(m, name, labels, kind, help);
    if (s)
        s->number = of;
}

void metrics_alias_histogram(struct metrics *m, const struct histogram *of, const char *name,
                             const char *labels, const char *help) {
    if (!m || !of)
        return;
    struct series *s = series_add(m, name, labels, HISTOGRAM, help);
    if (s)
        s->hist = of;
}

static double get_bits(const _Atomic uint64_t *bits) {
    uint64_t u = atomic_load_explicit(bits, memory_order_relaxed);
    double v;
    memcpy(&v, &u, sizeof v);
    return v;
}

static void add_bits(_Atomic uint64_t *bits, double v) {
    uint64_t old = atomic_load_explicit(bits, memory_order_relaxed), fresh;
    do {
        double sum;
        memcpy(&sum, &old, sizeof sum);
        sum += v;
        memcpy(&fresh, &sum, sizeof fresh);
    } while (!atomic_compare_exchange_weak_explicit(bits, &old, fresh, memory_order_relaxed,
                                                    memory_order_relaxed));
}

void metric_when_used(struct metric *c) {
    if (c)
        c->when_used = true;
}

void histogram_when_used(struct histogram *h) {
    if (h)
        h->when_used = true;
}

void metric_add(struct metric *c, double v) {
    if (c)
        add_bits(&c->bits, v);
}

void metric_set(struct metric *g, double v) {
    if (!g)
        return;
    uint64_t u;
    memcpy(&u, &v, sizeof u);
    atomic_store_explicit(&g->bits, u, memory_order_relaxed);
}

double metric_get(const struct metric *g) {
    return g ? get_bits(&g->bits) : 0;
}

void histogram_observe(struct histogram *h, double v) {
    if (!h || isnan(v))
        return;
    size_t i = 0;
    while (i < h->n && v > h->bounds[i])
        i++;
    atomic_fetch_add_explicit(&h->buckets[i], 1, memory_order_relaxed);
    add_bits(&h->sum_bits, v);
}

uint64_t histogram_count(const struct histogram *h) {
    uint64_t n = 0;
    for (size_t i = 0; h && i <= h->n; i++)
        n += atomic_load_explicit(&h->buckets[i], memory_order_relaxed);
    return n;
}

double histogram_sum(const struct histogram *h) {
    return h ? get_bits(&h->sum_bits) : 0;
}

void metrics_escape_label(struct buf *out, const char *value) {
    for (; *value; value++) {
        if (*value == '\\' || *value == '"')
            buf_putc(out, '\\');
        if (*value == '\n')
            buf_puts(out, "\\n");
        else
            buf_putc(out, *value);
    }
}

static void expose_number(struct buf *out, double v) {
    char text[JW_NUM_TEXT];
    buf_append(out, text, jw_num_text(v, text));
    buf_putc(out, '\n');
}

static void expose_histogram(struct buf *out, const char *name, const char *labels,
                             const struct histogram *h) {
    uint64_t total = 0;
    for (size_t i = 0; i <= h->n; i++) {
        total += atomic_load_explicit(&h->buckets[i], memory_order_relaxed);
        buf_printf(out, "%s_bucket{%s%sle=\"", name, labels, *labels ? "," : "");
        if (i < h->n)
            buf_printf(out, "%g\"} ", h->bounds[i]);
        else
            buf_puts(out, "+Inf\"} ");
        buf_printf(out, "%llu\n", (unsigned long long)total);
    }
    const char *open = *labels ? "{" : "", *close = *labels ? "}" : "";
    buf_printf(out, "%s_sum%s%s%s ", name, open, labels, close);
    expose_number(out, get_bits(&h->sum_bits));
    buf_printf(out, "%s_count%s%s%s %llu\n", name, open, labels, close, (unsigned long long)total);
}

// What has counted stays shown: a counter only grows.
static bool is_hidden(const struct family *f, const struct series *s) {
    return f->kind == HISTOGRAM ? s->hist->when_used && !histogram_count(s->hist)
                                : s->number->when_used && get_bits(&s->number->bits) == 0;
}

void metrics_expose(const struct metrics *m, struct buf *out) {
    static const char *const types[] = {"counter", "gauge", "histogram"};
    for (const struct family *f = m->families; f; f = f->next) {
        buf_printf(out, "# HELP %s %s\n# TYPE %s %s\n", f->name, f->help, f->name, types[f->kind]);
        for (const struct series *s = f->series; s; s = s->next) {
            if (is_hidden(f, s))
                continue;
            if (f->kind == HISTOGRAM) {
                expose_histogram(out, f->name, s->labels, s->hist);
                continue;
            }
            buf_puts(out, f->name);
            if (*s->labels)
                buf_printf(out, "{%s}", s->labels);
            buf_putc(out, ' ');
            expose_number(out, get_bits(&s->number->bits));
        }
    }
}

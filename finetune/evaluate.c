// SPDX-License-Identifier: Apache-2.0
#include "finetune/evaluate.h"
#include "base/mem.h"
#include "finetune/probe.h"
#include <math.h>
#include <string.h>

// The row that is being filled.
struct packer {
    const struct ft_evaluate_config *cfg;
    struct ft_evaluation *out;
    int32_t *ids, *seq_start;
    uint8_t *mask;
    int64_t *line; // of each sequence
    int32_t n_tokens, n_seqs;
    double *base; // DPO: log-probability of each sequence without the adapter
    double first; // log-ratio of a pair's first sequence
    bool second;  // the next sequence is a pair's other one
};

static enum err create(struct packer *p) {
    size_t n = (size_t)p->cfg->row_tokens, s = (size_t)p->cfg->row_seqs;
    p->ids = mem_calloc(n, sizeof *p->ids);
    p->mask = mem_calloc(n, sizeof *p->mask);
    p->seq_start = mem_calloc(s + 1, sizeof *p->seq_start);
    p->line = mem_calloc(s, sizeof *p->line);
    p->base = mem_calloc(s, sizeof *p->base);
    return p->ids && p->mask && p->seq_start && p->line && p->base ? ERR_OK : ERR_NOMEM;
}

static void destroy(struct packer *p) {
    mem_free(p->ids);
    mem_free(p->mask);
    mem_free(p->seq_start);
    mem_free(p->line);
    mem_free(p->base);
}

// Line of the first target whose loss is not finite.
static int64_t bad_line(const struct packer *p, const float *losses) {
    int64_t target = 0;
    for (int32_t s = 0; s < p->n_seqs; s++)
        for (int32_t t = p->seq_start[s]; t < p->seq_start[s + 1]; t++)
            if (p->mask[t] && !isfinite(losses[target++]))
                return p->line[s];
    return p->line[0];
}

static void tell_each(const struct packer *p, const float *losses) {
    for (int32_t s = 0; s < p->n_seqs; s++) {
        int64_t n = 0;
        for (int32_t t = p->seq_start[s]; t < p->seq_start[s + 1]; t++)
            n += p->mask[t];
        p->cfg->each(p->cfg->arg, losses, n);
        losses += n;
    }
}

static enum err run(const struct packer *p, bool base, struct lora_row_result *r,
                    struct err_info *info) {
    const struct lora_row row = {.n_tokens = p->n_tokens,
                                 .n_seqs = p->n_seqs,
                                 .ids = p->ids,
                                 .seq_start = p->seq_start,
                                 .mask = p->mask,
                                 .base = base};
    enum err e = ft_exec_unit(p->cfg->exec, &row, r, info);
    if (!e && !r->finite)
        e = err_set(info, ERR_NONFINITE, NULL, "the loss of line %lld is not finite",
                    (long long)bad_line(p, r->losses));
    return e;
}

static void add_targets(struct packer *p, const struct lora_row_result *r) {
    for (int64_t i = 0; i < r->targets; i++)
        p->out->loss += (double)r->losses[i];
    p->out->targets += r->targets;
    p->out->hits += r->hits;
    if (p->cfg->each)
        tell_each(p, r->losses);
}

// ---- DPO

double ft_dpo_loss(double z) {
    return z > 0 ? log1p(exp(-z)) : log1p(exp(z)) - z;
}

static double logprob(const struct packer *p, int32_t s, const float **losses) {
    double sum = 0;
    for (int32_t t = p->seq_start[s]; t < p->seq_start[s + 1]; t++)
        if (p->mask[t])
            sum -= (double)*(*losses)++;
    return sum;
}

// A pair's sequences follow each other, in one row or in two.
static enum err add_pairs(struct packer *p, struct err_info *info) {
    struct lora_row_result r = {0};
    enum err e = run(p, true, &r, info);
    const float *losses = r.losses;
    for (int32_t s = 0; s < p->n_seqs && !e; s++)
        p->base[s] = logprob(p, s, &losses);
    if (!e && !p->cfg->base)
        e = run(p, false, &r, info);
    losses = r.losses;
    for (int32_t s = 0; s < p->n_seqs && !e; s++) {
        double ratio = logprob(p, s, &losses) - p->base[s];
        if (p->second) {
            double z = p->cfg->beta_dpo * (p->first - ratio);
            p->out->loss += ft_dpo_loss(z);
            p->out->targets++;
            p->out->hits += z > 0;
        }
        p->first = ratio;
        p->second = !p->second;
    }
    return e;
}

// ---- rows

static enum err flush(struct packer *p, struct err_info *info) {
    struct lora_row_result r;
    enum err e = ERR_OK;
    if (!p->n_seqs)
        return ERR_OK;
    if (p->cfg->beta_dpo > 0)
        e = add_pairs(p, info);
    else if (!(e = run(p, p->cfg->base, &r, info)))
        add_targets(p, &r);
    p->n_tokens = p->n_seqs = 0;
    return e;
}

static enum err add(struct packer *p, int64_t line, const int32_t *ids, const uint8_t *mask,
                    int32_t n, struct err_info *info) {
    enum err e = ERR_OK;
    if (n > p->cfg->row_tokens)
        return err_set(info, ERR_LIMIT, NULL, "line %lld has %d tokens, a row at most %d",
                       (long long)line, n, p->cfg->row_tokens);
    if (p->n_tokens + n > p->cfg->row_tokens || p->n_seqs == p->cfg->row_seqs)
        e = flush(p, info);
    if (e || !n)
        return e;
    memcpy(p->ids + p->n_tokens, ids, (size_t)n * sizeof *ids);
    memcpy(p->mask + p->n_tokens, mask, (size_t)n);
    p->line[p->n_seqs++] = line;
    p->n_tokens += n;
    p->seq_start[p->n_seqs] = p->n_tokens;
    return ERR_OK;
}

enum err ft_evaluate(const struct ft_evaluate_config *cfg, struct ft_evaluation *out,
                     struct err_info *info) {
    *out = (struct ft_evaluation){0};
    struct packer p = {.cfg = cfg, .out = out};
    struct ft_sample sample = {0};
    int64_t n = ft_dataset_samples(cfg->data);
    if (cfg->max_samples && cfg->max_samples < n)
        n = cfg->max_samples;
    enum err e = create(&p) ? err_set(info, ERR_NOMEM, NULL, "out of memory") : ERR_OK;
    for (int64_t i = 0; i < n && !e; i++) {
        int64_t line = ft_dataset_line(cfg->data, i);
        if (cfg->stop && atomic_load(cfg->stop))
            e = err_set(info, ERR_CANCELLED, NULL, "evaluation was cancelled");
        if (!e)
            e = ft_dataset_read(cfg->data, i, &sample, info);
        if (!e)
            e = add(&p, line, sample.ids, sample.mask, sample.n, info);
        if (!e && sample.n2)
            e = add(&p, line, sample.ids2, sample.mask2, sample.n2, info);
    }
    if (!e)
        e = flush(&p, info);
    ft_sample_fini(&sample);
    destroy(&p);
    return e;
}

// ---- the probe set

struct filler {
    struct ft_probe *probe;
    size_t at;
};

static void fill(void *arg, const float *losses, int64_t n) {
    struct filler *f = arg;
    struct ft_probe_seq *s = &f->probe->seqs[f->at++];
    memcpy(s->losses, losses, (size_t)n * sizeof *losses);
    for (int64_t i = 0; i < n; i++)
        f->probe->loss += (double)losses[i];
}

enum err ft_evaluate_probe(const struct ft_evaluate_config *cfg, struct ft_probe *probe,
                           struct err_info *info) {
    struct filler f = {.probe = probe};
    struct ft_evaluate_config c = *cfg;
    struct ft_evaluation out = {0};
    c.each = fill;
    c.arg = &f;
    struct packer p = {.cfg = &c, .out = &out};
    probe->loss = 0;
    enum err e = create(&p) ? err_set(info, ERR_NOMEM, NULL, "out of memory") : ERR_OK;
    for (size_t i = 0; i < probe->n && !e; i++) {
        const struct ft_probe_seq *s = &probe->seqs[i];
        if (cfg->stop && atomic_load(cfg->stop))
            e = err_set(info, ERR_CANCELLED, NULL, "evaluation was cancelled");
        if (!e)
            e = add(&p, s->line, s->ids, s->mask, s->n, info);
    }
    if (!e)
        e = flush(&p, info);
    destroy(&p);
    return e;
}

// SPDX-License-Identifier: Apache-2.0
#include "finetune/batcher.h"
#include "base/mem.h"
#include "kernels/philox.h"
#include <stdlib.h>
#include <string.h>

// Philox's last counter word says what its numbers are for.
enum { FOR_ORDER = 0x6f726472, ROUNDS = 16 };

struct item {
    int32_t tokens, place; // in the step
};

struct ft_plan {
    struct ft_plan_config cfg;
    int64_t epoch_steps;
    int low_bits, high_bits; // of a place in the permutation's domain
    // Of one step, [batch_size] each, but for row_start.
    struct item *items;
    int64_t *taken;   // samples in the epoch's order
    int64_t *samples; // row by row
    int32_t *row_of, *row_used, *row_count, *row_start;
};

static int32_t dataset_tokens(const void *arg, int64_t i) {
    return ft_dataset_length(arg, i);
}

static int32_t dataset_supervised(const void *arg, int64_t i) {
    return ft_dataset_supervised(arg, i);
}

struct ft_lengths ft_dataset_lengths(const struct ft_dataset *d) {
    return (struct ft_lengths){ft_dataset_samples(d), dataset_tokens, dataset_supervised, d};
}

// ---- the order

static uint32_t round_word(const struct ft_plan *p, uint32_t half, int round, int32_t epoch) {
    const uint32_t counter[4] = {half, (uint32_t)round, (uint32_t)epoch, FOR_ORDER};
    const uint32_t key[2] = {(uint32_t)p->cfg.seed, (uint32_t)(p->cfg.seed >> 32)};
    uint32_t out[4];
    philox4x32(counter, key, out);
    return out[0];
}

// A Feistel network permutes the numbers of low_bits + high_bits bits; walking its cycles until a
// number is below n makes that a permutation of 0 .. n - 1. Less than two walks on average.
int64_t ft_plan_sample(const struct ft_plan *p, int32_t epoch, int64_t i) {
    if (!p->cfg.shuffle)
        return i;
    uint32_t low_mask = (1u << p->low_bits) - 1, high_mask = (1u << p->high_bits) - 1;
    do {
        uint32_t low = (uint32_t)i & low_mask, high = (uint32_t)(i >> p->low_bits);
        for (int round = 0; round < ROUNDS; round += 2) {
            high ^= round_word(p, low, round, epoch) & high_mask;
            low ^= round_word(p, high, round + 1, epoch) & low_mask;
        }
        i = (int64_t)high << p->low_bits | low;
    } while (i >= p->cfg.data.n);
    return i;
}

// ---- the plan

static enum err check(const struct ft_plan_config *c, struct err_info *info) {
    const struct ft_lengths *d = &c->data;
    if (d->n < 1 || d->n > FT_MAX_SAMPLES)
        return err_set(info, ERR_INVALID, NULL, "a plan needs 1 to %d samples, got %lld",
                       FT_MAX_SAMPLES, (long long)d->n);
    if (c->epochs < 1 || c->epochs > FT_MAX_EPOCHS)
        return err_set(info, ERR_INVALID, "n_epochs", "n_epochs must be from 1 to %d, got %d",
                       FT_MAX_EPOCHS, c->epochs);
    if (c->batch_size < 1 || c->batch_size > FT_MAX_BATCH)
        return err_set(info, ERR_INVALID, "batch_size", "batch_size must be from 1 to %d, got %d",
                       FT_MAX_BATCH, c->batch_size);
    if (c->row_samples < 0)
        return err_set(info, ERR_INVALID, NULL, "a row cannot hold %d samples", c->row_samples);
    for (int64_t i = 0; i < d->n; i++)
        if (d->tokens(d->arg, i) > c->row_tokens)
            return err_set(info, ERR_INVALID, NULL, "sample %lld has %d tokens, a row takes %d",
                           (long long)i, d->tokens(d->arg, i), c->row_tokens);
    return ERR_OK;
}

enum err ft_plan_create(const struct ft_plan_config *cfg, struct ft_plan **out,
                        struct err_info *info) {
    *out = NULL;
    enum err rc = check(cfg, info);
    if (rc)
        return rc;
    struct ft_plan *p = mem_zalloc(sizeof *p);
    if (!p)
        return err_set(info, ERR_NOMEM, NULL, "out of memory for the plan");
    size_t b = (size_t)cfg->batch_size;
    p->cfg = *cfg;
    p->epoch_steps = (cfg->data.n + cfg->batch_size - 1) / cfg->batch_size;
    int bits = 2;
    while ((int64_t)1 << bits < cfg->data.n)
        bits++;
    p->low_bits = bits / 2;
    p->high_bits = bits - p->low_bits;
    p->items = mem_calloc(b, sizeof *p->items);
    p->taken = mem_calloc(b, sizeof *p->taken);
    p->samples = mem_calloc(b, sizeof *p->samples);
    p->row_of = mem_calloc(b, sizeof *p->row_of);
    p->row_used = mem_calloc(b, sizeof *p->row_used);
    p->row_count = mem_calloc(b, sizeof *p->row_count);
    p->row_start = mem_calloc(b + 1, sizeof *p->row_start);
    if (!p->items || !p->taken || !p->samples || !p->row_of || !p->row_used || !p->row_count ||
        !p->row_start) {
        ft_plan_destroy(p);
        return err_set(info, ERR_NOMEM, NULL, "out of memory for the plan");
    }
    *out = p;
    return ERR_OK;
}

void ft_plan_destroy(struct ft_plan *p) {
    if (!p)
        return;
    mem_free(p->items);
    mem_free(p->taken);
    mem_free(p->samples);
    mem_free(p->row_of);
    mem_free(p->row_used);
    mem_free(p->row_count);
    mem_free(p->row_start);
    mem_free(p);
}

int64_t ft_plan_epoch_steps(const struct ft_plan *p) {
    return p->epoch_steps;
}

int64_t ft_plan_steps(const struct ft_plan *p) {
    return p->epoch_steps * p->cfg.epochs;
}

// The longest first; of equals, the earlier in the step. A total order: the sort cannot matter.
static int compare_items(const void *a, const void *b) {
    const struct item *x = a, *y = b;
    if (x->tokens != y->tokens)
        return x->tokens > y->tokens ? -1 : 1;
    return (x->place > y->place) - (x->place < y->place);
}

// First fit: each item into the first row that has room. Returns the number of rows.
static int32_t pack(struct ft_plan *p, int32_t n) {
    int32_t rows = 0, most = p->cfg.row_samples ? p->cfg.row_samples : INT32_MAX;
    qsort(p->items, (size_t)n, sizeof *p->items, compare_items);
    for (int32_t i = 0; i < n; i++) {
        int32_t tokens = p->items[i].tokens, j = 0;
        while (j < rows && (tokens > p->cfg.row_tokens - p->row_used[j] || p->row_count[j] == most))
            j++;
        if (j == rows) {
            p->row_used[rows] = 0;
            p->row_count[rows++] = 0;
        }
        p->row_used[j] += tokens;
        p->row_count[j]++;
        p->row_of[i] = j;
    }
    return rows;
}

// Lays the items out row by row, those of a row as they came.
static void lay_out(struct ft_plan *p, int32_t n, int32_t rows) {
    p->row_start[0] = 0;
    for (int32_t j = 0; j < rows; j++) {
        p->row_start[j + 1] = p->row_start[j] + p->row_count[j];
        p->row_used[j] = p->row_start[j]; // from here on: where the row's next sample goes
    }
    for (int32_t i = 0; i < n; i++)
        p->samples[p->row_used[p->row_of[i]]++] = p->taken[p->items[i].place];
}

enum err ft_plan_at(struct ft_plan *p, int64_t step, struct ft_plan_step *out,
                    struct err_info *info) {
    if (step < 0 || step >= ft_plan_steps(p))
        return err_set(info, ERR_INVALID, NULL, "the plan has %lld steps, none is number %lld",
                       (long long)ft_plan_steps(p), (long long)step);
    const struct ft_lengths *d = &p->cfg.data;
    int64_t first = step % p->epoch_steps * p->cfg.batch_size;
    int32_t n = d->n - first < p->cfg.batch_size ? (int32_t)(d->n - first) : p->cfg.batch_size;
    *out = (struct ft_plan_step){
        .step = step,
        .epoch = (int32_t)(step / p->epoch_steps),
        .n_samples = n,
        .samples = p->samples,
        .row_start = p->row_start,
    };
    for (int32_t i = 0; i < n; i++) {
        int64_t sample = ft_plan_sample(p, out->epoch, first + i);
        p->taken[i] = sample;
        p->items[i] = (struct item){d->tokens(d->arg, sample), i};
        p->row_of[i] = i;
        p->row_count[i] = 1;
        out->tokens += p->items[i].tokens;
        out->supervised += d->supervised(d->arg, sample);
    }
    out->n_rows = p->cfg.packing ? pack(p, n) : n;
    lay_out(p, n, out->n_rows);
    return ERR_OK;
}

// ---- rows

void ft_row_fini(struct ft_row *row) {
    mem_free(row->ids);
    mem_free(row->mask);
    mem_free(row->keys);
    mem_free(row->seq_start);
    mem_free(row->sample);
    ft_sample_fini(&row->one);
    *row = (struct ft_row){0};
}

static enum err grow(struct ft_row *row, int32_t tokens, int32_t seqs) {
    if (tokens > row->cap_tokens) {
        mem_free(row->ids);
        mem_free(row->mask);
        mem_free(row->keys);
        row->cap_tokens = 0;
        row->ids = mem_calloc((size_t)tokens, sizeof *row->ids);
        row->mask = mem_calloc((size_t)tokens, sizeof *row->mask);
        row->keys = mem_calloc((size_t)tokens, sizeof *row->keys);
        if (!row->ids || !row->mask || !row->keys)
            return ERR_NOMEM;
        row->cap_tokens = tokens;
    }
    if (seqs > row->cap_seqs) {
        mem_free(row->seq_start);
        mem_free(row->sample);
        row->cap_seqs = 0;
        row->seq_start = mem_calloc((size_t)seqs + 1, sizeof *row->seq_start);
        row->sample = mem_calloc((size_t)seqs, sizeof *row->sample);
        if (!row->seq_start || !row->sample)
            return ERR_NOMEM;
        row->cap_seqs = seqs;
    }
    return ERR_OK;
}

static void put_seq(struct ft_row *row, const int32_t *ids, const uint8_t *mask, int32_t n,
                    int64_t sample) {
    memcpy(row->ids + row->n_tokens, ids, (size_t)n * sizeof *ids);
    memcpy(row->mask + row->n_tokens, mask, (size_t)n);
    for (int32_t i = 0; i < n; i++)
        row->targets += mask[i];
    row->sample[row->n_seqs++] = sample;
    row->n_tokens += n;
    row->seq_start[row->n_seqs] = row->n_tokens;
}

// For one seed all (token, sample, epoch) are different counters of one bijection.
static void put_keys(struct ft_row *row, int32_t from, uint64_t seed, int32_t epoch,
                     int64_t sample) {
    const uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    for (int32_t i = from; i < row->n_tokens; i++) {
        // Never the counter of an epoch's order: samples are fewer than FOR_ORDER.
        const uint32_t counter[4] = {(uint32_t)(i - from), (uint32_t)epoch, 0, (uint32_t)sample};
        uint32_t out[4];
        philox4x32(counter, key, out);
        row->keys[i] = (uint64_t)out[1] << 32 | out[0];
    }
}

enum err ft_row_read(struct ft_dataset *d, const struct ft_plan_step *s, int32_t j, uint64_t seed,
                     struct ft_row *row, struct err_info *info) {
    int64_t tokens = 0;
    int32_t first = s->row_start[j], last = s->row_start[j + 1];
    for (int32_t i = first; i < last; i++)
        tokens += ft_dataset_length(d, s->samples[i]);
    row->n_tokens = row->n_seqs = 0;
    row->targets = 0;
    if (tokens > INT32_MAX || grow(row, (int32_t)tokens, 2 * (last - first)))
        return err_set(info, ERR_NOMEM, NULL, "out of memory for a row of %lld tokens",
                       (long long)tokens);
    row->seq_start[0] = 0;
    for (int32_t i = first; i < last; i++) {
        int64_t sample = s->samples[i];
        const struct ft_sample *one = &row->one;
        enum err rc = ft_dataset_read(d, sample, &row->one, info);
        if (rc)
            return rc;
        int32_t from = row->n_tokens;
        put_seq(row, one->ids, one->mask, one->n, sample);
        if (one->n2)
            put_seq(row, one->ids2, one->mask2, one->n2, sample);
        put_keys(row, from, seed, s->epoch, sample);
    }
    return ERR_OK;
}

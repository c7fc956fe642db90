// SPDX-License-Identifier: Apache-2.0
#include "attn_world.h"
#include "base/mem.h"
#include <math.h>
#include <string.h>

int32_t attn_width(const struct attn_shape *s) {
    return (s->heads + 2 * s->kv_heads) * s->dim;
}
int32_t attn_out_width(const struct attn_shape *s) {
    return s->heads * s->dim;
}
size_t attn_q8_bytes(const struct attn_shape *s) {
    return attn_out_width(s) % 32 ? 0
                                  : (size_t)attn_out_width(s) / 32 * sizeof(struct cpu_q8_block);
}

void attn_world_init(struct attn_world *w, struct attn_shape s, const int32_t *lens,
                     uint64_t seed) {
    struct kn_rng rng = {seed};
    memset(w, 0, sizeof *w);
    w->s = s;
    for (; lens[w->n]; w->n++) {
        struct attn_sequence *q = &w->seq[w->n];
        q->len = lens[w->n];
        size_t n = (size_t)q->len * (size_t)attn_width(&s);
        q->qkv = mem_alloc(n * sizeof(float));
        q->out = mem_alloc((size_t)q->len * (size_t)attn_out_width(&s) * sizeof(float));
        q->q8 = mem_alloc((size_t)q->len * attn_q8_bytes(&s) + 1);
        assert_true(q->qkv && q->out && q->q8);
        kn_rng_fill(&rng, q->qkv, n, 1.0f);
    }
}

void attn_world_free(struct attn_world *w) {
    for (int i = 0; i < w->n; i++) {
        mem_free(w->seq[i].qkv);
        mem_free(w->seq[i].out);
        mem_free(w->seq[i].q8);
    }
}

static int32_t blocks_for(int32_t len) {
    return (len + KN_KV_BLOCK - 1) / KN_KV_BLOCK;
}

void attn_device_open(struct attn_device *d, const struct attn_world *w, const char *isa,
                      int threads, uint64_t seed) {
    kn_fixture_open(&d->f, isa, threads);
    d->kv = (struct kn_kv_shape){ATTN_LAYERS, w->s.kv_heads, w->s.dim};
    d->n_blocks = 0;
    for (int i = 0; i < w->n; i++)
        d->n_blocks += blocks_for(w->seq[i].len);
    size_t bytes = (size_t)d->n_blocks * d->f.ops->kv_block_bytes(&d->kv);
    assert_true(bytes > 0);
    d->pool = kn_test_alloc(&d->f, bytes);
    void *junk = mem_alloc(bytes);
    d->blocks = mem_calloc((size_t)d->n_blocks, sizeof *d->blocks);
    assert_true(junk && d->blocks);
    memset(junk, 0xff, bytes);
    assert_int_equal(d->f.ops->upload(d->f.q, d->pool, junk, bytes), ERR_OK);
    mem_free(junk);
    float *freq = mem_calloc((size_t)w->s.dim / 2, sizeof *freq); // 0: no rotation
    assert_non_null(freq);
    d->freq = kn_test_put(&d->f, freq, (size_t)w->s.dim / 2 * sizeof *freq);
    mem_free(freq);
    struct kn_rng rng = {seed};
    for (int32_t i = 0; i < d->n_blocks; i++) {
        int32_t j = seed ? kn_rng_below(&rng, i + 1) : i;
        d->blocks[i] = d->blocks[j];
        d->blocks[j] = i;
    }
}

void attn_device_close(struct attn_device *d) {
    mem_free(d->blocks);
    kn_fixture_close(&d->f);
}

static const int32_t *seq_blocks(const struct attn_device *d, const struct attn_world *w, int seq) {
    const int32_t *b = d->blocks;
    for (int i = 0; i < seq; i++)
        b += blocks_for(w->seq[i].len);
    return b;
}

// A step's device memory: rows of its sequences, one after the other.
struct step {
    struct attn_device *d;
    struct attn_world *w;
    int count;
    const int *seqs;
    const int32_t *pos, *n;
    kn_addr qkv, out, outq; // outq: 0 for none
};

static void upload_rows(const struct step *t) {
    size_t row = (size_t)attn_width(&t->w->s), at = 0;
    for (int i = 0; i < t->count; i++) {
        size_t len = (size_t)t->n[i];
        t->d->f.ops->upload(t->d->f.q, t->qkv + at * row * sizeof(float),
                            t->w->seq[t->seqs[i]].qkv + (size_t)t->pos[i] * row,
                            len * row * sizeof(float));
        at += len;
    }
}

static void download_rows(const struct step *t) {
    const struct kn_ops *ops = t->d->f.ops;
    size_t row = (size_t)attn_out_width(&t->w->s), q8 = attn_q8_bytes(&t->w->s), at = 0;
    for (int i = 0; i < t->count; i++) {
        struct attn_sequence *s = &t->w->seq[t->seqs[i]];
        size_t len = (size_t)t->n[i], pos = (size_t)t->pos[i];
        ops->download(t->d->f.q, s->out + pos * row, t->out + at * row * sizeof(float),
                      len * row * sizeof(float));
        if (q8)
            ops->download(t->d->f.q, s->q8 + pos * q8, t->outq + at * q8, len * q8);
        at += len;
    }
}

static void run_rows(const struct step *t, const struct kn_batch *batch, kn_addr table,
                     int32_t slice) {
    const struct attn_device *d = t->d;
    const struct attn_shape *s = &t->w->s;
    const struct kn_rope_table rt = {
        .batch = batch, .inv_freq = d->freq, .scale = 1.0f, .dim = s->dim, .table = table};
    const struct kn_rope_kv rk = {.batch = batch,
                                  .qkv = t->qkv,
                                  .ldqkv = attn_width(s),
                                  .table = table,
                                  .pool = d->pool,
                                  .shape = d->kv,
                                  .layer = ATTN_LAYER,
                                  .heads = s->heads};
    struct kn_attn p = {.batch = batch,
                        .q = t->qkv,
                        .ldq = attn_width(s),
                        .pool = d->pool,
                        .shape = d->kv,
                        .layer = ATTN_LAYER,
                        .heads = s->heads,
                        .window = s->window,
                        .scale = (float)(1.0 / sqrt((double)s->dim)),
                        .out = t->out,
                        .ldout = attn_out_width(s),
                        .outq = t->outq};
    assert_int_equal(d->f.ops->rope_table(d->f.q, &rt), ERR_OK);
    assert_int_equal(d->f.ops->rope_kv(d->f.q, &rk), ERR_OK);
    if (slice == 0)
        assert_int_equal(d->f.ops->attn(d->f.q, &p), ERR_OK);
    for (int32_t i = 0, rows = batch->n_tokens; slice && i < rows; i = p.token_end) {
        p.token_begin = i;
        p.token_end = i + slice < rows ? i + slice : rows;
        assert_int_equal(d->f.ops->attn(d->f.q, &p), ERR_OK);
    }
}

// Attention is asked for `slice` tokens at a time, or for all at once (0).
static void step_sliced(struct attn_device *d, struct attn_world *w, int count, const int *seqs,
                        const int32_t *pos, const int32_t *n, int32_t slice) {
    int mark = d->f.n_mem;
    struct kn_test_seq ts[ATTN_SEQS];
    size_t rows = 0, q8 = attn_q8_bytes(&w->s);
    for (int i = 0; i < count; i++) {
        ts[i] = (struct kn_test_seq){pos[i], n[i], seq_blocks(d, w, seqs[i]),
                                     blocks_for(w->seq[seqs[i]].len)};
        rows += (size_t)n[i];
    }
    struct kn_batch batch;
    kn_test_batch(&d->f, ts, count, NULL, &batch);
    struct step t = {.d = d, .w = w, .count = count, .seqs = seqs, .pos = pos, .n = n};
    t.qkv = kn_test_alloc(&d->f, rows * (size_t)attn_width(&w->s) * sizeof(float));
    t.out = kn_test_alloc(&d->f, rows * (size_t)attn_out_width(&w->s) * sizeof(float));
    t.outq = q8 ? kn_test_alloc(&d->f, rows * q8) : 0;
    kn_addr table = kn_test_alloc(&d->f, rows * (size_t)w->s.dim * sizeof(float));
    upload_rows(&t);
    run_rows(&t, &batch, table, slice);
    download_rows(&t);
    kn_test_wait(&d->f);
    while (d->f.n_mem > mark) {
        d->f.n_mem--;
        d->f.ops->free(d->f.d, d->f.mem[d->f.n_mem].a, d->f.mem[d->f.n_mem].bytes);
    }
}

void attn_step(struct attn_device *d, struct attn_world *w, int count, const int *seqs,
               const int32_t *pos, const int32_t *n) {
    step_sliced(d, w, count, seqs, pos, n, 0);
}

void attn_serve_alone(struct attn_world *w, const char *isa, int threads) {
    struct attn_device d;
    attn_device_open(&d, w, isa, threads, 0);
    for (int i = 0; i < w->n; i++) {
        int32_t zero = 0;
        attn_step(&d, w, 1, &i, &zero, &w->seq[i].len);
    }
    attn_device_close(&d);
}

void attn_serve_mixed(struct attn_world *w, const char *isa, int threads, uint64_t seed) {
    struct attn_device d;
    struct kn_rng rng = {seed};
    attn_device_open(&d, w, isa, threads, seed);
    int32_t done[ATTN_SEQS] = {0};
    for (bool more = true; more;) {
        int count = 0, seqs[ATTN_SEQS];
        int32_t pos[ATTN_SEQS], n[ATTN_SEQS];
        more = false;
        for (int i = 0; i < w->n; i++) {
            int32_t left = w->seq[i].len - done[i];
            if (left == 0)
                continue;
            more = true;
            if (kn_rng_below(&rng, 4) == 0)
                continue;
            static const int32_t most[] = {1, 7, 70, 700};
            int32_t want = 1 + kn_rng_below(&rng, most[kn_rng_below(&rng, 4)]);
            seqs[count] = i;
            pos[count] = done[i];
            n[count] = want < left ? want : left;
            done[i] += n[count++];
        }
        if (count)
            step_sliced(&d, w, count, seqs, pos, n, kn_rng_below(&rng, 3) ? 0 : 23);
    }
    attn_device_close(&d);
}

// SPDX-License-Identifier: Apache-2.0
#include "kn_fixture.h"
#include "base/mem.h"
#include <math.h>
#include <string.h>

const char *const *kn_test_levels(void) {
    static const char *const all[] = {
#if defined(KN_CPU_X86)
        "avx512bf16",
        "avx512",
        "avx2",
#endif
        "portable",
        NULL
    };
    for (const char *const *l = all; *l; l++) {
        struct kn_device_config cfg = {.threads = 1, .isa = *l};
        struct kn_device *d;
        if (kn_ops_cpu.open(&cfg, &d, NULL) == ERR_OK) { // the list is from best to plainest
            kn_ops_cpu.close(d);
            return l;
        }
    }
    fail_msg("no ISA level works");
    return all;
}

bool kn_test_attn_rounds(const char *isa) {
    return strcmp(isa, "avx512bf16") == 0;
}

void kn_fixture_open(struct kn_fixture *f, const char *isa, int threads) {
    memset(f, 0, sizeof *f);
    f->ops = &kn_ops_cpu;
    struct kn_device_config cfg = {.threads = threads, .isa = isa};
    struct err_info info = {0};
    if (f->ops->open(&cfg, &f->d, &info))
        fail_msg("open: %s", info.message);
    assert_int_equal(f->ops->queue_create(f->d, &f->q), ERR_OK);
}

void kn_test_free_all(struct kn_fixture *f) {
    for (int i = 0; i < f->n_mem; i++)
        f->ops->free(f->d, f->mem[i].a, f->mem[i].bytes);
    f->n_mem = 0;
}

void kn_fixture_close(struct kn_fixture *f) {
    f->ops->queue_destroy(f->q);
    kn_test_free_all(f);
    f->ops->close(f->d);
}

kn_addr kn_test_alloc(struct kn_fixture *f, size_t bytes) {
    assert_true(f->n_mem < (int)(sizeof f->mem / sizeof *f->mem));
    kn_addr a;
    assert_int_equal(f->ops->alloc(f->d, bytes, &a), ERR_OK);
    f->mem[f->n_mem].a = a;
    f->mem[f->n_mem++].bytes = bytes;
    return a;
}

kn_addr kn_test_put(struct kn_fixture *f, const void *src, size_t bytes) {
    kn_addr a = kn_test_alloc(f, bytes ? bytes : 1);
    assert_int_equal(f->ops->upload(f->q, a, src, bytes), ERR_OK);
    return a;
}

void kn_test_wait(struct kn_fixture *f) {
    struct err_info info = {0};
    if (f->ops->queue_wait(f->q, &info))
        fail_msg("queue: %s", info.message);
}

uint64_t kn_rng_u64(struct kn_rng *r) {
    uint64_t z = (r->s += 0x9e3779b97f4a7c15u);
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

int32_t kn_rng_below(struct kn_rng *r, int32_t n) {
    return (int32_t)(kn_rng_u64(r) % (uint64_t)n);
}

double kn_rng_uniform(struct kn_rng *r) {
    return (double)(kn_rng_u64(r) >> 11) * 0x1p-53;
}

float kn_rng_normal(struct kn_rng *r) {
    double u = 1.0 - kn_rng_uniform(r), v = kn_rng_uniform(r);
    return (float)(sqrt(-2.0 * log(u)) * cos(6.283185307179586 * v));
}

void kn_rng_fill(struct kn_rng *r, float *x, size_t n, float scale) {
    for (size_t i = 0; i < n; i++)
        x[i] = scale * kn_rng_normal(r);
}

void *kn_zeros(size_t n, size_t size) {
    void *p = mem_calloc(n, size);
    assert_non_null(p);
    return p;
}

double *kn_doubles(const float *x, size_t n) {
    double *d = kn_zeros(n, sizeof *d);
    for (size_t i = 0; i < n; i++)
        d[i] = (double)x[i];
    return d;
}

void kn_for_levels(void (*fn)(const char *isa)) {
    for (const char *const *isa = kn_test_levels(); *isa; isa++)
        fn(*isa);
}

double kn_ulp_error(float x, double exact) {
    float near = fabsf((float)exact);
    double ulp = near < 0x1p-126f ? 0x1p-149 : (double)(nextafterf(near, INFINITY) - near);
    return fabs((double)x - exact) / ulp;
}

void kn_assert_close(const float *a, const double *b, size_t n, double rtol, double atol) {
    for (size_t i = 0; i < n; i++)
        if (!(fabs((double)a[i] - b[i]) <= atol + rtol * fabs(b[i])))
            fail_msg("value %zu: %.9g, not %.9g", i, (double)a[i], b[i]);
}

int32_t kn_test_q8_steps(const struct cpu_q8_block *b, int i) {
    int8_t high[4];
    memcpy(high, &b->high, sizeof high);
    return b->q[i] + (i / 4 == b->high_word ? 128 * high[i % 4] : 0);
}

void kn_assert_same(const void *a, const void *b, size_t bytes) {
    const unsigned char *x = a, *y = b;
    for (size_t i = 0; i < bytes; i++)
        if (x[i] != y[i])
            fail_msg("byte %zu of %zu differs", i, bytes);
}

static kn_addr put_i32(struct kn_fixture *f, const int32_t *x, size_t n) {
    return kn_test_put(f, x, n * sizeof *x);
}

void kn_test_batch(struct kn_fixture *f, const struct kn_test_seq *seqs, int n_seqs,
                   const int32_t *ids, struct kn_batch *out) {
    int32_t n = 0, wide = 1;
    for (int s = 0; s < n_seqs; s++) {
        n += seqs[s].n;
        wide = seqs[s].n_blocks > wide ? seqs[s].n_blocks : wide;
    }
    size_t table = (size_t)n_seqs * (size_t)wide;
    int32_t *tmp = mem_calloc((size_t)n * 3 + (size_t)n_seqs * 3 + 1 + table, sizeof *tmp);
    assert_non_null(tmp);
    int32_t *id = tmp, *pos = id + n, *seq = pos + n, *start = seq + n, *len = start + n_seqs + 1;
    int32_t *slot = len + n_seqs, *blocks = slot + n_seqs, t = 0;
    for (int s = 0; s < n_seqs; s++) {
        start[s] = t;
        len[s] = seqs[s].pos + seqs[s].n;
        slot[s] = -1;
        for (int32_t i = 0; i < wide; i++)
            blocks[s * wide + i] = i < seqs[s].n_blocks ? seqs[s].blocks[i] : -1;
        for (int32_t i = 0; i < seqs[s].n; i++, t++) {
            id[t] = ids ? ids[t] : 0;
            pos[t] = seqs[s].pos + i;
            seq[t] = s;
        }
    }
    start[n_seqs] = t;
    int32_t header[4] = {n, n_seqs, 0, 0};
    *out = (struct kn_batch){
        .n_tokens = n,
        .n_seqs = n_seqs,
        .header = put_i32(f, header, 4),
        .ids = put_i32(f, id, (size_t)n),
        .pos = put_i32(f, pos, (size_t)n),
        .seq = put_i32(f, seq, (size_t)n),
        .seq_start = put_i32(f, start, (size_t)n_seqs + 1),
        .kv_len = put_i32(f, len, (size_t)n_seqs),
        .block_table = put_i32(f, blocks, table),
        .max_blocks = wide,
        .slot = put_i32(f, slot, (size_t)n_seqs),
    };
    mem_free(tmp);
}

// SPDX-License-Identifier: Apache-2.0
// Adapters on a ragged batch, for every ISA level: against plain loops in double precision, and bit
// by bit for any cut of the batch and number of threads; rows without an adapter keep their bits;
// dropout's noise against Philox word by word.
#include "base/mem.h"
#include "kernels/philox.h"
#include "kn_fixture.h"
#include "tests/support/tolerances.h"
#include <math.h>
#include <string.h>

enum { MAX_ROWS = 72, SLOTS = 3, MAX_K = 200, MAX_Y = 300 };

// A batch with its adapters: parts of width n side by side, with a gap after each.
struct work {
    int32_t k, ldx, ldy, n_parts, rows, n_seqs;
    int32_t n[KN_LORA_PARTS], col[KN_LORA_PARTS];
    int32_t r[KN_LORA_PARTS][SLOTS];
    float scale[KN_LORA_PARTS][SLOTS];
    float *a[KN_LORA_PARTS][SLOTS], *b[KN_LORA_PARTS][SLOTS]; // natural layout
    float *x, *y;                                             // [rows][ld]
    int32_t len[MAX_ROWS], slot[MAX_ROWS];                    // of each sequence
    float p;
    uint32_t module;
    uint64_t keys[MAX_ROWS];
    bool narrow; // matrices in 16 bits
};

static float *random_values(struct kn_rng *rng, size_t n, float scale) {
    float *v = mem_alloc(n * sizeof *v);
    assert_non_null(v);
    kn_rng_fill(rng, v, n, scale);
    return v;
}

static void work_init(struct work *w, uint64_t seed, int32_t k, const int32_t n[KN_LORA_PARTS],
                      const int32_t ranks[SLOTS]) {
    struct kn_rng rng = {seed};
    *w = (struct work){.k = k, .ldx = k + 3, .module = 40};
    int32_t col = 0;
    for (int j = 0; j < KN_LORA_PARTS && n[j]; j++, w->n_parts++) {
        w->n[j] = n[j];
        w->col[j] = col;
        col += n[j] + 5;
        for (int s = 0; s < SLOTS; s++) {
            int32_t r = w->r[j][s] = ranks[(s + j) % SLOTS]; // parts of a slot differ, too
            w->scale[j][s] = 0.5f + (float)kn_rng_uniform(&rng);
            w->a[j][s] = random_values(&rng, (size_t)(r * k) + 1, 1 / sqrtf((float)k));
            w->b[j][s] = random_values(&rng, (size_t)(r * n[j]) + 1, 0.3f);
        }
    }
    w->ldy = col;
    for (; w->rows < MAX_ROWS - 12; w->n_seqs++) { // single tokens and chunks
        int32_t len = w->n_seqs % 3 ? 1 : 1 + kn_rng_below(&rng, 11);
        w->len[w->n_seqs] = len;
        w->slot[w->n_seqs] = kn_rng_below(&rng, SLOTS + 1) - 1;
        w->rows += len;
    }
    w->slot[0] = 0;
    w->slot[1] = -1;
    w->x = random_values(&rng, (size_t)(w->rows * w->ldx), 1.0f);
    w->y = random_values(&rng, (size_t)(w->rows * w->ldy), 1.0f);
    for (int32_t i = 0; i < w->rows; i++)
        w->keys[i] = kn_rng_u64(&rng);
}

static void work_free(struct work *w) {
    for (int j = 0; j < KN_LORA_PARTS; j++)
        for (int s = 0; s < SLOTS; s++) {
            mem_free(w->a[j][s]);
            mem_free(w->b[j][s]);
        }
    mem_free(w->x);
    mem_free(w->y);
}

static kn_addr put_matrix(struct kn_fixture *f, enum kn_dtype t, enum kn_lora_side side,
                          int32_t rows, int32_t cols, const float *src) {
    size_t bytes = f->ops->lora_bytes(side, rows, cols);
    assert_true(bytes >= (size_t)rows * (size_t)cols * sizeof *src);
    void *packed = mem_alloc(bytes);
    assert_non_null(packed);
    memset(packed, 0xff, bytes); // padding must be written
    f->ops->lora_pack(side, rows, cols, src, packed);
    if (t != KN_F32)
        f->ops->lora_narrow(t, packed, bytes, packed);
    kn_addr at = kn_test_put(f, packed, t == KN_F32 ? bytes : bytes / 2);
    mem_free(packed);
    return at;
}

static enum kn_dtype type_of_slot(int s) {
    return s % 2 ? KN_F16 : KN_BF16;
}

static kn_addr put_entries(struct kn_fixture *f, const struct work *w) {
    struct kn_lora_entry e[KN_LORA_PARTS][SLOTS];
    memset(e, 0, sizeof e);
    for (int j = 0; j < w->n_parts; j++)
        for (int s = 0; s < SLOTS; s++) {
            int32_t r = w->r[j][s];
            if (!r)
                continue;
            enum kn_dtype t = w->narrow ? type_of_slot(s) : KN_F32;
            e[j][s] = (struct kn_lora_entry){
                .a = put_matrix(f, t, KN_LORA_A, r, w->k, w->a[j][s]),
                .b = put_matrix(f, t, KN_LORA_B, w->n[j], r, w->b[j][s]),
                .dtype = t,
                .r = r,
                .scale = w->scale[j][s],
            };
        }
    return kn_test_put(f, e, sizeof e);
}

// Sequences [first, first + n) of the work, whose first token is row `row`; results go to y.
static int32_t run_seqs(struct kn_fixture *f, const struct work *w, kn_addr entries, int32_t first,
                        int32_t n, int32_t row, float *y) {
    int32_t seq[MAX_ROWS], rows = 0;
    for (int32_t i = 0; i < n; i++)
        for (int32_t j = 0; j < w->len[first + i]; j++)
            seq[rows++] = i;
    struct kn_batch batch = {
        .n_tokens = rows,
        .n_seqs = n,
        .seq = kn_test_put(f, seq, (size_t)rows * sizeof *seq),
        .slot = kn_test_put(f, w->slot + first, (size_t)n * sizeof *w->slot),
    };
    size_t bytes = (size_t)(rows * w->ldy) * sizeof *y;
    struct kn_lora p = {
        .batch = &batch,
        .x = kn_test_put(f, w->x + row * w->ldx, (size_t)(rows * w->ldx) * sizeof *w->x),
        .ldx = w->ldx,
        .y = kn_test_put(f, w->y + row * w->ldy, bytes),
        .ldy = w->ldy,
        .rows = rows,
        .k = w->k,
        .entries = entries,
        .n_slots = SLOTS,
        .n_parts = w->n_parts,
        .dropout = {.p = w->p,
                    .module = w->module,
                    .keys = kn_test_put(f, w->keys + row, (size_t)rows * sizeof *w->keys)},
    };
    memcpy(p.n, w->n, sizeof p.n);
    memcpy(p.col, w->col, sizeof p.col);
    assert_int_equal(f->ops->lora(f->q, &p), ERR_OK);
    assert_int_equal(f->ops->download(f->q, y + row * w->ldy, p.y, bytes), ERR_OK);
    kn_test_wait(f);
    return rows;
}

// All sequences, `cut` at a time.
static void run_work(const char *isa, int threads, const struct work *w, int32_t cut, float *y) {
    struct kn_fixture f;
    kn_fixture_open(&f, isa, threads);
    kn_addr entries = put_entries(&f, w);
    for (int32_t i = 0, row = 0, n; i < w->n_seqs; i += n) {
        n = w->n_seqs - i < cut ? w->n_seqs - i : cut;
        row += run_seqs(&f, w, entries, i, n, row, y);
    }
    kn_fixture_close(&f);
}

// What dropout makes of feature `c`, by the scalar generator.
static double dropped(const struct work *w, int32_t row, int j, int32_t c) {
    double x = (double)w->x[row * w->ldx + c];
    if (!(w->p > 0))
        return x;
    uint32_t counter[4] = {(uint32_t)(c / 64 * 16 + c % 16), w->module + (uint32_t)j, 0, 0};
    uint32_t key[2] = {(uint32_t)w->keys[row], (uint32_t)(w->keys[row] >> 32)}, out[4];
    philox4x32(counter, key, out);
    return (double)out[c / 16 % 4] * 0x1p-32 < (double)w->p ? 0 : x / (1 - (double)w->p);
}

// y += scale * B (A x) in double; 0 for what is not touched goes into `touched`.
static void reference(const struct work *w, double *y, bool *touched) {
    int32_t row = 0;
    for (int32_t i = 0; i < w->rows * w->ldy; i++) {
        y[i] = (double)w->y[i];
        touched[i] = false;
    }
    for (int32_t q = 0; q < w->n_seqs; q++)
        for (int32_t t = 0; t < w->len[q]; t++, row++)
            for (int j = 0; j < w->n_parts && w->slot[q] >= 0; j++) {
                int s = w->slot[q];
                for (int32_t d = 0; d < w->r[j][s]; d++) {
                    double u = 0;
                    for (int32_t c = 0; c < w->k; c++)
                        u += dropped(w, row, j, c) * (double)w->a[j][s][d * w->k + c];
                    for (int32_t c = 0; c < w->n[j]; c++) {
                        int32_t at = row * w->ldy + w->col[j] + c;
                        y[at] +=
                            (double)w->scale[j][s] * u * (double)w->b[j][s][c * w->r[j][s] + d];
                        touched[at] = true;
                    }
                }
            }
}

static uint32_t bits(float x) {
    uint32_t b;
    memcpy(&b, &x, sizeof b);
    return b;
}

static void check(const struct work *w, const float *found) {
    static double want[MAX_ROWS * MAX_Y];
    static bool touched[MAX_ROWS * MAX_Y];
    assert_true(w->ldy <= MAX_Y);
    reference(w, want, touched);
    kn_assert_close(found, want, (size_t)(w->rows * w->ldy), TOL_LORA, TOL_LORA);
    int32_t kept = 0, changed = 0;
    for (int32_t i = 0; i < w->rows * w->ldy; i++) {
        bool same = bits(found[i]) == bits(w->y[i]);
        kept += !touched[i];
        changed += !same;
        if (!touched[i] && !same)
            fail_msg("value %d changed that no adapter has", i);
    }
    assert_true(kept > 0 && changed > 0);
}

static void check_all(const char *isa, const struct work *w) {
    static float one[MAX_ROWS * MAX_Y], other[MAX_ROWS * MAX_Y];
    static const struct {
        int threads;
        int32_t cut;
    } ways[] = {{1, 1}, {1, 5}, {3, MAX_ROWS}, {2, 7}, {4, 2}};
    size_t bytes = (size_t)(w->rows * w->ldy) * sizeof *one;
    run_work(isa, 1, w, MAX_ROWS, one);
    check(w, one);
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        memset(other, 0, sizeof other);
        run_work(isa, ways[i].threads, w, ways[i].cut, other);
        kn_assert_same(other, one, bytes);
    }
}

static void products(const char *isa) {
    static const struct {
        int32_t k, n[KN_LORA_PARTS], ranks[SLOTS];
    } cases[] = {
        {48, {96, 32, 32}, {8, 1, 16}},  {200, {176, 80, 0}, {17, 0, 64}},
        {96, {150, 0, 0}, {256, 3, 16}}, {33, {7, 15, 17}, {5, 8, 2}},
        {16, {16, 128, 0}, {4, 31, 0}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct work w;
        work_init(&w, 7 + i, cases[i].k, cases[i].n, cases[i].ranks);
        check_all(isa, &w);
        work_free(&w);
    }
}
static void test_products(void **state) {
    (void)state;
    kn_for_levels(products);
}

static void round_values(float *x, size_t n, enum kn_dtype t) {
    for (size_t i = 0; i < n; i++)
        x[i] = t == KN_BF16 ? kn_bf16_to_f32(kn_f32_to_bf16(x[i]))
                            : kn_f16_to_f32(kn_f32_to_f16(x[i]));
}

// Matrices in 16 bits give the bits of the same values in f32.
static void sixteen_bits(const char *isa) {
    static float wide[MAX_ROWS * MAX_Y], narrow[MAX_ROWS * MAX_Y];
    static const int32_t k[] = {48, 200, 33},
                         ranks[][SLOTS] = {{8, 16, 1}, {64, 17, 15}, {5, 2, 3}};
    static const int32_t n[][KN_LORA_PARTS] = {{160, 80, 32}, {176, 80, 0}, {7, 15, 17}};
    for (int i = 0; i < 3; i++) {
        struct work w;
        work_init(&w, 50 + (uint64_t)i, k[i], n[i], ranks[i]);
        for (int j = 0; j < w.n_parts; j++)
            for (int s = 0; s < SLOTS; s++) {
                round_values(w.a[j][s], (size_t)(w.r[j][s] * w.k), type_of_slot(s));
                round_values(w.b[j][s], (size_t)(w.n[j] * w.r[j][s]), type_of_slot(s));
            }
        run_work(isa, 1, &w, MAX_ROWS, wide);
        w.narrow = true;
        check_all(isa, &w);
        run_work(isa, 2, &w, MAX_ROWS, narrow);
        kn_assert_same(narrow, wide, (size_t)(w.rows * w.ldy) * sizeof *wide);
        work_free(&w);
    }
}
static void test_sixteen_bits(void **state) {
    (void)state;
    kn_for_levels(sixteen_bits);
}

static void dropout(const char *isa) {
    static const float p[] = {0.1f, 0.5f, 0.999f, 1e-9f};
    static const int32_t n[] = {48, 20, 20}, ranks[] = {8, 16, 3}, k[] = {64, 130, 33, 200};
    for (int i = 0; i < 4; i++) {
        struct work w;
        work_init(&w, 70 + (uint64_t)i, k[i], n, ranks);
        w.p = p[i];
        w.module = i == 1 ? UINT32_MAX : 7 * (uint32_t)i;
        check_all(isa, &w);
        work_free(&w);
    }
}
static void test_dropout(void **state) {
    (void)state;
    kn_for_levels(dropout);
}

static void test_layout(void **state) {
    (void)state;
    static const int32_t sizes[][2] = {{1, 1}, {8, 48}, {16, 33}, {256, 17}, {3, 576}};
    const struct kn_ops *ops = &kn_ops_cpu;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (int b = 0; b < 2; b++) {
            enum kn_lora_side side = b ? KN_LORA_B : KN_LORA_A;
            int32_t rows = sizes[i][b], cols = sizes[i][!b];
            size_t n = (size_t)rows * (size_t)cols, bytes = ops->lora_bytes(side, rows, cols);
            struct kn_rng rng = {i};
            float *src = random_values(&rng, n, 1.0f), *back = mem_calloc(n, sizeof *back);
            float *packed = mem_alloc(bytes);
            assert_true(back && packed);
            memset(packed, 0xff, bytes);
            ops->lora_pack(side, rows, cols, src, packed);
            size_t zeros = 0, filled = 0;
            for (size_t j = 0; j < bytes / sizeof *packed; j++) {
                assert_true(isfinite(packed[j]));
                filled += packed[j] < 0 || packed[j] > 0;
                zeros += !(packed[j] < 0 || packed[j] > 0);
            }
            assert_int_equal(filled, n);
            assert_int_equal(filled + zeros, bytes / sizeof *packed);
            ops->lora_unpack(side, rows, cols, packed, back);
            kn_assert_same(back, src, n * sizeof *src);
            mem_free(src);
            mem_free(back);
            mem_free(packed);
        }
    assert_int_equal(ops->lora_bytes(KN_LORA_A, 0, 16), 0);
    assert_int_equal(ops->lora_bytes(KN_LORA_A, 257, 16), 0);
    assert_int_equal(ops->lora_bytes(KN_LORA_B, 16, 257), 0);
    assert_int_equal(ops->lora_bytes(KN_LORA_B, -1, 8), 0);
}

// Each wrong parameter is the queue's error, and a slot that is not there is one, too.
static void test_refused(void **state) {
    (void)state;
    struct kn_fixture f;
    struct err_info info;
    kn_fixture_open(&f, NULL, 2);
    int32_t seq[2] = {0, 1}, slot[2] = {0, 1};
    struct kn_batch batch = {.n_tokens = 2,
                             .n_seqs = 2,
                             .seq = kn_test_put(&f, seq, sizeof seq),
                             .slot = kn_test_put(&f, slot, sizeof slot)};
    kn_addr mem = kn_test_alloc(&f, 4096);
    const struct kn_lora good = {.batch = &batch,
                                 .x = mem,
                                 .ldx = 16,
                                 .y = mem,
                                 .ldy = 32,
                                 .rows = 2,
                                 .k = 16,
                                 .entries = kn_test_alloc(&f, 4096),
                                 .n_slots = 2,
                                 .n_parts = 2,
                                 .n = {16, 16},
                                 .col = {0, 16}};
    struct kn_lora bad[13];
    for (size_t i = 0; i < 13; i++)
        bad[i] = good;
    bad[0].n_slots = 1; // found when it runs: slot 1
    bad[1].batch = NULL;
    bad[2].rows = 3;
    bad[3].ldx = 15;
    bad[4].n_parts = 4;
    bad[5].col[1] = 17;
    bad[6].n[0] = 0;
    bad[7].dropout.p = 1;
    bad[8].dropout.p = 0.5f; // no keys
    bad[9].entries = 0;
    bad[10].y = 0;
    bad[11].k = 0;
    bad[12].n_slots = 0;
    assert_int_equal(f.ops->lora(f.q, &good), ERR_OK);
    assert_int_equal(f.ops->queue_wait(f.q, &info), ERR_OK);
    for (size_t i = 0; i < 13; i++) {
        assert_int_equal(f.ops->lora(f.q, &bad[i]), ERR_OK);
        assert_int_equal(f.ops->queue_wait(f.q, &info), ERR_INVALID);
        assert_non_null(strstr(info.message, "lora"));
    }
    kn_fixture_close(&f);
}

static void test_required(void **state) {
    (void)state;
    struct err_info info;
    struct kn_ops ops = kn_ops_cpu;
    assert_int_equal(kn_require(&ops, KN_NEED_LORA, &info), ERR_OK);
    ops.lora = NULL;
    assert_int_equal(kn_require(&ops, KN_NEED_SERVE, &info), ERR_OK);
    assert_int_equal(kn_require(&ops, KN_NEED_LORA, &info), ERR_UNSUPPORTED);
    assert_non_null(strstr(info.message, "'lora'"));
    ops = kn_ops_cpu;
    ops.lora_pack = NULL;
    assert_int_equal(kn_require(&ops, KN_NEED_LORA, &info), ERR_UNSUPPORTED);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_layout),       cmocka_unit_test(test_products),
        cmocka_unit_test(test_sixteen_bits), cmocka_unit_test(test_dropout),
        cmocka_unit_test(test_refused),      cmocka_unit_test(test_required),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

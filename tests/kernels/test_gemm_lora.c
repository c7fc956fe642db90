// SPDX-License-Identifier: Apache-2.0
// A product with the adapters of its rows in one operation, for every ISA level: the bits of gemm
// and lora one after the other (which test_gemm and test_lora compare with sums in double
// precision), for all weight types, stacks, epilogues, mixes of adapters and numbers of threads.
#include "base/mem.h"
#include "matrix_fixture.h"
#include <string.h>

enum { SLOTS = 40, MOST_ROWS = 72, GUARD = 7 };

static void for_levels(void (*fn)(const char *isa)) {
    for (const char *const *isa = kn_test_levels(); *isa; isa++)
        fn(*isa);
}

// A weight, a batch and its adapters in device memory.
struct load {
    enum kn_dtype type;
    enum kn_stack stack;
    enum kn_epilogue epilogue;
    int32_t k, n[KN_LORA_PARTS], rows;
    int mix; // 0: each row its own; 1: one for all; 2: runs, rows without, modules without
};

static kn_addr random_floats(struct kn_fixture *f, struct kn_rng *r, size_t n, float scale) {
    float *v = mem_alloc(n * sizeof *v);
    assert_non_null(v);
    kn_rng_fill(r, v, n, scale);
    kn_addr a = kn_test_put(f, v, n * sizeof *v);
    mem_free(v);
    return a;
}

static int32_t width(const struct load *l) {
    return l->n[0] + l->n[1] + l->n[2];
}

static struct kn_weight *make_weight(struct kn_fixture *f, struct kn_rng *r, const struct load *l) {
    struct test_matrix m[KN_LORA_PARTS];
    int parts = 0;
    for (; parts < KN_LORA_PARTS && l->n[parts]; parts++)
        m[parts] = test_matrix_make(r, l->type, l->n[parts], l->k);
    struct kn_weight *w = test_weight(f, m, parts, l->stack);
    for (int i = 0; i < parts; i++)
        test_matrix_free(&m[i]);
    return w;
}

// Packed random values of an adapter's matrix, in one of the types.
static kn_addr matrix(struct kn_fixture *f, struct kn_rng *r, enum kn_dtype t,
                      enum kn_lora_side side, int32_t rows, int32_t cols) {
    size_t n = (size_t)rows * (size_t)cols, bytes = f->ops->lora_bytes(side, rows, cols);
    float *natural = mem_alloc(n * sizeof *natural);
    void *packed = mem_alloc(bytes);
    assert_non_null(natural);
    assert_non_null(packed);
    kn_rng_fill(r, natural, n, 0.1f);
    f->ops->lora_pack(side, rows, cols, natural, packed);
    if (t != KN_F32)
        f->ops->lora_narrow(t, packed, bytes, packed);
    kn_addr a = kn_test_put(f, packed, t == KN_F32 ? bytes : bytes / 2);
    mem_free(natural);
    mem_free(packed);
    return a;
}

static int32_t slot_of(const struct load *l, int32_t row) {
    if (l->mix == 0)
        return row % SLOTS;
    return l->mix == 1 ? 1 : row / 7 % 4 - 1;
}

static void make_lora(struct kn_fixture *f, struct kn_rng *r, const struct load *l,
                      struct kn_batch *batch, struct kn_lora *p) {
    static const enum kn_dtype types[] = {KN_F32, KN_BF16, KN_F16};
    static const int32_t ranks[] = {16, 8, 1, 17, 5, 64};
    struct kn_lora_entry e[KN_LORA_PARTS][SLOTS];
    memset(e, 0, sizeof e);
    *p = (struct kn_lora){.batch = batch, .rows = l->rows, .k = l->k, .n_slots = SLOTS};
    for (int32_t col = 0; p->n_parts < KN_LORA_PARTS && l->n[p->n_parts]; p->n_parts++) {
        int32_t j = p->n_parts, n = p->n[j] = l->n[j];
        p->col[j] = col;
        col += n;
        for (int s = 0; s < (l->mix ? 3 : SLOTS); s++) {
            int32_t rank = l->mix == 2 && s == j ? 0 : ranks[(s + j) % 6];
            enum kn_dtype t = types[s % 3];
            if (rank)
                e[j][s] = (struct kn_lora_entry){.a = matrix(f, r, t, KN_LORA_A, rank, l->k),
                                                 .b = matrix(f, r, t, KN_LORA_B, n, rank),
                                                 .r = rank,
                                                 .scale = 0.5f + (float)s,
                                                 .dtype = t};
        }
    }
    int32_t seq[MOST_ROWS], slot[MOST_ROWS];
    for (int32_t i = 0; i < l->rows; i++) {
        seq[i] = i;
        slot[i] = slot_of(l, i);
    }
    p->entries = kn_test_put(f, e, sizeof e);
    *batch = (struct kn_batch){.n_tokens = l->rows,
                               .n_seqs = l->rows,
                               .seq = kn_test_put(f, seq, (size_t)l->rows * sizeof *seq),
                               .slot = kn_test_put(f, slot, (size_t)l->rows * sizeof *slot)};
}

// y of the load with so many threads; in one operation, or in two.
static void run(const char *isa, int threads, const struct load *l, bool one, float *y) {
    struct kn_fixture f;
    struct kn_rng r = {77};
    struct kn_batch batch;
    struct kn_lora p;
    kn_fixture_open(&f, isa, threads);
    int64_t ldy = width(l) + GUARD;
    size_t count = (size_t)l->rows * (size_t)ldy;
    struct kn_weight *w = make_weight(&f, &r, l);
    make_lora(&f, &r, l, &batch, &p);
    p.ldx = l->k + 3;
    p.ldy = ldy;
    p.x = random_floats(&f, &r, (size_t)(l->rows * p.ldx), 1);
    p.y = random_floats(&f, &r, count, 1);
    bool q8 = f.ops->weight_form(w) == KN_FORM_Q8;
    struct kn_gemm g = {.w = w,
                        .x = p.x,
                        .ldx = p.ldx,
                        .y = p.y,
                        .ldy = ldy,
                        .bias = random_floats(&f, &r, (size_t)width(l), 1),
                        .rows = l->rows,
                        .epilogue = l->epilogue};
    if (q8) {
        g.x = kn_test_alloc(&f, f.ops->form_row_bytes(KN_FORM_Q8, l->k) * (size_t)l->rows);
        struct kn_quantize z = {.x = p.x, .ldx = p.ldx, .yq = g.x, .rows = l->rows, .k = l->k};
        assert_int_equal(f.ops->quantize(f.q, &z), ERR_OK);
    }
    if (one) {
        assert_int_equal(f.ops->gemm_lora(f.q, &g, &p), ERR_OK);
    } else {
        assert_int_equal(f.ops->gemm(f.q, &g), ERR_OK);
        assert_int_equal(f.ops->lora(f.q, &p), ERR_OK);
    }
    assert_int_equal(f.ops->download(f.q, y, p.y, count * sizeof *y), ERR_OK);
    kn_test_wait(&f);
    f.ops->weight_destroy(w);
    kn_fixture_close(&f);
}

static void check(const char *isa, const struct load *l) {
    size_t bytes = (size_t)l->rows * (size_t)(width(l) + GUARD) * sizeof(float);
    float *two = mem_alloc(bytes), *one = mem_alloc(bytes);
    assert_non_null(two);
    assert_non_null(one);
    run(isa, 1, l, false, two);
    for (int threads = 1; threads <= 3; threads++) {
        memset(one, 0, bytes);
        run(isa, threads, l, true, one);
        kn_assert_same(one, two, bytes);
    }
    mem_free(two);
    mem_free(one);
}

static void types(const char *isa) {
    static const enum kn_dtype all[] = {KN_F32, KN_F16, KN_BF16, KN_Q8_0, KN_Q4_0, KN_Q4_1};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        for (int mix = 0; mix < 3; mix++) {
            struct load qkv = {all[i], KN_STACK, KN_GEMM_STORE, 96, {96, 48, 40}, 32, mix};
            struct load gate = {all[i], KN_STACK_GATE_UP, KN_GEMM_STORE, 64, {80, 80}, 19, mix};
            struct load down = {all[i], KN_STACK, KN_GEMM_ADD, 672, {64}, 33, mix};
            check(isa, &qkv);
            check(isa, &gate);
            check(isa, &down);
        }
}
static void test_types(void **state) {
    (void)state;
    for_levels(types);
}

// Few and many rows, more items than pairs of panels and fewer, and what is not done in one.
static void sizes(const char *isa) {
    static const int32_t rows[] = {1, 11, 12, 13, 64, 65};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        for (int mix = 0; mix < 3; mix++) {
            struct load wide = {KN_Q4_1, KN_STACK, KN_GEMM_STORE, 32, {1280, 32, 32}, rows[i], mix};
            struct load thin = {KN_Q8_0, KN_STACK, KN_GEMM_ADD, 64, {8}, rows[i], mix};
            check(isa, &wide);
            check(isa, &thin);
        }
}
static void test_sizes(void **state) {
    (void)state;
    for_levels(sizes);
}

// A slot beyond the table is found when it runs; wrong parameters are those of gemm or of lora.
static void test_refused(void **state) {
    (void)state;
    struct kn_fixture f;
    struct kn_rng r = {5};
    struct kn_batch batch;
    struct kn_lora p;
    struct err_info info = {.code = ERR_OK};
    const struct load l = {KN_Q8_0, KN_STACK, KN_GEMM_STORE, 32, {64}, 16, 0};
    kn_fixture_open(&f, "portable", 2);
    struct kn_weight *w = make_weight(&f, &r, &l);
    make_lora(&f, &r, &l, &batch, &p);
    p.ldx = 32;
    p.ldy = 64;
    p.x = kn_test_alloc(&f, 16 * 32 * sizeof(float));
    p.y = kn_test_alloc(&f, 16 * 64 * sizeof(float));
    struct kn_gemm g = {.w = w,
                        .x = kn_test_alloc(&f, 16 * f.ops->form_row_bytes(KN_FORM_Q8, 32)),
                        .y = p.y,
                        .ldy = 64,
                        .rows = 16};
    static const char *const names[] = {"'gemm_lora'", "gemm", "lora", "lora"};
    for (int i = 0; i < 4; i++) {
        struct kn_gemm bad_g = g;
        struct kn_lora bad_p = p;
        if (i == 0)
            bad_p.n_slots = 15;
        if (i == 1)
            bad_g.ldy = 63;
        if (i == 2)
            bad_p.n[0] = 65;
        if (i == 3)
            bad_p.batch = NULL;
        assert_int_equal(f.ops->gemm_lora(f.q, &bad_g, &bad_p), ERR_OK);
        assert_int_equal(f.ops->queue_wait(f.q, &info), ERR_INVALID);
        assert_non_null(strstr(info.message, names[i]));
    }
    assert_int_equal(f.ops->gemm_lora(f.q, &g, &p), ERR_OK);
    assert_int_equal(f.ops->queue_wait(f.q, &info), ERR_OK);
    f.ops->weight_destroy(w);
    kn_fixture_close(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_types),
        cmocka_unit_test(test_sizes),
        cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

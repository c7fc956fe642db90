// SPDX-License-Identifier: Apache-2.0
#include "matrix_fixture.h"
#include "base/mem.h"
#include <string.h>

static void put16(uint8_t *p, uint16_t v) {
    p[0] = (uint8_t)v;
    p[1] = (uint8_t)(v >> 8);
}

struct test_matrix test_matrix_make(struct kn_rng *r, enum kn_dtype t, int64_t n, int64_t k) {
    struct test_matrix m = {.dtype = t, .n = n, .k = k};
    size_t row, count = (size_t)n * (size_t)k;
    assert_true(kn_row_bytes(t, (uint64_t)k, &row));
    m.data = mem_alloc((size_t)n * row);
    m.value = mem_alloc(count * sizeof *m.value);
    assert_non_null(m.data);
    assert_non_null(m.value);
    if (kn_dtype_block(t) == 1) {
        kn_rng_fill(r, m.value, count, 0.05f);
        kn_quantize(t, m.value, m.data, count);
    } else {
        size_t block = kn_dtype_block_bytes(t), blocks = count / kn_dtype_block(t);
        for (size_t b = 0; b < blocks; b++) {
            uint8_t *p = m.data + b * block;
            for (size_t i = 0; i < block; i++)
                p[i] = (uint8_t)kn_rng_u64(r);
            put16(p, kn_f32_to_f16(0.01f * kn_rng_normal(r)));
            if (t == KN_Q4_1)
                put16(p + 2, kn_f32_to_f16(0.01f * kn_rng_normal(r)));
            if (t == KN_Q8_0 && b % 7 == 0) // the value with no positive counterpart, all over
                memset(p + 2, 0x80, 32);
        }
    }
    kn_dequantize(t, m.data, m.value, count);
    return m;
}

void test_matrix_free(struct test_matrix *m) {
    mem_free(m->data);
    mem_free(m->value);
}

struct kn_weight_src test_matrix_src(const struct test_matrix *m) {
    return (struct kn_weight_src){.dtype = m->dtype, .n = m->n, .k = m->k, .data = m->data};
}

struct kn_weight *test_weight(struct kn_fixture *f, const struct test_matrix *parts, int n_parts,
                              enum kn_stack stack) {
    struct kn_weight_src src[8];
    for (int i = 0; i < n_parts; i++)
        src[i] = test_matrix_src(&parts[i]);
    struct kn_weight_spec spec = {
        .parts = src, .n_parts = n_parts, .stack = stack, .world = 1, .name = "test"};
    struct kn_weight *w;
    struct err_info info = {0};
    if (f->ops->weight_create(f->d, &spec, &w, &info))
        fail_msg("weight_create: %s", info.message);
    return w;
}

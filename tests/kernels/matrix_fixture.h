// SPDX-License-Identifier: Apache-2.0
// Random matrices of each weight type for the product tests, as a file would hold them, and their
// values. Asserts with cmocka. Single-threaded.
#pragma once
#include "kn_fixture.h"

struct test_matrix {
    enum kn_dtype dtype;
    int64_t n, k;
    uint8_t *data; // rows as in a file
    float *value;  // [n, k] dequantised
};

// Quants take every value of their bits, -128 too; scales and minima are about 0.01.
struct test_matrix test_matrix_make(struct kn_rng *r, enum kn_dtype t, int64_t n, int64_t k);
void test_matrix_free(struct test_matrix *m);
struct kn_weight_src test_matrix_src(const struct test_matrix *m);
// The weight of these parts; fails the test where it is refused.
struct kn_weight *test_weight(struct kn_fixture *f, const struct test_matrix *parts, int n_parts,
                              enum kn_stack stack);

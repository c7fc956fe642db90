// SPDX-License-Identifier: Apache-2.0
#include "base/hash.h"
#include "tests/support/cmocka_all.h"
#include <string.h>

// SipHash-2-4 of the bytes 0, 1, 2, ... under the key 0, 1, ..., 15: first vectors of the paper's
// reference.
static void test_siphash_vectors(void **state) {
    (void)state;
    struct hash_key k = {0x0706050403020100, 0x0f0e0d0c0b0a0908};
    uint8_t in[16];
    for (int i = 0; i < 16; i++)
        in[i] = (uint8_t)i;
    assert_true(hash_bytes(&k, in, 0) == 0x726fdb47dd0e0e31);
    assert_true(hash_bytes(&k, in, 1) == 0x74f839c593dc67fd);
    assert_true(hash_bytes(&k, in, 8) == 0x93f5f5799a932462);
    assert_true(hash_bytes(&k, in, 15) == 0xa129ca6149be45e5); // the example of the paper
}

static void test_sha256(void **state) {
    (void)state;
    static const char want[] = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
    uint8_t d[SHA256_BYTES];
    char hex[2 * SHA256_BYTES + 1];
    assert_int_equal(sha256("abc", 3, d), ERR_OK);
    hex_encode(d, sizeof d, hex);
    assert_string_equal(hex, want);
    struct sha256_ctx *c = sha256_begin();
    assert_non_null(c);
    assert_int_equal(sha256_update(c, "a", 1), ERR_OK);
    assert_int_equal(sha256_update(c, "bc", 2), ERR_OK);
    assert_int_equal(sha256_end(c, d), ERR_OK);
    hex_encode(d, sizeof d, hex);
    assert_string_equal(hex, want);
}

static void test_compare_and_random(void **state) {
    (void)state;
    assert_true(mem_equal_ct("abcd", "abcd", 4));
    assert_false(mem_equal_ct("abcd", "abce", 4));
    uint8_t a[32] = {0}, b[32] = {0};
    assert_int_equal(random_bytes(a, sizeof a), ERR_OK);
    assert_int_equal(random_bytes(b, sizeof b), ERR_OK);
    assert_memory_not_equal(a, b, sizeof a);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_siphash_vectors),
        cmocka_unit_test(test_sha256),
        cmocka_unit_test(test_compare_and_random),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

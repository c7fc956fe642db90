// SPDX-License-Identifier: Apache-2.0
// Token counts against a plain array over the whole vocabulary.
#include "base/hash.h"
#include "base/mem.h"
#include "serving/sampling_state.h"
#include "tests/support/cmocka_all.h"
#include <string.h>

enum { VOCAB = 1000, MOST = 300 };

static void check(const struct eng__counts *c, const int32_t *out, const int32_t *prompt) {
    int32_t n = 0;
    for (int32_t t = 0; t < VOCAB; t++)
        n += out[t] || prompt[t];
    assert_int_equal(c->n, n);
    for (int32_t i = 0; i < c->n; i++) {
        assert_int_equal(c->list[i].out, out[c->list[i].id]);
        assert_int_equal(c->list[i].prompt, prompt[c->list[i].id]);
        for (int32_t j = 0; j < i; j++)
            assert_int_not_equal(c->list[i].id, c->list[j].id);
    }
}

static void counts_match_an_array(void **state) {
    (void)state;
    for (uint64_t seed = 0; seed < 20; seed++) {
        struct eng__counts a, b;
        int32_t out[VOCAB] = {0}, prompt[VOCAB] = {0};
        void *ma = mem_alloc(eng__counts_bytes(MOST)), *mb = mem_alloc(eng__counts_bytes(MOST));
        assert_non_null(ma);
        assert_non_null(mb);
        memset(ma, 0xee, eng__counts_bytes(MOST)); // comes from a pool, not zeroed
        eng__counts_init(&a, ma, MOST);
        eng__counts_init(&b, mb, MOST);
        for (uint64_t i = 0; i < 150; i++) {
            int32_t id = (int32_t)(hash_mix64(seed * 1000 + i) % (seed % 2 ? VOCAB : 20));
            eng__counts_prompt(&a, id);
            prompt[id] = 1;
        }
        eng__counts_copy(&b, &a);
        check(&b, out, prompt);
        for (uint64_t i = 0; i < 150; i++) {
            int32_t id = (int32_t)(hash_mix64(seed * 77 + i) % (seed % 2 ? VOCAB : 20));
            eng__counts_generated(&b, id);
            out[id]++;
        }
        check(&b, out, prompt);
        memset(out, 0, sizeof out);
        check(&a, out, prompt); // the copy is its own
        mem_free(ma);
        mem_free(mb);
    }
}

static void without_penalties_nothing_is_kept(void **state) {
    (void)state;
    struct eng__counts c;
    assert_int_equal(eng__counts_bytes(0), 0);
    eng__counts_init(&c, NULL, 0);
    eng__counts_prompt(&c, 5);
    eng__counts_generated(&c, 5);
    assert_int_equal(c.n, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(counts_match_an_array),
        cmocka_unit_test(without_penalties_nothing_is_kept),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

// SPDX-License-Identifier: Apache-2.0
// Paged KV, one behaviour at a time: copies on write, equal blocks, eviction, prefixes, lending,
// and each allocation failing once. Against a model: test_kv.c.
#include "base/mem.h"
#include "serving/paged_kv/kv.h"
#include "tests/support/cmocka_all.h"
#include <stdlib.h>
#include <string.h>

enum { SIZE = 4 };

// Sequences of one domain, no device.
static struct kv_pool *pool_of(int32_t blocks) {
    struct kv_config cfg = {.blocks = blocks, .block_size = SIZE, .prefix_cache = true};
    struct kv_pool *p = NULL;
    assert_int_equal(kv_pool_create(&cfg, &p), ERR_OK);
    return p;
}

static void seq_of(struct kv_seq *s, struct kv_pool *p, uint64_t salt) {
    struct kv_domain d = {.salt = salt};
    assert_int_equal(kv_seq_init(s, p, 64, &d), ERR_OK);
}

static void grow(struct kv_seq *s, struct kv_pool *p, int32_t first, int32_t n, int64_t now) {
    struct kv_copy copy;
    int32_t n_copies, tokens[256];
    for (int32_t i = 0; i < n; i++)
        tokens[i] = first + i;
    assert_int_equal(kv_seq_reserve(s, p, s->n_tokens + n, &copy, &n_copies, now), ERR_OK);
    kv_seq_commit(s, p, tokens, n, now);
}

static int32_t cached_prefix(struct kv_pool *p, int32_t first, int32_t n) {
    int32_t tokens[256], idle;
    struct kv_domain d = {.salt = 1};
    for (int32_t i = 0; i < n; i++)
        tokens[i] = first + i;
    return kv_pool_probe(p, &d, tokens, n, &idle);
}

static void copy_on_write_leaves_the_other_alone(void **state) {
    (void)state;
    struct kv_pool *p = pool_of(8);
    struct kv_seq a, b;
    seq_of(&a, p, 1);
    seq_of(&b, p, 1);
    grow(&a, p, 0, 6, 0);
    assert_int_equal(kv_seq_fork(&b, &a, p), ERR_OK);
    assert_int_equal(a.table[1], b.table[1]);
    struct kv_copy copy;
    int32_t n_copies, old = a.table[1];
    assert_int_equal(kv_seq_reserve(&a, p, 7, &copy, &n_copies, 0), ERR_OK);
    assert_int_equal(n_copies, 1);
    assert_int_equal(copy.src, old);
    assert_int_equal(copy.dst, a.table[1]);
    assert_int_not_equal(copy.dst, old);
    assert_int_equal(b.table[1], old);
    assert_int_equal(kv_seq_reserve(&b, p, 7, &copy, &n_copies, 0), ERR_OK);
    assert_int_equal(n_copies, 0); // b is alone now
    kv_seq_fini(&a, p);
    kv_seq_fini(&b, p);
    kv_pool_destroy(p);
}

static void equal_blocks_become_one(void **state) {
    (void)state;
    struct kv_pool *p = pool_of(8);
    struct kv_seq a, b;
    seq_of(&a, p, 1);
    seq_of(&b, p, 1);
    grow(&a, p, 0, 8, 0);
    grow(&b, p, 0, 8, 0);
    assert_int_equal(a.table[0], b.table[0]);
    assert_int_equal(a.table[1], b.table[1]);
    assert_int_equal(kv_pool_available(p), 6);
    kv_seq_fini(&a, p);
    kv_seq_fini(&b, p);
    kv_pool_destroy(p);
}

static void eviction_takes_the_oldest_leaf(void **state) {
    (void)state;
    struct kv_pool *p = pool_of(6);
    struct kv_seq a, b, c;
    seq_of(&a, p, 1);
    seq_of(&b, p, 1);
    seq_of(&c, p, 1);
    grow(&a, p, 0, 12, 1);
    grow(&b, p, 100, 8, 2);
    kv_seq_drop(&a, p, 3);
    kv_seq_drop(&b, p, 4);
    assert_int_equal(cached_prefix(p, 0, 13), 12);
    grow(&c, p, 200, 8, 5); // one free block, one evicted: the tail of the older sequence
    assert_int_equal(cached_prefix(p, 0, 13), 8);
    assert_int_equal(cached_prefix(p, 100, 9), 8);
    int32_t tokens[9] = {0, 1, 2, 3, 4, 5, 6, 7, 8};
    assert_int_equal(kv_seq_match(&a, p, tokens, 9, 6), 8); // used again: now b is the oldest
    kv_seq_drop(&a, p, 6);
    grow(&c, p, 300, 4, 7);
    assert_int_equal(cached_prefix(p, 100, 9), 4);
    assert_int_equal(cached_prefix(p, 0, 9), 8);
    kv_seq_fini(&a, p);
    kv_seq_fini(&b, p);
    kv_seq_fini(&c, p);
    kv_pool_destroy(p);
}

static void a_prefix_ends_before_the_last_token(void **state) {
    (void)state;
    struct kv_pool *p = pool_of(8);
    struct kv_seq a;
    seq_of(&a, p, 1);
    grow(&a, p, 0, 8, 0);
    assert_int_equal(cached_prefix(p, 0, 8), 4); // the 8th token is left to compute
    assert_int_equal(cached_prefix(p, 0, 9), 8);
    kv_pool_forget(p, 0, false);
    assert_int_equal(cached_prefix(p, 0, 9), 0);
    grow(&a, p, 8, 4, 0); // its history is forgotten: no key either
    assert_int_equal(cached_prefix(p, 0, 13), 0);
    kv_seq_fini(&a, p);
    assert_int_equal(kv_pool_available(p), 8);
    kv_pool_destroy(p);
}

static void lending_moves_what_lives_at_the_top(void **state) {
    (void)state;
    struct kv_pool *p = pool_of(8);
    struct kv_seq low, high, cold;
    seq_of(&low, p, 1);
    seq_of(&high, p, 1);
    seq_of(&cold, p, 1);
    grow(&low, p, 0, 12, 0);    // 0 1 2
    grow(&cold, p, 100, 4, 0);  // 3
    grow(&high, p, 200, 13, 0); // 4 5 6 7
    kv_seq_drop(&low, p, 0);    // cached since 0
    kv_seq_drop(&cold, p, 500); // cached since 500
    struct kv_copy moves[8];
    int32_t n_moves;
    struct kv_seq *all[] = {&low, &high, &cold};
    struct kv_lending how = {
        .now_ns = 550, .hot_ns = 100, .seqs = all, .n_seqs = 3, .moves = moves, .max_moves = 8};
    // At 550 `low` is cold and `cold` is hot: 7, 6, 5 move into low's blocks, which are dropped.
    assert_int_equal(kv_pool_lend(p, 3, &how, &n_moves), 3);
    assert_int_equal(n_moves, 3);
    for (int32_t i = 0; i < 3; i++) {
        assert_int_equal(moves[i].src, 7 - i);
        assert_true(moves[i].dst < 3);
        assert_int_equal(high.table[3 - i], moves[i].dst);
    }
    struct err_info info;
    const struct kv_seq *check[] = {&low, &high, &cold};
    assert_true(kv_pool_check(p, check, 3, &info));
    assert_int_equal(cached_prefix(p, 100, 5), 4); // the hot one stayed
    // Nothing below is free or cold: lending stops.
    assert_int_equal(kv_pool_lend(p, 3, &how, &n_moves), 3);
    assert_int_equal(n_moves, 0);
    struct kv_stats st;
    kv_pool_stats(p, &st);
    assert_int_equal(st.lent, 3);
    kv_pool_return(p, 1);
    assert_int_equal(kv_pool_available(p), 3); // two came back, one is cached
    kv_pool_return(p, 0);
    assert_true(kv_pool_check(p, check, 3, &info));
    // The moved chain is still found by its key, and a hot cached block moves too.
    assert_int_equal(cached_prefix(p, 200, 13), 12);
    kv_seq_drop(&high, p, 560);
    how.now_ns = 590;
    assert_int_equal(kv_pool_lend(p, 6, &how, &n_moves), 4);
    assert_int_equal(cached_prefix(p, 200, 13), 12);
    assert_true(kv_pool_check(p, check, 3, &info));
    kv_pool_return(p, 0);
    kv_seq_fini(&low, p);
    kv_seq_fini(&high, p);
    kv_seq_fini(&cold, p);
    kv_pool_destroy(p);
}

// The pool is full of what was hit a moment ago. Lending for which something waited takes the
// blocks that were hit the longest ago, wherever they lie, and no more of them than it needs.
static void lending_takes_the_coldest_first(void **state) {
    (void)state;
    struct kv_pool *p = pool_of(8);
    struct kv_seq s[4];
    for (int32_t i = 0; i < 4; i++) {
        seq_of(&s[i], p, 1);
        grow(&s[i], p, 100 * i, 8, 0); // blocks 2 i and 2 i + 1
    }
    const int32_t order[4] = {2, 0, 3, 1};
    for (int32_t i = 0; i < 4; i++)
        kv_seq_drop(&s[order[i]], p, 10 + i);
    struct kv_copy moves[8];
    int32_t n_moves;
    struct kv_lending how = {
        .now_ns = 20, .hot_ns = 100, .moves = moves, .max_moves = 8, .coldest = true};
    assert_int_equal(kv_pool_lend(p, 4, &how, &n_moves), 0); // all is hot
    how.hot_ns = 10;
    assert_int_equal(kv_pool_lend(p, 4, &how, &n_moves), 2); // but for what was hit at 10
    how.hot_ns = 0;
    assert_int_equal(kv_pool_lend(p, 2, &how, &n_moves), 4);
    struct err_info info;
    assert_true(kv_pool_check(p, NULL, 0, &info));
    assert_int_equal(cached_prefix(p, 200, 9), 0);
    assert_int_equal(cached_prefix(p, 0, 9), 0);
    assert_int_equal(cached_prefix(p, 300, 9), 8);
    assert_int_equal(cached_prefix(p, 100, 9), 8);
    kv_pool_return(p, 0);
    for (int32_t k = 0; k < 4; k++)
        kv_seq_fini(&s[k], p);
    kv_pool_destroy(p);
}

static void failed_allocations_leave_nothing(void **state) {
    (void)state;
    int64_t live = mem_live_blocks();
    struct kv_config cfg = {.blocks = 4, .block_size = SIZE, .prefix_cache = true};
    for (uint64_t n = 1; n < 100; n++) {
        struct kv_pool *p = NULL;
        mem_fail_after(n, false);
        enum err e = kv_pool_create(&cfg, &p);
        mem_fail_after(0, false);
        if (!e) {
            kv_pool_destroy(p);
            assert_true(n > 4);
            assert_true(mem_live_blocks() == live);
            return;
        }
        assert_int_equal(e, ERR_NOMEM);
        assert_true(mem_live_blocks() == live);
    }
    fail_msg("never succeeded");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(copy_on_write_leaves_the_other_alone),
        cmocka_unit_test(equal_blocks_become_one),
        cmocka_unit_test(eviction_takes_the_oldest_leaf),
        cmocka_unit_test(a_prefix_ends_before_the_last_token),
        cmocka_unit_test(lending_moves_what_lives_at_the_top),
        cmocka_unit_test(lending_takes_the_coldest_first),
        cmocka_unit_test(failed_allocations_leave_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

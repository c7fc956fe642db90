// SPDX-License-Identifier: Apache-2.0
// Background work over the engine: it gets idle time only, and the memory it borrows is its own
// until it is asked for. The dummy here overwrites all it borrows, so that a block which is still
// somebody's would show as wrong tokens.
#include "base/mem.h"
#include "serving/engine_internal.h"
#include "tests/serving/engine_support.h"
#include "tests/support/cmocka_all.h"
#include <string.h>

struct dummy {
    struct kn_device d;
    struct eng *e;
    int32_t slices, asked;
    bool work;         // has something to do
    size_t need, want; // borrows up to this
    size_t holds;
    uint64_t rng; // != 0: borrows and returns at random
};

static int64_t dummy_run(void *arg, int64_t budget_us) {
    struct dummy *b = arg;
    for (int32_t i = 0; i < b->e->sched.n_running; i++) // only what serving leaves
        assert_true(b->e->sched.running[i]->req->paused);
    assert_true(budget_us >= 500 && budget_us <= 5000);
    if (!b->work)
        return 0;
    b->slices++;
    clock_manual_advance(&b->d.clock, budget_us * 1000);
    if (b->rng && client_rnd(&b->rng, 2)) {
        b->holds = b->holds / 2;
        eng_background_return(b->e, b->holds);
    }
    kn_addr at;
    const struct eng_borrow ask = {.need = b->need, .want = b->want};
    b->holds = eng_background_borrow(b->e, &ask, &at);
    memset((char *)b->d.pool_at + (at - (kn_addr)b->d.pool_at), 0xab, b->holds);
    return budget_us;
}

static void dummy_give_back(void *arg, size_t bytes) {
    struct dummy *b = arg;
    b->asked++;
    b->holds = bytes < b->holds ? b->holds - bytes : 0;
    eng_background_return(b->e, b->holds);
}

static struct dummy *dummy_new(int32_t blocks) {
    struct dummy *b = mem_zalloc(sizeof *b);
    assert_non_null(b);
    fake_init(&b->d, blocks);
    struct eng_config cfg = client_config(&b->d);
    cfg.background =
        (struct eng_background){.run = dummy_run, .give_back = dummy_give_back, .arg = b};
    b->e = client_engine(&cfg);
    return b;
}

static void dummy_free(struct dummy *b) {
    eng_destroy(b->e);
    mem_free(b);
}

static struct client *ask(struct dummy *b, int32_t n_prompt, int32_t n, int32_t salt) {
    struct client *c = mem_zalloc(sizeof *c);
    assert_non_null(c);
    int32_t prompt[CLIENT_LEN];
    for (int32_t i = 0; i < n_prompt; i++)
        prompt[i] = 1 + (i * 5 + salt * 3) % (FAKE_VOCAB - 2);
    client_init(c, prompt, n_prompt, n);
    c->r.ignore_eos = true;
    client_expect(c, 256);
    struct err_info info;
    assert_int_equal(client_submit(c, b->e, &info), ERR_OK);
    return c;
}

static void done(struct client *c) {
    assert_true(client_done(c));
    client_release(c);
    mem_free(c);
}

static void client_run_until_done(struct dummy *b, struct client *c) {
    bool work = b->work;
    b->work = false;
    while (!client_done(c)) {
        eng_step(b->e);
        client_take(c, INT32_MAX);
    }
    b->work = work;
}

static void background_gets_idle_time_only(void **state) {
    (void)state;
    struct dummy *b = dummy_new(64);
    assert_false(eng_step(b->e)); // nothing to do at all
    b->work = true;
    for (int i = 0; i < 5; i++)
        assert_true(eng_step(b->e));
    assert_int_equal(b->slices, 5);
    struct client *c = ask(b, 20, 30, 1);
    int32_t steps = atomic_load(&b->d.steps);
    eng_step(b->e); // the next turn computes: a request waits for one slice at most
    assert_int_equal(atomic_load(&b->d.steps), steps + 1);
    while (!client_done(c)) {
        assert_int_equal(b->slices, 5);
        eng_step(b->e);
        client_take(c, INT32_MAX);
    }
    done(c);
    b->slices = 0;
    for (int i = 0; i < 4; i++)
        eng_step(b->e);
    assert_true(b->slices >= 3);
    b->work = false;
    while (eng_step(b->e))
        ;
    dummy_free(b);
}

static void lent_memory_comes_back_under_pressure(void **state) {
    (void)state;
    struct dummy *b = dummy_new(20);
    b->work = true;
    b->want = 18 * b->e->block_bytes;
    eng_step(b->e);
    assert_int_equal(b->holds, b->want);
    struct client *c = ask(b, 200, 40, 2); // 15 blocks, 2 are left
    int32_t turns = 0;
    for (; !client_done(c) && turns < 200; turns++) {
        eng_step(b->e);
        client_take(c, INT32_MAX);
    }
    assert_true(b->asked >= 1);
    assert_true(turns < 60);
    done(c);
    // Calm: nothing is lent for a while, then again.
    size_t holds = b->holds;
    eng_step(b->e);
    assert_true(b->holds <= holds);
    clock_manual_advance(&b->d.clock, 61000000000);
    eng_step(b->e);
    assert_int_equal(b->holds, b->want);
    dummy_free(b);
}

// The pool is full of prefixes that are hit all the time. Background work says what it waits for,
// gets what it needs after a while, the coldest first, and no more.
static void hot_prefixes_give_way_in_time(void **state) {
    (void)state;
    struct dummy *b = dummy_new(40);
    struct eng_colocation c;
    b->work = true;
    b->need = 10 * b->e->block_bytes;
    b->want = 30 * b->e->block_bytes;
    int64_t begin = b->d.clock.mono;
    bool told = false;
    while (b->holds < b->need) {
        for (int32_t who = 0; who < 4;
             who++) { // each fills nine blocks, the last one is hit the latest
            struct client *x = ask(b, 150, 2, who);
            client_run_until_done(b, x);
            done(x);
        }
        clock_manual_advance(&b->d.clock, 20000000000); // so long ago all was hit at most
        eng_step(b->e);
        eng_colocation(b->e, &c);
        told = told || (c.lend_reason == ENG_LEND_HOT && c.waits_for_memory_s > 50);
        assert_true(b->d.clock.mono - begin < 110000000000);
    }
    assert_true(told);
    assert_true(b->d.clock.mono - begin > 60000000000);
    assert_int_equal(b->holds, b->need);
    eng_colocation(b->e, &c);
    assert_int_equal(c.lend_reason, ENG_LEND_ENOUGH);
    assert_int_equal(c.lent_bytes, b->holds);
    assert_true(c.waits_for_memory_s <= 0 && c.waited_for_memory_s > 60);
    dummy_free(b);
}

static void borrowing_moves_what_is_paused(void **state) {
    (void)state;
    struct dummy *b = dummy_new(40);
    struct client *first = ask(b, 100, 30, 3), *c = ask(b, 60, 100, 4);
    for (int i = 0; i < 500 && !(eng__req_of(c->stream)->paused && client_done(first)); i++) {
        eng_step(b->e);
        client_take(first, INT32_MAX);
    }
    assert_true(eng__req_of(c->stream)->paused); // nobody reads it
    done(first);
    b->work = true;
    b->want = 38 * b->e->block_bytes;
    clock_manual_advance(&b->d.clock, 61000000000);
    for (int i = 0; i < 10; i++)
        eng_step(b->e);
    assert_true(b->holds >= 28 * b->e->block_bytes); // all but what c holds
    b->work = false;
    client_run(b->e, &c, 1); // its tokens are right wherever its blocks went
    done(c);
    dummy_free(b);
}

// What had to come back is not lent again as soon as it just fits: the next request would take it
// at once.
static void it_comes_back_with_room_to_spare(void **state) {
    (void)state;
    struct dummy *b = dummy_new(40);
    struct eng_colocation o;
    struct client *c = ask(b, 60, 100, 4);
    for (int i = 0; i < 500 && !eng__req_of(c->stream)->paused; i++)
        eng_step(b->e);
    size_t all = (size_t)(40 - b->e->sched.running[0]->kv.n_blocks) * b->e->block_bytes;
    b->work = true;
    b->need = b->want = all;
    clock_manual_advance(&b->d.clock, 61000000000);
    for (int i = 0; i < 3; i++)
        eng_step(b->e);
    assert_int_equal(b->holds, all); // the first time it is lent as it fits
    assert_true(eng__ask_back(b->e, 40));
    assert_int_equal(b->holds, 0);
    clock_manual_advance(&b->d.clock, 6000000000); // calm is over
    eng_step(b->e);
    eng_colocation(b->e, &o);
    assert_int_equal(b->holds, 0);
    assert_int_equal(o.lend_reason, ENG_LEND_LIVE);
    clock_manual_advance(&b->d.clock, 60000000000);
    eng_step(b->e);
    assert_int_equal(b->holds, 0);
    clock_manual_advance(&b->d.clock, 61000000000); // whoever waits for long gets what there is
    for (int i = 0; i < 3; i++)
        eng_step(b->e);
    assert_int_equal(b->holds, all);
    b->need = all / 2; // and what leaves enough beside it is lent at once
    assert_true(eng__ask_back(b->e, 40));
    clock_manual_advance(&b->d.clock, 6000000000);
    for (int i = 0; i < 3; i++)
        eng_step(b->e);
    assert_true(b->holds >= all / 2);
    b->work = false;
    client_run(b->e, &c, 1);
    done(c);
    dummy_free(b);
}

static void a_failed_move_fails_what_was_moved(void **state) {
    (void)state;
    struct dummy *b = dummy_new(40);
    struct client *first = ask(b, 100, 30, 3), *c = ask(b, 60, 100, 4);
    c->may_fail = true;
    for (int i = 0; i < 500 && !(eng__req_of(c->stream)->paused && client_done(first)); i++) {
        eng_step(b->e);
        client_take(first, INT32_MAX);
    }
    done(first);
    b->work = true;
    b->want = 38 * b->e->block_bytes;
    b->d.fail_copy = 1;
    clock_manual_advance(&b->d.clock, 61000000000);
    for (int i = 0; i < 10; i++)
        eng_step(b->e);
    assert_int_equal(b->d.fail_copy, 0);
    client_take(c, INT32_MAX);
    assert_int_equal(c->choices[0].error, ERR_DEVICE);
    done(c);
    b->work = false;
    struct client *again = ask(b, 60, 10, 4); // nothing of it is in the cache
    client_run(b->e, &again, 1);
    done(again);
    dummy_free(b);
}

static void random_borrowing_changes_no_token(void **state) {
    (void)state;
    for (uint64_t seed = 1; seed <= 20; seed++) {
        struct dummy *b = dummy_new(16 + (int32_t)seed);
        b->rng = seed;
        b->work = true;
        b->want = (8 + seed / 2) * b->e->block_bytes;
        struct client *c[12];
        uint64_t rng = seed * 977;
        int32_t n = 0, open = 0;
        for (int turn = 0; turn < 4000 && (n < 12 || open); turn++) {
            if (n < 12 && client_rnd(&rng, 8) == 0) {
                c[n] = mem_zalloc(sizeof *c[n]);
                assert_non_null(c[n]);
                client_random(c[n], &rng);
                client_expect(c[n], 256);
                struct err_info info;
                assert_int_equal(client_submit(c[n++], b->e, &info), ERR_OK);
            }
            eng_step(b->e);
            if (client_rnd(&rng, 50) == 0)
                clock_manual_advance(&b->d.clock, 10000000000);
            open = 0;
            for (int i = 0; i < n; i++) {
                if (client_rnd(&rng, 30) == 0 || i % 2)
                    client_take(c[i], INT32_MAX);
                open += !client_done(c[i]);
            }
        }
        assert_int_equal(open, 0);
        for (int i = 0; i < n; i++)
            done(c[i]);
        dummy_free(b);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(background_gets_idle_time_only),
        cmocka_unit_test(lent_memory_comes_back_under_pressure),
        cmocka_unit_test(hot_prefixes_give_way_in_time),
        cmocka_unit_test(borrowing_moves_what_is_paused),
        cmocka_unit_test(it_comes_back_with_room_to_spare),
        cmocka_unit_test(a_failed_move_fails_what_was_moved),
        cmocka_unit_test(random_borrowing_changes_no_token),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

// SPDX-License-Identifier: Apache-2.0
// What time background work gets beside serving, on a manual clock: a step takes 20 ms and a little
// for each row, a slice what it was allowed and the overrun that the test wants.
#include "base/mem.h"
#include "serving/engine_internal.h"
#include "tests/serving/engine_support.h"
#include "tests/support/cmocka_all.h"
#include <math.h>
#include <string.h>

#define MS INT64_C(1000000)

enum { USERS = 8 };

struct place {
    struct kn_device d;
    struct eng *e;
    struct client *user[USERS];
    // background
    int32_t slices, beside; // beside: with a sequence that could have been stepped
    int64_t overrun_ns, longest_ns, used_ns;
    bool idle, urgent;
    // what users saw
    int64_t longest_gap_ns;
    int32_t gaps, late; // late: beyond the target
};

static int64_t cost(const struct fake_step *s) {
    return 20 * MS + s->rows * 100000;
}

static int64_t run(void *arg, int64_t budget_us) {
    struct place *p = arg;
    if (p->idle)
        return 0;
    bool steppable = false;
    for (int32_t i = 0; i < p->e->sched.n_running; i++)
        steppable = steppable || !p->e->sched.running[i]->req->paused;
    int64_t ns = budget_us * 1000 + p->overrun_ns;
    p->slices++;
    p->beside += steppable;
    p->used_ns += ns;
    p->longest_ns = ns > p->longest_ns ? ns : p->longest_ns;
    clock_manual_advance(&p->d.clock, ns);
    return ns / 1000;
}

static bool urgent(void *arg) {
    const struct place *p = arg;
    return p->urgent;
}

static struct place *place_of(int64_t itl_ms, int64_t ttft_ms, int32_t blocks) {
    struct place *p = mem_zalloc(sizeof *p);
    assert_non_null(p);
    fake_init(&p->d, blocks);
    p->d.cost = cost;
    struct eng_config cfg = client_config(&p->d);
    cfg.background = (struct eng_background){.run = run, .urgent = urgent, .arg = p};
    cfg.slo_itl_ns = itl_ms * MS;
    cfg.slo_ttft_ns = ttft_ms * MS;
    p->e = client_engine(&cfg);
    return p;
}

static struct client *ask(struct place *p, int32_t who, int32_t n_prompt, int32_t n) {
    struct client *c = client_new();
    int32_t prompt[CLIENT_LEN];
    for (int32_t i = 0; i < n_prompt; i++)
        prompt[i] = 1 + (i * 5 + who * 3) % (FAKE_VOCAB - 2);
    client_init(c, prompt, n_prompt, n);
    c->r.ignore_eos = true;
    c->clock = &p->d.clock.clock;
    client_expect(c, 256);
    struct err_info info;
    assert_int_equal(client_submit(c, p->e, &info), ERR_OK);
    p->user[who] = c;
    return c;
}

static void turn(struct place *p) {
    eng_step(p->e);
    for (int i = 0; i < USERS; i++) {
        struct client *c = p->user[i];
        if (!c)
            continue;
        int64_t before = c->choices[0].last_ns;
        int32_t got = c->choices[0].got;
        client_take(c, INT32_MAX);
        int64_t gap = c->choices[0].last_ns - before;
        if (!before || c->choices[0].got == got)
            continue;
        p->gaps++;
        p->late += p->e->cfg.slo_itl_ns && gap > p->e->cfg.slo_itl_ns;
        p->longest_gap_ns = gap > p->longest_gap_ns ? gap : p->longest_gap_ns;
    }
}

static void forget(struct place *p) {
    p->slices = p->beside = p->gaps = p->late = 0;
    p->longest_gap_ns = p->used_ns = p->longest_ns = 0;
}

static void finish(struct place *p) {
    for (int i = 0; i < USERS; i++)
        if (p->user[i]) {
            if (!client_done(p->user[i]))
                p->user[i]->cancelled = true;
            client_release(p->user[i]);
            p->idle = true;
        }
    while (eng_step(p->e))
        ;
    for (int i = 0; i < USERS; i++)
        mem_free(p->user[i]);
    eng_destroy(p->e);
    mem_free(p);
}

static void without_targets_serving_comes_first(void **state) {
    (void)state;
    struct place *p = place_of(0, 0, 200);
    for (int i = 0; i < 4; i++)
        ask(p, i, 20 + i, 60);
    for (int i = 0; i < 40; i++)
        turn(p);
    assert_int_equal(p->slices, 0);
    for (int i = 0; i < 100; i++)
        turn(p);
    assert_true(p->slices > 10);
    assert_int_equal(p->beside, 0);
    struct eng_load l;
    eng_load(p->e, &l);
    assert_true(l.beside);
    p->idle = true;
    turn(p);
    eng_load(p->e, &l);
    assert_false(l.beside);
    finish(p);
}

// Steps of 20.4 ms and a target of 60 ms: all but the margin is used, and no token is late.
static void slices_fit_the_slack(void **state) {
    (void)state;
    struct place *p = place_of(60, 0, 400);
    for (int i = 0; i < 4; i++)
        ask(p, i, 20 + i, 200);
    for (int i = 0; i < 200; i++)
        turn(p);
    forget(p);
    int64_t begin = p->d.clock.mono;
    for (int i = 0; i < 600; i++)
        turn(p);
    double wall = (double)(p->d.clock.mono - begin), share = (double)p->used_ns / wall;
    assert_true(p->gaps > 100);
    assert_int_equal(p->late, 0);
    assert_true(p->longest_gap_ns <= 60 * MS);
    assert_true(share > 0.95 * (60 - 20.4) / 60);
    assert_true(p->longest_ns <= GOV_SLICE_LONGEST_NS);
    struct eng_colocation c;
    eng_colocation(p->e, &c);
    assert_true(c.recent.background_s / c.recent.wall_s > 0.5);
    assert_true(c.recent.serving_s / c.recent.wall_s > 0.3);
    assert_true(c.recent.serving_s + c.recent.background_s <= c.recent.wall_s * 1.0001);
    assert_true(c.recent.gaps.n > 100 && c.recent.gaps.p99_s <= 0.060);
    assert_true(c.recent.slices.p99_s <= 0.005);
    assert_true(fabs(c.slo_itl_s - 0.06) < 1e-9 && fabs(c.slo_ttft_s) < 1e-9);
    finish(p);
}

// Who arrives in the slack waits for one slice, and its prompt does not make the others late.
static void an_arrival_waits_for_one_slice(void **state) {
    (void)state;
    struct place *p = place_of(60, 0, 400);
    for (int i = 0; i < 4; i++)
        ask(p, i, 20, 200);
    for (int i = 0; i < 150; i++)
        turn(p);
    for (int pick = 0; pick < 3; pick++) {
        forget(p);
        int32_t before = p->slices;
        while (p->slices <=
               before + 1 + 4 * pick) // the second, the sixth, the tenth of the gap, or about it
            turn(p);
        int32_t slices = p->slices, steps = atomic_load(&p->d.steps);
        struct client *c = ask(p, 4 + pick, 100, 20);
        turn(p);
        assert_int_equal(p->slices, slices);
        assert_int_equal(atomic_load(&p->d.steps), steps + 1);
        while (!c->choices[0].got) {
            assert_int_equal(p->slices, slices); // the prompt has no target: it comes first
            turn(p);
        }
        assert_int_equal(p->late, 0);
        for (int i = 0; i < 50; i++)
            turn(p);
    }
    finish(p);
}

// A target for first tokens lets prompts wait, too, and holds.
static void a_first_token_comes_in_time(void **state) {
    (void)state;
    struct place *p = place_of(60, 400, 400);
    p->idle = true;
    for (int i = 0; i < 3; i++) // steps of each kind are known
        ask(p, i, 120, 30);
    for (int i = 0; i < 120; i++)
        turn(p);
    for (int i = 0; i < 3; i++) {
        client_release(p->user[i]);
        mem_free(p->user[i]);
        p->user[i] = NULL;
    }
    p->idle = false;
    turn(p);
    forget(p);
    for (int with = 0; with < 2; with++) { // alone, then beside a decode
        int64_t begin = p->d.clock.mono;
        int32_t beside = p->beside;
        struct client *c = ask(p, with, 90, 150);
        while (!c->choices[0].got)
            turn(p);
        assert_true(p->beside > beside + 10);
        assert_true(c->choices[0].first_ns - begin <= 400 * MS);
        for (int i = 0; i < 20; i++)
            turn(p);
    }
    assert_int_equal(p->late, 0);
    finish(p);
}

// Blocks for one of two prompts: the other waits for the first one's end, so that is not delayed.
static void a_request_that_finds_no_room_ends_the_slack(void **state) {
    (void)state;
    struct place *p = place_of(60, 0, 12);
    ask(p, 0, 100, 60);
    for (int i = 0; i < 60; i++)
        turn(p);
    assert_true(p->beside > 0);
    ask(p, 1, 120, 10);
    turn(p);
    forget(p);
    while (!client_done(p->user[0])) {
        turn(p);
        if (!client_done(p->user[0]))
            assert_int_equal(p->beside, 0);
    }
    finish(p);
}

static void overrun_shortens_slices_and_no_token_is_late(void **state) {
    (void)state;
    struct place *p = place_of(60, 0, 400);
    p->overrun_ns = 2 * MS;
    for (int i = 0; i < 4; i++)
        ask(p, i, 20, 200);
    for (int i = 0; i < 300; i++)
        turn(p);
    forget(p);
    for (int i = 0; i < 600; i++)
        turn(p);
    assert_true(p->slices > 100);
    assert_true(p->longest_ns <= GOV_SLICE_MOST_NS);
    assert_true(p->late <= p->gaps / 100);
    finish(p);
}

// Steps that are slower than the target: background work waits for idle time.
static void a_target_that_cannot_be_held_leaves_nothing(void **state) {
    (void)state;
    struct place *p = place_of(15, 0, 200);
    for (int i = 0; i < 4; i++)
        ask(p, i, 20, 60);
    for (int i = 0; i < 50; i++)
        turn(p);
    assert_int_equal(p->slices, 0);
    finish(p);
}

static void urgent_work_gets_a_slice_in_each_turn(void **state) {
    (void)state;
    struct place *p = place_of(0, 0, 200);
    ask(p, 0, 20, 100);
    for (int i = 0; i < 20; i++)
        turn(p);
    assert_int_equal(p->slices, 0);
    p->urgent = true;
    int32_t steps = atomic_load(&p->d.steps);
    for (int i = 0; i < 5; i++)
        turn(p);
    assert_int_equal(p->slices, 5);
    assert_int_equal(atomic_load(&p->d.steps), steps + 5);
    finish(p);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(without_targets_serving_comes_first),
        cmocka_unit_test(slices_fit_the_slack),
        cmocka_unit_test(an_arrival_waits_for_one_slice),
        cmocka_unit_test(a_first_token_comes_in_time),
        cmocka_unit_test(a_request_that_finds_no_room_ends_the_slack),
        cmocka_unit_test(overrun_shortens_slices_and_no_token_is_late),
        cmocka_unit_test(a_target_that_cannot_be_held_leaves_nothing),
        cmocka_unit_test(urgent_work_gets_a_slice_in_each_turn),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

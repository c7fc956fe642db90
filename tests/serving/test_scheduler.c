// SPDX-License-Identifier: Apache-2.0
// The scheduler's decisions by themselves: who is admitted, who gets prefill tokens, who gives way.
#include "base/mem.h"
#include "serving/scheduler.h"
#include "tests/support/cmocka_all.h"
#include <stdlib.h>

enum { MOST = 64 };

struct world {
    struct eng__sched s;
    struct eng__req reqs[MOST];
    struct eng__seq seqs[MOST];
    int32_t n;
};

static struct world *world_new(void) {
    struct world *w = mem_zalloc(sizeof *w);
    assert_non_null(w);
    assert_int_equal(eng__sched_init(&w->s, MOST, MOST), ERR_OK);
    return w;
}

static void world_free(struct world *w) {
    eng__sched_fini(&w->s);
    mem_free(w);
}

static struct eng__seq *arrive(struct world *w, uint64_t tenant, uint64_t version, int32_t tokens,
                               int32_t priority) {
    struct eng__req *q = &w->reqs[w->n];
    struct eng__seq *s = &w->seqs[w->n];
    w->n++;
    *q = (struct eng__req){.choices = s, .n_unended = 1, .arrival = (uint64_t)w->n};
    q->r = (struct eng_request){
        .tenant = tenant, .adapter_version = version, .priority = priority, .n = 1};
    *s = (struct eng__seq){.req = q, .n_tokens = tokens, .state = ENG__QUEUED};
    eng__sched_enter(&w->s, q);
    eng__sched_wait(&w->s, s);
    return s;
}

static void admit(struct world *w, struct eng__seq *s) {
    eng__sched_charge(&w->s, s->req->flow, eng__seq_remaining(s));
    eng__sched_unwait(&w->s, s);
    s->state = ENG__PREFILL;
    eng__sched_run(&w->s, s);
}

static void leave(struct world *w, struct eng__seq *s) {
    eng__sched_stop(&w->s, s);
    s->state = ENG__ENDED;
    eng__sched_leave(&w->s, s->req);
}

static struct eng__seq *admit_next(struct world *w) {
    struct eng__seq *s = eng__sched_next(&w->s);
    assert_ptr_equal(s, eng__sched_next(&w->s)); // asking does not change the answer
    if (s)
        admit(w, s);
    return s;
}

static void tokens_not_requests_are_shared(void **state) {
    (void)state;
    struct world *w = world_new();
    for (int i = 0; i < 40; i++)
        arrive(w, 1, 0, 100, 0); // small ones, and all there first
    for (int i = 0; i < 4; i++)
        arrive(w, 2, 0, 1000, 0);
    int64_t tokens[3] = {0};
    while (tokens[1] + tokens[2] < 4000) {
        struct eng__seq *s = admit_next(w);
        tokens[s->req->r.tenant] += s->n_tokens;
        leave(w, s);
    }
    assert_true(llabs(tokens[1] - tokens[2]) <= 1100); // one request and one quantum
    while (admit_next(w))
        ;
    world_free(w);
}

static void no_adapter_waits_for_another(void **state) {
    (void)state;
    struct world *w = world_new();
    for (int i = 0; i < 30; i++)
        arrive(w, 1, 7, 600, 0);
    arrive(w, 1, 8, 600, 0);
    int32_t before = 0;
    while (admit_next(w)->req->r.adapter_version != 8)
        before++;
    assert_true(before <= 2);
    world_free(w);
}

static void generated_tokens_count(void **state) {
    (void)state;
    struct world *w = world_new();
    struct eng__seq *greedy = arrive(w, 1, 0, 10, 0);
    admit_next(w);
    eng__sched_charge(&w->s, greedy->req->flow, 2000); // it generates a lot
    for (int i = 0; i < 10; i++) {
        arrive(w, 1, 0, 500, 0);
        arrive(w, 2, 0, 500, 0);
    }
    for (int i = 0; i < 4; i++)
        assert_int_equal(admit_next(w)->req->r.tenant, 2);
    world_free(w);
}

static void credit_is_not_saved_up(void **state) {
    (void)state;
    struct world *w = world_new();
    struct eng__seq *stays = arrive(w, 2, 0, 1, 0); // keeps its flow alive
    for (int i = 0; i < 20; i++) {                  // one small request at a time, alone
        arrive(w, 2, 0, 1, 0);
        while (admit_next(w))
            ;
    }
    leave(w, stays);
    for (int i = 0; i < 10; i++) {
        arrive(w, 1, 0, 600, 0);
        arrive(w, 2, 0, 600, 0);
    }
    int32_t first = 0;
    while (admit_next(w)->req->r.tenant == 2)
        first++;
    assert_true(first <= 1);
    world_free(w);
}

static void priority_comes_before_fairness(void **state) {
    (void)state;
    struct world *w = world_new();
    struct eng__seq *low = arrive(w, 1, 0, 10, 3);
    struct eng__seq *second = arrive(w, 2, 0, 10, -2);
    struct eng__seq *first = arrive(w, 2, 0, 10, -5);
    struct eng__seq *third = arrive(w, 3, 0, 10, 0);
    struct eng__seq *order[] = {first, second, third, low};
    for (int i = 0; i < 4; i++)
        assert_ptr_equal(admit_next(w), order[i]);
    assert_null(admit_next(w));
    world_free(w);
}

static void a_preempted_sequence_waits_in_front(void **state) {
    (void)state;
    struct world *w = world_new();
    struct eng__seq *a = arrive(w, 1, 0, 10, 0), *b = arrive(w, 1, 0, 10, 0);
    struct eng__seq *c = arrive(w, 1, 0, 10, 0);
    assert_ptr_equal(admit_next(w), a);
    assert_ptr_equal(admit_next(w), b);
    eng__sched_stop(&w->s, b);
    b->state = ENG__QUEUED;
    eng__sched_wait(&w->s, b);
    b->req->paused = true;
    assert_ptr_equal(eng__sched_next(&w->s), c); // nobody reads b's events
    b->req->paused = false;
    assert_ptr_equal(admit_next(w), b);
    assert_true(b->admitted < 3); // its seniority stays
    assert_ptr_equal(admit_next(w), c);
    world_free(w);
}

static int32_t planned(const struct world *w) {
    int32_t n = 0;
    for (int32_t i = 0; i < w->s.n_running; i++)
        n += w->s.running[i]->planned;
    return n;
}

static void a_budget_goes_half_to_the_oldest_and_half_to_the_shortest(void **state) {
    (void)state;
    struct world *w = world_new();
    struct eng__seq *giant = arrive(w, 1, 0, 4000, 0), *mid = arrive(w, 1, 0, 300, 0);
    struct eng__seq *small = arrive(w, 1, 0, 20, 0);
    while (admit_next(w))
        ;
    eng__sched_plan_prefill(&w->s, (struct eng__budget){100, 0});
    assert_int_equal(giant->planned, 50);
    assert_int_equal(small->planned, 20);
    assert_int_equal(mid->planned, 30);
    eng__sched_plan_prefill(&w->s, (struct eng__budget){10000, 0}); // more than all need
    assert_int_equal(giant->planned, 4000);
    assert_int_equal(mid->planned, 300);
    assert_int_equal(small->planned, 20);
    small->req->paused = true;
    mid->state = ENG__DECODE;
    eng__sched_plan_prefill(&w->s, (struct eng__budget){100, 0});
    assert_int_equal(giant->planned, 100);
    assert_int_equal(planned(w), 100);
    eng__sched_plan_prefill(&w->s, (struct eng__budget){1, 0});
    assert_int_equal(planned(w), 1);
    world_free(w);
}

static void prefill_is_shared_between_tenants(void **state) {
    (void)state;
    struct world *w = world_new();
    for (int i = 0; i < 20; i++)
        arrive(w, 1, 0, 1000, 0);
    struct eng__seq *other = arrive(w, 2, 0, 1000, 0), *urgent = arrive(w, 3, 0, 40, -1);
    while (admit_next(w))
        ;
    int32_t got = 0;
    for (int i = 0; i < 16; i++) {
        eng__sched_plan_prefill(&w->s, (struct eng__budget){100, 0});
        assert_int_equal(planned(w), 100);
        got += other->planned;
        assert_int_equal(urgent->planned, 40); // its priority is served first, each time here
    }
    assert_true(got >= 16 * 60 / 2 - 32 && got <= 16 * 60 / 2 + 32);
    world_free(w);
}

static void the_junior_gives_way(void **state) {
    (void)state;
    struct world *w = world_new();
    struct eng__seq *a = arrive(w, 1, 0, 10, 0), *b = arrive(w, 1, 0, 10, 0);
    struct eng__seq *c = arrive(w, 1, 0, 10, 0), *low = arrive(w, 1, 0, 10, 9);
    while (admit_next(w))
        ;
    assert_ptr_equal(eng__sched_victim(&w->s, a), low); // the lowest priority first
    low->in_batch = true;
    assert_ptr_equal(eng__sched_victim(&w->s, a), c); // then the one admitted last
    assert_ptr_equal(eng__sched_victim(&w->s, b), c);
    assert_null(eng__sched_victim(&w->s, c)); // a and b are senior
    a->req->paused = true;
    assert_ptr_equal(eng__sched_victim(&w->s, c), a); // who is paused has no seniority
    a->req->paused = false;
    low->in_batch = false;
    struct eng__seq *waits = arrive(w, 1, 0, 10, 0);
    assert_ptr_equal(eng__sched_victim(&w->s, waits), low); // only a lower priority
    low->in_batch = true;
    assert_null(eng__sched_victim(&w->s, waits));
    world_free(w);
}

// Whoever waits is admitted within a bounded number of admissions, whatever the others send.
static void nobody_starves(void **state) {
    (void)state;
    struct world *w = world_new();
    for (int i = 0; i < 8; i++)
        for (int k = 0; k < 4; k++)
            arrive(w, (uint64_t)i, 0, 50 << i, 0);
    int32_t last[8] = {0}, worst = 0;
    for (int32_t round = 1; round <= 2000; round++) {
        struct eng__seq *s = admit_next(w);
        uint64_t t = s->req->r.tenant;
        // In tokens: what others got since this tenant's last turn.
        int32_t gap = round - last[t];
        worst = gap > worst ? gap : worst;
        last[t] = round;
        leave(w, s);
        // The same request comes again.
        s->req->arrival = (uint64_t)(round + MOST);
        s->state = ENG__QUEUED;
        s->admitted = 0;
        eng__sched_enter(&w->s, s->req);
        eng__sched_wait(&w->s, s);
    }
    assert_true(worst < 300);
    world_free(w);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tokens_not_requests_are_shared),
        cmocka_unit_test(no_adapter_waits_for_another),
        cmocka_unit_test(generated_tokens_count),
        cmocka_unit_test(credit_is_not_saved_up),
        cmocka_unit_test(priority_comes_before_fairness),
        cmocka_unit_test(a_preempted_sequence_waits_in_front),
        cmocka_unit_test(a_budget_goes_half_to_the_oldest_and_half_to_the_shortest),
        cmocka_unit_test(prefill_is_shared_between_tenants),
        cmocka_unit_test(the_junior_gives_way),
        cmocka_unit_test(nobody_starves),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

// SPDX-License-Identifier: Apache-2.0
// The event loop's posts (order, wake-ups, stop) and the queues of deadlines.
#include "base/mem.h"
#include "gateway/deadline.h"
#include "gateway/loop.h"
#include "tests/support/cmocka_all.h"
#include "tests/support/wait.h"
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>

enum { SENDERS = 4, POSTS = 20000 };

struct loop_test {
    struct gw_loop loop;
    _Atomic int turns;
    int stopping, late; // late: posts that ran after `stopping`
    int next[SENDERS];
    bool in_order;
};

static void on_turn(void *arg) {
    struct loop_test *t = arg;
    t->turns++;
}

static void on_stopping(void *arg) {
    struct loop_test *t = arg;
    t->stopping++;
}

static const struct gw_loop_hooks hooks = {.turn = on_turn, .stopping = on_stopping};

struct sender {
    struct loop_test *test;
    int index;
    struct post {
        struct loop_test *test;
        int sender, number;
    } posts[POSTS];
};

static void on_post(void *arg) {
    const struct post *p = arg;
    struct loop_test *t = p->test;
    t->in_order = t->in_order && t->next[p->sender] == p->number;
    t->next[p->sender] = p->number + 1;
    t->late += t->stopping > 0;
}

static void *send_posts(void *arg) {
    struct sender *s = arg;
    for (int i = 0; i < POSTS; i++) {
        s->posts[i] = (struct post){s->test, s->index, i};
        assert_true(gw_loop_post(&s->test->loop, on_post, &s->posts[i]));
    }
    return NULL;
}

static void test_posts(void **state) {
    (void)state;
    struct loop_test t = {.in_order = true};
    struct sender *senders = calloc(SENDERS, sizeof *senders);
    pthread_t threads[SENDERS];
    assert_non_null(senders);
    assert_int_equal(gw__loop_init(&t.loop, &hooks, &t, NULL), ERR_OK);
    // Posted before the thread runs: not lost.
    struct post early = {&t, 0, 0};
    assert_true(gw_loop_post(&t.loop, on_post, &early));
    assert_int_equal(gw__loop_start(&t.loop, "test", NULL), ERR_OK);
    wait_until(t.turns > 0);
    t.next[0] = 0;
    for (int i = 0; i < SENDERS; i++) {
        senders[i] = (struct sender){.test = &t, .index = i};
        assert_int_equal(pthread_create(&threads[i], NULL, send_posts, &senders[i]), 0);
    }
    for (int i = 0; i < SENDERS; i++)
        pthread_join(threads[i], NULL);
    gw__loop_stop(&t.loop); // what was accepted is still run
    assert_false(gw_loop_post(&t.loop, on_post, &early));
    gw__loop_join(&t.loop);
    assert_true(t.in_order);
    for (int i = 0; i < SENDERS; i++)
        assert_int_equal(t.next[i], POSTS);
    assert_int_equal(t.stopping, 1);
    assert_int_equal(t.late, 0);
    gw__loop_fini(&t.loop);
    assert_int_equal(mem_live_blocks(), 0);
    free(senders);
}

struct item {
    struct gw_deadline deadline;
    struct gw_deadline_queue *again;
    int expired;
};

static void on_expired(struct gw_deadline *d) {
    struct item *i = (struct item *)d;
    assert_null(d->queue);
    i->expired++;
    if (i->again)
        gw__deadline_set(i->again, d, d->at);
}

static void test_deadlines(void **state) {
    (void)state;
    struct gw_deadline_queue q, slow;
    struct item a = {0}, b = {0}, c = {0};
    gw__deadline_queue_init(&q, 100, on_expired);
    gw__deadline_queue_init(&slow, 1000, on_expired);
    assert_true(gw__deadline_run(&q, 0) == INT64_MAX);
    gw__deadline_clear(&a.deadline);
    gw__deadline_set(&q, &a.deadline, 0);
    gw__deadline_set(&q, &b.deadline, 10);
    gw__deadline_set(&q, &c.deadline, 20);
    assert_true(gw__deadline_run(&q, 99) == 100);
    assert_int_equal(a.expired, 0);
    gw__deadline_set(&q, &a.deadline, 50); // put off: now the last
    assert_true(gw__deadline_run(&q, 119) == 120);
    assert_int_equal(b.expired, 1);
    assert_int_equal(c.expired, 0);
    gw__deadline_clear(&c.deadline);
    a.again = &slow; // set again from its own expiry, in another queue
    assert_true(gw__deadline_run(&q, 1000) == INT64_MAX);
    assert_int_equal(a.expired, 1);
    assert_int_equal(c.expired, 0);
    a.again = NULL;
    assert_true(gw__deadline_run(&slow, 1149) == 1150);
    assert_true(gw__deadline_run(&slow, 1150) == INT64_MAX);
    assert_int_equal(a.expired, 2);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_posts),
        cmocka_unit_test(test_deadlines),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

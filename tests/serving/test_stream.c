// SPDX-License-Identifier: Apache-2.0
// The event ring by itself: what goes in comes out, and two threads that sleep whenever they may
// never both sleep. A lost wake or a lost call for attention shows as a time-out.
#include "base/mem.h"
#include "serving/stream.h"
#include "tests/support/cmocka_all.h"
#include "tests/support/wait.h"
#include <sched.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct ring {
    struct eng_stream *s;
    struct mailbox *m;
    sem_t news;
    int wakes;
};

static void on_wake(void *arg, struct eng_stream *s) {
    struct ring *r = arg;
    (void)s;
    r->wakes++;
    sem_post(&r->news);
}

static void open_ring(struct ring *r, int32_t n, bool scores, int32_t n_top) {
    memset(r, 0, sizeof *r);
    sem_init(&r->news, 0, 0);
    assert_int_equal(mailbox_create(4, 4, &r->m), ERR_OK);
    uint32_t cap = eng__stream_capacity(n, scores), element = eng__stream_element(n_top);
    size_t at = sizeof *r->s + (size_t)n * sizeof(_Atomic bool);
    at = (at + 15) / 16 * 16;
    char *memory = mem_zalloc(at + (size_t)cap * element);
    assert_non_null(memory);
    r->s = (struct eng_stream *)(void *)memory;
    struct eng_request q = {.n = n, .wake = on_wake, .wake_arg = r};
    eng__stream_init(r->s, r->m, &q, memory + at, cap, element,
                     (_Atomic bool *)(void *)(memory + sizeof *r->s));
}

static void close_ring(struct ring *r) {
    eng_stream_release(r->s);
    eng__stream_unref(r->s);
    while (mailbox_take(r->m))
        ;
    mailbox_destroy(r->m);
    sem_destroy(&r->news);
}

static struct eng_event token(int32_t i, int32_t n_top) {
    struct eng_event ev = {.type = ENG_EVENT_TOKEN,
                           .choice = i % 7,
                           .index = i,
                           .token = i * 3,
                           .logprob = (float)-i / 2,
                           .rank = i + 1,
                           .n_top = n_top};
    for (int32_t t = 0; t < n_top; t++) {
        ev.top_id[t] = i + t;
        ev.top_logprob[t] = (float)(i - t);
    }
    return ev;
}

static void events_come_out_as_they_went_in(void **state) {
    (void)state;
    struct ring r;
    open_ring(&r, 8, false, 20);
    struct eng_event ev;
    assert_false(eng_stream_next(r.s, &ev));
    for (int32_t i = 0; i < 1000; i++) { // round and round
        struct eng_event in = token(i, i % 21);
        eng__stream_push(r.s, &in);
        if (i % 3)
            continue;
        eng__stream_flush(r.s, false);
        for (int32_t k = i < 3 ? 0 : i - 2; k <= i; k++) {
            struct eng_event want = token(k, k % 21);
            assert_true(eng_stream_next(r.s, &ev));
            assert_int_equal(ev.type, want.type);
            assert_int_equal(ev.choice, want.choice);
            assert_int_equal(ev.index, want.index);
            assert_int_equal(ev.token, want.token);
            assert_int_equal(ev.rank, want.rank);
            assert_true(ev.logprob == want.logprob);
            assert_int_equal(ev.n_top, want.n_top);
            for (int32_t t = 0; t < ev.n_top; t++)
                assert_true(ev.top_id[t] == want.top_id[t] &&
                            ev.top_logprob[t] == want.top_logprob[t]);
        }
        assert_false(eng_stream_next(r.s, &ev));
    }
    struct eng_event end = {.type = ENG_EVENT_END,
                            .choice = 5,
                            .finish = ENG_FINISH_ERROR,
                            .stop_id = 42,
                            .n_tokens = 17,
                            .error = ERR_NONFINITE};
    eng__stream_push(r.s, &end);
    assert_true(eng_stream_next(r.s, &ev));
    assert_int_equal(ev.type, ENG_EVENT_END);
    assert_int_equal(ev.choice, 5);
    assert_int_equal(ev.finish, ENG_FINISH_ERROR);
    assert_int_equal(ev.stop_id, 42);
    assert_int_equal(ev.n_tokens, 17);
    assert_int_equal(ev.error, ERR_NONFINITE);
    close_ring(&r);
}

static void wakes_are_coalesced(void **state) {
    (void)state;
    struct ring r;
    open_ring(&r, 1, false, 0);
    struct eng_event ev, in = token(1, 0);
    for (int i = 0; i < 5; i++) {
        eng__stream_push(r.s, &in);
        eng__stream_flush(r.s, false);
    }
    assert_int_equal(r.wakes, 1); // the consumer has not looked since
    while (eng_stream_next(r.s, &ev))
        ;
    eng__stream_push(r.s, &in);
    eng__stream_flush(r.s, false);
    assert_int_equal(r.wakes, 2);
    eng__stream_flush(r.s, true);
    assert_int_equal(r.wakes, 3); // the last one in any case
    eng_stream_release(r.s);
    eng__stream_flush(r.s, true);
    assert_int_equal(r.wakes, 3); // and none after release
    eng__stream_unref(r.s);
    while (mailbox_take(r.m))
        ;
    mailbox_destroy(r.m);
}

static void room_is_kept_for_each_end(void **state) {
    (void)state;
    struct ring r;
    open_ring(&r, 10, false, 0);
    int32_t cap = (int32_t)eng__stream_capacity(10, false);
    struct eng_event in = token(1, 0), ev;
    for (int32_t room = cap - 10; room > 0; room--) {
        assert_int_equal(eng__stream_room(r.s, 10), room);
        eng__stream_push(r.s, &in);
    }
    assert_int_equal(eng__stream_room(r.s, 10), 0);
    assert_true(eng__stream_block(r.s));
    assert_null(mailbox_take(r.m));
    for (int32_t i = cap - 10; i > cap / 2; i--)
        assert_true(eng_stream_next(r.s, &ev));
    struct eng__msg *msg = mailbox_take(r.m); // half empty: it calls, once
    assert_non_null(msg);
    assert_int_equal(msg->kind, ENG__MSG_ATTENTION);
    assert_true(eng_stream_next(r.s, &ev));
    assert_null(mailbox_take(r.m));
    assert_false(eng__stream_block(r.s));
    for (int32_t n = 1; n <= ENG_MAX_CHOICES; n++) // rule 20
        assert_true((int32_t)eng__stream_capacity(n, false) / 2 - n >= n);
    close_ring(&r);
}

// So many events pass between two threads; fewer where the machine is so loaded that each waits for
// a processor. An END is the last.
enum { HAMMER = 60000, HAMMER_LEAST = 500, HAMMER_S = 10 };

static bool hammer_more(int32_t i, int64_t until_s) {
    return i < HAMMER_LEAST || (i < HAMMER && wait_now_s() < until_s);
}

static void push_end(struct ring *r) {
    const struct eng_event end = {.type = ENG_EVENT_END};
    eng__stream_push(r->s, &end);
    eng__stream_flush(r->s, false); // wakes who sleeps, as after a token
}

// Reads until the END.
static void take_all(struct ring *r, int32_t rest_every) {
    struct eng_event ev = {.type = ENG_EVENT_TOKEN};
    for (int32_t i = 0; ev.type != ENG_EVENT_END;) {
        wait_post(&r->news); // a lost wake ends the program
        while (eng_stream_next(r->s, &ev) && ev.type != ENG_EVENT_END) {
            assert_int_equal(ev.index, i);
            if (i++ % rest_every == 0)
                nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
        }
    }
}

static void *produce(void *arg) {
    struct ring *r = arg;
    int64_t until_s = wait_now_s() + HAMMER_S;
    for (int32_t i = 0; hammer_more(i, until_s);) {
        if (eng__stream_room(r->s, 1) < 1 && eng__stream_block(r->s)) {
            if (!mailbox_wait(r->m, 60000000000)) {
                fprintf(stderr, "no call for attention came\n");
                abort();
            }
            assert_non_null(mailbox_take(r->m));
            atomic_store(&r->s->attention, false);
            atomic_store(&r->s->blocked, false);
            continue;
        }
        struct eng_event in = token(i++, 0);
        eng__stream_push(r->s, &in);
        // The other side gets time to go to sleep, often.
        if (i % 4)
            eng__stream_flush(r->s, false);
        for (volatile int spin = 0; spin < (i % 64) * 8; spin = spin + 1)
            ;
    }
    push_end(r);
    return NULL;
}

static void two_threads_never_both_sleep(void **state) {
    (void)state;
    struct ring r;
    open_ring(&r, 1, false, 0);
    struct thread t;
    assert_int_equal(thread_start(&t, "produce", produce, &r), ERR_OK);
    take_all(&r, 5000); // the ring fills up while it rests
    thread_join(&t);
    close_ring(&r);
}

// One event at a time, the next one as soon as the last was read: just when the consumer is about
// to find the ring empty.
static void *serve_balls(void *arg) {
    struct ring *r = arg;
    int32_t full = eng__stream_room(r->s, 0);
    int64_t until_s = wait_now_s() + HAMMER_S;
    for (int32_t i = 0; hammer_more(i, until_s); i++) {
        struct eng_event in = token(i, 0);
        eng__stream_push(r->s, &in);
        eng__stream_flush(r->s, false);
        for (int32_t spin = 0; eng__stream_room(r->s, 0) < full; spin++)
            if (spin > 100)
                sched_yield();
    }
    push_end(r);
    return NULL;
}

static void a_single_event_is_never_left_lying(void **state) {
    (void)state;
    struct ring r;
    open_ring(&r, 1, false, 0);
    struct thread t;
    assert_int_equal(thread_start(&t, "serve", serve_balls, &r), ERR_OK);
    take_all(&r, INT32_MAX);
    thread_join(&t);
    close_ring(&r);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(events_come_out_as_they_went_in),
        cmocka_unit_test(wakes_are_coalesced),
        cmocka_unit_test(room_is_kept_for_each_end),
        cmocka_unit_test(a_single_event_is_never_left_lying),
        cmocka_unit_test(two_threads_never_both_sleep),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

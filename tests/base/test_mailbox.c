// SPDX-License-Identifier: Apache-2.0
#include "base/mailbox.h"
#include "base/mem.h"
#include "base/thread.h"
#include "tests/support/cmocka_all.h"

enum { SENDERS = 4, MESSAGES = 20000 };

static void test_bounds_and_reserve(void **state) {
    (void)state;
    struct mailbox *m;
    int x[4];
    assert_int_equal(mailbox_create(2, 1, &m), ERR_OK);
    assert_null(mailbox_take(m));
    assert_int_equal(mailbox_send(m, &x[0]), ERR_OK);
    assert_int_equal(mailbox_send(m, &x[1]), ERR_OK);
    assert_int_equal(mailbox_send(m, &x[2]), ERR_AGAIN);
    assert_int_equal(mailbox_send_urgent(m, &x[2]), ERR_OK);
    assert_int_equal(mailbox_send_urgent(m, &x[3]), ERR_AGAIN);
    assert_int_equal(mailbox_count(m), 3);
    for (int i = 0; i < 3; i++)
        assert_ptr_equal(mailbox_take(m), &x[i]);
    assert_null(mailbox_take(m));
    assert_false(mailbox_wait(m, 1000000));
    mailbox_wake(m);
    assert_false(mailbox_wait(m, -1)); // woken without a message
    mailbox_destroy(m);
    assert_int_equal(mem_live_blocks(), 0);
}

struct sender {
    struct mailbox *box;
    struct thread thread;
    uintptr_t first;
};

static void *send_all(void *arg) {
    struct sender *s = arg;
    for (uintptr_t i = 0; i < MESSAGES; i++)
        while (mailbox_send(s->box, (void *)(s->first + i)) == ERR_AGAIN)
            sched_yield();
    return NULL;
}

static void test_order_per_sender(void **state) {
    (void)state;
    struct mailbox *m;
    struct sender s[SENDERS];
    uintptr_t next[SENDERS] = {0};
    assert_int_equal(mailbox_create(64, 4, &m), ERR_OK);
    for (uintptr_t i = 0; i < SENDERS; i++) {
        s[i] = (struct sender){.box = m, .first = (i + 1) << 32};
        assert_int_equal(thread_start(&s[i].thread, "sender", send_all, &s[i]), ERR_OK);
    }
    for (int got = 0; got < SENDERS * MESSAGES;) {
        mailbox_wait(m, -1);
        for (void *msg; (msg = mailbox_take(m)); got++) {
            uintptr_t v = (uintptr_t)msg, from = (v >> 32) - 1;
            assert_true(from < SENDERS);
            assert_int_equal(v & 0xffffffff, next[from]++);
        }
    }
    for (int i = 0; i < SENDERS; i++)
        thread_join(&s[i].thread);
    mailbox_destroy(m);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bounds_and_reserve),
        cmocka_unit_test(test_order_per_sender),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

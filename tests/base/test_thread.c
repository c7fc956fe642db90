// SPDX-License-Identifier: Apache-2.0
// What a thread asks of the kernel's scheduler, seen with the kernel's own eyes.
#include "base/thread.h"
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>
// cmocka.h needs some of the above
#include <cmocka.h>

struct attr { // sched_getattr(2)
    uint32_t size, policy;
    uint64_t flags;
    int32_t nice;
    uint32_t priority;
    uint64_t runtime, deadline, period;
};

static struct attr attr_of_this_thread(void) {
    struct attr a = {0};
    assert_int_equal(syscall(SYS_sched_getattr, 0, &a, sizeof a, 0), 0);
    return a;
}

struct seen {
    struct attr before, after;
};

static void *ask(void *arg) {
    struct seen *s = arg;
    (void)setpriority(PRIO_PROCESS, 0, 3); // Linux: of this thread
    s->before = attr_of_this_thread();
    thread_wake_soon();
    s->after = attr_of_this_thread();
    return NULL;
}

static struct seen ask_in_a_thread(void) {
    struct seen s;
    struct thread t;
    assert_int_equal(thread_start(&t, "a name that is too long", ask, &s), ERR_OK);
    thread_join(&t);
    return s;
}

static void waking_soon_shortens_the_slice_only(void **state) {
    (void)state;
    struct seen s = ask_in_a_thread();
    assert_int_equal(s.after.policy, s.before.policy);
    assert_int_equal(s.after.nice, s.before.nice);
    // Kernels before 6.12 have no slice to ask for and show 0.
    if (s.before.policy == SCHED_OTHER && s.before.runtime)
        assert_true(s.after.runtime < s.before.runtime);
    else
        assert_int_equal(s.after.runtime, s.before.runtime);
}

static void other_threads_are_left_alone(void **state) {
    (void)state;
    struct attr before = attr_of_this_thread();
    (void)ask_in_a_thread();
    struct attr after = attr_of_this_thread();
    assert_int_equal(after.runtime, before.runtime);
    assert_int_equal(after.nice, before.nice);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(waking_soon_shortens_the_slice_only),
        cmocka_unit_test(other_threads_are_left_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

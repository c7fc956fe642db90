// SPDX-License-Identifier: Apache-2.0
#include "base/io_pool.h"
#include "base/mem.h"
#include "tests/support/cmocka_all.h"
#include <stdatomic.h>
#include <sys/resource.h>
#include <time.h>

struct work {
    struct io_job job;
    struct io_pool *pool;
    _Atomic int *ran;
    const _Atomic bool *go; // NULL: at once
    int again;              // submits itself so many times
};

static void run(struct io_job *job) {
    struct work *w = (struct work *)(void *)job;
    while (w->go && !atomic_load(w->go))
        nanosleep(&(struct timespec){.tv_nsec = 200000}, NULL);
    atomic_fetch_add(w->ran, 1);
    if (w->again-- > 0)
        io_pool_go_on(w->pool, &w->job);
}

static void test_all_run(void **state) {
    (void)state;
    enum { N = 200 };
    static struct work works[N];
    _Atomic int ran = 0;
    struct io_pool *p;
    assert_int_equal(io_pool_create(3, 1000, &p), ERR_OK);
    for (int i = 0; i < N; i++) {
        works[i] = (struct work){{.run = run}, p, &ran, NULL, i % 3};
        assert_int_equal(io_pool_submit(p, &works[i].job), ERR_OK);
    }
    io_pool_destroy(p); // waits for all, and for what they submit
    int want = N;
    for (int i = 0; i < N; i++)
        want += i % 3;
    assert_int_equal(ran, want);
}

struct asked {
    struct io_job job;
    int priority;
    bool paced;
};

static void ask_priority(struct io_job *job) {
    struct asked *a = (struct asked *)(void *)job;
    a->priority = getpriority(PRIO_PROCESS, 0); // of this thread
    a->paced = job->pace != NULL;
    for (int i = 0; i < 3; i++)
        pace_point(job->pace);
}

static void count(void *arg) {
    ++*(int *)arg;
}

static void test_gentle(void **state) {
    (void)state;
    struct asked a[2] = {{.job.run = ask_priority}, {.job.run = ask_priority}};
    int rests = 0;
    const struct io_gentle how = {.burst_ns = 0, .rest = count, .arg = &rests};
    for (int i = 0; i < 2; i++) {
        struct io_pool *p;
        enum err e = i ? io_pool_create_gentle(1, 2, &how, &p) : io_pool_create(1, 2, &p);
        assert_int_equal(e, ERR_OK);
        assert_int_equal(io_pool_submit(p, &a[i].job), ERR_OK);
        io_pool_destroy(p);
    }
    assert_false(a[0].paced);
    assert_true(a[1].paced);
    assert_int_equal(rests, 3); // each burst is over at once
    int own = getpriority(PRIO_PROCESS, 0);
    assert_int_equal(a[0].priority, own);
    assert_true(a[1].priority > own || own >= 19); // 19 is the lowest that there is
}

static void test_full(void **state) {
    (void)state;
    _Atomic int ran = 0;
    _Atomic bool go = false;
    struct io_pool *p;
    struct work works[5];
    assert_int_equal(io_pool_create(1, 2, &p), ERR_OK);
    for (int i = 0; i < 5; i++)
        works[i] = (struct work){{.run = run}, p, &ran, &go, 0};
    int taken = 0;
    while (taken < 3) // one runs (perhaps not yet), two wait
        if (io_pool_submit(p, &works[taken].job) == ERR_OK)
            taken++;
        else
            nanosleep(&(struct timespec){.tv_nsec = 200000}, NULL);
    assert_int_equal(io_pool_submit(p, &works[3].job), ERR_AGAIN);
    io_pool_go_on(p, &works[4].job);
    atomic_store(&go, true);
    io_pool_destroy(p);
    assert_int_equal(ran, 4);
    io_pool_destroy(NULL);
}

static void test_no_memory(void **state) {
    (void)state;
    struct io_pool *p;
    mem_fail_after(1, false);
    assert_int_equal(io_pool_create(2, 2, &p), ERR_NOMEM);
    mem_fail_after(0, false);
    assert_null(p);
    assert_int_equal(mem_live_blocks(), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_run),
        cmocka_unit_test(test_gentle),
        cmocka_unit_test(test_full),
        cmocka_unit_test(test_no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

// SPDX-License-Identifier: Apache-2.0
#include "base/gate.h"
#include "base/mem.h"
#include "base/pool.h"
#include "base/thread.h"
#include "tests/support/cmocka_all.h"
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>
#include <time.h>

static struct pool *make(int threads) {
    struct pool_config cfg = {.threads = threads};
    struct pool *p;
    assert_int_equal(pool_create(&cfg, &p, NULL), ERR_OK);
    assert_int_equal(pool_threads(p), threads);
    return p;
}

static void rest_us(long us) {
    struct timespec t = {0, us * 1000};
    nanosleep(&t, NULL);
}

struct count {
    int calls[POOL_MAX_THREADS]; // of each thread; each writes its own
    int nt;
    long pause_us; // of thread 1
};

static void count_call(void *arg, int tid, int nt) {
    struct count *c = arg;
    c->calls[tid]++;
    if (tid == 0)
        c->nt = nt;
    if (tid == 1 && c->pause_us)
        rest_us(c->pause_us);
}

static void test_every_thread_once(void **state) {
    (void)state;
    for (int threads = 1; threads <= 6; threads++) {
        struct pool *p = make(threads);
        struct count c = {0};
        for (int run = 1; run <= 300; run++) {
            if (run % 100 == 0)
                rest_us(500); // the workers are asleep by now
            pool_run(p, count_call, &c);
            for (int t = 0; t < threads; t++)
                assert_int_equal(c.calls[t], run);
        }
        assert_int_equal(c.nt, threads);
        pool_destroy(p);
    }
}

struct shared {
    _Atomic int next, done;
    int total;
    _Atomic int entered; // calls of fn in this run
    _Atomic int inside;
};

static void claim_all(void *arg, int tid, int nt) {
    (void)nt;
    struct shared *s = arg;
    atomic_fetch_add(&s->inside, 1);
    if (tid != 0 || s->total)
        atomic_fetch_add(&s->entered, 1);
    while (atomic_fetch_add(&s->next, 1) < s->total)
        atomic_fetch_add(&s->done, 1);
    atomic_fetch_sub(&s->inside, 1);
}

// Whoever comes: the work is done once, no thread is in two runs, none is inside afterwards.
static void test_share(void **state) {
    (void)state;
    for (int threads = 1; threads <= 4; threads++) {
        struct pool *p = make(threads);
        for (int run = 0; run < 2000; run++) {
            struct shared s = {.total = run % 50};
            pool_share(p, claim_all, &s);
            assert_int_equal(s.done, s.total);
            assert_int_equal(s.inside, 0);
            assert_true(s.entered <= threads);
            memset(&s, 0xee, sizeof s); // a straggler would trip over this
        }
        pool_destroy(p);
    }
}

// Runs of both kinds in turn, with different functions.
static void test_mixed(void **state) {
    (void)state;
    struct pool *p = make(3);
    struct count c = {.pause_us = 20};
    for (int run = 1; run <= 200; run++) {
        struct shared s = {.total = 5};
        pool_share(p, claim_all, &s);
        assert_int_equal(s.done, 5);
        pool_run(p, count_call, &c);
        for (int t = 0; t < 3; t++)
            assert_int_equal(c.calls[t], run);
    }
    pool_destroy(p);
}

struct caller {
    struct pool *p;
    int wrong;
};

static void *call_from_thread(void *arg) {
    struct caller *c = arg;
    for (int run = 0; run < 300; run++) {
        struct shared s = {.total = 20};
        pool_share(c->p, claim_all, &s);
        c->wrong += s.done != 20;
    }
    return NULL;
}

static void test_two_callers(void **state) {
    (void)state;
    struct pool *p = make(3);
    struct caller c[2] = {{p, 0}, {p, 0}};
    struct thread t[2];
    for (int i = 0; i < 2; i++)
        assert_int_equal(thread_start(&t[i], "caller", call_from_thread, &c[i]), ERR_OK);
    for (int i = 0; i < 2; i++) {
        thread_join(&t[i]);
        assert_int_equal(c[i].wrong, 0);
    }
    pool_destroy(p);
}

static void test_config(void **state) {
    (void)state;
    struct pool *p;
    struct err_info info = {0};
    struct pool_config bad = {.threads = 0};
    assert_int_equal(pool_create(&bad, &p, &info), ERR_INVALID);
    assert_null(p);
    assert_string_equal(info.param, "threads");
    bad.threads = POOL_MAX_THREADS + 1;
    assert_int_equal(pool_create(&bad, &p, &info), ERR_INVALID);
    // CPUs that do not exist: the threads run where they may.
    const int nowhere[] = {1022, 1023, -1};
    struct pool_config cfg = {.threads = 3, .cpus = nowhere, .n_cpus = 3, .one_cpu_each = true};
    assert_int_equal(pool_create(&cfg, &p, &info), ERR_OK);
    struct count c = {0};
    pool_run(p, count_call, &c);
    assert_int_equal(c.calls[2], 1);
    pool_destroy(p);
    mem_fail_after(1, false);
    assert_int_equal(pool_create(&cfg, &p, &info), ERR_NOMEM);
    mem_fail_after(0, false);
    pool_destroy(NULL);
}

static void note_cpus(void *arg, int tid, int nt) {
    (void)nt;
    cpu_set_t *sets = arg;
    sched_getaffinity(0, sizeof sets[tid], &sets[tid]);
}

static void test_pinning(void **state) {
    (void)state;
    cpu_set_t own, sets[4];
    assert_int_equal(sched_getaffinity(0, sizeof own, &own), 0);
    int cpus[4], n = 0;
    for (int c = 0; c < CPU_SETSIZE && n < 4; c++)
        if (CPU_ISSET((size_t)c, &own))
            cpus[n++] = c;
    for (int each = 0; each < 2; each++) {
        struct pool_config cfg = {
            .threads = 4, .cpus = cpus, .n_cpus = n, .one_cpu_each = each == 1};
        struct pool *p;
        assert_int_equal(pool_create(&cfg, &p, NULL), ERR_OK);
        pool_run(p, note_cpus, sets);
        for (int t = 1; t < 4; t++) {
            assert_int_equal(CPU_COUNT(&sets[t]), each ? 1 : n);
            assert_true(CPU_ISSET((size_t)cpus[t % n], &sets[t]));
        }
        pool_destroy(p);
    }
}

static void *open_later(void *arg) {
    rest_us(2000);
    gate_set(arg, 5);
    return NULL;
}

static void test_gate(void **state) {
    (void)state;
    static struct gate g;
    for (int spins = 0; spins <= 100000; spins += 100000) {
        struct thread t;
        atomic_store(&g.word, 0);
        assert_int_equal(thread_start(&t, "opener", open_later, &g), ERR_OK);
        gate_wait(&g, 0, spins);
        assert_int_equal(g.word, 5);
        thread_join(&t);
        gate_wait(&g, 4, 0); // another value: no waiting
        assert_int_equal(g.sleepers, 0);
    }
    assert_in_range(gate_spins(), 100, 30000);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_thread_once),
        cmocka_unit_test(test_share),
        cmocka_unit_test(test_mixed),
        cmocka_unit_test(test_two_callers),
        cmocka_unit_test(test_config),
        cmocka_unit_test(test_pinning),
        cmocka_unit_test(test_gate),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

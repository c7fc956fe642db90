// SPDX-License-Identifier: Apache-2.0
// The queue: order, sharing, sticky errors, copies, failing allocations; the device's memory; the
// refusal of missing operations by name.
#include "base/mem.h"
#include "kernels/cpu/cpu_device.h"
#include "kn_fixture.h"
#include <sched.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>

struct add { // adds 1 to each of n counters, and notes the order of commands
    _Atomic int *counters;
    int32_t n;
    _Atomic int *log;
    _Atomic int *logged;
    int name;
};

static void run_add(const void *params, struct cpu_task *t) {
    const struct add *a = params;
    for (int32_t i; cpu_claim(t, a->n, &i);) {
        atomic_fetch_add(&a->counters[i], 1);
        if (i == 0)
            a->log[atomic_fetch_add(a->logged, 1)] = a->name;
    }
}

static void test_order_and_sharing(void **state) {
    (void)state;
    enum { COMMANDS = 500, MOST = 700 };
    for (int threads = 1; threads <= 4; threads++) {
        struct kn_fixture f;
        kn_fixture_open(&f, NULL, threads);
        static _Atomic int counters[MOST], log[COMMANDS];
        for (int round = 0; round < 20; round++) {
            memset(counters, 0, sizeof counters);
            _Atomic int logged = 0;
            int total = 0;
            for (int c = 0; c < COMMANDS; c++) {
                struct add a = {counters, 1 + c % MOST, log, &logged, c};
                assert_int_equal(cpu_record(f.q, run_add, &a, sizeof a), ERR_OK);
                total += a.n;
            }
            kn_test_wait(&f);
            assert_int_equal(logged, COMMANDS);
            for (int c = 0; c < COMMANDS; c++)
                assert_int_equal(log[c], c);
            for (int i = 0; i < MOST; i++)
                total -= counters[i];
            assert_int_equal(total, 0);
        }
        kn_fixture_close(&f);
    }
}

// Work that is taken with affinity: every unit once, by whomever, in two phases.
struct take {
    _Atomic int *units, *foreign; // foreign: units that were taken from another's share
    int32_t total, grain;
};

static void take_phase(const struct take *p, struct cpu_task *t) {
    struct cpu_work w = {.total = p->total, .grain = p->grain};
    for (int32_t at, n; cpu_take(t, &w, &at, &n);)
        for (int32_t i = at; i < at + n; i++) {
            atomic_fetch_add(&p->units[i], 1);
            int64_t first = (int64_t)p->total * t->tid / t->nt;
            int64_t end = (int64_t)p->total * (t->tid + 1) / t->nt;
            if (i < first || i >= end)
                atomic_fetch_add(p->foreign, 1);
        }
}

static void run_take(const void *params, struct cpu_task *t) {
    take_phase(params, t);
    cpu_barrier(t);
    take_phase(params, t);
}

static void test_take(void **state) {
    (void)state;
    enum { MOST = 1000 };
    for (int threads = 1; threads <= 5; threads++) {
        struct kn_fixture f;
        kn_fixture_open(&f, NULL, threads);
        static _Atomic int units[MOST];
        for (int round = 0; round < 300; round++) {
            memset(units, 0, sizeof units);
            _Atomic int foreign = 0;
            struct take a = {units, &foreign, 1 + round * 7 % MOST, 1 + round % 3};
            struct take b = {units, &foreign, a.total, 1};
            assert_int_equal(cpu_record(f.q, run_take, &a, sizeof a), ERR_OK);
            assert_int_equal(cpu_record(f.q, run_take, &b, sizeof b), ERR_OK);
            kn_test_wait(&f);
            for (int i = 0; i < a.total; i++)
                assert_int_equal(units[i], 4);
        }
        kn_fixture_close(&f);
    }
}

// A thread that does not do its own share is helped: with one thread in all of the command, too.
static void test_take_helps(void **state) {
    (void)state;
    struct kn_fixture f;
    kn_fixture_open(&f, NULL, 2);
    for (int round = 0; round < 200; round++) {
        _Atomic int units[64] = {0}, foreign = 0;
        struct take a = {units, &foreign, 64, 1};
        if (round % 4 == 0) { // let the worker fall asleep: it will come late
            struct timespec t = {0, 300000};
            nanosleep(&t, NULL);
        }
        assert_int_equal(cpu_record(f.q, run_take, &a, sizeof a), ERR_OK);
        kn_test_wait(&f);
        for (int i = 0; i < 64; i++)
            assert_int_equal(units[i], 2);
    }
    kn_fixture_close(&f);
}

// Two phases: what was claimed before the barrier is done after it.
struct phases {
    _Atomic int *first, *wrong;
    int32_t n;
};

static void run_phases(const void *params, struct cpu_task *t) {
    const struct phases *p = params;
    for (int phase = 0; phase < 3; phase++) {
        for (int32_t i; cpu_claim(t, p->n, &i);) {
            for (int32_t j = 0; j < p->n; j++)
                if (p->first[j] < phase || p->first[j] > phase + 1)
                    atomic_fetch_add(p->wrong, 1);
            atomic_fetch_add(&p->first[i], 1);
        }
        if (phase < 2)
            cpu_barrier(t);
    }
}

static void test_phases(void **state) {
    (void)state;
    for (int threads = 1; threads <= 4; threads++) {
        struct kn_fixture f;
        kn_fixture_open(&f, NULL, threads);
        for (int round = 0; round < 300; round++) {
            _Atomic int first[32] = {0}, wrong = 0;
            struct phases p = {first, &wrong, 1 + round % 32};
            assert_int_equal(cpu_record(f.q, run_phases, &p, sizeof p), ERR_OK);
            kn_test_wait(&f);
            assert_int_equal(wrong, 0);
            for (int i = 0; i < p.n; i++)
                assert_int_equal(first[i], 3);
        }
        kn_fixture_close(&f);
    }
}

static void run_failing(const void *params, struct cpu_task *t) {
    (void)params;
    for (int32_t i; cpu_claim(t, 3, &i);)
        if (i == 1)
            cpu_fail(t, ERR_NONFINITE);
}

static void test_sticky_error(void **state) {
    (void)state;
    for (int threads = 1; threads <= 4; threads++) {
        struct kn_fixture f;
        kn_fixture_open(&f, NULL, threads);
        for (int round = 0; round < 100; round++) {
            _Atomic int counters[8] = {0}, log[8], logged = 0;
            struct add a = {counters, 8, log, &logged, 0};
            char back[4] = "old";
            kn_addr mem = kn_test_alloc(&f, 64);
            assert_int_equal(cpu_record(f.q, run_add, &a, sizeof a), ERR_OK);
            assert_int_equal(cpu_record(f.q, run_failing, NULL, 0), ERR_OK);
            assert_int_equal(cpu_record(f.q, run_add, &a, sizeof a), ERR_OK); // skipped
            assert_int_equal(f.ops->download(f.q, back, mem, 4), ERR_OK);     // skipped
            struct err_info info = {0};
            assert_int_equal(f.ops->queue_wait(f.q, &info), ERR_NONFINITE);
            assert_int_equal(info.code, ERR_NONFINITE);
            assert_non_null(strstr(info.message, "non-finite"));
            assert_string_equal(back, "old");
            for (int i = 0; i < 8; i++)
                assert_int_equal(counters[i], 1);
            // Reported once, then forgotten.
            assert_int_equal(f.ops->queue_wait(f.q, NULL), ERR_OK);
            assert_int_equal(cpu_record(f.q, run_add, &a, sizeof a), ERR_OK);
            kn_test_wait(&f);
            assert_int_equal(counters[7], 2);
            kn_test_free_all(&f);
        }
        kn_fixture_close(&f);
    }
}

// A refused operation: what was recorded before it runs, what comes after is skipped.
static void test_refused_operation(void **state) {
    (void)state;
    struct kn_fixture f;
    kn_fixture_open(&f, NULL, 2);
    _Atomic int counters[1] = {0}, log[4], logged = 0;
    struct add a = {counters, 1, log, &logged, 7};
    assert_int_equal(cpu_record(f.q, run_add, &a, sizeof a), ERR_OK);
    struct kn_swiglu bad = {.rows = 1, .k = 0};
    assert_int_equal(f.ops->swiglu(f.q, &bad), ERR_OK);
    assert_int_equal(cpu_record(f.q, run_add, &a, sizeof a), ERR_OK);
    struct err_info info = {0};
    assert_int_equal(f.ops->queue_wait(f.q, &info), ERR_INVALID);
    assert_non_null(strstr(info.message, "'swiglu'"));
    assert_int_equal(counters[0], 1);
    assert_int_equal(cpu_record(f.q, NULL, NULL, 0), ERR_OK);
    assert_int_equal(f.ops->queue_wait(f.q, &info), ERR_UNSUPPORTED);
    char too_many[CPU_PARAM_BYTES + 1] = {0};
    assert_int_equal(cpu_record(f.q, run_add, too_many, sizeof too_many), ERR_OK);
    assert_int_equal(f.ops->queue_wait(f.q, &info), ERR_INTERNAL);
    kn_fixture_close(&f);
}

static void test_copies(void **state) {
    (void)state;
    enum { BYTES = 1000003 };
    struct kn_fixture f;
    kn_fixture_open(&f, NULL, 2);
    struct kn_rng r = {1};
    char *src = mem_alloc(BYTES), *back = mem_zalloc(BYTES);
    assert_true(src && back);
    for (int i = 0; i < BYTES; i++)
        src[i] = (char)kn_rng_u64(&r);
    kn_addr mem = kn_test_alloc(&f, BYTES);
    assert_int_equal(f.ops->upload(f.q, mem, src, BYTES), ERR_OK);
    assert_int_equal(f.ops->download(f.q, back, mem, BYTES), ERR_OK);
    // After a command, the upload takes its place behind it; the source may change at once.
    char second[3] = "ab", seen[3] = "";
    assert_int_equal(f.ops->upload(f.q, mem, second, 3), ERR_OK);
    memset(second, 'x', 2);
    assert_int_equal(f.ops->download(f.q, seen, mem, 3), ERR_OK);
    assert_int_equal(f.ops->queue_submit(f.q), ERR_OK);
    kn_test_wait(&f);
    kn_assert_same(back, src, BYTES);
    assert_string_equal(seen, "ab");
    mem_free(src);
    mem_free(back);
    kn_fixture_close(&f);
}

// Each allocation of a queue's life fails once; the queue then works, or says so.
static void test_failing_allocations(void **state) {
    (void)state;
    struct kn_fixture f;
    kn_fixture_open(&f, NULL, 2);
    int64_t live = mem_live_blocks();
    for (uint64_t nth = 1;; nth++) {
        _Atomic int counters[1] = {0}, log[200], logged = 0;
        struct kn_queue *q;
        mem_fail_after(nth, false);
        enum err e = f.ops->queue_create(f.d, &q);
        if (e == ERR_OK) {
            struct add a = {counters, 1, log, &logged, 0};
            for (int i = 0; i < 150 && !e; i++)
                e = cpu_record(q, run_add, &a, sizeof a);
            char text[3] = "ab";
            _Alignas(64) char mem[64] = "";
            if (!e)
                e = f.ops->upload(q, (kn_addr)mem, text, 3);
            enum err w = f.ops->queue_wait(q, NULL);
            assert_int_equal(w, e);
            assert_true(e || strcmp(mem, "ab") == 0);
        }
        uint64_t attempts = mem_fail_count();
        mem_fail_after(0, false);
        assert_true(e == ERR_OK || e == ERR_NOMEM);
        if (q) { // whatever happened, it can be used again
            struct add a = {counters, 1, log, &logged, 0};
            int before = counters[0];
            logged = 0;
            assert_int_equal(cpu_record(q, run_add, &a, sizeof a), ERR_OK);
            assert_int_equal(f.ops->queue_wait(q, NULL), ERR_OK);
            assert_int_equal(counters[0], before + 1);
            f.ops->queue_destroy(q);
        }
        assert_int_equal(mem_live_blocks(), live);
        if (attempts < nth)
            break;
        assert_int_equal(e, ERR_NOMEM);
    }
    kn_fixture_close(&f);
}

// From the second step on a step of the same kind allocates nothing.
static void test_no_allocation_in_steps(void **state) {
    (void)state;
    struct kn_fixture f;
    kn_fixture_open(&f, NULL, 2);
    _Atomic int counters[1] = {0}, log[2000], logged;
    for (int step = 0; step < 5; step++) {
        if (step == 1)
            mem_fail_after(0, false); // counts from here
        logged = 0;
        char text[100] = "";
        for (int i = 0; i < 300; i++) {
            struct add a = {counters, 1, log, &logged, 0};
            assert_int_equal(cpu_record(f.q, run_add, &a, sizeof a), ERR_OK);
        }
        assert_int_equal(f.ops->upload(f.q, (kn_addr)text, text, sizeof text / 2), ERR_OK);
        kn_test_wait(&f);
    }
    assert_int_equal(mem_fail_count(), 0);
    kn_fixture_close(&f);
}

static void test_open_failures(void **state) {
    (void)state;
    int64_t live = mem_live_blocks();
    for (uint64_t nth = 1;; nth++) {
        struct kn_device_config cfg = {.threads = 3, .pin = true};
        struct kn_device *d;
        struct err_info info = {0};
        mem_fail_after(nth, false);
        enum err e = kn_ops_cpu.open(&cfg, &d, &info);
        mem_fail_after(0, false);
        if (e == ERR_OK) {
            struct kn_device_info about;
            kn_ops_cpu.info(d, &about);
            assert_int_equal(about.threads, 3);
            assert_string_equal(about.backend, "cpu");
            assert_true(about.memory_bytes > 1 << 20);
            kn_ops_cpu.close(d);
            break;
        }
        assert_int_equal(e, ERR_NOMEM);
        assert_null(d);
        assert_int_equal(mem_live_blocks(), live);
    }
    assert_int_equal(mem_live_blocks(), live);
    struct kn_device *d;
    struct err_info info = {0};
    struct kn_device_config cfg = {.isa = "sse9"};
    assert_int_equal(kn_ops_cpu.open(&cfg, &d, &info), ERR_INVALID);
    assert_non_null(strstr(info.message, "sse9"));
    cfg = (struct kn_device_config){.threads = 257};
    assert_int_equal(kn_ops_cpu.open(&cfg, &d, &info), ERR_INVALID);
    assert_string_equal(info.param, "threads");
    static const int bad[][2] = {{1, 0}, {2, 2}, {-1, 2}, {0, -1}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        cfg = (struct kn_device_config){.threads = 1, .part = bad[i][0], .parts = bad[i][1]};
        assert_int_equal(kn_ops_cpu.open(&cfg, &d, &info), ERR_INVALID);
        assert_string_equal(info.param, "part");
    }
}

static void note_cpus(void *arg, int tid, int nt) {
    cpu_set_t set;
    (void)nt;
    if (tid && sched_getaffinity(0, sizeof set, &set) == 0) // thread 0 is the test's
        ((cpu_set_t *)arg)[tid] = set;
}

// Devices that are parts of the machine have CPUs of their own; together they have all.
static void test_parts(void **state) {
    (void)state;
    cpu_set_t all, sets[2][3], common, both;
    assert_int_equal(sched_getaffinity(0, sizeof all, &all), 0);
    if (CPU_COUNT(&all) < 2)
        skip();
    for (int part = 0; part < 2; part++) {
        struct kn_device_config cfg = {.threads = 3, .pin = true, .part = part, .parts = 2};
        struct kn_device *d;
        struct err_info info;
        assert_int_equal(kn_ops_cpu.open(&cfg, &d, &info), ERR_OK);
        pool_run(d->pool, note_cpus, sets[part]);
        kn_ops_cpu.close(d);
        assert_true(CPU_EQUAL(&sets[part][1], &sets[part][2]));
    }
    CPU_AND(&common, &sets[0][1], &sets[1][1]);
    CPU_OR(&both, &sets[0][1], &sets[1][1]);
    assert_int_equal(CPU_COUNT(&common), 0);
    assert_true(CPU_EQUAL(&both, &all));
}

static void test_memory(void **state) {
    (void)state;
    struct kn_fixture f;
    kn_fixture_open(&f, NULL, 1);
    static const size_t sizes[] = {1, 100, 5000, 1 << 20, (2 << 20) + 100};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        kn_addr a = kn_test_alloc(&f, sizes[i]);
        unsigned char *p = (unsigned char *)a;
        assert_int_equal(a % 64, 0);
        for (size_t j = 0; j < sizes[i]; j++)
            assert_int_equal(p[j], 0);
        memset(p, 7, sizes[i]);
        size_t from = sizes[i] / 3, n = sizes[i] / 2;
        f.ops->discard(f.d, a + from, n);
        for (size_t j = 0; j < sizes[i]; j++)
            assert_int_equal(p[j], j >= from && j < from + n ? 0 : 7);
    }
    kn_fixture_close(&f);
}

static void test_kv_copy(void **state) {
    (void)state;
    struct kn_fixture f;
    kn_fixture_open(&f, NULL, 2);
    struct kn_kv_shape shape = {.layers = 3, .kv_heads = 2, .head_dim = 64};
    size_t bytes = f.ops->kv_block_bytes(&shape);
    assert_true(bytes >= (size_t)3 * 2 * 64 * KN_KV_BLOCK * 2 * 2);
    kn_addr pool = kn_test_alloc(&f, 6 * bytes);
    for (int b = 0; b < 6; b++)
        memset((char *)pool + (size_t)b * bytes, 'a' + b, bytes);
    int32_t src[] = {0, 1, 2}, dst[] = {5, 0, 1}; // in order: 0 moves away before 1 comes
    struct kn_kv_copy p = {.pool = pool, .shape = shape, .src = src, .dst = dst, .n = 3};
    assert_int_equal(f.ops->kv_copy(f.q, &p), ERR_OK);
    src[0] = 9; // copied when recorded
    kn_test_wait(&f);
    const char want[] = "bccdea";
    for (int b = 0; b < 6; b++)
        for (size_t i = 0; i < bytes; i++)
            assert_int_equal(((char *)pool)[(size_t)b * bytes + i], want[b]);
    kn_fixture_close(&f);
}

static void test_require(void **state) {
    (void)state;
    struct err_info info = {0};
    assert_int_equal(kn_require(&kn_ops_cpu, KN_NEED_SERVE | KN_NEED_BACKWARD, &info), ERR_OK);
    assert_int_equal(kn_require(&kn_ops_cpu, KN_NEED_SHARDED, &info), ERR_UNSUPPORTED);
    assert_non_null(strstr(info.message, "'all_reduce'"));
    struct kn_ops without = kn_ops_cpu;
    without.attn = NULL;
    assert_int_equal(kn_require(&without, KN_NEED_SERVE, &info), ERR_UNSUPPORTED);
    assert_non_null(strstr(info.message, "'attn'"));
    assert_int_equal(kn_require(&without, KN_NEED_BACKWARD, &info), ERR_OK);
    without = kn_ops_cpu;
    without.gemm_t = NULL;
    assert_int_equal(kn_require(&without, KN_NEED_SERVE, &info), ERR_OK);
    assert_int_equal(kn_require(&without, KN_NEED_BACKWARD, &info), ERR_UNSUPPORTED);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_order_and_sharing),
        cmocka_unit_test(test_phases),
        cmocka_unit_test(test_take),
        cmocka_unit_test(test_take_helps),
        cmocka_unit_test(test_sticky_error),
        cmocka_unit_test(test_refused_operation),
        cmocka_unit_test(test_copies),
        cmocka_unit_test(test_failing_allocations),
        cmocka_unit_test(test_no_allocation_in_steps),
        cmocka_unit_test(test_open_failures),
        cmocka_unit_test(test_parts),
        cmocka_unit_test(test_memory),
        cmocka_unit_test(test_kv_copy),
        cmocka_unit_test(test_require),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

// SPDX-License-Identifier: Apache-2.0
// Two engines with their threads in one process, and many consumers that submit, read slowly,
// cancel, stop and let go at any time. A wake that gets lost shows as a time-out; a wake after
// release writes into freed memory, which the sanitizers see.
#include "base/mem.h"
#include "base/thread.h"
#include "tests/serving/engine_support.h"
#include "tests/support/cmocka_all.h"
#include "tests/support/must.h"
#include "tests/support/wait.h"
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { CONSUMERS = 6, ROUNDS = 60 };

struct consumer {
    struct thread thread;
    struct eng *engines[2];
    uint64_t rng;
    _Atomic int *rejected;
    bool until_dead; // goes on until the engines take nothing more
    int32_t done;
};

struct waiter { // lives exactly as long as the stream is held
    sem_t sem;
    struct client client;
};

static void on_wake(void *arg, struct eng_stream *s) {
    struct waiter *w = arg;
    (void)s;
    atomic_fetch_add(&w->client.wakes, 1); // seen by the sanitizers if it comes too late
    sem_post(&w->sem);
}

static void nap(int32_t us) {
    nanosleep(&(struct timespec){.tv_nsec = us * 1000L}, NULL);
}

static void act(struct consumer *k, struct client *c) {
    uint32_t what = client_rnd(&k->rng, 12);
    if (what == 0) {
        c->cancelled = true;
        eng_stream_cancel(c->stream);
    } else if (what == 1) {
        int32_t choice = (int32_t)client_rnd(&k->rng, (uint32_t)c->r.n);
        c->stopped[choice] = true;
        eng_stream_stop(c->stream, choice);
    } else if (what == 2) {
        nap((int32_t)client_rnd(&k->rng, 3000));
    }
}

static enum err one_request(struct consumer *k) {
    struct waiter *w = mem_zalloc(sizeof *w);
    MUST(w);
    struct client *c = &w->client;
    sem_init(&w->sem, 0, 0);
    client_random(c, &k->rng);
    client_expect(c, 256);
    c->r.wake = on_wake;
    c->r.wake_arg = w;
    c->may_fail = k->until_dead;
    struct err_info info;
    enum err err = client_submit(c, k->engines[client_rnd(&k->rng, 2)], &info);
    bool early = client_rnd(&k->rng, 8) == 0;
    while (!err && !client_done(c)) {
        wait_post(&w->sem); // a lost wake ends the program
        act(k, c);
        while (client_take(c, 1 + (int32_t)client_rnd(&k->rng, 20)))
            act(k, c);
        if (early && client_rnd(&k->rng, 3) == 0)
            break;
    }
    if (!err)
        client_release(c);
    sem_destroy(&w->sem);
    mem_free(w);
    return err;
}

static void *consume(void *arg) {
    struct consumer *k = arg;
    while (k->done < ROUNDS || k->until_dead) {
        enum err err = one_request(k);
        if (err == ERR_QUEUE_FULL) {
            atomic_fetch_add(k->rejected, 1);
            nap(200);
            continue;
        }
        if (err) {
            MUST(k->until_dead && err == ERR_ENGINE_DEAD);
            break;
        }
        k->done++;
    }
    return NULL;
}

static void run_consumers(bool stop_early) {
    struct kn_device d[2];
    struct eng *engines[2];
    struct err_info info;
    struct metrics *m = metrics_create();
    for (int i = 0; i < 2; i++) {
        fake_init(&d[i], i ? 200 : 20);
        d[i].sleep_us = 20;
        struct eng_config cfg = client_config(&d[i]);
        cfg.clock = NULL;
        cfg.metrics = m;
        cfg.max_queue = i ? 3 : 64;
        engines[i] = client_engine(&cfg);
        assert_int_equal(eng_start(engines[i], &info), ERR_OK);
    }
    _Atomic int rejected = 0;
    static struct consumer consumers[CONSUMERS];
    for (int i = 0; i < CONSUMERS; i++) {
        consumers[i] = (struct consumer){.engines = {engines[0], engines[1]},
                                         .rng = (uint64_t)i + (stop_early ? 100 : 0),
                                         .rejected = &rejected,
                                         .until_dead = stop_early};
        assert_int_equal(thread_start(&consumers[i].thread, "consumer", consume, &consumers[i]),
                         ERR_OK);
    }
    if (stop_early) {
        nap(300000);
        eng_stop(engines[0]);
        eng_stop(engines[1]);
    }
    for (int i = 0; i < CONSUMERS; i++)
        thread_join(&consumers[i].thread);
    for (int i = 0; i < 2; i++) {
        eng_drain(engines[i]);
        wait_until(eng_in_flight(engines[i]) == 0);
        struct eng_health h;
        eng_health(engines[i], &h);
        assert_int_equal(h.alive, !stop_early);
        eng_stop(engines[i]);
        eng_health(engines[i], &h);
        assert_false(h.alive);
        eng_destroy(engines[i]);
    }
    metrics_destroy(m);
}

static void consumers_on_many_threads(void **state) {
    (void)state;
    int64_t live = mem_live_blocks();
    run_consumers(false);
    assert_true(mem_live_blocks() == live);
}

static void a_stop_under_load(void **state) {
    (void)state;
    int64_t live = mem_live_blocks();
    run_consumers(true);
    assert_true(mem_live_blocks() == live);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(consumers_on_many_threads),
        cmocka_unit_test(a_stop_under_load),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

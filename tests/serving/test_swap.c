// SPDX-License-Identifier: Apache-2.0
// Two engines on devices of their own over one set of weights: the same bits from either, a
// thousand rolling swaps under load with each token being that of the version the request was
// resolved to, an engine that dies meanwhile, a slot that does not come.
#include "base/io_pool.h"
#include "base/mem.h"
#include "base/thread.h"
#include "serving/rollout.h"
#include "tests/model/model_fixture.h"
#include "tests/serving/adapter_support.h"
#include "tests/serving/greedy_request.h"
#include "tests/serving/walk_engine.h"
#include "tests/support/cmocka_all.h"
#include "tests/support/must.h"
#include "tests/support/wait.h"
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { REPLICAS = 2, ASKERS = 4, PROMPT = 40, NEW = 6, FORCED = 6, RANDOM = 3, IO_THREADS = 2 };

struct swap_fixture {
    struct fx x; // its device holds the weights
    struct adapter_dir dir;
    int32_t prompt[PROMPT], tokens[FORCED];
    struct kn_device *device[REPLICAS];
    struct replicas r;
    struct rollout_engines rollout;
    struct adp_registry *registry;
    struct io_pool *io;
    struct err_info info;
    int32_t refused; // verifications to refuse on the last replica
    _Atomic bool done, dying;
    _Atomic int32_t answers, cut;
};

// ---- life

static void open_engines(struct swap_fixture *s, int32_t n) {
    struct adp_config ac = {.model = &s->x.weights->config, .max_host = 3, .replicas = n};
    assert_int_equal(adp_create(&ac, &s->registry, &s->info), ERR_OK);
    assert_int_equal(io_pool_create(IO_THREADS, 16, &s->io), ERR_OK);
    s->r = (struct replicas){.n = n};
    for (int32_t i = 0; i < n; i++) {
        struct kn_device_config dc = {.threads = 1, .pin = true, .part = i, .parts = n};
        assert_int_equal(s->x.ops->open(&dc, &s->device[i], &s->info), ERR_OK);
        struct eng_config cfg = walk_config(&s->x, s->device[i], 64);
        cfg.adapters = s->registry;
        cfg.io = s->io;
        cfg.max_loras = 3;
        cfg.replica = i;
        if (eng_create(&cfg, &s->r.engine[i], &s->info) || eng_start(s->r.engine[i], &s->info))
            fail_msg("%s", s->info.message);
    }
    assert_int_equal(rollout_engines_init(&s->rollout, &s->r, &s->info), ERR_OK);
    s->rollout.hook_arg = s;
    atomic_store(&s->done, false);
    atomic_store(&s->dying, false);
    atomic_store(&s->answers, 0);
    atomic_store(&s->cut, 0);
}

static void close_engines(struct swap_fixture *s) {
    for (int32_t i = 0; i < s->r.n; i++)
        eng_stop(s->r.engine[i]);
    for (int32_t i = 0; i < s->r.n; i++) {
        eng_destroy(s->r.engine[i]);
        s->x.ops->close(s->device[i]);
    }
    io_pool_destroy(s->io);
    rollout_engines_fini(&s->rollout);
    adp_destroy(s->registry);
}

static int setup(void **state) {
    struct swap_fixture *s = mem_zalloc(sizeof *s);
    assert_non_null(s);
    fx_open(&s->x, "tests/golden/models/hf-f32", &(struct fx_options){0});
    adapter_dir_open(&s->dir);
    for (int32_t i = 0; i < PROMPT; i++)
        s->prompt[i] = 3 + i * 7;
    char name[16];
    adapter_forcible(s->x.weights, s->x.queue, s->tokens, FORCED);
    for (int32_t i = 0; i < FORCED; i++) {
        snprintf(name, sizeof name, "f%d", (int)i);
        adapter_make_forcing(&s->dir, name, s->x.weights, s->tokens[i]);
    }
    for (int32_t i = 0; i < RANDOM; i++) {
        snprintf(name, sizeof name, "r%d", (int)i);
        adapter_make_random(&s->dir, name, &s->x.weights->config, (uint64_t)i + 5);
    }
    *state = s;
    return 0;
}

static int teardown(void **state) {
    struct swap_fixture *s = *state;
    adapter_dir_close(&s->dir);
    fx_close(&s->x);
    mem_free(s);
    return 0;
}

// ---- changes

static enum err roll(struct swap_fixture *s, const char *name, const char *folder,
                     struct err_info *info) {
    char path[128];
    struct adp_version *v;
    bool promote = true;
    snprintf(path, sizeof path, "%s/%s", s->dir.path, folder);
    const struct adp_origin from = {.path = path, .verify = true};
    MUST(!adp_load(s->registry, name, &from, &v, info));
    const struct rollout_ops ops = rollout_engines_ops(&s->rollout);
    enum err e = rollout_run(&ops, s->registry, v, &promote, info);
    adp_release(v);
    return e;
}

static enum err refuse_some(void *arg, struct eng *engine, struct adp_version *v,
                            struct err_info *info) {
    struct swap_fixture *s = arg;
    (void)v;
    if (engine != s->r.engine[s->r.n - 1] || s->refused == 0)
        return ERR_OK;
    s->refused--;
    return err_set(info, ERR_NONFINITE, NULL, "it was told to");
}

// ---- requests

static void on_wake(void *arg, struct eng_stream *stream) {
    (void)stream;
    sem_post(arg);
}

static struct eng_request request_of(struct swap_fixture *s, sem_t *sem, int32_t n_prompt,
                                     int32_t max_tokens) {
    struct eng_request r = greedy_request(s->prompt, n_prompt, max_tokens);
    r.sampling.n_logprobs = 1;
    r.wake = on_wake;
    r.wake_arg = sem;
    return r;
}

struct answer {
    int32_t token[2 * NEW];
    float logprob[2 * NEW];
    int32_t n;
    enum eng_finish finish;
};

static void await(struct eng_stream *stream, sem_t *sem, struct answer *a) {
    struct eng_event ev = {.type = ENG_EVENT_TOKEN};
    while (ev.type != ENG_EVENT_END) {
        wait_post(sem);
        while (eng_stream_next(stream, &ev)) {
            if (ev.type == ENG_EVENT_END)
                break;
            a->token[a->n] = ev.token;
            a->logprob[a->n++] = ev.logprob;
        }
    }
    a->finish = ev.finish;
    eng_stream_release(stream);
}

// Of the engine, or of the one that the routing chooses.
static void ask(struct swap_fixture *s, struct eng *e, const char *model, int32_t n_prompt,
                struct answer *a) {
    sem_t sem;
    sem_init(&sem, 0, 0);
    struct eng_request q = request_of(s, &sem, n_prompt, NEW);
    struct eng_stream *stream;
    memset(a, 0, sizeof *a);
    if (model && adp_resolve(s->registry, model, &q.adapter, &s->info))
        fail_msg("%s", s->info.message);
    if (e ? eng_submit(e, &q, &stream, &s->info) : replicas_submit(&s->r, &q, &stream, &s->info))
        fail_msg("%s", s->info.message);
    if (q.adapter)
        adp_unpin(q.adapter);
    await(stream, &sem, a);
    assert_int_equal(a->finish, ENG_FINISH_LENGTH);
    sem_destroy(&sem);
}

// ---- the same bits

static void each_replica_gives_the_same_bits(void **state) {
    struct swap_fixture *s = *state;
    static const char *const models[] = {NULL, "r0", "r1", "r2"};
    struct answer one[4][PROMPT + 1], a;
    for (int32_t n = 1; n <= REPLICAS; n++) {
        open_engines(s, n);
        for (int32_t i = 1; i < 4; i++)
            assert_int_equal(roll(s, models[i], models[i], &s->info), ERR_OK);
        for (int32_t m = 0; m < 4; m++)
            for (int32_t len = 1; len <= PROMPT; len += 13) {
                if (n == 1)
                    ask(s, NULL, models[m], len, &one[m][len]);
                for (int32_t i = 0; i <= n; i++) {
                    ask(s, i < n ? s->r.engine[i] : NULL, models[m], len, &a);
                    assert_memory_equal(&a, &one[m][len], sizeof a);
                }
            }
        close_engines(s);
    }
    assert_memory_not_equal(&one[0][1], &one[1][1], sizeof a);
    assert_memory_not_equal(&one[1][1], &one[2][1], sizeof a);
}

// ---- swaps under load

struct asker {
    struct swap_fixture *s;
    struct thread thread;
    sem_t sem;
    int32_t n;
};

// True: an answer, or one that the engine's death cut.
static void ask_once(struct asker *k) {
    struct swap_fixture *s = k->s;
    struct err_info info;
    struct eng_stream *stream;
    struct answer a = {0};
    struct eng_request q = request_of(s, &k->sem, 1 + k->n % PROMPT, 1 + k->n % (2 * NEW));
    MUST(!adp_resolve(s->registry, "swapped", &q.adapter, &info)); // there is always one
    // Versions are numbered from 1, and made from the forcing folders in turn.
    int32_t expected = s->tokens[(adp_number(q.adapter) - 1) % FORCED];
    MUST(!replicas_submit(&s->r, &q, &stream, &info));
    adp_unpin(q.adapter);
    await(stream, &k->sem, &a);
    while (sem_trywait(&k->sem) == 0) {
    }
    for (int32_t i = 0; i < a.n; i++)
        MUST(a.token[i] == expected);
    if (a.finish == ENG_FINISH_ERROR && atomic_load(&s->dying)) {
        atomic_fetch_add(&s->cut, 1);
        return;
    }
    MUST(a.finish == ENG_FINISH_LENGTH && a.n == q.max_tokens);
    atomic_fetch_add(&s->answers, 1);
}

static void *ask_on(void *arg) {
    struct asker *k = arg;
    for (; !atomic_load(&k->s->done); k->n++)
        ask_once(k);
    return NULL;
}

static void start_askers(struct swap_fixture *s, struct asker *askers) {
    for (int32_t i = 0; i < ASKERS; i++) {
        askers[i] = (struct asker){.s = s, .n = i * 7};
        sem_init(&askers[i].sem, 0, 0);
        assert_int_equal(thread_start(&askers[i].thread, "asker", ask_on, &askers[i]), ERR_OK);
    }
}

static void stop_askers(struct swap_fixture *s, struct asker *askers) {
    atomic_store(&s->done, true);
    for (int32_t i = 0; i < ASKERS; i++) {
        thread_join(&askers[i].thread);
        sem_destroy(&askers[i].sem);
    }
}

static uint64_t active(struct swap_fixture *s) {
    struct adp_version *v;
    MUST(!adp_resolve(s->registry, "swapped", &v, NULL));
    uint64_t number = adp_number(v);
    adp_unpin(v);
    return number;
}

static void swap_once(struct swap_fixture *s, int32_t i) {
    char folder[16];
    struct err_info info;
    snprintf(folder, sizeof folder, "f%d", (int)(i % FORCED));
    s->refused = i % 5 == 4;
    uint64_t before = active(s);
    enum err e = roll(s, "swapped", folder, &info);
    if (i % 5 == 4) {
        assert_int_equal(e, ERR_NONFINITE);
        assert_string_equal(info.message, "replica 1, verify: it was told to");
        assert_int_equal(active(s), before);
        return;
    }
    assert_int_equal(e, ERR_OK);
    assert_int_equal(active(s), i + 1);
    if (i % 7 == 6) {
        assert_int_equal(adp_roll_back(s->registry, "swapped", &info), ERR_OK);
        assert_int_equal(active(s), before);
    }
}

static void a_thousand_swaps_under_load(void **state) {
    struct swap_fixture *s = *state;
    static struct asker askers[ASKERS];
    int32_t swaps = fx_slow_build() ? 120 : 1000;
    open_engines(s, REPLICAS);
    assert_int_equal(roll(s, "swapped", "f0", &s->info), ERR_OK);
    s->rollout.verify = refuse_some;
    start_askers(s, askers);
    for (int32_t i = 1; i <= swaps; i++) {
        int32_t before = atomic_load(&s->answers);
        swap_once(s, i);
        wait_until(atomic_load(&s->answers) > before);
    }
    stop_askers(s, askers);
    print_message("%d swaps, %d answers\n", (int)swaps, (int)atomic_load(&s->answers));
    assert_true(atomic_load(&s->answers) > swaps / 2);
    s->rollout.verify = NULL;
    close_engines(s);
}

static void an_engine_that_dies(void **state) {
    struct swap_fixture *s = *state;
    static struct asker askers[ASKERS];
    open_engines(s, REPLICAS);
    assert_int_equal(roll(s, "swapped", "f0", &s->info), ERR_OK);
    start_askers(s, askers);
    wait_until(atomic_load(&s->answers) >= 20);
    atomic_store(&s->dying, true);
    eng_stop(s->r.engine[0]);
    int32_t before = atomic_load(&s->answers);
    wait_until(atomic_load(&s->answers) >= before + 50); // the other one takes all
    stop_askers(s, askers);
    assert_true(atomic_load(&s->cut) <= ASKERS);
    assert_int_equal(replicas_check(&s->r, &s->info), ERR_ENGINE_DEAD);
    assert_string_equal(s->info.message, "replica 0: the engine has stopped");
    assert_int_equal(roll(s, "swapped", "f1", &s->info), ERR_ENGINE_DEAD);
    assert_string_equal(s->info.message, "replica 0, load: the engine has stopped");
    assert_int_equal(active(s), 1);
    close_engines(s);
}

// ---- a slot that does not come

struct blocker {
    struct io_job job; // first
    sem_t begun, go;
};

static void block(struct io_job *job) {
    struct blocker *b = (struct blocker *)(void *)job;
    sem_post(&b->begun);
    wait_post(&b->go);
    sem_post(&b->begun); // the last thing it touches
}

struct places {
    uint64_t version;
    int32_t none, loading;
};

static void count_places(void *arg, const struct adp_info *i) {
    struct places *p = arg;
    for (int32_t k = 0; i->version == p->version && k < i->replicas; k++) {
        p->none += i->replica[k].place == ADP_PLACE_NONE;
        p->loading += i->replica[k].place == ADP_PLACE_LOADING;
    }
}

static struct places places_of(struct swap_fixture *s, uint64_t version) {
    struct places p = {.version = version};
    assert_int_equal(adp_list(s->registry, count_places, &p), ERR_OK);
    return p;
}

static void a_slot_that_does_not_come(void **state) {
    struct swap_fixture *s = *state;
    struct blocker blockers[IO_THREADS];
    open_engines(s, REPLICAS);
    assert_int_equal(roll(s, "swapped", "f0", &s->info), ERR_OK);
    for (int32_t i = 0; i < IO_THREADS; i++) {
        blockers[i].job.run = block;
        sem_init(&blockers[i].begun, 0, 0);
        sem_init(&blockers[i].go, 0, 0);
        assert_int_equal(io_pool_submit(s->io, &blockers[i].job), ERR_OK);
        wait_post(&blockers[i].begun);
    }
    s->rollout.wait_ns = 50000000;
    assert_int_equal(roll(s, "swapped", "f1", &s->info), ERR_DEADLINE);
    assert_string_equal(s->info.message,
                        "replica 0, load: no adapter slot became free within 0.05 s; "
                        "raise --max-loras");
    assert_int_equal(active(s), 1);
    struct places p = places_of(s, 2);
    assert_true(p.loading == 1 && p.none == 1);
    for (int32_t i = 0; i < IO_THREADS; i++) {
        sem_post(&blockers[i].go);
        wait_post(&blockers[i].begun);
        sem_destroy(&blockers[i].begun);
        sem_destroy(&blockers[i].go);
    }
    wait_until(places_of(s, 2).none == REPLICAS); // it goes when it comes
    // One who waits when the server stops does not wait on.
    rollout_engines_stop(&s->rollout);
    s->rollout.wait_ns = 60000000000;
    assert_int_equal(roll(s, "swapped", "f2", &s->info), ERR_CANCELLED);
    assert_int_equal(active(s), 1);
    close_engines(s);
}

// What the slot's job says is what the swap says.
static void a_version_that_cannot_be_read_again(void **state) {
    struct swap_fixture *s = *state;
    char path[128];
    bool promote = true;
    struct adp_version *v;
    open_engines(s, REPLICAS);
    assert_int_equal(roll(s, "swapped", "f0", &s->info), ERR_OK);
    snprintf(path, sizeof path, "%s/r0", s->dir.path);
    const struct adp_origin from = {.path = path};
    assert_int_equal(adp_load(s->registry, "swapped", &from, &v, &s->info), ERR_OK);
    for (int32_t i = 0; i < 3; i++) // host memory gives it up
        assert_int_equal(roll(s, "other", "f1", &s->info), ERR_OK);
    adapter_make_random(&s->dir, "r0", &s->x.weights->config, 99);
    const struct rollout_ops ops = rollout_engines_ops(&s->rollout);
    assert_int_equal(rollout_run(&ops, s->registry, v, &promote, &s->info), ERR_FORMAT);
    assert_non_null(strstr(s->info.message, "replica 0, load: "));
    assert_non_null(strstr(s->info.message, "has changed since version 2 of `swapped` was loaded"));
    assert_int_equal(active(s), 1);
    adp_release(v);
    adapter_make_random(&s->dir, "r0", &s->x.weights->config, 5); // as it was
    close_engines(s);
}

// Whatever allocation fails, on whatever thread: the new version answers, or the former one.
static void failing_allocations(void **state) {
    struct swap_fixture *s = *state;
    char path[128];
    open_engines(s, REPLICAS);
    assert_int_equal(roll(s, "swapped", "f0", &s->info), ERR_OK);
    uint64_t n = 0, failed = 0;
    for (uint64_t k = 0; k <= n; k++) {
        struct adp_version *v;
        uint64_t before = active(s);
        bool promote = true;
        snprintf(path, sizeof path, "%s/f%d", s->dir.path, (int)(k % FORCED));
        const struct adp_origin from = {.path = path, .verify = true};
        assert_int_equal(adp_load(s->registry, "swapped", &from, &v, &s->info), ERR_OK);
        const struct rollout_ops ops = rollout_engines_ops(&s->rollout);
        mem_fail_after(k, false);
        enum err e = rollout_run(&ops, s->registry, v, &promote, &s->info);
        if (!k)
            n = mem_fail_count();
        mem_fail_after(0, false);
        assert_true(e == ERR_OK || e == ERR_NOMEM);
        assert_int_equal(active(s), e ? before : adp_number(v));
        assert_int_equal(promote, !e);
        failed += e != ERR_OK;
        adp_release(v);
    }
    assert_true(n > 10 && failed > 5);
    close_engines(s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_replica_gives_the_same_bits),
        cmocka_unit_test(a_thousand_swaps_under_load),
        cmocka_unit_test(an_engine_that_dies),
        cmocka_unit_test(a_slot_that_does_not_come),
        cmocka_unit_test(a_version_that_cannot_be_read_again),
        cmocka_unit_test(failing_allocations),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}

// SPDX-License-Identifier: Apache-2.0
// The engine with adapters over the real layer walk: several adapters and the base in one batch
// give the bits that each gives alone, more adapters than slots, retirement in use, failing reads,
// and a thousand swaps under load, each answer being that of the version it was resolved to.
#include "base/io_pool.h"
#include "base/mem.h"
#include "base/thread.h"
#include "serving/adapter_registry.h"
#include "serving/engine.h"
#include "serving/engine_internal.h"
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

enum { ADAPTERS = 5, PROMPT = 20, NEW = 6, FORCED = 6 };

struct answer {
    int32_t token[NEW];
    float logprob[NEW];
};

struct ax {
    struct fx x;
    struct adapter_dir dir;
    struct adp_registry *r;
    struct io_pool *io;
    struct metrics *metrics;
    struct eng *e;
    int32_t prompt[PROMPT];
    struct answer alone[ADAPTERS + 1]; // the base's last
    struct err_info info;
};

// ---- what each adapter gives alone, by the layer walk without an engine

static void run_alone(struct ax *a, const char *path, struct answer *out) {
    struct mdl_lora_slots *slots = NULL;
    struct mdl_lora *lora = NULL;
    struct mdl_adapter *adapter = NULL;
    struct fx *x = &a->x;
    if (path) {
        assert_int_equal(mdl_adapter_read(path, &x->weights->config, NULL, &adapter, &a->info), 0);
        assert_int_equal(mdl_lora_create(x->weights, x->queue, adapter, &lora, &a->info), 0);
        assert_int_equal(mdl_lora_slots_create(x->weights, x->queue, 1, &slots, &a->info), 0);
        assert_int_equal(mdl_lora_set(slots, 0, lora), ERR_OK);
    }
    int32_t ids[PROMPT + NEW];
    memcpy(ids, a->prompt, sizeof a->prompt);
    struct fx_seq s;
    fx_seq_init(&s, ids, PROMPT + NEW, 1);
    for (int32_t t = 0; t < NEW; t++) {
        static struct fx_batch b;
        int32_t n = PROMPT + t - s.n_cached;
        fx_batch_init(&b);
        fx_batch_add(&b, &s, n, FX_LAST, false);
        b.slot[0] = path ? 0 : -1;
        b.want[0].params.n_logprobs = 1;
        fx_run(x, &b, slots ? mdl_lora_hooks(slots) : NULL, NULL);
        const struct kn_sample_out *o = mdl_forward_samples(x->forward);
        out->token[t] = ids[PROMPT + t] = o->token;
        out->logprob[t] = o->logprob;
        s.n_cached += n;
    }
    mdl_lora_slots_destroy(slots);
    mdl_lora_destroy(lora);
    mdl_adapter_destroy(adapter);
}

// ---- life

static void open_engine(struct ax *a, int32_t max_loras, int32_t max_host) {
    struct adp_config ac = {.model = &a->x.weights->config, .max_host = max_host};
    assert_int_equal(adp_create(&ac, &a->r, &a->info), ERR_OK);
    assert_int_equal(io_pool_create(2, 16, &a->io), ERR_OK);
    a->metrics = metrics_create();
    struct eng_config cfg = walk_config(&a->x, a->x.device, 64);
    cfg.metrics = a->metrics;
    cfg.adapters = a->r;
    cfg.io = a->io;
    cfg.max_loras = max_loras;
    if (eng_create(&cfg, &a->e, &a->info))
        fail_msg("%s", a->info.message);
}

static void close_engine(struct ax *a) {
    eng_destroy(a->e);
    io_pool_destroy(a->io);
    adp_destroy(a->r);
    metrics_destroy(a->metrics);
}

static void ax_open(struct ax *a) {
    memset(a, 0, sizeof *a);
    fx_open(&a->x, "tests/golden/models/hf-f32", &(struct fx_options){0});
    adapter_dir_open(&a->dir);
    for (int32_t i = 0; i < PROMPT; i++)
        a->prompt[i] = 3 + i * 7;
    for (int32_t i = 0; i < ADAPTERS; i++) {
        char name[16], path[128];
        snprintf(name, sizeof name, "r%d", (int)i);
        snprintf(path, sizeof path, "%s/%s", a->dir.path, name);
        adapter_make_random(&a->dir, name, &a->x.weights->config, (uint64_t)i + 5);
        run_alone(a, path, &a->alone[i]);
    }
    run_alone(a, NULL, &a->alone[ADAPTERS]);
    // Otherwise nothing below would notice an adapter in another's place.
    for (int32_t i = 0; i <= ADAPTERS; i++)
        for (int32_t j = 0; j < i; j++)
            assert_memory_not_equal(a->alone[i].logprob, a->alone[j].logprob, sizeof(float));
}

static void ax_close(struct ax *a) {
    adapter_dir_close(&a->dir);
    fx_close(&a->x);
}

static void load(struct ax *a, const char *name, const char *folder) {
    char path[128];
    struct adp_version *v;
    snprintf(path, sizeof path, "%s/%s", a->dir.path, folder);
    const struct adp_origin from = {.path = path};
    if (adp_load(a->r, name, &from, &v, &a->info) ||
        adp_promote(a->r, name, adp_number(v), &a->info))
        fail_msg("%s", a->info.message);
    adp_release(v);
}

static void load_all(struct ax *a) {
    for (int32_t i = 0; i < ADAPTERS; i++) {
        char name[16];
        snprintf(name, sizeof name, "r%d", (int)i);
        load(a, name, name);
    }
}

// ---- clients

struct client {
    int32_t adapter; // ADAPTERS: the base
    struct eng_stream *stream;
    int32_t got;
    bool ended;
    enum eng_finish finish;
    enum err error;
    const struct answer *expect;
};

static enum err submit(struct ax *a, struct client *c, int32_t adapter) {
    char name[16];
    *c = (struct client){.adapter = adapter, .expect = &a->alone[adapter]};
    struct eng_request r = greedy_request(a->prompt, PROMPT, NEW);
    r.sampling.n_logprobs = 1;
    snprintf(name, sizeof name, "r%d", (int)adapter);
    if (adapter < ADAPTERS && adp_resolve(a->r, name, &r.adapter, &a->info))
        return a->info.code;
    enum err e = eng_submit(a->e, &r, &c->stream, &a->info);
    if (r.adapter)
        adp_unpin(r.adapter);
    return e;
}

static void take(struct client *c) {
    struct eng_event ev;
    while (c->stream && eng_stream_next(c->stream, &ev)) {
        if (ev.type == ENG_EVENT_TOKEN) {
            assert_int_equal(ev.token, c->expect->token[c->got]);
            assert_memory_equal(&ev.logprob, &c->expect->logprob[c->got], sizeof(float));
            c->got++;
        } else {
            c->ended = true;
            c->finish = ev.finish;
            c->error = ev.error;
        }
    }
    if (c->ended && c->stream) {
        eng_stream_release(c->stream);
        c->stream = NULL;
    }
}

static void turn(struct ax *a) {
    if (!eng_step(a->e)) // a job is reading
        wait_nap();
}

static void run(struct ax *a, struct client *clients, int32_t n) {
    for (int32_t left = n, turns = 0; left; turns++) {
        assert_true(turns < 200000);
        turn(a);
        left = 0;
        for (int32_t i = 0; i < n; i++) {
            take(&clients[i]);
            left += !clients[i].ended;
        }
    }
}

static void all_answered(const struct client *clients, int32_t n) {
    for (int32_t i = 0; i < n; i++) {
        assert_int_equal(clients[i].finish, ENG_FINISH_LENGTH);
        assert_int_equal(clients[i].got, NEW);
    }
}

static double metric_of(struct ax *a, const char *name) {
    struct buf text;
    char key[80];
    buf_init(&text, 0);
    metrics_expose(a->metrics, &text);
    snprintf(key, sizeof key, "\n%s{", name);
    const char *at = strstr(text.data, key);
    double v = at ? strtod(strchr(at, '}') + 1, NULL) : -1;
    buf_fini(&text);
    return v;
}

// ---- tests

static void one_batch_gives_the_bits_of_each_alone(void **state) {
    struct ax *a = *state;
    struct client c[12];
    open_engine(a, ADAPTERS, ADAPTERS);
    load_all(a);
    for (int32_t i = 0; i < 12; i++)
        assert_int_equal(submit(a, &c[i], i % (ADAPTERS + 1)), ERR_OK);
    run(a, c, 12);
    all_answered(c, 12);
    assert_true(metric_of(a, "graft_adapter_loads_total") == ADAPTERS);
    assert_true(metric_of(a, "graft_adapter_evictions_total") == 0);
    // What is cached belongs to its version: again, from the prefix cache.
    for (int32_t i = 0; i < 12; i++)
        assert_int_equal(submit(a, &c[i], i % (ADAPTERS + 1)), ERR_OK);
    run(a, c, 12);
    all_answered(c, 12);
    assert_true(metric_of(a, "graft_prefix_cache_hits_total") > 0);
    close_engine(a);
}

static void more_adapters_than_slots(void **state) {
    struct ax *a = *state;
    struct client c[36];
    for (int32_t max_host = 1; max_host <= ADAPTERS; max_host += 4) { // from disk; from host memory
        open_engine(a, 2, max_host);
        load_all(a);
        for (int32_t i = 0; i < 36; i++)
            assert_int_equal(submit(a, &c[i], (i * 5 + i / 7) % (ADAPTERS + 1)), ERR_OK);
        run(a, c, 36);
        all_answered(c, 36);
        assert_true(metric_of(a, "graft_adapter_evictions_total") >= 3);
        close_engine(a);
    }
}

// While others have all slots and never cease to ask, whoever waits still gets one.
static void no_adapter_starves_another(void **state) {
    struct ax *a = *state;
    struct client busy[6], late;
    open_engine(a, 2, ADAPTERS);
    load_all(a);
    for (int32_t i = 0; i < 6; i++)
        assert_int_equal(submit(a, &busy[i], i % 2), ERR_OK);
    for (int32_t turns = 0; busy[0].got == 0 || busy[1].got == 0; turns++) {
        assert_true(turns < 100000);
        turn(a);
        for (int32_t i = 0; i < 6; i++)
            take(&busy[i]);
    }
    assert_int_equal(submit(a, &late, 3), ERR_OK);
    int32_t rounds = 0;
    for (; !late.ended; rounds++) {
        assert_true(rounds < 100000);
        turn(a);
        take(&late);
        for (int32_t i = 0; i < 6; i++) {
            take(&busy[i]);
            if (busy[i].ended)
                assert_int_equal(submit(a, &busy[i], i % 2), ERR_OK);
        }
    }
    all_answered(&late, 1);
    run(a, busy, 6);
    all_answered(busy, 6);
    close_engine(a);
}

static void a_version_that_is_retired_serves_its_requests(void **state) {
    struct ax *a = *state;
    struct client c[8], late;
    open_engine(a, 2, ADAPTERS);
    load_all(a);
    for (int32_t i = 0; i < 8; i++)
        assert_int_equal(submit(a, &c[i], i % 4), ERR_OK);
    turn(a);
    assert_int_equal(adp_retire(a->r, "r0", 0, &a->info), ERR_OK); // runs, or waits for its slot
    assert_int_equal(adp_retire(a->r, "r3", 0, &a->info), ERR_OK); // waits
    assert_int_equal(submit(a, &late, 0), ERR_NO_MODEL);
    run(a, c, 8);
    all_answered(c, 8);
    for (int32_t i = 0; i < 50; i++)
        turn(a);
    for (int32_t i = 0; i < a->e->adapters.n; i++) // their slots were let go
        assert_true(a->e->adapters.slots[i].number != 1 && a->e->adapters.slots[i].number != 4);
    // Their cached keys and values as well: nothing is found under a number that is gone.
    struct kv_domain gone = {1, 0};
    int32_t idle;
    assert_int_equal(kv_pool_probe(a->e->pool, &gone, a->prompt, PROMPT, &idle), 0);
    close_engine(a);
}

static void a_failed_read_fails_that_adapters_requests_only(void **state) {
    struct ax *a = *state;
    struct client c[6];
    open_engine(a, 2, 1);
    load_all(a); // host memory keeps the last only
    adapter_make_random(&a->dir, "r1", &a->x.weights->config, 99);
    for (int32_t i = 0; i < 6; i++)
        assert_int_equal(submit(a, &c[i], i % 3), ERR_OK);
    run(a, c, 6);
    for (int32_t i = 0; i < 6; i++) {
        if (i % 3 != 1) {
            all_answered(&c[i], 1);
            continue;
        }
        assert_int_equal(c[i].finish, ENG_FINISH_ERROR);
        assert_int_equal(c[i].error, ERR_FORMAT);
        assert_int_equal(c[i].got, 0);
    }
    adapter_make_random(&a->dir, "r1", &a->x.weights->config, 6); // as it was: served again
    assert_int_equal(submit(a, &c[0], 1), ERR_OK);
    run(a, c, 1);
    all_answered(c, 1);
    close_engine(a);
}

static void ends_in_every_state(void **state) {
    struct ax *a = *state;
    struct client c[10];
    for (int32_t turns = 0; turns < 12;
         turns++) { // the engine ends while jobs run and requests wait
        open_engine(a, 2, 1);
        load_all(a);
        for (int32_t i = 0; i < 10; i++)
            assert_int_equal(submit(a, &c[i], i % (ADAPTERS + 1)), ERR_OK);
        for (int32_t t = 0; t < turns; t++)
            turn(a);
        if (turns % 2)
            eng_stream_cancel(c[3].stream);
        for (int32_t i = 0; i < 10; i++) { // the base's are taken; nothing may come that is wrong
            take(&c[i]);
            if (c[i].stream)
                eng_stream_release(c[i].stream);
        }
        close_engine(a);
    }
}

static void without_adapters_they_are_refused(void **state) {
    struct ax *a = *state;
    struct client c;
    struct eng *with;
    open_engine(a, 1, 1);
    load_all(a);
    with = a->e;
    struct eng_config cfg = with->cfg;
    cfg.adapters = NULL;
    cfg.hooks = NULL;
    cfg.metrics = NULL;
    assert_int_equal(eng_create(&cfg, &a->e, &a->info), ERR_OK);
    assert_int_equal(submit(a, &c, 0), ERR_UNSUPPORTED);
    eng_destroy(a->e);
    cfg.adapters = a->r;
    cfg.io = NULL;
    assert_int_equal(eng_create(&cfg, &a->e, &a->info), ERR_INVALID);
    a->e = with;
    close_engine(a);
}

static void failing_allocations(void **state) {
    struct ax *a = *state;
    struct client c[4];
    uint64_t n = 0;
    for (uint64_t k = 0; k <= n; k++) {
        open_engine(a, 2, 1);
        load_all(a);
        mem_fail_after(k, false);
        int32_t sent = 0;
        for (int32_t i = 0; i < 4; i++)
            if (!submit(a, &c[sent], i))
                sent++;
        run(a, c, sent);
        if (!k)
            n = mem_fail_count();
        mem_fail_after(0, false);
        int32_t failed = 0;
        for (int32_t i = 0; i < sent; i++) {
            failed += c[i].finish == ENG_FINISH_ERROR;
            assert_true(c[i].finish != ENG_FINISH_ERROR || c[i].error == ERR_NOMEM);
        }
        assert_true(k ? failed <= 4 : sent == 4 && !failed);
        // It lives on.
        assert_int_equal(submit(a, &c[0], 2), ERR_OK);
        run(a, c, 1);
        all_answered(c, 1);
        close_engine(a);
    }
    assert_true(n > 50);
}

// ---- a thousand swaps

struct swapping {
    struct ax *a;
    int32_t tokens[FORCED];
    int32_t swaps;
    _Atomic bool done;
    _Atomic int32_t answers, versions_seen;
};

struct asker {
    struct swapping *s;
    sem_t sem;
    int32_t n;
};

static void on_wake(void *arg, struct eng_stream *stream) {
    (void)stream;
    sem_post(arg);
}

static void ask_once(struct asker *k) {
    struct swapping *s = k->s;
    struct err_info info;
    struct eng_stream *stream;
    struct eng_request r = greedy_request(s->a->prompt, 1 + k->n % PROMPT, 1 + k->n % NEW);
    r.n = 1 + k->n % 2;
    r.wake = on_wake;
    r.wake_arg = &k->sem;
    MUST(!adp_resolve(s->a->r, "swapped", &r.adapter, &info)); // there is always one
    // Versions are numbered from 1, and made from the forcing folders in turn.
    int32_t expected = s->tokens[(adp_number(r.adapter) - 1) % FORCED];
    MUST(!eng_submit(s->a->e, &r, &stream, &info));
    adp_unpin(r.adapter);
    int32_t ended = 0, tokens = 0;
    struct eng_event ev;
    while (ended < r.n) {
        wait_post(&k->sem);
        while (eng_stream_next(stream, &ev)) {
            if (ev.type == ENG_EVENT_TOKEN) {
                MUST(ev.token == expected);
                tokens++;
            } else {
                MUST(ev.finish == ENG_FINISH_LENGTH);
                ended++;
            }
        }
    }
    MUST(tokens == r.n * r.max_tokens);
    eng_stream_release(stream);
    while (sem_trywait(&k->sem) == 0) {
    }
    atomic_fetch_add(&s->answers, 1);
}

static void *ask_on(void *arg) {
    struct asker *k = arg;
    while (!atomic_load(&k->s->done)) {
        ask_once(k);
        k->n++;
    }
    return NULL;
}

static void swap_once(struct swapping *s, int32_t i) {
    char path[128];
    struct adp_version *v;
    struct err_info info;
    snprintf(path, sizeof path, "%s/f%d", s->a->dir.path, (int)(i % FORCED));
    const struct adp_origin from = {.path = path};
    MUST(!adp_load(s->a->r, "swapped", &from, &v, &info));
    MUST(!adp_promote(s->a->r, "swapped", adp_number(v), &info));
    adp_release(v);
}

// Without an engine.
static void forces(struct ax *a, const char *name, int32_t token) {
    char path[128];
    struct answer got;
    snprintf(path, sizeof path, "%s/%s", a->dir.path, name);
    run_alone(a, path, &got);
    for (int32_t t = 0; t < NEW; t++)
        assert_int_equal(got.token[t], token);
}

static void a_thousand_swaps_under_load(void **state) {
    struct ax *a = *state;
    struct swapping s = {.a = a, .swaps = fx_slow_build() ? 200 : 1000};
    struct asker askers[3];
    struct thread threads[3];
    adapter_forcible(a->x.weights, a->x.queue, s.tokens, FORCED);
    for (int32_t i = 0; i < FORCED; i++) {
        char name[16];
        snprintf(name, sizeof name, "f%d", (int)i);
        adapter_make_forcing(&a->dir, name, a->x.weights, s.tokens[i]);
        forces(a, name, s.tokens[i]);
    }
    open_engine(a, 3, 2);
    swap_once(&s, 0);
    assert_int_equal(eng_start(a->e, &a->info), ERR_OK);
    for (int32_t i = 0; i < 3; i++) {
        askers[i] = (struct asker){.s = &s, .n = i * 7};
        sem_init(&askers[i].sem, 0, 0);
        assert_int_equal(thread_start(&threads[i], "asker", ask_on, &askers[i]), ERR_OK);
    }
    for (int32_t i = 1; i <= s.swaps; i++) {
        int32_t before = atomic_load(&s.answers);
        swap_once(&s, i);
        wait_until(atomic_load(&s.answers) > before);
    }
    atomic_store(&s.done, true);
    for (int32_t i = 0; i < 3; i++) {
        thread_join(&threads[i]);
        sem_destroy(&askers[i].sem);
    }
    print_message("%d swaps, %d answers\n", (int)s.swaps, (int)atomic_load(&s.answers));
    close_engine(a);
}

static int setup(void **state) {
    struct ax *a = mem_zalloc(sizeof *a);
    assert_non_null(a);
    ax_open(a);
    *state = a;
    return 0;
}

static int teardown(void **state) {
    ax_close(*state);
    mem_free(*state);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_batch_gives_the_bits_of_each_alone),
        cmocka_unit_test(more_adapters_than_slots),
        cmocka_unit_test(no_adapter_starves_another),
        cmocka_unit_test(a_version_that_is_retired_serves_its_requests),
        cmocka_unit_test(a_failed_read_fails_that_adapters_requests_only),
        cmocka_unit_test(ends_in_every_state),
        cmocka_unit_test(without_adapters_they_are_refused),
        cmocka_unit_test(failing_allocations),
        cmocka_unit_test(a_thousand_swaps_under_load),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}

// SPDX-License-Identifier: Apache-2.0
// Which replica a request goes to, and what several engines look like from outside.
#include "base/mem.h"
#include "serving/engine_internal.h"
#include "serving/replicas.h"
#include "tests/serving/engine_support.h"
#include "tests/support/cmocka_all.h"
#include <stdio.h>
#include <string.h>

enum { N = 3, MAX_QUEUE = 4 };

struct rep_fixture {
    struct kn_device device[N];
    struct replicas r;
    struct metrics *metrics;
    struct client *clients[N * (MAX_QUEUE + 2)];
    int32_t n_clients;
    struct err_info info;
};

static int setup(void **state) {
    struct rep_fixture *x = mem_zalloc(sizeof *x);
    assert_non_null(x);
    x->metrics = metrics_create();
    x->r.n = N;
    for (int32_t i = 0; i < N; i++) {
        fake_init(&x->device[i], 64);
        struct eng_config cfg = client_config(&x->device[i]);
        cfg.max_queue = MAX_QUEUE;
        cfg.metrics = x->metrics;
        cfg.model_label = "m";
        cfg.replica = i;
        x->r.engine[i] = client_engine(&cfg);
    }
    *state = x;
    return 0;
}

static int teardown(void **state) {
    struct rep_fixture *x = *state;
    for (int32_t i = 0; i < x->n_clients; i++) {
        if (x->clients[i]->stream)
            eng_stream_release(x->clients[i]->stream);
        mem_free(x->clients[i]);
    }
    for (int32_t i = 0; i < N; i++)
        eng_destroy(x->r.engine[i]);
    metrics_destroy(x->metrics);
    mem_free(x);
    return 0;
}

static struct client *new_client(struct rep_fixture *x, int32_t first, int32_t n_prompt,
                                 int32_t max_tokens) {
    int32_t prompt[CLIENT_LEN];
    for (int32_t i = 0; i < n_prompt; i++)
        prompt[i] = 1 + (first + i * i) % (FAKE_VOCAB - 2);
    struct client *c = x->clients[x->n_clients++] = client_new();
    client_init(c, prompt, n_prompt, max_tokens);
    client_expect(c, 256);
    return c;
}

static enum err submit(struct rep_fixture *x, struct client *c) {
    return replicas_submit(&x->r, &c->r, &c->stream, &x->info);
}

// The replica whose in-flight count has grown.
static int32_t placed(struct rep_fixture *x, struct client *c) {
    int32_t before[N];
    for (int32_t i = 0; i < N; i++)
        before[i] = eng_in_flight(x->r.engine[i]);
    if (submit(x, c))
        fail_msg("%s", x->info.message);
    for (int32_t i = 0; i < N; i++)
        if (eng_in_flight(x->r.engine[i]) > before[i])
            return i;
    return -1;
}

static void run_all(struct rep_fixture *x) {
    for (int32_t i = 0; i < N; i++)
        client_run(x->r.engine[i], x->clients, x->n_clients);
    assert_int_equal(replicas_in_flight(&x->r), 0);
}

// A replica that trains is taken when the others owe more, or when it has much of the prompt.
static void background_work_counts(void **state) {
    struct rep_fixture *x = *state;
    struct client *a = new_client(x, 1, 64, 1);
    int32_t home = replicas_home(&x->r, &a->r);
    atomic_store(&x->r.engine[home]->beside, true);
    assert_int_not_equal(placed(x, a), home);
    assert_int_not_equal(placed(x, new_client(x, 1, 64, 32)), home);
    assert_int_not_equal(placed(x, new_client(x, 1, 64, 32)), home);
    assert_int_equal(placed(x, new_client(x, 1, 64, 1)), home);
    run_all(x);
    atomic_store(&x->r.engine[home]->beside, false);
    assert_int_equal(placed(x, new_client(x, 1, 64, 1)), home);
    run_all(x);
}

static void equal_beginnings_go_to_one_replica(void **state) {
    struct rep_fixture *x = *state;
    int32_t count[N] = {0};
    for (int32_t i = 0; i < 30; i++) {
        struct client *a = new_client(x, i, 64, 1);
        int32_t home = replicas_home(&x->r, &a->r);
        count[home]++;
        a->r.prompt = a->prompt;
        assert_int_equal(placed(x, a), home);
        run_all(x);
        eng_stream_release(a->stream);
        mem_free(a);
        a = x->clients[0] = new_client(x, i, 64, 1);
        x->n_clients = 1;
        a->prompt[40] = 3; // beyond the first block: the same home
        assert_int_equal(replicas_home(&x->r, &a->r), home);
        // Salt, and what is in the first block, count.
        int32_t moved = 0;
        for (uint64_t salt = 1; salt < 20; salt++) {
            a->r.cache_salt = salt;
            moved += replicas_home(&x->r, &a->r) != home;
        }
        assert_true(moved > 4);
        mem_free(a);
        x->n_clients = 0;
    }
    for (int32_t i = 0; i < N; i++)
        assert_true(count[i] > 2);
}

static void a_clearly_busier_one_is_passed_over(void **state) {
    struct rep_fixture *x = *state;
    struct client *first = new_client(x, 1, 64, 64);
    int32_t home = placed(x, first);
    assert_int_equal(home, replicas_home(&x->r, &first->r));
    // Its answer is owed: more than a prompt of 64 tokens is worth.
    assert_int_not_equal(placed(x, new_client(x, 1, 64, 64)), home);
    // The third goes to whoever has nothing, the fourth home again: all have as much to do.
    int32_t third = placed(x, new_client(x, 1, 64, 64));
    assert_true(third != home && eng_in_flight(x->r.engine[third]) == 1);
    assert_int_equal(placed(x, new_client(x, 1, 64, 64)), home);
    run_all(x);
    struct eng_load l;
    for (int32_t i = 0; i < N; i++) {
        eng_load(x->r.engine[i], &l);
        assert_int_equal(l.owed, 0);
    }
}

static void a_little_busier_one_is_not(void **state) {
    struct rep_fixture *x = *state;
    struct client *first = new_client(x, 1, 20, 1);
    int32_t home = placed(x, first);
    // Less is owed there than the blocks of the prompt are worth that may be cached.
    assert_int_equal(placed(x, new_client(x, 1, 64, 1)), home);
    assert_int_not_equal(placed(x, new_client(x, 1, 64, 1)), home);
    run_all(x);
}

static void what_is_owed_is_paid_off(void **state) {
    struct rep_fixture *x = *state;
    struct client *c = new_client(x, 1, 100, 10);
    struct eng *e = x->r.engine[placed(x, c)];
    struct eng_load l;
    eng_load(e, &l);
    int64_t all = l.owed;
    assert_true(all > 100);
    while (!c->choices[0].got) {
        eng_step(e);
        client_take(c, INT32_MAX);
    }
    eng_load(e, &l);
    assert_int_equal(l.owed, all - 100); // its prompt is done
    c->cancelled = true;
    eng_stream_cancel(c->stream);
    run_all(x);
    eng_load(e, &l);
    assert_int_equal(l.owed, 0);
}

static double sum_of(struct rep_fixture *x, const char *name) {
    struct buf text;
    buf_init(&text, 0);
    metrics_expose(x->metrics, &text);
    double n = 0;
    char key[80];
    snprintf(key, sizeof key, "\n%s{", name);
    for (const char *at = text.data; (at = strstr(at, key)); at++)
        n += strtod(strchr(at, '}') + 1, NULL);
    assert_non_null(strstr(text.data, "\ngraft_requests_waiting{model=\"m\",replica=\"2\"} "));
    buf_fini(&text);
    return n;
}

static void full_only_if_all_are(void **state) {
    struct rep_fixture *x = *state;
    for (int32_t i = 0; i < N * MAX_QUEUE; i++)
        assert_int_equal(submit(x, new_client(x, 1, 20, 4)), ERR_OK);
    for (int32_t i = 0; i < N; i++)
        assert_int_equal(eng_in_flight(x->r.engine[i]), MAX_QUEUE);
    assert_true(sum_of(x, "graft_requests_rejected_total") == 0);
    assert_int_equal(submit(x, new_client(x, 1, 20, 4)), ERR_QUEUE_FULL);
    assert_int_equal(x->info.code, ERR_QUEUE_FULL);
    assert_true(sum_of(x, "graft_requests_rejected_total") == 1);
    // The server's own requests are few and have the way to go on.
    struct client *own = new_client(x, 1, 20, 4);
    own->r.internal = true;
    assert_int_equal(submit(x, own), ERR_OK);
    run_all(x);
    assert_true(own->choices[0].ends == 1);
    assert_true(sum_of(x, "graft_requests_finished_total") ==
                N * MAX_QUEUE); // own ones do not count
}

static void a_dead_one_gets_nothing(void **state) {
    struct rep_fixture *x = *state;
    struct client *c = new_client(x, 1, 64, 4);
    int32_t home = replicas_home(&x->r, &c->r);
    eng_stop(x->r.engine[home]);
    assert_int_not_equal(placed(x, c), home);
    for (int32_t i = 0; i < 2 * MAX_QUEUE - 1; i++)
        assert_int_not_equal(placed(x, new_client(x, 1, 64, 4)), home);
    assert_int_equal(submit(x, new_client(x, 1, 64, 4)), ERR_QUEUE_FULL);
    run_all(x);
    for (int32_t i = 0; i < N; i++)
        eng_stop(x->r.engine[i]);
    assert_int_equal(submit(x, new_client(x, 1, 64, 4)), ERR_ENGINE_DEAD);
    assert_string_equal(x->info.message, "the engine has stopped");
}

static void a_stalled_one_comes_last(void **state) {
    struct rep_fixture *x = *state;
    x->r.clock = &x->device[0].clock.clock;
    x->r.stall_ns = 1000000000;
    struct client *c = new_client(x, 1, 20, 200);
    int32_t home = placed(x, c);
    for (int32_t i = 0; i < N; i++)
        clock_manual_advance(&x->device[i].clock, 2000000000);
    // The other two become far busier, and still the one that does not move gets nothing.
    for (int32_t i = 0; i < 2 * MAX_QUEUE; i++)
        assert_int_not_equal(placed(x, new_client(x, 1, 20, 200)), home);
    assert_int_equal(placed(x, new_client(x, 1, 20, 200)), home); // all others are full
    run_all(x);
}

static void a_drain_is_everybodys(void **state) {
    struct rep_fixture *x = *state;
    for (int32_t i = 0; i < N; i++)
        assert_int_equal(submit(x, new_client(x, i, 20, 4)), ERR_OK);
    assert_int_equal(replicas_in_flight(&x->r), N);
    replicas_drain(&x->r);
    assert_int_equal(submit(x, new_client(x, 1, 20, 4)), ERR_DRAINING);
    struct client *own = new_client(x, 1, 20, 4);
    own->r.internal = true;
    assert_int_equal(submit(x, own), ERR_OK);
    run_all(x);
}

static void one_that_is_dead_is_told_by_number(void **state) {
    struct rep_fixture *x = *state;
    for (int32_t i = 0; i < N; i++)
        assert_int_equal(eng_start(x->r.engine[i], &x->info), ERR_OK);
    assert_int_equal(replicas_check(&x->r, &x->info), ERR_OK);
    eng_stop(x->r.engine[1]);
    assert_int_equal(replicas_check(&x->r, &x->info), ERR_ENGINE_DEAD);
    assert_string_equal(x->info.message, "replica 1: the engine has stopped");
}

int main(void) {
#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(background_work_counts),
        TEST(equal_beginnings_go_to_one_replica),
        TEST(a_clearly_busier_one_is_passed_over),
        TEST(a_little_busier_one_is_not),
        TEST(what_is_owed_is_paid_off),
        TEST(full_only_if_all_are),
        TEST(a_dead_one_gets_nothing),
        TEST(a_stalled_one_comes_last),
        TEST(a_drain_is_everybodys),
        TEST(one_that_is_dead_is_told_by_number),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

// SPDX-License-Identifier: Apache-2.0
// What goes wrong stays with those it concerns: allocations that fail over a request's whole life,
// device errors, logits that are not finite, samplers that may choose nothing.
#include "base/mem.h"
#include "serving/engine_internal.h"
#include "tests/serving/engine_support.h"
#include "tests/support/cmocka_all.h"
#include <string.h>

static void expect_healthy(struct eng *e) {
    int32_t prompt[40];
    client_prompt(prompt, 40, 3);
    struct client *c = client_ask(e, prompt, 40, 10);
    client_run(e, &c, 1);
    assert_int_equal(c->choices[0].got, 10);
    client_close(c);
    while (eng_step(e))
        ;
    struct kv_stats st;
    kv_pool_stats(e->pool, &st);
    assert_int_equal(st.live, 0);
    assert_int_equal(eng_in_flight(e), 0);
    struct err_info info;
    if (!kv_pool_check(e->pool, NULL, 0, &info))
        fail_msg("%s", info.message);
}

// Every allocation from submit to the last event, one after the other, fails once.
static void each_failed_allocation_is_that_requests_error(void **state) {
    (void)state;
    int64_t live = mem_live_blocks();
    struct kn_device d;
    struct eng *e = client_engine_over(&d, 64);
    int32_t prompt[60], failed = 0;
    client_prompt(prompt, 60, 1);
    for (uint64_t n = 1;; n++) {
        assert_true(n < 1000);
        struct client *c = client_of(prompt, 60, 12);
        c->r.n = 3;
        c->r.sampling.temperature = 1;
        c->r.sampling.frequency = 1;
        c->r.min_tokens = 3;
        c->r.n_prompt_logprobs = 2;
        c->may_fail = true;
        client_expect(c, 256);
        struct err_info info = {0};
        mem_fail_after(n, false);
        enum err err = client_submit(c, e, &info);
        bool hit = mem_fail_count() >= n;
        if (err) {
            mem_fail_after(0, false);
            assert_true(hit);
            assert_int_equal(err, ERR_NOMEM);
            assert_null(c->stream);
            mem_free(c);
            failed++;
            continue;
        }
        client_run(e, &c, 1);
        hit = mem_fail_count() >= n;
        mem_fail_after(0, false);
        assert_true(client_done(c));
        bool error = c->choices[0].got_finish == ENG_FINISH_ERROR;
        assert_int_equal(error, hit);
        for (int i = 0; i < 3; i++)
            assert_int_equal(c->choices[i].error, error ? ERR_NOMEM : ERR_OK);
        client_close(c);
        expect_healthy(e);
        failed += error;
        if (!hit)
            break;
    }
    assert_true(failed > 10);
    eng_destroy(e);
    assert_true(mem_live_blocks() == live);
}

static void a_failed_creation_leaves_nothing(void **state) {
    (void)state;
    struct kn_device d;
    fake_init(&d, 64);
    int64_t live = mem_live_blocks();
    for (uint64_t n = 1;; n++) {
        assert_true(n < 1000);
        struct eng_config cfg = client_config(&d);
        struct metrics *m = metrics_create();
        cfg.metrics = m;
        cfg.vllm_metrics = true;
        struct eng *e = NULL;
        struct err_info info = {0};
        mem_fail_after(n, false);
        enum err err = eng_create(&cfg, &e, &info);
        bool hit = mem_fail_count() >= n;
        mem_fail_after(0, false);
        assert_true(!err || (err == ERR_NOMEM && info.message[0]));
        if (!err) // a metric that could not be made is only missing
            expect_healthy(e);
        eng_destroy(e);
        metrics_destroy(m);
        assert_true(mem_live_blocks() == live);
        if (!hit)
            break;
    }
}

static void a_device_error_fails_that_step_only(void **state) {
    (void)state;
    struct kn_device d;
    fake_init(&d, 64);
    struct eng_config cfg = client_config(&d);
    cfg.max_num_batched_tokens = 64;
    struct eng *e = client_engine(&cfg);
    int32_t prompt[60];
    client_prompt(prompt, 60, 2);
    for (int kind = 0; kind < 3; kind++) {
        struct client *c[3];
        for (int i = 0; i < 3; i++) {
            c[i] = client_of(prompt, 20 + i, 40);
            c[i]->may_fail = true;
            c[i]->r.cache_salt = (uint64_t)i;
        }
        client_send(c[0], e);
        client_send(c[1], e);
        for (int i = 0; i < 5; i++)
            eng_step(e);
        *(kind == 0 ? &d.fail_begin : kind == 1 ? &d.fail_run : &d.fail_copy) = 1;
        if (kind == 2) { // a copy is only made for several choices
            c[2]->r.n = 3;
            c[2]->r.sampling.temperature = 1;
        }
        if (kind < 2)
            eng_step(e); // fails
        client_send(c[2], e);
        client_run(e, c, 3);
        for (int i = 0; i < 3; i++)
            assert_true(client_done(c[i]));
        for (int i = 0; i < 2; i++)
            assert_int_equal(c[i]->choices[0].error, kind == 0 ? ERR_NOMEM : ERR_DEVICE);
        assert_int_equal(c[2]->choices[0].error, kind == 2 ? ERR_DEVICE : ERR_OK);
        assert_int_equal(d.fail_begin + d.fail_run + d.fail_copy, 0);
        client_close_all(c, 3);
        expect_healthy(e);
    }
    eng_destroy(e);
}

static void non_finite_logits_fail_their_request_only(void **state) {
    (void)state;
    struct kn_device d;
    struct eng *e = client_engine_over(&d, 64);
    int32_t prompt[60];
    client_prompt(prompt, 60, 4);
    struct client *good = client_of(prompt, 60, 30);
    prompt[40] = FAKE_NAN;
    for (int round = 0; round < 2; round++) {
        struct client *bad = client_of(prompt, 60, 30);
        bad->r.n = 3;
        bad->may_fail = true;
        if (round == 0)
            client_send(good, e);
        client_send(bad, e);
        struct client *both[] = {bad, good};
        client_run(e, both, 2);
        for (int i = 0; i < 3; i++) {
            assert_int_equal(bad->choices[i].error, ERR_NONFINITE);
            assert_int_equal(bad->choices[i].got, 0); // never a token
        }
        struct eng_usage u;
        eng_stream_usage(bad->stream, &u);
        // What it shares with the good one may come from the cache, what it computed itself not.
        assert_true(u.cached_tokens <= 32);
        client_close(bad);
    }
    assert_int_equal(good->choices[0].got, 30);
    client_close(good);
    expect_healthy(e);
    eng_destroy(e);
}

static void nothing_allowed_is_an_error(void **state) {
    (void)state;
    struct kn_device d;
    struct eng *e = client_engine_over(&d, 64);
    int32_t prompt[10];
    client_prompt(prompt, 10, 5);
    struct client *c = client_of(prompt, 10, 10);
    c->r.token_mask = c->token_mask; // all zero
    c->may_fail = true;
    client_send(c, e);
    client_run(e, &c, 1);
    assert_int_equal(c->choices[0].error, ERR_INVALID);
    client_close(c);
    expect_healthy(e);
    eng_destroy(e);
}

// A cancel reaches a request wherever it is, and everything it held comes back.
static void a_cancel_reaches_each_state(void **state) {
    (void)state;
    struct kn_device d;
    fake_init(&d, 12);
    struct eng_config cfg = client_config(&d);
    cfg.max_num_seqs = 2;
    cfg.max_num_batched_tokens = 16;
    int32_t prompt[100];
    client_prompt(prompt, 100, 6);
    static const enum eng__seq_state states[] = {ENG__QUEUED, ENG__PREFILL, ENG__DECODE};
    for (int released = 0; released < 2; released++) {
        for (int stage = 0; stage < 4; stage++) { // the last one: preempted
            struct eng *e = client_engine(&cfg);
            struct client *c = client_of(prompt, 90, 60), *o = client_of(prompt, 20, 100);
            o->r.cache_salt = 1;
            if (stage == 0 || stage == 3) {
                o->r.n = stage == 0 ? 2 : 1; // takes all places
                client_send(o, e);
                eng_step(e);
            }
            client_send(c, e);
            enum eng__seq_state want = stage == 3 ? ENG__QUEUED : states[stage];
            struct eng__req *q = eng__req_of(c->stream);
            for (int i = 0; i < 300; i++) {
                if (o->stream)
                    client_take(o, INT32_MAX);
                eng_step(e);
                bool preempted = q->choices[0].admitted && q->choices[0].state == ENG__QUEUED;
                if (stage == 3 ? preempted : q->choices[0].state == want && i > 1)
                    break;
            }
            assert_int_equal(q->choices[0].state, want);
            c->cancelled = true;
            if (released) {
                client_release(c);
            } else {
                eng_stream_cancel(c->stream);
                eng_step(e);
                client_take(c, INT32_MAX);
                assert_true(client_done(c));
                assert_int_equal(c->choices[0].got_finish, ENG_FINISH_CANCELLED);
                client_release(c);
            }
            if (o->stream) {
                client_run(e, &o, 1);
                client_close(o);
            } else {
                mem_free(o);
            }
            mem_free(c);
            expect_healthy(e);
            eng_destroy(e);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_failed_allocation_is_that_requests_error),
        cmocka_unit_test(a_failed_creation_leaves_nothing),
        cmocka_unit_test(a_device_error_fails_that_step_only),
        cmocka_unit_test(non_finite_logits_fail_their_request_only),
        cmocka_unit_test(nothing_allowed_is_an_error),
        cmocka_unit_test(a_cancel_reaches_each_state),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

// SPDX-License-Identifier: Apache-2.0
// What bounds a request and what ends it, over a fake forward: its own limits, the queue,
// deadlines, a stop; and what is refused.
#include "base/mem.h"
#include "serving/engine_internal.h"
#include "tests/serving/engine_support.h"
#include "tests/support/cmocka_all.h"
#include <stdio.h>
#include <string.h>

static void limits_end_a_choice(void **state) {
    (void)state;
    struct kn_device d;
    fake_init(&d, 64);
    struct eng_config cfg = client_config(&d);
    cfg.max_model_len = 50;
    struct eng *e = client_engine(&cfg);
    int32_t prompt[50];
    client_prompt(prompt, 50, 3);
    struct client *c = client_new();
    client_init(c, prompt, 40, 100); // the context ends first
    c->r.ignore_eos = true;
    client_run_one(e, c);
    assert_int_equal(c->choices[0].got, 10);
    assert_int_equal(c->choices[0].got_finish, ENG_FINISH_LENGTH);
    client_release(c);
    client_init(c, prompt, 50, 0); // a whole context of prompt, nothing to generate
    client_run_one(e, c);
    assert_int_equal(c->choices[0].got_finish, ENG_FINISH_LENGTH);
    assert_int_equal(atomic_load(&d.steps) > 0, 1);
    client_release(c);
    client_init(c, prompt, 50, 0);
    c->r.n_prompt_logprobs = 1;
    client_run_one(e, c);
    assert_int_equal(c->scored, 49);
    client_close(c);
    eng_destroy(e);
}

static void the_queue_is_bounded(void **state) {
    (void)state;
    struct kn_device d;
    fake_init(&d, 64);
    struct eng_config cfg = client_config(&d);
    cfg.max_queue = 3;
    cfg.max_num_seqs = 2;
    struct metrics *m = metrics_create();
    cfg.metrics = m;
    struct eng *e = client_engine(&cfg);
    struct client *c[6];
    int32_t prompt[8];
    client_prompt(prompt, 8, 8);
    struct err_info info;
    for (int i = 0; i < 6; i++) {
        c[i] = client_new();
        client_init(c[i], prompt, 8, 8);
        client_expect(c[i], 256);
        enum err err = client_submit(c[i], e, &info);
        if (i == 2) // two of three waiting are admitted now
            eng_step(e);
        assert_int_equal(err, i < 5 ? ERR_OK : ERR_QUEUE_FULL);
    }
    assert_int_equal(info.code, ERR_QUEUE_FULL);
    struct eng_health h;
    eng_health(e, &h);
    assert_int_equal(h.running, 2);
    assert_true(h.busy);
    assert_int_equal(eng_in_flight(e), 5);
    client_run(e, c, 5);
    assert_int_equal(client_submit(c[5], e, &info), ERR_OK);
    client_run(e, &c[5], 1);
    assert_true(metric_get(e->metrics.rejected) == 1);
    // A drain takes nothing new and lets the rest finish; after the stop the engine is dead.
    for (int i = 0; i < 6; i++)
        client_release(c[i]);
    client_init(c[0], prompt, 8, 8);
    client_send(c[0], e);
    assert_int_equal(eng_drain(e), ERR_OK);
    assert_int_equal(client_submit(c[1], e, &info), ERR_DRAINING);
    client_run(e, c, 1);
    assert_true(client_done(c[0]));
    client_release(c[0]);
    eng_step(e);
    assert_int_equal(eng_in_flight(e), 0);
    eng_stop(e);
    assert_int_equal(client_submit(c[1], e, &info), ERR_ENGINE_DEAD);
    eng_stop(e);
    eng_destroy(e);
    metrics_destroy(m);
    for (int i = 0; i < 6; i++)
        mem_free(c[i]);
}

static void a_stop_ends_what_runs(void **state) {
    (void)state;
    struct kn_device d;
    fake_init(&d, 64);
    struct eng_config cfg = client_config(&d);
    cfg.max_num_seqs = 1;
    struct eng *e = client_engine(&cfg);
    int32_t prompt[8];
    client_prompt(prompt, 8, 8);
    struct client *c[2];
    for (int i = 0; i < 2; i++) { // one runs, one waits
        c[i] = client_new();
        client_init(c[i], prompt, 8, 100);
        c[i]->r.ignore_eos = c[i]->may_fail = true;
        client_send(c[i], e);
    }
    for (int i = 0; i < 5; i++)
        eng_step(e);
    eng_stop(e);
    for (int i = 0; i < 2; i++) {
        client_take(c[i], INT32_MAX);
        assert_true(client_done(c[i]));
        assert_int_equal(c[i]->choices[0].error, ERR_DRAINING);
    }
    eng_destroy(e); // streams outlive the engine
    for (int i = 0; i < 2; i++) {
        eng_stream_cancel(c[i]->stream);
        client_close(c[i]);
    }
}

static void deadlines_hold_in_each_state(void **state) {
    (void)state;
    struct kn_device d;
    fake_init(&d, 64);
    struct eng_config cfg = client_config(&d);
    cfg.max_num_seqs = 1;
    cfg.max_num_batched_tokens = 1;
    struct eng *e = client_engine(&cfg);
    int32_t prompt[200];
    client_prompt(prompt, 200, 9);
    for (int stage = 0; stage < 3; stage++) { // queued, prefill, decode
        struct client *c = client_new(), *other = client_new();
        struct err_info info;
        client_init(other, prompt, 8, 8);
        client_expect(other, 256);
        if (stage == 0)
            assert_int_equal(client_submit(other, e, &info), ERR_OK);
        client_init(c, prompt, stage == 1 ? 200 : 4, 50);
        c->r.ignore_eos = c->may_fail = true;
        c->r.deadline_ns = d.clock.mono + 1000;
        client_send(c, e);
        for (int i = 0; i < 8; i++)
            eng_step(e);
        enum eng__seq_state want[] = {ENG__QUEUED, ENG__PREFILL, ENG__DECODE};
        assert_int_equal(eng__req_of(c->stream)->choices[0].state, want[stage]);
        clock_manual_advance(&d.clock, 2000);
        eng_step(e);
        client_take(c, INT32_MAX);
        assert_true(client_done(c));
        assert_int_equal(c->choices[0].error, ERR_DEADLINE);
        client_release(c);
        if (stage == 0) {
            client_run(e, &other, 1);
            assert_true(client_done(other));
            client_release(other);
        }
        eng_step(e);
        check_empty(e);
        mem_free(c);
        mem_free(other);
    }
    eng_destroy(e);
}

static void requests_that_cannot_be_are_refused(void **state) {
    (void)state;
    struct kn_device d;
    struct eng *e = client_engine_over(&d, 8); // 128 positions
    struct client *c = client_new();
    int32_t prompt[300];
    client_prompt(prompt, 300, 12);
    struct err_info info;
#define REFUSED(code, field, change)                                                               \
    do {                                                                                           \
        client_init(c, prompt, 10, 10);                                                            \
        change;                                                                                    \
        assert_int_equal(client_submit(c, e, &info), code);                                        \
        assert_string_equal(info.param, field);                                                    \
        assert_null(c->stream);                                                                    \
    } while (0)
    REFUSED(ERR_INVALID, "prompt", c->r.n_prompt = 0);
    REFUSED(ERR_INVALID, "prompt", c->prompt[9] = FAKE_VOCAB);
    REFUSED(ERR_INVALID, "prompt", c->prompt[0] = -1);
    REFUSED(ERR_CONTEXT, "prompt", c->r.n_prompt = 256);
    REFUSED(ERR_CONTEXT, "max_tokens", c->r.max_tokens = 120); // 129 positions
    REFUSED(ERR_INVALID, "max_tokens", c->r.max_tokens = -1);
    REFUSED(ERR_INVALID, "min_tokens", c->r.min_tokens = 11);
    REFUSED(ERR_INVALID, "n", c->r.n = 0);
    REFUSED(ERR_INVALID, "n", c->r.n = 17); // more than sequences can run
    REFUSED(ERR_INVALID, "stop_token_ids", (c->r.n_stop_ids = 1, c->stop_ids[0] = FAKE_VOCAB));
    REFUSED(ERR_INVALID, "stop_token_ids", c->r.n_stop_ids = 65);
    REFUSED(ERR_INVALID, "prompt_logprobs", c->r.n_prompt_logprobs = 21);
    REFUSED(ERR_INVALID, "logprobs", c->r.sampling.n_logprobs = 21);
    REFUSED(ERR_INVALID, "temperature", c->r.sampling.temperature = -1);
    REFUSED(ERR_INVALID, "temperature", c->r.sampling.temperature = __builtin_nanf(""));
    REFUSED(ERR_INVALID, "top_p", c->r.sampling.top_p = 0);
    REFUSED(ERR_INVALID, "min_p", c->r.sampling.min_p = 2);
    REFUSED(ERR_INVALID, "top_k", c->r.sampling.top_k = -1);
    REFUSED(ERR_INVALID, "repetition_penalty", c->r.sampling.repetition = 0);
    REFUSED(ERR_INVALID, "logit_bias", (c->r.sampling.n_bias = 1, c->bias[0].id = -2));
    REFUSED(ERR_INVALID, "logit_bias",
            (c->r.sampling.n_bias = 1, c->bias[0].bias = __builtin_inff()));
    client_init(c, prompt, 10, 119); // 128 positions: fits exactly
    c->r.ignore_eos = true;
    client_run_one(e, c);
    assert_int_equal(c->choices[0].got, 119);
    client_close(c);
    eng_destroy(e);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(limits_end_a_choice),
        cmocka_unit_test(the_queue_is_bounded),
        cmocka_unit_test(a_stop_ends_what_runs),
        cmocka_unit_test(deadlines_hold_in_each_state),
        cmocka_unit_test(requests_that_cannot_be_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

// SPDX-License-Identifier: Apache-2.0
// The engine over a fake forward, one behaviour at a time.
#include "base/mem.h"
#include "serving/engine_internal.h"
#include "tests/serving/engine_support.h"
#include "tests/support/cmocka_all.h"
#include <stdio.h>
#include <string.h>

static void a_second_request_finds_the_prefix(void **state) {
    (void)state;
    struct kn_device d;
    struct eng *e = client_engine_over(&d, 64);
    int32_t prompt[100];
    const struct {
        uint64_t salt, version;
        int32_t n, cached;
    } steps[] = {
        {1, 0, 100, 0}, {1, 0, 100, 96}, {1, 0, 97, 96},
        {1, 0, 96, 80}, {2, 0, 100, 0},  // another salt
        {1, 5, 100, 0}, {1, 5, 100, 96}, // another adapter version
    };
    client_prompt(prompt, 100, 1);
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
        struct client *c = client_of(prompt, steps[i].n, 8);
        c->r.cache_salt = steps[i].salt;
        c->r.adapter_version = steps[i].version;
        c->r.adapter_slot = steps[i].version ? 0 : -1;
        client_run_one(e, c);
        struct eng_usage u;
        eng_stream_usage(c->stream, &u);
        assert_int_equal(u.prompt_tokens, steps[i].n);
        assert_int_equal(u.cached_tokens, steps[i].cached);
        client_close(c);
    }
    eng_destroy(e);
}

static void choices_share_the_prompt(void **state) {
    (void)state;
    struct kn_device d;
    struct eng *e = client_engine_over(&d, 64);
    struct client *c = client_new();
    int32_t prompt[70];
    client_init(c, prompt, client_prompt(prompt, 70, 2), 20);
    c->r.n = 5;
    c->r.sampling.temperature = 1;
    c->r.ignore_eos = true;
    client_send(c, e);
    for (int i = 0; i < 4; i++) // 70 tokens: two steps of 64, then decodes
        eng_step(e);
    struct kv_stats st;
    kv_pool_stats(e->pool, &st);
    assert_int_equal(st.live, 4 + 5); // 64 tokens are shared, each has its own last block
    client_run(e, &c, 1);
    assert_true(client_done(c));
    int same = 0;
    for (int i = 1; i < 5; i++)
        same += !memcmp(c->choices[0].tokens, c->choices[i].tokens, 20 * sizeof(int32_t));
    assert_int_equal(same, 0); // each choice has its own noise
    client_release(c);
    while (eng_step(e))
        ;
    check_empty(e);
    eng_destroy(e);
    mem_free(c);
}

static void a_score_skips_no_wanted_row(void **state) {
    (void)state;
    struct kn_device d;
    struct eng *e = client_engine_over(&d, 64);
    int32_t prompt[200];
    client_prompt(prompt, 200, 4);
    struct client *c = client_new();
    for (int round = 0; round < 2; round++) { // the second time everything is in the cache
        client_init(c, prompt, 200, 0);
        c->r.kind = ENG_SCORE;
        c->r.n_prompt_logprobs = 2;
        c->r.score_mask = c->score_mask;
        for (int32_t i = 150; i < 190; i++)
            c->score_mask[i] = 1;
        client_run_one(e, c);
        assert_int_equal(c->scored, 189);
        struct eng_usage u;
        eng_stream_usage(c->stream, &u);
        assert_int_equal(u.cached_tokens, round ? 144 : 0); // row 149 is wanted
        client_release(c);
    }
    eng_destroy(e);
    mem_free(c);
}

static void a_full_ring_pauses_only_its_request(void **state) {
    (void)state;
    struct kn_device d;
    struct eng *e = client_engine_over(&d, 64);
    int32_t prompt[20];
    client_prompt(prompt, 20, 5);
    struct client *slow = client_new(), *quick = client_new();
    client_init(slow, prompt, 20, 200);
    client_init(quick, prompt, 20, 200);
    slow->r.ignore_eos = quick->r.ignore_eos = true;
    struct err_info info;
    client_expect(slow, 256);
    client_expect(quick, 256);
    assert_int_equal(client_submit(slow, e, &info), ERR_OK);
    assert_int_equal(client_submit(quick, e, &info), ERR_OK);
    client_run(e, &quick, 1);
    assert_true(client_done(quick));
    struct eng__req *q = eng__req_of(slow->stream);
    assert_true(q->paused);
    assert_false(eng_step(e)); // nothing to do: no busy loop
    struct eng_health h;
    eng_health(e, &h);
    assert_false(h.busy); // it waits for its consumer: the loop is not late
    client_release(quick);
    client_init(quick, prompt, 20, 8);
    client_expect(quick, 256);
    clock_manual_advance(&d.clock, 1000);
    assert_int_equal(client_submit(quick, e, &info), ERR_OK);
    eng_health(e, &h);
    assert_true(h.busy);
    assert_int_equal(h.last_turn_ns, d.clock.mono); // late from now on, not from the last turn on
    client_run(e, &quick, 1);
    assert_int_equal(atomic_load(&slow->wakes), 1); // its first event; it never looked
    int32_t got = client_take(slow, 10);
    assert_int_equal(got, 10);
    assert_false(eng_step(e)); // more than half full still
    client_run(e, &slow, 1);
    assert_true(client_done(slow));
    client_release(slow);
    client_release(quick);
    eng_destroy(e);
    mem_free(slow);
    mem_free(quick);
}

static void paused_sequences_give_way_first(void **state) {
    (void)state;
    struct kn_device d;
    fake_init(&d, 16);
    struct eng_config cfg = client_config(&d);
    cfg.max_num_seqs = 2;
    struct eng *e = client_engine(&cfg);
    int32_t prompt[30];
    client_prompt(prompt, 30, 6);
    struct client *c[3];
    for (int i = 0; i < 3; i++)
        c[i] = client_ask(e, prompt, 30, 150);
    // 0 is the most senior, but nobody reads it: 1 and 2 run to their end.
    struct client *readers[] = {c[1], c[2]};
    client_run(e, readers, 2);
    assert_true(client_done(c[1]));
    assert_true(client_done(c[2]));
    assert_false(client_done(c[0]));
    assert_int_equal(eng__req_of(c[0]->stream)->choices[0].state, ENG__QUEUED);
    client_run(e, c, 1);
    assert_true(client_done(c[0]));
    client_close_all(c, 3);
    while (eng_step(e))
        ;
    check_empty(e);
    eng_destroy(e);
}

static void a_paused_place_is_taken_at_once(void **state) {
    (void)state;
    struct kn_device d;
    fake_init(&d, 64);
    struct eng_config cfg = client_config(&d);
    cfg.max_num_seqs = 1;
    struct eng *e = client_engine(&cfg);
    int32_t prompt[30];
    client_prompt(prompt, 30, 6);
    struct client *c[2];
    for (int i = 0; i < 2; i++)
        c[i] = client_ask(e, prompt, 30, 150);
    // As the thread does it: a turn that did nothing is followed by sleep.
    while (eng_step(e))
        client_take(c[1], INT32_MAX);
    assert_true(client_done(c[1]));
    client_run(e, c, 1);
    client_close_all(c, 2);
    eng_destroy(e);
}

static void a_prompt_waits_until_all_its_blocks_are_there(void **state) {
    (void)state;
    struct kn_device d;
    fake_init(&d, 16);
    struct eng_config cfg = client_config(&d);
    cfg.max_num_batched_tokens = 20;
    struct eng *e = client_engine(&cfg);
    int32_t prompt[160];
    struct client *c[2];
    for (int i = 0; i < 2; i++) {
        client_prompt(prompt, 160, i); // ten blocks each
        c[i] = client_ask(e, prompt, 160, 4);
    }
    while (!client_done(c[0])) { // the first has not taken all its blocks yet, but they are its own
        eng_step(e);
        client_take(c[0], INT32_MAX);
        assert_true(client_done(c[0]) ||
                    eng__req_of(c[1]->stream)->choices[0].state == ENG__QUEUED);
    }
    client_run(e, c, 2);
    client_close_all(c, 2);
    eng_destroy(e);
}

static void priority_runs_first_and_displaces(void **state) {
    (void)state;
    struct kn_device d;
    fake_init(&d, 64);
    struct eng_config cfg = client_config(&d);
    cfg.max_num_seqs = 1;
    struct eng *e = client_engine(&cfg);
    int32_t prompt[30];
    client_prompt(prompt, 30, 7);
    struct client *c[3];
    const int32_t priority[] = {5, 5, -1};
    for (int i = 0; i < 3; i++) {
        c[i] = client_of(prompt, 30, 40);
        c[i]->r.priority = priority[i];
        client_send(c[i], e);
        for (int t = 0; i == 0 && t < 5; t++)
            eng_step(e);
    }
    for (int i = 0; i < 200 && !client_done(c[2]); i++) {
        eng_step(e);
        client_take(c[2], INT32_MAX);
    }
    assert_true(client_done(c[2]));
    assert_true(atomic_load(&eng__req_of(c[0]->stream)->stream.tail) < 10);
    client_run(e, c, 2);
    assert_true(client_done(c[0]));
    assert_true(client_done(c[1]));
    client_close_all(c, 3);
    eng_destroy(e);
}

static void tokens_come_from_the_device_when_they_can(void **state) {
    (void)state;
    struct kn_device d;
    struct eng *e = client_engine_over(&d, 64);
    struct client *c = client_new();
    int32_t prompt[10];
    client_init(c, prompt, client_prompt(prompt, 10, 10), 20);
    c->r.ignore_eos = true;
    client_send(c, e);
    for (int i = 0; i < 6; i++) {
        eng_step(e);
        assert_int_equal(e->batch.ids[0]<0, i> 0);
    }
    client_run(e, &c, 1);
    assert_true(client_done(c));
    client_close(c);
    eng_destroy(e);
}

static void a_steady_decode_allocates_nothing(void **state) {
    (void)state;
    struct kn_device d;
    fake_init(&d, 200);
    struct eng_config cfg = client_config(&d);
    struct metrics *m = metrics_create();
    cfg.metrics = m;
    struct eng *e = client_engine(&cfg);
    struct client *c[8];
    int32_t prompt[10];
    client_prompt(prompt, 10, 11);
    for (int i = 0; i < 8; i++) {
        c[i] = client_of(prompt, 10, 200);
        c[i]->r.sampling.temperature = 1;
        c[i]->r.sampling.presence = 1;
        c[i]->r.sampling.seed = (uint64_t)i;
        client_send(c[i], e);
    }
    for (int i = 0; i < 10; i++)
        eng_step(e);
    int32_t steps = atomic_load(&d.steps);
    mem_fail_after(0, false);
    for (int i = 0; i < 100; i++) {
        eng_step(e);
        for (int j = 0; j < 8; j++)
            client_take(c[j], INT32_MAX);
    }
    steps = atomic_load(&d.steps) - steps;
    assert_int_equal(steps, 100);
    assert_int_equal(mem_fail_count(), steps); // the fake forward's own, one a step
    client_run(e, c, 8);
    client_close_all(c, 8);
    eng_destroy(e);
    metrics_destroy(m);
}

static void metrics_have_both_names(void **state) {
    (void)state;
    struct kn_device d;
    fake_init(&d, 64);
    for (int with = 0; with < 2; with++) {
        struct metrics *m = metrics_create();
        struct eng_config cfg = client_config(&d);
        cfg.metrics = m;
        cfg.vllm_metrics = with;
        cfg.model_label = "tiny\"model";
        struct eng *e = client_engine(&cfg);
        struct client *c = client_new();
        int32_t prompt[20];
        client_init(c, prompt, client_prompt(prompt, 20, 13), 5);
        c->r.n = 2;
        c->r.ignore_eos = true;
        client_run_one(e, c);
        struct buf out;
        buf_init(&out, 0);
        metrics_expose(m, &out);
        static const char *const lines[] = {
            "num_requests_running",
            "num_requests_waiting",
            "kv_cache_usage_perc",
            "prompt_tokens_total{model_name=\"tiny\\\"model\",engine=\"0\"} 20\n",
            "generation_tokens_total{model_name=\"tiny\\\"model\",engine=\"0\"} 10\n",
            ("request_success_total{model_name=\"tiny\\\"model\",engine=\"0\","
             "finished_reason=\"length\"} 1\n"), // requests, not choices
            "num_preemptions_total",
            "prefix_cache_queries_total",
            "prefix_cache_hits_total",
            "time_to_first_token_seconds_count",
            "inter_token_latency_seconds_count",
            "e2e_request_latency_seconds_count",
            "request_queue_time_seconds_count",
            "request_prefill_time_seconds_count",
            "request_decode_time_seconds_count",
            "request_prompt_tokens_sum",
            "request_generation_tokens_sum",
        };
        for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
            char name[200];
            snprintf(name, sizeof name, "\nvllm:%s", lines[i]);
            if ((strstr(out.data, name) != NULL) != (with == 1))
                fail_msg("%s: %s", lines[i], out.data);
        }
        assert_non_null(strstr(
            out.data, "\ngraft_prompt_tokens_total{model=\"tiny\\\"model\",replica=\"0\"} 20\n"));
        assert_non_null(strstr(out.data, "graft_inter_token_latency_seconds_count"
                                         "{model=\"tiny\\\"model\",replica=\"0\"} 8\n"));
        buf_fini(&out);
        client_release(c);
        eng_destroy(e);
        metrics_destroy(m);
        mem_free(c);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_second_request_finds_the_prefix),
        cmocka_unit_test(choices_share_the_prompt),
        cmocka_unit_test(a_score_skips_no_wanted_row),
        cmocka_unit_test(a_full_ring_pauses_only_its_request),
        cmocka_unit_test(paused_sequences_give_way_first),
        cmocka_unit_test(a_paused_place_is_taken_at_once),
        cmocka_unit_test(a_prompt_waits_until_all_its_blocks_are_there),
        cmocka_unit_test(priority_runs_first_and_displaces),
        cmocka_unit_test(tokens_come_from_the_device_when_they_can),
        cmocka_unit_test(a_steady_decode_allocates_nothing),
        cmocka_unit_test(metrics_have_both_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

// SPDX-License-Identifier: Apache-2.0
// What requests of the server itself (verification, warm-up) cost those of clients: README.md, rule
// 47. On a manual clock, so the numbers are exact.
#include "base/mem.h"
#include "serving/engine_internal.h"
#include "tests/serving/engine_support.h"
#include "tests/support/cmocka_all.h"
#include <string.h>

enum { STREAMS = 4, OWN = 4, PROMPT = 400, ROW_NS = 250000, STEP_NS = 5000000 };

// Each row has its price, so that no token is hidden in a step that takes as long anyhow.
static int64_t cost(const struct fake_step *s) {
    return STEP_NS + ROW_NS * (int64_t)s->rows;
}

struct seen { // of the steps since it was cleared
    int32_t steps, rows, most_rows;
    int64_t longest_ns;
};

static void on_step(void *arg, const struct fake_step *s) {
    struct seen *x = arg;
    int64_t ns = cost(s);
    x->steps++;
    x->rows += s->rows;
    x->most_rows = s->rows > x->most_rows ? s->rows : x->most_rows;
    x->longest_ns = ns > x->longest_ns ? ns : x->longest_ns;
}

struct bench {
    struct kn_device d;
    struct seen seen;
    struct eng *e;
    struct client *streams[STREAMS], *own[OWN];
};

static struct client *ask(struct bench *b, int32_t n_prompt, int32_t salt, int32_t n,
                          bool internal) {
    struct client *c = client_new();
    int32_t prompt[CLIENT_LEN];
    client_init(c, prompt, client_prompt(prompt, n_prompt, salt), n);
    c->r.ignore_eos = true;
    c->r.internal = internal;
    c->r.priority = internal ? INT32_MIN : 0; // it is admitted first, and takes no more for that
    c->r.kind = n ? ENG_GENERATE : ENG_SCORE;
    client_expect(c, 512);
    struct err_info info;
    assert_int_equal(client_submit(c, b->e, &info), ERR_OK);
    return c;
}

static void turn(struct bench *b) {
    eng_step(b->e);
    for (int i = 0; i < STREAMS; i++)
        if (b->streams[i])
            client_take(b->streams[i], 1000);
    for (int i = 0; i < OWN; i++)
        if (b->own[i])
            client_take(b->own[i], 1000);
}

static void start(struct bench *b, int streams) {
    memset(b, 0, sizeof *b);
    fake_init(&b->d, 1000);
    b->d.cost = cost;
    b->d.on_step = on_step;
    b->d.on_step_arg = &b->seen;
    struct eng_config cfg = client_config(&b->d);
    cfg.max_num_seqs = 16;
    cfg.max_num_batched_tokens = 512;
    cfg.max_model_len = 512;
    cfg.prefix_cache = false; // a sequence that gave way computes everything again
    b->e = client_engine(&cfg);
    for (int i = 0; i < streams; i++)
        b->streams[i] = ask(b, 8, i + 1, 480, false);
    for (int i = 0; i < 40; i++) // the cost of steps is learned
        turn(b);
    b->seen = (struct seen){0};
}

static bool all_done(struct client *const *c, int n) {
    for (int i = 0; i < n; i++)
        if (c[i] && !client_done(c[i]))
            return false;
    return true;
}

static void finish(struct bench *b) {
    while (!all_done(b->streams, STREAMS) || !all_done(b->own, OWN))
        turn(b);
    for (int i = 0; i < STREAMS; i++)
        if (b->streams[i])
            client_release(b->streams[i]);
    for (int i = 0; i < OWN; i++)
        if (b->own[i])
            client_release(b->own[i]);
    eng_destroy(b->e);
    for (int i = 0; i < STREAMS; i++)
        mem_free(b->streams[i]);
    for (int i = 0; i < OWN; i++)
        mem_free(b->own[i]);
}

static void prompts_hardly_stretch_steps_of_streams(void **state) {
    (void)state;
    struct bench b;
    start(&b, STREAMS);
    b.own[0] = ask(&b, PROMPT, 11, 0, true);
    while (!client_done(b.own[0])) {
        turn(&b);
        assert_true(b.seen.steps < 470); // it is done while the streams run
    }
    const int64_t alone = STEP_NS + STREAMS * ROW_NS;
    assert_true(b.seen.longest_ns <= alone * 11 / 10);
    assert_true(b.seen.most_rows >= STREAMS + 2); // what the stretch allows is used
    finish(&b);
}

// Four at a time, as a verification asks: more of them stretch a step no further.
static void many_prompts_no_more(void **state) {
    (void)state;
    struct bench b;
    start(&b, STREAMS);
    for (int i = 0; i < OWN; i++)
        b.own[i] = ask(&b, PROMPT / OWN, 20 + i, 0, true);
    while (!all_done(b.own, OWN))
        turn(&b);
    assert_true(b.seen.longest_ns <= (STEP_NS + STREAMS * ROW_NS) * 11 / 10);
    finish(&b);
}

static void a_client_s_prompt_has_most_of_the_step(void **state) {
    (void)state;
    struct bench b;
    start(&b, STREAMS - 1);
    for (int i = 0; i < OWN; i++)
        b.own[i] = ask(&b, PROMPT, 30 + i, 0, true);
    for (int i = 0; i < 20; i++)
        turn(&b);
    b.seen = (struct seen){0};
    b.streams[STREAMS - 1] = ask(&b, 200, 40, 16, false);
    while (!b.streams[STREAMS - 1]->choices[0].got)
        turn(&b);
    // 1.8 times the decodes alone, by one prompt that counts, and not by five.
    const int64_t alone = STEP_NS + (STREAMS - 1) * ROW_NS;
    assert_true(b.seen.longest_ns <= alone * 18 / 10);
    int32_t own = b.seen.rows - 200 - (STREAMS - 1) * b.seen.steps;
    assert_true(own > 0 && own <= 200 / 7 + 2 * b.seen.steps);
    finish(&b);
}

// Alone they keep a request that arrives waiting for one short step.
static void alone_their_steps_are_short(void **state) {
    (void)state;
    struct bench b;
    start(&b, 0);
    for (int i = 0; i < OWN; i++)
        b.own[i] = ask(&b, PROMPT, 50 + i, 0, true);
    for (int i = 0; i < 4; i++)
        turn(&b);
    b.seen = (struct seen){0};
    for (int i = 0; i < 20; i++)
        turn(&b);
    assert_int_equal(b.seen.steps, 20);
    assert_int_equal(b.seen.most_rows, 1); // the least, for a step takes 5 ms anyhow here
    finish(&b);
}

static void one_of_their_answers_is_in_a_step(void **state) {
    (void)state;
    struct bench b;
    start(&b, STREAMS);
    for (int i = 0; i < OWN; i++)
        b.own[i] = ask(&b, 4, 60 + i, 12, true);
    while (!all_done(b.own, OWN)) {
        turn(&b);
        assert_true(b.seen.steps < 400);
    }
    // Four prompts of four tokens, and then one answer beside the streams.
    assert_true(b.seen.most_rows <= STREAMS + 3);
    assert_true(b.seen.rows <= STREAMS * b.seen.steps + OWN * (4 + 12));
    assert_true(b.seen.steps >= OWN * 11);
    finish(&b);
}

static void nobody_gives_way_to_them(void **state) {
    (void)state;
    struct bench b;
    start(&b, STREAMS);
    b.e->cfg.max_num_seqs = STREAMS; // all places are taken
    b.own[0] = ask(&b, 8, 80, 0, true);
    for (int i = 0; i < 30; i++)
        turn(&b);
    assert_false(client_done(b.own[0])); // it waits for the end of a stream
    assert_int_equal(b.seen.rows, STREAMS * b.seen.steps);
    finish(&b);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(prompts_hardly_stretch_steps_of_streams),
        cmocka_unit_test(many_prompts_no_more),
        cmocka_unit_test(a_client_s_prompt_has_most_of_the_step),
        cmocka_unit_test(alone_their_steps_are_short),
        cmocka_unit_test(one_of_their_answers_is_in_a_step),
        cmocka_unit_test(nobody_gives_way_to_them),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

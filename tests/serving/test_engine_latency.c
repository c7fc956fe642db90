// SPDX-License-Identifier: Apache-2.0
// Who waits how long, on a manual clock: a step takes what a model of a real machine says, so the
// numbers are exact and the same everywhere. The engine does not know that model; it must learn it.
#include "base/mem.h"
#include "serving/engine.h"
#include "tests/serving/fake_forward.h"
#include "tests/serving/greedy_request.h"
#include "tests/support/cmocka_all.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_TOKENS = 2500, MAX_USERS = 40, LONG = 4000 };

// A small model in bf16 on two cores: the weights' bandwidth up to about ten rows, arithmetic
// beyond; prefill reads of the cache are cheaper than decode reads, for tiles are shared.
static int64_t cost_bf16(const struct fake_step *s) {
    int64_t rows = 1200000 * (int64_t)s->rows, least = 13000000;
    return (rows > least ? rows : least) + 300000 + s->decode_reads * 600 + s->prefill_reads * 300;
}

static int64_t cost_q8(const struct fake_step *s) {
    int64_t rows = 550000 * (int64_t)s->rows, least = 7000000;
    return (rows > least ? rows : least) + 400000 + s->decode_reads * 600 + s->prefill_reads * 300;
}

struct user {
    struct eng_stream *stream;
    int64_t sent_ns, token_ns[MAX_TOKENS];
    int32_t n;
    bool ended;
};

struct bench {
    struct kn_device d;
    struct eng *e;
    struct user users[MAX_USERS];
    int32_t prompt[LONG];
    int64_t gaps[MAX_USERS * MAX_TOKENS];
    uint64_t made;
};

static void start(struct bench *b, int64_t (*cost)(const struct fake_step *)) {
    fake_init(&b->d, 1000);
    b->d.cost = cost;
    struct eng_config cfg = {
        .weights = &b->d.weights,
        .ops = &b->d.ops,
        .device = &b->d,
        .kv_bytes = fake_kv_bytes(&b->d),
        .max_num_seqs = 64,
        .max_num_batched_tokens = 2048,
        .max_model_len = 4608,
        .max_queue = 64,
        .prefix_cache = true,
        .clock = &b->d.clock.clock,
    };
    struct err_info info;
    assert_int_equal(eng_create(&cfg, &b->e, &info), ERR_OK);
}

static void finish(struct bench *b) {
    for (int i = 0; i < MAX_USERS; i++)
        if (b->users[i].stream)
            eng_stream_release(b->users[i].stream);
    eng_destroy(b->e);
    mem_free(b);
}

static void ask_as(struct bench *b, int32_t who, int32_t n_prompt, int32_t n, uint64_t tenant) {
    struct user *u = &b->users[who];
    if (u->stream)
        eng_stream_release(u->stream);
    *u = (struct user){.sent_ns = b->d.clock.mono};
    b->made++;
    for (int32_t i = 0; i < n_prompt; i++)
        b->prompt[i] = 1 + (int32_t)((uint64_t)i * 31 + b->made * 17 + (b->made >> 3)) % 58;
    struct eng_request r = greedy_request(b->prompt, n_prompt, n);
    r.tenant = tenant;
    r.cache_salt = b->made; // cold caches
    struct err_info info;
    if (eng_submit(b->e, &r, &u->stream, &info))
        fail_msg("%s", info.message);
}

static void ask(struct bench *b, int32_t who, int32_t n_prompt, int32_t n) {
    ask_as(b, who, n_prompt, n, 0);
}

static void turn(struct bench *b) {
    eng_step(b->e);
    for (int i = 0; i < MAX_USERS; i++) {
        struct user *u = &b->users[i];
        struct eng_event ev;
        while (u->stream && eng_stream_next(u->stream, &ev)) {
            if (ev.type == ENG_EVENT_TOKEN)
                u->token_ns[u->n++] = b->d.clock.mono;
            u->ended = u->ended || ev.type == ENG_EVENT_END;
        }
    }
}

static int compare(const void *a, const void *b) {
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

static int64_t p99(int64_t *v, int32_t n) {
    assert_true(n > 0);
    qsort(v, (size_t)n, sizeof *v, compare);
    return v[(int64_t)n * 99 / 100];
}

// The 99th percentile of the gaps before tokens [from, to) of users [0, n).
static int64_t gap_p99(struct bench *b, int32_t n, int32_t from, int32_t to) {
    int32_t k = 0;
    for (int32_t i = 0; i < n; i++)
        for (int32_t t = from; t < to && t < b->users[i].n; t++)
            b->gaps[k++] = b->users[i].token_ns[t] - b->users[i].token_ns[t - 1];
    return p99(b->gaps, k);
}

static struct bench *eight_streams(int64_t (*cost)(const struct fake_step *)) {
    struct bench *b = mem_zalloc(sizeof *b);
    assert_non_null(b);
    start(b, cost);
    for (int i = 0; i < 8; i++)
        ask(b, i, 64, MAX_TOKENS);
    for (int i = 0; i < 120; i++)
        turn(b);
    return b;
}

static int64_t solo_ttft(int64_t (*cost)(const struct fake_step *), int32_t n_prompt) {
    struct bench *b = mem_zalloc(sizeof *b);
    assert_non_null(b);
    start(b, cost);
    for (int round = 0; round < 2; round++) { // the first one teaches the cost
        ask(b, 0, n_prompt, 2);
        while (!b->users[0].ended)
            turn(b);
    }
    int64_t t = b->users[0].token_ns[0] - b->users[0].sent_ns;
    finish(b);
    return t;
}

static void long_prompt_among_streams(int64_t (*cost)(const struct fake_step *), const char *name) {
    struct bench *b = eight_streams(cost);
    int32_t from = b->users[0].n + 1;
    ask(b, 8, LONG, 4);
    while (!b->users[8].n)
        turn(b);
    int32_t to = b->users[0].n;
    int64_t ttft = b->users[8].token_ns[0] - b->users[8].sent_ns;
    int64_t busy = gap_p99(b, 8, from, to), solo = solo_ttft(cost, LONG);
    assert_true(to < MAX_TOKENS);
    finish(b);
    b = eight_streams(cost); // the same tokens without the prompt
    while (b->users[0].n < to)
        turn(b);
    int64_t quiet = gap_p99(b, 8, from, to);
    finish(b);
    print_message("%s: gaps p99 %.1f ms quiet, %.1f ms with the prompt (%.2fx); its first token "
                  "after %.2f s, alone %.2f s (%.2fx)\n",
                  name, (double)quiet / 1e6, (double)busy / 1e6, (double)busy / (double)quiet,
                  (double)ttft / 1e9, (double)solo / 1e9, (double)ttft / (double)solo);
    assert_true(busy <= 2 * quiet);
    assert_true(ttft <= 3 * solo);
}

static void decodes_do_not_wait_for_a_long_prompt(void **state) {
    (void)state;
    long_prompt_among_streams(cost_bf16, "bf16");
    long_prompt_among_streams(cost_q8, "Q8_0");
}

// 32 users, each asking again when its answer is complete.
static void closed_loop(int64_t (*cost)(const struct fake_step *), const char *name,
                        double least_share, int64_t most_ttft) {
    enum { USERS = 32, ASKED = 160 };
    struct bench *b = mem_zalloc(sizeof *b);
    assert_non_null(b);
    start(b, cost);
    int64_t ttft[ASKED], itl[ASKED * 64], begin = b->d.clock.mono;
    int32_t asked = USERS, done = 0, gaps = 0;
    for (int i = 0; i < USERS; i++)
        ask(b, i, 128, 64);
    while (done < ASKED) {
        turn(b);
        for (int i = 0; i < USERS; i++) {
            struct user *u = &b->users[i];
            if (!u->ended)
                continue;
            u->ended = false;
            ttft[done++] = u->token_ns[0] - u->sent_ns;
            for (int t = 1; t < 64; t++)
                itl[gaps++] = u->token_ns[t] - u->token_ns[t - 1];
            if (asked < ASKED) {
                asked++;
                ask(b, i, 128, 64);
            }
        }
    }
    int64_t total = b->d.clock.mono - begin;
    // What the work costs in steps of ideal size: the rows, in steps of 64.
    struct fake_step ideal = {.rows = 64, .decode_reads = 21 * 160, .prefill_reads = 43 * 64};
    double least = (double)cost(&ideal) / 64 * (ASKED * (128 + 64));
    int64_t ttft_p99 = p99(ttft, done), itl_p99 = p99(itl, gaps); // sorts them
    int64_t ttft_p50 = ttft[done / 2];
    print_message(
        "%s: %.0f tokens/s, %.0f%% of the ideal; first token p50 %.2f s, p99 %.2f s; gaps "
        "p99 %.0f ms\n",
        name, ASKED * 64 / ((double)total / 1e9), 100 * least / (double)total,
        (double)ttft_p50 / 1e9, (double)ttft_p99 / 1e9, (double)itl_p99 / 1e6);
    assert_true(least >= least_share * (double)total);
    assert_true(ttft_p50 <= most_ttft);
    finish(b);
}

static void many_streams_use_the_machine(void **state) {
    (void)state;
    closed_loop(cost_bf16, "bf16", 0.85, 1500000000);
    closed_loop(cost_q8, "Q8_0", 0.85, 750000000);
}

static void a_short_prompt_does_not_wait_for_giants(void **state) {
    (void)state;
    struct bench *b = mem_zalloc(sizeof *b);
    assert_non_null(b);
    start(b, cost_bf16);
    ask(b, 0, 64, MAX_TOKENS);
    for (int i = 0; i < 50; i++)
        turn(b);
    for (int i = 1; i < 4; i++)
        ask(b, i, LONG, 4);
    for (int i = 0; i < 50; i++)
        turn(b);
    ask(b, 4, 100, 4);
    while (!b->users[4].n)
        turn(b);
    int64_t ttft = b->users[4].token_ns[0] - b->users[4].sent_ns;
    int64_t solo = solo_ttft(cost_bf16, 100);
    print_message("a short prompt behind three giants: %.2f s, alone %.2f s\n", (double)ttft / 1e9,
                  (double)solo / 1e9);
    assert_true(ttft < 6 * solo);
    // And the giants still come to their end.
    while (!b->users[1].n || !b->users[2].n || !b->users[3].n)
        turn(b);
    finish(b);
}

static void a_tenant_with_many_prompts_leaves_room(void **state) {
    (void)state;
    struct bench *b = mem_zalloc(sizeof *b);
    assert_non_null(b);
    start(b, cost_bf16);
    for (int i = 0; i < 30; i++)
        ask_as(b, i, 400, 8, 1);
    turn(b);
    ask_as(b, 30, 400, 8, 2);
    while (!b->users[30].n)
        turn(b);
    int32_t before = 0;
    for (int i = 0; i < 30; i++)
        before += b->users[i].n > 0;
    print_message("%d of 30 prompts of the other tenant came first\n", (int)before);
    assert_true(before <= 8);
    finish(b);
}

static void a_long_step_shows_signs_of_life(void **state) {
    (void)state;
    struct bench *b = mem_zalloc(sizeof *b);
    assert_non_null(b);
    start(b, cost_bf16);
    ask(b, 0, LONG, 2);
    while (!b->users[0].ended) {
        turn(b);
        struct eng_health h;
        eng_health(b->e, &h);
        assert_true(b->d.clock.mono - h.last_turn_ns <= 110000000);
    }
    assert_true(atomic_load(&b->d.sliced) > 10);
    finish(b);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(decodes_do_not_wait_for_a_long_prompt),
        cmocka_unit_test(many_streams_use_the_machine),
        cmocka_unit_test(a_short_prompt_does_not_wait_for_giants),
        cmocka_unit_test(a_tenant_with_many_prompts_leaves_room),
        cmocka_unit_test(a_long_step_shows_signs_of_life),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

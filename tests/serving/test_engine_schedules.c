// SPDX-License-Identifier: Apache-2.0
// Random requests, pools, budgets and consumers over the fake forward: each request gets the tokens
// of the plain run, each choice ends once, nothing is left over, and every play comes to an end,
// however small the pool.
#include "base/mem.h"
#include "tests/serving/engine_support.h"
#include "tests/support/cmocka_all.h"

struct play {
    struct kn_device d;
    struct eng *e;
    uint64_t rng;
    struct client *clients[24];
    int32_t n, ended;
};

static void disturb(struct play *p, struct client *c) {
    switch (client_rnd(&p->rng, 40)) {
    case 0:
        c->cancelled = true;
        eng_stream_cancel(c->stream);
        break;
    case 1: {
        int32_t choice = (int32_t)client_rnd(&p->rng, (uint32_t)c->r.n);
        c->stopped[choice] = true;
        eng_stream_stop(c->stream, choice);
        break;
    }
    case 2:
        client_release(c);
        break;
    default:
        break;
    }
}

static void play_turn(struct play *p, int32_t total, uint32_t laziness, bool disturbed) {
    if (p->n < total && client_rnd(&p->rng, 3) == 0) {
        struct client *c = p->clients[p->n] = client_new();
        client_random(c, &p->rng);
        client_expect(c, 256);
        struct err_info info = {0};
        enum err e = client_submit(c, p->e, &info);
        if (e)
            fail_msg("%s", info.message);
        p->n++;
    }
    eng_step(p->e);
    check_pool(p->e);
    for (int32_t i = 0; i < p->n; i++) {
        struct client *c = p->clients[i];
        if (!c->stream)
            continue;
        if (client_rnd(&p->rng, laziness) == 0)
            client_take(c, client_rnd(&p->rng, 3) ? INT32_MAX : 3);
        if (client_done(c)) {
            client_release(c);
            p->ended++;
        } else if (disturbed) {
            disturb(p, c);
        }
    }
}

static void play(uint64_t seed) {
    struct play *p = mem_zalloc(sizeof *p);
    assert_non_null(p);
    p->rng = seed;
    // A request has at most 150 + 60 tokens: 14 blocks. Small pools preempt all the time.
    fake_init(&p->d, 14 + (int32_t)client_rnd(&p->rng, client_rnd(&p->rng, 2) ? 8 : 120));
    struct eng_config cfg = client_config(&p->d);
    cfg.max_num_seqs = 4 + (int32_t)client_rnd(&p->rng, 28);
    cfg.max_num_batched_tokens = 1 + (int32_t)client_rnd(&p->rng, 200);
    cfg.prefix_cache = client_rnd(&p->rng, 4) != 0;
    p->e = client_engine(&cfg);
    bool disturbed = client_rnd(&p->rng, 2);
    uint32_t laziness = client_rnd(&p->rng, 3) ? 1 : 1 + client_rnd(&p->rng, 60);
    int32_t total = 4 + (int32_t)client_rnd(&p->rng, 20);
    for (int32_t turn = 0; turn < 60000; turn++) {
        play_turn(p, total, laziness, disturbed);
        int32_t open = 0;
        for (int32_t i = 0; i < p->n; i++)
            open += p->clients[i]->stream != NULL;
        if (p->n == total && !open)
            break;
        if (turn == 59999)
            fail_msg("seed %d: no end in sight", (int)seed);
    }
    while (eng_step(p->e)) // what was released last
        ;
    check_empty(p->e);
    eng_destroy(p->e);
    for (int32_t i = 0; i < p->n; i++)
        mem_free(p->clients[i]);
    mem_free(p);
}

static void any_schedule_gives_the_plain_tokens(void **state) {
    (void)state;
    int64_t live = mem_live_blocks();
    for (uint64_t seed = 1; seed <= 150; seed++)
        play(seed);
    assert_true(mem_live_blocks() == live);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_schedule_gives_the_plain_tokens),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

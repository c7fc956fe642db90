// SPDX-License-Identifier: Apache-2.0
// The engine over the real layer walk and the tiny golden models: random schedules with chunks,
// cache hits, forks, preemption and 1, 2 and 4 threads give the tokens and the log-probabilities,
// bit for bit, of a plain loop that runs one sequence alone.
//
// GRAFT_TEST_MODEL: a larger model (SmolLM2's GGUF file) to run as well. GRAFT_SCHEDULES: how many
// schedules per model.
#include "base/hash.h"
#include "base/mem.h"
#include "serving/engine.h"
#include "tests/model/model_fixture.h"
#include "tests/serving/greedy_request.h"
#include "tests/serving/walk_engine.h"
#include "tests/support/cmocka_all.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DOCS = 6, CHOICES = 2, MAX_PROMPT = 90, MAX_NEW = 24, CLIENTS = 12, TOP = 3 };

static const int32_t doc_len[DOCS] = {90, 70, 49, 48, 17, 5};

struct doc {
    int32_t ids[MAX_PROMPT];
    struct eng_sampling sampling;
    // The plain run's.
    struct kn_sample_out out[CHOICES][MAX_NEW];
    struct kn_sample_out scores[MAX_PROMPT];
};

struct client {
    const struct doc *doc;
    struct eng_stream *stream;
    int32_t n, got[CHOICES], ended, scored;
    bool scores;
    int32_t laziness;
};

static uint64_t rng;
static uint32_t rnd(uint32_t n) {
    rng += 0x9e3779b97f4a7c15u;
    return (uint32_t)(hash_mix64(rng) % n);
}

// The plain loop.

static void plain_step(struct fx *x, const int32_t *ids, int32_t first, int32_t n,
                       const struct mdl_want *want, int32_t n_want, struct kn_sample_out *out) {
    static int32_t blocks[FX_BLOCKS];
    int32_t pos[MAX_PROMPT], start[2] = {0, n}, len = first + n;
    for (int32_t i = 0; i < FX_BLOCKS; i++)
        blocks[i] = i + 1;
    for (int32_t i = 0; i < n; i++)
        pos[i] = first + i;
    struct mdl_batch b = {
        .n_tokens = n,
        .n_seqs = 1,
        .n_want = n_want,
        .ids = ids + first,
        .pos = pos,
        .seq_start = start,
        .kv_len = &len,
        .block_table = blocks,
        .max_blocks = FX_BLOCKS,
        .want = want,
    };
    struct err_info info;
    bool done;
    if (mdl_forward_begin(x->forward, &b, &x->kv, NULL, NULL, &info) ||
        mdl_forward_run(x->forward, INT64_MAX, &done, &info))
        fail_msg("%s", info.message);
    memcpy(out, mdl_forward_samples(x->forward), (size_t)n_want * sizeof *out);
}

static void plain_score(struct fx *x, struct doc *d, int32_t n) {
    struct mdl_want want[MAX_PROMPT];
    for (int32_t i = 0; i + 1 < n; i++)
        want[i] = (struct mdl_want){
            .row = i,
            .params = {.top_p = 1, .repetition = 1, .target = d->ids[i + 1], .n_logprobs = TOP}};
    plain_step(x, d->ids, 0, n, want, n - 1, d->scores + 1);
}

static void plain_generate(struct fx *x, struct doc *d, int32_t n_prompt, int32_t choice) {
    int32_t ids[MAX_PROMPT + MAX_NEW];
    struct kn_token_count counts[MAX_PROMPT + MAX_NEW];
    const struct eng_sampling *p = &d->sampling;
    memcpy(ids, d->ids, (size_t)n_prompt * sizeof *ids);
    int32_t n_counts = 0;
    for (int32_t i = 0; i < n_prompt; i++) {
        int32_t k = 0;
        while (k < n_counts && counts[k].id != ids[i])
            k++;
        if (k == n_counts)
            counts[n_counts++] = (struct kn_token_count){.id = ids[i], .prompt = 1};
    }
    for (int32_t t = 0; t < MAX_NEW; t++) {
        int32_t n = n_prompt + t;
        struct mdl_want want = {.row = t ? 0 : n - 1,
                                .counts = counts,
                                .params = {.seed = p->seed,
                                           .choice = (uint32_t)choice,
                                           .position = (uint32_t)n,
                                           .temperature = p->temperature,
                                           .top_p = p->top_p,
                                           .min_p = p->min_p,
                                           .top_k = p->top_k,
                                           .presence = p->presence,
                                           .frequency = p->frequency,
                                           .repetition = p->repetition,
                                           .target = -1,
                                           .n_logprobs = TOP}};
        if (p->presence != 0)
            want.params.n_counts = n_counts;
        struct kn_sample_out *o = &d->out[choice][t];
        plain_step(x, ids, t ? n - 1 : 0, t ? 1 : n, &want, 1, o);
        assert_int_equal(o->flags, 0);
        ids[n] = o->token;
        int32_t k = 0;
        while (k < n_counts && counts[k].id != o->token)
            k++;
        if (k == n_counts)
            counts[n_counts++] = (struct kn_token_count){.id = o->token};
        counts[k].out++;
    }
}

// Documents 0 to 2 share 48 tokens.
static void make_docs(struct fx *x, struct doc *docs) {
    for (int32_t i = 0; i < DOCS; i++) {
        struct doc *d = &docs[i];
        for (int32_t t = 0; t < doc_len[i]; t++)
            d->ids[t] =
                (int32_t)(hash_mix64((uint64_t)(t < 48 && i < 3 ? 0 : i) * 1000 + (uint64_t)t) %
                          (uint64_t)x->vocab);
        d->sampling = (struct eng_sampling){
            .top_p = 1, .repetition = 1, .seed = (uint64_t)i * 5, .n_logprobs = TOP};
        if (i % 2) {
            d->sampling.temperature = 0.8f;
            d->sampling.top_p = 0.9f;
            d->sampling.top_k = 50;
        }
        if (i % 3 == 0) {
            d->sampling.presence = 0.7f;
            d->sampling.repetition = 1.2f;
        }
        plain_score(x, d, doc_len[i]);
        for (int32_t c = 0; c < CHOICES; c++)
            plain_generate(x, d, doc_len[i], c);
    }
}

// The engine.

static void ask(struct client *c, struct eng *e, const struct doc *docs) {
    int32_t i = (int32_t)rnd(DOCS);
    *c = (struct client){.doc = &docs[i], .n = 1 + (int32_t)rnd(CHOICES), .scores = rnd(4) == 0};
    c->laziness = rnd(4) ? 1 : 1 + (int32_t)rnd(40);
    struct eng_request r = greedy_request(docs[i].ids, doc_len[i], MAX_NEW);
    r.sampling = docs[i].sampling;
    r.n = c->n;
    r.n_prompt_logprobs = c->scores ? TOP : -1;
    r.tenant = rnd(2);
    struct err_info info;
    if (eng_submit(e, &r, &c->stream, &info))
        fail_msg("%s", info.message);
}

static void compare(const struct eng_event *ev, const struct kn_sample_out *o) {
    assert_int_equal(ev->token, o->token);
    assert_memory_equal(&ev->logprob, &o->logprob, sizeof o->logprob);
    assert_int_equal(ev->rank, o->rank);
    assert_int_equal(ev->n_top, TOP);
    assert_memory_equal(ev->top_id, o->top_id, TOP * sizeof *o->top_id);
    assert_memory_equal(ev->top_logprob, o->top_logprob, TOP * sizeof *o->top_logprob);
}

static void take(struct client *c) {
    struct eng_event ev;
    while (eng_stream_next(c->stream, &ev)) {
        if (ev.type == ENG_EVENT_PROMPT) {
            assert_int_equal(ev.index, ++c->scored);
            compare(&ev, &c->doc->scores[ev.index]);
        } else if (ev.type == ENG_EVENT_TOKEN) {
            assert_int_equal(ev.index, c->got[ev.choice]++);
            compare(&ev, &c->doc->out[ev.choice][ev.index]);
        } else {
            assert_int_equal(ev.finish, ENG_FINISH_LENGTH);
            assert_int_equal(c->got[ev.choice], MAX_NEW);
            c->ended++;
        }
    }
    if (c->ended == c->n) {
        eng_stream_release(c->stream);
        c->stream = NULL;
    }
}

static double schedule(const struct fx *x, struct kn_device *device, const struct doc *docs,
                       uint64_t seed) {
    rng = seed;
    struct metrics *m = metrics_create();
    // A request needs at most 8 blocks, and two choices of it 16.
    struct eng_config cfg = walk_config(x, device, 8 + (int32_t)rnd(rnd(2) ? 6 : 40));
    cfg.max_num_seqs = 2 + (int32_t)rnd(14);
    cfg.max_num_batched_tokens = 1 + (int32_t)rnd(120);
    cfg.max_model_len = 128;
    cfg.max_queue = CLIENTS;
    cfg.prefix_cache = rnd(4) != 0;
    cfg.metrics = m;
    struct eng *e;
    struct err_info info;
    if (eng_create(&cfg, &e, &info))
        fail_msg("%s", info.message);
    struct client clients[CLIENTS];
    int32_t asked = 0, open = 0;
    while (asked < CLIENTS || open) {
        if (asked < CLIENTS && rnd(3) == 0)
            ask(&clients[asked++], e, docs);
        eng_step(e);
        open = 0;
        for (int32_t i = 0; i < asked; i++) {
            if (clients[i].stream && rnd((uint32_t)clients[i].laziness) == 0)
                take(&clients[i]);
            open += clients[i].stream != NULL;
        }
    }
    eng_destroy(e);
    struct buf text;
    buf_init(&text, 0);
    metrics_expose(m, &text);
    const char *at = strstr(text.data, "\ngraft_preemptions_total{");
    double preemptions = at ? strtod(strchr(at, '}') + 1, NULL) : -1;
    buf_fini(&text);
    metrics_destroy(m);
    return preemptions;
}

static void run_model(const char *path, int32_t schedules) {
    struct fx x;
    struct fx_options o = {.threads = 1};
    fx_open(&x, path, &o);
    struct doc *docs = mem_calloc(DOCS, sizeof *docs);
    assert_non_null(docs);
    make_docs(&x, docs);
    static const int threads[] = {1, 2, 4};
    double preemptions = 0;
    for (int t = 0; t < 3; t++) {
        struct kn_device_config cfg = {.threads = threads[t]};
        struct kn_device *device;
        struct err_info info;
        assert_int_equal(x.ops->open(&cfg, &device, &info), ERR_OK);
        for (int32_t s = t; s < schedules; s += 3)
            preemptions += schedule(&x, device, docs, (uint64_t)s + 1);
        x.ops->close(device);
    }
    print_message("%s: %d schedules, %.0f preemptions\n", path, (int)schedules, preemptions);
    assert_true(preemptions > 0);
    mem_free(docs);
    fx_close(&x);
}

static void any_schedule_gives_the_plain_bits(void **state) {
    (void)state;
    static const char *const models[] = {"bf16", "q8_0", "q4_0", "q4_1"};
    const char *n = getenv("GRAFT_SCHEDULES"), *big = getenv("GRAFT_TEST_MODEL");
    int32_t schedules = n ? atoi(n) : 30;
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        char path[64];
        snprintf(path, sizeof path, "tests/golden/models/%s.gguf", models[i]);
        run_model(path, schedules);
    }
    if (big)
        run_model(big, schedules);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_schedule_gives_the_plain_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

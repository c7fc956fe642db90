// SPDX-License-Identifier: Apache-2.0
// The layer walk at its boundary: every way to run a batch gives the bits of the plain way, a
// failure costs its own batch only, and nothing is allocated in the steady state.
#include "base/mem.h"
#include "model/forward_internal.h"
#include "tests/model/forward_doubles.h"
#include "tests/model/model_fixture.h"
#include "tests/support/cmocka_all.h"
#include <stdlib.h>
#include <string.h>

enum { N = 45 }; // tokens of a test sequence, no multiple of anything

static const char *const models[] = {
    "tests/golden/models/f32.gguf",   "tests/golden/models/f16.gguf",
    "tests/golden/models/bf16.gguf",  "tests/golden/models/q8_0.gguf",
    "tests/golden/models/q4_0.gguf",  "tests/golden/models/q4_1.gguf",
    "tests/golden/models/mixed.gguf", "tests/golden/models/llama3.gguf",
};
enum { MODELS = sizeof models / sizeof *models };

struct plain { // a sequence and the logits of its positions, computed in one go
    int32_t ids[N + 1];
    float *logits; // [N][vocab]
};

static void make_plain(struct fx *x, uint32_t seed, struct plain *p) {
    for (int32_t i = 0; i <= N; i++)
        p->ids[i] = (int32_t)((seed * 7919u + (uint32_t)i * 104729u) % (uint32_t)x->vocab);
    p->logits = mem_alloc((size_t)N * (size_t)x->vocab * sizeof(float));
    assert_non_null(p->logits);
    fx_run_plain(x, p->ids, N, N, 0, p->logits);
}

static void assert_row(const struct fx *x, int32_t row, const struct plain *p, int32_t pos) {
    size_t bytes = (size_t)x->vocab * sizeof(float);
    assert_memory_equal(x->logits + (size_t)row * (size_t)x->vocab,
                        p->logits + (size_t)pos * (size_t)x->vocab, bytes);
}

static int32_t argmax(const float *logits, int32_t n) {
    int32_t best = 0;
    for (int32_t i = 1; i < n; i++)
        if (logits[i] > logits[best])
            best = i;
    return best;
}

typedef void (*model_test)(struct fx *x, struct plain *p);

static void each_model(model_test test) {
    for (int i = 0; i < MODELS; i++) {
        struct fx x;
        struct plain p;
        fx_open(&x, models[i], &(struct fx_options){0});
        make_plain(&x, 1, &p);
        test(&x, &p);
        mem_free(p.logits);
        fx_close(&x);
    }
}

// ---- wanted rows

static void chunks(struct fx *x, struct plain *p) {
    float *all = mem_alloc((size_t)N * (size_t)x->vocab * sizeof(float));
    assert_non_null(all);
    static const int32_t sizes[] = {1, 7, 16, 33};
    for (int i = 0; i < 4; i++) {
        fx_run_plain(x, p->ids, N, sizes[i], 100, all);
        assert_memory_equal(all, p->logits, (size_t)N * (size_t)x->vocab * sizeof(float));
    }
    mem_free(all);
}

static void test_chunks(void **state) {
    (void)state;
    each_model(chunks);
}

// The sample at index 2N - 3 of the step before, taken on the device.
static void later_slices_feed_the_next_step(struct fx *x, const int32_t *ids, int32_t token) {
    size_t bytes = (size_t)x->vocab * sizeof(float);
    int32_t one[2] = {~(2 * N - 3), ids[0]};
    float *kept = mem_alloc(bytes);
    struct fx_batch b;
    struct fx_seq s;
    assert_non_null(kept);
    for (int i = 0; i < 2; i++) {
        fx_seq_init(&s, one, 1, 120);
        fx_batch_init(&b);
        fx_batch_add(&b, &s, 1, FX_LAST, false);
        fx_run(x, &b, NULL, NULL);
        if (i)
            assert_memory_equal(kept, x->logits, bytes);
        memcpy(kept, x->logits, bytes);
        one[0] = token;
    }
    mem_free(kept);
}

// Only the last row, no row, some rows in any order and twice, more rows than one slice of logits.
static void wants(struct fx *x, struct plain *p) {
    struct fx_batch b;
    struct fx_seq s;
    fx_seq_init(&s, p->ids, N, 100);
    fx_batch_init(&b);
    fx_batch_add(&b, &s, 20, FX_NONE, false);
    fx_run(x, &b, NULL, NULL);
    s.n_cached = 20;
    fx_batch_init(&b);
    fx_batch_add(&b, &s, 11, FX_LAST, false);
    fx_run(x, &b, NULL, NULL);
    assert_row(x, 0, p, 30);
    s.n_cached = 31;
    fx_batch_init(&b);
    fx_batch_add(&b, &s, N - 31, FX_ALL, false);
    static const int32_t rows[] = {5, 0, 13, 5, 2};
    b.b.n_want = 5;
    for (int i = 0; i < 5; i++)
        b.want[i].row = rows[i];
    fx_run(x, &b, NULL, NULL);
    for (int i = 0; i < 5; i++)
        assert_row(x, i, p, 31 + rows[i]);

    fx_seq_init(&s, p->ids, N, 110);
    fx_batch_init(&b);
    fx_batch_add(&b, &s, N, FX_ALL, false);
    for (int32_t i = 0; i < N; i++) { // more wants than rows, each row twice
        b.want[b.b.n_want] = b.want[i];
        b.want[b.b.n_want].params.target = i; // scored, in every slice of logits
        b.b.n_want++;
    }
    fx_run(x, &b, NULL, NULL);
    const struct kn_sample_out *o = mdl_forward_samples(x->forward);
    for (int32_t i = 0; i < 2 * N; i++) {
        const float *row = p->logits + (size_t)(i % N) * (size_t)x->vocab;
        assert_row(x, i, p, i % N);
        assert_int_equal(o[i].token, i < N ? argmax(row, x->vocab) : i - N);
    }
    later_slices_feed_the_next_step(x, p->ids, o[2 * N - 3].token);
}

static void test_wants(void **state) {
    (void)state;
    each_model(wants);
}

// ---- ids from the previous step, parameters that reach the sampler

static void previous_ids(struct fx *x, struct plain *p) {
    int32_t ids[N];
    memcpy(ids, p->ids, 5 * sizeof *ids);
    struct fx_batch b;
    struct fx_seq s, t;
    fx_seq_init(&s, ids, N, 100);
    fx_seq_init(&t, p->ids, N, 110);
    fx_batch_init(&b); // two sequences; the one under test is the second sample
    fx_batch_add(&b, &t, 3, FX_LAST, false);
    fx_batch_add(&b, &s, 5, FX_LAST, false);
    fx_run(x, &b, NULL, NULL);
    for (int32_t n = 5; n < 12; n++) {
        int32_t token = mdl_forward_samples(x->forward)[n == 5].token;
        assert_int_equal(token, argmax(x->logits + (n == 5 ? (size_t)x->vocab : 0), x->vocab));
        ids[n] = n == 5 ? ~1 : ~0;
        s.n_cached = n;
        fx_batch_init(&b);
        fx_batch_add(&b, &s, 1, FX_LAST, false);
        fx_run(x, &b, NULL, NULL);
        ids[n] = token;
    }
    float *host = mem_alloc((size_t)x->vocab * sizeof(float));
    assert_non_null(host);
    memcpy(host, x->logits, (size_t)x->vocab * sizeof(float));
    fx_seq_init(&s, ids, N, 120);
    fx_batch_init(&b);
    fx_batch_add(&b, &s, 12, FX_LAST, false);
    fx_run(x, &b, NULL, NULL);
    assert_memory_equal(host, x->logits, (size_t)x->vocab * sizeof(float));
    mem_free(host);
}

static void test_previous_ids(void **state) {
    (void)state;
    each_model(previous_ids);
}

static void test_sampler_parameters(void **state) {
    (void)state;
    struct fx x;
    struct plain p;
    fx_open(&x, models[0], &(struct fx_options){0});
    make_plain(&x, 1, &p);
    size_t words = ((size_t)x.vocab + 31) / 32;
    uint32_t *mask = mem_calloc(words, sizeof *mask);
    // So many entries that the staging must grow.
    enum { MANY = 8000 };
    struct kn_token_count *counts = mem_calloc(MANY, sizeof *counts);
    assert_non_null(mask);
    assert_non_null(counts);
    mask[1] = 1u << 5; // token 37 alone
    struct kn_token_bias bias[] = {{3, 1000.0F}, {4, 2000.0F}};
    int32_t best = argmax(p.logits + (size_t)30 * (size_t)x.vocab, x.vocab);
    for (int32_t i = 0; i < MANY; i++)
        counts[i] = (struct kn_token_count){i < x.vocab ? i : best, 0, 0};
    counts[best].out = 1;

    struct fx_batch b;
    struct fx_seq s;
    fx_seq_init(&s, p.ids, N, 100);
    fx_batch_init(&b);
    fx_batch_add(&b, &s, 31, FX_LAST, false);
    b.b.n_want = 5;
    for (int i = 1; i < 5; i++)
        b.want[i] = b.want[0];
    b.want[1].mask = mask;
    b.want[2].bias = bias;
    b.want[2].params.n_bias = 2;
    b.want[3].counts = counts;
    b.want[3].params.n_counts = x.vocab < MANY ? x.vocab : MANY;
    b.want[3].params.presence = 1e6F;
    b.want[4].params.target = 9;
    b.want[4].params.n_logprobs = 2;
    fx_run(&x, &b, NULL, NULL);
    const struct kn_sample_out *o = mdl_forward_samples(x.forward);
    assert_int_equal(o[0].token, best);
    assert_int_equal(o[1].token, 37);
    assert_int_equal(o[2].token, 4);
    assert_int_not_equal(o[3].token, best);
    assert_int_equal(o[4].token, 9);
    assert_int_equal(o[4].n_top, 2);
    assert_int_equal(o[4].top_id[0], best);

    size_t before = mdl_forward_bytes(x.forward);
    b.want[3].params.n_counts = MANY;
    struct err_info info;
    bool done;
    for (uint64_t n = 1; n <= 2; n++) { // the host's part, the device's
        mem_fail_after(n, false);
        assert_int_equal(mdl_forward_begin(x.forward, &b.b, &x.kv, NULL, NULL, &info), ERR_NOMEM);
        mem_fail_after(0, false);
        assert_int_equal(mdl_forward_run(x.forward, INT64_MAX, &done, &info), ERR_INVALID);
        assert_int_equal(mdl_forward_bytes(x.forward), before);
    }
    fx_run(&x, &b, NULL, NULL);
    assert_true(mdl_forward_bytes(x.forward) > before);
    assert_int_equal(mdl_forward_samples(x.forward)[1].token, 37);
    assert_int_equal(mdl_forward_samples(x.forward)[2].token, 4);
    mem_free(mask);
    mem_free(counts);
    mem_free(p.logits);
    fx_close(&x);
}

// ---- deadlines

// A second cursor on the same queue runs in between.
static void deadlines(struct fx *x, struct plain *p) {
    struct err_info info;
    struct ticking_clock clock;
    ticking_clock_init(&clock, 7);
    struct mdl_forward_limits limits = {64, 4, 64, FX_BLOCKS};
    struct mdl_forward *two[2];
    float *logits[2];
    for (int i = 0; i < 2; i++) {
        assert_int_equal(
            mdl_forward_create(x->weights, x->queue, &limits, &clock.clock, &two[i], &info),
            ERR_OK);
        logits[i] = mem_alloc((size_t)N * (size_t)x->vocab * sizeof(float));
        assert_non_null(logits[i]);
        mdl_forward_capture_logits(two[i], logits[i]);
    }
    for (int round = 0; round < 6; round++) {
        struct fx_batch b[2];
        struct fx_seq s;
        bool done[2] = {false, false};
        int64_t stops = 0;
        for (int i = 0; i < 2; i++) {
            memset(logits[i], 0, (size_t)N * (size_t)x->vocab * sizeof(float));
            fx_seq_init(&s, p->ids, N, 100 + 10 * i);
            fx_batch_init(&b[i]);
            fx_batch_add(&b[i], &s, N, FX_ALL, false);
            two[i]->cut_rows = 7 + 9 * i;
            two[i]->slice_ns = 1000.0 * (1 << (2 * round)); // a tiny model is done in a moment
            assert_int_equal(mdl_forward_begin(two[i], &b[i].b, &x->kv, NULL, NULL, &info), ERR_OK);
        }
        while (!done[0] || !done[1]) {
            int i = (int)(ticking_clock_draw(&clock) % 2);
            if (done[i])
                i = !i;
            int64_t at = clock.now + (int64_t)(ticking_clock_draw(&clock) % 3000000);
            if (mdl_forward_run(two[i], at, &done[i], &info))
                fail_msg("run: %s", info.message);
            stops++;
        }
        assert_true(round > 0 || stops > 20);
        for (int i = 0; i < 2; i++)
            assert_memory_equal(logits[i], p->logits, (size_t)N * (size_t)x->vocab * sizeof(float));
    }
    for (int i = 0; i < 2; i++) {
        mdl_forward_destroy(two[i]);
        mem_free(logits[i]);
    }
}

static void test_deadlines(void **state) {
    (void)state;
    each_model(deadlines);
}

// ---- hooks

static void hooks(struct fx *x, struct plain *p) {
    struct counting_hook h;
    struct mdl_hooks m = {.linear = counting_hook_linear, .arg = &h};
    counting_hook_init(&h, x->weights);
    struct fx_batch b;
    struct fx_seq s, t;
    fx_seq_init(&s, p->ids, N, 100);
    fx_seq_init(&t, p->ids, N, 110);
    fx_batch_init(&b);
    fx_batch_add(&b, &s, 20, FX_ALL, false);
    fx_batch_add(&b, &t, 10, FX_ALL, false);
    fx_run(x, &b, &m, NULL);
    for (int i = 0; i < 20; i++)
        assert_row(x, i, p, i);
    int32_t layers = x->weights->config.n_layers;
    for (int i = 0; i < MDL_LINEARS; i++)
        assert_int_equal(h.calls[i], layers);
    assert_true(h.in_order);

    // One sequence has an adapter, which is dominated by its hook; the other does not notice.
    h.row_begin = 20;
    h.row_end = 30;
    b.slot[1] = 3;
    fx_run(x, &b, &m, NULL);
    assert_int_equal(h.slots[0], -1);
    assert_int_equal(h.slots[1], 3);
    h.calls[0] = h.calls[1] = h.calls[2] = h.calls[3] = 0;
    b.b.slot = NULL;
    fx_run(x, &b, &m, NULL);
    assert_int_equal(h.slots[0], -1);
    assert_int_equal(h.slots[1], -1);
    for (int i = 0; i < 20; i++)
        assert_row(x, i, p, i);
    for (int i = 0; i < 10; i++)
        assert_memory_not_equal(x->logits + (size_t)(20 + i) * (size_t)x->vocab,
                                p->logits + (size_t)i * (size_t)x->vocab,
                                (size_t)x->vocab * sizeof(float));
    counting_hook_fini(&h);
}

static void test_hooks(void **state) {
    (void)state;
    each_model(hooks);
}

// ---- errors

static void assert_plain(struct fx *x, struct plain *p) {
    struct fx_batch b;
    struct fx_seq s;
    fx_seq_init(&s, p->ids, N, 100);
    fx_batch_init(&b);
    fx_batch_add(&b, &s, N, FX_LAST, false);
    fx_run(x, &b, NULL, NULL);
    assert_row(x, 0, p, N - 1);
}

// At each linear in turn: the hook fails while it records, or what it records fails on the queue.
static void errors(struct fx *x, struct plain *p) {
    struct fx_batch b;
    struct fx_seq s;
    struct err_info info;
    bool done;
    fx_seq_init(&s, p->ids, N, 100);
    fx_batch_init(&b);
    fx_batch_add(&b, &s, N, FX_LAST, false);
    for (int i = 0; i < 2 * MDL_LINEARS; i++) {
        struct failing_hook h = {.ops = x->ops, .which = i / 2, .record = i % 2};
        struct mdl_hooks m = {.linear = failing_hook_linear, .arg = &h};
        memset(&info, 0, sizeof info);
        assert_int_equal(mdl_forward_begin(x->forward, &b.b, &x->kv, &m, NULL, &info), ERR_OK);
        enum err e;
        do
            e = mdl_forward_run(x->forward, i % 3 ? INT64_MAX : 0, &done, &info);
        while (!e && !done);
        assert_int_equal(e, i % 2 ? ERR_DEVICE : ERR_INVALID);
        assert_int_equal(info.code, e);
        assert_false(done);
        // The cursor is at rest, and the queue is dry.
        assert_int_equal(mdl_forward_run(x->forward, INT64_MAX, &done, &info), ERR_INVALID);
        assert_int_equal(x->ops->queue_wait(x->queue, &info), ERR_OK);
        assert_plain(x, p);
    }
}

static void test_errors(void **state) {
    (void)state;
    each_model(errors);
}

// Makes one thing of a good batch wrong; false: there is no such case.
static bool spoil(int i, int32_t vocab, struct fx_batch *b, struct mdl_kv *kv, enum err *expected) {
    *expected = ERR_INVALID;
    switch (i) {
    case 0:
        b->b.n_tokens = 0, *expected = ERR_LIMIT;
        break;
    case 1:
        b->b.n_tokens = FX_TOKENS + 1, *expected = ERR_LIMIT;
        break;
    case 2:
        b->b.n_seqs = FX_SEQS + 1, *expected = ERR_LIMIT;
        break;
    case 3:
        b->b.n_want = FX_TOKENS + 1, *expected = ERR_LIMIT;
        break;
    case 4:
        b->b.max_blocks = FX_BLOCKS + 1, *expected = ERR_LIMIT;
        break;
    case 5:
        b->seq_start[0] = 1;
        break;
    case 6:
        b->seq_start[1] = 13;
        break;
    case 7:
        b->seq_start[2] = 12;
        break;
    case 8:
        b->kv_len[0] = 0;
        break;
    case 9:
        b->kv_len[1] = 4;
        break;
    case 10:
        b->kv_len[1] = FX_BLOCKS * KN_KV_BLOCK + 1;
        break;
    case 11:
        b->pos[4] = 5;
        break;
    case 12:
        b->ids[2] = vocab;
        break;
    case 13:
        b->ids[2] = ~N; // the previous step had N wanted positions
        break;
    case 14:
        b->want[1].row = 13;
        break;
    case 15:
        b->want[1].row = -1;
        break;
    case 16:
        b->want[0].params.n_bias = 1;
        break;
    case 17:
        b->want[0].params.n_counts = -1;
        break;
    case 18:
        b->want[0].params.target = vocab;
        break;
    case 19:
        b->want[0].params.n_logprobs = KN_MAX_TOP_LOGPROBS + 1;
        break;
    case 20:
        kv->shape.layers++;
        break;
    case 21:
        kv->pool = 0;
        break;
    default:
        return false;
    }
    return true;
}

static void test_invalid_batches(void **state) {
    (void)state;
    struct fx x;
    struct plain p;
    fx_open(&x, models[0], &(struct fx_options){0});
    make_plain(&x, 1, &p);
    struct err_info info;
    struct fx_batch good, b;
    struct fx_seq s;
    fx_seq_init(&s, p.ids, N, 100);
    fx_batch_init(&good);
    fx_batch_add(&good, &s, 10, FX_LAST, false);
    fx_batch_add(&good, &s, 3, FX_LAST, false);
    struct mdl_kv kv = x.kv;
    for (int i = 0;; i++) {
        memcpy(&b, &good, sizeof b);
        b.b.ids = b.ids, b.b.pos = b.pos, b.b.seq_start = b.seq_start, b.b.kv_len = b.kv_len;
        b.b.want = b.want;
        kv = x.kv;
        enum err expected;
        if (!spoil(i, x.vocab, &b, &kv, &expected))
            break;
        info.code = ERR_OK;
        if (mdl_forward_begin(x.forward, &b.b, &kv, NULL, NULL, &info) != expected)
            fail_msg("case %d: %s", i, err_name(info.code));
        assert_int_equal(info.code, expected);
    }
    mem_free(p.logits);
    fx_close(&x);
}

// ---- memory

static void test_steady_state(void **state) {
    (void)state;
    struct fx x;
    struct plain p;
    fx_open(&x, models[3], &(struct fx_options){0});
    make_plain(&x, 1, &p);
    struct fx_batch b;
    struct fx_seq s;
    struct kn_token_bias bias = {3, 1.0F};
    for (int round = 0; round < 3; round++) {
        if (round == 1)
            mem_fail_after(0, false);
        fx_seq_init(&s, p.ids, N, 100);
        for (; s.n_cached < N; s.n_cached++) {
            fx_batch_init(&b);
            fx_batch_add(&b, &s, 1, FX_LAST, false);
            b.want[0].bias = &bias;
            b.want[0].params.n_bias = 1;
            fx_run(&x, &b, NULL, NULL);
        }
    }
    assert_int_equal(mem_fail_count(), 0);
    mem_free(p.logits);
    fx_close(&x);
}

static void test_create_out_of_memory(void **state) {
    (void)state;
    struct fx x;
    fx_open(&x, models[0], &(struct fx_options){0});
    int64_t live = mem_live_blocks();
    struct mdl_forward_limits limits = {64, 4, 64, FX_BLOCKS};
    struct err_info info;
    struct mdl_forward *f;
    int n = 0;
    for (;;) {
        mem_fail_after((uint64_t)++n, false);
        enum err e = mdl_forward_create(x.weights, x.queue, &limits, &clock_system, &f, &info);
        mem_fail_after(0, false);
        if (!e)
            break;
        assert_int_equal(e, ERR_NOMEM);
        assert_int_equal(mem_live_blocks(), live);
    }
    assert_true(n > 4);
    mdl_forward_destroy(f);
    struct mdl_forward_limits none = {0, 4, 64, FX_BLOCKS};
    assert_int_equal(mdl_forward_create(x.weights, x.queue, &none, &clock_system, &f, &info),
                     ERR_INVALID);
    fx_close(&x);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_chunks),       cmocka_unit_test(test_wants),
        cmocka_unit_test(test_previous_ids), cmocka_unit_test(test_sampler_parameters),
        cmocka_unit_test(test_deadlines),    cmocka_unit_test(test_hooks),
        cmocka_unit_test(test_errors),       cmocka_unit_test(test_invalid_batches),
        cmocka_unit_test(test_steady_state), cmocka_unit_test(test_create_out_of_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

// SPDX-License-Identifier: Apache-2.0
// An engine that serves and trains on one thread: answers have the tokens and log-probabilities
// that they have without training, the trained adapter the bits that it has without serving; memory
// comes back.
#include "base/mem.h"
#include "base/thread.h"
#include "gateway/train_place.h"
#include "serving/engine_internal.h"
#include "tests/finetune/train_fixture.h"
#include "tests/serving/greedy_request.h"
#include "tests/support/assert_ok.h"
#include "tests/support/scratch.h"
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum {
    EXPONENT = 40,
    ALL_TARGETS = (1 << MDL_TARGETS) - 1,
    PROMPT = 40,
    NEW = 24,
    ASKED = 30,
    AT_ONCE = 3,
    MANY = 48,
    TAKEN = 5,
    STEPS = 6,
    BLOCKS = 24,
    PER_REQUEST = (PROMPT + NEW) / KN_KV_BLOCK
};

// ---- training

struct trainer {
    struct ft_exec *exec;
    const struct tf_golden *g;
    const struct mdl_config *config;
    struct mdl_adapter *out;
    enum err result;
    struct err_info info;
    const struct mdl_adapter *expected; // NULL: any
    bool endless;                       // runs again and again, until `quit` or an error
    _Atomic int runs;
    _Atomic bool quit, ended;
};

static enum err steps(struct trainer *t) {
    enum err e = ft_exec_set(t->exec, t->g->start, NULL, NULL, &t->info);
    for (int32_t s = 0; s < STEPS && !e; s++) {
        int64_t targets = 0;
        for (int32_t i = 0; i < t->g->n_rows && !e; i++) {
            struct lora_row row = tf_lora_row(&t->g->rows[i], EXPONENT);
            struct lora_row_result res;
            e = ft_exec_unit(t->exec, &row, &res, &t->info);
            targets += e ? 0 : res.targets;
        }
        struct ft_step step = {.divisor = (double)targets,
                               .lr = 1e-3,
                               .beta1 = 0.9,
                               .beta2 = 0.999,
                               .eps = 1e-8,
                               .t = s + 1,
                               .exponent = EXPONENT};
        struct ft_step_result res;
        if (!e)
            e = ft_exec_step(t->exec, &step, &res, &t->info);
    }
    return e ? e : ft_exec_get(t->exec, t->out, NULL, NULL, &t->info);
}

static void *train(void *arg) {
    struct trainer *t = arg;
    do {
        t->result = steps(t);
        if (!t->result && t->expected &&
            memcmp(t->out->memory, t->expected->memory, t->out->values * sizeof(float)) != 0)
            t->result = err_set(&t->info, ERR_INTERNAL, NULL, "other bits beside serving");
        atomic_fetch_add(&t->runs, 1);
    } while (t->endless && !t->result && !atomic_load(&t->quit));
    atomic_store(&t->ended, true);
    return NULL;
}

static void open_trainer(struct trainer *t, const struct tf_golden *g, const struct mdl_config *c) {
    *t = (struct trainer){.g = g, .config = c};
    assert_ok(mdl_adapter_create(c, ALL_TARGETS, 4, 8, false, &t->out, &t->info), &t->info);
}

// ---- serving

struct answer {
    int32_t n, token[NEW];
    float logprob[NEW];
};

static struct eng_stream *ask(struct eng *e, const struct fx *x, int32_t number) {
    int32_t ids[PROMPT];
    struct eng_stream *s;
    struct err_info info;
    for (int32_t i = 0; i < PROMPT; i++)
        ids[i] = (number * 31 + i * i * 7) % x->vocab;
    struct eng_request r = greedy_request(ids, PROMPT, NEW);
    r.sampling.temperature = number % 2 ? 0.8f : 0;
    r.sampling.seed = (uint64_t)number;
    r.sampling.n_logprobs = 0;
    assert_ok(eng_submit(e, &r, &s, &info), &info);
    return s;
}

static void read_answer(struct eng_stream *s, struct answer *a) {
    struct eng_event ev;
    for (;;) {
        if (!eng_stream_next(s, &ev)) {
            usleep(100);
        } else if (ev.type == ENG_EVENT_TOKEN) {
            assert_true(a->n < NEW);
            a->logprob[a->n] = ev.logprob;
            a->token[a->n++] = ev.token;
        } else if (ev.type == ENG_EVENT_END) {
            assert_int_equal(ev.finish, ENG_FINISH_LENGTH);
            break;
        }
    }
    eng_stream_release(s);
}

static void serve(struct eng *e, const struct fx *x, struct answer *out) {
    memset(out, 0, ASKED * sizeof *out);
    for (int32_t i = 0; i < ASKED; i += AT_ONCE) {
        struct eng_stream *s[AT_ONCE];
        for (int32_t k = 0; k < AT_ONCE; k++)
            s[k] = ask(e, x, i + k);
        for (int32_t k = 0; k < AT_ONCE; k++)
            read_answer(s[k], &out[i + k]);
        usleep(2000); // the time that training gets
    }
}

static struct eng *make_engine(const struct fx *x, size_t kv_bytes, const struct eng_background *b,
                               const struct clock *clock) {
    struct kn_kv_shape shape = {x->weights->config.n_layers, x->weights->config.n_kv_heads,
                                x->weights->config.head_dim};
    struct eng_config cfg = {.weights = x->weights,
                             .ops = x->ops,
                             .device = x->device,
                             .kv_bytes = kv_bytes,
                             .max_num_seqs = MANY,
                             .max_num_batched_tokens = 64,
                             .max_model_len = 96,
                             .max_queue = MANY,
                             .prefix_cache = true,
                             .background = *b,
                             .clock = clock};
    struct err_info info;
    struct eng *e;
    assert_true(kv_bytes >= BLOCKS * x->ops->kv_block_bytes(&shape));
    assert_ok(eng_create(&cfg, &e, &info), &info);
    return e;
}

static struct eng *place_engine(const struct fx *x, struct train_place *p) {
    const struct eng_background b = train_place_background(p);
    return p->engine = make_engine(x, p->memory, &b, NULL);
}

static struct eng *open_engine(const struct fx *x, struct train_place *p) {
    struct err_info info;
    struct eng *e = place_engine(x, p);
    assert_ok(eng_start(e, &info), &info);
    return e;
}

// ---- tests

static struct ft_exec_config config_of(const struct fx *x, const struct scratch *dir) {
    return (struct ft_exec_config){.weights = x->weights,
                                   .spill = {.dir = dir->fd, .piece = 4096},
                                   .lora = {.targets = ALL_TARGETS, .r = 4, .alpha = 8},
                                   .limits = {TF_TOKENS, TF_SEQS, true},
                                   .clock = &clock_system};
}

static void test_both(void **state) {
    static struct answer quiet[ASKED], busy[ASKED];
    struct fx x;
    struct tf_golden g;
    struct trainer alone, beside;
    struct train_place place = {.memory = 1 << 20};
    struct err_info info;
    struct thread thread;
    fx_open(&x, "tests/golden/models/q8_0.gguf", &(struct fx_options){0});
    tf_golden_read(&g, &x.weights->config, "q8_0");
    struct ft_exec_config cfg = config_of(&x, *state);
    open_trainer(&alone, &g, &x.weights->config);
    open_trainer(&beside, &g, &x.weights->config);
    assert_ok(ft_exec_create(&cfg, &alone.exec, &info), &info);
    train(&alone);
    assert_ok(alone.result, &alone.info);
    ft_exec_destroy(alone.exec);

    assert_ok(train_place_init(&place, &info), &info);
    struct eng *e = open_engine(&x, &place);
    serve(e, &x, quiet);
    beside.expected = alone.out;
    beside.endless = true;
    assert_ok(train_place_create(&place, &cfg, &beside.exec, &info), &info);
    assert_int_equal(thread_start(&thread, "trainer", train, &beside), ERR_OK);
    for (int i = 0; i < 3 || atomic_load(&beside.runs) < 2; i++) {
        serve(e, &x, busy);
        assert_memory_equal(quiet, busy, sizeof quiet);
    }
    atomic_store(&beside.quit, true);
    thread_join(&thread);
    assert_ok(beside.result, &beside.info);
    train_place_destroy(&place, beside.exec);
    serve(e, &x, busy); // on memory that was lent
    assert_memory_equal(quiet, busy, sizeof quiet);
    eng_stop(e);
    eng_destroy(e);
    train_place_fini(&place);
    assert_memory_not_equal(alone.out->memory, g.start->memory, alone.out->values * sizeof(float));
    mdl_adapter_destroy(alone.out);
    mdl_adapter_destroy(beside.out);
    tf_golden_fini(&g);
    fx_close(&x);
}

static void test_stop(void **state) {
    struct fx x;
    struct tf_golden g;
    struct trainer t;
    struct train_place place = {.memory = 1 << 20};
    struct err_info info;
    struct thread thread;
    fx_open(&x, "tests/golden/models/f32.gguf", &(struct fx_options){0});
    tf_golden_read(&g, &x.weights->config, "f32");
    struct ft_exec_config cfg = config_of(&x, *state);
    assert_ok(train_place_init(&place, &info), &info);
    struct eng *e = open_engine(&x, &place);
    for (int i = 0; i < 5; i++) {
        open_trainer(&t, &g, &x.weights->config);
        t.endless = true;
        assert_ok(train_place_create(&place, &cfg, &t.exec, &info), &info);
        assert_int_equal(thread_start(&thread, "trainer", train, &t), ERR_OK);
        usleep((useconds_t)i * 300);
        train_place_stop(&place);
        thread_join(&thread);
        assert_int_equal(t.result, ERR_CANCELLED);
        train_place_destroy(&place, t.exec);
        mdl_adapter_destroy(t.out);
    }
    train_place_stop(&place); // of nobody
    // A row that the cache can never lend memory to.
    place.memory = 4096;
    assert_int_equal(train_place_create(&place, &cfg, &t.exec, &info), ERR_LIMIT);
    assert_non_null(strstr(info.message, "--kv-cache-memory-bytes"));
    eng_stop(e);
    eng_destroy(e);
    train_place_fini(&place);
    tf_golden_fini(&g);
    fx_close(&x);
}

// Background work that leaves nothing but NaN in all that is lent.
struct vandal {
    struct eng *engine;
    _Atomic int times;
    bool on;
};

static int64_t vandalise(void *arg, int64_t budget_us) {
    struct vandal *v = arg;
    (void)budget_us;
    if (!v->on)
        return 0;
    kn_addr at;
    const struct eng_borrow ask = {.need = 1, .want = 1 << 20};
    size_t n = eng_background_borrow(v->engine, &ask, &at);
    memset((void *)at, 0xff, n);
    eng_background_return(v->engine, 0);
    atomic_fetch_add(&v->times, n > 1 << 16);
    return 1;
}

static void test_dirty_memory(void **state) {
    (void)state;
    static struct answer clean[ASKED], after[ASKED];
    struct fx x;
    struct vandal v = {0};
    const struct eng_background b = {.run = vandalise, .arg = &v};
    fx_open(&x, "tests/golden/models/q8_0.gguf", &(struct fx_options){0});
    for (int i = 0; i < 2; i++) {
        struct err_info info;
        v.on = i;
        v.engine = make_engine(&x, 1 << 20, &b, NULL);
        assert_ok(eng_start(v.engine, &info), &info);
        serve(v.engine, &x, i ? after : clean);
        eng_stop(v.engine);
        eng_destroy(v.engine);
    }
    assert_true(atomic_load(&v.times) > 3);
    assert_memory_equal(clean, after, sizeof clean);
    fx_close(&x);
}

static void wait_urgent(const struct eng_background *b) {
    for (int i = 0; i < 20000 && !b->urgent(b->arg); i++)
        usleep(500);
    assert_true(b->urgent(b->arg));
}

struct leaver {
    struct train_place *place;
    struct ft_exec *exec;
};

static void *leave(void *arg) {
    const struct leaver *l = arg;
    train_place_destroy(l->place, l->exec);
    return NULL;
}

// ---- the state is taken by requests, again and again

// Room for requests without training, or for training and little else.
static size_t tight(const struct fx *x, const struct ft_exec_config *cfg, size_t *block) {
    struct kn_kv_shape shape = {x->weights->config.n_layers, x->weights->config.n_kv_heads,
                                x->weights->config.head_dim};
    struct ft_exec_sizes n;
    struct err_info info;
    assert_ok(ft_exec_measure(cfg, &n, &info), &info);
    *block = x->ops->kv_block_bytes(&shape);
    assert_true(MANY * PER_REQUEST * *block > n.state + n.least);
    return (n.state + n.least) / *block * *block + 3 * *block;
}

struct asked {
    struct eng_stream *s;
    struct answer a;
    int32_t number;
};

// What there is to read; true at its end.
static bool read_some(struct asked *q) {
    struct eng_event ev;
    while (eng_stream_next(q->s, &ev)) {
        if (ev.type == ENG_EVENT_TOKEN) {
            q->a.logprob[q->a.n] = ev.logprob;
            q->a.token[q->a.n++] = ev.token;
        } else if (ev.type == ENG_EVENT_END) {
            assert_int_equal(ev.finish, ENG_FINISH_LENGTH);
            eng_stream_release(q->s);
            q->s = NULL;
            return true;
        }
    }
    return false;
}

static uint32_t rnd(uint64_t *s, uint32_t n) {
    *s = *s * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*s >> 33) % n;
}

static void turns(struct eng *e, const struct fx *x, struct clock_manual *clock, struct trainer *t,
                  const struct answer *quiet) {
    struct asked q[MANY] = {0};
    uint64_t seed = 7;
    int32_t n = 0, open = 0;
    bool burst = false;
    while (!atomic_load(&t->ended) || open) {
        struct ft_exec_usage u;
        ft_exec_usage(t->exec, &u);
        if (u.taken >= TAKEN)
            atomic_store(&t->quit, true);
        open = 0;
        burst = rnd(&seed, burst ? 60 : 200) ? burst : !burst;
        for (int32_t i = 0; i < MANY; i++) {
            if (!q[i].s && burst && !atomic_load(&t->ended) && rnd(&seed, 4) == 0) {
                q[i] = (struct asked){.number = n++ % ASKED};
                q[i].s = ask(e, x, q[i].number);
            }
            if (q[i].s && read_some(&q[i]))
                assert_memory_equal(&q[i].a, &quiet[q[i].number], sizeof q[i].a);
            open += q[i].s != NULL;
        }
        if (!eng_step(e))
            usleep(100);
        if (rnd(&seed, 40) == 0)
            clock_manual_advance(clock, 40000000000);
    }
}

static void test_state_taken(void **state) {
    static struct answer quiet[ASKED];
    struct fx x;
    struct tf_golden g;
    struct trainer alone, beside;
    struct train_place place = {0};
    struct err_info info;
    struct thread thread;
    struct clock_manual clock;
    size_t block;
    fx_open(&x, "tests/golden/models/q8_0.gguf", &(struct fx_options){0});
    tf_golden_read(&g, &x.weights->config, "q8_0");
    struct ft_exec_config cfg = config_of(&x, *state);
    place.memory = tight(&x, &cfg, &block);
    open_trainer(&alone, &g, &x.weights->config);
    open_trainer(&beside, &g, &x.weights->config);
    assert_ok(ft_exec_create(&cfg, &alone.exec, &info), &info);
    train(&alone);
    assert_ok(alone.result, &alone.info);
    ft_exec_destroy(alone.exec);
    assert_ok(train_place_init(&place, &info), &info);
    struct eng *e = open_engine(&x, &place);
    serve(e, &x, quiet);
    eng_stop(e);
    eng_destroy(e);

    const struct eng_background b = train_place_background(&place);
    clock_manual_init(&clock, 1, 1);
    e = place.engine = make_engine(&x, place.memory, &b, &clock.clock);
    beside.expected = alone.out;
    beside.endless = true;
    assert_ok(train_place_create(&place, &cfg, &beside.exec, &info), &info);
    assert_int_equal(thread_start(&thread, "trainer", train, &beside), ERR_OK);
    turns(e, &x, &clock, &beside, quiet);
    thread_join(&thread);
    assert_ok(beside.result, &beside.info);
    struct leaver l = {&place, beside.exec};
    assert_int_equal(thread_start(&thread, "leaver", leave, &l), ERR_OK);
    wait_urgent(&b);
    eng_step(e);
    thread_join(&thread);
    struct eng_colocation c;
    eng_colocation(e, &c);
    assert_int_equal(c.lent_bytes, 0);
    struct kv_stats st;
    kv_pool_stats(e->pool, &st);
    assert_int_equal(st.lent + st.live, 0);
    assert_int_equal(st.free + st.cached, st.total);
    assert_true(kv_pool_check(e->pool, NULL, 0, &info));
    eng_stop(e);
    eng_destroy(e);
    train_place_fini(&place);
    mdl_adapter_destroy(alone.out);
    mdl_adapter_destroy(beside.out);
    tf_golden_fini(&g);
    fx_close(&x);
}

// An engine that is turned by hand, so that each turn has a step: training's end may not need one
// without.
static struct eng_stream *decoding(struct eng *e, const struct fx *x, struct answer *a) {
    struct eng_stream *s = ask(e, x, 2);
    struct eng_event ev;
    for (int turns = 0; !a->n && turns < 100; turns++) {
        eng_step(e);
        if (eng_stream_next(s, &ev))
            a->token[a->n++] = ev.token;
    }
    assert_int_equal(a->n, 1);
    return s;
}

static void test_end_under_load(void **state) {
    struct fx x;
    struct tf_golden g;
    struct trainer t;
    struct answer a = {0};
    struct train_place place = {.memory = 1 << 20};
    struct train_place_state seen;
    struct err_info info;
    struct thread thread;
    fx_open(&x, "tests/golden/models/f32.gguf", &(struct fx_options){0});
    tf_golden_read(&g, &x.weights->config, "f32");
    struct ft_exec_config cfg = config_of(&x, *state);
    assert_ok(train_place_init(&place, &info), &info);
    const struct eng_background b = train_place_background(&place);
    struct eng *e = place_engine(&x, &place);
    open_trainer(&t, &g, &x.weights->config);
    struct eng_stream *s = decoding(e, &x, &a);
    train_place_name(&place, "ftjob-1");
    assert_ok(train_place_create(&place, &cfg, &t.exec, &info), &info);
    train_place_read(&place, &seen);
    assert_string_equal(seen.job, "ftjob-1");
    assert_string_equal(seen.reason, "");
    assert_int_equal(thread_start(&thread, "trainer", train, &t), ERR_OK);
    bool memory;
    for (int i = 0; i < 20000 && !ft_exec_waits(t.exec, &memory); i++)
        usleep(500);
    for (int i = 0; i < 3; i++) { // serving leaves no time
        assert_false(b.urgent(b.arg));
        eng_step(e);
    }
    struct eng_colocation c;
    eng_colocation(e, &c);
    assert_int_equal(c.all.slices.n, 0);
    train_place_leave(&place);
    wait_urgent(&b);
    eng_step(e);
    thread_join(&thread);
    assert_int_equal(t.result, ERR_CANCELLED);
    assert_false(b.urgent(b.arg));
    assert_ok(ft_exec_clear(t.exec, &info), &info); // state needs no slice
    assert_ok(ft_exec_get(t.exec, t.out, NULL, NULL, &info), &info);
    assert_memory_equal(t.out->memory, g.start->memory, t.out->values * sizeof(float));
    struct leaver l = {&place, t.exec};
    assert_int_equal(thread_start(&thread, "leaver", leave, &l), ERR_OK);
    wait_urgent(&b);
    eng_step(e);
    thread_join(&thread);
    eng_colocation(e, &c);
    assert_int_equal(c.lent_bytes, 0);
    train_place_read(&place, &seen);
    assert_string_equal(seen.job, "");
    struct eng_health h;
    eng_health(e, &h);
    assert_int_equal(h.running, 1); // there was a step to make all the time
    eng_stream_release(s);
    eng_stop(e);
    eng_destroy(e);
    train_place_fini(&place);
    mdl_adapter_destroy(t.out);
    tf_golden_fini(&g);
    fx_close(&x);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_both, scratch_open, scratch_close),
        cmocka_unit_test_setup_teardown(test_state_taken, scratch_open, scratch_close),
        cmocka_unit_test(test_dirty_memory),
        cmocka_unit_test_setup_teardown(test_end_under_load, scratch_open, scratch_close),
        cmocka_unit_test_setup_teardown(test_stop, scratch_open, scratch_close),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

// SPDX-License-Identifier: Apache-2.0
// Paged KV against a naive model: a list of known prefixes with their last use, and a "device" that
// stores what each position of each block holds.
#include "base/hash.h"
#include "base/mem.h"
#include "serving/paged_kv/kv.h"
#include "tests/support/cmocka_all.h"
#include <stdlib.h>
#include <string.h>

enum {
    SIZE = 4,
    MAX_BLOCKS = 12,
    MAX_LEN = SIZE * MAX_BLOCKS,
    SEQS = 10,
    POOL_MAX = 40,
    VOCAB = 2
};

static uint64_t rng_state;
static uint32_t rnd(uint32_t n) {
    rng_state += 0x9e3779b97f4a7c15u;
    return (uint32_t)(hash_mix64(rng_state) % n);
}

// A prefix the cache must know: all tokens from the start, a whole number of blocks.
struct known {
    struct kv_domain domain;
    int32_t tokens[MAX_LEN];
    int32_t n;      // 0: unused entry
    int32_t refs;   // sequences that hold it
    uint64_t order; // when it became unreferenced
};

struct model_seq {
    bool open;
    struct kv_seq kv;
    struct kv_domain domain;
    int32_t tokens[MAX_LEN];
    int32_t n;
    bool broken; // its chain was forgotten: no new keys
    int32_t keyed;
    bool holds[MAX_BLOCKS]; // block i is a known prefix in the model, or was when it was made
};

struct world {
    struct kv_pool *pool;
    int32_t blocks;
    bool cache;
    int64_t now;
    uint64_t order;
    struct known known[POOL_MAX];
    struct model_seq seqs[SEQS];
    uint64_t device[POOL_MAX][SIZE];
    uint64_t evictions;
};

static uint64_t content(const struct kv_domain *d, const int32_t *tokens, int32_t n) {
    uint64_t h = hash_mix64(d->adapter_version * 3 + d->salt + 1);
    for (int32_t i = 0; i < n; i++)
        h = hash_mix64(h ^ (uint64_t)(tokens[i] + 1));
    return h;
}

static bool same_domain(const struct kv_domain *a, const struct kv_domain *b) {
    return a->adapter_version == b->adapter_version && a->salt == b->salt;
}

static struct known *model_find(struct world *w, const struct kv_domain *d, const int32_t *tokens,
                                int32_t n) {
    for (int32_t i = 0; i < POOL_MAX; i++) {
        struct known *k = &w->known[i];
        if (k->n == n && same_domain(&k->domain, d) &&
            memcmp(k->tokens, tokens, (size_t)n * sizeof *tokens) == 0)
            return k;
    }
    return NULL;
}

static void check_world(struct world *w) {
    const struct kv_seq *list[SEQS];
    int32_t n = 0;
    for (int32_t i = 0; i < SEQS; i++) {
        struct model_seq *s = &w->seqs[i];
        if (!s->open)
            continue;
        list[n++] = &s->kv;
        assert_int_equal(s->kv.n_tokens, s->n);
        for (int32_t t = 0; t < s->n; t++) {
            uint64_t want = content(&s->domain, s->tokens, t + 1);
            assert_true(w->device[s->kv.table[t / SIZE]][t % SIZE] == want);
        }
    }
    struct err_info info = {0};
    if (!kv_pool_check(w->pool, list, n, &info))
        fail_msg("%s", info.message);
    struct kv_stats st;
    kv_pool_stats(w->pool, &st);
    int32_t cached = 0;
    for (int32_t i = 0; i < POOL_MAX; i++)
        cached += w->known[i].n > 0 && w->known[i].refs == 0;
    assert_int_equal(st.cached, cached);
    assert_int_equal(st.total, st.live + st.cached + st.free + st.lent);
    assert_int_equal(kv_pool_available(w->pool), st.free + st.cached);
    assert_true(st.evictions == w->evictions);
}

// The model gives up its oldest unreferenced prefix.
static void model_evict(struct world *w) {
    struct known *oldest = NULL;
    for (int32_t i = 0; i < POOL_MAX; i++) {
        struct known *k = &w->known[i];
        if (k->n && !k->refs && (!oldest || k->order < oldest->order))
            oldest = k;
    }
    assert_non_null(oldest);
    oldest->n = 0;
    w->evictions++;
}

static void model_key(struct world *w, struct model_seq *s, int32_t n) {
    if (!w->cache || s->broken || s->keyed * SIZE != n - SIZE)
        return;
    if (s->keyed > 0 && !s->holds[s->keyed - 1]) {
        s->broken = true;
        return;
    }
    struct known *k = model_find(w, &s->domain, s->tokens, n);
    for (int32_t i = 0; !k && i < POOL_MAX; i++) {
        if (!w->known[i].n) {
            k = &w->known[i];
            *k = (struct known){.domain = s->domain, .n = n};
            memcpy(k->tokens, s->tokens, (size_t)n * sizeof *s->tokens);
        }
    }
    if (!k)
        abort(); // the model has room for every block of the pool
    k->refs++;
    s->holds[s->keyed++] = true;
}

static struct known *model_must(struct world *w, const struct kv_domain *domain,
                                const int32_t *tokens, int32_t n) {
    struct known *k = model_find(w, domain, tokens, n);
    if (!k)
        abort();
    return k;
}

static void model_unref(struct world *w, struct model_seq *s) {
    for (int32_t i = s->keyed; i-- > 0;) {
        struct known *k = s->holds[i] ? model_find(w, &s->domain, s->tokens, (i + 1) * SIZE) : NULL;
        if (k && --k->refs == 0)
            k->order = ++w->order;
    }
    memset(s->holds, 0, sizeof s->holds);
    s->keyed = s->n = 0;
    s->broken = false;
}

static void op_open(struct world *w, struct model_seq *s) {
    *s = (struct model_seq){.open = true};
    s->domain = (struct kv_domain){.adapter_version = rnd(2), .salt = rnd(2)};
    assert_int_equal(kv_seq_init(&s->kv, w->pool, MAX_BLOCKS, &s->domain), ERR_OK);
    int32_t prompt[MAX_LEN], n = 1 + (int32_t)rnd(MAX_LEN - 1);
    for (int32_t i = 0; i < n; i++)
        prompt[i] = (int32_t)rnd(VOCAB);
    int32_t found = 0;
    while (w->cache && found + SIZE < n) {
        struct known *k = model_find(w, &s->domain, prompt, found + SIZE);
        if (!k)
            break;
        found += SIZE;
    }
    int32_t idle_want = 0, idle;
    for (int32_t t = SIZE; t <= found; t += SIZE)
        idle_want += model_must(w, &s->domain, prompt, t)->refs == 0;
    assert_int_equal(kv_pool_probe(w->pool, &s->domain, prompt, n, &idle), found);
    assert_int_equal(idle, idle_want);
    assert_int_equal(kv_seq_match(&s->kv, w->pool, prompt, n, w->now), found);
    memcpy(s->tokens, prompt, sizeof prompt);
    s->n = found;
    for (int32_t t = SIZE; t <= found; t += SIZE) {
        model_must(w, &s->domain, prompt, t)->refs++;
        s->holds[s->keyed++] = true;
    }
}

static void op_write(struct world *w, struct model_seq *s) {
    int32_t room = MAX_LEN - s->n;
    if (!room)
        return;
    int32_t n = 1 + (int32_t)rnd((uint32_t)(room < 9 ? room : 9)), n_copies = -1;
    struct kv_stats before, after;
    kv_pool_stats(w->pool, &before);
    struct kv_copy copy = {-1, -1};
    int32_t had = s->kv.n_blocks;
    enum err e = kv_seq_reserve(&s->kv, w->pool, s->n + n, &copy, &n_copies, w->now);
    kv_pool_stats(w->pool, &after);
    int32_t more = (s->n + n + SIZE - 1) / SIZE - had;
    if (more < 0)
        more = 0;
    if (e == ERR_AGAIN) {
        assert_true(more + 1 > before.free + before.cached);
        assert_int_equal(before.free, after.free);
        assert_int_equal(before.cached, after.cached);
        assert_int_equal(s->kv.n_blocks, had);
        return;
    }
    assert_int_equal(e, ERR_OK);
    int32_t taken = more + n_copies;
    for (int32_t i = before.free; i < taken; i++)
        model_evict(w);
    if (n_copies)
        memcpy(w->device[copy.dst], w->device[copy.src], sizeof w->device[0]);
    for (int32_t i = 0; i < n; i++) {
        int32_t t = s->n + i;
        s->tokens[t] = (int32_t)rnd(VOCAB);
        w->device[s->kv.table[t / SIZE]][t % SIZE] = content(&s->domain, s->tokens, t + 1);
    }
    if (rnd(8) == 0) // a step that failed: nothing is committed, the blocks stay reserved
        return;
    kv_seq_commit(&s->kv, w->pool, s->tokens + s->n, n, w->now);
    for (int32_t i = 0; i < n; i++)
        if (++s->n % SIZE == 0)
            model_key(w, s, s->n);
}

static void op_fork(struct world *w, struct model_seq *src, struct model_seq *dst) {
    *dst = *src;
    assert_int_equal(kv_seq_init(&dst->kv, w->pool, MAX_BLOCKS, &dst->domain), ERR_OK);
    assert_int_equal(kv_seq_fork(&dst->kv, &src->kv, w->pool), ERR_OK);
    for (int32_t i = 0; i < src->keyed; i++) {
        struct known *k = model_find(w, &src->domain, src->tokens, (i + 1) * SIZE);
        if (src->holds[i] && k)
            k->refs++;
    }
}

static void op_close(struct world *w, struct model_seq *s) {
    kv_seq_drop(&s->kv, w->pool, w->now);
    kv_seq_fini(&s->kv, w->pool);
    model_unref(w, s);
    s->open = false;
}

static bool starts_with(const struct known *k, const struct kv_domain *d, const int32_t *tokens,
                        int32_t n) {
    return k->n >= n && same_domain(&k->domain, d) &&
           memcmp(k->tokens, tokens, (size_t)n * sizeof *tokens) == 0;
}

// Forgets prefixes in the model; sequences that hold one keep their blocks without a key.
static void model_forget(struct world *w, const struct known *what) {
    struct known gone = *what;
    for (int32_t i = 0; i < POOL_MAX; i++) {
        struct known *k = &w->known[i];
        if (!k->n || !starts_with(k, &gone.domain, gone.tokens, gone.n))
            continue;
        for (int32_t j = 0; j < SEQS; j++) {
            struct model_seq *s = &w->seqs[j];
            if (s->open && s->keyed * SIZE >= k->n && starts_with(k, &s->domain, s->tokens, k->n))
                s->holds[k->n / SIZE - 1] = false;
        }
        k->n = 0;
    }
}

static void op_purge(struct world *w, struct model_seq *s) {
    for (int32_t i = 0; i < s->keyed; i++) {
        struct known *k = s->holds[i] ? model_find(w, &s->domain, s->tokens, (i + 1) * SIZE) : NULL;
        if (k && k->refs == 1)
            model_forget(w, k);
    }
    kv_seq_purge(&s->kv, w->pool, w->now);
    model_unref(w, s);
}

static void op_forget_version(struct world *w) {
    uint64_t version = rnd(2);
    bool all = rnd(4) == 0;
    kv_pool_forget(w->pool, version, all);
    for (int32_t i = 0; i < POOL_MAX; i++)
        if (w->known[i].n && (all || w->known[i].domain.adapter_version == version))
            model_forget(w, &w->known[i]);
}

static struct model_seq *pick(struct world *w, bool open) {
    for (uint32_t i = rnd(SEQS), n = 0; n < SEQS; n++)
        if (w->seqs[(i + n) % SEQS].open == open)
            return &w->seqs[(i + n) % SEQS];
    return NULL;
}

static void random_op(struct world *w) {
    struct model_seq *open = pick(w, true), *closed = pick(w, false);
    w->now++;
    switch (rnd(12)) {
    case 0:
    case 1:
        if (closed)
            op_open(w, closed);
        break;
    case 2:
        if (open && closed)
            op_fork(w, open, closed);
        break;
    case 3:
        if (open)
            op_close(w, open);
        break;
    case 4:
        if (open && rnd(4) == 0)
            op_purge(w, open);
        break;
    case 5:
        if (rnd(16) == 0)
            op_forget_version(w);
        break;
    default:
        if (open)
            op_write(w, open);
    }
    check_world(w);
}

static void run_random(uint64_t seed, bool cache) {
    struct world *w = mem_zalloc(sizeof *w);
    assert_non_null(w);
    rng_state = seed;
    w->blocks = 8 + (int32_t)rnd(POOL_MAX - 8);
    w->cache = cache;
    struct kv_config cfg = {.blocks = w->blocks, .block_size = SIZE, .prefix_cache = cache};
    assert_int_equal(kv_pool_create(&cfg, &w->pool), ERR_OK);
    for (int i = 0; i < 1500; i++)
        random_op(w);
    for (int32_t i = 0; i < SEQS; i++)
        if (w->seqs[i].open)
            op_close(w, &w->seqs[i]);
    check_world(w);
    kv_pool_destroy(w->pool);
    mem_free(w);
}

static void random_operations_match_the_model(void **state) {
    (void)state;
    for (uint64_t seed = 1; seed <= 40; seed++)
        run_random(seed, seed % 5 != 0);
}

// One step: lends, returns, opens, drops or extends. seqs[0..n) are the open ones; one that it
// opens is added to them. False: there was no room, and nothing to look at.
static bool lending_step(struct world *w, struct kv_seq **seqs, int32_t *n) {
    struct model_seq *s = pick(w, true), *closed = pick(w, false);
    uint32_t what = rnd(8);
    if (what == 0 && *n > 0) {
        struct kv_copy moves[4];
        int32_t n_moves = 0;
        const struct kv_lending how = {.now_ns = w->now,
                                       .hot_ns = (int64_t)rnd(3) * 5,
                                       .coldest = rnd(2),
                                       .seqs = seqs,
                                       .n_seqs = *n,
                                       .moves = moves,
                                       .max_moves = 4};
        kv_pool_lend(w->pool, (int32_t)rnd(6), &how, &n_moves);
        for (int32_t m = 0; m < n_moves; m++)
            memcpy(w->device[moves[m].dst], w->device[moves[m].src], sizeof w->device[0]);
    } else if (what == 1) {
        kv_pool_return(w->pool, (int32_t)rnd(8));
    } else if (what < 4 && closed) {
        *closed = (struct model_seq){.open = true, .domain = {.salt = rnd(2)}};
        assert_int_equal(kv_seq_init(&closed->kv, w->pool, MAX_BLOCKS, &closed->domain), ERR_OK);
        for (int32_t t = 0; t < MAX_LEN; t++)
            closed->tokens[t] = (int32_t)rnd(VOCAB);
        closed->n = kv_seq_match(&closed->kv, w->pool, closed->tokens, MAX_LEN, w->now);
        seqs[(*n)++] = &closed->kv;
    } else if (what == 4 && s) {
        kv_seq_drop(&s->kv, w->pool, w->now);
        s->n = 0;
    } else if (s && s->n < MAX_LEN) {
        int32_t len = 1 + (int32_t)rnd((uint32_t)(MAX_LEN - s->n)), n_copies;
        struct kv_copy copy;
        if (kv_seq_reserve(&s->kv, w->pool, s->n + len, &copy, &n_copies, w->now))
            return false;
        for (int32_t t = s->n; t < s->n + len; t++)
            w->device[s->kv.table[t / SIZE]][t % SIZE] = content(&s->domain, s->tokens, t + 1);
        kv_seq_commit(&s->kv, w->pool, s->tokens + s->n, len, w->now);
        s->n += len;
    }
    return true;
}

// The model does not follow lending, so only contents and the walk are compared.
static void check_contents(const struct world *w, struct kv_seq *const *seqs, int32_t n, int seed,
                           int step) {
    const struct kv_seq *seen[SEQS];
    struct err_info info = {0};
    for (int32_t i = 0; i < n; i++)
        seen[i] = seqs[i];
    if (!kv_pool_check(w->pool, seen, n, &info))
        fail_msg("seed %d step %d: %s", seed, step, info.message);
    for (int32_t j = 0; j < SEQS; j++) {
        const struct model_seq *q = &w->seqs[j];
        for (int32_t t = 0; q->open && t < q->n; t++)
            assert_true(w->device[q->kv.table[t / SIZE]][t % SIZE] ==
                        content(&q->domain, q->tokens, t + 1));
    }
}

static void random_lending_keeps_the_contents(void **state) {
    (void)state;
    for (uint64_t seed = 100; seed < 130; seed++) {
        struct world *w = mem_zalloc(sizeof *w);
        assert_non_null(w);
        rng_state = seed;
        w->blocks = 16 + (int32_t)rnd(POOL_MAX - 16);
        struct kv_config cfg = {.blocks = w->blocks, .block_size = SIZE};
        cfg.prefix_cache = true;
        assert_int_equal(kv_pool_create(&cfg, &w->pool), ERR_OK);
        for (int i = 0; i < 600; i++) {
            struct kv_seq *open[SEQS];
            int32_t n = 0;
            for (int32_t j = 0; j < SEQS; j++)
                if (w->seqs[j].open)
                    open[n++] = &w->seqs[j].kv;
            w->now++;
            if (lending_step(w, open, &n))
                check_contents(w, open, n, (int)seed, i);
        }
        for (int32_t j = 0; j < SEQS; j++)
            if (w->seqs[j].open)
                kv_seq_fini(&w->seqs[j].kv, w->pool);
        kv_pool_destroy(w->pool);
        mem_free(w);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_operations_match_the_model),
        cmocka_unit_test(random_lending_keeps_the_contents),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
